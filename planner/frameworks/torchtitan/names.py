"""What does torchtitan call models and schedules, and what comes with a model's shipped configuration?

Source: torchtitan 0.2.2 and 0.3.0 from PyPI (models/*/__init__.py, models/*/config_registry.py), torch 2.13
get_schedule_class. Left out: models with encoders, and debug models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planner.dialect import option
from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.spec.config import Schedule
from planner.spec.precision import Precision
from planner.spec.stack.kinds import Dispatcher, Float8Scales
from planner.spec.stack.losses import Chunked

TITLE: Final = "torchtitan"
TOML, CLI = "0.2.2", "0.3.0"
# its name -> the schedule, and whether ranks hold several stages
SCHEDULES: Final = {
    "1F1B": (Schedule.ONE_F_ONE_B, False),
    "Interleaved1F1B": (Schedule.INTERLEAVED, True),
    "GPipe": (Schedule.GPIPE, False),
    "LoopedBFS": (Schedule.GPIPE, True),
    "InterleavedZeroBubble": (Schedule.ZB_H1, True),
    "ZBVZeroBubble": (Schedule.ZB_V, True),
    "DualPipeV": (Schedule.DUALPIPE_V, True),
}
NAME_OF: Final = {kind: name for name, kind in SCHEDULES.items()}
# torchao scales by what a tensor holds at the time: 0.10 deleted delayed scaling (pytorch/ao#1680, #1753), which
# torchtitan never documented (9dec370 docs/float8.md: "dynamic scales")
FLOAT8: Final = Precision.FP8_CS
# recipes that it does not have, in words
NO_RECIPES: Final = {
    Precision.FP8: "delayed scaling",
    Precision.FP8_BLOCKWISE: "scales by blocks of 128 x 128",
}
# positions of a block of FlexAttention's mask (torch.nn.attention.flex_attention _DEFAULT_SPARSE_BLOCK_SIZE)
FLEX_BLOCK: Final = 128


@dataclass(frozen=True)
class Shipped:
    """A model as torchtitan names it.

    `flavor`: of its registry in 0.3.0; `toml_flavor`: in 0.2.2, "" where it has none. `base`: the function of
    0.3.0 whose training settings are taken. `longest`: positions of its RoPE table there [tokens]. `ready`: does `base`
    build this very model in bf16 by itself? That of Llama 3.1 405B converts its linear layers to float8 and cannot be
    built on devices without it.
    """

    family: str
    flavor: str
    toml_flavor: str
    base: str
    longest: int
    ready: bool = True


MODELS: Final = {
    name: Shipped(**said)
    for name, said in json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8")).items()
}
# functions of 0.3.0 that a user's own launch may name beside the `base` ones
FUNCTIONS: Final = {"llama3_405b": ("llama-3.1-405b", Precision.FP8_CS)}


def require_recipe(precision: Precision) -> None:
    """Raise `UnsupportedError` for a recipe that torchtitan does not have."""
    if precision in NO_RECIPES:
        lacks = NO_RECIPES[precision]
        must = f"{TITLE}'s float8 (torchao) scales by what each tensor holds at the time: it has no {lacks}"
        raise UnsupportedError(must, f"precision {precision}", f"choose {option('precision', FLOAT8)}")


def compiles(launch: Launch) -> bool:
    """Does the plan's stack run under torch.compile, which is what fuses norms and activations here?"""
    stack = launch.stack_of("torchtitan")
    return stack is not None and stack.kernels.code.compiled


def chunks_loss(launch: Launch) -> bool:
    """Does the plan's stack take the loss in parts, as 0.3.0 does? Where the stack is another's: yes, the default."""
    stack = launch.stack_of("torchtitan")
    return stack is None or isinstance(stack.kernels.loss, Chunked)


def asks_for_flex(launch: Launch, shipped: Shipped) -> bool:
    """Must 0.3.0 be told to take FlexAttention? gpt-oss takes variable-length attention, which refuses cp."""
    return shipped.family == "gpt_oss" and launch.config.cp > 1


def gathers_float8(launch: Launch) -> bool:
    """Does the plan count on shards of linear weights that are cast to float8 before they are gathered?"""
    stack = launch.stack_of("torchtitan")
    asked = stack is not None and stack.engine.casts_for_gathers(launch.job.precision)
    return asked and launch.config.zero >= 2 and not launch.model.is_moe and not scales_rows(launch)


def scales_rows(launch: Launch) -> bool:
    """Does the plan count on float8 with a scale a row? Where the stack is another's: no, 0.2.2's default."""
    stack = launch.stack_of("torchtitan")
    return stack is not None and stack.kernels.float8_scales is Float8Scales.ROW


def uses_deepep(launch: Launch) -> bool:
    """Does the prediction rely on DeepEP?"""
    stack = launch.stack
    return stack is not None and stack.communication.dispatcher is Dispatcher.DEEPEP and launch.config.ep > 1
