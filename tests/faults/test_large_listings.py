"""What `flarepp inspect` does with very many names and very large arrays."""

import tracemalloc
from unittest.mock import Mock

import h5py
import numpy as np

from physicsnemo_flarepp.commands.data import describe
from physicsnemo_flarepp.datapipes import inspection
from physicsnemo_flarepp.datapipes.inspection import inspect_data
from physicsnemo_flarepp.datapipes.readers import names


def write_cases(folder, n_columns):
    folder.mkdir()
    names = [f"u{k}" for k in range(n_columns)]
    rows = [["case", *names]]
    for i in range(3):
        np.savez(folder / f"c{i}.npz", coordinates=np.random.rand(9, 2), p=np.random.rand(9))
        rows.append([f"c{i}", *(str(k * i + 1) for k in range(n_columns))])
    (folder / "table.csv").write_text("\n".join(",".join(row) for row in rows))
    return folder


def test_the_work_grows_with_the_number_of_names_not_with_its_square(tmp_path, monkeypatch):
    """Counted, not timed: how often the columns of a case are listed."""
    counts = {}
    for n_columns in (10, 200):
        listing = Mock(wraps=names._case_values)
        with monkeypatch.context() as patch:
            patch.setattr(names, "_case_values", listing)
            found = inspect_data(write_cases(tmp_path / str(n_columns), n_columns))
        assert len(found.found) == n_columns + 2 and len(describe(found)) > n_columns
        counts[n_columns] = listing.call_count
    assert counts[10] == counts[200]


def test_large_arrays_are_looked_at_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "_BLOCK", 2**12)
    values = np.arange(2.0**18).reshape(-1, 4)
    values[7, 2], values[9, 0] = np.nan, -5
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["p"] = values
        file["zeros"] = np.zeros(0)
    tracemalloc.start()
    found = {f.name: f for f in inspect_data(tmp_path / "a.h5").found}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["p"].values == f"-5 .. {2**18 - 1:.4g}, 1 NaN or infinite"
    assert (found["p"].shape, found["p"].kind) == ("65536 x 4", "float64")
    assert found["zeros"].values == "no number"
    assert peak < values.nbytes
