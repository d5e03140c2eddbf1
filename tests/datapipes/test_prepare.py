"""Prepared cases hold what the raw ones do, in an order in which a block is a random sample."""

import json
import os

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.datapipes import (
    DrivAerMLReader,
    PreparedReader,
    build_dataloaders,
    plot_mesh,
    prepare,
)
from physicsnemo_flarepp.datapipes.readers.base import token_rows
from tests.datapipes.readers.layouts import FIELDS, write_case

RAW = {"_target_": "DrivAerMLReader", "fields": FIELDS, "features": ["normals"],
       "global_names": ["aRef"]}  # fmt: skip


@pytest.fixture(scope="module")
def raw(tmp_path_factory, box_surface):
    root = tmp_path_factory.mktemp("raw")
    for run in (1, 2, 3):
        write_case(root, "vtp", run, box_surface(run))
    splits = {"train": ["run_1", "run_2"], "test": ["run_3"]}
    (root / "manifest.json").write_text(json.dumps(splits))
    return root


def config(root, **changes):
    return {"root": str(root), "reader": RAW, "n_points": 64} | changes


@pytest.fixture(scope="module")
def prepared(raw, tmp_path_factory):
    return prepare(config(raw), tmp_path_factory.mktemp("prepared") / "out", progress=False)


def by_place(sample):
    """Return all columns of a sample, ordered by its coordinates."""
    columns = [sample[key] for key in ("coordinates", "features", "fields")]
    table = torch.cat(columns, dim=1)
    return table[np.lexsort(table[:, :3].numpy().T)]


# --- contents


@pytest.mark.parametrize(("split", "cases"), [("train", ["run_1", "run_2"]), ("test", ["run_3"])])
def test_a_prepared_case_holds_the_rows_of_the_raw_one(raw, prepared, split, cases):
    arguments = {"fields": FIELDS, "features": ["normals"], "global_names": ["aRef"]}
    options = {"weights": "measure"}
    theirs = DrivAerMLReader(raw, split, **arguments, options=options)
    ours = PreparedReader(prepared, split, options=options)
    assert ours.case_ids == cases
    for index in range(len(ours)):
        (a, about_a), (b, about_b) = theirs[index], ours[index]
        assert torch.equal(by_place(a), by_place(b))
        assert torch.equal(a["globals"], b["globals"])
        for key in ("field_names", "feature_names", "global_names", "association"):
            assert about_a[key] == about_b[key]
        order = np.load(about_b["order"])
        assert torch.equal(a["weights"][order], b["weights"])
        assert torch.equal(a["coordinates"][order], b["coordinates"])
        assert not torch.equal(a["coordinates"], b["coordinates"])


def test_columns_can_be_chosen_and_areas_are_one(prepared):
    reader = PreparedReader(
        prepared, fields=["wallShearStressMeanTrim"], features=["areas"], global_names=[]
    )
    sample, about = reader[0]
    assert about["field_names"] == [f"wallShearStressMeanTrim_{axis}" for axis in "xyz"]
    assert "globals" not in sample
    weighted = PreparedReader(prepared, options={"weights": "measure"})[0][0]
    assert torch.equal(sample["features"][:, 0], weighted["weights"])
    with pytest.raises(KeyError, match="no column 'cp'; present: .*pMeanTrim"):
        PreparedReader(prepared, fields=["cp"])[0]


