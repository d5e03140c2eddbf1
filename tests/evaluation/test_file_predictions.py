"""Predictions on surfaces of any file: complete, in order, and clear about doubtful input."""

import os
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.datapipes.readers.contents import Contents
from physicsnemo_flarepp.evaluation import (
    describe_prediction,
    force_settings,
    load_run,
    predict_case,
    predict_file,
    relative_l2,
)
from physicsnemo_flarepp.inference import predict
from physicsnemo_flarepp.meshes import save_mesh
from physicsnemo_flarepp.runs import trained_run
from physicsnemo_flarepp.runs.samples import input_sample
from tests.evaluation import making


def ahmed_files():
    """The real surfaces: where FLAREPP_AHMED says, else ../shared/data/ahmed of the repository."""
    default = Path(__file__).parents[3] / "shared" / "data" / "ahmed"
    return sorted(Path(os.environ.get("FLAREPP_AHMED", default)).glob("boundary_*.vtp"))


def values(prediction):
    surface = prediction.mesh
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
    prediction = predict_file(loaded, tmp_path / f"car{suffix}")
    save_mesh(prediction.mesh, tmp_path / "out.vtp")
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
    a = predict_file(loaded, tmp_path / f"a{suffix}")
    b = predict_file(loaded, tmp_path / f"b{suffix}")
    np.testing.assert_allclose(values(b), values(a)[order], rtol=1e-3, atol=1e-2)


def test_a_surface_keeps_its_own_data(loaded, surfaces):
    path = surfaces / "run_3" / "boundary_3.vtp"
    surface = predict_file(loaded, path).mesh
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
    }
    data = making.surface_data(root, reader=reader, splits={"train": ["a"], "test": ["b"]})
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    chosen = None if association == "point" else "cell"
    prediction = predict_file(run, root / "b.vtp", association=chosen)
    save_mesh(prediction.mesh, tmp_path / "out.vtp")
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
    prediction = predict_file(run, surfaces / "run_4" / "boundary_4.vtp")
    expected = predict_case(run, "run_4").prediction
    np.testing.assert_allclose(values(prediction), expected, rtol=1e-4, atol=1e-3)
    given = predict_file(run, surfaces / "run_4" / "boundary_4.vtp", global_values={"aRef": 20.0})
    assert not np.allclose(values(given), expected, rtol=1e-2)
    flipped = predict_file(run, surfaces / "run_4" / "boundary_4.vtp", flip=True)
    assert not np.allclose(values(flipped), expected, rtol=1e-2)
    assert "face outward" in prediction.warnings[0] and "face inward" in flipped.warnings[0]


def test_globals_that_are_missing_or_unknown_are_named(featured_run, tmp_path):
    run = load_run(featured_run, device="cpu")
    making.body(0).save(tmp_path / "alone.stl")
    with pytest.raises(ValueError, match="needs the global values aRef.*--global aRef=<number>"):
        predict_file(run, tmp_path / "alone.stl")
    with pytest.raises(ValueError, match="no global value U; its global values are aRef"):
        predict_file(run, tmp_path / "alone.stl", global_values={"U": 1.0, "aRef": 2.0})
    with pytest.raises(ValueError, match="aRef has 3 numbers, but run featured takes 1"):
        predict_file(run, tmp_path / "alone.stl", global_values={"aRef": [1, 2, 3]})


def test_a_stored_feature_that_is_absent_is_named(tmp_path, surfaces):
    data = making.surface_data(surfaces)
    data["reader"] = {**data["reader"], "fields": ["pMeanTrim"]}
    data["reader"]["features"] = ["wallShearStressMeanTrim"]
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    making.body(0).save(tmp_path / "bare.stl")
    with pytest.raises(ValueError, match="bare.stl has no array 'wallShearStressMeanTrim'"):
        predict_file(run, tmp_path / "bare.stl")


