"""What do a published recipe and a named release add to what a row states?

Left out: switches that a row sets itself (`calibrate/stack_of.py`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from planner.calibrate.cells import Row
from planner.spec.load_model import load_model, resolve_catalog_name
from planner.spec.model import Layer, ModelSpec
from planner.spec.stack import CrossEntropy, Dispatcher, Stack

ADAPTERS: Final = re.compile(r"\bq?lora\b", re.IGNORECASE)
_DISPATCHERS: Final = re.compile("alltoall|all-to-all|hybrid-?ep|deep-?ep")
Narrowed = dict[tuple[int, bool, bool, Dispatcher], Stack]


def with_routing_groups(model: ModelSpec, hf_id: str) -> ModelSpec:
    """The model with its router's groups of experts, which a description cannot state, from the release it names."""
    name = resolve_catalog_name(hf_id) if hf_id and model.is_moe else None
    if name is None:
        return model
    released = [layer.moe for layer in load_model(name).layer_kinds if layer.moe is not None]

    def grouped(layer: Layer) -> Layer:
        moe = layer.moe
        same = [r for r in released if moe and (r.experts, r.top_k) == (moe.experts, moe.top_k)]
        if moe is None or not same:
            return layer
        return replace(layer, moe=replace(moe, groups=same[0].groups, top_groups=same[0].top_groups))

    return replace(model, layers=tuple(grouped(layer) for layer in model.layers))


def bridge_recipe(stack: Stack, cells: Row, seen: Narrowed) -> Stack:
    """The stack as Megatron-Bridge's performance recipes set it, where they ran.

    They reduce, and so keep, gradients in bf16 (grad_reduce_in_fp32=False), which the update copies to fp32, and
    compute the loss in Transformer Engine's kernel (cross_entropy_fusion_impl="te"), not with adapters. Where the row
    names the recipe's configuration or its forced balance of experts, tokens are dispatched by DeepEP or HybridEP (its
    dispatcher guide: DeepEP first on H100 and B200, HybridEP on GB200 and GB300), unless the row says otherwise. The
    first release dropped tokens on Blackwell, which switched both off (v0.1.0rc4 scripts/performance/run_script.py).
    """
    if "bridge" not in cells["framework"].lower():
        return stack
    text, gpu, dispatcher = cells["extras"].lower(), cells["gpu"].lower(), stack.communication.dispatcher
    drops = "25.09" in cells["source"] and re.match("g?b[23]00", gpu)
    named = re.search(r"config|force[ _-]balance", text)
    if named and not drops and not _DISPATCHERS.search(text):
        dispatcher = Dispatcher.HYBRIDEP if gpu.startswith("gb") else Dispatcher.DEEPEP
    fused = not ADAPTERS.search(text)
    key = (id(stack), "fp32 grad" in text, fused, dispatcher)
    if key not in seen:
        narrow = {} if key[1] else {"gradient": 2.0, "optimizer_transient": 4.0}
        states = stack.states.model_copy(update=narrow)
        comm = stack.communication.model_copy(update={"dispatcher": dispatcher})
        loss = {"cross_entropy": CrossEntropy.FUSED} if fused else {}
        kernels = stack.kernels.model_copy(update=loss)
        seen[key] = stack.model_copy(update={"states": states, "communication": comm, "kernels": kernels})
    return seen[key]
