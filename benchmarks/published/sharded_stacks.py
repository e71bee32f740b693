"""Which software ran a row whose ZeRO stage, or whose Muon, its framework's stack does not hold?

Left out: what a run's own settings of DeepSpeed were, which rows do not say.
"""

from __future__ import annotations

from typing import Any, Final

from planner.catalog.load_stacks import load_stack
from planner.spec.job import Optimizer
from planner.spec.stack import UNLIKE_BAND, Stack
from planner.spec.stack.engines import HALF, AllReduced, States
from planner.spec.stack.losses import VocabParallel

# Settings of the ZeRO-3 scripts of Megatron-DeepSpeed (microsoft/Megatron-DeepSpeed@4efb479
# examples_deepspeed/azure/run-175b.sh, run-1t.sh, run-benchmark-model.sh), the only ones it has with stage 3 at scale.
_SETTINGS: Final = {"bucket_elements": 9e7, "live_parameters": 3e9, "reuse_distance": 3e9}
# InternEvo 1738bee of December 2023 reduces bucket by bucket under the last backward pass (`AllReduced` has the rest);
# model/loss.py: FlashCrossEntropyLoss on logits that tensor-parallel ranks split.
_OWNERS: Final = ("internevo", "internlm")
_OVERLAPPED_AS: Final = "megatron-2024"  # on no run of InternEvo was it fitted


# Megatron-Core's layer-wise optimizer reduce-scatters gradients of whole matrices from its 0.18 of 2026 on.
_DEALS_FROM: Final = "2026"


def with_muon(stack: Stack, optimizer: Optimizer, kin: str = "") -> tuple[Stack, tuple[str, ...]]:
    """The stack as it updates whole matrices: a Muon that is not Megatron-Core's own is that of Moonlight."""
    own = stack.framework == "megatron" and stack.released >= _DEALS_FROM and not kin
    if optimizer is not Optimizer.MUON or own:
        return stack, ()
    engine = stack.engine.model_copy(update={"shards_matrices": True})
    return stack.model_copy(update={"engine": engine}), (
        "Muon's momentum sharded as Adam's, a matrix gathered at a time",
    )


def owns_tensors(kin: str) -> bool:
    """Whether software gives whole tensors to ranks, in groups of any size."""
    return any(name in kin.lower() for name in _OWNERS)


def with_stage(stack: Stack, zero: int, kin: str = "") -> tuple[Stack, tuple[str, ...]]:
    """The stack, or what it stands in for (`kin`), as it runs ZeRO stage `zero`, and what was assumed.

    Megatron-DeepSpeed's runs, on which its stack was fitted, shard optimizer states at most: beyond, its band is as
    wide as that of software without runs. Programs that can run DeepSpeed leave stage 0 to PyTorch
    (torch/nn/parallel/distributed.py)."""
    if zero in (1, 2) and owns_tensors(kin):
        comm = stack.communication
        overlap = max(comm.dp_overlap, load_stack(_OVERLAPPED_AS).communication.dp_overlap)
        held = {name: getattr(stack.engine, name) for name in States.model_fields}
        sections: dict[str, Any] = {
            "communication": comm.model_copy(update={"dp_overlap": overlap}),
            "engine": AllReduced(**held | {"gradient": HALF}, owners=True),
            "kernels": stack.kernels.model_copy(update={"loss": VocabParallel()}),
            "limits": stack.limits.model_copy(update={"hybrid_sharding": (1, 2)}),
        }
        said = f"{kin} all-reduces gradients and gives whole tensors to ranks, which broadcast them after the update"
        return stack.model_copy(update=sections), (said,)
    if stack.framework == "fsdp" and not zero and kin:
        host = stack.host.model_copy(update={"step_overhead": 0.0})
        said = f"{kin} reduces by DDP: no time of FSDP's own beside a step"
        return stack.model_copy(update={"host": host}), (said,)
    if stack.framework == "deepspeed" and not zero:
        said = "gradients reduced under the backward pass, as without DeepSpeed by PyTorch's DDP"
        return stack.model_copy(update={"engine": stack.engine.model_copy(update={"ddp": True})}), (said,)
    if stack.framework != "megatron-deepspeed" or zero < 3:
        return stack, ()
    other = load_stack("deepspeed-2025")
    hidden = {"dp_overlap": other.communication.dp_overlap}
    update = {
        "communication": stack.communication.model_copy(update=hidden),
        "engine": other.engine.model_copy(update=_SETTINGS),
        "fitted": (),
        "fitted_on": "",
        "band": max(UNLIKE_BAND * stack.band, other.band),
    }
    said = f"ZeRO 3 of {other.name} under the layers of {stack.name}, on no run of which it was fitted: wider band"
    return stack.model_copy(update=update), (said,)
