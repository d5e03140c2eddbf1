import first_steps
import learning_curves
import pytest
import torch

pytestmark = pytest.mark.slow


def rows_of(defaults, errors, seed=0):
    identity = {"set": "cars", "model": "FLARE", "defaults": defaults, "seed": seed}
    return [
        identity | {"step": 10 * n, "CPU seconds": 1.0 * n, "test error": error}
        for n, error in enumerate(errors, start=1)
    ]


def test_the_table_tells_errors_with_spread_and_when_new_runs_reach_the_old(capsys, tmp_path):
    rows = rows_of("old", [0.5, 0.4]) + rows_of("old", [0.5, 0.4], 1)
    rows += rows_of("new", [0.6, 0.1]) + rows_of("new", [0.6, 0.3], 1)
    learning_curves.tabulate(rows)
    header, _, line = capsys.readouterr().out.splitlines()
    assert header == (
        "| set | model | old, % | weights, % | inputs, % | new, % | time to the old error |"
    )
    # The mean over seeds falls from 0.6 to 0.2 in the second second, and is 0.4 half way.
    assert line == "| cars | FLARE | 40.00 ± 0.00 | - | - | 20.00 ± 14.14 | 0.75 |"
    learning_curves.draw(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_errors_that_are_never_reached_have_no_time():
    assert learning_curves.seconds_to_reach({1: (1.0, 0.5, 0.0)}, 0.4) is None
    assert learning_curves.seconds_to_reach({1: (1.0, 0.3, 0.0)}, 0.4) == 1.0


@pytest.mark.parametrize("data", learning_curves.SETS)
def test_stages_differ_in_one_value_each_and_have_as_many_steps(data, tmp_path):
    configs = {
        name: learning_curves.config(data, "FLARE++", name, 1, tmp_path)
        for name in learning_curves.DEFAULTS
    }
    values = [
        (cfg.model.init, cfg.data.normalization, cfg.training.optimizer) for cfg in configs.values()
    ]
    own = {"coordinates": "none"} if data == "airfoil" else "fit"
    assert values == [
        ("paper", "paper", "adamw"),
        ("balanced", "paper", "adamw"),
        ("balanced", own, "adamw"),
        ("balanced", own, "muon"),
    ]
    for cfg in configs.values():
        cases = 40 if data == "cars" else cfg.data.n_train
        assert cfg.training.epochs * cases == 300 * cfg.data.batch_size
        assert cfg.seed == 1


def test_rank_and_own_share_tell_alike_from_different():
    alike, different = torch.ones(1, 2, 8, 4), torch.eye(8)[None, None]
    assert first_steps.effective_rank(alike) == 1 and first_steps.effective_rank(different) == 8
    tokens = torch.tensor([[[1.0], [1.0]], [[1.0], [-1.0]]])
    assert first_steps.own_share(tokens[:1]) == 0 and first_steps.own_share(tokens[1:]) == 1