def test_the_manifest_has_splits_statistics_and_the_sign_of_forces(raw, prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert manifest["splits"] == {"train": ["run_1", "run_2"], "test": ["run_3"]}
    assert manifest["forces"]["shear_sign"] == -1
    files = [raw / f"run_{run}" / f"boundary_{run}.vtp" for run in (1, 2)]
    pressure = np.concatenate([pv.read(file)["pMeanTrim"] for file in files]).astype(np.float64)
    stored = manifest["statistics"]["fields"]["pMeanTrim"]
    assert stored["count"] == len(pressure)
    np.testing.assert_allclose(
        [stored["mean"], stored["std"], stored["min"], stored["max"]],
        [[pressure.mean()], [pressure.std(ddof=1)], [pressure.min()], [pressure.max()]],
        rtol=1e-6,
    )


def test_any_reader_can_be_prepared(tmp_path, grid_files):
    root = grid_files("Pipe", (129, 129), 3, 3)
    cfg = {"benchmark": "pipe", "root": str(root), "n_train": 2, "n_test": 1}
    out = prepare(cfg, tmp_path / "out", progress=False)
    sample, about = PreparedReader(out, "test")[0]
    order = np.load(about["order"])
    expected = np.load(root / "Pipe_Q.npy")[2, 0].reshape(-1)[order]
    assert np.array_equal(sample["fields"][:, 0].numpy(), expected.astype(np.float32))


def test_volumes_are_prepared_with_what_their_cells_stand_for(tmp_path):
    root = tmp_path / "raw"
    root.mkdir()
    for case in range(5):
        grid = pv.RectilinearGrid([0, 1, 3], [0, 1, 2 + case], [0, 0.5, 1])
        volume = grid.cast_to_unstructured_grid()
        volume.cell_data["U"] = volume.cell_centers().points.astype(np.float32)
        volume.save(root / f"case_{case}.vtu")
    cfg = {"root": str(root), "reader": {"_target_": "OwnReader"}, "fields": ["U"], "globals": []}
    out = prepare(cfg, tmp_path / "out", progress=False)
    for split in ("train", "test"):
        reader = PreparedReader(out, split, options={"weights": "measure"})
        for index, case_id in enumerate(reader.case_ids):
            sample, about = reader[index]
            sizes = pv.read(root / f"{case_id}.vtu").compute_cell_sizes()["Volume"]
            order = np.load(about["order"])
            np.testing.assert_allclose(sample["weights"], np.abs(sizes)[order], rtol=1e-6)
            assert torch.equal(sample["fields"], sample["coordinates"])
            assert about["association"] == "cell"


# --- draws


def test_a_draw_is_a_block_that_every_row_is_as_likely_to_be_in():
    counts = np.zeros(50)
    for seed in range(2000):
        rows = token_rows(50, 20, (0, 1), seed, shuffled=True)
        chosen = np.arange(50)[rows]
        assert len(chosen) == 20 and (np.diff(chosen) > 0).all()
        assert (np.diff(chosen) == 1).sum() >= 18  # one block, or its two ends
        counts[chosen] += 1
    assert abs(counts / 2000 - 0.4).max() < 0.06


@pytest.mark.parametrize("seed", range(8))
def test_shards_put_together_are_the_draw(seed):
    whole = np.arange(30)[token_rows(30, 20, (0, 1), seed, shuffled=True)]
    parts = [np.arange(30)[token_rows(30, 20, (r, 3), seed, shuffled=True)] for r in range(3)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_draw_touches_its_rows_and_no_others(prepared):
    reader = PreparedReader(prepared, options={"n_points": 10, "sampling": "epoch"})
    table = reader.open_case(0)
    asked = []

    class Watched:
        def __init__(self, column):
            self.shape, self._column = column.shape, column

        def __getitem__(self, rows):
            asked.append(rows)
            return self._column[rows]

    for group in (table.coordinates, table.features, table.fields):
        for name, column in group.items():
            assert isinstance(column, np.memmap)
            group[name] = Watched(column)
    reader.open_case = lambda index: table
    sample = reader[0][0]
    assert len(sample["coordinates"]) == 10
    assert len(asked) == 4 and all(len(np.arange(table.n_tokens)[rows]) == 10 for rows in asked)


def test_draws_spread_over_the_surface(tmp_path, box_surface):
    root = tmp_path / "raw"
    root.mkdir()
    for run in (1, 2):
        write_case(root, "vtp", run, box_surface(run, subdivisions=4))
    (root / "manifest.json").write_text('{"train": ["run_1"], "test": ["run_2"]}')
    out = prepare(config(root), tmp_path / "out", progress=False)
    case = PreparedReader(out)[0][0]["coordinates"]
    drawn = PreparedReader(out, options={"n_points": 500})[0][0]["coordinates"]
    error = (drawn.mean(0) - case.mean(0)) / case.std(0) * 500**0.5
    assert error.abs().max() < 4
    # In the order of the file the first 500 cells are one corner of the box.
    first = DrivAerMLReader(root)[0][0]["coordinates"][:500]
    assert ((first.mean(0) - case.mean(0)) / case.std(0) * 500**0.5).abs().max() > 10


def test_loaders_train_on_prepared_cases(prepared):
    loaders = build_dataloaders(
        {
            "root": str(prepared),
            "reader": {"_target_": "PreparedReader"},
            "normalization": {"coordinates": "unit_box", "fields": "gaussian"},
            "n_points": 16,
            "num_workers": 0,
        }
    )
    batches = []
    for epoch in range(2):
        loaders.train.set_epoch(epoch)
        batches.append([batch["tokens"] for batch in loaders.train])
    assert all(tokens.shape == (1, 16) for epoch in batches for tokens in epoch)
    assert not torch.equal(torch.cat(batches[0]).sort().values, torch.cat(batches[1]).sort().values)


# --- meshes


@pytest.mark.parametrize("association", ["cell", "point"])
def test_the_mesh_is_rebuilt_in_the_order_of_the_case(tmp_path, box_surface, association):
    root = tmp_path / "raw"
    root.mkdir()
    mesh = box_surface(1)
    for run in (1, 2):
        write_case(root, "vtp", run, mesh)
    (root / "manifest.json").write_text('{"train": ["run_1"], "test": ["run_2"]}')
    fields = ["pMeanTrim" if association == "cell" else "pMean"]
    reader = RAW | {"fields": fields, "features": []}
    out = prepare(config(root, reader=reader), tmp_path / "out", progress=False)
    sample, about = PreparedReader(out)[0]
    rebuilt = plot_mesh(about, sample["coordinates"].numpy())
    at = rebuilt.cell_centers().points if association == "cell" else rebuilt.points
    np.testing.assert_allclose(at, sample["coordinates"], atol=1e-6)
    assert rebuilt.area == pytest.approx(mesh.area)
    (root / "run_1" / "boundary_1.vtp").unlink()
    assert plot_mesh(about, sample["coordinates"].numpy()).n_points == len(sample["fields"])


# --- kills, faults, settings


def columns_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}


def test_what_is_there_is_kept_and_what_is_missing_made(raw, tmp_path):
    out = prepare(config(raw), tmp_path / "out", progress=False)
    before = columns_of(out)
    # As a kill leaves it: one case gone, one begun, no manifest, and one with a cut column.
    (out / "run_2").rename(out / ".run_2.preparing")
    (out / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="did not finish.*it resumes"):
        PreparedReader(out)
    cut = next((out / "run_3").glob("*fields_pMeanTrim.npy"))
    os.truncate(cut, cut.stat().st_size - 4)
    prepare(config(raw), out, workers=2, progress=False)
    after = columns_of(out)
    kept = [path for path in before if after.get(path) == before[path]]
    assert {path.parent.name for path in kept} == {"run_1"}
    assert set(after) == set(before)
    assert not (out / ".run_2.preparing").exists()
    assert len(PreparedReader(out)[1][0]["fields"]) > 0


def test_the_same_arguments_give_the_same_bytes(raw, prepared, tmp_path):
    again = prepare(config(raw), tmp_path / "again", workers=1, progress=False)
    for path in prepared.rglob("*.npy"):
        assert path.read_bytes() == (again / path.relative_to(prepared)).read_bytes()
    other = prepare(config(raw), tmp_path / "other", seed=1, progress=False)
    assert (other / "run_1/order.npy").read_bytes() != (again / "run_1/order.npy").read_bytes()


def test_a_source_that_changed_is_prepared_again(raw, tmp_path, box_surface):
    root = tmp_path / "raw"
    root.mkdir()
    for run in (1, 2):
        write_case(root, "vtp", run, box_surface(run))
    (root / "manifest.json").write_text('{"train": ["run_1"], "test": ["run_2"]}')
    out = prepare(config(root), tmp_path / "out", progress=False)
    box_surface(9).save(root / "run_1" / "boundary_1.vtp")
    prepare(config(root), out, progress=False)
    changed = DrivAerMLReader(root, fields=FIELDS, features=["normals"])[0][0]
    assert torch.equal(by_place(PreparedReader(out)[0][0]), by_place(changed))


def test_other_settings_in_the_same_folder_are_refused(raw, prepared):
    with pytest.raises(ValueError, match="seed was 0 and is 1.*another folder"):
        prepare(config(raw), prepared, seed=1, progress=False)
    fewer = config(raw, reader=RAW | {"fields": ["pMeanTrim"]})
    with pytest.raises(ValueError, match="arguments was"):
        prepare(fewer, prepared, progress=False)


def test_a_bad_case_is_named_and_the_others_are_made(tmp_path, box_surface):
    root = tmp_path / "raw"
    root.mkdir()
    for run in (1, 2, 3):
        mesh = box_surface(run)
        if run == 2:
            mesh["pMeanTrim"][5] = np.nan
        write_case(root, "vtp", run, mesh)
    (root / "manifest.json").write_text('{"train": ["run_1", "run_2"], "test": ["run_3"]}')
    with pytest.raises(RuntimeError, match="1 of 3 cases.*run_2.*pMeanTrim NaN or infinite"):
        prepare(config(root), tmp_path / "out", progress=False)
    assert sorted(p.name for p in (tmp_path / "out").glob("run_*")) == ["run_1", "run_3"]
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("damage", ["cut", "longer", "changed description", "pickle", "outside"])
def test_a_damaged_case_is_named(raw, tmp_path, damage):
    out = prepare(config(raw), tmp_path / "out", progress=False)
    column = next((out / "run_1").glob("*pMeanTrim.npy"))
    case = out / "run_1" / "case.json"
    if damage == "cut":
        os.truncate(column, column.stat().st_size // 2)
    elif damage == "longer":
        column.write_bytes(column.read_bytes() + b"0")
    elif damage == "changed description":
        case.write_text(case.read_text().replace('"cell"', '"point"'))
    elif damage == "pickle":
        np.save(column, np.array([{}], dtype=object), allow_pickle=True)
        rewrite(case, lambda entry: entry | {"size": column.stat().st_size})
    else:
        rewrite(case, lambda entry: entry | {"file": "../../elsewhere.npy"})
    with pytest.raises(ValueError, match="cannot be read|not a file in its own folder"):
        PreparedReader(out)[0]


def rewrite(path, change):
    from physicsnemo_flarepp.files import checked_json, read_checked_json

    content = read_checked_json(path)
    fields = content["columns"]["fields"]
    fields["pMeanTrim"] = change(fields["pMeanTrim"])
    path.write_text(checked_json(content))


# --- the command


def test_the_command_prepares_what_a_config_reads(raw, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["prepare", "data=drivaerml_raw", f"data.root={raw}"]
    assert main(command) == 0
    assert "data.root=data/drivaerml_raw_prepared" in capsys.readouterr().out
    sample, about = PreparedReader(tmp_path / "data" / "drivaerml_raw_prepared")[0]
    assert about["feature_names"] == ["normals_x", "normals_y", "normals_z"]
    assert main([*command, "prepare.workers=0"]) == 2
    assert "workers is 0" in capsys.readouterr().err
