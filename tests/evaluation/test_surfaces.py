"""Predictions on surfaces of any file: complete, in order, and clear about doubtful input."""

import os
import re
import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.evaluation import (
    cases,
    describe_prediction,
    force_settings,
    load_run,
    predict_case,
    predict_surface,
    read_surface,
    save_mesh,
)
from physicsnemo_flarepp.evaluation.sizes import compare_size, training_set
from physicsnemo_flarepp.evaluation.surfaces import surface_sample
from physicsnemo_flarepp.inference import predict
from tests.evaluation import making


def ahmed_files():
    """The real surfaces: where FLAREPP_AHMED says, else ../shared/data/ahmed of the repository."""
    default = Path(__file__).parents[3] / "shared" / "data" / "ahmed"
    return sorted(Path(os.environ.get("FLAREPP_AHMED", default)).glob("boundary_*.vtp"))


def values(prediction):
    surface = prediction.surface
    data = surface.cell_data if prediction.association == "cell" else surface.point_data
    return np.column_stack([data[f"{name}_predicted"] for name in making.SURFACE_FIELDS])


@pytest.mark.parametrize("suffix", [".vtp", ".stl", ".ply", ".obj", ".vtk"])
def test_every_cell_of_any_format_gets_its_value_of_the_test_case(
    loaded, surfaces, tmp_path, suffix
):
    mesh = pv.read(surfaces / "run_3" / "boundary_3.vtp")
    if suffix == ".obj":
        corners = [f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in mesh.points]
        faces = [f"f {a} {b} {c}" for a, b, c in mesh.regular_faces + 1]
        (tmp_path / "car.obj").write_text("\n".join([*corners, *faces]))
    else:
        mesh.save(tmp_path / f"car{suffix}")
    prediction = predict_surface(loaded, tmp_path / f"car{suffix}")
    save_mesh(prediction.surface, tmp_path / "out.vtp")
    written = pv.read(tmp_path / "out.vtp")
    assert written.n_cells == mesh.n_cells
    assert not prediction.warnings
    np.testing.assert_allclose(written.cell_centers().points, mesh.cell_centers().points, atol=1e-6)
    expected = predict_case(loaded, "run_3").prediction
    found = np.column_stack([written.cell_data[f"{n}_predicted"] for n in making.SURFACE_FIELDS])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)
    assert np.ptp(expected[:, 0]) > 1  # different cells have different values


@pytest.mark.parametrize("suffix", [".vtp", ".stl"])
def test_permuted_cells_give_permuted_values(loaded, tmp_path, suffix):
    mesh = making.body(9)
    order = np.random.default_rng(0).permutation(mesh.n_cells)
    mesh.save(tmp_path / f"a{suffix}")
    shuffled = pv.PolyData.from_regular_faces(mesh.points, mesh.regular_faces[order])
    shuffled.save(tmp_path / f"b{suffix}")
    a = predict_surface(loaded, tmp_path / f"a{suffix}")
    b = predict_surface(loaded, tmp_path / f"b{suffix}")
    np.testing.assert_allclose(values(b), values(a)[order], rtol=1e-3, atol=1e-2)


def test_a_surface_keeps_its_own_data(loaded, surfaces):
    path = surfaces / "run_3" / "boundary_3.vtp"
    surface = predict_surface(loaded, path).surface
    np.testing.assert_array_equal(surface.cell_data["pMeanTrim"], pv.read(path)["pMeanTrim"])


