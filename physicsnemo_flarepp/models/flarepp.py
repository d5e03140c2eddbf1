"""FLARE++, the model of the paper."""

from .backbone import MixerBackbone


class FlarePP(MixerBackbone):
    r"""FLARE++: a low-rank attention surrogate whose routing queries are made from the input.

    In-projection, ``n_layers`` residual blocks ``x + mixer(norm x)``, ``x + ffn(norm x)``,
    out-projection. The mixer gathers N tokens into M routing queries and M latents per head and
    returns the latents to the tokens; everything else acts on each token alone. Cost is
    :math:`O(N (5 C^2 + 3 M C))` in time and :math:`O(N C)` in memory per block, for any number of
    tokens, which may change from call to call.

    A config of ``physicsnemo.models.flare.FLARE`` runs after changing ``_target_`` alone. The
    defaults are the paper's but for ``init``.

    First derivatives come from fused kernels, which have no second ones: Hessians, forward mode,
    ``torch.func`` and losses on derivatives of the prediction need
    :func:`~physicsnemo_flarepp.ops.plain_operators` around the call.

    Parameters
    ----------
    functional_dim, out_dim : int
        Channels F of ``fx``, and of the output.
    embedding_dim : int, optional
        Channels E of ``embedding``, such as coordinates. None (default) for a model of ``fx``
        alone, or with ``unified_pos``.
    n_layers, n_hidden, n_head : int, optional
        Blocks B, hidden width C, and heads H, which divide it. Defaults 8, 128 and 8.
    dropout : float, optional, default=0.0
        Dropout on the two branches of each block.
    act : str, optional, default="gelu"
        Activation, by PhysicsNeMo's names; "gelu" is the tanh approximation of "gelu_exact".
    mlp_ratio : float, optional, default=2.0
        Hidden width of the feed-forward over ``n_hidden``.
    slice_num : int, optional, default=64
        Routes M per head. Cost per token and the rank of what a head does grow with it.
    unified_pos, ref : bool and int, optional
        Use the distances to a grid of ``ref`` points per axis (default 8) as the embedding; needs
        ``structured_shape``. Default False.
    structured_shape : sequence of int, optional
        Shape of the grid, 2-D or 3-D, if the tokens form one.
    time_input : bool, optional, default=False
        Accept ``time`` and add its embedding to every token.
    norm : str, optional, default="layer"
        "layer", or "rms" for mixed precision.
    io_layers : int, optional, default=2
        Residual layers in each of the two projections.
    seed_norm : bool, optional, default=True
        Normalise seeds and synthesis keys per head, as in the authors' runs.
    residual_projections : bool, optional, default=True
        Start every token projection at the identity.
    shared_projections : bool, optional, default=False
        Tie the synthesis keys and values to the routing ones; removes two projections per block.
    anchored_queries : bool, optional, default=False
        Add learned fixed queries to the synthesised ones (the authors' later variant).
    checkpoint_blocks, activation_checkpointing, checkpointing_ratio : bool or float, optional
        Recompute all blocks in the backward pass, or this share of them, to save memory: our name
        and PhysicsNeMo's. Default False.
    plain_projections : bool, optional, default=False
        Project inputs and outputs as PhysicsNeMo's FLARE does: Linear(in, 2C), act, Linear(2C, C),
        and norm, Linear(C, out). There are no ``io_layers`` then.
    init : str, optional, default="balanced"
        How the first weights are drawn. "balanced" keeps the scale of unit inputs through every
        layer and lets all branches together add less to the stream than it has, so that training
        starts at once at any size. "paper" draws every weight from N(0, 0.02), as published.
    projection_layers, synthesis_layers : int, optional, default=0
        Residual layers before the linear map to keys and values (FLARE's first paper has four),
        and in the maps of the query synthesis.
    ffn_layers : int, optional, default=0
        Residual layers of a feed-forward of width ``n_hidden`` (four in FLARE's first paper); 0
        builds the one that ``mlp_ratio`` describes.
    use_te, plus, orthogonal_slices, noise_at_evaluation, unit_scale : bool, optional
        Only False: known so that PhysicsNeMo's configs apply, and as options of other mixers.
    mixer : str, optional, default="flarepp"
        Only "flarepp": :class:`~physicsnemo_flarepp.models.MixerBackbone` has others.

    Forward
    -------
    fx : torch.Tensor
        What is known at the tokens, shape :math:`(B, N, F)` or :math:`(B, *\mathrm{grid}, F)`; or
        :math:`(B, 1, F)`, one row for all tokens, such as an inflow.
    embedding : torch.Tensor, optional
        Where the tokens are, shape :math:`(B, N, E)` or :math:`(B, *\mathrm{grid}, E)`. Not used
        with ``unified_pos``, where one that does not fit the grid raises.
    time : torch.Tensor, optional
        Shape :math:`(B,)`, required with ``time_input``.
    token_mask : torch.Tensor, optional
        Boolean :math:`(B, N)`, True for real tokens, for batches of clouds of different lengths.
        Masked tokens may hold anything; they influence nothing and give 0.
    token_weights : torch.Tensor, optional
        Floating :math:`(B, N)`, at least 0: the length, area or volume a token stands for. With
        them the prediction does not depend on how the mesh is refined. Only ratios within a sample
        matter; 0 is a masked token. Negative, NaN or infinite weights
        and a sample of zeros raise on the host; on CUDA, where reading them would wait for the
        device, they fail an assertion there. Compiled models check nothing: all but zeros gives
        NaN.

    Outputs
    -------
    torch.Tensor
        The fields, shape :math:`(B, N, \mathrm{out\_dim})`, or on the grid if ``fx`` came on the
        grid, or one row of it beside an ``embedding`` on the grid.

    Examples
    --------
    >>> import torch
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=3, embedding_dim=6, out_dim=4, n_layers=2, n_hidden=64)
    >>> inflow, surface = torch.rand(1, 1, 3), torch.rand(1, 500, 6)
    >>> model(inflow, surface).shape
    torch.Size([1, 500, 4])
    """

    mixers = ("flarepp",)
