import pytest
import step_choices

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("data", step_choices.CHOICES)
def test_all_choices_for_a_set_see_as_many_tokens(data, tmp_path):
    seen = set()
    for choice, (batch, tokens, *_) in step_choices.CHOICES[data].items():
        assert choice.startswith(f"{batch} x {tokens}")
        cfg = step_choices.config(data, choice, 0, tmp_path)
        assert (cfg.data.batch_size, cfg.data.n_points) == (batch, tokens)
        seen.add(cfg.training.epochs * cfg.data.n_points)
    assert len(seen) == 1


def test_a_run_tells_its_error_and_what_reading_costs(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(step_choices.CHOICES, "darcy", {"2 x 8": (2, 8, 2, [])})
    compose = step_choices.compose_config
    fewer = ["data.n_train=4", "data.n_test=2"]
    monkeypatch.setattr(
        step_choices, "compose_config", lambda entry, keys: compose(entry, keys + fewer)
    )
    row = step_choices.measure("darcy", "2 x 8", 0, tmp_path)
    assert row["steps"] == 4 and row["test error"] > 0 and 0 <= row["reading"] < 1
    step_choices.tabulate([row, row | {"seed": 1, "test error": row["test error"] + 0.02}])
    assert "± 1.41 |" in capsys.readouterr().out
