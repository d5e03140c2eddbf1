import pytest

from tests.evaluation import making


@pytest.fixture(scope="session")
def car_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("cars")
    data = making.surface_data(making.write_surfaces(root / "set"))
    return making.write_run(root / "cars-flarepp-seed0", data)


@pytest.fixture(scope="session")
def darcy_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("darcy")
    return making.write_run(root / "run", making.darcy_data(making.write_darcy(root / "set")))
