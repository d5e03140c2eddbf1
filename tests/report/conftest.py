import pytest
import pyvista as pv

from physicsnemo_flarepp.datapipes import from_meshes
from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.training import train
from tests.evaluation import making

HOSTILE = "p</script><script>document.title='taken'</script>"


@pytest.fixture(scope="session")
def hostile_data():
    """Surfaces whose field and cases have names that would run in a careless page."""
    meshes = []
    for seed in range(6):
        mesh = pv.PolyData()
        mesh.copy_structure(body := making.body(seed))
        mesh.cell_data[HOSTILE] = body.cell_data["pMeanTrim"]
        mesh.cell_data["tau"] = body.cell_data["wallShearStressMeanTrim"]
        meshes.append(mesh)
    ids = [f"<img src=x onerror=alert({i})>" for i in range(6)]
    return from_meshes(meshes, fields=[HOSTILE, "tau"], case_ids=ids)


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory, hostile_data):
    """A short training on them, with a name like theirs."""
    directory = tmp_path_factory.mktemp("runs") / "<b>bold<b>"
    model = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    cfg = {
        "run_dir": str(directory),
        "model": {"_target_": "physicsnemo_flarepp.FlarePP", **model},
        "training": {"steps": 4, "log_every": 1},
        "data": {"num_workers": 0, "n_points": 64},
        "device": "cpu",
    }
    train(cfg, hostile_data)
    return directory


@pytest.fixture(scope="session")
def open_hostile(hostile_data):
    return lambda directory: load_run(directory, device="cpu", data=hostile_data)
