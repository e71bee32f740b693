"""How is a configuration written in Megatron-LM's arguments?

Source: Megatron-LM megatron/training/arguments.py (validate_args), main of 2026-08. Left out: the architecture
(`architecture.py`) and the scripts around the arguments (`planner/frameworks/scripts.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.catalog.stack_options import FUSED_EXPERTS, SEPARATOR, TP_SERIAL
from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.fused_experts import (
    INTERLEAVE,
    VARIABLE,
    as_options,
    capacity_options,
    fuses_experts,
    padding_fields,
)
from planner.frameworks.fused_experts import check_release as check_fused_experts
from planner.frameworks.layout import first_and_last, is_even, write_layout
from planner.frameworks.megatron.accepted import WITH_ENGINES_LOSS
from planner.frameworks.megatron.architecture import (
    check_release,
    model_options,
    rotates_unfused,
)
from planner.frameworks.megatron.connections import CONNECTIONS, SEVERAL
from planner.frameworks.megatron.given import Option
from planner.frameworks.megatron.graphs import graph_options, update_options
from planner.frameworks.megatron.hybrid import pattern_options
from planner.frameworks.megatron.muon import muon_options
from planner.frameworks.megatron.sparse import UNFUSED_ROTATION, sparse_options
from planner.frameworks.megatron.states import (
    bf16_layer_options,
    fsdp_options,
    megatron_stack,
    narrow_parameter_options,
    uses_fsdp,
)
from planner.spec.config import (
    MEGATRON_MODULES,
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMETERS,
    ContextKind,
    Recompute,
    Schedule,
)  # fmt: skip
from planner.spec.job import Optimizer
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel, Dispatcher, SparseKernel
from planner.spec.stack.losses import Compiled, Fused, InPlace

SCHEDULES: Final = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
CONTEXT_KINDS: Final = {
    ContextKind.P2P: "p2p",
    ContextKind.ALL_GATHER: "all_gather",
    ContextKind.A2A: "a2a",
}
PRECISIONS: Final[dict[Precision, tuple[Option, ...]]] = {
    Precision.FP32: (),
    Precision.FP16: (("--fp16",),),
    Precision.BF16: (("--bf16",),),
    Precision.FP8: (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    Precision.FP8_CS: (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    Precision.FP8_MX: (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    Precision.FP8_BLOCKWISE: (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    Precision.NVFP4: (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
OPTIMIZERS: Final[dict[Optimizer, tuple[Option, ...]]] = {
    Optimizer.ADAMW: (("--optimizer", "adam"),),
    Optimizer.ADAMW_BF16: (
        ("--optimizer", "adam"),
        ("--use-precision-aware-optimizer",),
        ("--exp-avg-dtype", "bf16"),
        ("--exp-avg-sq-dtype", "bf16"),
    ),
    Optimizer.SGD: (("--optimizer", "sgd"), ("--sgd-momentum", "0.0")),
    Optimizer.SGD_MOMENTUM: (("--optimizer", "sgd"), ("--sgd-momentum", "0.9")),
}
# FLASH is the fastest there is, which Transformer Engine picks itself; its unfused path has Megatron's fused softmax
ATTENTION: Final = {
    AttentionKernel.FLASH: "auto",
    AttentionKernel.FLASH_2: "flash",
    AttentionKernel.FLASH_TRITON: "flash",
    AttentionKernel.MEMORY_EFFICIENT: "unfused",
    AttentionKernel.FUSED_SOFTMAX: "unfused",
    AttentionKernel.EAGER: "unfused",
}


def option_groups(launch: Launch, version: str) -> dict[str, list[Option]]:
    """All options of a launch by group. Raises `UnsupportedError`."""
    check_release(launch.model, version)
    check_fused_experts(launch, version)
    _check_loss(launch, version)
    return {
        "MODEL": [
            *model_options(launch.model, launch.details, launch.job.seq_len, launch.pad_vocabulary, version),
            *(sparse_options(launch.model, sparse_kernel(launch)) if launch.model.indexers else []),
        ],
        "PARALLEL": [
            *_degrees(launch),
            *_pipeline(launch),
            *_data_parallel(launch, version),
            *_experts(launch, version),
        ],
        "MEMORY": [*_recompute(launch), *_offload(launch)],
        "PRECISION": _precision(launch, version),
        "KERNELS": [*_kernels(launch), *graph_options(launch, version), *update_options(launch, version)],
        "TRAINING": _training(launch),
        "DATA": _data(launch, version),
    }


def environment(launch: Launch) -> dict[str, str]:
    """Environment variables that the launch relies on.

    CUDA_DEVICE_MAX_CONNECTIONS is 1 where tp or cp overlap with compute on Hopper and before (validate_args
    asserts it), and above 1 under Megatron-FSDP and beside expert all-to-all, which both need several queues.
    """
    variables = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "16",
        "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    }
    if launch.config.cuda_graph_impl:  # validate_args asserts it beside expandable segments
        variables["NCCL_GRAPH_REGISTER"] = "0"
    if fuses_experts(launch):
        variables[VARIABLE] = "1"
    if uses_fsdp(launch):
        variables[CONNECTIONS] = "8"
    elif is_blackwell(launch.accelerator) or overlaps_experts(launch):
        variables[CONNECTIONS] = SEVERAL
    else:
        variables[CONNECTIONS] = "1"
    return variables


def is_blackwell(accelerator: str) -> bool:
    """Is this a Blackwell part, where one hardware queue is no longer needed for overlap?"""
    return accelerator.lower().startswith(("b200", "b300", "gb200", "gb300", "rtx-pro"))


def _degrees(launch: Launch) -> list[Option]:
    config = launch.config
    options: list[Option] = [
        ("--tensor-model-parallel-size", str(config.tp)),
        ("--pipeline-model-parallel-size", str(config.pp)),
        ("--context-parallel-size", str(config.cp)),
    ]
    if config.sp:
        options.append(("--sequence-parallel",))
    if overlaps_tensor_parallel(launch):
        options.append(("--tp-comm-overlap",))
    if config.cp > 1:
        kind = launch.model.context_kind(ContextKind(config.cp_kind))
        options.append(("--cp-comm-type", CONTEXT_KINDS[kind]))
    return options


def _pipeline(launch: Launch) -> list[Option]:
    config, chunks = launch.config, launch.chunks
    if launch.schedule not in SCHEDULES:
        must = "the pipeline schedule must be one that Megatron-LM runs: 1F1B or interleaved 1F1B"
        raise UnsupportedError(must, launch.schedule.name.lower(), "choose another configuration")
    if launch.model.mambas:
        return pattern_options(launch.model, chunks)
    if config.pp == 1:
        return []
    if is_even(chunks):
        return [("--num-virtual-stages-per-pipeline-rank", str(config.vpp))] if config.vpp > 1 else []
    ends = first_and_last(chunks, config.pp)
    if ends is not None and not launch.model.mtp_layers:
        names = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
        options: list[Option] = [
            (name, str(count)) for name, count in zip(names, ends, strict=True) if count is not None
        ]
        if config.vpp > 1:
            options.append(("--num-virtual-stages-per-pipeline-rank", str(config.vpp)))
        return options
    return [("--pipeline-model-parallel-layout", write_layout(chunks, launch.model.mtp_layers))]


def _data_parallel(launch: Launch, version: str) -> list[Option]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP's sharding strategies."""
    config = launch.config
    options: list[Option] = []
    if config.zero or uses_fsdp(launch):
        options.append(("--use-distributed-optimizer",))
    if uses_fsdp(launch):
        options += fsdp_options(launch, version)
    if copies := state_copies(launch):
        options.append(("--num-distributed-optimizer-instances", str(copies)))
    if reduces_in_bf16(launch):
        options.append(("--grad-reduce-in-bf16",))
    elif launch.job.precision is Precision.FP16 and megatron_stack(launch) and not uses_fsdp(launch):
        options.append(("--accumulate-allreduce-grads-in-fp32",))
    if config.dp * config.cp > 1 and overlaps_gradients(launch):
        options.append(("--overlap-grad-reduce",))
        if gathers_aside(launch):
            options.append(("--overlap-param-gather",))
    return options


