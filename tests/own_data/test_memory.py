"""Cases in memory give the samples that the same cases in files give."""

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.datapipes import (
    OwnReader,
    build_dataloaders,
    from_arrays,
    from_dataset,
    from_meshes,
)
from physicsnemo_flarepp.datapipes.channels import Channels
from physicsnemo_flarepp.datapipes.readers.base import TokenTable
from physicsnemo_flarepp.datapipes.readers.memory import MemoryReader

from .making import STRETCH, cloud, surface, volume

NO_THREADS = {"num_workers": 0}


def assert_same(one, other):
    assert set(one.keys()) == set(other.keys())
    for key in one.keys():
        torch.testing.assert_close(one[key], other[key])


@pytest.mark.parametrize("make, suffix", [(surface, ".vtp"), (volume, ".vtu")])
def test_meshes_in_memory_are_read_as_from_files(make, suffix, tmp_path):
    meshes = [make(stretch) for stretch in STRETCH]
    for i, mesh in enumerate(meshes):
        mesh.save(tmp_path / f"case_{i}{suffix}")
    options = {"weights": "measure"}
    held = MemoryReader(from_meshes(meshes), "test", options=options)
    stored = OwnReader(tmp_path, "test", options=options)
    assert held.case_ids == stored.case_ids
    assert_same(held[0][0], stored[0][0])
    assert held[0][1]["mesh"].n_cells == meshes[0].n_cells


def test_arrays_of_different_lengths_and_shared_coordinates():
    points = np.random.rand(30, 2)
    shared = from_arrays(points, {"u": np.random.rand(5, 30)}, globals={"mu": np.arange(5.0)})
    batch = next(iter(build_dataloaders(NO_THREADS, data=shared).train))
    assert batch["fields"].shape == (1, 30, 1) and batch["globals"].shape == (1, 1)
    ragged = [np.random.rand(n, 3) for n in (10, 12, 14)]
    data = from_arrays(ragged, {"p": [p[:, 0] for p in ragged]})
    assert {len(MemoryReader(data, "test")[0][0]["fields"])} <= {10, 12, 14}


def test_arrays_on_a_grid_know_their_shape():
    x = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0), indexing="ij"), -1)
    loaders = build_dataloaders(NO_THREADS, data=from_arrays(x, {"u": np.random.rand(5, 4, 3)}))
    reader = loaders.train.dataset.reader
    assert Channels.of_reader(reader).grid == (4, 3) and reader[0][0]["fields"].shape == (12, 1)


def test_as_many_cases_as_grid_rows_are_asked_about_never_guessed():
    """Ten cases on a grid of ten rows; a field of ten channels at ten points looks the same."""
    x = np.stack(np.meshgrid(np.arange(10.0), np.arange(10.0), indexing="ij"), -1)
    u = np.random.rand(10, 10, 10)
    with pytest.raises(ValueError, match=r"coordinates of shape \(10, 10, 2\).*\[coordinates\] \*"):
        from_arrays(x, {"u": u})
    grid = MemoryReader(from_arrays([x] * 10, {"u": u}), "test")
    assert grid[0][0]["fields"].shape == (100, 1) and grid.grid == (10, 10)
    points = MemoryReader(from_arrays(list(x), {"u": u}), "test")
    assert points[0][0]["fields"].shape == (10, 10)
    # Here the shapes tell.
    flat = MemoryReader(from_arrays(x, {"u": u.reshape(10, 100)}), "test")
    assert flat[0][0]["fields"].shape == (100, 1)
    cloud = MemoryReader(from_arrays(x, {"u": u[..., 0]}), "test")
    assert cloud[0][0]["fields"].shape == (10, 1)


class Clouds(torch.utils.data.Dataset):
    def __len__(self):
        return len(STRETCH)

    def __getitem__(self, index):
        return {name: torch.tensor(values) for name, values in cloud(STRETCH[index]).items()}


def test_any_data_set_of_dicts_gives_the_same_loaders():
    loaders = build_dataloaders(NO_THREADS, data=from_dataset(Clouds()))
    reader = loaders.train.dataset.reader
    assert (list(reader.names.fields), list(reader.names.globals)) == (["u"], ["a"])
    named = [
        {"coordinates": case["pos"], "fields": case["u"], "globals": case["a"]}
        for case in map(Clouds().__getitem__, range(len(STRETCH)))
    ]
    plain = build_dataloaders(NO_THREADS, data=from_dataset(named)).train.dataset.reader
    assert_same(plain[0][0], reader[0][0])


