import itertools

import pytest
import rate_transfer

pytestmark = pytest.mark.slow


def test_both_rates_are_multiples_of_the_defaults(tmp_path):
    cfg = rate_transfer.config(4, 64, 3.0, 1, tmp_path)
    assert (cfg.training.learning_rate, cfg.training.muon_learning_rate) == (3e-3, 3e-2)
    assert (cfg.model.n_layers, cfg.model.n_hidden, cfg.training.optimizer) == (4, 64, "muon")


def test_table_and_figure_have_mean_and_spread_of_the_seeds(tmp_path, capsys):
    sizes = dict.fromkeys(itertools.chain(*rate_transfer.SIZES.values()))
    rows = [
        {"blocks": b, "channels": c, "rate factor": f, "seed": s, "test error": 0.1 + 0.02 * s}
        for (b, c), f, s in itertools.product(sizes, rate_transfer.FACTORS, (0, 1))
    ]
    rate_transfer.tabulate(rows)
    assert "| 8 | 64 | 11.0 ± 1.4 | 11.0 ± 1.4 | 11.0 ± 1.4 |" in capsys.readouterr().out
    rate_transfer.draw(rows, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 10_000
