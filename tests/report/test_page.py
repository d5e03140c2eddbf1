"""The page of a run, in a real browser."""

import base64
import csv
import re
import shutil
import subprocess
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from physicsnemo_flarepp.evaluation import ForceSettings, chosen_case, predict_case
from physicsnemo_flarepp.report import write_page
from tests.report.browser import chromium, requests, wait
from tests.report.conftest import HOSTILE

pytestmark = pytest.mark.slow
FORCES = ForceSettings(HOSTILE, "tau", 1, 30.0)


@pytest.fixture(scope="module")
def page(hostile_run, open_hostile):
    return write_page([hostile_run], open_hostile, forces=lambda run: (FORCES, FORCES))


@pytest.fixture(scope="module")
def shown(page):
    """The page in a browser, loaded once."""
    with chromium() as driver:
        driver.get(page.as_uri().replace("<", "%3C").replace(">", "%3E"))
        wait(driver, "canvas.dataset.frames")
        yield driver


def pixels(driver):
    """What the 3D view shows, (height, width, 4)."""
    picture = driver.execute_script("return canvas.toDataURL('image/png')")
    return np.array(Image.open(BytesIO(base64.b64decode(picture.partition(",")[2]))))


def choose(driver, **choices):
    frames = driver.execute_script("return canvas.dataset.frames")
    for name, text in choices.items():
        driver.execute_script(
            """const list = document.getElementById(arguments[0]);
            list.value = [...list.options].find((o) => o.text === arguments[1]).value;
            list.dispatchEvent(new Event("change"));""",
            name, text,
        )  # fmt: skip
    wait(driver, f"canvas.dataset.frames !== '{frames}'")


def test_nothing_is_asked_for_and_nothing_complains(shown, page):
    assert {address.split("/")[-1] for address in requests(shown)} == {page.name}
    assert shown.get_log("browser") == []
    assert page.stat().st_size < 15e6


def test_names_from_data_stay_text(shown):
    assert shown.title == "Run <b>bold<b>"
    assert shown.execute_script("return document.querySelectorAll('img:not([alt])').length") == 0
    assert shown.execute_script("return document.images.length") == len(
        [i for i in shown.execute_script("return [...document.images].map((i) => i.src)")
         if i.startswith("data:image/png;base64,")]
    )  # fmt: skip
    assert shown.execute_script("return document.scripts.length") == 2
    assert HOSTILE in shown.find_element("tag name", "body").text


def test_the_view_draws_fields_that_can_be_switched_and_read(shown, hostile_run, open_hostile):
    run = open_hostile(hostile_run)
    first = pixels(shown)
    covered = (first[..., 3] > 0).mean()
    assert 0.1 < covered < 0.9
    choose(shown, quantity="error")
    errors = pixels(shown)
    assert (errors != first).any(-1)[first[..., 3] > 0].mean() > 0.5
    choose(shown, quantity="prediction")
    assert shown.execute_script("return low.textContent")  # the scale of the reference
    script = """const box = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new PointerEvent("pointermove", {pointerId: 9,
            clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}));
        return readout.textContent;"""
    text = shown.execute_script(script)
    assert text.startswith(f"{HOSTILE}, prediction: ")
    values = predict_case(run, chosen_case(run, "median")).prediction[:, 0]
    assert np.abs(values - float(text.rpartition(" ")[2])).min() < 2e-3 * np.abs(values).max()


def test_the_view_turns_by_keys(shown):
    before, frames = pixels(shown), shown.execute_script("return canvas.dataset.frames")
    shown.find_element("id", "canvas").send_keys("\ue014")  # arrow to the right
    wait(shown, f"canvas.dataset.frames !== '{frames}'")
    assert (pixels(shown) != before).any()


def test_tables_equal_the_csv(shown, hostile_run):
    script = """return [...document.querySelectorAll("#cases-1 tr")].map((row) =>
        [...row.children].map((cell) => cell.dataset.value ?? cell.textContent));"""
    (header, *rows) = shown.execute_script(script)
    with open(hostile_run / "evaluation.csv", newline="") as file:
        stored_header, *stored = csv.reader(file)
    assert header == stored_header and len(rows) == len(stored)
    known = {row[0]: np.array(row[1:], float) for row in stored}
    for name, *values in rows:
        np.testing.assert_array_equal(np.array(values, float), known[name])
    worst = max(known, key=lambda name: known[name][:2].mean())
    assert rows[0][0] == worst
    link = shown.find_element("css selector", "#cases-1 tbody a").get_dom_attribute("href")
    assert worst in shown.find_element("css selector", link).text


def test_it_prints_on_white_paper(shown, hostile_run, tmp_path):
    if not shutil.which("pdftoppm"):
        pytest.skip("needs poppler: apt-get install poppler-utils")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    drawn = pixels(shown)[..., 3] > 0
    printed = shown.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    (pdf := tmp_path / "page.pdf").write_bytes(base64.b64decode(printed["data"]))
    assert shown.execute_script("return document.querySelectorAll('details[open]').length") == 0
    text = subprocess.run(["pdftotext", "-layout", pdf, "-"], check=True, capture_output=True)
    words = re.sub(r"\s", "", text.stdout.decode())
    assert "Dragtoturn" not in words and "Reset" not in words and "Pointat" not in words
    with open(hostile_run / "evaluation.csv", newline="") as file:
        _, *rows = csv.reader(file)
    for row in rows:  # folded on the screen, whole on paper
        assert all(f"{float(cell):.4g}" in words for cell in row[1:]), row

    subprocess.run(["pdftoppm", "-r", "60", "-png", pdf, tmp_path / "sheet"], check=True)
    sheets = [np.array(Image.open(path)) for path in sorted(tmp_path.glob("sheet*.png"))]
    for sheet in sheets:
        assert (sheet[:4] == 255).all() and (sheet > 200).all(-1).mean() > 0.4
    colourful = np.ptp(sheets[0].astype(int), axis=-1) > 25
    rows = np.flatnonzero(colourful.sum(1) > 5)
    body = colourful[max(np.split(rows, np.flatnonzero(np.diff(rows) > 3) + 1), key=len)]
    proportions = [np.ptp(np.flatnonzero(seen.any(0))) / np.ptp(np.flatnonzero(seen.any(1)))
                   for seen in (drawn, body)]  # fmt: skip
    assert proportions[1] == pytest.approx(proportions[0], rel=0.1)


def test_it_fits_a_phone(shown):
    shown.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 400, "height": 800, "deviceScaleFactor": 2, "mobile": True},
    )
    script = """return [...document.body.querySelectorAll(":not(.wide *)")].filter((e) =>
        e.getBoundingClientRect().right > 401).map((e) => e.outerHTML.slice(0, 200));"""
    assert shown.execute_script(script) == []
    assert shown.execute_script("return document.documentElement.scrollWidth") <= 400
