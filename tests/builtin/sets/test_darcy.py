"""The Darcy solver against a manufactured solution, and the set against its description."""

import numpy as np
import pytest
from scipy.io import loadmat

from physicsnemo_flarepp.builtin import generate
from physicsnemo_flarepp.builtin.sets.darcy import sample_coefficient, solve_darcy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fields():
    return np.stack([sample_coefficient(np.random.default_rng(seed)) for seed in range(300)])


def manufactured(n):
    """Coefficient, source and solution u = sin(pi x) sin(2 pi y) with a = 2 + sin(3 x + 2 y)."""
    x = np.linspace(0, 1, n)[:, None]
    y = x.T
    a, slope = 2 + np.sin(3 * x + 2 * y), np.cos(3 * x + 2 * y)
    u = np.sin(np.pi * x) * np.sin(2 * np.pi * y)
    u_x = np.pi * np.cos(np.pi * x) * np.sin(2 * np.pi * y)
    u_y = 2 * np.pi * np.sin(np.pi * x) * np.cos(2 * np.pi * y)
    return a, 5 * np.pi**2 * a * u - 3 * slope * u_x - 2 * slope * u_y, u


def test_the_solver_converges_at_second_order():
    errors = []
    for n in (11, 21, 41, 81):
        a, source, u = manufactured(n)
        errors.append(np.abs(solve_darcy(a, source) - u).max())
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert np.all(np.abs(orders - 2) < 0.05)
    assert errors[-1] < 6e-4


def test_what_the_source_puts_in_leaves_through_the_boundary_of_a_layered_medium():
    a = np.where(np.arange(85)[:, None] < 42, 3.0, 12.0) * np.ones((85, 85))
    u, h = solve_darcy(a), 1 / 84
    # The jump lies inside, so a link to the boundary has the coefficient of its two ends.
    sides = [np.s_[1, 1:-1], np.s_[-2, 1:-1], np.s_[1:-1, 1], np.s_[1:-1, -2]]
    outflow = sum((a[side] * u[side]).sum() for side in sides)
    assert outflow == pytest.approx(83**2 * h**2, rel=1e-10)


def test_the_coefficient_takes_its_two_values_about_equally_often(fields):
    assert set(np.unique(fields)) == {3.0, 12.0}
    high = (fields == 12).mean(axis=(1, 2))
    assert abs(high.mean() - 0.5) < 0.02
    assert 0.02 < high.std() < 0.15


def test_the_coefficient_has_the_correlation_of_the_gaussian_field(fields):
    """For a Gaussian field thresholded at 0, P(equal) = 1/2 + arcsin(rho) / pi."""
    k = np.arange(421)
    variance = 1 / (np.pi**2 * (k[:, None] ** 2 + k**2) + 9) ** 2
    variance[0, 0] = 0
    variance *= np.where(k > 0, 2, 1)[:, None] * np.where(k > 0, 2, 1)

    def covariance(p, q):
        (a, b), (c, d) = p, q
        cos = [np.cos(np.pi * k * x) for x in (a, b, c, d)]
        return (cos[0] * cos[2]) @ variance @ (cos[1] * cos[3])

    for i, j in [(42, 50), (42, 63), (0, 20)]:
        p, q = (i / 84, 0.5), (j / 84, 0.5)
        rho = covariance(p, q) / np.sqrt(covariance(p, p) * covariance(q, q))
        equal = (fields[:, i, 42] == fields[:, j, 42]).mean()
        assert abs(equal - (0.5 + np.arcsin(rho) / np.pi)) < 0.08


def test_the_files_have_the_published_layout(tmp_path):
    path = generate("darcy", n_train=3, n_test=2, root=tmp_path, progress=False)
    train = loadmat(path / "piececonst_r85_N3_smooth1.mat")
    test = loadmat(path / "piececonst_r85_N2_smooth2.mat")
    assert train["__version__"] == "1.0"  # MATLAB v5
    for name in ("coeff", "sol"):
        assert train[name].shape == (3, 85, 85) and test[name].shape == (2, 85, 85)
    cases = np.concatenate([train["coeff"], test["coeff"]])
    assert len(np.unique(cases.reshape(5, -1), axis=0)) == 5
    assert np.array_equal(solve_darcy(test["coeff"][1]), test["sol"][1])


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path):
    def files(folder, seed, workers):
        path = generate(
            "darcy",
            n_train=2,
            n_test=1,
            seed=seed,
            root=tmp_path / folder,
            workers=workers,
            progress=False,
        )
        return {file.name: file.read_bytes() for file in path.glob("*.mat")}

    first = files("a", 0, 1)
    assert first == files("b", 0, 2)
    other = files("a", 1, 1)
    assert all(first[name] != other[name] for name in first)
