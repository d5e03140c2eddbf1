import dataclasses
import json
import re
import subprocess
from functools import partial

import engine
import pytest
from engine import ROOT, Grid, Study, identity, list_jobs, read_ledger, run_studies, write_lines
from rendering import NOT_RUN, render
from studies import LATENTS, STUDIES, TABLE1

from physicsnemo_flarepp.training.config import check_config

LEDGER = ROOT / "results/ledger.jsonl"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TINY = {
    "experiment": "quick/darcy",
    "threads": 1,
    "model.n_hidden": 16,
    "model.n_layers": 1,
    "model.slice_num": 4,
    "data.n_train": 4,
    "data.n_test": 2,
    "data.n_points": 32,
    "data.batch_size": 2,
    "training.steps": 4,
}
MODELS = {"flare": {"model": "flare"}, "flarepp": {"model": "flarepp"}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two studies that share a run, one of equal time, in a ledger of their own."""
    folder = tmp_path_factory.mktemp("studies")
    grid = Grid(TINY, {"model": MODELS}, seeds=1)
    equal = Grid(TINY | {"training.steps": 4}, {"model": MODELS}, equal_time=True)
    one = Study("Is it?", "It is.", grid, grid, {("flare",): 1.5, ("other",): 2.5})
    studies = {"first": one, "second": Study("?", "!", equal, equal)}
    run_studies(studies, "reduced", folder / "runs", folder / "ledger.jsonl")
    return folder, studies


@pytest.mark.slow
def test_a_finished_run_has_a_line_with_all_that_repeats_it(finished):
    folder, _ = finished
    lines = read_ledger(folder / "ledger.jsonl")
    cells = [(line["study"], line["cell"]["model"]) for line in lines]
    assert len(cells) == len(set(cells)) == 4
    first = next(line for line in lines if cells[0] == ("first", "flare"))
    assert first["published"] == 1.5 and first["seed"] == 0 and first["steps"] == 4
    assert first["best"] <= first["last"] == first["curve"][-1][1]
    assert first["cpu_seconds"] > 0 and first["commit"] and first["machine"]
    assert first["command"].startswith("flarepp train experiment=quick/darcy model=flare ")


@pytest.mark.slow
def test_equal_runs_are_trained_once_and_never_again(finished, monkeypatch):
    folder, studies = finished
    # The first cell of equal time has the steps that are asked for: the run of the other study.
    lines = read_ledger(folder / "ledger.jsonl")
    flare = [line for line in lines if line["cell"]["model"] == "flare"]
    assert flare[0]["command"] == flare[1]["command"] and flare[0]["curve"] == flare[1]["curve"]
    seconds = json.loads((folder / "runs/seconds-second-reduced.json").read_text())
    flarepp = lines[-1]  # what is run last
    assert flarepp["steps"] == round(4 * seconds["flare"] / seconds["flarepp"])
    monkeypatch.setattr("engine.train_job", lambda *_: pytest.fail("trained again"))
    run_studies(studies, "reduced", folder / "runs", folder / "ledger.jsonl")
    run_studies(studies, "reduced", folder / "runs", folder / "ledger.jsonl", seeds=2, cells=["x"])
    assert read_ledger(folder / "ledger.jsonl") == lines


def test_a_run_of_another_study_keeps_its_commit_and_day(tmp_path, monkeypatch):
    grid = Grid(TINY, {"model": {"flare": MODELS["flare"]}})
    study = Study("?", "!", grid, grid)
    (job,) = list_jobs("first", study, "reduced", tmp_path, 1)
    old = identity(job) | {"commit": "0ld", "machine": "another", "date": "2026-01-01", "last": 4.0}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(old) + "\n")
    monkeypatch.setattr("engine.train_job", lambda *_: pytest.fail("trained again"))
    run_studies({"second": study}, "reduced", tmp_path, tmp_path / "ledger.jsonl")
    assert read_ledger(tmp_path / "ledger.jsonl") == [old, old | {"study": "second"}]


@pytest.mark.slow
def test_the_page_shows_published_cells_that_were_not_run(finished):
    folder, studies = finished
    render(studies, folder / "ledger.jsonl")
    page = (folder / "README.md").read_text()
    assert re.search(rf"\| other +\| 2.50 +\| {NOT_RUN} +\| {NOT_RUN}", page)
    assert re.search(rf"\| flare +\| 1.50 +\| {NOT_RUN} +\| \d+\.\d\d \(1\)", page)
    assert (folder / "first.png").stat().st_size > 5_000


@pytest.mark.slow
def test_seconds_of_several_machines_say_whose_they_are(finished, tmp_path):
    folder, studies = finished
    lines = read_ledger(folder / "ledger.jsonl")
    elsewhere = [line | {"machine": "another", "seed": 1} for line in lines]
    for rows, mark in ((lines, ""), (lines + elsewhere, " ab")):
        (tmp_path / "ledger.jsonl").unlink(missing_ok=True)
        write_lines(tmp_path / "ledger.jsonl", rows)
        render(studies, tmp_path / "ledger.jsonl")
        page = (tmp_path / "README.md").read_text()
        assert re.search(rf"\| flare .*\| \d+{mark} +\|\n", page)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["reduced", "paper"])
def test_configs_of_all_cells_compose(size, tmp_path, monkeypatch):
    from engine import config_of

    for variable in ("AAN", "CIFAR10", "IMDB"):
        monkeypatch.setenv(variable, str(tmp_path))
    for name, study in STUDIES.items():
        grid = dataclasses.replace(getattr(study, size), equal_time=False)
        if grid.script is None:
            jobs = list_jobs(name, dataclasses.replace(study, **{size: grid}), size, tmp_path, 1)
            for job in {job.labels[:1]: job for job in jobs}.values():
                check_config(config_of(job.overrides, tmp_path))


def test_published_numbers_are_those_of_the_facts():
    assert TABLE1["darcy", "flarepp"] == 0.59 and len(TABLE1) == 11 * 5 - 2
    assert LATENTS["darcy", "flare_first", "128", "8"] == 0.54 and len(LATENTS) == 6 * 3 + 4 * 2


def numbers(text):
    """All numbers with two decimals or more, as percentages and ratios are written."""
    return set(re.findall(r"(?<![\d.])\d+\.\d\d+(?![\d.])", text))


def test_the_page_is_what_the_ledger_renders(tmp_path):
    (tmp_path / "ledger.jsonl").write_text(LEDGER.read_text())
    render(STUDIES, tmp_path / "ledger.jsonl", figures=False)
    assert (tmp_path / "README.md").read_text() == (LEDGER.parent / "README.md").read_text()


COMMAND = re.compile(r"examples/\w+/\w+\.py|\bflarepp [a-z]+|pytest")
# Pages whose numbers are those of tests: accuracies of solvers, and of emulated kernels.
TESTED = {"built_in_sets", "kernels"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_errors_that_pages_quote_stand_in_the_ledger_or_below_their_command(page):
    """A section that names the results quotes nothing else; others need a command before them."""
    results = numbers((LEDGER.parent / "README.md").read_text())
    above = ""
    for part in re.split(r"(?m)^(?=#{1,3} )", page.read_text()):
        above += part
        free = page.stem in TESTED or COMMAND.search(above)
        if re.search(r"\d %|error, %", part) and ("results/" in part or not free):
            assert numbers(part) <= results, part.splitlines()[0]


def test_a_growing_ledger_does_not_make_its_commit_dirty(tmp_path, monkeypatch):
    git = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True, text=True)
    git(["git", "init", "-q"])
    for name in ("code.py", "results/ledger.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    git(["git", "add", "."])
    git(["git", "-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "first"])
    head = git(["git", "rev-parse", "--short=8", "HEAD"]).stdout.strip()
    monkeypatch.setattr(engine, "ROOT", tmp_path)
    (tmp_path / "results/ledger.jsonl").write_text("{}\n")
    assert engine.provenance()["commit"] == head
    (tmp_path / "code.py").write_text("1\n")
    assert engine.provenance()["commit"] == f"{head}-dirty"