def test_forces_of_another_size_are_doubtful_and_the_file_says_so(loaded, tmp_path):
    making.body(3).scale(0.2).save(tmp_path / "small.stl")
    prediction = predict_file(loaded, tmp_path / "small.stl")
    lines = describe_prediction(loaded, prediction, force_settings(loaded))
    assert lines[0].startswith("warning: ") and "differs in size" in lines[0]
    forces = [line for line in lines if "Cd" in line]
    assert forces[0].startswith("forces predicted (doubtful: the surface differs in size")
    save_mesh(prediction.mesh, tmp_path / "out.vtp")
    assert list(pv.read(tmp_path / "out.vtp").field_data["warnings"]) == list(prediction.warnings)
    (tmp_path / "small.stl").rename(tmp_path / "größer.stl")
    named = predict_file(loaded, tmp_path / "größer.stl")
    assert "größer" in named.warnings[0]
    assert r"gr\xf6\xdfer" in named.mesh.field_data["warnings"][0]
    making.body(3).save(tmp_path / "sound.stl")
    sound = predict_file(loaded, tmp_path / "sound.stl")
    assert "warnings" not in sound.mesh.field_data
    assert not any(
        "doubtful" in t for t in describe_prediction(loaded, sound, force_settings(loaded))
    )


def test_the_size_is_compared_after_the_transforms_of_training(loaded, tmp_path, monkeypatch):
    def in_metres(run, sample):
        return {**sample, "coordinates": sample["coordinates"] / 1000}

    making.body(3).scale(1000.0).save(tmp_path / "millimetres.stl")
    assert "millimetres" in predict_file(loaded, tmp_path / "millimetres.stl").warnings[0]
    monkeypatch.setattr(trained_run.Run, "transform", in_metres)
    assert predict_file(loaded, tmp_path / "millimetres.stl").warnings == ()


def test_polygons_and_degenerate_cells_are_predicted(loaded, tmp_path):
    box = pv.Box((-1, 1, -0.5, 0.5, -0.3, 0.3)).clean()
    faces = [*box.irregular_faces, np.array([0, 1, 1]), np.array([0, 1, 2, 3, 4])]
    mesh = pv.PolyData.from_irregular_faces(box.points, faces)
    mesh.save(tmp_path / "mixed.vtp")
    prediction = predict_file(loaded, tmp_path / "mixed.vtp")
    assert prediction.values.shape == (8, 4) and np.isfinite(prediction.values).all()
    assert any("1 cells have no area" in text for text in prediction.warnings)
    # The token of a polygon is the mean of its corners.
    sample = input_sample(loaded, Contents("car", mesh=prediction.polygons), "cell")
    corners = [mesh.points[face].mean(axis=0) for face in faces]
    np.testing.assert_allclose(sample["coordinates"], corners, atol=1e-6)


def test_a_run_on_grids_takes_no_surface(darcy_run, tmp_path):
    making.body(0).save(tmp_path / "car.stl")
    with pytest.raises(ValueError, match="dimension 2 on a grid .*points in a .npz"):
        predict_file(load_run(darcy_run, device="cpu"), tmp_path / "car.stl")


def test_streaming_in_small_chunks_changes_nothing(loaded, surfaces, monkeypatch):
    path = surfaces / "run_3" / "boundary_3.vtp"
    whole = predict_file(loaded, path).values
    sizes = []

    def in_chunks(model, fx, **options):
        sizes.append(fx.shape)
        return predict(model, fx, **options, chunk_size=37)

    monkeypatch.setattr(trained_run, "predict", in_chunks)
    chunked = predict_file(loaded, path).values
    assert sizes == [(1, 320, 3)]
    assert np.linalg.norm(chunked - whole) < 1e-4 * np.linalg.norm(whole)


@pytest.fixture(scope="module")
def weighted_run(tmp_path_factory, surfaces):
    data = making.surface_data(surfaces, weights="measure")
    data["reader"] |= {"features": ["normals"]}
    data["normalization"] |= {"features": "none"}
    directory = making.write_run(tmp_path_factory.mktemp("runs") / "weighted", data)
    return load_run(directory, device="cpu")


def split_around_centres(mesh, chosen):
    """Cut the chosen triangles into an inner triangle and the frame around it.

    Both keep the centre and the normal of the whole. The frame is one polygon that runs along the
    outer edge and back along the inner one; corners listed twice keep its mean in the centre.
    """
    corners = mesh.points[mesh.regular_faces].astype(np.float64)
    middle = corners.mean(1, keepdims=True)
    points, polygons = [mesh.points.astype(np.float64)], []
    first = mesh.n_points
    for cell, face in enumerate(mesh.regular_faces):
        if not chosen[cell]:
            polygons.append(face)
            continue
        points.append(middle[cell] + 0.6 * (corners[cell] - middle[cell]))
        (a, b, c), (i, j, k) = face, range(first, first + 3)
        first += 3
        polygons += [np.array([i, j, k]), np.array([a, b, b, c, c, a, i, k, k, j, j, i])]
    faces = np.concatenate([[len(polygon), *polygon] for polygon in polygons])
    return pv.PolyData(np.concatenate(points), faces)