def gathers_aside(launch: Launch) -> bool:
    """Are updated weights gathered during the next forward pass? Megatron-FSDP does nothing else."""
    stack = megatron_stack(launch)
    late = stack is not None and stack.engine.gathers_after_step(np.array(launch.config.zero)).item()
    return uses_fsdp(launch) or (launch.config.zero > 0 and not late)


def state_copies(launch: Launch) -> int:
    """Copies of what ZeRO shards, 0 where all of dp x cp share one. Raises `UnsupportedError`."""
    config, shards = launch.config, launch.config.dp * launch.config.cp
    if not (config.hsdp and config.zero):
        return 0
    if shards % config.hsdp:
        raise UnsupportedError("a shard group must divide dp x cp", f"{config.hsdp} of {shards}")
    return shards // config.hsdp if shards > config.hsdp else 0


def _experts(launch: Launch, version: str) -> list[Option]:
    config = launch.config
    if not launch.model.is_moe:
        return []
    options: list[Option] = [
        ("--expert-model-parallel-size", str(config.ep)),
        ("--expert-tensor-parallel-size", str(config.etp)),
    ]
    if launch.stack is not None:
        options.append(("--moe-permute-fusion",))  # the cost model reads and writes every routed token once
    if overlaps_experts(launch):
        options.append(("--overlap-moe-expert-parallel-comm",))
    if fuses_experts(launch):
        options += [(f"--{FUSED_EXPERTS}",), ("--moe-mlp-glu-interleave-size", str(INTERLEAVE))]
    dispatcher = fused_dispatcher(launch)
    if dispatcher is None:
        return [
            *options,
            ("--moe-token-dispatcher-type", nccl_dispatcher(launch)),
            *as_options(padding_fields(launch)),
        ]
    backend = ("--moe-flex-dispatcher-backend", str(dispatcher))
    return [*options, ("--moe-token-dispatcher-type", "flex"), backend, *capacity_options(launch, version)]


