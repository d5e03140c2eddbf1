"""Which cases are for training, validation and testing, and that the others are left alone."""

import json

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.sets import load_set
from physicsnemo_flarepp.datapipes import GeoFNOReader, build_dataloaders, from_arrays
from physicsnemo_flarepp.datapipes.readers.base import CaseReader
from physicsnemo_flarepp.datapipes.readers.splits import SplitFraction

RUNS = [f"run_{i}" for i in range(20)]


@pytest.fixture(scope="module")
def flat_set(tmp_path_factory):
    """20 presampled cases in one folder that says nothing about splits."""
    root = tmp_path_factory.mktemp("flat")
    rng = np.random.default_rng(1)
    for name in RUNS:
        np.savez(
            root / f"{name}.npz",
            surface_mesh_centers=rng.uniform(size=(6, 3)).astype(np.float32),
            surface_fields=rng.normal(size=(6, 4)).astype(np.float32),
        )
    return root


def chosen(root, splits=None, **changes):
    """The cases of each split, None where there is none."""
    cfg = {"benchmark": "drivaerml_40k", "root": str(root), "num_workers": 0, **changes}
    loaders = build_dataloaders({**cfg, "splits": splits})
    found = {"train": loaders.train, "val": loaders.val, "test": loaders.test}
    return {name: loader and loader.dataset.reader.case_ids for name, loader in found.items()}


def test_fractions_give_disjoint_splits_that_the_seed_chooses(flat_set):
    parts = {"train": 0.7, "val": 0.1, "test": 0.2}
    found = chosen(flat_set, parts)
    assert [len(found[name]) for name in ("train", "val", "test")] == [14, 2, 4]
    assert sorted(sum(found.values(), [])) == sorted(RUNS)
    assert chosen(flat_set, {**parts, "seed": 0}) == found != chosen(flat_set, {**parts, "seed": 1})
    assert len(chosen(flat_set, {"test": 0.25})["train"]) == 15, "training takes the rest"
    assert chosen(flat_set, {"train": 0.5, "test": 0.25})["val"] is None
    assert chosen(flat_set, {"train": 0.5, "val": 0.25})["test"] is None


def test_a_case_that_is_added_moves_only_cases_at_the_boundaries():
    parts = {"train": 0.6, "val": 0.2, "test": 0.2}
    more = [*RUNS, "run_20"]
    for name in parts:
        split = SplitFraction(name, parts, 3)
        assert len(set(split.choose(RUNS)) - set(split.choose(more))) <= 2
    assert SplitFraction("val", {"train": 0.98, "val": 0.01, "test": 0.01}).choose(RUNS)


def test_lists_files_and_names_of_a_manifest_choose_cases(flat_set, tmp_path):
    lists = {"train": RUNS[:3], "test": [RUNS[9], RUNS[7]]}
    assert chosen(flat_set, lists) == {**lists, "val": None}
    (tmp_path / "train.txt").write_text("# half of them\nrun_4\n\n run_2 # the other\n")
    (tmp_path / "val.json").write_text('["run_5"]')
    files = {"train": str(tmp_path / "train.txt"), "val": str(tmp_path / "val.json")}
    assert chosen(flat_set, {**files, "test": ["run_0"]}) == {
        "train": ["run_4", "run_2"],
        "val": ["run_5"],
        "test": ["run_0"],
    }
    names = {"all": RUNS, "few": RUNS[:2], "validation": RUNS[3:5], "far": RUNS[8:]}
    for content in (names, {"splits": names, "statistics": {"p": [1.0, 2.0]}, "version": 3}):
        (tmp_path / "names.json").write_text(json.dumps(content))
        splits = {"manifest": str(tmp_path / "names.json"), "train": "few", "test": "far"}
        found = chosen(flat_set, splits)
        assert found == {"train": RUNS[:2], "val": RUNS[3:5], "test": RUNS[8:]}


