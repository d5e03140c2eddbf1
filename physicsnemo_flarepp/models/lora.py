"""Where PhysicsNeMo's LoRA finds the feed-forwards of these models (``LoRAConfig(wrap_mlp=True)``).

It looks for them by name, in a list that is meant to be extended.
"""

import importlib
import importlib.util
import warnings

# Of Block, LatentBlock and GNOT's experts.
FEED_FORWARDS = r"\.(ffn|experts_\w+\.experts\.\d+)\.\d+$"

with warnings.catch_warnings():
    # Of PhysicsNeMo, that its LoRA is experimental: only who uses it can act on it.
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("physicsnemo.experimental.peft"):  # in no release before 2.2
        peft = importlib.import_module("physicsnemo.experimental.peft.apply")
        peft._MLP_TARGET_PATTERNS.append(FEED_FORWARDS)