def test_a_changed_case_in_memory_is_told():
    x = np.random.rand(4, 9, 2)
    before = MemoryReader(from_arrays(x, {"u": x[..., 0]})).source_hashes()
    x[0] += 1
    after = MemoryReader(from_arrays(x, {"u": x[..., 0]})).source_hashes()
    changed = [case for case in before if before[case] != after[case]]
    assert changed in ([], ["memory/case_0"]) and len(before) == 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: from_meshes([]), "there are no cases"),
        (lambda: from_meshes([pv.Sphere()], case_ids=["a", "b"]), "2 case_ids for 1 cases"),
        (lambda: from_meshes([pv.Sphere()], parameters={"r": [1, 2]}), "expected 1 each"),
        (lambda: from_arrays(np.zeros((2, 3, 2)), {}), "fields is empty"),
        (
            lambda: from_arrays(np.zeros((2, 3, 2)), {"u": np.zeros((2, 3)), "v": [1]}),
            "v has 1",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- transforms


def arrays():
    points = np.random.default_rng(0).random((5, 40, 2))
    return from_arrays(points, {"u": points[..., 0]})


def reader_with(*transforms, **changes):
    cfg = NO_THREADS | changes | {"transforms": list(transforms)}
    return build_dataloaders(cfg, data=arrays()).train.dataset.reader


def test_transforms_act_before_statistics_and_channels():
    double = {"_target_": "Scale", "input_keys": ["coordinates"], "scale": [2.0, 2.0]}
    join = {
        "_target_": "ConcatFields", "input_keys": ["coordinates", "coordinates"],
        "output_key": "features",
    }  # fmt: skip
    plain, changed = reader_with(), reader_with(double, join)
    torch.testing.assert_close(changed[0][0]["coordinates"], 2 * plain[0][0]["coordinates"])
    assert Channels.of_reader(changed).features == {"features": 4}
    loaders = build_dataloaders(NO_THREADS | {"transforms": [double]}, data=arrays())
    assert next(iter(loaders.train))["coordinates"].abs().max() < 4


def test_what_a_transform_draws_depends_on_the_case_alone():
    keys = ["coordinates", "fields", "tokens"]
    draw = {"_target_": "SubsamplePoints", "input_keys": keys, "n_points": 7,
            "algorithm": "uniform"}  # fmt: skip
    reader = reader_with(draw)
    first, again = reader[1][0], (reader[0], reader[1])[1][0]
    torch.testing.assert_close(first["tokens"], again["tokens"])
    assert first["fields"].shape == (7, 1)


CENTRE = [
    {"_target_": "CenterOfMass", "coords_key": "coordinates", "output_key": "centre"},
    {"_target_": "Translate", "input_keys": ["coordinates"], "center_key_or_value": "centre",
     "subtract": True},
]  # fmt: skip
SUBSAMPLE = {"_target_": "SubsamplePoints", "input_keys": ["coordinates", "fields", "tokens"],
             "n_points": 7, "algorithm": "uniform"}  # fmt: skip
DOUBLE = {"_target_": "Scale", "input_keys": ["coordinates"], "scale": [2.0, 2.0]}


@pytest.mark.parametrize(
    "transforms, rows_read",
    [([DOUBLE], [5, 5, 5]), (CENTRE, [15] * 3), ([SUBSAMPLE, DOUBLE], [15] * 3)],
    ids=["pointwise", "of the whole draw", "fewer tokens"],
)
def test_shards_of_transformed_samples_are_the_sample_of_one_process(
    transforms, rows_read, monkeypatch
):
    whole = reader_with(*transforms, n_points=15)
    read, original = [], TokenTable.read

    def watch(table, name, rows):
        values = original(table, name, rows)
        read.extend([len(values)] if name == "fields" else [])
        return values

    shards = [
        reader_with(*transforms, n_points=15, parallel={"context_rank": r, "context_size": 3})
        for r in range(3)
    ]
    monkeypatch.setattr(TokenTable, "read", watch)
    parts = [shard[1][0] for shard in shards]
    assert read == rows_read
    for name in ("coordinates", "fields", "tokens"):
        together = torch.cat([part[name] for part in parts])
        torch.testing.assert_close(together, whole[1][0][name], rtol=0, atol=0)


def test_transforms_that_leave_entries_of_different_length_are_refused_on_shards():
    short = {**SUBSAMPLE, "input_keys": ["coordinates", "fields"]}
    reader = reader_with(short, parallel={"context_rank": 0, "context_size": 2})
    with pytest.raises(ValueError, match=r"\(SubsamplePoints\) leave 7 rows .* but 40 of tokens"):
        reader[0]


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"_target_": "NoSuch"}, "'NoSuch' is not registered; registered are .*Translate"),
        ({"_target_": "DarcyReader"}, "is not registered"),
        ({"_target_": "Scale", "factor": 2}, "Scale takes input_keys, scale"),
        ({"_target_": "Purge", "drop_only": ["fields"]}, "must keep coordinates and fields"),
    ],
)
def test_wrong_transforms_are_named(entry, message):
    with pytest.raises(ValueError, match=message):
        reader_with(entry)


def test_files_of_others_name_only_transforms_that_open_no_file(tmp_path):
    entry = {"_target_": "Normalize", "input_keys": ["fields"], "stats_file": str(tmp_path)}
    with pytest.raises(ValueError, match="could open files"):
        build_dataloaders({"transforms": [entry], **NO_THREADS}, trust=False, data=arrays())
