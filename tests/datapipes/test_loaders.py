import json
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError
from physicsnemo.datapipes import COMPONENT_REGISTRY
from scipy.io import savemat

from physicsnemo_flarepp.builtin import generate
from physicsnemo_flarepp.builtin.engine import write_stamp
from physicsnemo_flarepp.datapipes import (
    DrivAerMLReader,
    Normalizer,
    PadCollator,
    build_dataloaders,
    build_test_loader,
    data_elsewhere,
)
from physicsnemo_flarepp.datapipes.readers import base


def config(root, **changes):
    return {"benchmark": "drivaerml_40k", "root": str(root), "n_points": 20, "seed": 5, **changes}


def epoch_of(loader, epoch):
    """All batches of an epoch as {case: tokens drawn}, in reading order."""
    loader.set_epoch(epoch)
    return {
        int(case): tokens.tolist()
        for batch in loader
        for case, tokens in zip(batch["case_index"], batch["tokens"], strict=True)
    }


def test_two_epochs_differ_and_two_equal_seeds_agree(ragged_set):
    loaders = [build_dataloaders(config(ragged_set, seed=seed)).train for seed in (5, 5, 6)]
    first, again, other = (epoch_of(loader, 1) for loader in loaders)
    assert list(first.items()) == list(again.items())
    assert first != other
    second = epoch_of(loaders[0], 2)
    assert list(first) != list(second) and all(first[case] != second[case] for case in first)
    assert list(epoch_of(loaders[1], 2).items()) == list(second.items())


def test_draws_do_not_depend_on_threads(ragged_set):
    runs = [
        epoch_of(build_dataloaders(config(ragged_set, num_workers=n, prefetch=3)).train, 4)
        for n in (0, 1, 3)
    ]
    assert list(runs[0].items()) == list(runs[1].items()) == list(runs[2].items())


def drawn_here(loader, monkeypatch):
    """Whether epochs 0 and 1 are drawn in the calling thread."""
    here, draw = [set(), set()], base.token_rows
    with monkeypatch.context() as patch:
        for epoch, seen in enumerate(here):

            def token_rows(*arguments, seen=seen):
                seen.add(threading.current_thread() is threading.main_thread())
                return draw(*arguments)

            patch.setattr(base, "token_rows", token_rows)
            epoch_of(loader, epoch)
    return here


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("memory", [0.25, 0.0])
def test_rows_in_memory_are_drawn_in_the_calling_thread(ragged_set, monkeypatch, memory, split):
    # A rank of two keeps its part of the test cases.
    ranks = {"parallel": {"data_rank": 1, "data_size": 2}} if split == "test" else {}
    loaders = [
        getattr(build_dataloaders(config(ragged_set, memory=m, batch_size=2, **ranks)), split)
        for m in (memory, 0.0)
    ]
    reader = loaders[0].dataset.reader
    reader._kept_cases = base.KeptCases(memory)  # statistics have read all
    assert drawn_here(loaders[0], monkeypatch) == [{False}, {memory > 0}]
    for epoch in (0, 1):
        first, second = (list(epoch_of(loader, epoch).items()) for loader in loaders)
        assert first == second


def test_reading_threads_stay_for_what_is_computed_and_can_be_disabled(ragged_set, monkeypatch):
    loader = build_dataloaders(config(ragged_set)).train  # statistics have read all
    assert drawn_here(loader, monkeypatch) == [{True}, {True}]
    loader.dataset.reader.transforms = (lambda data: data,)
    with monkeypatch.context() as patch:
        patch.setattr(base.CaseReader, "_transform", lambda self, sample, index: sample)
        assert drawn_here(loader, monkeypatch) == [{False}, {False}]
        loader.disable_prefetch()
        assert drawn_here(loader, monkeypatch) == [{True}, {True}]


def test_fixed_sampling_and_test_draws_never_change(ragged_set):
    loaders = build_dataloaders(config(ragged_set, sampling="fixed", n_points_test=10))
    assert epoch_of(loaders.train, 0) == epoch_of(loaders.train, 7)
    test = epoch_of(loaders.test, 0)
    assert test == epoch_of(loaders.test, 7) and len(test[0]) == 10


