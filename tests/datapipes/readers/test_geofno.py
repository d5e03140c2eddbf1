import numpy as np
import pytest
import scipy.io

from physicsnemo_flarepp.datapipes import GeoFNOReader

GRIDS = {"airfoil": ("NACA_Cylinder", (221, 51), 5, 4), "pipe": ("Pipe", (129, 129), 3, 0)}


@pytest.mark.parametrize("name", GRIDS)
def test_grid_sample_holds_the_published_channel_at_the_right_place(name, grid_files, code):
    stem, grid, channels, channel = GRIDS[name]
    root = grid_files(stem, grid, channels, 4)
    reader = GeoFNOReader(root, name, "test", n_train=2, n_test=2)
    sample, metadata = reader[1]
    assert sample["coordinates"].shape == (grid[0] * grid[1], 2)
    assert metadata["case_id"] == f"{name}_0003" and metadata["grid"] == grid
    for i, j in [(0, 0), (0, 7), (5, 0), (grid[0] - 1, grid[1] - 1), (17, 40)]:
        token = i * grid[1] + j
        assert sample["coordinates"][token].tolist() == [3000 + i, 3000 + j]
        expected = code((3, 4), (channel, channels), (i, grid[0]), (j, grid[1]))
        assert sample["fields"][token].item() == expected


@pytest.mark.parametrize("name", GRIDS)
def test_published_split_of_grid_sets(name, tmp_path):
    # Sparse files of the published length: only the cases around the split carry a value.
    stem, grid, channels, channel = GRIDS[name]
    n = 1300
    for part, shape in (("X", (n, *grid)), ("Y", (n, *grid)), ("Q", (n, channels, *grid))):
        array = np.lib.format.open_memmap(tmp_path / f"{stem}_{part}.npy", "w+", np.float32, shape)
        if part == "Q":
            for case in (0, 999, 1000, 1199):
                array[case, channel, 0, 0] = case
        del array
    train = GeoFNOReader(tmp_path, name, "train")
    test = GeoFNOReader(tmp_path, name, "test")
    assert (len(train), len(test)) == (1000, 200)
    seen = [
        reader[i][0]["fields"][0, 0].item() for reader, i in ((train, 999), (test, 0), (test, 199))
    ]
    assert seen == [999, 1000, 1199]


def test_elasticity_reads_case_axis_last_and_the_last_200_for_test(tmp_path):
    node, axis, case = np.indices((972, 2, 1300), sparse=True)
    np.save(tmp_path / "Random_UnitCell_XY_10.npy", (node * 2 + axis) * 1300.0 + case)
    node, case = np.indices((972, 1300), sparse=True)
    np.save(tmp_path / "Random_UnitCell_sigma_10.npy", case * 972.0 + node)
    reader = GeoFNOReader(tmp_path, "elasticity", "test")
    assert len(reader) == 200 and reader.case_ids[0] == "elasticity_1100"
    sample, _ = reader[3]
    assert sample["coordinates"][971].tolist() == [971 * 2 * 1300 + 1103, 1943 * 1300 + 1103]
    assert sample["fields"][:, 0].tolist() == [1103 * 972 + n for n in range(972)]
    assert len(GeoFNOReader(tmp_path, "elasticity", "train")) == 1000


def test_plasticity_gives_one_sample_per_time_on_the_undeformed_grid(tmp_path, code):
    n = 3
    case, i, j, t, c = np.indices((n, 101, 31, 20, 4), sparse=True)
    output = (((case * 101 + i) * 31 + j) * 20 + t) * 4 + c
    die = np.arange(n)[:, None] * 1000.0 + np.arange(101)
    scipy.io.savemat(
        tmp_path / "plas_N987_T20.mat", {"input": die, "output": output.astype(np.float32)}
    )
    reader = GeoFNOReader(tmp_path, "plasticity", "test", n_train=2, n_test=1)
    assert len(reader) == 20
    sample, metadata = reader[19]
    assert metadata["case_id"] == "plasticity_0002_t19" and metadata["position"] == 2
    token = 100 * 31 + 5
    np.testing.assert_allclose(sample["coordinates"][token], [1.0, 5 / 30], rtol=1e-6)
    assert sample["features"][token].tolist() == [2100.0, 1.0]
    assert metadata["feature_names"] == ["die", "t"]
    assert metadata["field_names"] == ["x_deformed", "y_deformed", "u_x", "u_y"]
    expected = [code((2, n), (100, 101), (5, 31), (19, 20), (c, 4)) for c in range(4)]
    assert sample["fields"][token].tolist() == expected