@pytest.mark.parametrize("path", [*ahmed_files(), None], ids=lambda p: p.stem if p else "written")
@pytest.mark.parametrize("association", ["cell", "point"])
def test_real_surfaces_are_predicted_whole(tmp_path, path, association):
    """Trained at points of one surface, predicts at points; told so, at cells."""
    root = tmp_path / "set"
    root.mkdir()
    mesh = making.body(1).cell_data_to_point_data() if path is None else pv.read(path)
    pressure, shear = ("pMeanTrim", "wallShearStressMeanTrim")
    if path is not None:
        pressure, shear = "pMean", "wallShearStressMean"
    for name in ("a", "b"):
        mesh.save(root / f"{name}.vtp")
    reader = {
        "_target_": "DrivAerMLReader",
        "pattern": "*.vtp",
        "fields": [pressure, shear],
        "train_cases": ["a"],
        "test_cases": ["b"],
    }
    data = making.surface_data(root, reader=reader)
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    chosen = None if association == "point" else "cell"
    prediction = predict_surface(run, root / "b.vtp", association=chosen)
    save_mesh(prediction.surface, tmp_path / "out.vtp")
    written = pv.read(tmp_path / "out.vtp")
    target = written.cell_data if association == "cell" else written.point_data
    n = mesh.n_cells if association == "cell" else mesh.n_points
    assert target[f"{pressure}_predicted"].shape == (n,)
    assert target[f"{shear}_predicted"].shape == (n, 3)
    np.testing.assert_array_equal(written.points, mesh.points)
    if association == "point":
        np.testing.assert_allclose(
            target[f"{pressure}_predicted"],
            predict_case(run, "b").prediction[:, 0],
            rtol=1e-4,
            atol=1e-5,
        )
    if path is not None and association == "point":
        # OpenFOAM's sign, by the names of the fields: friction drags the body along the flow.
        lines = describe_prediction(run, prediction, force_settings(run))
        true = next(line for line in lines if "in the file" in line and "Cd" in line)
        drag = float(true.split("Cd ")[1].split()[0])
        friction = float(true.split("shear ")[1].split(")")[0])
        assert 0.15 < drag < 0.6 and 0 < friction < 0.1


def test_inputs_are_those_of_training(featured_run, surfaces):
    """Normals, areas and the global value beside the file reach the model as in training."""
    run = load_run(featured_run, device="cpu")
    prediction = predict_surface(run, surfaces / "run_4" / "boundary_4.vtp")
    expected = predict_case(run, "run_4").prediction
    np.testing.assert_allclose(values(prediction), expected, rtol=1e-4, atol=1e-3)
    given = predict_surface(
        run, surfaces / "run_4" / "boundary_4.vtp", global_values={"aRef": 20.0}
    )
    assert not np.allclose(values(given), expected, rtol=1e-2)
    flipped = predict_surface(run, surfaces / "run_4" / "boundary_4.vtp", flip=True)
    assert not np.allclose(values(flipped), expected, rtol=1e-2)
    assert "face outward" in prediction.warnings[0] and "face inward" in flipped.warnings[0]


def test_globals_that_are_missing_or_unknown_are_named(featured_run, tmp_path):
    run = load_run(featured_run, device="cpu")
    making.body(0).save(tmp_path / "alone.stl")
    with pytest.raises(ValueError, match="needs the global values aRef.*--global aRef=<number>"):
        predict_surface(run, tmp_path / "alone.stl")
    with pytest.raises(ValueError, match="no global value U; its global values are aRef"):
        predict_surface(run, tmp_path / "alone.stl", global_values={"U": 1.0, "aRef": 2.0})
    with pytest.raises(ValueError, match="aRef has 3 numbers, but run featured takes 1"):
        predict_surface(run, tmp_path / "alone.stl", global_values={"aRef": [1, 2, 3]})


def test_a_stored_feature_that_is_absent_is_named(tmp_path, surfaces):
    data = making.surface_data(surfaces)
    data["reader"] = {**data["reader"], "fields": ["pMeanTrim"]}
    data["reader"]["features"] = ["wallShearStressMeanTrim"]
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    making.body(0).save(tmp_path / "bare.stl")
    with pytest.raises(ValueError, match="bare.stl has no cell data wallShearStressMeanTrim"):
        predict_surface(run, tmp_path / "bare.stl")


@pytest.mark.parametrize(
    "factor, advice",
    [
        (1000, "It looks like millimetres: give --scale 0.001"),
        (100, "It looks like centimetres: give --scale 0.01"),
        (1 / 0.0254, "It looks like inches: give --scale 0.0254"),
        (0.001, "It looks like metres, and training like millimetres: give --scale 1000"),
        (0.2, "about 5 times smaller; if only its scale is wrong, give --scale"),
    ],
)
def test_other_units_are_noticed_and_can_be_scaled(loaded, tmp_path, factor, advice):
    """The run stored no training set: its normaliser tells the size roughly."""
    mesh = making.body(3)
    mesh.scale(factor).save(tmp_path / "other.stl")
    prediction = predict_surface(loaded, tmp_path / "other.stl")
    (warning,) = prediction.warnings
    assert "not of the size of the training surfaces: x " in warning
    assert re.sub(r"about [345]\S* times", "about 5 times", warning).find(advice) > 0
    scaled = predict_surface(loaded, tmp_path / "other.stl", scale=1 / factor)
    assert not scaled.warnings and scaled.doubt is None
    centres = scaled.surface.cell_centers().points
    np.testing.assert_allclose(centres, mesh.cell_centers().points, atol=1e-5)


