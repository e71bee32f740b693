"""Who holds parameters and gradients: what of it is written in Megatron-LM's arguments, read, and refused?

Megatron-FSDP and weights in 8 or 4 bits. Sources: megatron/training/arguments.py validate_args (A),
core/transformer/transformer_config.py __post_init__ (T). Left out: the distributed optimizer alone (`arguments.py`).
"""

from __future__ import annotations

from typing import Final

from planner.catalog.stack_options import (
    ALL_GATHERED,
    DOUBLE_BUFFER,
    DP_SERIAL,
    DROPOUT,
    EXPERTS_OVERLAPPED,
    FP32_GRADIENTS,
    FUSED_EXPERTS,
    GATHER_SERIAL,
    GRADIENTS_16,
    GRADIENTS_32,
    TP_SERIAL,
    UNFUSED_ATTENTION,
    UNFUSED_SWIGLU,
    UPDATE_GRAPH,
)
from planner.errors import InputError
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.connections import require_several
from planner.frameworks.megatron.given import Arguments, Option
from planner.frameworks.megatron.hybrid import PATTERNS
from planner.spec.config import OFFLOAD_OPTIMIZER
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.engines import AnyEngine

STRATEGIES: Final = ("no_shard", "optim", "optim_grads", "optim_grads_params")


def megatron_stack(launch: Launch) -> Stack | None:
    """The plan's stack where it is Megatron's."""
    return launch.stack_of("megatron")


def fsdp_of(stack: Stack | None) -> AnyEngine | None:
    """The settings of Megatron-FSDP, where it is a stack's engine."""
    return stack.engine if stack is not None and stack.engine.units_apart else None


def uses_fsdp(launch: Launch) -> bool:
    """Is the plan one of Megatron-FSDP: by its stack, or by what only that can shard?"""
    return launch.config.zero >= 2 or fsdp_of(megatron_stack(launch)) is not None


def fsdp_options(launch: Launch, version: str) -> list[Option]:
    """Megatron-FSDP as the plan's memory has it. 0.16 follows --grad-reduce-in-bf16 in the width of gradients.

    Without initialisation on the meta device the whole model would lie on every device before it is sharded.
    """
    fsdp, zero = fsdp_of(megatron_stack(launch)), launch.config.zero
    options: list[Option] = [
        ("--use-megatron-fsdp",),
        ("--data-parallel-sharding-strategy", STRATEGIES[zero]),
        ("--ckpt-format", "fsdp_dtensor"),
    ]
    if fsdp is None:
        return options
    if zero:
        options.append(("--init-model-with-meta-device",))
    if fsdp.gradient == 4.0 and version != "0.16.1":
        options.append(("--megatron-fsdp-main-grads-dtype", "fp32"))
    return options + [("--fsdp-double-buffer",)] * fsdp.buffers_twice


def keeps_narrow_parameters(launch: Launch) -> bool:
    """Does the plan's memory keep linear weights in 8 or 4 bits, where validate_args lets it?"""
    stack, precision = megatron_stack(launch), launch.job.precision
    stated = stack is not None and stack.engine.keeps_narrow(precision, launch.job.optimizer)
    on_host = launch.config.offload & OFFLOAD_OPTIMIZER and precision is not Precision.FP8
    return stated and launch.config.zero >= 1 and not on_host


def narrow_parameter_options(launch: Launch) -> list[Option]:
    """MXFP8 parameters can only be gathered through the gradient buffer, where there is one
    (Transformer Engine, pytorch/tensor/utils.py replace_raw_data)."""
    if not keeps_narrow_parameters(launch):
        return []
    if launch.job.precision is Precision.NVFP4:
        return [("--fp4-param-gather",)]
    through_gradients = launch.job.precision is Precision.FP8_MX and not uses_fsdp(launch)
    return [("--fp8-param-gather",), *[("--reuse-grad-buf-for-mxfp8-param-ag",)] * through_gradients]


def bf16_layer_options(launch: Launch) -> list[Option]:
    """Layers at either end that an 8- or 4-bit recipe keeps in bf16."""
    first, last = launch.job.bf16_layers
    if not (first or last):
        return []
    counts = (("--num-layers-at-start-in-bf16", str(first)), ("--num-layers-at-end-in-bf16", str(last)))
    return [("--first-last-layers-bf16",), *counts]


def bf16_layers(a: Arguments) -> tuple[int, int]:
    """The same as read: one at either end where no number is given, none without an 8- or 4-bit recipe. Raises
    `InputError` where (T) does, which looks at fp8 alone."""
    narrow = a.has("--fp8-format") or a.has("--fp4-format")
    if not (narrow and a.has("--first-last-layers-bf16")):
        return 0, 0
    ends = [f"--num-layers-at-{end}-in-bf16" for end in ("start", "end")]
    first, last = (a.count(name, 1) for name in ends)
    layers = a.positive("--num-layers", 1) if a.has("--num-layers") else max(first + last, 1)
    if a.has("--fp8-format"):
        if a.word("--fp8-recipe", "delayed") == "delayed":
            must = "delayed scaling does not support first or last layers in bf16"
            raise InputError(
                must, "--first-last-layers-bf16", "leave it out, or choose --fp8-recipe tensorwise"
            )
        most = layers // a.positive("--pipeline-model-parallel-size", 1)
        if max(first, last) > most:
            must = f"layers in bf16 at either end must be from 0 to the layers of a pipeline stage, {most}"
            raise InputError(must, f"{first} and {last}", "write smaller numbers")
    elif first + last > layers:
        must = f"first and last layers in bf16 must be no more than the model's, {layers}"
        raise InputError(must, f"{first} and {last}", "write smaller numbers")
    return first, last


