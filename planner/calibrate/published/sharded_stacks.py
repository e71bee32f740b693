"""Which software ran a row whose ZeRO stage its framework's stack does not hold?

Left out: what a run's own settings of DeepSpeed were, which rows do not say.
"""

from __future__ import annotations

from typing import Final

from planner.catalog.load_stacks import load_stack
from planner.spec.stack import UNLIKE_BAND, Stack

# Settings of the ZeRO-3 scripts of Megatron-DeepSpeed (microsoft/Megatron-DeepSpeed@4efb479
# examples_deepspeed/azure/run-175b.sh, run-1t.sh, run-benchmark-model.sh), the only ones it has with stage 3 at scale.
_SETTINGS: Final = {"bucket_elements": 9e7, "live_parameters": 3e9, "reuse_distance": 3e9}
# What DeepSpeed's stage 3 does whatever the layers are; see deepspeed-2025, also for the sources.
_OF_ENGINE: Final = ("fsdp_overlap", "gradient_bytes", "reduction_copies", "gather_copies", "bucket_bytes")


def with_stage(stack: Stack, zero: int) -> tuple[Stack, tuple[str, ...]]:
    """The stack as it runs ZeRO stage `zero`, its band as wide as that of software without runs, and what was assumed.

    Megatron-DeepSpeed's runs, on which its stack was fitted, shard optimizer states at most."""
    if stack.framework != "megatron-deepspeed" or zero < 3:
        return stack, ()
    engine = load_stack("deepspeed-2025")
    of_engine = {name: getattr(engine.communication, name) for name in _OF_ENGINE}
    update = {
        "communication": stack.communication.model_copy(update=of_engine),
        "states": engine.states.model_copy(update=_SETTINGS),
        "fitted": "",
        "band": max(UNLIKE_BAND * stack.band, engine.band),
    }
    said = f"ZeRO 3 of {engine.name} under the layers of {stack.name}, on no run of which it was fitted: wider band"
    return stack.model_copy(update=update), (said,)