def test_advice_counts_the_scale_that_was_given(loaded, tmp_path):
    making.body(3).save(tmp_path / "metres.stl")
    (warning,) = predict_surface(loaded, tmp_path / "metres.stl", scale=0.001).warnings
    assert "give --scale 1" in warning and "--scale 1000" not in warning


def test_forces_of_another_size_are_doubtful_and_the_file_says_so(loaded, tmp_path):
    making.body(3).scale(0.2).save(tmp_path / "small.stl")
    prediction = predict_surface(loaded, tmp_path / "small.stl")
    lines = describe_prediction(loaded, prediction, force_settings(loaded))
    assert lines[0].startswith("warning: ") and "not of the size" in lines[0]
    forces = [line for line in lines if "Cd" in line]
    assert forces[0].startswith("forces predicted (doubtful: the surface is not of the size")
    save_mesh(prediction.surface, tmp_path / "out.vtp")
    assert list(pv.read(tmp_path / "out.vtp").field_data["warnings"]) == list(prediction.warnings)
    making.body(3).save(tmp_path / "sound.stl")
    sound = predict_surface(loaded, tmp_path / "sound.stl")
    assert "warnings" not in sound.surface.field_data
    assert not any(
        "doubtful" in t for t in describe_prediction(loaded, sound, force_settings(loaded))
    )


CARS = {
    "coordinates": {"min": [-1.0, -1.0, 0.0], "max": [4.2, 1.0, 1.8]},
    "extent": {"min": [4.2, 1.7, 1.3], "max": [5.0, 2.0, 1.7]},
}


@pytest.mark.parametrize(
    "extent, advice",
    [
        ((4.6, 1.8, 1.5), None),
        ((5.3, 2.1, 1.2), None),  # a little beyond: sampled tokens miss the outermost ones
        ((4600, 1800, 1500), "It looks like millimetres: give --scale 0.001"),
        ((5000, 1700, 1300), "It looks like millimetres: give --scale 0.001"),
        ((460, 180, 150), "It looks like centimetres: give --scale 0.01"),
        ((181, 71, 59), "It looks like inches: give --scale 0.0254"),
        ((0.0046, 0.0018, 0.0015), "metres, and training like millimetres: give --scale 1000"),
        ((0.92, 0.36, 0.3), "has the proportions of training and is about 5.02 times smaller"),
        ((1.8, 4.6, 1.5), "Its axes look exchanged: its x, y, z are like y, x, z of training"),
        (
            (1800, 1500, 4600),
            "--scale 0.001. Its axes look exchanged: its x, y, z are like y, z, x",
        ),
        ((4.6, 1.8, 4.6), "It has other proportions too"),
        ((4600, 1800, 4600), "other proportions too.*It looks like millimetres .--scale 0.001"),
        ((4.6, 1.8, 0.0), "It has other proportions too"),
        ((0.0, 0.0, 0.0), "It has other proportions too"),
    ],
)
def test_size_and_proportions_are_compared_with_the_training_set(extent, advice):
    corners = np.array([1.6, 0.0, 0.9]) + np.outer([-0.5, 0.5], extent)
    found = compare_size(CARS, corners, "car.stl")
    if advice is None:
        assert found.warning is None and found.doubt is None
    else:
        assert re.search(f"car.stl is not of the size of .*{advice}", found.warning)
        assert found.doubt == "the surface is not of the size of those of training"


def test_a_stored_training_set_goes_before_the_normaliser(loaded):
    assert training_set(loaded)["coordinates"]["max"][0] == pytest.approx(1.76, abs=0.1)
    stored = SimpleNamespace(training_set=CARS)
    assert training_set(stored) is CARS


def test_a_surface_elsewhere_is_noticed(loaded, tmp_path):
    making.body(3).translate((10, 0, 0)).save(tmp_path / "far.stl")
    prediction = predict_surface(loaded, tmp_path / "far.stl")
    (warning,) = prediction.warnings
    assert "x 8." in warning and "Move it" in warning and "y " not in warning
    assert "not where those of training are" in prediction.doubt


