"""Weights of tokens from every reader: areas that VTK and closed forms give, and stored arrays."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import pyvista as pv
import torch
from scipy.io import savemat

from physicsnemo_flarepp.builtin.sets.elasticity import N_NODES, random_radius
from physicsnemo_flarepp.builtin.solvers.triangulate import triangulate_cell
from physicsnemo_flarepp.datapipes import (
    DarcyReader,
    DrivAerMLReader,
    GeoFNOReader,
    GraphReader,
    PadCollator,
    ReaderOptions,
    build_dataloaders,
)
from tests.datapipes.readers.layouts import FIELDS, LAYOUTS, surface_arrays, write_case

MEASURE = ReaderOptions(weights="measure")


@pytest.fixture
def root_of(tmp_path):
    """Write one mesh as a case for training and one for testing."""

    def write(mesh, layout="vtp"):
        for run in range(2):
            write_case(tmp_path, layout, run, mesh)
        (tmp_path / "manifest.json").write_text('{"train": ["run_0"], "test": ["run_1"]}')
        return tmp_path

    return write


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cells_weigh_what_vtk_says_their_areas_are(layout, root_of, box_surface):
    mesh = box_surface(2)
    reader = DrivAerMLReader(root_of(mesh, layout), fields=FIELDS, options=MEASURE)
    weights = reader[0][0]["weights"]
    assert weights.dtype == torch.float32
    expected = surface_arrays(mesh)["surface_areas"]
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    np.testing.assert_allclose(reader.read_measure(0), expected, rtol=1e-5)


def test_points_weigh_their_share_of_a_sphere(root_of):
    mesh = pv.Icosphere(radius=3.0, nsub=4)
    mesh.point_data["p"] = mesh.points[:, 0]
    reader = DrivAerMLReader(root_of(mesh), fields=["p"], options=MEASURE)
    sample, metadata = reader[0]
    assert metadata["association"] == "point"
    assert sample["weights"].sum().item() == pytest.approx(36 * np.pi, rel=1e-2)
    second = (sample["weights"] * sample["coordinates"][:, 1] ** 2).sum().item()
    assert second == pytest.approx(108 * np.pi, rel=2e-2)


@pytest.mark.parametrize("layout", ["vtp", "presampled"])
def test_a_stored_array_gives_the_weights_and_its_zeros_stay(layout, root_of, box_surface):
    mesh = box_surface(0)
    stored = np.arange(mesh.n_cells, dtype=np.float64)
    mesh.cell_data["mass"] = stored
    root = root_of(mesh, layout)
    if layout == "presampled":
        for run in range(2):
            np.savez(root / f"run_{run}.npz", mass=stored, **surface_arrays(mesh))
    options = ReaderOptions(weights="mass", n_points=40)
    sample = DrivAerMLReader(root, fields=FIELDS, options=options)[0][0]
    np.testing.assert_array_equal(sample["weights"], stored[sample["tokens"]])
    assert DrivAerMLReader(root, options=ReaderOptions(weights="mass"))[0][0]["weights"][0] == 0


@pytest.mark.parametrize("layout", ["vtp", "zarr"])
@pytest.mark.parametrize("density", ["cells", "area"])
def test_shards_hold_the_weights_of_their_tokens(layout, density, root_of, box_surface):
    root = root_of(box_surface(1), layout)
    options = ReaderOptions(101, "epoch", weights="measure", density=density)
    whole = DrivAerMLReader(root, fields=FIELDS, options=options)[0][0]
    parts = [
        DrivAerMLReader(root, fields=FIELDS, options=replace(options, shard=(rank, 3)))[0][0]
        for rank in range(3)
    ]
    for key in ("weights", "tokens", "coordinates"):
        assert torch.equal(torch.cat([part[key] for part in parts]), whole[key])


@pytest.mark.slow
def test_cells_drawn_by_area_weigh_as_much_as_the_surface_on_average(root_of):
    mesh = pv.Icosphere(nsub=2)
    front = mesh.cell_centers().points[:, 0] > 0.3
    fine = mesh.extract_cells(front).extract_surface(algorithm=None).subdivide(2)
    mesh = mesh.extract_cells(~front).extract_surface(algorithm=None).append_polydata(fine)
    mesh.cell_data[FIELDS[0]] = mesh.cell_centers().points[:, 0]
    mesh.cell_data[FIELDS[1]] = np.zeros((mesh.n_cells, 3))
    options = ReaderOptions(64, "epoch", weights="measure", density="area")
    reader = DrivAerMLReader(root_of(mesh), fields=FIELDS[:1], options=options)
    areas, values = reader.read_measure(0), mesh[FIELDS[0]]
    exact = [areas.sum(), areas @ values, areas @ values**2]
    found, fine_share = [], []
    for epoch in range(300):
        reader.set_epoch(epoch)
        sample = reader[0][0]
        weights, p = sample["weights"].double(), sample["fields"][:, 0].double()
        found.append([weights.sum(), weights @ p, weights @ p**2])
        fine_share.append((sample["tokens"] >= (~front).sum()).double().mean())
    noise = np.std(found, axis=0) / np.sqrt(300)
    assert (np.abs(np.mean(found, axis=0) - exact) < 4 * noise + 1e-5 * areas.sum()).all()
    assert np.mean(fine_share) == pytest.approx(
        areas[(~front).sum() :].sum() / areas.sum(), rel=0.1
    )


def test_cells_without_area_keep_a_positive_weight(root_of, box_surface):
    mesh = box_surface(0)
    faces = mesh.regular_faces.copy()
    faces[7] = faces[7, 0]
    flat = pv.PolyData.from_regular_faces(mesh.points, faces)
    for name in FIELDS:
        flat.cell_data[name] = mesh.cell_data[name]
    weights = DrivAerMLReader(root_of(flat), fields=FIELDS, options=MEASURE)[0][0]["weights"]
    assert 0 < weights[7] < 1e-30 and weights.min() == weights[7]


@pytest.mark.parametrize(
    "value, message",
    [
        (-1.0, "boundary_0.vtp: case run_0 has the weight -1 at row 5 of mass"),
        (np.nan, "the weight nan at row 5 of mass"),
        (np.inf, "the weight inf at row 5 of mass"),
        (None, "tokens of case run_0 have weight 0"),
    ],
)
def test_bad_weights_are_named_by_file_array_and_row(value, message, root_of, box_surface):
    mesh = box_surface(0)
    mesh.cell_data["mass"] = np.zeros(mesh.n_cells)
    if value is not None:
        mesh.cell_data["mass"][5] = value
    reader = DrivAerMLReader(
        root_of(mesh), fields=FIELDS, options=ReaderOptions(weights="mass", n_points=10**6)
    )
    with pytest.raises(ValueError, match=message):
        reader[0]


def test_the_row_of_a_bad_weight_is_that_of_the_case_not_of_the_draw(root_of, box_surface):
    mesh = box_surface(0)
    mesh.cell_data["mass"] = -np.ones(mesh.n_cells)
    options = ReaderOptions(weights="mass", n_points=3)
    reader = DrivAerMLReader(root_of(mesh), fields=FIELDS, options=options)
    first = DrivAerMLReader(reader.files["run_0"].parents[1], options={"n_points": 3})[0][0]
    with pytest.raises(ValueError, match=f"at row {first['tokens'][0]} of mass"):
        reader[0]


def test_unknown_arrays_and_unknown_areas_are_errors(root_of, box_surface, ragged_set):
    with pytest.raises(KeyError, match="no array 'mass'"):
        DrivAerMLReader(root_of(box_surface(0)), options={"weights": "mass"})[0]
    with pytest.raises(ValueError, match="run_0.npz: the area that each token stands for"):
        DrivAerMLReader(ragged_set, options=MEASURE)[0]
    assert DrivAerMLReader(ragged_set).read_measure(0) is None
    with pytest.raises(ValueError, match="sampling_density is 'area', but weights is 'none'"):
        ReaderOptions(density="area")


def test_a_vector_is_no_array_of_weights(root_of, box_surface):
    with pytest.raises(ValueError, match=r"of the weights\) has shape \(\d+, 3\)"):
        DrivAerMLReader(root_of(box_surface(0)), options={"weights": FIELDS[1]})[0]


def test_darcy_tokens_weigh_cells_of_the_unit_square(tmp_path):
    n = 9
    mass = np.random.default_rng(0).random((2, n, n))
    for smooth in (1, 2):
        fields = {"coeff": np.ones((2, n, n)), "sol": np.ones((2, n, n)), "mass": mass}
        savemat(tmp_path / f"piececonst_r{n}_N2_smooth{smooth}.mat", fields)
    arguments = {"stride": 1, "n_train": 2, "n_test": 2}
    weights = DarcyReader(tmp_path, **arguments, options=MEASURE)[1][0]["weights"]
    line = np.array([0.5] + [1.0] * (n - 2) + [0.5]) / (n - 1)
    np.testing.assert_allclose(weights, np.outer(line, line).reshape(-1), rtol=1e-5)
    stored = DarcyReader(tmp_path, **arguments, options={"weights": "mass"})[1][0]["weights"]
    np.testing.assert_allclose(stored, mass[1].reshape(-1), rtol=1e-6)


def test_curvilinear_grids_weigh_their_cells_and_take_a_file_of_weights(grid_files):
    root = grid_files("Pipe", (129, 129), 3, 2)
    spans = np.array([0.5] + [1.0] * 127 + [0.5])
    counts = {"n_train": 1, "n_test": 1}
    weights = GeoFNOReader(root, "pipe", **counts, options=MEASURE)[0][0]["weights"]
    np.testing.assert_allclose(weights, np.outer(spans, spans).reshape(-1), rtol=1e-5)
    mass = np.random.default_rng(0).random((2, 129, 129))
    np.save(root / "mass.npy", mass)
    stored = GeoFNOReader(root, "pipe", "test", **counts, options={"weights": "mass"})[0][0]
    np.testing.assert_allclose(stored["weights"], mass[1].reshape(-1), rtol=1e-6)
    np.save(root / "mass.npy", mass[:, 1:])
    with pytest.raises(ValueError, match="mass.npy: array has shape"):
        GeoFNOReader(root, "pipe", **counts, options={"weights": "mass"})


def test_nodes_of_a_cell_with_a_void_weigh_what_is_left_of_it(tmp_path):
    rng = np.random.default_rng(1)
    radius = random_radius(rng)
    nodes = triangulate_cell(radius, N_NODES, rng).nodes
    np.save(tmp_path / "Random_UnitCell_XY_10.npy", nodes[..., None].repeat(2, -1))
    np.save(tmp_path / "Random_UnitCell_sigma_10.npy", np.ones((N_NODES, 2)))
    counts = {"n_train": 1, "n_test": 1}
    sample = GeoFNOReader(tmp_path, "elasticity", **counts, options=MEASURE)[0][0]
    void = (radius(np.linspace(0, 2 * np.pi, 1000, endpoint=False)) ** 2).mean() * np.pi
    assert sample["weights"].sum().item() == pytest.approx(1 - void, rel=1e-2)


def test_nodes_of_graphs_weigh_their_part_of_the_plane_or_a_tensor():
    x, y = np.meshgrid(np.linspace(0, 2, 9), np.linspace(0, 1, 7))
    nodes = {"pos": np.stack([x.ravel(), y.ravel()], -1), "y": x.ravel(), "mass": 1 + y.ravel()}
    graphs = [SimpleNamespace(ndata=nodes)]
    assert GraphReader(graphs, options=MEASURE)[0][0]["weights"].sum().item() == pytest.approx(2)
    stored = GraphReader(graphs, options={"weights": "mass"})[0][0]["weights"]
    np.testing.assert_allclose(stored, nodes["mass"], rtol=1e-6)


def test_batches_are_padded_with_weights_of_zero():
    samples = []
    for n in (3, 5):
        nodes = {"pos": np.random.default_rng(n).random((n, 2)), "y": np.ones(n), "m": np.ones(n)}
        reader = GraphReader([SimpleNamespace(ndata=nodes)], options={"weights": "m"})
        samples.append(reader[0])
    batch = PadCollator()(samples)
    assert batch["weights"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_only_training_tokens_are_drawn_by_area(root_of, box_surface):
    config = {
        "root": str(root_of(box_surface(0))),
        "reader": {"_target_": "DrivAerMLReader", "fields": FIELDS},
        "normalization": "none",
        "n_points": 20,
        "n_points_test": 20,
        "weights": "measure",
        "sampling_density": "area",
        "num_workers": 0,
    }
    loaders = build_dataloaders(config)
    densities = [loader.dataset.reader.options.density for loader in (loaders.train, loaders.test)]
    assert densities == ["area", "cells"]
    assert next(iter(loaders.train))["weights"].shape == (1, 20)