def test_test_draws_are_the_same_for_all_seeds(ragged_set):
    draws = [
        epoch_of(build_dataloaders(config(ragged_set, seed=seed, n_points_test=10)).test, 0)
        for seed in (0, 5, 6)
    ]
    assert draws[0] == draws[1] == draws[2] and len(draws[0][0]) == 10 != max(draws[0][0]) + 1


def test_statistics_never_see_test_cases(ragged_set, monkeypatch):
    opened = []
    load = np.load
    monkeypatch.setattr(np, "load", lambda path, **kw: opened.append(str(path)) or load(path, **kw))
    normalizer = build_dataloaders(config(ragged_set, n_points=None)).normalizer
    assert len(set(opened)) == 6 and all("/train/" in path for path in opened)
    # The test cases lie at 1e6: a single one of them would move the mean by thousands.
    assert abs(normalizer.affine["fields"].shift.item() + 230) < 100


def test_inputs_are_normalised_and_targets_are_those_of_the_files_bit_for_bit(ragged_set):
    loaders = build_dataloaders(
        config(ragged_set, n_points=None, batch_size=4, batch_size_test=2, collate_metadata=True)
    )
    train, test, normalizer = loaders[:3]
    values = []
    for batch, metadata in train:
        lengths = [30 + 2 * int(m["case_id"].removeprefix("run_")) for m in metadata]
        assert batch["token_mask"].sum(1).tolist() == lengths
        for row, (description, length) in enumerate(zip(metadata, lengths, strict=True)):
            with np.load(description["source"]) as file:
                target, points = file["surface_fields"][:, :1], file["surface_mesh_centers"]
            np.testing.assert_array_equal(batch["fields"][row, :length], target)
            back = normalizer.inverse(batch["coordinates"][row, :length], key="coordinates")
            np.testing.assert_allclose(back, points, rtol=1e-4, atol=1e-3)
        values.append(batch["coordinates"][batch["token_mask"]])
    values = torch.cat(values)
    assert abs(values.mean(0)).max() < 1e-5
    assert values.var(0).mean() == pytest.approx(1, rel=1e-4), "one scale for all axes"
    assert [len(batch["case_index"]) for batch, _ in test] == [2, 1]


def test_mesh_of_ranks_reads_every_training_token_once(ragged_set):
    whole = epoch_of(build_dataloaders(config(ragged_set)).train, 3)
    gathered = {}
    for data_rank in range(2):
        for context_rank in range(3):
            place = {
                "data_rank": data_rank,
                "data_size": 2,
                "context_rank": context_rank,
                "context_size": 3,
            }
            cfg = config(ragged_set, parallel=place, batch_size=2)
            shards = epoch_of(build_dataloaders(cfg).train, 3)
            for case, tokens in shards.items():
                gathered.setdefault(case, []).extend(tokens)
    assert gathered == whole


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_batch_holds_the_same_cases_on_any_number_of_ranks(ragged_set, ranks):
    def batches(rank, size):
        place = {"data_rank": rank, "data_size": size}
        cfg = config(ragged_set, parallel=place, batch_size=4, n_train=4)
        return [sorted(batch["case_index"].tolist()) for batch in build_dataloaders(cfg).train]

    parts = [batches(rank, ranks) for rank in range(ranks)]
    together = [sorted(sum(batch, [])) for batch in zip(*parts, strict=True)]
    assert together == batches(0, 1)


def test_a_batch_that_ranks_cannot_share_is_refused_with_advice(ragged_set):
    place = {"data_size": 8, "context_size": 1}
    message = (
        r"data.batch_size is 6, .* 8 data ranks .*parallel.context=4 of 8 ranks.*multiple of 8, "
        r"such as 8"
    )
    with pytest.raises(ValueError, match=message):
        build_dataloaders(config(ragged_set, parallel=place, batch_size=6))


