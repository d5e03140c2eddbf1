"""FLARE++ as PhysicsNeMo's main branch has it, stated again from its description.

No release up to 2.2 has it. Tests of it run on this one, and on the real one where it can be
imported. The layer: one projection to synthesis keys and values and routing keys and values,
learned seeds, three attentions of one scale; no mask, no norm on seeds and keys. The model: FLARE
with this layer in its blocks.
"""

import physicsnemo.models.flare
import torch
from physicsnemo.models.flare import FLARE
from torch import nn

from physicsnemo_flarepp.mixers.physicsnemo_layers import KNOWN_MODELS, STAGES, FlarePlusPlusStages


def attend(q, k, v, scale):
    """Attention with its scores written out."""
    return torch.softmax(scale * torch.einsum("bhmd,bhnd->bhmn", q, k), -1) @ v


class RestatedLayer(nn.Module):
    def __init__(self, dim, heads, dim_head, dropout, n_global_queries, attn_scale=None):
        super().__init__()
        self.heads, self.dim_head, self.use_te = heads, dim_head, False
        self.scale = dim_head**-0.5 if attn_scale is None else attn_scale
        self.q_seed = nn.Parameter(torch.randn(1, heads, n_global_queries, dim_head))
        self.in_projection = nn.Linear(dim, 4 * heads * dim_head)
        self.out_linear = nn.Linear(heads * dim_head, dim)
        self.out_dropout = nn.Dropout(dropout)

    def forward(self, x):
        if hasattr(x, "redistribute"):
            raise NotImplementedError("token-sharded inputs")
        parts = self.in_projection(x).unflatten(-1, (4, self.heads, self.dim_head))
        source_key, source_value, key, value = parts.permute(2, 0, 3, 1, 4)
        seeds = self.q_seed.expand(len(x), -1, -1, -1)
        queries = attend(seeds, source_key, source_value, self.scale)
        latents = attend(queries, key, value, self.scale)
        y = attend(key, queries, latents, self.scale)
        return self.out_dropout(self.out_linear(y.transpose(1, 2).flatten(2)))


class RestatedFlarePlusPlus(FLARE):
    def __init__(
        self,
        functional_dim,
        out_dim,
        embedding_dim=None,
        n_layers=4,
        n_hidden=256,
        dropout=0.0,
        n_head=8,
        act="gelu",
        mlp_ratio=4,
        slice_num=32,
        unified_pos=False,
        ref=8,
        structured_shape=None,
        time_input=False,
        attn_scale=None,
    ):
        super().__init__(
            functional_dim,
            out_dim,
            embedding_dim,
            n_layers,
            n_hidden,
            dropout,
            n_head,
            act,
            mlp_ratio,
            slice_num,
            unified_pos,
            ref,
            structured_shape,
            time_input,
        )
        width = n_hidden // n_head
        for block in self.blocks:
            block.Attn = RestatedLayer(n_hidden, n_head, width, dropout, slice_num, attn_scale)
        self.initialize_weights()


STAGES[RestatedLayer] = FlarePlusPlusStages
KNOWN_MODELS.add(f"{__name__}.RestatedFlarePlusPlus")
REAL = getattr(physicsnemo.models.flare, "FLAREPlusPlus", None)
FLARE_PLUS_PLUS = {"restated": RestatedFlarePlusPlus} | ({} if REAL is None else {"real": REAL})
