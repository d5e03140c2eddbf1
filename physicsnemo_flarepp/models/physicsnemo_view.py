"""PhysicsNeMo's own FLARE, FLAREPlusPlus and Transolver as models of ours, on their own weights."""

from typing import Any

from torch import nn

from ..mixers.physicsnemo_layers import add_stages, is_known_model
from .layers import Block, JoinedInputs, stack_blocks
from .token_model import TokenModel


def view_physicsnemo(model: nn.Module) -> TokenModel:
    """Return a model of PhysicsNeMo's as one of ours that shares its weights.

    It computes what the model does, and takes in addition what a
    :class:`~physicsnemo_flarepp.models.FlarePP` takes: ``token_mask``, ``token_weights``, one row
    of ``fx`` for all tokens, and ShardTensors. ``parallel.enable_context_parallel`` and the
    functions of ``inference`` call it by themselves. Nothing is copied and nothing about the model
    changes: training one trains the other. Save and load the model itself, and make a new view
    after moving it.

    Parameters
    ----------
    model : torch.nn.Module
        ``physicsnemo.models``'s FLARE, FLAREPlusPlus (which no release up to 2.2 has) or
        Transolver, without Transformer Engine; Transolver without ``structured_shape``, for which
        it runs convolutions over the grid. A model of ours is returned as it is. Other models
        raise TypeError, options under which tokens meet in other ways ValueError.

    Examples
    --------
    >>> import torch
    >>> from physicsnemo.models.flare import FLARE
    >>> model = FLARE(2, 1, embedding_dim=3, n_layers=2, n_hidden=16, n_head=2)
    >>> fx, x = torch.rand(1, 50, 2), torch.rand(1, 50, 3)
    >>> areas = torch.rand(1, 50)
    >>> view_physicsnemo(model)(fx, x, token_weights=areas).shape
    torch.Size([1, 50, 1])
    """
    if isinstance(model, TokenModel):
        return model
    if not is_known_model(model):
        raise TypeError(
            "model must be a FlarePP, a MixerBackbone, or PhysicsNeMo's FLARE, FLAREPlusPlus or "
            f"Transolver, got {type(model).__name__}; pass the model inside of a wrapper"
        )
    return PhysicsNeMoView(model)


class PhysicsNeMoView(TokenModel):
    """The view of a model that :func:`view_physicsnemo` returns."""

    def __init__(self, model: Any) -> None:
        given = model._args["__args__"]
        super().__init__(
            *(given["functional_dim"], given["out_dim"], model.embedding_dim),
            structured_shape=model.structured_shape,
            positions=model.embedding[0] if model.unified_pos else None,
            time_input=model.time_input,
            checkpoint_blocks=given.get("activation_checkpointing", False),
            meta=model.meta,
        )
        self._settings = given
        self.in_projection = JoinedInputs(model.preprocess)
        if model.time_input:
            self.time_embedding = model.time_embed
            self.time_projection = model.time_fc
        self.blocks = stack_blocks(map(_view_block, model.blocks))
        self.out_projection = model.blocks[-1].ln_mlp2
        self.training = model.training

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that the model was built with, by name."""
        return self._settings

    def save(self, *args, **options) -> None:
        """Refuse: the model behind this view has the name and the weights to save."""
        raise TypeError(
            "this is a view of a PhysicsNeMo model, made by view_physicsnemo; save that model "
            "instead"
        )


def _view_block(block: Any) -> Block:
    """Return a block of PhysicsNeMo's as ours; its dropout is inside the attention layer."""
    return Block(block.ln_1, add_stages(block.Attn), *block.ln_mlp1)