def test_train_and_val_of_physicsnemos_recipe_need_no_test_split(flat_set, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"train": RUNS[:4], "val": RUNS[4:6]}))
    found = chosen(flat_set, str(tmp_path / "manifest.json"))
    assert found == {"train": RUNS[:4], "val": RUNS[4:6], "test": None}
    fewer = chosen(flat_set, str(tmp_path / "manifest.json"), n_train=2, n_val=1)
    assert fewer == {"train": RUNS[:2], "val": RUNS[4:5], "test": None}
    with pytest.raises(FileNotFoundError, match=r"no split 'test'; it has \['train', 'val'\]"):
        chosen(flat_set, str(tmp_path / "manifest.json"), n_val=0)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": RUNS[:3], "test": RUNS[2:4]}, "1 cases are in both train and test: run_2"),
        ({"train": RUNS[:3], "val": RUNS[:1], "test": RUNS[5:]}, "in both train and val: run_0"),
        ({"train": 0.9, "test": 0.2}, "sum 1.1, expected positive ones"),
        ({"train": 16, "test": 4}, "data.n_train, data.n_val"),
        ({"train": 0.5, "test": RUNS[:1]}, "fractions for all splits or for none"),
        ({"training": 0.5}, "data.splits has training; expected train, val, test"),
        (
            {"train": RUNS[:2], "test": "absent.txt"},
            "absent.txt of data.splits is neither here nor in",
        ),
        ({"train": RUNS[:2], "test": "held_out"}, "does not say which cases are for held_out"),
        (None, "does not say which cases are for train: set data.splits"),
    ],
    ids=str,
)
def test_wrong_splits_are_refused(flat_set, splits, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        chosen(flat_set, splits)


def test_positions_have_no_names(grid_files):
    root = grid_files("Pipe", (129, 129), 3, 6)
    with pytest.raises(ValueError, match="GeoFNOReader have positions, not names: set data.n_trai"):
        chosen(root, {"train": 0.5, "test": 0.5}, benchmark="pipe")


def test_validation_cases_of_arrays_are_in_no_published_split(grid_files, tmp_path):
    root = grid_files("Pipe", (129, 129), 3, 9)

    def places(**counts):
        found = {}
        for split in ("train", "val", "test"):
            reader = GeoFNOReader(root, "pipe", split, **counts)
            found[split] = [reader.describe_case(i)["position"] for i in range(len(reader))]
        return found

    assert places(n_train=4, n_test=2) == {"train": [0, 1, 2, 3], "val": [4, 5, 6], "test": [7, 8]}
    assert places(n_train=4, n_test=2, n_val=1)["val"] == [4]
    with pytest.raises(ValueError, match="3 cases are in neither n_train=4 nor n_test=2, so n_val"):
        places(n_train=4, n_test=2, n_val=4)
    cfg = {"benchmark": "pipe", "root": str(root), "num_workers": 0}
    assert build_dataloaders({**cfg, "n_train": 7, "n_test": 2}).val is None
    assert build_dataloaders({**cfg, "n_train": 4, "n_test": 2, "n_val": 0}).val is None


@pytest.mark.parametrize("name", ["darcy", "elasticity"])
def test_validation_cases_of_built_in_sets_leave_the_others_as_they_are(name, tmp_path):
    shapes = {
        "darcy": {"coeff": (85, 85), "sol": (85, 85)},
        "elasticity": {"nodes": (972, 2), "stress": (972,)},
    }
    rng = np.random.default_rng(0)
    cases = [{key: rng.random(s) for key, s in shapes[name].items()} for _ in range(5)]
    plain, more = tmp_path / "plain", tmp_path / "more"
    for folder, n_val in ((plain, 0), (more, 2)):
        folder.mkdir()
        load_set(name).assemble(iter(cases[: 3 + n_val]), folder, 2, 1, n_val)
    for file in plain.iterdir():
        assert (more / file.name).read_bytes() == file.read_bytes()
    cfg = {"benchmark": name, "root": str(more), "n_train": 2, "n_test": 1, "num_workers": 0}
    loaders = build_dataloaders(cfg)
    readers = [getattr(loaders, split).dataset.reader for split in ("train", "test", "val")]
    assert [len(reader) for reader in readers] == [2, 1, 2]
    found = [reader[i][0]["fields"].ravel() for reader in readers for i in range(len(reader))]
    expected = [case["sol" if name == "darcy" else "stress"].ravel() for case in cases]
    np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=1e-6)


@pytest.mark.parametrize("where", ["files", "memory"])
def test_own_data_with_listed_cases_gives_none_of_the_others_away(flat_set, where):
    lists = {"train": RUNS[:14], "test": RUNS[14:18]}
    names = {"coordinates": "surface_mesh_centers", "fields": ["surface_fields"]}
    cfg = {"reader": {"_target_": "OwnReader"}, "root": str(flat_set), "num_workers": 0, **names}
    data = None
    if where == "memory":
        cfg = {"num_workers": 0}
        rng = np.random.default_rng(0)
        points, values = rng.random((20, 6, 3)), rng.random((20, 6))
        data = from_arrays(points, fields={"T": values}, case_ids=RUNS)
    loaders = build_dataloaders({**cfg, "splits": lists}, data=data)
    assert loaders.train.dataset.reader.case_ids == lists["train"]
    assert loaders.test.dataset.reader.case_ids == lists["test"] and loaders.val is None
    with pytest.raises(FileNotFoundError, match="does not say which cases are for test"):
        build_dataloaders({**cfg, "splits": {"train": RUNS[:14]}}, data=data)


def test_only_training_cases_are_read_before_a_loader_is_used(flat_set, monkeypatch):
    read = []
    load = CaseReader._load_sample
    monkeypatch.setattr(
        CaseReader,
        "_load_sample",
        lambda self, index: read.append(self.case_ids[index]) or load(self, index),
    )
    cfg = {"benchmark": "drivaerml_40k", "root": str(flat_set), "num_workers": 0}
    splits = {"train": RUNS[:3], "val": RUNS[3:5], "test": RUNS[5:8]}
    loaders = build_dataloaders({**cfg, "splits": splits})
    assert set(read) == set(RUNS[:3]), "statistics are those of the training cases"
    read.clear()
    list(loaders.val)
    assert read == RUNS[3:5]
