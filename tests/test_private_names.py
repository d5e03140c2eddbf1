"""Every private name of PhysicsNeMo, torch and Python that we use, and a check that it is there.

PhysicsNeMo and torch may move these in any release. The package requires no upper minor version of
them; a release that moves one fails here, with the name and the files that use it.
"""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import physicsnemo
import pytest
import torch
from physicsnemo.core import ModelMetaData, Module
from physicsnemo.domain_parallel import ShardTensor
from physicsnemo.models.flare import FLARE
from physicsnemo.models.transolver import Transolver
from physicsnemo.nn.module.physics_attention import PhysicsAttentionIrregularMesh

from tests.restated_flarepp import FLARE_PLUS_PLUS

ROOT = Path(__file__).parents[1] / "physicsnemo_flarepp"
# Where each name lives, by the name as the package writes it.
PRIVATE = {
    # PhysicsNeMo
    "_args": "a physicsnemo.core.Module",
    "_project_attention_outputs": "PhysicsAttentionIrregularMesh",
    "_MLP_TARGET_PATTERNS": "physicsnemo.experimental.peft.apply",
    "_load_sample": "physicsnemo.datapipes.Reader",  # overridden
    "_get_sample_metadata": "physicsnemo.datapipes.Reader",
    "_spec": "a ShardTensor",
    # Python
    "_run_exitfuncs": "atexit",
    "_shutdown": "threading",
    # torch
    "_C": "torch",
    "_functorch": "torch._C",
    "_current_level": "torch.autograd.forward_ad",
    "_ConvNd": "torch.nn.modules.conv",
    "_assert_async": "torch",
    "_c10d_functional": "torch.ops",
    "_flatten": "torch.distributed.DeviceMesh",
    "_dynamo": "torch",
    "_foreach_add_": "torch",
    "_foreach_lerp": "torch",
    "_foreach_lerp_": "torch",
    "_foreach_mul_": "torch",
    "_foreach_norm": "torch",
    "_common_utils": "torch.distributed.fsdp",
    "_backward_hooks": "a torch.nn.Module",
    "_backward_pre_hooks": "a torch.nn.Module",
    "_forward_hooks": "a torch.nn.Module",
    "_forward_pre_hooks": "a torch.nn.Module",
    "_fused_rms_norm": "torch.ops.aten",
    "_fused_rms_norm_backward": "torch.ops.aten",
    "_get_default_store": "torch.distributed.distributed_c10d",
    "_get_group_size_by_name": "torch.distributed.distributed_c10d",
    "_resolve_process_group": "torch.distributed.distributed_c10d",
    "_has_any_global_hook": "torch.nn.modules.module",
    "_modules": "a torch.nn.Module",
    "_opname": "an operator of torch",
    "_parameters": "a torch.nn.Module",
    "_python_dispatch": "torch.utils",
    "_pytree": "torch.utils",
    "_scaled_dot_product_efficient_attention": "torch.ops.aten",
    "_scaled_dot_product_efficient_attention_backward": "torch.ops.aten",
    "_scaled_dot_product_flash_attention": "torch.ops.aten",
    "_scaled_dot_product_flash_attention_backward": "torch.ops.aten",
    "_scaled_dot_product_flash_attention_for_cpu": "torch.ops.aten",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "torch.ops.aten",
    "_version": "torch.Tensor",
}
PUBLIC_IN_SPITE_OF_ITS_NAME = {
    "_asdict",
    "_exit",
    "_orig_mod",
    "_target_",
}  # of Python, and documented by torch
# Parts of PhysicsNeMo's models that are served: no underscore, and nowhere promised.
PARTS = {
    "model": "preprocess blocks embedding_dim structured_shape unified_pos time_input n_hidden",
    "model with time_input": "time_embed time_fc",
    "model with unified_pos": "embedding",
    "block": "ln_1 Attn ln_mlp1",
    "last block": "ln_mlp2",
    "layer": "heads dim_head use_te out_linear out_dropout",
    "layer of FLARE": "scale q_global in_project_x self_k self_v",
    "layer of FLAREPlusPlus": "scale q_seed in_projection",
    "layer of Transolver": "plus temperature in_project_x in_project_slice qkv_project "
    "project_input_onto_slices",
    "layer of Transolver with plus": "proj_temperature",
}