def test_splitting_cells_of_a_file_leaves_a_weighted_prediction_as_it_is(
    weighted_run, surface_run, surfaces, tmp_path
):
    path = surfaces / "run_3" / "boundary_3.vtp"
    mesh = pv.read(path)
    chosen = mesh.cell_centers().points[:, 0] > 0.5
    assert 0.1 < chosen.mean() < 0.5
    split_around_centres(mesh, chosen).save(tmp_path / "split.vtp")
    same = np.cumsum(1 + np.append(0, chosen[:-1]).astype(int)) - 1  # where each cell went
    whole, split = (
        predict_file(weighted_run, file, progress=False) for file in (path, tmp_path / "split.vtp")
    )
    assert len(split.values) == mesh.n_cells + chosen.sum()
    widths = weighted_run.channels.norms
    assert max(relative_l2(split.values[same], whole.values, widths).values()) < 1e-5
    plain = load_run(surface_run, device="cpu")
    before, after = (
        predict_file(plain, file, progress=False).values for file in (path, tmp_path / "split.vtp")
    )
    assert max(relative_l2(after[same], before, widths).values()) > 1e-3, "without weights it moves"


def test_a_refined_part_hardly_moves_a_weighted_prediction(
    weighted_run, surface_run, surfaces, tmp_path
):
    path = surfaces / "run_3" / "boundary_3.vtp"
    mesh = pv.read(path)
    front = mesh.cell_centers().points[:, 0] > 0.5
    parts = [mesh.extract_cells(part).extract_surface(algorithm=None) for part in (~front, front)]
    parts[0].append_polydata(parts[1].subdivide(2)).save(tmp_path / "refined.vtp")
    moved = {}
    for run in (weighted_run, load_run(surface_run, device="cpu")):
        before = predict_file(run, path, progress=False).values[~front]
        after = predict_file(run, tmp_path / "refined.vtp", progress=False).values
        change = after[: len(before)] - before
        moved[run.name] = np.linalg.norm(change) / np.linalg.norm(before - before.mean(0))
    assert moved["weighted"] < 0.4 * moved["surfaces"], moved


def test_the_test_case_and_its_file_are_weighted_alike(weighted_run, surfaces, tmp_path):
    path = surfaces / "run_3" / "boundary_3.vtp"
    case = predict_case(weighted_run, "run_3", progress=False)
    surface = predict_file(weighted_run, path, progress=False)
    np.testing.assert_allclose(surface.values, case.prediction, rtol=1e-4, atol=1e-4)
    sample = input_sample(weighted_run, Contents("car", mesh=surface.polygons), "cell")
    areas = pv.read(path).compute_cell_sizes(length=False, volume=False)["Area"]
    np.testing.assert_allclose(sample["weights"], areas, rtol=1e-5)
    written = tmp_path / "predicted.vtp"
    save_mesh(surface.mesh, written)
    np.testing.assert_allclose(pv.read(written)["_effective_measure"], areas, rtol=1e-5)
    again = predict_file(weighted_run, written, progress=False)
    np.testing.assert_allclose(again.values, surface.values, rtol=1e-4, atol=1e-4)
    assert "_effective_measure" not in weighted_run.channels.fields
    del sample["weights"]
    with pytest.raises(
        ValueError, match="weighs tokens by 'measure', but the sample has no entry 'weights'"
    ):
        weighted_run.predict(sample)


def test_a_file_with_fields_is_compared_in_both_norms(weighted_run, surfaces):
    path = surfaces / "run_3" / "boundary_3.vtp"
    lines = describe_prediction(weighted_run, predict_file(weighted_run, path), None)
    assert sum("error against the fields in the file" in line for line in lines) == 2
    assert sum("as an integral" in line for line in lines) == 1
