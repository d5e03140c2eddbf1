"""Classify sequences of tokens with the blocks and mixers of the matched backbone."""

from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from physicsnemo.core import Module
from torch import Tensor, nn

from ..mixers import MIXERS, check_init, draw_weights, make_norm
from ..models.backbone import mixer_options
from ..models.layers import linear_chain, make_block, stack_blocks
from ..models.token_model import MetaData, check_integers, check_sizes
from ..ops import sum_over_group
from ..ops.collectives import group_rank, group_size
from ..parallel.ranks import split_bounds

POSITIONS = ("learned", "rotary")
POOLINGS = ("mean", "cls")


class SequenceClassifier(Module):
    r"""Class of a sequence of token ids, or of a pair of sequences.

    Embedding, blocks of the matched backbone, norm, pooling, dropout, norm, head: the model of the
    paper's runs on Long Range Arena. Only the mixer sees more than one token.

    Parameters
    ----------
    vocabulary : int
        Number of token ids, padding included.
    classes : int
        Number of classes; two classes have one logit, that of class 1.
    length : int
        Most tokens of a sequence.
    documents : int, optional, default=1
        1, or 2: the class of a pair, from the vectors of both side by side.
    mixer, n_layers, n_hidden, n_head, slice_num, mlp_ratio, act, norm, init
        As in :class:`~physicsnemo_flarepp.models.MixerBackbone`, like the options of mixers.
    positions : str, optional, default="learned"
        "learned": a vector per position, added before every block. "rotary": keys (and queries of
        attention) are rotated; such a mixer cannot be sharded.
    pooling : str, optional, default="mean"
        "mean" over the tokens, or "cls": a token in front of the sequence, whose vector is read.
    head_layers : int, optional, default=1
        1: Linear. 2: Linear, act, Linear.
    query_key_norm, unit_scale : bool, optional, default=False
        Of the mixer flare: norms on queries and keys, and the scale 1.
    embedding_dropout, attention_dropout, projection_dropout, head_dropout : float, optional
        On embedded tokens, on softmax weights, on what each branch adds, on the pooled vector.

    Forward
    -------
    tokens : torch.Tensor
        Ids of shape :math:`(B, N)`, or :math:`(B, 2, N)` with two documents, N at most `length`.
        With context parallelism each rank gets all of them and works on its part.
    token_mask : torch.Tensor, optional
        Boolean, of the same shape, True for real tokens: padding then influences nothing. Without
        it padding is a token like any other, as in the authors' runs.

    Outputs
    -------
    torch.Tensor
        Logits of shape :math:`(B, \text{classes})`, or :math:`(B, 1)` for two classes.

    Examples
    --------
    >>> model = SequenceClassifier(16, 10, 32, n_layers=1, n_hidden=16, n_head=2, slice_num=4)
    >>> model(torch.randint(16, (2, 32))).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        length: int,
        documents: int = 1,
        mixer: str = "flarepp",
        n_layers: int = 4,
        n_hidden: int = 128,
        n_head: int = 8,
        slice_num: int | None = 64,
        mlp_ratio: float = 4.0,
        act: str = "gelu",
        norm: str = "layer",
        init: str = "paper",
        positions: str = "learned",
        pooling: str = "mean",
        head_layers: int = 1,
        embedding_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        projection_dropout: float = 0.0,
        head_dropout: float = 0.0,
        seed_norm: bool = True,
        residual_projections: bool = True,
        shared_projections: bool = False,
        anchored_queries: bool = False,
        query_key_norm: bool = False,
        unit_scale: bool = False,
        orthogonal_slices: bool = False,
    ) -> None:
        super().__init__(meta=MetaData())
        for name, value, choices in (
            ("positions", positions, POSITIONS),
            ("pooling", pooling, POOLINGS),
            ("documents", documents, (1, 2)),
            ("head_layers", head_layers, (1, 2)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")
        check_integers(2, {"vocabulary": vocabulary, "classes": classes})
        check_integers(1, {"length": length})
        options = {
            "slice_num": slice_num,
            "seed_norm": seed_norm,
            "residual_projections": residual_projections,
            "shared_projections": shared_projections,
            "anchored_queries": anchored_queries,
            "query_key_norm": query_key_norm,
            "unit_scale": unit_scale,
            "orthogonal_slices": orthogonal_slices,
            "attention_dropout": attention_dropout,
        }
        if positions == "rotary" and mixer not in ("attention", "flare", "flarepp"):
            raise ValueError(f"positions='rotary' rotates keys; mixer={mixer!r} has none")
        known = mixer_options(SequenceClassifier, mixer, options, norm=norm, act=act)
        known |= {"rotary": True} if positions == "rotary" else {}
        latents = {"slice_num": slice_num} if "slice_num" in known else {}
        for dropout in (embedding_dropout, attention_dropout, projection_dropout, head_dropout):
            check_sizes(n_layers, n_hidden, n_head, latents, mlp_ratio, dropout=dropout)
        check_init(init)
        self.vocabulary, self.length, self.documents = vocabulary, length, documents
        self.pooling, self.init = pooling, init
        leading = int(pooling == "cls")  # its id follows the others
        self.embedding = nn.Embedding(vocabulary + leading, n_hidden)
        table = torch.empty(length + leading, n_hidden)
        self.positions = nn.Parameter(table) if positions == "learned" else None
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        make_mixer = partial(MIXERS[mixer], n_hidden, n_head, **known)
        self.blocks = stack_blocks(
            make_block(make_mixer(), mlp_ratio, act, norm, projection_dropout)
            for _ in range(n_layers)
        )
        self.final_norm = make_norm(norm, n_hidden)
        self.head_dropout = nn.Dropout(head_dropout)
        width = documents * n_hidden
        self.head_norm = make_norm(norm, width)
        out = 1 if classes == 2 else classes
        self.head = linear_chain((width, *[n_hidden] * (head_layers - 1), out), act)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the first weights: tables from N(0, 0.02), the rest as ``init`` says."""
        draw_weights(self, self.init)
        for block in self.blocks:
            block.mixer.reset_parameters(self.init)
        for table in (self.embedding.weight, self.positions):
            if table is not None:
                nn.init.normal_(table, std=0.02)

    @property
    def context_group(self) -> str | None:
        """Name of the group over which the tokens are spread; None when they are all here."""
        return self.blocks[0].mixer.context_group

    def forward(
        self,
        tokens: Int[Tensor, "B *documents N"],
        token_mask: Bool[Tensor, "B *documents N"] | None = None,
    ) -> Float[Tensor, "B classes"]:
        """Return the logits of the classes."""
        if not torch.compiler.is_compiling():
            self.check_inputs(tokens, token_mask)
        if self.documents == 2:
            tokens = tokens.flatten(0, 1)
            token_mask = None if token_mask is None else token_mask.flatten(0, 1)
        if self.pooling == "cls":
            tokens = nn.functional.pad(tokens, (1, 0), value=self.vocabulary)
            if token_mask is not None:
                token_mask = nn.functional.pad(token_mask, (1, 0), value=True)
        mine = slice(None)
        if self.context_group is not None:
            ranks, rank = group_size(self.context_group), group_rank(self.context_group)
            mine = slice(*split_bounds(tokens.shape[1], ranks, rank))
        positions = 0 if self.positions is None else self.positions[: tokens.shape[1]][mine]
        mask = None if token_mask is None else token_mask[:, mine]
        x = self.embedding_dropout(self.embedding(tokens[:, mine]))
        for block in self.blocks:
            x = block(x if self.positions is None else x + positions, mask)
        pooled = self.pool(self.final_norm(x), mask, mine)
        if self.documents == 2:
            pooled = pooled.unflatten(0, (-1, 2)).flatten(1)
        return self.head(self.head_norm(self.head_dropout(pooled)))

    def pool(
        self, x: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None, mine: slice
    ) -> Float[Tensor, "B C"]:
        """Return the mean over the tokens of all ranks, or the vector of the first token."""
        if self.pooling == "cls":
            here = x[:, :1] if not mine.start else x[:, :0]
            return sum_over_group(here.sum(1), self.context_group)
        counts = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        total = torch.cat((x * counts[..., None], counts[..., None]), -1).sum(1)
        total = sum_over_group(total, self.context_group)
        return total[:, :-1] / total[:, -1:]

    def check_inputs(self, tokens: Tensor, token_mask: Tensor | None) -> None:
        """Raise on shapes, types and lengths that the model does not take."""
        if (tokens.ndim, *tokens.shape[1:-1]) != ((3, 2) if self.documents == 2 else (2,)):
            shape = "(B, 2, N)" if self.documents == 2 else "(B, N)"
            raise ValueError(f"tokens must have shape {shape}, got {tuple(tokens.shape)}")
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise TypeError(f"tokens must be integer ids, got {tokens.dtype}")
        if not 1 <= tokens.shape[-1] <= self.length:
            raise ValueError(
                f"a sequence has {tokens.shape[-1]} tokens, the model takes 1 to {self.length}"
            )
        sound = token_mask is None or token_mask.dtype == torch.bool
        if not sound or token_mask is not None and token_mask.shape != tokens.shape:
            found = f"{token_mask.dtype} {tuple(token_mask.shape)}"
            raise ValueError(f"token_mask must be boolean {tuple(tokens.shape)}, got {found}")