def test_context_shards_get_the_statistics_of_whole_cases(ragged_set):
    place = {"context_rank": 1, "context_size": 2}
    expected = build_dataloaders(config(ragged_set)).normalizer.state_dict()
    found = build_dataloaders(config(ragged_set, parallel=place)).normalizer.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_reader_is_named_by_registry_or_interpolation(ragged_set):
    assert {"GeoFNOReader", "DarcyReader", "DrivAerMLReader"} <= set(COMPONENT_REGISTRY.list())
    for target in ("DrivAerMLReader", "${dp:DrivAerMLReader}"):
        cfg = OmegaConf.create(
            {
                "root": str(ragged_set),
                "reader": {
                    "_target_": target,
                    "fields": ["wallShearStressMeanTrim"],
                },
                "splits": {"train": ["run_0", "run_8"], "test": ["run_3"]},
                "normalization": {"fields": "gaussian"},
            }
        )
        train, test = build_dataloaders(cfg)[:2]
        assert train.dataset.reader.case_ids == ["run_0", "run_8"] and len(test) == 1
        assert next(iter(train))["fields"].shape[-1] == 3


def test_choices_of_normalisation(ragged_set, tmp_path):
    assert build_dataloaders(config(ragged_set, normalization="none")).normalizer.affine == {}
    paper = build_dataloaders(config(ragged_set, normalization="paper")).normalizer
    assert paper.affine["fields"].scale.item() == pytest.approx(269.598572)
    paper.save(tmp_path / "stats.safetensors")
    choice = {"load": str(tmp_path / "stats.safetensors")}
    stored = build_dataloaders(config(ragged_set, normalization=choice)).normalizer
    assert isinstance(stored, Normalizer)
    assert torch.equal(stored.affine["fields"].scale, paper.affine["fields"].scale)
    with pytest.raises(ValueError, match="need every point of the grid, but n_points is 20"):
        build_dataloaders(config(ragged_set, normalization={"fields": "per_point"}))
    shear = {"fields": ["wallShearStressMeanTrim"]}
    with pytest.raises(ValueError, match=r"\['pMeanTrim'\] of drivaerml_40k, but \['wallShear.*_x"):
        build_dataloaders(config(ragged_set, normalization="paper", reader=shear))
    with pytest.raises(ValueError, match="normalization is 'best', expected 'fit'"):
        build_dataloaders(config(ragged_set, normalization="best"))


def test_configs_that_do_not_say_what_to_read_are_refused(ragged_set):
    with pytest.raises(ValueError, match="set exactly one"):
        build_dataloaders({"benchmark": "pipe"})
    with pytest.raises(ValueError, match="set exactly one"):
        build_dataloaders(config(ragged_set, builtin="cars"))
    with pytest.raises(ValueError, match="benchmark 'ships' is not known"):
        build_dataloaders(config(ragged_set, benchmark="ships"))
    with pytest.raises(ConfigKeyError, match="n_point"):
        build_dataloaders({"root": str(ragged_set), "n_point": 3})
    with pytest.raises(ValueError, match="reader 'NoReader' is not registered"):
        build_dataloaders(config(ragged_set, reader={"_target_": "NoReader"}))
    overlapping = {"train": ["run_0"], "test": ["run_0"]}
    with pytest.raises(ValueError, match="in both train and test: run_0"):
        build_dataloaders(config(ragged_set, splits=overlapping))


def test_builtin_set_is_generated_with_its_counts_and_read_like_files(grid_files, monkeypatch):
    root = grid_files("Pipe", (129, 129), 3, 5)
    calls = []

    def generate(name, *, n_train, n_val, n_test, seed):
        calls.append((name, n_train, n_val, n_test, seed))
        write_stamp(root, {"n_train": 3, "n_test": 2})
        return root

    module = "physicsnemo_flarepp.builtin"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(generate=generate))
    train, test, normalizer, val = build_dataloaders(
        {"builtin": "pipe", "n_val": 0, "n_test": 2, "seed": 9, "builtin_seed": 4}
    )
    assert calls == [("pipe", None, 0, 2, 4)] and val is None
    assert (len(train), len(test)) == (3, 2)
    assert next(iter(test))["coordinates"].shape == (1, 129 * 129, 2)
    assert set(normalizer.affine) == {"coordinates", "fields"}


