"""FLARE++, the model of the paper."""

from collections.abc import Sequence

from .backbone import MixerBackbone


class FlarePP(MixerBackbone):
    r"""FLARE++: a low-rank attention surrogate whose routing queries are made from the input.

    Cost is :math:`O(N (5 C^2 + 3 M C))` in time and :math:`O(N C)` in memory per block, for any
    number of tokens N, which may change from call to call. A config of
    ``physicsnemo.models.flare.FLARE`` runs after changing ``_target_`` alone; there ``slice_num``
    is the paper's M, ``n_layers`` B, ``n_hidden`` C and ``n_head`` H.

    Parameters
    ----------
    functional_dim, out_dim, embedding_dim, n_layers, n_hidden, dropout, n_head, act, mlp_ratio
        As in :class:`~physicsnemo_flarepp.models.MixerBackbone`. The defaults are the paper's.
    slice_num, unified_pos, ref, structured_shape, time_input, use_te, norm, io_layers
        As in :class:`~physicsnemo_flarepp.models.MixerBackbone`.
    seed_norm : bool, optional, default=True
        Normalise seeds and synthesis keys per head, as in the authors' runs.
    residual_projections : bool, optional, default=True
        Start every token projection at the identity.
    shared_projections : bool, optional, default=False
        Tie the synthesis keys and values to the routing ones; removes two projections per block.
    anchored_queries : bool, optional, default=False
        Add learned fixed queries to the synthesised ones (the authors' later variant).
    checkpoint_blocks, activation_checkpointing : bool, optional, default=False
        Recompute each block in the backward pass.

    Forward
    -------
    Same as :class:`~physicsnemo_flarepp.models.MixerBackbone`.

    Outputs
    -------
    Same as :class:`~physicsnemo_flarepp.models.MixerBackbone`.

    Examples
    --------
    >>> import torch
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=3, embedding_dim=6, out_dim=4, n_layers=2, n_hidden=64)
    >>> inflow, surface = torch.rand(1, 1, 3), torch.rand(1, 500, 6)
    >>> model(inflow, surface).shape
    torch.Size([1, 500, 4])
    """

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None = None,
        n_layers: int = 8,
        n_hidden: int = 128,
        dropout: float = 0.0,
        n_head: int = 8,
        act: str = "gelu",
        mlp_ratio: float = 2.0,
        slice_num: int = 64,
        unified_pos: bool = False,
        ref: int = 8,
        structured_shape: Sequence[int] | None = None,
        time_input: bool = False,
        use_te: bool = False,
        norm: str = "layer",
        io_layers: int = 2,
        seed_norm: bool = True,
        residual_projections: bool = True,
        shared_projections: bool = False,
        anchored_queries: bool = False,
        checkpoint_blocks: bool = False,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__(
            functional_dim=functional_dim,
            out_dim=out_dim,
            embedding_dim=embedding_dim,
            n_layers=n_layers,
            n_hidden=n_hidden,
            dropout=dropout,
            n_head=n_head,
            act=act,
            mlp_ratio=mlp_ratio,
            slice_num=slice_num,
            unified_pos=unified_pos,
            ref=ref,
            structured_shape=structured_shape,
            time_input=time_input,
            use_te=use_te,
            norm=norm,
            io_layers=io_layers,
            seed_norm=seed_norm,
            residual_projections=residual_projections,
            shared_projections=shared_projections,
            anchored_queries=anchored_queries,
            checkpoint_blocks=checkpoint_blocks,
            activation_checkpointing=activation_checkpointing,
            mixer="flarepp",
        )
