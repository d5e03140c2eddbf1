"""Every config builds what it names: a model that predicts, a set that is read from small files."""

import json
from functools import partial

import numpy as np
import pytest
import pyvista as pv
import torch
from omegaconf import OmegaConf
from physicsnemo.mesh import DomainMesh, Mesh
from scipy.io import savemat

from physicsnemo_flarepp.builtin.engine import write_stamp
from physicsnemo_flarepp.datapipes import build_dataloaders, sources
from physicsnemo_flarepp.models.feeding import InputLayout, build_model, input_adapter
from tests.conf.composing import MIXERS, composed, options
from tests.layouts import layout_of

TINY = ["model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4"]
CAR_FIELDS = ["pMeanTrim", *(f"wallShearStressMeanTrim_{axis}" for axis in "xyz")]

pytestmark = pytest.mark.slow


# --- small files in the layouts of the sets: two training cases and one test case


def write_arrays(root, shapes):
    for name, shape in shapes.items():
        np.save(root / f"{name}.npy", np.random.default_rng(0).random(shape))


def write_darcy(root):
    for split in (1, 2):
        arrays = np.random.default_rng(split).random((2, 3, 85, 85))
        path = root / f"piececonst_r85_N3_smooth{split}.mat"
        savemat(path, dict(zip(("coeff", "sol"), arrays, strict=True)))


def write_plasticity(root):
    rng = np.random.default_rng(0)
    arrays = {"input": rng.random((3, 101)), "output": rng.random((3, 101, 31, 20, 4))}
    savemat(root / "plas_N987_T20.mat", arrays)


def write_presampled(root):
    rng = np.random.default_rng(0)
    for case in ("train/run_0", "train/run_1", "test/run_2"):
        path = root / "drivaerml_surface_presampled_40k" / f"{case}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            "surface_mesh_centers": rng.random((40, 3)),
            "surface_fields": rng.random((40, 4)),
        }
        np.savez(path, **{name: value.astype(np.float32) for name, value in arrays.items()})


def write_volumes(root):
    for run in range(3):
        (root / f"run_{run}").mkdir()
        pv.Cube(x_length=2 + run).triangulate().save(root / f"run_{run}" / f"drivaer_{run}.stl")
        volume = pv.ImageData(dimensions=(4, 5, 4), origin=(4, 0, 0)).cast_to_unstructured_grid()
        volume.cell_data["pMeanTrim"] = np.random.default_rng(run).random(volume.n_cells)
        volume.cell_data["UMeanTrim"] = np.random.default_rng(run).random((volume.n_cells, 3))
        volume.save(root / f"run_{run}" / f"volume_{run}.vtu")
    runs = [f"run_{run}" for run in range(3)]
    (root / "manifest.json").write_text(json.dumps({"train": runs[:2], "test": runs[2:]}))


def write_cars(root, curated=False):
    for run in range(3):
        mesh = pv.Box((0, 4 + run, -1, 1, 0, 1)).triangulate().subdivide(1)
        rng = np.random.default_rng(run)
        mesh.cell_data["pMeanTrim"] = rng.random(mesh.n_cells, np.float32)
        mesh.cell_data["wallShearStressMeanTrim"] = rng.random((mesh.n_cells, 3), np.float32)
        (root / f"run_{run}").mkdir()
        if curated:
            vehicle = Mesh(
                points=torch.tensor(np.asarray(mesh.points)),
                cells=torch.tensor(mesh.regular_faces.astype(np.int64)),
                cell_data={name: torch.tensor(values) for name, values in mesh.cell_data.items()},
            )
            inflow = {"U_inf": torch.tensor([38.889, 0.0, 0.0]), "rho_inf": torch.tensor(1.0)}
            domain = DomainMesh(Mesh(points=torch.rand(4, 3)), {"vehicle": vehicle}, inflow)
            domain.save(root / f"run_{run}" / f"domain_{run}.pdmsh")
        else:
            mesh.save(root / f"run_{run}" / f"boundary_{run}.vtp")
    splits = {"train": ["run_0", "run_1"], "test": ["run_2"]}
    (root / "manifest.json").write_text(json.dumps(splits))


STRESS = {"Random_UnitCell_XY_10": (972, 2, 3), "Random_UnitCell_sigma_10": (972, 3)}
AIRFOIL = {f"NACA_Cylinder_{x}": (3, *more, 221, 51) for x, *more in ("X", "Y", ("Q", 5))}
PIPE = {f"Pipe_{x}": (3, *more, 129, 129) for x, *more in ("X", "Y", ("Q", 3))}
# Config -> files, channels (d, f, g) and names of the fields.
CONTENT = {
    "elasticity": (partial(write_arrays, shapes=STRESS), (2, 0, 0), ["stress"]),
    "darcy": (write_darcy, (2, 1, 0), ["u"]),
    "airfoil": (partial(write_arrays, shapes=AIRFOIL), (2, 0, 0), ["mach"]),
    "pipe": (partial(write_arrays, shapes=PIPE), (2, 0, 0), ["u_x"]),
    "plasticity": (write_plasticity, (2, 2, 0), ["x_deformed", "y_deformed", "u_x", "u_y"]),
    "drivaerml_40k": (write_presampled, (3, 0, 0), ["pMeanTrim"]),
    "cars": (write_cars, (3, 3, 0), CAR_FIELDS),
    "cars_wake": (write_cars, (3, 3, 0), CAR_FIELDS),
    "car_volumes": (
        write_volumes,
        (3, 4, 0),
        ["pMeanTrim", *(f"UMeanTrim_{axis}" for axis in "xyz")],
    ),
    "own": (write_cars, (3, 3, 0), CAR_FIELDS),
    "drivaerml_raw": (write_cars, (3, 3, 0), CAR_FIELDS),
    "drivaerml_curated": (partial(write_cars, curated=True), (3, 3, 4), CAR_FIELDS),
}


