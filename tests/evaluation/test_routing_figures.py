"""Maps, queries and spectra of the routes of runs."""

import pytest

from physicsnemo_flarepp.evaluation import draw_queries, draw_routing, draw_spectrum, load_run
from physicsnemo_flarepp.runs import trained_run
from physicsnemo_flarepp.visualization import Theme
from tests.evaluation import making

pytestmark = pytest.mark.slow

SMALL = Theme(dpi=50, panel_width=1.2)


def test_routing_of_a_run(both, tmp_path):
    maps = draw_routing(both[0], 0, tmp_path, heads=[(0, 1)], routes=2, theme=SMALL)
    assert len(maps.rectangles) == 4
    assert draw_queries(both[0], (0, 1), tmp_path, theme=SMALL).change.max() > 0
    fixed = draw_queries(both[1], (0, 1), tmp_path, formats=("svg",), theme=SMALL)
    assert (fixed.change == 0).all()
    assert ">surfaces-flare<" in fixed.paths[0].read_text()
    drawn = draw_spectrum(both, 0, tmp_path, formats=("png", "svg"), theme=SMALL)
    first = both[0].case_ids[0]
    assert f">case {first}<" in drawn.paths[1].read_text()
    assert {name: len(ranks) for name, ranks in drawn.effective_rank.items()} == {
        "surfaces": 2,
        "surfaces-flare": 2,
    }
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "routing.png",
        "queries.png",
        "spectrum.png",
    }


def test_models_with_few_routes_show_them_all(tmp_path, surfaces):
    data = making.surface_data(surfaces)
    directory = making.write_run(tmp_path / "few", data, {"slice_num": 3})
    run = load_run(directory, device="cpu")
    maps = draw_routing(run, 0, tmp_path, heads=[(0, 0)], theme=SMALL)
    assert len(maps.rectangles) == 6
    with pytest.raises(ValueError, match="compared with themselves"):
        draw_queries(run, (0, 0), tmp_path, theme=SMALL)


def test_a_case_is_not_predicted_for_its_routes(both, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the case was predicted")

    monkeypatch.setattr(trained_run, "predict", refuse)
    maps = draw_routing(both[0], 0, tmp_path, heads=[(0, 0)], routes=1, theme=SMALL)
    assert maps.paths
