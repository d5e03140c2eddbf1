"""The configs that a comparison trains."""

import pickle

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig

from physicsnemo_flarepp.commands import main, training
from physicsnemo_flarepp.training.comparison import ComparisonStopped
from physicsnemo_flarepp.training.config import check_config

pytestmark = pytest.mark.slow


@pytest.fixture
def equal_settings():
    def make(*overrides):
        with initialize_config_module("physicsnemo_flarepp.conf", version_base="1.3"):
            cfg = compose("compare", list(overrides), return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)
            try:
                return training.equal_settings(cfg)
            finally:
                HydraConfig.instance().cfg = None

    return make


def test_trials_differ_in_model_and_seed_only(equal_settings):
    trials = equal_settings(
        "compare.models=[flare,physicsnemo_transolver]",
        "compare.seeds=[3,4]",
        "training.epochs=2",
        "compare.directory=some where",
    )
    assert [(trial.model, trial.seed) for trial in trials] == [
        ("flare", 3),
        ("flare", 4),
        ("physicsnemo_transolver", 3),
        ("physicsnemo_transolver", 4),
    ]
    configs = [pickle.loads(pickle.dumps(check_config(trial.config))) for trial in trials]
    for trial, cfg in zip(trials, configs, strict=True):
        assert cfg.run_dir == f"some where/{trial.model}-seed{trial.seed}"
        assert (cfg.seed, cfg.training.epochs, cfg.model.n_hidden) == (trial.seed, 2, 64)
        assert cfg.data == configs[0].data and cfg.data.builtin == "darcy"
        assert cfg.training == configs[0].training
    assert configs[0].model.mixer == "flare" and "Transolver" in configs[2].model._target_


def test_data_and_experiment_can_be_chosen(equal_settings):
    (trial, *_) = equal_settings("experiment=quick/pipe", "compare.seeds=[0]")
    assert trial.config.data.builtin == "pipe"
    (trial, *_) = equal_settings("experiment=none", "data=airfoil", "compare.seeds=[0]")
    assert (trial.config.data.builtin, trial.config.model.n_hidden) == ("airfoil", 128)


def test_a_signal_is_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def stop(*_):
        raise ComparisonStopped("run was stopped by SIGTERM", 143)

    monkeypatch.setattr(training.comparison, "compare", stop)
    with pytest.raises(SystemExit) as ended:
        main(["compare"])
    assert ended.value.code == 143
    assert capsys.readouterr().err == "flarepp compare: run was stopped by SIGTERM\n"
