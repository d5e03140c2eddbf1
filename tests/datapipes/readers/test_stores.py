"""Stores that lost a part are told from those whose writer left it out."""

import numpy as np
import pytest
import zarr

from physicsnemo_flarepp.datapipes import DrivAerMLReader
from tests.datapipes.readers.layouts import FIELDS, write_case


def zarr_chunks(root, array):
    """Files with the chunks of an array anywhere under `root`."""
    return sorted(p for p in root.rglob("*") if p.is_file() and f"/{array}/c" in p.as_posix())


@pytest.mark.parametrize(
    ("layout", "array"),
    [
        ("zarr", "surface_mesh_centers"),
        ("zarr", "surface_fields"),
        ("zarr", "surface_normals"),
        ("pdmsh_zarr", "points"),
        ("pdmsh_zarr", "cells"),
        ("pdmsh_zarr", "pMeanTrim"),
        ("pdmsh_zarr", "rho_inf"),
    ],
)
def test_a_lost_chunk_of_a_requested_array_is_an_error(tmp_path, box_surface, layout, array):
    write_case(tmp_path, layout, 1, box_surface())
    zarr_chunks(tmp_path, array)[0].unlink()
    request = {"global_names": ["rho_inf"]} if layout == "pdmsh_zarr" else {"features": ["normals"]}
    with pytest.raises(ValueError, match=f"array {array} has . of . chunks.*incomplete.*fill"):
        DrivAerMLReader(tmp_path, cases=["run_1"], **request)[0]


@pytest.mark.parametrize("layout", ["zarr", "pdmsh_zarr"])
def test_chunks_of_other_arrays_do_not_matter(tmp_path, box_surface, layout):
    write_case(tmp_path, layout, 1, box_surface())
    other = "surface_areas" if layout == "zarr" else "wallShearStressMeanTrim"
    zarr_chunks(tmp_path, other)[0].unlink()
    assert len(DrivAerMLReader(tmp_path, cases=["run_1"])[0][0]["fields"]) == 192


@pytest.mark.parametrize(("layout", "array"), [("zarr", "surface_fields"), ("pdmsh_zarr", None)])
def test_chunks_left_out_as_zeros_are_read_once_the_user_says_so(
    tmp_path, box_surface, layout, array
):
    mesh = box_surface()
    for name in FIELDS:
        mesh[name][50:100] = 0
    write_case(tmp_path, layout, 1, mesh)
    request = {"cases": ["run_1"], "fields": FIELDS}
    array = array or FIELDS[0]
    with pytest.raises(ValueError, match=rf"3 of 4 chunks.*set allow_missing_chunks=\['{array}'\]"):
        DrivAerMLReader(tmp_path, **request)[0]
    allowed = [array] if layout == "zarr" else FIELDS
    fields = DrivAerMLReader(tmp_path, allow_missing_chunks=allowed, **request)[0][0]["fields"]
    assert (fields[50:100] == 0).all() and (fields[100:] != 0).any()


def test_one_lost_shard_of_several_chunks_is_noticed(tmp_path, box_surface):
    write_case(tmp_path, "zarr", 1, box_surface())
    group = zarr.open_group(tmp_path / "run_1.zarr")
    fields = group["surface_fields"][...]
    del group["surface_fields"]
    group.create_array("surface_fields", data=fields, chunks=(50, 4), shards=(150, 4))
    reader = DrivAerMLReader(tmp_path, cases=["run_1"])
    np.testing.assert_array_equal(reader[0][0]["fields"], fields[:, :1])
    zarr_chunks(tmp_path, "surface_fields")[-1].unlink()
    with pytest.raises(ValueError, match="surface_fields has 1 of 2 chunks"):
        reader[0]


@pytest.mark.parametrize(
    ("layout", "array"), [("zarr", "surface_fields"), ("pdmsh_zarr", FIELDS[0])]
)
def test_a_shard_touches_its_own_chunks_only(tmp_path, box_surface, layout, array):
    write_case(tmp_path, layout, 1, box_surface())
    last = zarr_chunks(tmp_path, array)[-1]
    last.write_bytes(last.read_bytes()[:-9])
    first = DrivAerMLReader(tmp_path, cases=["run_1"], options={"shard": (0, 4)})
    assert len(first[0][0]["fields"]) == 48
    with pytest.raises(ValueError, match="cannot be read"):
        DrivAerMLReader(tmp_path, cases=["run_1"], options={"shard": (3, 4)})[0]


def test_truncated_memory_map_is_named(tmp_path, box_surface):
    write_case(tmp_path, "pdmsh", 1, box_surface())
    (file,) = tmp_path.glob("run_1/**/vehicle/**/pMeanTrim.memmap")
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(ValueError, match="domain_1.pdmsh cannot be read.*truncated"):
        DrivAerMLReader(tmp_path, cases=["run_1"])[0]
