"""Write the output of the stored checkpoint, which guards against silent change.

Run ``python -m tests.models.make_reference`` only when a change of the results is intended, and
say so in the commit and in CHANGELOG.md. The checkpoint itself stays: old files must load.
"""

from pathlib import Path

import torch

from physicsnemo_flarepp import FlarePP

DATA = Path(__file__).parent / "data"
STORED = DATA / "flarepp_small.mdlus"
INPUTS = torch.linspace(-1, 1, 2 * 13 * 5, dtype=torch.float64).reshape(2, 13, 5)


def build() -> FlarePP:
    torch.manual_seed(0)
    return FlarePP(2, 3, embedding_dim=3, n_layers=2, n_hidden=16, n_head=2, slice_num=4).double()


def predict(model: FlarePP) -> torch.Tensor:
    return model.double()(INPUTS[..., 3:].sin(), INPUTS[..., :3])


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    if not STORED.is_file():
        build().save(str(STORED))
    model = FlarePP.from_checkpoint(str(STORED))
    torch.save(predict(model).detach(), DATA / "flarepp_small_output.pt")