def fused_dispatcher(launch: Launch) -> Dispatcher | None:
    """The fused dispatcher that the prediction relies on. Alone in its group a rank has nothing to send, and DeepEP
    refuses to run (moe/token_dispatcher.py MoEFlexTokenDispatcher)."""
    stack, config = launch.stack, launch.config
    if stack is None or config.etp * config.ep == 1:
        return None
    dispatcher = stack.communication.dispatcher
    return dispatcher if dispatcher.fused else None


def nccl_dispatcher(launch: Launch) -> str:
    """By what NCCL exchanges tokens, as --moe-token-dispatcher-type takes it, where no fused dispatcher does."""
    stack = megatron_stack(launch)
    gathers = stack is not None and stack.communication.dispatcher is Dispatcher.ALL_GATHER
    return "allgather" if gathers else "alltoall"


def overlaps_gradients(launch: Launch) -> bool:
    """Are gradients reduced during the backward pass? Stacks before 2023 reduce them after it."""
    stack = megatron_stack(launch)
    return stack is None or stack.communication.dp_overlap > 0


def overlaps_tensor_parallel(launch: Launch) -> bool:
    """Does the prediction hide tensor-parallel collectives under products, where Transformer Engine can?

    Its user buffers need sequence parallelism and one node; they are asked for where measured recipes do: for dense
    models without latent attention, and not in 4 bits (Megatron-Bridge 067f987, perf_recipes/qwen/gb300/qwen3_moe.py:
    the gather of NVFP4 parameters is incompatible with them; every NVFP4 recipe switches them off).
    """
    stack, config = megatron_stack(launch), launch.config
    counted = stack is not None and stack.communication.tp_overlapped
    within = bool(config.sp) and 1 < config.tp <= launch.devices_per_node
    return counted and within and is_plain(launch.model, launch.job.precision)


def is_plain(model: ModelSpec, precision: Precision) -> bool:
    """Is it a model, in a format, of which measured recipes overlap tensor-parallel collectives?"""
    mixed = model.is_moe or model.has_latent_attention or model.state_spaces
    return not mixed and precision is not Precision.NVFP4


def reduces_in_bf16(launch: Launch) -> bool:
    """Are gradients kept and reduced in 16 bits, as the plan's memory has it?"""
    stack = megatron_stack(launch)
    return stack is not None and stack.engine.gradient == 2.0 and launch.job.precision is not Precision.FP32


