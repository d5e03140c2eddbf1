"""Train several models on one set at equal settings and tabulate error, size and step time.

flarepp compare experiment=quick/darcy 'compare.models=[flare,flarepp]'
"""

import sys

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ..training.comparison import ComparedRun, ComparisonStopped, compare


def equal_settings(cfg: DictConfig) -> list[ComparedRun]:
    """Compose the config of every model and seed from the same overrides.

    Complete architectures keep the recipes of their own, as far as the overrides leave them.
    """
    settings = HydraConfig.get()
    own = ("compare.", "experiment=", "model=", "seed=", "run_dir=")
    shared = [text for text in settings.overrides.task if not text.startswith(own)]
    experiment = f"experiment={settings.runtime.choices.experiment}"
    trials = []
    for model in cfg.compare.models:
        for seed in cfg.compare.seeds:
            chosen = [experiment, f"model={model}", f"seed={seed}"]
            config = compose("train", [*shared, *chosen])
            config.run_dir = f"{cfg.compare.directory}/{model}-seed{seed}"
            OmegaConf.resolve(config)  # while Hydra's own values can be had
            trials.append(ComparedRun(model, seed, config))
    return trials


def run(cfg: DictConfig) -> None:
    """Train what is not trained yet, then print the table; exit with 128 + signal if stopped."""
    try:
        print(compare(equal_settings(cfg), cfg.compare.directory, cfg.compare.jobs))
    except ComparisonStopped as stopped:
        print(f"flarepp compare: {stopped.message}", file=sys.stderr)
        sys.exit(stopped.exit_code)
