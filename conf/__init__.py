"""Configs of the commands, for Hydra: ``pkg://physicsnemo_flarepp.conf`` as a search path.

The files hold what differs from the defaults in the code. Those are registered here, once Hydra
opens this package, as ``_defaults`` of the groups ``data`` and ``training`` and of the whole run.
"""

from dataclasses import asdict

from hydra.core.config_store import ConfigStore

from physicsnemo_flarepp.datapipes.config import DataConfig
from physicsnemo_flarepp.training.config import RunConfig, TrainingConfig

_store = ConfigStore.instance()
_store.store("_defaults", DataConfig, group="data")
_store.store("_defaults", TrainingConfig, group="training")
# Not as a class: a config that extends a run, as that of a comparison, has keys of its own.
_run = asdict(RunConfig(model=None, data=None, run_dir=""))
for _key in ("model", "data", "training", "run_dir"):
    del _run[_key]
_store.store("_defaults", _run)