def overlaps_experts(launch: Launch) -> bool:
    """Does the prediction hide dispatch and combine under another micro-batch's compute?"""
    stack = megatron_stack(launch)
    return stack is not None and stack.communication.ep_overlap > 0 and launch.config.ep > 1


def _check_loss(launch: Launch, version: str) -> None:
    stack = megatron_stack(launch)
    if stack is not None and fuses_loss(stack) and version not in WITH_ENGINES_LOSS:
        must = f"Megatron-LM {version} must compute the loss in Transformer Engine, in which the plan counts on it"
        hint = f"choose --framework-version {WITH_ENGINES_LOSS[0]}, or plan with the shipped stack"
        raise UnsupportedError(must, "it refuses to, for stability", hint)


def fuses_loss(stack: Stack) -> bool:
    """Is the loss computed in place? Where it is split over the vocabulary alone, the plan's memory is that."""
    return isinstance(stack.kernels.loss, Fused | InPlace)


def sparse_kernel(launch: Launch) -> SparseKernel:
    """The kernels of sparse attention; PyTorch's operations with another framework's stack."""
    stack = megatron_stack(launch)
    return (stack.kernels.sparse_attention if stack is not None else None) or SparseKernel.NONE


def _kernels(launch: Launch) -> list[Option]:
    """Kernels of the stack; those of another framework's stack have no names here, and defaults stay."""
    stack = megatron_stack(launch)
    if stack is None:
        return []
    options: list[Option] = [("--attention-backend", ATTENTION[stack.kernels.attention])]
    if isinstance(stack.kernels.loss, Fused | InPlace | Compiled):
        kind = "te" if fuses_loss(stack) else "native"
        options += [("--cross-entropy-loss-fusion",), ("--cross-entropy-fusion-impl", kind)]
    if not stack.kernels.code.fused_activation:
        options += [("--no-bias-swiglu-fusion",), ("--no-bias-gelu-fusion",)]
    said = any(rotates_unfused(attention, launch.details) for attention in launch.model.attentions)
    if stack.kernels.rotates_texts and not said:
        options.append((UNFUSED_ROTATION,))
    if not stack.engine.fused_weight_gradient:
        options.append(("--no-gradient-accumulation-fusion",))
    return options


def unlike_stack(launch: Launch) -> list[str]:
    """What the plan's stack counts on and these options do not bring."""
    stack, config, said = megatron_stack(launch), launch.config, []
    if stack is None:
        return ["kernels of the plan's stack, which is none of Megatron's: defaults are used"]
    if stack.communication.tp_overlapped and config.tp > 1 and not overlaps_tensor_parallel(launch):
        why = "experts or latent attention" if config.sp else "tensor but no sequence parallelism"
        why = why if config.tp <= launch.devices_per_node else "tensor parallelism across nodes"
        why = "GEMMs in 4 bits" if launch.job.precision is Precision.NVFP4 else why
        said.append(
            f"tensor-parallel collectives overlapped with GEMMs, which the stack's runs had: not asked for with {why}"
        )
    alone = TP_SERIAL in stack.name.split(SEPARATOR) and config.tp > 1
    if alone and not (is_plain(launch.model, launch.job.precision) and config.sp):
        said.append(
            "tensor-parallel collectives alone: as runs of such models had them, which planner check says"
        )
    if stack.kernels.kept_widths.narrow:
        said.append("SwiGLU's input kept in 8 bits: no argument says so, Megatron-Bridge does")
    if fused_dispatcher(launch) is Dispatcher.DEEPEP and launch.accelerator.startswith("mi"):
        said.append(
            "DeepEP on AMD devices: Primus puts in Primus-Turbo's (enable_primus_turbo, use_turbo_deepep)"
        )
    return said


