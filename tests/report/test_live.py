"""The live view: who may ask, and what it answers."""

import json
import threading
from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.commands.parsers import parse_options
from physicsnemo_flarepp.commands.results import open_view
from physicsnemo_flarepp.report.live import file_scene
from tests.evaluation import making
from tests.report.browser import chromium, wait

FORCES = ["--speed", "30", "--shear-sign", "1"]


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    root = tmp_path_factory.mktemp("live")
    run = making.write_run(
        root / "run", making.surface_data(making.write_surfaces(root / "set", n_test=1))
    )
    view = open_view(parse_options("view", [str(run), *FORCES]))
    thread = threading.Thread(target=view.server.serve_forever)
    thread.start()
    yield view
    view.server.shutdown()
    view.server.server_close()
    thread.join()


@pytest.fixture
def car(tmp_path):
    path = tmp_path / "<i>car<i>.stl"
    making.body(7).save(tmp_path / "car.stl")
    return (tmp_path / "car.stl").rename(path)


def ask(view, method, path, body=None, **headers):
    connection = HTTPConnection("127.0.0.1", view.port, timeout=300)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_only_this_machine_with_the_token_is_answered(view):
    assert view.server.server_address[0] == "127.0.0.1"
    page = f"/?token={view.token}"
    for path, headers in (
        ("/", {}),
        ("/?token=", {}),
        (f"/?token={view.token[:-1]}x", {}),
        (page, {"Host": f"evil.example:{view.port}"}),
        (page, {"Host": f"localhost.evil.example:{view.port}"}),
    ):
        assert ask(view, "GET", path, **headers)[0] == 403
        assert ask(view, "POST", path.replace("/", "/predict"), b"x", **headers)[0] == 403
    code, text = ask(view, "GET", page)
    assert code == 200 and "connect-src 'self'" in text and view.token not in text
    assert ask(view, "GET", f"/etc/passwd?token={view.token}")[0] == 404


def test_a_surface_is_predicted_with_its_forces(view, car):
    path = f"/predict?token={view.token}&name={quote('../../' + car.name)}"
    code, text = ask(view, "POST", path, car.read_bytes())
    answer = json.loads(text)
    assert code == 200, answer
    assert answer["lines"][0].endswith("320 cells")
    assert any(line.startswith("forces predicted") for line in answer["lines"])
    assert [field["name"] for field in answer["scene"]["fields"]] == making.SURFACE_FIELDS


def test_what_cannot_be_predicted_is_explained(view, car):
    path = f"/predict?token={view.token}&name="
    assert ask(view, "POST", f"{path}car.py", b"x")[0] == 400
    assert ask(view, "POST", f"{path}car.stl", b"")[0] == 413
    code, text = ask(view, "POST", f"{path}car.stl", b"solid nothing\n")
    assert code == 422 and json.loads(text)["lines"][0]


def test_a_file_shows_its_fields_with_predictions_and_errors(tmp_path):
    mesh = pv.Icosphere(nsub=1)
    truth = np.linspace(-1, 1, mesh.n_cells)
    arrays = {"p": truth, "p_predicted": 3 * truth, "p_error": 2 * truth, "u": np.ones((80, 3))}
    mesh.cell_data.update(arrays)
    mesh.save(tmp_path / "mesh.vtp")
    scene, _ = file_scene(tmp_path / "mesh.vtp")
    p, u = scene["fields"]
    assert [q["name"] for q in p["quantities"]] == ["reference", "prediction", "error"]
    reference, prediction, error = (q["limits"] for q in p["quantities"])
    assert reference == prediction and error[0] == -error[1]
    assert [p["name"], u["name"]] == ["p", "u"]


@pytest.mark.slow
def test_a_dropped_file_takes_the_place_of_the_test_case(view, car):
    with chromium() as driver:
        driver.get(view.url)
        wait(driver, "canvas.dataset.frames")
        assert "case run_3" in driver.find_element("id", "scene-title").text
        driver.find_element("id", "drop").send_keys(str(car))
        wait(
            driver, "document.getElementById('scene-title').textContent.startsWith('_i_car_i_.stl')"
        )
        assert "forces predicted" in driver.find_element("id", "answer").text
        host = urlsplit(view.url).netloc
        errors = [entry for entry in driver.get_log("browser") if host not in entry["message"]]
        assert errors == []
