"""Configs of the commands, for Hydra: ``pkg://physicsnemo_flarepp.conf`` as a search path.

The files hold what differs from the defaults in the code. What follows from the code or from the
table of baselines has no file; it is registered here, once Hydra opens this package.
"""

from dataclasses import asdict
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from physicsnemo_flarepp.commands.configs import REGISTERED
from physicsnemo_flarepp.datapipes.config import DataConfig
from physicsnemo_flarepp.datapipes.specs import BENCHMARKS
from physicsnemo_flarepp.sequences.config import SequenceConfig
from physicsnemo_flarepp.training.config import RunConfig, TrainingConfig, folder_name

_store = ConfigStore.instance()
# The folder of own data, in the name of a run directory.
OmegaConf.register_new_resolver("folder", folder_name, replace=True)
STUDY = ("gnot", "lno", "perceiver_io", "set_transformer")


def _register_defaults() -> None:
    _store.store("_defaults", DataConfig, group="data")
    _store.store("_sequences", SequenceConfig, group="data")
    _store.store("default", TrainingConfig, group="training")
    _store.store("none", {}, group="experiment", package="_global_")
    # Not as a class: a config that extends a run, as that of a comparison, has keys of its own.
    run = asdict(RunConfig(model=None, data=None, run_dir=""))
    for key in ("model", "data", "training", "run_dir"):
        del run[key]
    _store.store("_defaults", run)


def _register_published() -> None:
    for option in REGISTERED["data"]:
        name = option.removesuffix("_published")
        root = f"data/{BENCHMARKS[name].folder}"
        data = DataConfig(benchmark=name, root=root, normalization="paper")
        _store.store(option, data, group="data")


def _register_baselines() -> None:
    table = OmegaConf.load(Path(__file__).parent / "baselines.yaml")
    study = table.pop("study")
    for model, recipes in table.items():
        for experiment, own in recipes.items():
            if experiment == "recipe":
                shared = study if model in STUDY else {}
                node = OmegaConf.to_container(OmegaConf.merge(shared, own))
                _store.store(model, node, group="recipe", package="_global_")
            else:
                node = OmegaConf.to_container(own)
                group = f"experiment_recipe/{experiment}"
                _store.store(model, node, group=group, package="_global_")


_register_defaults()
_register_published()
_register_baselines()