def accept_narrow_parameters(a: Arguments) -> None:
    """Refuse --fp8-param-gather and --fp4-param-gather where Megatron-LM (A, T) or Transformer Engine do. Raises
    `InputError`."""
    if a.has("--fp4-param-gather"):
        _accept_fp4_parameters(a)
    if not a.has("--fp8-param-gather"):
        return
    recipe, fsdp = a.word("--fp8-recipe", "delayed"), a.has("--use-megatron-fsdp")
    if not a.has("--fp8-format"):  # T
        must = "--fp8-param-gather (fp8_param) must be used together with fp8 mode"
        raise InputError(must, "no --fp8-format", "add --fp8-format hybrid, or leave it out")
    if not (a.has("--use-distributed-optimizer") or a.has("--use-torch-fsdp2") or fsdp):  # A
        must = "--fp8-param-gather is only supported with the distributed optimizer, torch FSDP2 or Megatron-FSDP"
        raise InputError(must, "none of them", "add --use-distributed-optimizer")
    if a.has("--optimizer-cpu-offload") and recipe != "delayed":  # A
        must = "--fp8-param-gather with --optimizer-cpu-offload must be used with --fp8-recipe delayed"
        raise InputError(must, recipe, "leave one of them out")
    reuses = a.has("--reuse-grad-buf-for-mxfp8-param-ag")
    if recipe == "mxfp8" and not (reuses or fsdp):  # replace_raw_data of an MXFP8Tensor is not implemented
        must = "mxfp8 parameters must be gathered through the gradient buffer"
        raise InputError(must, "--fp8-param-gather alone", "add --reuse-grad-buf-for-mxfp8-param-ag")


def _accept_fp4_parameters(a: Arguments) -> None:
    """4-bit parameters need masters that the optimizer does not hold itself (core/optimizer/distrib_optimizer.py
    _build_model_and_main_param_groups has neither master nor shard of one then), and buffers that know of two values
    a byte, which Megatron-FSDP's do not (its param_and_grad_buffer.py views a byte a value in the weight's shape)."""
    if not a.has("--fp4-format"):  # A, T
        must = "--fp4-param-gather (fp4_param) must be used together with fp4 mode"
        raise InputError(must, "no --fp4-format", "add --fp4-format e2m1, or leave it out")
    if a.has("--use-megatron-fsdp"):
        must = "--fp4-param-gather needs buffers with two values a byte, which Megatron-FSDP does not have"
        raise InputError(must, "--use-megatron-fsdp", "leave one of them out")
    aware = a.has("--use-precision-aware-optimizer")
    inside = a.word("--fp8-recipe", "delayed") == "delayed" or a.word("--main-params-dtype", "fp32") != "fp32"
    if aware and (inside or a.has("--optimizer-cpu-offload")):
        must = "--fp4-param-gather needs fp32 masters outside the optimizer; a precision-aware one holds them itself"
        raise InputError(must, "--use-precision-aware-optimizer", "leave one of them out")


def narrow_parameters(a: Arguments) -> tuple[bool | None, tuple[str, ...]]:
    """Whether an fp8 or fp4 recipe keeps its parameters so (None: there is none), and what is not costed of it."""
    if a.has("--fp8-format"):
        return a.has("--fp8-param-gather"), ()
    if not a.has("--fp4-format"):
        return None, ()
    asked = a.has("--fp4-param-gather")
    if asked and not a.has("--use-distributed-optimizer"):
        return False, (
            "--fp4-param-gather without --use-distributed-optimizer: modelled as 16-bit weights with 4-bit copies",
        )
    return asked, ()


def accept_fsdp(a: Arguments, connections: str | None) -> None:
    """Refuse what validate_args (A) refuses with Megatron-FSDP and PyTorch's FSDP2; `connections`: of
    CUDA_DEVICE_MAX_CONNECTIONS. Raises `InputError`."""
    for option in ("--use-megatron-fsdp", "--use-torch-fsdp2"):
        if a.has(option):
            require_several(option, connections)
    if not a.has("--use-megatron-fsdp"):
        return
    kind = a.word("--ckpt-format", "torch_dist")
    if kind != "fsdp_dtensor":
        must = "--use-megatron-fsdp requires the fsdp_dtensor checkpoint format"
        raise InputError(must, kind, "add --ckpt-format fsdp_dtensor")
    if a.word("--optimizer", "adam") not in ("adam", "sgd"):
        must = "--use-megatron-fsdp needs the optimizer adam or sgd"
        raise InputError(must, a.word("--optimizer", "adam"), "change --optimizer")
    if a.has("--init-model-with-meta-device") and strategy(a) == "no_shard":
        must = "--init-model-with-meta-device is not supported with the strategy no_shard"
        raise InputError(must, strategy(a), "leave it out")
    if a.word("--megatron-fsdp-version", "1") == "2" and a.has("--use-distributed-optimizer"):
        must = "--megatron-fsdp-version 2 is not compatible with --use-distributed-optimizer"
        raise InputError(must, "both", "leave --use-distributed-optimizer out")


