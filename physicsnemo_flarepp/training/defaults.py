"""What a config from Python leaves open, filled in as on the command line."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from .config import folder_name, one_budget

_CONFIGS = "physicsnemo_flarepp.conf"


def with_defaults(cfg: Mapping[str, Any] | DictConfig, *, in_memory: bool) -> DictConfig:
    """Return a config with a model, data, a length and a run directory.

    Without data it is completed as ``flarepp train`` completes it, with own data as ``flarepp train
    data=own``; a built-in set or a published benchmark keeps the defaults of the code.
    """
    given = OmegaConf.create(OmegaConf.to_container(OmegaConf.create(cfg)))
    given.training = one_budget(given.get("training") or {}) | dict(given.get("training") or {})
    model, data = given.get("model"), given.get("data")
    named = isinstance(model, str) or model is None
    name = model if isinstance(model, str) else "flarepp"
    own = in_memory or data is not None and _is_own(data)
    if not own and data is not None:
        if named:
            given.model = _compose(["experiment=none", f"model={name}"]).model
        return given
    base = _compose([f"model={name}", *(["data=own", "experiment=own"] if own else [])])
    if in_memory:
        base.data.root, base.data.reader = None, {}
    root = OmegaConf.select(given, "data.root")
    label = "cars" if not own else "memory" if root is None else f"own-{folder_name(root)}"
    base.label = given.get("label") or label
    base.run_dir = f"outputs/{base.label}-{name}-seed{given.get('seed', 0)}"
    OmegaConf.set_struct(base, False)
    if named:
        given.pop("model", None)
    elif "_target_" in model:
        base.model = {}
    return OmegaConf.merge(base, given)


def _is_own(data: DictConfig) -> bool:
    """Return whether a data config is a folder and nothing says what is in it."""
    reader = data.get("reader") or {}
    return data.get("root") is not None and not (data.get("benchmark") or "_target_" in reader)


def _compose(overrides: list[str]) -> DictConfig:
    from hydra import compose, initialize_config_module

    with initialize_config_module(_CONFIGS, version_base="1.3"):
        return compose("train", [*overrides, "label=none", "run_dir=none"])