def test_swapped_grid_axes_are_refused(tmp_path):
    for part in "XY":
        np.save(tmp_path / f"NACA_Cylinder_{part}.npy", np.zeros((3, 51, 221)))
    np.save(tmp_path / "NACA_Cylinder_Q.npy", np.zeros((3, 5, 221, 51)))
    with pytest.raises(ValueError, match=r"NACA_Cylinder_X.npy.*\(3, 51, 221\).*\(case, 221, 51\)"):
        GeoFNOReader(tmp_path, "airfoil", n_train=1, n_test=1)


def test_case_axis_first_is_refused_for_elasticity(tmp_path):
    np.save(tmp_path / "Random_UnitCell_XY_10.npy", np.zeros((5, 972, 2)))
    np.save(tmp_path / "Random_UnitCell_sigma_10.npy", np.zeros((5, 972)))
    with pytest.raises(ValueError, match=r"XY_10.npy.*\(5, 972, 2\).*\(972, 2, case\)"):
        GeoFNOReader(tmp_path, "elasticity", n_train=1, n_test=1)


def test_overlapping_split_and_empty_split_are_refused(grid_files):
    root = grid_files("Pipe", (129, 129), 3, 2)
    with pytest.raises(ValueError, match="2 cases cannot give n_train=2 and n_test=1"):
        GeoFNOReader(root, "pipe", n_train=2, n_test=1)
    with pytest.raises(ValueError, match="leaves a split empty"):
        GeoFNOReader(root, "pipe", n_train=2, n_test=0)


def test_missing_directory_and_file_name_where_they_are_published(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist.*Pipe_X.npy.*huggingface"):
        GeoFNOReader(tmp_path / "nowhere", "pipe")
    (tmp_path / "other.txt").touch()
    with pytest.raises(FileNotFoundError, match="Pipe_X.npy is missing.*other.txt.*huggingface"):
        GeoFNOReader(tmp_path, "pipe")


def test_truncated_array_is_named(tmp_path, grid_files):
    root = grid_files("Pipe", (129, 129), 3, 2)
    path = root / "Pipe_Q.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="Pipe_Q.npy cannot be read.*truncated"):
        GeoFNOReader(root, "pipe", n_train=1, n_test=1)


def test_nan_is_reported_with_file_and_case(grid_files):
    root = grid_files("Pipe", (129, 129), 3, 2)
    np.lib.format.open_memmap(root / "Pipe_Q.npy", "r+")[1, 0, 3, 4] = np.nan
    reader = GeoFNOReader(root, "pipe", "test", n_train=1, n_test=1)
    with pytest.raises(ValueError, match="Pipe_Q.npy: case pipe_0001 has 1 of 16641.*fields NaN"):
        reader[0]


def test_columns_are_views_of_the_file_so_a_shard_touches_its_rows_only(grid_files):
    root = grid_files("Pipe", (129, 129), 3, 2)
    reader = GeoFNOReader(root, "pipe", n_train=1, n_test=1, options={"shard": (1, 4)})
    table = reader.open_case(0)
    for column in (*table.coordinates.values(), *table.fields.values()):
        assert isinstance(column, np.memmap) and column.base is not None
    mapped = reader.open_case(0).fields["u_x"]
    assert np.shares_memory(table.fields["u_x"], mapped), "two views of one map"
    assert reader[0][0]["tokens"].tolist() == list(range(4161, 8321))
