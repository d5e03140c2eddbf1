"""The layouts of vehicle surfaces hold the same boxes; each must give the tokens VTK computes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.datapipes import DrivAerMLReader, ReaderOptions, plot_mesh
from tests.datapipes.readers.layouts import FIELDS, LAYOUTS, surface_arrays, write_case


@pytest.fixture(scope="module")
def sets(tmp_path_factory, box_surface):
    roots = {}
    for layout in LAYOUTS:
        roots[layout] = tmp_path_factory.mktemp(layout)
        for run in range(3):
            write_case(roots[layout], layout, run, box_surface(run))
        manifest = {"train": ["run_2", "run_0"], "test": ["run_1"]}
        (roots[layout] / "manifest.json").write_text(json.dumps(manifest))
    return roots


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_cells_that_vtk_sees(layout, sets, box_surface):
    reader = DrivAerMLReader(sets[layout], fields=FIELDS, features=["normals", "areas"])
    assert reader.case_ids == ["run_2", "run_0"]
    sample, metadata = reader[0]
    expected = surface_arrays(box_surface(2))
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(sample["coordinates"], expected["surface_mesh_centers"], **close)
    np.testing.assert_array_equal(sample["fields"], expected["surface_fields"])
    np.testing.assert_allclose(sample["features"][:, :3], expected["surface_normals"], **close)
    np.testing.assert_allclose(sample["features"][:, 3], expected["surface_areas"], **close)
    assert metadata["case_id"] == "run_2"
    assert metadata["field_names"] == ["pMeanTrim", *(f"{FIELDS[1]}_{axis}" for axis in "xyz")]
    assert metadata["feature_names"] == ["normals_x", "normals_y", "normals_z", "areas"]


@pytest.mark.slow
@pytest.mark.parametrize("n_points", [None, 101])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shards_put_together_are_the_case(layout, n_points, sets):
    arrays = {"fields": FIELDS, "features": ["normals"]}
    options = ReaderOptions(n_points=n_points, sampling="epoch")
    whole = DrivAerMLReader(sets[layout], **arrays, options=options)
    whole.set_epoch(3)
    sample = whole[1][0]
    parts = []
    for rank in range(4):
        shard = replace(options, shard=(rank, 4))
        reader = DrivAerMLReader(sets[layout], **arrays, options=shard)
        reader.set_epoch(3)
        parts.append(reader[1][0])
    sizes = [len(part["tokens"]) for part in parts]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == len(sample["tokens"])
    for key in ("coordinates", "features", "fields", "tokens"):
        assert torch.equal(torch.cat([part[key] for part in parts]), sample[key])
    if n_points is not None:
        assert len(sample["tokens"].unique()) == n_points


@pytest.mark.parametrize("layout", ["pmsh", "zarr", "presampled", "vtp"])
def test_constants_stand_for_globals_that_files_do_not_hold(layout, sets):
    constants = {"U_inf": [30.0, 0, 0], "rho_inf": 1.2}
    names = {"fields": FIELDS, "global_names": list(constants)}
    sample = DrivAerMLReader(sets[layout], **names, constants=constants)[0][0]
    torch.testing.assert_close(sample["globals"], torch.tensor([30.0, 0, 0, 1.2]))
    with pytest.raises(KeyError, match="U_inf"):
        DrivAerMLReader(sets[layout], **names)[0]


def test_globals_of_the_file_come_before_constants(sets):
    arguments = {"fields": FIELDS, "global_names": ["rho_inf"], "constants": {"rho_inf": 7.0}}
    assert DrivAerMLReader(sets["pdmsh"], **arguments)[0][0]["globals"].tolist() == [1.0]


def test_sampled_rows_point_into_the_mesh_for_plotting(sets, box_surface):
    for layout in ("vtp", "pdmsh", "pdmsh_zarr", "pmsh"):
        sample, metadata = DrivAerMLReader(sets[layout], "test", options={"n_points": 40})[0]
        mesh = plot_mesh(metadata, sample["coordinates"])
        centres = mesh.cell_centers().points[sample["tokens"]]
        np.testing.assert_allclose(centres, sample["coordinates"], rtol=1e-5, atol=1e-6)
        assert metadata["association"] == "cell"


def test_globals_come_from_csv_and_from_global_data(sets):
    vtp = DrivAerMLReader(sets["vtp"], "test", global_names=["lRef", "aRef"])[0][0]
    np.testing.assert_allclose(vtp["globals"], [2.786, 3.0], rtol=1e-6)
    for layout in ("pdmsh", "pdmsh_zarr"):
        names = ["U_inf", "rho_inf"]
        sample, metadata = DrivAerMLReader(sets[layout], "test", global_names=names)[0]
        np.testing.assert_allclose(sample["globals"], [38.889, 0, 0, 1], rtol=1e-6)
        assert metadata["global_names"] == ["U_inf_1", "U_inf_2", "U_inf_3", "rho_inf"]
        with pytest.raises(
            KeyError, match="no array 'nu'.*; present: U_inf.*rho_inf.*constants.nu"
        ):
            DrivAerMLReader(sets[layout], global_names=["nu"])[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_field_lists_those_present(layout, sets):
    with pytest.raises(KeyError, match=r"run_2.* 'UMean'.*; present: .*(surface_fields|wallShear)"):
        DrivAerMLReader(sets[layout], fields=["UMean"])[0]


def test_association_is_chosen_or_asked_for(tmp_path, box_surface):
    mesh = box_surface()
    mesh.cell_data["pMean"] = mesh["pMeanTrim"]
    mesh.save(tmp_path / "boundary_1.vtp")
    options = {"pattern": "*.vtp", "cases": ["boundary_1"], "fields": ["pMean"]}
    with pytest.raises(ValueError, match="pMean for cells and for points alike.*assoc") as caught:
        DrivAerMLReader(tmp_path, **options)[0]
    assert "truncated" not in str(caught.value)
    for association, count in (("cell", mesh.n_cells), ("point", mesh.n_points)):
        reader = DrivAerMLReader(tmp_path, association=association, **options)
        assert len(reader[0][0]["fields"]) == count


def test_splits_by_directory_by_list_and_by_count(ragged_set, sets):
    assert DrivAerMLReader(ragged_set, "test").case_ids == ["run_6", "run_7", "run_8"]
    assert DrivAerMLReader(ragged_set, cases=["run_3", "run_7"]).case_ids == ["run_3", "run_7"]
    assert DrivAerMLReader(sets["vtp"], n_train=1).case_ids == ["run_2"]
    with pytest.raises(ValueError, match="has 2 cases, 3 were asked for"):
        DrivAerMLReader(sets["vtp"], n_train=3)


def test_the_published_directory_is_entered_only_from_a_root_without_cases(tmp_path, box_surface):
    published = tmp_path / "drivaerml_surface_presampled_40k"
    (published / "train").mkdir(parents=True)
    write_case(published / "train", "presampled", 5, box_surface())
    assert DrivAerMLReader(tmp_path).case_ids == ["run_5"]
    write_case(tmp_path, "vtp", 1, box_surface())
    reader = DrivAerMLReader(tmp_path, cases=["run_1"])
    assert reader.layout == "vtp" and reader.case_ids == ["run_1"]
    assert DrivAerMLReader(tmp_path, layout="presampled").case_ids == ["run_5"]


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"train": ["run_0", "run_0"], "test": []}, "more than once: run_0"),
        ({"train": [], "test": ["run_0"]}, "split 'train' is empty"),
        ({"test": ["run_0"]}, "has no split 'train'"),
        ({"train": ["run_0", "run_99"]}, "names 1 cases without files in .*: run_99"),
        (["run_0"], "is not a manifest"),
    ],
)
def test_wrong_manifests_are_refused(manifest, message, sets, tmp_path):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        DrivAerMLReader(sets["vtp"], manifest=path)


def test_wrong_roots_are_refused(tmp_path, box_surface):
    with pytest.raises(FileNotFoundError, match="absent does not exist.*run_.*huggingface"):
        DrivAerMLReader(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="holds no case; expected run_.*boundary_"):
        DrivAerMLReader(tmp_path)
    write_case(tmp_path, "vtp", 1, box_surface())
    with pytest.raises(FileNotFoundError, match="does not say which cases.*manifest.json.*run_1"):
        DrivAerMLReader(tmp_path)
    write_case(tmp_path, "zarr", 2, box_surface())
    with pytest.raises(ValueError, match=r"layouts \['vtp', 'zarr'\]; choose one with `layout`"):
        DrivAerMLReader(tmp_path)
    (tmp_path / "run_1" / "boundary_1b.vtp").touch()
    with pytest.raises(ValueError, match="more than once: run_1"):
        DrivAerMLReader(tmp_path, layout="vtp")


def test_damaged_files_are_named(tmp_path, box_surface, capfd):
    names = ["run_1"]
    write_case(tmp_path, "vtp", 1, box_surface())
    path = tmp_path / "run_1" / "boundary_1.vtp"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="boundary_1.vtp cannot be read.*truncated"):
        DrivAerMLReader(tmp_path, cases=names)[0]
    capfd.readouterr()  # VTK also complains on the terminal
    write_case(tmp_path, "presampled", 1, box_surface())
    path = tmp_path / "run_1.npz"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match="run_1.npz cannot be read.*truncated"):
        DrivAerMLReader(tmp_path, layout="presampled", cases=names)[0]
    write_case(tmp_path, "zarr", 1, box_surface())
    chunk = tmp_path / "run_1.zarr" / "surface_fields" / "c" / "1" / "0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="run_1.zarr cannot be read.*truncated"):
        DrivAerMLReader(tmp_path, layout="zarr", cases=names)[0]


def test_nan_wrong_rows_and_lines_are_refused(tmp_path, box_surface):
    arrays = surface_arrays(box_surface())
    arrays["surface_fields"][3, 0] = np.nan
    np.savez(tmp_path / "run_1.npz", **arrays)
    with pytest.raises(ValueError, match="run_1.npz: case run_1 has 1 of .* fields NaN"):
        DrivAerMLReader(tmp_path, cases=["run_1"])[0]
    arrays["surface_fields"] = arrays["surface_fields"][:-1]
    np.savez(tmp_path / "run_1.npz", **arrays)
    with pytest.raises(ValueError, match=r"pMeanTrim has shape \(191, 1\), expected \(192,\)"):
        DrivAerMLReader(tmp_path, cases=["run_1"])[0]
    lines = pv.Line()
    lines.cell_data["pMeanTrim"] = [1.0]
    lines.save(tmp_path / "line.vtp")
    with pytest.raises(ValueError, match="line.vtp has cells that are not polygons"):
        DrivAerMLReader(tmp_path, pattern="*.vtp", cases=["line"])[0]
