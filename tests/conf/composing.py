"""The configs as the tests of this folder look at them."""

from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from physicsnemo_flarepp.commands.configs import REGISTERED, config_directory

CONF = config_directory()
MIXERS = ("flarepp", "flare", "attention", "transolver", "transolver_plus", "transolver3")
# Mixers with options, by names of their own.
NAMED = ("flare_first", "flarepp_deep", "flarepp_gated")
COMPLETE = ("perceiver_io", "set_transformer", "gnot", "lno")


def options(group):
    """What can be chosen of a group; names that begin with _ are parts of others."""
    paths = sorted((CONF / group).rglob("*.yaml"))
    names = [path.relative_to(CONF / group).with_suffix("").as_posix() for path in paths]
    names = [name for name in names if not Path(name).name.startswith("_")]
    return sorted([*names, *REGISTERED.get(group, ())])


@cache
def composed(*overrides, entry=None):
    """The config as a script sees it, with the names that only Hydra knows filled in.

    Without an entry it is that of train.py with the experiment given, or none.
    """
    if entry is None and not any(text.startswith("experiment=") for text in overrides):
        overrides = ("experiment=none", *overrides)
    with initialize_config_module("physicsnemo_flarepp.conf", version_base="1.3"):
        whole = compose(entry or "train", list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(whole)
    try:
        cfg = OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])
        OmegaConf.resolve(cfg)
    finally:
        HydraConfig.instance().cfg = None
    OmegaConf.set_readonly(cfg, True)  # tests share it
    return cfg


def leaves(tree, path=()):
    """All (path, value) of nested mappings."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for name, part in tree.items() for k, v in leaves(part, (*path, name)).items()}


def plain(cfg):
    return OmegaConf.to_container(cfg, resolve=True)