def open_small(data, root, monkeypatch):
    """The loaders of a data config, on the small files in place of its own."""
    if data.builtin:
        write_stamp(root, {"n_train": 2, "n_test": 1})
    monkeypatch.setattr(sources, "generate_once", lambda *_, **__: root)
    counts = {"n_train": 2, "n_test": 1, "num_workers": 0}
    draws = {key: 20 for key in ("n_points", "n_points_test") if data[key] is not None}
    place = {} if data.builtin else {"root": str(root)}
    return build_dataloaders(OmegaConf.merge(data, counts, draws, place))


# --- models and sets


@pytest.mark.parametrize("grid", [None, (3, 4)])
@pytest.mark.parametrize("name", options("model"))
def test_model_is_built_and_predicts(name, grid):
    shape = "null" if grid is None else "grid"
    tiny = TINY[:-1] if name in ("gnot", "attention") else TINY
    cfg = composed(f"model={name}", *tiny, f"model.structured_shape={shape}").model
    batch = {"coordinates": torch.rand(2, 12, 2), "features": torch.rand(2, 12, 1)}
    model = build_model(cfg, InputLayout(2, 1, 0, 3, grid))
    assert model(**input_adapter(model)(batch)).shape == (2, 12, 3)
    if name in MIXERS:
        kind = type(model.blocks[0].mixer).__name__.lower()
        assert kind == f"{name.replace('_', '')}mixer"


# Read in tests/datapipes, where files in their layouts are written.
ELSEWHERE = {"prepared", "ahmedml", "windsorml", "shapenet_car", "drivaernet"}


@pytest.mark.parametrize("name", sorted(set(options("data")) - ELSEWHERE))
def test_data_is_read_and_fed_to_a_model(name, tmp_path, monkeypatch):
    cfg = composed(f"data={name}", *TINY)
    write, (d, f, g), names = CONTENT[name.removesuffix("_published")]
    write(tmp_path)
    train, test = open_small(cfg.data, tmp_path, monkeypatch)[:2]
    reader = train.dataset.reader
    assert reader.open_case(0).channels()["fields"] == names
    batch = next(iter(train))
    layout = layout_of(batch, reader.grid)
    assert layout == InputLayout(d, f, g, len(names), reader.grid)
    model = build_model(cfg.model, layout)
    assert model(**input_adapter(model)(batch)).shape == batch["fields"].shape
    assert next(iter(test))["fields"].shape[-1] == len(names)


@pytest.mark.parametrize("name", ["drivaerml_raw", "drivaerml_curated"])
def test_normals_are_fed_as_they_are(name, tmp_path, monkeypatch):
    CONTENT[name][0](tmp_path)
    batch = next(iter(open_small(composed(f"data={name}").data, tmp_path, monkeypatch).train))
    assert set(batch["features"].abs().unique().round().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(batch["features"].norm(dim=-1), torch.ones(1, 20))


# How the paper, and the configs at its sizes, hand over coordinates and features: per channel the
# shift and the scale, as functions of all values of the training cases.
AS_STORED = (lambda x: 0, lambda x: 1)
STANDARD = (lambda x: x.mean(0), lambda x: x.std(0, ddof=1))
UNIT_BOX = (lambda x: x.min(0), lambda x: np.ptp(x, axis=0))
PUBLISHED_BOX = (
    lambda x: [-0.9425, -1.1314, -0.3176],
    lambda x: [5.075, 2.2631, 1.5621],
)
FED = {
    "elasticity": (AS_STORED, None),
    "darcy": (AS_STORED, STANDARD),
    "airfoil": (AS_STORED, None),
    "pipe": (STANDARD, None),
    "plasticity": (AS_STORED, STANDARD),
    "drivaerml_40k": (PUBLISHED_BOX, None),
    "drivaerml_raw": (UNIT_BOX, AS_STORED),
    "drivaerml_curated": (UNIT_BOX, AS_STORED),
}


@pytest.mark.parametrize("name", FED)
def test_experiments_feed_what_was_published(name, tmp_path, monkeypatch):
    data = composed(f"experiment={name}").data
    CONTENT[name][0](tmp_path)
    changes = {"n_points": None, "n_points_test": None, "batch_size": 1, "batch_size_test": 1}
    data = OmegaConf.merge(data, changes)
    fed = open_small(data, tmp_path, monkeypatch)
    stored = open_small(OmegaConf.merge(data, {"normalization": "none"}), tmp_path, monkeypatch)
    train = [sample for sample, _ in stored.train.dataset]
    for key, rule in zip(("coordinates", "features"), FED[name], strict=True):
        if rule is None:
            assert key not in train[0].keys()
            continue
        values = np.concatenate([sample[key].double().numpy() for sample in train])
        shift, scale = (np.asarray(part(values)) for part in rule)
        for ours, theirs in zip(fed.test, stored.test, strict=True):
            np.testing.assert_allclose(
                ours[key], (theirs[key].double().numpy() - shift) / scale, rtol=1e-4, atol=1e-5
            )


def test_quick_darcy_is_the_measured_comparison(tmp_path, monkeypatch):
    cfg = composed("experiment=quick/darcy")
    data = cfg.data
    assert (data.n_train, data.n_test, data.batch_size) == (500, 100, 4)
    assert (cfg.training.epochs, cfg.training.ema_decay) == (12, 0.99)
    write_darcy(tmp_path)
    assert open_small(data, tmp_path, monkeypatch).train.dataset.reader.grid == (43, 43)