def test_polygons_and_degenerate_cells_are_predicted(loaded, tmp_path):
    box = pv.Box((-1, 1, -0.5, 0.5, -0.3, 0.3)).clean()
    faces = [*box.irregular_faces, np.array([0, 1, 1]), np.array([0, 1, 2, 3, 4])]
    mesh = pv.PolyData.from_irregular_faces(box.points, faces)
    mesh.save(tmp_path / "mixed.vtp")
    prediction = predict_surface(loaded, tmp_path / "mixed.vtp")
    assert prediction.values.shape == (8, 4) and np.isfinite(prediction.values).all()
    assert any("1 cells have no area" in text for text in prediction.warnings)
    # The token of a polygon is the mean of its corners.
    sample = surface_sample(loaded, prediction.polygons, "cell", {})
    corners = [mesh.points[face].mean(axis=0) for face in faces]
    np.testing.assert_allclose(sample["coordinates"], corners, atol=1e-6)


def test_loose_points_matter_to_runs_on_points_only(loaded, tmp_path):
    mesh = making.body(2)
    points = np.concatenate([mesh.points, [[0.0, 0.0, 0.0]]])
    pv.PolyData.from_regular_faces(points, mesh.regular_faces).save(tmp_path / "loose.vtp")
    assert not predict_surface(loaded, tmp_path / "loose.vtp").warnings
    at_points = predict_surface(loaded, tmp_path / "loose.vtp", association="point")
    assert "1 points belong to no cell" in at_points.warnings[0]
    assert len(at_points.values) == mesh.n_points + 1


def bad_file(name, folder):
    path = folder / f"{name}.vtp"
    if name == "empty":
        pv.PolyData().save(path)
    elif name == "cloud":
        pv.PolyData(np.random.default_rng(0).random((5, 3))).save(path)
    elif name == "lines":
        (pv.Sphere() + pv.Line()).extract_surface(algorithm=None).save(path)
    elif name == "infinite":
        mesh = pv.Sphere()
        mesh.points[7, 1] = np.nan
        mesh.save(path)
    elif name == "two_corners":
        pv.PolyData.from_irregular_faces(np.eye(3), [[0, 1, 2], [0, 1]]).save(path)
    elif name == "volume":
        path = folder / "volume.vtk"
        pv.ImageData(dimensions=(3, 3, 3)).cast_to_unstructured_grid().save(path)
    elif name == "suffix":
        path = folder / "car.step"
        path.write_text("")
    return path


@pytest.mark.parametrize(
    "name, error, message",
    [
        ("empty", ValueError, "0 polygons among 0 cells"),
        ("cloud", ValueError, "0 polygons among 5 cells"),
        ("lines", ValueError, "expected a surface of polygons only"),
        ("infinite", ValueError, "1 points with NaN.*first at 7"),
        ("two_corners", ValueError, "1 cells with fewer than 3 vertices, the first at 1"),
        ("volume", ValueError, "holds a UnstructuredGrid.*extract_surface"),
        ("suffix", ValueError, "car.step must end in"),
        ("absent", FileNotFoundError, "absent.vtp does not exist"),
    ],
)
def test_what_is_no_surface_is_refused(tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        read_surface(bad_file(name, tmp_path))


def test_a_run_on_grids_takes_no_surface(darcy_run, tmp_path):
    making.body(0).save(tmp_path / "car.stl")
    with pytest.raises(ValueError, match="dimension 2 on a grid .*points in a .npz"):
        predict_surface(load_run(darcy_run, device="cpu"), tmp_path / "car.stl")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "out.vtp"
    making.body(0).save(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="out.vtp could not be written"):
            save_mesh(pv.Sphere(theta_resolution=100, phi_resolution=100), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.vtp"]


def test_output_names_are_checked(tmp_path):
    with pytest.raises(ValueError, match="ends in .vtp"):
        save_mesh(pv.Sphere(), tmp_path / "out.stl")
    with pytest.raises(FileNotFoundError, match="none of the output does not exist"):
        save_mesh(pv.Sphere(), tmp_path / "none" / "out.vtp")


def test_streaming_in_small_chunks_changes_nothing(loaded, surfaces, monkeypatch):
    path = surfaces / "run_3" / "boundary_3.vtp"
    whole = predict_surface(loaded, path).values
    sizes = []

    def in_chunks(model, fx, **options):
        sizes.append(fx.shape)
        return predict(model, fx, **options, chunk_size=37)

    monkeypatch.setattr(cases, "predict", in_chunks)
    chunked = predict_surface(loaded, path).values
    assert sizes == [(1, 320, 3)]
    assert np.linalg.norm(chunked - whole) < 1e-4 * np.linalg.norm(whole)