# What keeps recipes from --tp-comm-overlap, see arguments.overlaps_tensor_parallel
_NOT_OVERLAPPED: Final = ("--num-experts", "--multi-latent-attention", "--fp4-format", *PATTERNS)


def strategy(a: Arguments) -> str:
    """The sharding strategy of Megatron-FSDP."""
    return a.word("--data-parallel-sharding-strategy", "optim_grads_params")


def stack_options(a: Arguments, alone: bool) -> tuple[str, ...]:
    """Options of the stack that the arguments set. User buffers imply double buffers. `alone`: is there one replica,
    which reduces nothing?"""
    kernels = [UNFUSED_ATTENTION] * keeps_scores(a)
    kernels += [UNFUSED_SWIGLU] * (a.has("--swiglu") and a.has(f"--{UNFUSED_SWIGLU}"))
    kernels += [DROPOUT] * drops_out(a)
    captured = a.has(f"--{UPDATE_GRAPH}") and not a.has("--use-megatron-fsdp")
    kernels += [UPDATE_GRAPH] * captured
    fused = a.has("--num-experts") and a.has(f"--{FUSED_EXPERTS}") and a.has("--fp8-format")
    kernels += [FUSED_EXPERTS] * (fused and a.word("--fp8-recipe", "delayed") == "mxfp8")
    gathered = a.has("--num-experts") and a.word("--moe-token-dispatcher-type", "allgather") == "allgather"
    tp = a.positive("--tensor-model-parallel-size", 1)
    ranks = a.positive("--expert-model-parallel-size", 1) * a.positive("--expert-tensor-parallel-size", tp)
    kernels += [ALL_GATHERED] * (gathered and ranks > 1)
    if not a.has("--use-megatron-fsdp"):
        beside = a.has(f"--{EXPERTS_OVERLAPPED}") and a.positive("--expert-model-parallel-size", 1) > 1
        kernels += [EXPERTS_OVERLAPPED] * (beside and a.has("--num-experts"))
        found = [*kernels, *[TP_SERIAL] * _reduces_alone(a)]
        if not (alone or a.has("--use-torch-fsdp2")):
            found += [DP_SERIAL] * (not a.has("--overlap-grad-reduce"))
            found += [GATHER_SERIAL] * _gathers_late(a)
        return (*found, GRADIENTS_16 if _keeps_16_bit_gradients(a) else GRADIENTS_32)
    buffers = ("--fsdp-double-buffer", "--use-nccl-ub", "--megatron-fsdp-max-pool-double-buffer")
    found = [*kernels, *[DOUBLE_BUFFER] * any(a.has(name) for name in buffers)]
    if a.word("--megatron-fsdp-main-grads-dtype", "auto") == "fp32":
        found.append(FP32_GRADIENTS)
    return tuple(found)


def _gathers_late(a: Arguments) -> bool:
    """Are weights that replicas share the update of gathered under nothing, though gradients are reduced aside?"""
    shared = a.has("--use-distributed-optimizer") and a.has("--overlap-grad-reduce")
    return shared and not a.has("--overlap-param-gather")


def keeps_scores(a: Arguments) -> bool:
    local = a.word("--transformer-impl", "transformer_engine") == "local" and not a.has("--use-flash-attn")
    return local or a.word("--attention-backend", "auto") in ("unfused", "local")


def drops_out(a: Arguments) -> bool:
    """Is dropout costed? Where attention keeps its scores, that of its weights is costed with that of the stream."""
    alone = keeps_scores(a) and a.number("--attention-dropout", 0.1) == 0
    return a.number("--hidden-dropout", 0.1) > 0 and not alone


def _keeps_16_bit_gradients(a: Arguments) -> bool:
    """fp16 keeps them so unless told not to, bf16 and the narrower recipes on it only when told to (A)."""
    if a.has("--bf16"):
        return a.has("--grad-reduce-in-bf16")
    return a.has("--fp16") and not a.has("--accumulate-allreduce-grads-in-fp32")


def _reduces_alone(a: Arguments) -> bool:
    """Do tensor-parallel collectives run alone where measured recipes run them under products?"""
    recipe = a.has("--sequence-parallel") and a.positive("--tensor-model-parallel-size", 1) > 1
    return recipe and not any(a.has(name) for name in ("--tp-comm-overlap", *_NOT_OVERLAPPED))
