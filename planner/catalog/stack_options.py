"""Which options of its framework may be set on a stack by name? `megatron-2026+no-fp8-param-gather`.

An option is named as the framework names it, and changes fields of the stack that is costed; launch files carry it.
Left out: the options themselves (`load_options.py`), what is an axis of the configuration, and fitted numbers.
"""

from __future__ import annotations

from typing import Any, Final

from planner.catalog.load_options import OPTIONS, StackOption
from planner.errors import InputError, UnknownNameError
from planner.spec.findings import Finding, finding
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import SparseKernel

SEPARATOR: Final = "+"
FLOAT8_TENSORWISE: Final = "recipe-name=tensorwise"
FLOAT8_ROWWISE: Final = "recipe-name=rowwise"
DOUBLE_BUFFER: Final = "fsdp-double-buffer"
PURE_BF16: Final = "pure-bf16"
LIGER: Final = "use-liger-kernel"
NO_SYNC: Final = "no-sync"
NO_COMPILE: Final = "no-compile"
AUTOCAST: Final = "amp"
SDPA_MASK: Final = "sdpa-mask"
EAGER_ATTENTION: Final = "eager-attention"
FOREACH: Final = "adamw-foreach"
COMPILE: Final = "compile"
EAGER_EXPERTS: Final = "eager-experts"
FLASH_ATTENTION_3: Final = "flash-attention-3"
PAGED_STASH: Final = "moe-paged-stash"
FUSED_EXPERTS: Final = "use-transformer-engine-op-fuser"
ALL_GATHERED: Final = "moe-token-dispatcher-type=allgather"
EXPERTS_OVERLAPPED: Final = "overlap-moe-expert-parallel-comm"
UNFUSED_ATTENTION: Final = "attention-backend=unfused"
UNFUSED_SWIGLU: Final = "no-bias-swiglu-fusion"
UNFUSED_ROTATION: Final = "no-rope-fusion"
TEXTS_IN_TURN: Final = "te-2.17"
UPDATE_GRAPH: Final = "optimizer-cuda-graph"
FLOAT8_SWIGLU: Final = "activation-func-fp8-input-store"
DROPOUT: Final = "hidden-dropout=0.1"
NO_SCATTER: Final = "no-scatter-gather-tensors-in-pipeline"
TP_SERIAL: Final = "no-tp-comm-overlap"
DP_SERIAL: Final = "no-overlap-grad-reduce"
GATHER_SERIAL: Final = "no-overlap-param-gather"
GRADIENTS_16: Final = "grad-reduce-in-bf16"
GRADIENTS_32: Final = "no-grad-reduce-in-bf16"
# beside cuDNN's, the stack's own
DSA_KERNELS: Final = {
    kernel: f"dsa-kernel-backend={kernel}" for kernel in (SparseKernel.TILELANG, SparseKernel.NONE)
}
FP32_GRADIENTS: Final = "megatron-fsdp-main-grads-dtype=fp32"


LIGER_FAMILIES: Final = next(option.families for option in OPTIONS if option.name == LIGER)


def options_for(stack: Stack) -> tuple[StackOption, ...]:
    """The options that a stack takes."""
    return tuple(
        option
        for option in OPTIONS
        if stack.framework in option.frameworks
        and option.fits(stack.engine)
        and option.since <= stack.released
        and (not option.until or stack.released <= option.until)
    )


def idle_options(stack: Stack, precision: Precision, model: ModelSpec) -> list[Finding]:
    """Options in the stack's name that change nothing under a recipe, or of a model.

    Raises `InputError` where an option needs another recipe.
    """
    named, idle = stack.name.split(SEPARATOR)[1:], list[Finding]()
    for option in options_for(stack):
        if option.name not in named:
            continue
        if option.needed and precision not in option.precisions:
            must = f"+{option.name} needs one of {', '.join(option.precisions)}"
            raise InputError(must, precision, f"leave +{option.name} out")
        if option.precisions and precision not in option.precisions:
            idle.append(finding("idle_option", option=option.name, why="precision", of=str(precision)))
        if option.experts and not model.is_moe:
            idle.append(finding("idle_option", option=option.name, why="dense"))
        elif option.name == FUSED_EXPERTS and not model.fusable_experts:
            idle.append(finding("idle_option", option=option.name, why="experts"))
        if option.families and model.family not in option.families:
            idle.append(finding("idle_option", option=option.name, why="liger", of=model.family))
        if option.indexers and not model.indexers:
            idle.append(finding("idle_option", option=option.name, why="indexers"))
    return idle


def with_options(stack: Stack, names: list[str]) -> Stack:
    """The stack with these options, its name telling them. Raises `UnknownNameError` and, where two contradict each
    other or one lacks another, `InputError`."""
    known = {option.name: option for option in options_for(stack)}
    said: dict[tuple[str, str], str] = {}
    for name in dict.fromkeys(names):
        if name not in known:
            raise UnknownNameError(f"option of stack {stack.name}", name, list(known))
        for key in ((section, key) for section, fields in known[name].fields.items() for key in fields):
            if said.setdefault(key, name) != name:
                must = f"+{said[key]} and +{name} must not be named together"
                raise InputError(must, stack.name, "leave one of them out")
        update: dict[str, Any] = {
            section: getattr(stack, section).model_copy(update=dict(fields))
            for section, fields in known[name].fields.items()
        }
        stack = stack.model_copy(update={**update, "name": f"{stack.name}{SEPARATOR}{name}"})
    for name in names:
        if (needed := known[name].dispatcher) not in (None, stack.communication.dispatcher):
            raise InputError(f"+{name} needs +{needed}", stack.name, f"write +{needed}+{name}")
    return stack
