"""The 3D view live: a page on this machine that predicts surfaces dropped into it.

The view of the report serves here too, so there is one viewer, without a further dependency. The
server listens on 127.0.0.1 only, answers requests with its token, and predicts one at a time.
"""

import hmac
import json
import secrets
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from ..evaluation import (
    FilePrediction,
    ForceSettings,
    Run,
    chosen_case,
    describe_prediction,
    predict_file,
    predict_with_all,
)
from ..evaluation.figures import file_name, preset_of
from ..meshes import SUFFIXES, read_mesh, to_pyvista
from ..texts import printable
from ..visualization.canvases import data_of, error_limits, field_limits
from .page import render_page
from .scene import Layer, band_layer, case_layers, make_scene

_HOST = "127.0.0.1"
_LARGEST = 2**30  # bytes of an upload
_QUANTITIES = {"": "reference", "_predicted": "prediction", "_error": "error"}
Answer = tuple[dict[str, Any] | None, list[str]]  # a scene and lines about it


def file_scene(path: Path) -> Answer:
    """Return the arrays of a mesh file, ``<field>_predicted`` and ``_error`` with their field."""
    mesh = to_pyvista(read_mesh(path))
    places = {"cell": mesh.cell_data, "point": mesh.point_data}
    association = max(places, key=lambda place: len(places[place]))
    arrays = {name: np.asarray(values) for name, values in places[association].items()}
    arrays = {n: v if v.ndim == 1 else np.linalg.norm(v, axis=1) for n, v in arrays.items()}
    layers: dict[str, list[Layer]] = {}
    for name, values in arrays.items() or {"z": mesh.points[:, 2]}.items():
        suffix = next((s for s in ("_predicted", "_error") if name.endswith(s)), "")
        base = name.removesuffix(suffix)
        kind = "errors" if suffix == "_error" else "fields"
        limits = field_limits(arrays.get(base, values))
        limits = error_limits({"": values}) if kind == "errors" else limits
        layers.setdefault(base, []).append(Layer(_QUANTITIES[suffix], values, limits, kind))
    other = {"cell": "point", "point": "cell"}[association]
    notes = [f"Arrays at {other}s are left out."] if len(places[other]) else []
    return make_scene(path.name, mesh, association if arrays else "point", layers, notes=notes), []


@dataclass(frozen=True)
class Predictor:
    """Scenes and lines of text from a run."""

    run: Run
    forces: Callable[[Run, Path], tuple[ForceSettings | None, ForceSettings | None]]

    def first(self) -> Answer:
        """Return the median test case; without the data, only how to continue."""
        try:
            case_id = chosen_case(self.run, "median")
            found = predict_with_all([self.run], [self.run.name], case_id)
        except (OSError, ValueError) as reason:
            return None, [f"no test case is shown: {reason}", "drop a surface to predict it"]
        one = found[self.run.name]
        layers = case_layers(found, preset_of(self.run, one))
        title = f"case {case_id}, the median error of {self.run.name}"
        return make_scene(title, one.mesh, one.association, layers), [title]

    def of_file(self, path: Path) -> Answer:
        """Return the prediction on a surface, with warnings, forces and what they rest on."""
        found = predict_file(self.run, path, progress=False)
        lines = [f"{path.name}: {len(found.values):,} {found.association}s"]
        if found.polygons is not None:
            lines += describe_prediction(self.run, found, *self.forces(self.run, path))
        else:
            lines += [f"warning: {text}" for text in found.warnings]
        title = f"{path.name}, predicted by {self.run.name}"
        return make_scene(title, found.mesh, found.association, self._layers(found)), lines

    def _layers(self, found: FilePrediction) -> dict[str, list[Layer]]:
        layers = {}
        for name in self.run.channels.fields:
            values = found.values[:, self.run.channels.columns(name)]
            scalars = values[:, 0] if values.shape[1] == 1 else np.linalg.norm(values, axis=1)
            layers[name] = [Layer("prediction", scalars, field_limits(scalars))]
            band = data_of(found.mesh, found.association).get(f"{printable(name)}_band")
            if band is not None:
                layers[name].append(band_layer(band, found.level))
        return layers


@dataclass
class LiveView:
    """A server of the page; :attr:`url` holds the token without which it answers nothing."""

    # It begins with `first`, and takes no files where `predict` is None; port 0 is a free one.

    title: str
    first: Answer
    predict: Callable[[Path], Answer] | None = None
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        view, turn = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self._allowed("/"):
                    self._send(200, view.page(), "text/html; charset=utf-8")

            def do_POST(self) -> None:
                if self._allowed("/predict"):
                    with turn:
                        code, answer = view.answer(self._query, self.headers, self.rfile)
                    self._send(code, json.dumps(answer), "application/json")

            def _allowed(self, path: str) -> bool:
                address = urlsplit(self.path)
                self._query = {n: v[0] for n, v in parse_qs(address.query).items()}
                given = self._query.get("token", "").encode()
                # Another name for this machine would let a foreign page speak as its own.
                host = self.headers.get("Host") == f"{_HOST}:{view.port}"
                if host and hmac.compare_digest(given, view.token.encode()):
                    if address.path == path:
                        return True
                    self._send(404, "not found", "text/plain")
                else:
                    self._send(403, "the address lacks the token that was printed", "text/plain")
                return False

            def _send(self, code: int, text: str, kind: str) -> None:
                body = text.encode()
                self.send_response(code)
                for name, value in (("Content-Type", kind), ("Content-Length", len(body)),
                                    ("Cache-Control", "no-store"), ("Connection", "close"),
                                    ("Referrer-Policy", "no-referrer"),
                                    ("X-Content-Type-Options", "nosniff")):  # fmt: skip
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Keep the token out of logs."""

        self.server = ThreadingHTTPServer((_HOST, self.port), Handler)
        self.port = self.server.server_address[1]

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_HOST}:{self.port}/?token={self.token}"

    def page(self) -> str:
        """Return the page."""
        scene, lines = self.first
        return render_page(
            title=self.title, live=True, scene=scene, drops=self.predict is not None,
            answer="\n".join(map(printable, lines)),
        )  # fmt: skip

    def answer(self, query: dict[str, str], headers: Any, body: Any) -> tuple[int, dict[str, Any]]:
        """Return the code and the content of an answer to a file."""
        size = int(headers.get("Content-Length") or 0)
        name = Path(query.get("name", "")).name
        suffix = Path(name).suffix.lower()
        if self.predict is None or suffix not in SUFFIXES:
            return 400, {"lines": [f"{name} is not one of {', '.join(SUFFIXES)}"]}
        if not 0 < size <= _LARGEST:
            return 413, {"lines": [f"{name} has {size} bytes, expected 1 to {_LARGEST}"]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file_name(name)
            with open(path, "wb") as file:
                while size > 0 and (block := body.read(min(size, 2**20))):
                    size -= file.write(block)
            try:
                scene, lines = self.predict(path)
            except (OSError, ValueError) as reason:
                return 422, {"lines": [printable(reason)]}
        return 200, {"scene": scene, "lines": [printable(line) for line in lines]}
