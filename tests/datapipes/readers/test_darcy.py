import h5py
import numpy as np
import pytest
import scipy.io
import torch

from physicsnemo_flarepp.datapipes import DarcyReader, build_dataloaders


def write_v5(path, arrays):
    scipy.io.savemat(path, arrays, do_compression=True)


def write_v73(path, arrays):
    # MATLAB stores columns first: A(case, i, j) lies at [j, i, case] of the HDF5 data set.
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in arrays.items():
            stored = file.create_dataset(name, values.shape[::-1], dtype="f8")
            for case in range(len(values)):
                stored[..., case] = np.swapaxes(values[case], 0, -1)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


@pytest.fixture(scope="module", params=[write_v5, write_v73], ids=["v5", "v7.3"])
def darcy_root(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("darcy")
    for file, n in ((1, 3), (2, 2)):
        case, i, j = np.indices((n, 421, 421), sparse=True)
        coeff = (case * 421.0 + i) * 421 + j
        request.param(
            root / f"piececonst_r421_N1024_smooth{file}.mat",
            {"coeff": coeff, "sol": -coeff - 2_000_000 * file},
        )
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("split", "file", "n"), [("train", 1, 3), ("test", 2, 2)])
def test_stride_five_of_both_files_in_both_formats(darcy_root, split, file, n):
    reader = DarcyReader(darcy_root, split, n_train=3, n_test=2)
    assert len(reader) == n and reader.grid == (85, 85)
    sample, _ = reader[n - 1]
    for i, j in [(0, 0), (0, 84), (84, 0), (2, 31), (84, 84)]:
        token = 85 * i + j
        value = ((n - 1) * 421 + 5 * i) * 421 + 5 * j
        assert sample["features"][token].item() == value
        assert sample["fields"][token].item() == -value - 2_000_000 * file
        np.testing.assert_allclose(sample["coordinates"][token], [i / 84, j / 84], atol=1e-7)


def test_first_cases_are_taken_and_too_many_are_refused(darcy_root):
    assert DarcyReader(darcy_root, "train", n_train=1)[0][0]["features"][1].item() == 5
    with pytest.raises(ValueError, match="smooth1.mat: 3 cases cannot give n_train=1000"):
        DarcyReader(darcy_root, "train")


def test_other_resolutions_need_a_stride(tmp_path):
    arrays = {"coeff": np.ones((2, 61, 61)), "sol": np.ones((2, 61, 61))}
    write_v5(tmp_path / "piececonst_r61_N2_smooth1.mat", arrays)
    with pytest.raises(ValueError, match="61 x 61 has no stride.*give `stride`"):
        DarcyReader(tmp_path, n_train=2)
    assert DarcyReader(tmp_path, n_train=2, stride=3).grid == (21, 21)


@pytest.mark.parametrize("write", [write_v5, write_v73], ids=["v5", "v7.3"])
def test_damaged_files_are_named(tmp_path, write):
    path = tmp_path / "piececonst_r85_N2_smooth1.mat"
    ones = np.ones((2, 85, 85)) + np.random.default_rng(0).random((2, 85, 85))
    write(path, {"coeff": ones, "u": ones})
    with pytest.raises(KeyError, match="smooth1.mat has no variable 'sol'; present: coeff, u"):
        DarcyReader(tmp_path, n_train=2)
    write(path, {"coeff": ones, "sol": ones[:, :, :84]})
    with pytest.raises(ValueError, match=r"sol has shape \(2, 85, 84\), expected \(2, 85, 85\)"):
        DarcyReader(tmp_path, n_train=2)
    write(path, {"coeff": ones, "sol": ones})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="smooth1.mat cannot be read.*truncated"):
        DarcyReader(tmp_path, n_train=2)


@pytest.mark.parametrize("write", [write_v5, write_v73], ids=["v5", "v7.3"])
@pytest.mark.parametrize("shape", [(85, 85, 3), (3, 85, 169), (85, 85)], ids=str)
def test_only_square_grids_with_the_case_first_are_read(tmp_path, write, shape):
    path = tmp_path / "piececonst_r85_N3_smooth1.mat"
    values = np.ones(shape)
    write(path, {"coeff": values, "sol": values})
    with pytest.raises(ValueError, match=r"coeff has shape .*, expected \(case, side, side\)"):
        DarcyReader(tmp_path, n_train=3)


def test_darcy_has_one_mean_and_scale_for_all_points_unless_others_are_asked_for(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for file in (1, 2):
        inner = rng.normal(3.0, 2.0, (4, 83, 83))
        arrays[file] = {
            "coeff": rng.normal(7.0, 5.0, (4, 85, 85)),
            "sol": np.pad(inner, ((0, 0), (1, 1), (1, 1))),  # 0 on the boundary
        }
        write_v5(tmp_path / f"piececonst_r85_N4_smooth{file}.mat", arrays[file])
    config = {"benchmark": "darcy", "root": str(tmp_path), "n_train": 4, "n_test": 1}
    normalizer = build_dataloaders({**config, "num_workers": 0}).normalizer
    for key, name in (("features", "coeff"), ("fields", "sol")):
        affine, values = normalizer.affine[key], arrays[1][name]
        np.testing.assert_allclose(affine.shift, [values.mean()], rtol=1e-6)
        np.testing.assert_allclose(affine.scale, [values.std()], rtol=1e-4)
    # What a model says about the boundary counts.
    wrong = normalizer.inverse(torch.ones(1, 85 * 85, 1)).reshape(85, 85)
    assert (wrong[0] == wrong[40]).all() and abs(wrong[0, 0]) > 1
    kinds = {"features": "per_point", "fields": "per_point"}
    per_point = build_dataloaders({**config, "num_workers": 0, "normalization": kinds}).normalizer
    assert per_point.affine["fields"].scale.shape == (85 * 85, 1)
    assert per_point.affine["fields"].scale.reshape(85, 85)[0].abs().max() == 0