def private_names(source: str) -> set[str]:
    """Names with an underscore that a module takes from other objects than its own."""
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {n.name for cls in classes for n in cls.body if isinstance(n, ast.FunctionDef)}
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr"):
            names = [node.args[1].value] if isinstance(node.args[1], ast.Constant) else []
        found |= {n for n in names if n.startswith("_") and not n.startswith("__")}
    return found - methods - _own_attributes(tree)


def _own_attributes(tree: ast.AST) -> set[str]:
    """Attributes that the classes of a module set on themselves."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    } - {"_args"}


def users() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for name in private_names(path.read_text()):
            found[name].append(str(path.relative_to(ROOT)))
    return found


def test_every_private_name_in_use_is_listed():
    overridden = {"_load_sample", "_get_sample_metadata"}
    assert set(users()) - PUBLIC_IN_SPITE_OF_ITS_NAME == set(PRIVATE) - overridden


def holder(place: str) -> object:
    """The object at which a private name is looked for."""
    examples = {
        "a physicsnemo.core.Module": lambda: Module(meta=ModelMetaData()),
        "PhysicsAttentionIrregularMesh": lambda: PhysicsAttentionIrregularMesh,
        "a ShardTensor": lambda: ShardTensor,
        "a torch.nn.Module": lambda: torch.nn.Linear(1, 1),
        "an operator of torch": lambda: torch.ops.aten.add.Tensor,
    }
    if place in examples:
        return examples[place]()
    if place == "torch.ops.aten" or place == "torch.ops":
        return torch.ops.aten if place.endswith("aten") else torch.ops
    module, _, name = place.rpartition(".")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", PRIVATE)
def test_private_names_are_where_they_were(name):
    there = holder(PRIVATE[name])
    known = getattr(there, "__slots__", ()) if isinstance(there, type) else ()
    assert hasattr(there, name) or name in known, (
        f"{name} is no longer in {PRIVATE[name]} (PhysicsNeMo {physicsnemo.__version__}, torch "
        f"{torch.__version__}); it is used in {users().get(name, 'datapipes/readers/base.py')}"
    )


def served_parts():
    """(what PARTS calls it, an example of it)."""
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 3}
    grid = {"structured_shape": (2, 3), "unified_pos": True, "ref": 2}
    models = {
        "FLARE": (FLARE, {}),
        "Transolver": (Transolver, {"use_te": False}),
        "Transolver with plus": (Transolver, {"use_te": False, "plus": True}),
        "FLAREPlusPlus": (FLARE_PLUS_PLUS.get("real", FLARE_PLUS_PLUS["restated"]), {}),
    }
    for kind, (cls, options) in models.items():
        model = cls(2, 1, embedding_dim=3, time_input=True, **sizes, **options)
        yield from (("model", model), ("model with time_input", model))
        yield from (("block", model.blocks[0]), ("last block", model.blocks[-1]))
        yield from (("layer", model.blocks[0].Attn), (f"layer of {kind}", model.blocks[0].Attn))
    yield "model with unified_pos", FLARE(2, 1, **sizes, **grid)


def test_parts_of_the_served_models_have_their_names():
    seen = set()
    for what, part in served_parts():
        seen.add(what)
        missing = [name for name in PARTS[what].split() if not hasattr(part, name)]
        assert not missing, (
            f"{missing} moved: no longer in the {what} of PhysicsNeMo {physicsnemo.__version__}; "
            "they are used in mixers/physicsnemo_layers.py and models/physicsnemo_models.py"
        )
    assert seen == set(PARTS)


def test_the_search_sees_every_way_to_take_a_name():
    source = """
from torch.utils._pytree import tree_leaves
class Own:
    def __init__(self): self._mine = other._theirs
    def look(self): return Own()._mine, self._inherited, Own()._look
    def _look(self): pass
def _helper(): return module._helper
x = getattr(y, "_hidden", None)
"""
    assert private_names(source) == {"_pytree", "_theirs", "_hidden", "_helper"}
