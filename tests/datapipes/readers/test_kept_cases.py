"""Cases that stay in memory: the same samples, decoded once, within a share of the memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.datapipes import GeoFNOReader, OwnReader, ReaderOptions
from physicsnemo_flarepp.datapipes.readers import array_files, base
from physicsnemo_flarepp.datapipes.readers.base import KeptCases
from tests.own_data import making


@pytest.fixture(scope="module")
def meshes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meshes")
    making.write_meshes(folder, ".vtp")
    return folder


def read_surfaces(root, memory, n_points=20, **options):
    named = {"fields": ["Cp", "tau"], "features": ["normals", "areas"], "globals": ["a"]}
    chosen = ReaderOptions(n_points, "epoch", memory=memory, **options)
    return OwnReader(root, **named, association="cells", options=chosen)


def read_clouds(root, memory, **options):
    """Points of a plane, memory-mapped and transposed as Elasticity is published."""
    rng = np.random.default_rng(0)
    np.save(root / "Random_UnitCell_XY_10.npy", rng.random((972, 2, 6)))
    np.save(root / "Random_UnitCell_sigma_10.npy", rng.random((972, 6)))
    chosen = ReaderOptions(20, "epoch", memory=memory, **options)
    return GeoFNOReader(root, name="elasticity", n_train=3, n_val=0, n_test=2, options=chosen)


def samples(reader, epochs=2):
    for epoch in range(epochs):
        reader.set_epoch(epoch)
        yield from (reader[i][0] for i in range(len(reader)))


@pytest.mark.parametrize("options", [{}, {"weights": "measure"},
                                     {"weights": "measure", "density": "area"}])  # fmt: skip
@pytest.mark.parametrize("read", [read_surfaces, read_clouds])
def test_samples_are_the_same_to_the_last_bit(read, options, meshes, tmp_path):
    root = meshes if read is read_surfaces else tmp_path
    kept, opened = read(root, 0.5, **options), read(root, 0.0, **options)
    for one, other in zip(samples(kept), samples(opened), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one.keys())
    assert kept.case(0) is kept.case(0) and opened.case(0) is not opened.case(0)
    measures = [reader.read_measure(1) for reader in (kept, opened)]
    np.testing.assert_array_equal(*measures)


@pytest.mark.parametrize("n_points", [20, None])
def test_a_sample_may_be_changed_without_changing_the_case(n_points, meshes):
    reader = read_surfaces(meshes, 0.5, n_points, weights="measure")
    first, measure = reader[0][0].clone(), reader.read_measure(0).copy()
    for value in reader[0][0].values():
        value.zero_()
    reader.read_measure(0)[:] = 0
    assert all(torch.equal(value, first[key]) for key, value in reader[0][0].items())
    np.testing.assert_array_equal(reader.read_measure(0), measure)


@pytest.mark.parametrize("column, weights", [(2, "none"), (3, "w")])
def test_a_kept_case_with_a_bad_value_is_refused_when_it_is_drawn(column, weights, tmp_path):
    values = np.random.default_rng(0).random((30, 4))
    values[7, column] = np.nan
    np.savetxt(tmp_path / "run_0.csv", values, delimiter=",", header="x,y,u,w", comments="")
    options = ReaderOptions(3, "epoch", weights=weights)
    reader = OwnReader(tmp_path, coordinates=["x", "y"], fields=["u"], features=[], globals=[],
                       cases=["run_0"], options=options)  # fmt: skip
    outcomes = {}
    for epoch in range(30):
        reader.set_epoch(epoch)
        drawn = base.token_rows(30, 3, (0, 1), reader._index_generator(0).initial_seed())
        try:
            assert torch.equal(reader[0][0]["tokens"], torch.from_numpy(drawn))
            outcomes.setdefault(7 in drawn, set()).add("read")
        except ValueError as error:
            assert "run_0" in str(error)
            outcomes.setdefault(7 in drawn, set()).add("refused")
    assert outcomes == {True: {"refused"}, False: {"read"}}


def test_tables_are_parsed_once(tmp_path, monkeypatch):
    for i in range(2):
        values = np.random.default_rng(i).random((30, 3))
        np.savetxt(tmp_path / f"run_{i}.csv", values, delimiter=",", header="x,y,u", comments="")
    parsed, original = [], np.loadtxt
    monkeypatch.setattr(
        array_files.np, "loadtxt", lambda *a, **k: parsed.append(1) or original(*a, **k)
    )
    reader = OwnReader(tmp_path, coordinates=["x", "y"], fields=["u"], features=[], globals=[],
                       cases=["run_0", "run_1"])  # fmt: skip
    list(samples(reader, epochs=1))
    known = len(parsed)
    list(samples(reader, epochs=3))
    assert len(parsed) == known


def test_stores_stay_lazy(tmp_path):
    making.write_zarr(tmp_path)
    reader = OwnReader(tmp_path, fields=["u"], coordinates="pos", features=[], globals=[])
    list(samples(reader))
    assert reader.case(0) is not reader.case(0)


def test_what_was_used_longest_ago_makes_room(monkeypatch):
    # The cases take what they are given from the rest of 1,000 bytes.
    kept = KeptCases(0.25)
    monkeypatch.setattr(base, "free_memory", lambda: 1000 - 100 * len(present()))
    names = ("a", "b", "c")

    def present():
        return [name for name in names if name in kept._kept]

    kept.keep("a", None, "A", 100)
    kept.keep("b", None, "B", 100)
    assert kept.find("a", None) == "A"
    kept.keep("c", None, "C", 100)
    assert present() == ["a", "c"]
    kept.keep("b", None, "too large", 400)
    assert present() == ["a", "c"]
    assert kept.find("a", "changed") is None
    kept.keep("a", "changed", "A2", 100)
    assert kept.find("a", "changed") == "A2" and kept.find("c", None) == "C"


def test_ranks_of_a_machine_share_the_memory(monkeypatch):
    monkeypatch.setattr(base, "free_memory", lambda: 1000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    kept = KeptCases(0.4)
    kept.keep("small", None, "kept", 100)
    kept.keep("large", None, "not kept", 400)
    assert (kept.find("small", None), kept.find("large", None)) == ("kept", None)


def test_threads_get_the_same_cases_while_others_are_dropped(meshes, monkeypatch):
    reader = read_surfaces(meshes, 0.5, weights="measure")
    expected = list(samples(reader, epochs=1))
    size = reader.case(0).to_keep("measure")[1]
    monkeypatch.setattr(base, "free_memory", lambda: 2 * size)
    tight = read_surfaces(meshes, 0.5, weights="measure")
    order = np.random.default_rng(0).integers(len(tight), size=60).tolist()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda index: tight[index][0], order))
    for index, sample in zip(order, found, strict=True):
        assert all(torch.equal(sample[key], expected[index][key]) for key in sample.keys())


@pytest.mark.parametrize("memory", [-0.1, 1.5])
def test_a_share_is_between_0_and_1(memory):
    with pytest.raises(ValueError, match=rf"data.memory is {memory}, expected a share"):
        ReaderOptions(memory=memory)


def test_a_limit_of_the_container_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr(base, "_CGROUP", tmp_path)
    assert base.free_memory() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert base.free_memory() > 3000
