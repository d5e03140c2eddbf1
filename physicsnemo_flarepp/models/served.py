"""PhysicsNeMo's own FLARE, FLAREPlusPlus and Transolver as backbones, on their own weights."""

from typing import Any

from torch import nn

from ..mixers.served import give_stages, is_served
from .backbone import MixerBackbone
from .layers import Block, JoinedInputs, stack_blocks


def serve(model: nn.Module) -> MixerBackbone:
    """Return a model of PhysicsNeMo's as a backbone that shares its weights.

    It computes what the model does, and takes in addition what a
    :class:`~physicsnemo_flarepp.models.MixerBackbone` takes: ``token_mask``, ``token_weights``, one
    row of ``fx`` for all tokens, and ShardTensors. ``parallel.enable_context_parallel`` and the
    functions of ``inference`` call it by themselves. Nothing is copied: training one trains the
    other. The attention layers of the model get the stages of a mixer, which changes neither what
    it computes nor its checkpoints.

    Parameters
    ----------
    model : torch.nn.Module
        ``physicsnemo.models``'s FLARE, FLAREPlusPlus (which no release up to 2.2 has) or
        Transolver, without Transformer Engine; Transolver without ``structured_shape``, for which
        it runs convolutions over the grid.

    Returns
    -------
    MixerBackbone
        A view of ``model``: save and load that one, and make a new view after moving it.

    Raises
    ------
    TypeError
        If ``model`` is none of these.
    ValueError
        If it was built with an option under which tokens meet in other ways.

    Examples
    --------
    >>> import torch
    >>> from physicsnemo.models.flare import FLARE
    >>> model = FLARE(2, 1, embedding_dim=3, n_layers=2, n_hidden=16, n_head=2)
    >>> fx, x = torch.rand(1, 50, 2), torch.rand(1, 50, 3)
    >>> areas = torch.rand(1, 50)
    >>> serve(model)(fx, x, token_weights=areas).shape
    torch.Size([1, 50, 1])
    """
    if isinstance(model, MixerBackbone):
        return model
    if not is_served(model):
        raise TypeError(
            "model must be a FlarePP, a MixerBackbone, or PhysicsNeMo's FLARE, FLAREPlusPlus or "
            f"Transolver, got {type(model).__name__}"
        )
    return ServedModel(model)


class ServedModel(MixerBackbone):
    """The view of a model that :func:`serve` returns."""

    def __init__(self, model: Any) -> None:
        # Past PhysicsNeMo's constructor too, which is for models that are saved under their name.
        nn.Module.__init__(self)
        self._args = model._args
        self.meta = model.meta
        self.n_hidden = model.n_hidden
        self.time_input = model.time_input
        self.use_te = False
        given = model._args["__args__"]
        self.checkpoint_blocks = bool(given.get("activation_checkpointing", False))
        self.functional_dim, self.out_dim = given["functional_dim"], given["out_dim"]
        self.embedding_dim = model.embedding_dim
        self.unified_pos = model.unified_pos
        shape = model.structured_shape
        self.structured_shape = None if shape is None else tuple(shape)
        if model.unified_pos:
            self.register_buffer("positions", model.embedding[0], persistent=False)
        self.in_projection = JoinedInputs(model.preprocess)
        if model.time_input:
            self.time_embedding = model.time_embed
            self.time_projection = model.time_fc
        self.blocks = stack_blocks(map(ServedBlock, model.blocks))
        self.out_projection = model.blocks[-1].ln_mlp2
        self.training = model.training

    def save(self, *args, **options) -> None:
        """Refuse: the model behind this view has the name and the weights to save."""
        raise TypeError(
            "this is a view of a PhysicsNeMo model, made by serve; save that model instead"
        )


class ServedBlock(Block):
    """A block of PhysicsNeMo's by our names; its dropout is inside the attention layer."""

    def __init__(self, block: Any) -> None:
        nn.Module.__init__(self)
        self.norm_mixer = block.ln_1
        self.mixer = give_stages(block.Attn)
        self.norm_ffn, self.ffn = block.ln_mlp1
        self.dropout = nn.Dropout(0.0)
