"""Write the cases of a data set in random order of rows, memory-mapped, for fast training.

flarepp prepare data=drivaerml_raw
flarepp train experiment=drivaerml_raw data=prepared data.root=data/drivaerml_raw_prepared
"""

import shlex

from omegaconf import DictConfig

from ..datapipes.inspection import as_override
from ..datapipes.preparation import bytes_of, prepare
from ..datapipes.transfer import in_words


def run(cfg: DictConfig) -> None:
    """Prepare the cases of ``cfg.data`` and say where they are and how to train on them."""
    out = prepare(
        cfg.data, cfg.prepare.out, workers=cfg.prepare.workers, seed=cfg.prepare.order_seed
    )
    root = shlex.quote(f"data.root={as_override(str(out))}")
    print(f"{out} is complete ({in_words(bytes_of(out))}): train with data=prepared {root}")