@pytest.mark.slow
def test_the_seed_of_a_run_leaves_the_built_in_data_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PHYSICSNEMO_FLAREPP_CACHE", str(tmp_path))
    cfg = {"builtin": "darcy", "n_train": 2, "n_test": 1}
    paths = [build_dataloaders({**cfg, "seed": seed}).train.dataset.reader.path for seed in (0, 1)]
    assert paths[0] == paths[1]
    assert len([entry for entry in tmp_path.iterdir() if entry.is_dir()]) == 1


def test_readers_errors_reach_the_training_loop(ragged_set, tmp_path):
    (tmp_path / "train").symlink_to(ragged_set / "train")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "run_9.npz").write_bytes(b"not a zip")
    loaders = build_dataloaders(config(tmp_path))
    with pytest.raises(ValueError, match="run_9.npz cannot be read"):
        next(iter(loaders.test))


def test_the_test_split_is_opened_without_the_training_split(ragged_set, tmp_path):
    cfg = config(ragged_set, n_points_test=10, collate_metadata=True)
    expected = build_dataloaders(cfg)
    (tmp_path / "test").symlink_to(ragged_set / "test")
    loader = build_test_loader(cfg | {"root": str(tmp_path)}, expected.normalizer)
    for (found, told), (batch, metadata) in zip(loader, expected.test, strict=True):
        assert [m["case_id"] for m in told] == [m["case_id"] for m in metadata]
        assert all(torch.equal(found[key], batch[key]) for key in batch.keys())


def test_arrays_of_test_cases_only_are_opened_whole(grid_files):
    cfg = {"benchmark": "pipe", "root": str(grid_files("Pipe", (129, 129), 3, 4)), "n_train": 0}
    assert build_test_loader(cfg, Normalizer()).dataset.reader.case_ids[::3] == [
        "pipe_0000",
        "pipe_0003",
    ]
    with pytest.raises(ValueError, match="n_train=0, n_test=4 leaves a split empty"):
        build_dataloaders(cfg)


def test_other_data_has_its_own_split(ragged_set, tmp_path):
    lists = {"train": ["run_0"], "test": ["run_1"], "manifest": "of_the_run.json"}
    cfg = config(ragged_set, splits=lists, n_train=1, n_test=1)
    for run in (6, 7, 8):
        (tmp_path / f"run_{run}.npz").symlink_to(ragged_set / "test" / f"run_{run}.npz")
    (tmp_path / "manifest.json").write_text(json.dumps({"test": ["run_8", "run_6"]}))
    for root, expected in (
        (ragged_set, ["run_6", "run_7", "run_8"]),
        (tmp_path, ["run_8", "run_6"]),
    ):
        other = data_elsewhere(cfg, root)
        assert build_test_loader(other, Normalizer()).dataset.reader.case_ids == expected
        assert other["splits"] is None and other["n_points"] == 20


def test_a_folder_that_says_nothing_is_all_for_testing_unless_it_was_moved(ragged_set, tmp_path):
    for run in range(6):
        (tmp_path / f"run_{run}.npz").symlink_to(ragged_set / "train" / f"run_{run}.npz")

    def tested(cfg, moved):
        other = data_elsewhere(cfg, tmp_path, moved=moved)
        return build_test_loader(other, Normalizer()).dataset.reader.case_ids

    listed = config("old", splits={"train": ["run_0"], "test": ["run_4", "run_1"]}, n_test=2)
    everything = [f"run_{run}" for run in range(6)]
    assert tested(listed, True) == ["run_4", "run_1"]
    assert tested(listed, False) == everything
    assert tested(listed, None) == ["run_4", "run_1"], "the list is a sign of the same data"
    for moved in (False, None):
        assert tested(config("old", n_test=2), moved) == everything


