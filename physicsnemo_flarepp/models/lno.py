"""Latent Neural Operator: one gather into modes, a transformer on them, one read."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..mixers.base import AttentionInputs, Latents, OneGatherMixer
from ..mixers.layers import ResidualLayer, affine_map, make_activation
from .layers import BareBlock, Embedding, Function, LatentBlock, join_inputs, stack_blocks
from .token_model import TokenModel, check_sizes


def residual_layers(
    in_dim: int, dim: int, n_layers: int, act: str, out_dim: int | None = None
) -> nn.Sequential:
    """Build Linear, act and residual layers; a last Linear makes them the paper's MLP."""
    layers = [nn.Linear(in_dim, dim), make_activation(act)]
    layers += [ResidualLayer(dim, act) for _ in range(n_layers)]
    return nn.Sequential(*layers, *([] if out_dim is None else [nn.Linear(dim, out_dim)]))


class TrunkAndBranch(nn.Module):
    """Project each token twice: to features whose products with the modes are its scores, and to
    the values that are gathered. Both see all channels, and travel side by side.
    """

    def __init__(self, in_dim: int, dim: int, n_layers: int, act: str) -> None:
        super().__init__()
        self.trunk = residual_layers(in_dim, dim, n_layers, act, dim)
        self.branch = residual_layers(in_dim, dim, n_layers, act, dim)
        self.score = residual_layers(dim, dim, n_layers, act)

    def forward(self, fx: Function, embedding: Embedding | None = None) -> Float[Tensor, "B N W"]:
        """Return score features and values, W = 2 C channels."""
        x = join_inputs(fx, embedding)
        return torch.cat((self.score(self.trunk(x)), self.branch(x)), -1)


class ModesMixer(OneGatherMixer):
    r"""Tokens to M modes by a softmax over tokens, blocks on the modes, back by one over modes.

    Both softmaxes are of the same scores :math:`s = h W^\top + b`, with the features h of a token.
    The bias adds the same number to all scores of a mode, so it cancels in the gather.
    """

    scale = 1.0

    def __init__(
        self, dim: int, heads: int, slice_num: int, n_layers: int, mlp_ratio: float, act: str
    ) -> None:
        super().__init__(2 * dim, heads=1)
        self.modes = nn.Linear(dim, slice_num)
        self.blocks = nn.Sequential(
            *(LatentBlock(dim, heads, mlp_ratio, act, bias=True) for _ in range(n_layers))
        )

    def attention_inputs(self, x: Float[Tensor, "B N W"], latents: Latents) -> AttentionInputs:
        """Return the modes' weights as queries, features as keys and the values, in one head."""
        features, values = x[:, None].chunk(2, -1)
        weight, _ = affine_map(self.modes, features.shape[-1])
        return self.queries_like(weight[None, None], features), features, values

    def transform(self, z: Float[Tensor, "B 1 M C"]) -> Float[Tensor, "B 1 M C"]:
        """Run the blocks on the modes."""
        return self.blocks(z[:, 0].to(self.dtype))[:, None].to(z.dtype)

    def scatter(self, x: Float[Tensor, "B N W"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Return the modes to each token, weighted by its softmax over them."""
        weights = F.softmax(self.modes(x.chunk(2, -1)[0]), -1)
        return weights @ latents[0][:, 0].to(weights.dtype)


class LNO(TokenModel):
    """Latent Neural Operator as configured in the FLARE study (Wang and Wang, 2024).

    Trunk and branch MLPs on the tokens, one gather into modes, ``n_layers`` transformer blocks on
    the modes, one read, an MLP. The gather is a softmax over tokens, so masks, token shards,
    streaming and latent states work. Layers keep torch's own initial weights.

    ``forward`` takes and returns what that of :class:`~physicsnemo_flarepp.models.FlarePP` does,
    but for ``time``; arguments that are not listed mean what they mean there.

    Parameters
    ----------
    n_layers, slice_num : int, optional
        Blocks on the modes, and modes M. Defaults 4 and 256.
    act : str, optional, default="gelu_exact"
        Activation.
    io_layers : int, optional, default=2
        Residual layers of each MLP.

    Examples
    --------
    >>> model = LNO(3, 1, n_layers=1, n_hidden=32, n_head=4, slice_num=16)
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 1])
    """

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None = None,
        n_layers: int = 4,
        n_hidden: int = 128,
        n_head: int = 8,
        slice_num: int = 256,
        mlp_ratio: float = 2.0,
        act: str = "gelu_exact",
        io_layers: int = 2,
        structured_shape: Sequence[int] | None = None,
        unified_pos: bool = False,
        ref: int = 8,
        checkpoint_blocks: bool = False,
    ) -> None:
        check_sizes(n_layers, n_hidden, n_head, {"slice_num": slice_num}, mlp_ratio, io_layers)
        inputs = (functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref)
        super().__init__(*inputs, checkpoint_blocks=checkpoint_blocks)
        self.in_projection = TrunkAndBranch(self.token_width, n_hidden, io_layers, act)
        mixer = ModesMixer(n_hidden, n_head, slice_num, n_layers, mlp_ratio, act)
        self.blocks = stack_blocks([BareBlock(mixer)])
        self.out_projection = residual_layers(n_hidden, n_hidden, io_layers, act, out_dim)

    def reset_parameters(self) -> None:
        """Draw every layer as torch does."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm):
                part.reset_parameters()
