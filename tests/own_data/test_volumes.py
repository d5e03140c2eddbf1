"""Volumes around a body: distances as inputs, trained, evaluated, predicted and drawn."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.datapipes.readers import OwnReader

TRAIN = (
    "model.n_layers=1 model.n_hidden=16 model.n_head=2 model.slice_num=4 training.epochs=2 "
    "data.n_points=64 threads=1"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three boxes of cells around spheres of different size."""
    root = tmp_path_factory.mktemp("volumes")
    for number, radius in enumerate((0.3, 0.4, 0.5)):
        case = root / f"run_{number}"
        case.mkdir()
        body = pv.Icosphere(radius=radius, nsub=2)
        body.save(case / "body.stl")
        grid = pv.ImageData(dimensions=(8, 8, 8), spacing=(0.3,) * 3, origin=(-1.05,) * 3)
        centres = grid.cell_centers().points
        outside = grid.extract_cells(np.linalg.norm(centres, axis=1) > radius + 0.1)
        outside.clear_data()
        distance = np.linalg.norm(outside.cell_centers().points, axis=1)
        outside.cell_data["pressure"] = (radius / distance) ** 2
        outside.save(case / "volume.vtu")
    return root


def reader(root, **changes):
    return OwnReader(
        root,
        **{
            "files": "{case}/volume.vtu",
            "body": "{case}/body.stl",
            "fields": ["pressure"],
            "features": ["distance", "direction"],
            "globals": [],
            **changes,
        },
    )


def test_distances_and_directions_are_those_to_the_sphere(folder):
    sample, _ = reader(folder, cases=["run_1"])[0]
    points, features = sample["coordinates"].numpy(), sample["features"].numpy()
    radius = np.linalg.norm(points, axis=1)
    np.testing.assert_allclose(features[:, 0], radius - 0.4, atol=0.02)
    np.testing.assert_allclose(features[:, 1:], -points / radius[:, None], atol=0.15)


def test_distances_without_a_body_say_what_to_give(folder):
    with pytest.raises(ValueError, match="data.reader.body"):
        reader(folder, body=None, cases=["run_0"])[0]
    with pytest.raises(ValueError, match="matches 0 files for case run_0"):
        reader(folder, body="{case}/none.stl", cases=["run_0"])[0]


@pytest.mark.slow
def test_a_volume_is_trained_predicted_and_drawn(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    names = ["data.fields=[pressure]", "data.features=[distance,direction]", "data.globals=[]"]
    files = ["data.reader.files='{case}/volume.vtu'", "data.reader.body='{case}/body.stl'"]
    data = ["data=own", f"data.root={folder}", *names, *files, "data.weights=measure"]
    assert main(["train", *data, f"run_dir={run}", *TRAIN]) == 0
    assert (run / "figures" / "comparison_median_pressure.png").stat().st_size > 10_000
    volume, body = folder / "run_0" / "volume.vtu", folder / "run_0" / "body.stl"
    assert main(["predict", str(run), str(volume), "--body", str(body)]) == 0
    predicted = pv.read(run / "predictions" / "volume_predicted.vtu")
    assert predicted.n_cells == pv.read(volume).n_cells
    assert np.isfinite(predicted.cell_data["pressure_predicted"]).all()