def _recompute(launch: Launch) -> list[Option]:
    config = launch.config
    if config.recompute == Recompute.SELECTIVE:
        names = [name for bit, name in enumerate(MEGATRON_MODULES) if config.recompute_modules >> bit & 1]
        return [("--recompute-granularity", "selective"), ("--recompute-modules", *names)]
    if config.recompute != Recompute.FULL:
        return []
    full: list[Option] = [("--recompute-granularity", "full")]
    if config.recompute_layers >= -(-launch.model.num_layers // config.pp):
        return [*full, ("--recompute-method", "uniform"), ("--recompute-num-layers", "1")]
    if config.recompute_layers % config.vpp:
        must = "recomputed layers are counted per virtual stage: vpp must divide them"
        raise UnsupportedError(
            must, f"{config.recompute_layers} of vpp {config.vpp}", "choose a multiple of vpp"
        )
    count = config.recompute_layers // config.vpp
    return [*full, ("--recompute-method", "block"), ("--recompute-num-layers", str(count))]


def check_offload(launch: Launch) -> None:
    """Raise `UnsupportedError` for what Megatron-Core does not keep on the host."""
    config = launch.config
    if config.offload & OFFLOAD_OPTIMIZER and not config.zero:
        must = "an optimizer in CPU memory needs the distributed one"
        raise UnsupportedError(must, f"zero={config.zero}", "choose zero=1")
    if config.offload & OFFLOAD_ACTIVATIONS and (config.recompute or config.pp > 1):
        must = "activations in CPU memory need no recomputation and no pipeline"
        raise UnsupportedError(must, config.describe(), "choose recompute=none and pp=1")
    if config.offload & OFFLOAD_PARAMETERS:
        must = "Megatron-LM keeps parameters on the device"
        raise UnsupportedError(must, f"offload={config.offload}", "choose offload=optimizer")


def offloaded_layers(launch: Launch) -> int:
    """Layers whose activations go to the host: all but the two that are at work."""
    return max(launch.model.num_layers - 2, 1)


def _offload(launch: Launch) -> list[Option]:
    """The optimizer's states and its step on the host, and activations."""
    check_offload(launch)
    config, options = launch.config, list[Option]()
    if config.offload & OFFLOAD_OPTIMIZER:
        options += [("--optimizer-cpu-offload",), ("--optimizer-offload-fraction", "1.0")]
        if launch.job.optimizer is not Optimizer.ADAMW_BF16:
            options.append(("--use-precision-aware-optimizer",))
    if config.offload & OFFLOAD_ACTIVATIONS:
        options.append(("--cpu-offloading-num-layers", str(offloaded_layers(launch))))
    return options


def _precision(launch: Launch, version: str) -> list[Option]:
    muon = launch.job.optimizer is Optimizer.MUON
    optimizer = muon_options(launch, version) if muon else OPTIMIZERS.get(launch.job.optimizer)
    if optimizer is None:
        names = ", ".join((*OPTIMIZERS, Optimizer.MUON))
        must = f"the optimizer must be one that Megatron-LM's arguments name: {names}"
        raise UnsupportedError(must, launch.job.optimizer, "plan with one of these")
    if launch.job.optimizer is Optimizer.ADAMW_BF16 and not launch.config.zero:
        must = "16-bit moments need the distributed optimizer"
        raise UnsupportedError(must, f"zero={launch.config.zero}", "choose zero=1")
    narrow = [*bf16_layer_options(launch), *narrow_parameter_options(launch)]
    return [*PRECISIONS[launch.job.precision], *narrow, *optimizer]


def _training(launch: Launch) -> list[Option]:
    job = launch.job
    stack = megatron_stack(launch)
    dropout = "0.1" if stack is not None and stack.kernels.dropout else "0.0"
    return [
        ("--micro-batch-size", str(launch.config.micro_batch)),
        ("--global-batch-size", str(job.global_batch)),
        ("--train-iters", str(launch.steps)),
        ("--lr", "3e-4"),
        ("--min-lr", "3e-5"),
        ("--lr-decay-style", "cosine"),
        ("--clip-grad", "1.0"),
        ("--weight-decay", "0.1"),
        ("--attention-dropout", dropout),
        ("--hidden-dropout", dropout),
        ("--log-interval", "1"),
        ("--log-throughput",),
        ("--eval-iters", "0"),
        ("--distributed-timeout-minutes", "60"),
    ]


def _data(launch: Launch, version: str) -> list[Option]:
    """Made-up tokens, so that the launch runs before there is data; 0.16 adds a token to the vocabulary."""
    options: list[Option] = [("--mock-data",), ("--tokenizer-type", "NullTokenizer")]
    if version == "0.16.1":
        multiple = launch.pad_vocabulary * launch.config.tp
        options.append(("--padded-vocab-size", str(-(-launch.model.vocab // multiple) * multiple)))
    return options
