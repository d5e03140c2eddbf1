"""Train several models on one set and tabulate error, size, step time and optimisation.

python examples/compare.py experiment=quick/darcy 'compare.models=[flare,flarepp]'
"""

import hydra
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from physicsnemo_flarepp.training.comparison import Trial, compare


def equal_settings(cfg: DictConfig) -> list[Trial]:
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
            trials.append(Trial(model, seed, config))
    return trials


@hydra.main(version_base="1.3", config_path="../conf", config_name="compare")
def main(cfg: DictConfig) -> None:
    """Train what is not trained yet, then print the table."""
    print(compare(equal_settings(cfg), cfg.compare.directory, cfg.compare.jobs))


if __name__ == "__main__":
    main()