@pytest.mark.parametrize("moved, expected", [(True, [3, 4]), (False, [0, 1, 2, 3, 4])])
def test_arrays_are_all_for_testing_unless_they_were_moved(grid_files, moved, expected):
    root = grid_files("Pipe", (129, 129), 3, 5)
    cfg = {"builtin": "pipe", "n_train": 3, "n_test": 2}
    other = data_elsewhere(cfg, root, moved=moved)
    found = build_test_loader(other, Normalizer()).dataset.reader.case_ids
    assert found == [f"pipe_{case:04d}" for case in expected]


def test_darcy_elsewhere_is_tested_on_its_whole_file_of_tests(tmp_path):
    coeff = np.ones((3, 5, 5))
    savemat(tmp_path / "piececonst_r5_N3_smooth2.mat", {"coeff": coeff, "sol": coeff})
    cfg = {"benchmark": "darcy", "root": "old", "reader": {"stride": 2}, "n_test": 2}
    assert len(build_test_loader(data_elsewhere(cfg, tmp_path), Normalizer())) == 3


@pytest.mark.slow
def test_a_built_in_set_elsewhere_has_the_counts_of_its_stamp(tmp_path):
    root = generate("darcy", n_train=2, n_test=3, root=tmp_path, progress=False)
    other = data_elsewhere({"builtin": "darcy", "n_train": 40, "n_test": 8}, root)
    assert (other["benchmark"], other["builtin"]) == ("darcy", None)
    assert len(build_test_loader(other, Normalizer())) == 3
    with pytest.raises(ValueError, match="No such file.*and the set is made again"):
        next(root.glob("*smooth1.mat")).unlink()
        data_elsewhere({"builtin": "darcy"}, root)


@pytest.mark.parametrize("name", ["stride", "n_points", "options", "root"])
def test_arguments_that_no_reader_takes_there_are_named(ragged_set, name):
    message = f"data.reader has {name}, but DrivAerMLReader takes fields, .* experiment=none"
    with pytest.raises(ValueError, match=message):
        build_dataloaders(config(ragged_set, reader={name: 1}))


def test_a_reader_is_made_from_yaml_with_options(ragged_set):
    reader = instantiate(
        OmegaConf.create(
            {
                "_target_": "${dp:DrivAerMLReader}",
                "root": str(ragged_set),
                "options": {"n_points": 7, "shard": [1, 2]},
            }
        )
    )
    assert len(reader[0][0]["tokens"]) == 3
    with pytest.raises(Exception, match="n_point'"):
        instantiate(
            {
                "_target_": "physicsnemo_flarepp.datapipes.DrivAerMLReader",
                "root": str(ragged_set),
                "options": {"n_point": 7},
            }
        )


# --- batches


@pytest.fixture
def samples(ragged_set):
    reader = DrivAerMLReader(ragged_set)
    return [reader[2], reader[0]]


def test_ragged_cases_are_padded_and_masked(samples):
    batch, metadata = PadCollator(collate_metadata=True)(samples)
    lengths = [34, 30]
    assert batch.batch_size == (2,) and batch["coordinates"].shape == (2, 34, 3)
    assert batch["token_mask"].dtype == torch.bool
    assert batch["token_mask"].sum(1).tolist() == lengths
    assert batch["case_index"].tolist() == [2, 0]
    assert [m["case_id"] for m in metadata] == ["run_2", "run_0"]
    for row, (sample, _) in enumerate(samples):
        for key in ("coordinates", "fields", "tokens"):
            assert torch.equal(batch[key][row, : lengths[row]], sample[key])
            assert not batch[key][row, lengths[row] :].any()


def test_equal_lengths_carry_no_mask(samples):
    batch = PadCollator()([samples[0], samples[0]])
    assert "token_mask" not in batch.keys()
    assert torch.equal(batch["fields"][1], samples[0][0]["fields"])
