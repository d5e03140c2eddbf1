"""Look at a run or a file in a browser on this machine."""

import argparse
import webbrowser

from ..evaluation import pretrained_run
from ..report.live import LiveView, Predictor, file_scene
from .parsers import chosen_forces, load_chosen_run


def run(options: argparse.Namespace) -> None:
    """Serve the view until Ctrl-C."""
    view = open_view(options)
    print(f"{view.url}\nCtrl-C ends it", flush=True)
    if not options.no_browser:
        webbrowser.open(view.url)
    try:
        view.server.serve_forever()
    finally:
        view.server.server_close()


def open_view(options: argparse.Namespace) -> LiveView:
    """Return the view that the options describe, listening but not serving yet."""
    given = [path for path in (options.path, options.file) if path is not None]
    if options.pretrained is not None:
        given.insert(0, pretrained_run(options.pretrained))
    if not 1 <= len(given) <= 2:
        raise ValueError("nothing to view; name a run directory, a mesh file, or --pretrained cars")
    if len(given) == 1 and given[0].is_file():
        return LiveView(given[0].name, file_scene(given[0]), port=options.port)
    trained = load_chosen_run(given[0], options)
    predictor = Predictor(trained, lambda run, path: chosen_forces(run, options, path))
    first = predictor.of_file(given[1]) if len(given) == 2 else predictor.first()
    return LiveView(f"Run {trained.name}", first, predictor.of_file, options.port)
