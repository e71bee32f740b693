"""Which options of its framework may be set on a stack by name? `megatron-2026+no-fp8-param-gather`.

An option is named as the framework names it, and changes fields of the stack that is costed; launch files carry it.
Left out: what is an axis of the configuration, and numbers that were fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from planner.errors import InputError, UnknownNameError
from planner.spec.findings import Finding, finding
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import (
    AttentionKernel,
    CrossEntropy,
    Dispatcher,
    Float8Scales,
    PackedContext,
    SparseKernel,
    StateEngine,
)

SEPARATOR: Final = "+"
FLOAT8_ALL_GATHER: Final = "enable-fsdp-float8-all-gather"
FLOAT8_TENSORWISE: Final = "recipe-name=tensorwise"
FLOAT8_ROWWISE: Final = "recipe-name=rowwise"
DOUBLE_BUFFER: Final = "fsdp-double-buffer"
PURE_BF16: Final = "pure-bf16"
LIGER: Final = "use-liger-kernel"
LIGER_0_6_1: Final = "use-liger-kernel-0.6.1"
NO_SYNC: Final = "no-sync"
SDPA_MASK: Final = "sdpa-mask"
NO_COMPILE: Final = "no-compile"
AUTOCAST: Final = "amp"
EAGER_ATTENTION: Final = "eager-attention"
FOREACH: Final = "adamw-foreach"
COMPILE: Final = "compile"
EAGER_EXPERTS: Final = "eager-experts"
FLASH_ATTENTION: Final = "use-flash-attn"
FLASH_ATTENTION_3: Final = "flash-attention-3"
PAGED_STASH: Final = "moe-paged-stash"
FUSED_EXPERTS: Final = "use-transformer-engine-op-fuser"
ALL_GATHERED: Final = "moe-token-dispatcher-type=allgather"
EXPERTS_OVERLAPPED: Final = "overlap-moe-expert-parallel-comm"
# Share of a layer's compute that hides another one's dispatch and combine; what remains is its start and its end (start
# value).
EP_OVERLAP: Final = 0.8
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
_FP8: Final = (Precision.FP8, Precision.FP8_CS, Precision.FP8_MX, Precision.FP8_BLOCKWISE)
_SIXTEEN: Final = tuple(precision for precision in Precision if precision is not Precision.FP32)
_HALVES: Final = (Precision.BF16, Precision.FP8, Precision.FP8_CS)
# torchtitan 0.3.0 config/configs.py TrainingConfig.dtype; DeepSpeed 0.19.8 runtime/precision_config.py BF16Config
_PURE_BF16: Final = {"pure_bf16": True, "master": 0.0, "gradient": 2.0, "optimizer_transient": 0.0}
_TENSORWISE: Final[Mapping[str, Mapping[str, Any]]] = {
    "kernels": {"float8_scales": Float8Scales.TENSOR}, "communication": {"tp_gathers_float8": True},
}  # fmt: skip
_ROWWISE: Final[Mapping[str, Mapping[str, Any]]] = {
    "kernels": {"float8_scales": Float8Scales.ROW}, "communication": {"tp_gathers_float8": False},
}  # fmt: skip
# What torchtitan's layers run operation by operation without torch.compile.
NOT_COMPILED: Final[Mapping[str, Any]] = {
    "fused_norm": False, "fused_activation": False, "weighs_outputs_apart": True,
}  # fmt: skip
# What apply_liger_kernel_to_qwen2 and its like replace by default in transformers' models: rope, rms_norm, swiglu and
# fused_linear_cross_entropy (linkedin/Liger-Kernel ead96b6 src/liger_kernel/transformers/monkey_patch.py). Before 0.6.2
# of August 2025 (its 2845fe8) the product added a part's gradient of the head's weight to the others'.
LIGER_KERNELS: Final[Mapping[str, Any]] = {
    "fused_norm": True, "fused_activation": True, "fused_rotary": True, "cross_entropy": CrossEntropy.LINEAR,
}  # fmt: skip
OLDER_LIGER: Final[Mapping[str, Any]] = {**LIGER_KERNELS, "loss_adds_in_product": True}
# model_type of those whose layers Liger has (the same file, MODEL_TYPE_TO_APPLY_LIGER_FN): of others it changes nothing
LIGER_FAMILIES: Final = frozenset({
    "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm4", "gpt_oss",
    "granite", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama", "llama4_text", "ministral", "mistral", "mixtral",
    "mllama_text_model", "nemotron", "olmo2", "olmo3", "phi3", "qwen2", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text", "qwen3_vl_text", "smollm3",
})  # fmt: skip
# Whole collectives, with nothing under them: what published times of links say.
TP_NOT_OVERLAPPED: Final[Mapping[str, Mapping[str, Any]]] = {
    "communication": {"tp_exposed": 1.0, "tp_overlapped": False},
}
_GATHERS: Final = (
    "FSDP2 casts linear weights of a dense fp8_cs model before it gathers them, one scale a tensor"
)
_DSA_MEANINGS: Final = {
    SparseKernel.TILELANG: "sparse attention by TileLang's kernels, not by those of FlashMLA and cuDNN",
    SparseKernel.NONE: "sparse attention by PyTorch's operations on the scores of all pairs",
}
_LIGER_MEANING: Final = (
    "Liger's kernels in transformers: one each for norms, rotation and activation; the loss part by part"
)
_OLDER_LIGER_MEANING: Final = ", up to 0.6.1, whose products add up gradients of the head's weight"
_PURE_MEANING: Final = "weights, gradients and moments in bf16, without fp32 masters (full bf16 training)"


class OptionKind(StrEnum):
    """What turns an option on.

    SPEED: the same sums, taken in another time or memory: a search tries it. NUMERICS: other widths of what is kept,
    multiplied or sent: named with its gain, never taken unasked. FACT: what a release, a script or the data are like,
    which one has or has not.
    """

    SPEED = "speed"
    NUMERICS = "numerics"
    FACT = "fact"


@dataclass(frozen=True)
class StackOption:
    """`fields`: section of a stack -> what the option replaces there. `meaning`: in a line. `kind`: what turns it on.

    `engine`: of the stacks that take it, any where None. `precisions`: recipes that it changes, all where empty.
    `since`, `until`: first and last release, as of a stack, that take it. `experts`: does it change mixtures of experts
    alone? `indexers`: models of sparse attention alone? `needed`: are other recipes refused with it? `dispatcher`: how
    tokens must reach their experts with it, any way where None. `needs`: what must be installed for it.
    """

    name: str
    frameworks: tuple[str, ...]
    fields: Mapping[str, Mapping[str, Any]]
    meaning: str
    engine: StateEngine | None = None
    precisions: tuple[Precision, ...] = ()
    since: str = ""
    until: str = ""
    experts: bool = False
    indexers: bool = False
    needed: bool = False
    dispatcher: Dispatcher | None = None
    needs: str = ""
    kind: OptionKind = field(kw_only=True)

    def same_fields(self, other: StackOption) -> bool:
        """Does it replace a field that the other one replaces?"""
        return any(self.fields[section].keys() & other.fields.get(section, {}) for section in self.fields)


OPTIONS: Final = (
    StackOption(
        "fp8-param-gather", ("megatron",), {"states": {"fp8_param_gather": _FP8}},
        "linear weights are kept and gathered in 8 bits in every fp8 recipe", precisions=_FP8,
        kind=OptionKind.NUMERICS,  # weights are rounded to 8 bits before they are gathered
    ),
    StackOption(
        "no-fp8-param-gather", ("megatron",), {"states": {"fp8_param_gather": ()}},
        "fp8 recipes keep 8-bit copies beside 16-bit weights", precisions=_FP8,
        kind=OptionKind.NUMERICS,  # weights stay in 16 bits between steps
    ),
    StackOption(
        "fp4-param-gather", ("megatron",), {"states": {"fp4_param_gather": True}},
        "linear weights of nvfp4 are kept and gathered in 4 bits", StateEngine.CONTIGUOUS, (Precision.NVFP4,),
        kind=OptionKind.NUMERICS,  # weights are rounded to 4 bits before they are gathered
    ),
    StackOption(
        "no-fp4-param-gather", ("megatron",), {"states": {"fp4_param_gather": False}},
        "nvfp4 keeps 4-bit copies beside 16-bit weights", StateEngine.CONTIGUOUS, (Precision.NVFP4,),
        kind=OptionKind.NUMERICS,  # weights stay in 16 bits between steps
    ),
    StackOption(
        FLOAT8_ALL_GATHER, ("torchtitan",), {"states": {"float8_all_gather": True}, **_TENSORWISE}, _GATHERS,
        precisions=(Precision.FP8_CS,),
        kind=OptionKind.NUMERICS,  # weights are rounded by one scale a tensor
    ),
    StackOption(
        FLOAT8_ALL_GATHER, ("fsdp",), {"states": {"float8_all_gather": True}}, _GATHERS, precisions=(Precision.FP8_CS,),
        kind=OptionKind.NUMERICS,  # weights are rounded by one scale a tensor
    ),
    StackOption(
        FLOAT8_TENSORWISE, ("torchtitan",), _TENSORWISE, "torchao's float8 with one scale a tensor",
        precisions=(Precision.FP8_CS,),
        kind=OptionKind.NUMERICS,  # coarser scales
    ),
    StackOption(
        FLOAT8_ROWWISE, ("torchtitan",), _ROWWISE, "torchao's float8 with a scale a row, gathered in 16 bits",
        precisions=(Precision.FP8_CS,),
        kind=OptionKind.NUMERICS,  # finer scales
    ),
    StackOption(
        DOUBLE_BUFFER, ("megatron",), {"states": {"double_buffer": True}},
        "two layers are gathered and two reduced at most, in buffers made once", StateEngine.MEGATRON_FSDP,
        kind=OptionKind.SPEED,  # where gathered weights lie
    ),
    StackOption(
        FP32_GRADIENTS, ("megatron",),
        {"states": {"gradient": 4.0, "optimizer_transient": 0.0}, "communication": {"gradient_bytes": 4.0}},
        "gradients are accumulated and reduced in fp32, not in the width of weights", StateEngine.MEGATRON_FSDP,
        kind=OptionKind.NUMERICS,  # gradients in 32 bits instead of 16
    ),
    StackOption(
        PURE_BF16, ("torchtitan", "deepspeed", "maxtext"), {"states": _PURE_BF16}, _PURE_MEANING, precisions=_HALVES,
        needed=True,
        kind=OptionKind.NUMERICS,  # updates are rounded to 16 bits
    ),
    StackOption(  # temporaries of torch's default optimizer, see fsdp1-2023
        PURE_BF16, ("fsdp",), {"states": {**_PURE_BF16, "optimizer_transient": 2.0}}, _PURE_MEANING,
        precisions=_HALVES, needed=True,
        kind=OptionKind.NUMERICS,  # updates are rounded to 16 bits
    ),
    *(
        StackOption(name, (framework,), {"kernels": kernels}, _LIGER_MEANING + more, needs="liger-kernel", kind=kind)
        for framework in ("deepspeed", "fsdp", "transformers")
        for name, kernels, kind, more in (  # the same layers in fewer kernels; the older of a release
            (LIGER, LIGER_KERNELS, OptionKind.SPEED, ""),
            (LIGER_0_6_1, OLDER_LIGER, OptionKind.FACT, _OLDER_LIGER_MEANING),
        )
    ),
    *(
        # accelerate 1.15.0 accelerator.py no_sync; torch fsdp/_fully_shard/_fully_shard.py set_requires_gradient_sync
        StackOption(
            NO_SYNC, (framework,), {"states": {"microbatches_accumulate_whole": True}},
            "micro-batches accumulate whole gradients, reduced behind the last one, as Accelerate's and transformers' "
            "no_sync does without sync_each_batch",
            kind=kind,
        )
        # torchtitan's own trainer reduces in every micro-batch (b5bcd76 trainer.py): there it tells of another program
        for framework, kind in (
            ("fsdp", OptionKind.SPEED), ("transformers", OptionKind.SPEED), ("torchtitan", OptionKind.FACT)
        )
    ),
    *(
        StackOption(
            SDPA_MASK, (framework,), {"kernels": {"attention": AttentionKernel.MEMORY_EFFICIENT}},
            "attention by PyTorch's scaled_dot_product_attention with a mask, of the whole square: padded batches, and "
            "all of transformers 4.38 and 4.39", engine,  # huggingface/transformers#30070
            kind=OptionKind.FACT,  # what batches are padded to, and a release
        )
        for framework, engine in (
            ("deepspeed", StateEngine.DEEPSPEED), ("fsdp", StateEngine.TORCH), ("transformers", StateEngine.TORCH)
        )
    ),
    StackOption(  # torch/amp/autocast_mode.py: casts of weights are kept until the pass ends
        AUTOCAST, ("transformers",),
        {"states": {"pure_bf16": False, "master": 4.0, "gradient": 4.0}, "communication": {"gradient_bytes": 4.0}},
        "fp32 weights, gradients and moments under bf16 autocast, the Trainer's bf16=True", StateEngine.TORCH,
        precisions=(Precision.BF16, Precision.FP16),
        kind=OptionKind.NUMERICS,  # weights and updates in 32 bits instead of 16
    ),
    StackOption(
        EAGER_ATTENTION, ("transformers",), {"kernels": {"attention": AttentionKernel.EAGER}},
        "attn_implementation eager: scores are written out", StateEngine.TORCH,
        kind=OptionKind.FACT,  # as a script runs the model; never faster
    ),
    StackOption(  # torch/optim/adamw.py _multi_tensor_adamw: roots of the second moments, as wide as bf16 weights
        FOREACH, ("transformers",), {"states": {"optimizer_transient": 2.0}},
        "AdamW's foreach kernels, with temporaries as large as the weights in bf16", StateEngine.TORCH,
        kind=OptionKind.FACT,  # as a script runs the update; never faster than fused
    ),
    StackOption(  # start values of torchtitan-2026
        COMPILE, ("transformers",),
        {
            "kernels": {"fused_norm": True, "fused_activation": True, "single_operations": False},
            "host": {"layer_floor": 0.7e-3, "moe_layer_floor": 0.42e-3},
        },
        "the Trainer's torch_compile=True", StateEngine.TORCH,
        kind=OptionKind.FACT,  # whether a model compiles is a fact of its code
    ),
    StackOption(  # start value of deepspeed-2025: launches of every expert's products, one expert after the other
        EAGER_EXPERTS, ("transformers",), {"host": {"expert_launch": 13.9e-6}},
        "experts_implementation eager: one expert after the other, not grouped products", StateEngine.TORCH,
        experts=True,
        kind=OptionKind.FACT,  # as a script runs the model; never faster
    ),
    StackOption(  # start values of the host and of kernels: see deepspeed-2025
        NO_COMPILE, ("fsdp",),
        {
            "kernels": {"fused_norm": False, "fused_activation": False, "single_operations": True},
            "host": {"layer_floor": 1.6e-3, "expert_launch": 13.9e-6},
        },
        "transformers' modelling code without torch.compile: norms, rotary embedding, activation, sums and loss are "
        "separate unfused ops", StateEngine.TORCH,
        kind=OptionKind.FACT,  # as a script runs the model; never faster
    ),
    StackOption(  # as rows of measured runs that do not say "compile" are costed; of later releases a stack of its own
        NO_COMPILE, ("torchtitan",), {"kernels": NOT_COMPILED},
        "without torch.compile: norms, activations and weighing of experts are separate unfused ops", until="2024-12",
        kind=OptionKind.FACT,  # as a script runs the model; never faster
    ),
    StackOption(
        FLASH_ATTENTION_3, ("deepspeed",), {"kernels": {"attention": AttentionKernel.FLASH}},
        "attn_implementation flash_attention_3 of transformers on Hopper, flash_attention_4 on Blackwell, not "
        "FlashAttention-2", StateEngine.DEEPSPEED, needs="the newer FlashAttention",
        kind=OptionKind.SPEED,  # exact attention by a newer kernel
    ),
    *(
        StackOption(  # in Megatron-LM from 2022-12 on (its d693034); later stacks have it anyway
            FLASH_ATTENTION, (framework,), {"kernels": {"attention": AttentionKernel.FLASH}},
            "FlashAttention instead of the release's own softmax kernels", until="2022-12",
            kind=OptionKind.FACT,  # of releases after the stack's own
        )
        for framework in ("megatron", "megatron-deepspeed")
    ),
    *(
        StackOption(  # before 2f3a2d6 of March 2021 they always do; since then megatron/arguments.py has it
            NO_SCATTER, (framework,), {"communication": {"p2p_scatters": False}},
            "every tensor-parallel rank sends the next pipeline stage the whole hidden states", until="2022-12",
            kind=OptionKind.FACT,  # of older releases; never faster
        )
        for framework in ("megatron", "megatron-deepspeed")
    ),
    StackOption(
        TP_SERIAL, ("megatron",), TP_NOT_OVERLAPPED,
        "tensor-parallel collectives run alone, as where --tp-comm-overlap is not given", since="2024-01",
        kind=OptionKind.FACT,  # as a script launches it; never faster
    ),
    StackOption(
        DP_SERIAL, ("megatron",), {"communication": {"dp_overlap": 0.0}},
        "gradients are reduced, and weights gathered, not overlapped, as where --overlap-grad-reduce and "
        "--overlap-param-gather are not given", StateEngine.CONTIGUOUS, since="2024-01",
        kind=OptionKind.FACT,  # as a script launches it; never faster
    ),
    StackOption(
        GATHER_SERIAL, ("megatron",), {"communication": {"gathers_after_step": True}},
        "weights are gathered after the step and under nothing, as where --overlap-param-gather is not given",
        StateEngine.CONTIGUOUS, since="2024-01",
        kind=OptionKind.FACT,  # as a script launches it; never faster
    ),
    StackOption(
        UNFUSED_ATTENTION, ("megatron",), {"kernels": {"attention": AttentionKernel.FUSED_SOFTMAX}},
        "attention by GEMMs and a softmax of its own, which keep the scores of all pairs", since="2024-01",
        kind=OptionKind.FACT,  # as a script launches it; never faster
    ),
    StackOption(
        UNFUSED_SWIGLU, ("megatron",), {"kernels": {"fused_activation": False}},
        "SwiGLU by separate unfused ops of PyTorch, as in models of NeMo that do not set bias_activation_fusion",
        since="2024-01",
        kind=OptionKind.FACT,  # as a script launches it; never faster
    ),
    StackOption(
        FLOAT8_SWIGLU, ("megatron",), {"kernels": {"activation_input_bytes": 1.0}},
        "SwiGLU keeps its input in 8 bits; a field of Megatron-Core's configuration, no argument of Megatron-LM",
        since="2024-01",
        kind=OptionKind.NUMERICS,  # what the backward pass reads is rounded to 8 bits
    ),
    StackOption(
        UNFUSED_ROTATION, ("megatron",), {"kernels": {"rotates_texts": True}},
        "packed documents are rotated one by one, by separate unfused ops of PyTorch, as where Megatron-Bridge does "
        "not set apply_rope_fusion, before August 2026", since="2024-01",
        kind=OptionKind.FACT,  # of older releases; never faster
    ),
    StackOption(  # core/optimizer/optimizer_cuda_graph.py OptimizerCudaGraphWrapper, 3d87bfc of April 2026
        UPDATE_GRAPH, ("megatron",), {"host": {"update_captured": True}},
        "the optimizer's step is replayed as a CUDA graph: the CPU launches nothing for its tensors",
        StateEngine.CONTIGUOUS, since="2026-04",
        kind=OptionKind.SPEED,  # the same kernels, launched at once
    ),
    StackOption(
        TEXTS_IN_TURN, ("megatron",), {"communication": {"cp_packed": PackedContext.SINGLY}},
        "Transformer Engine 2.11 to 2.17: packed documents that context parallelism exchanges by all-to-all are put in "
        "order one by one, and none are exchanged by all-gather", since="2025-11",
        kind=OptionKind.FACT,  # of older releases; never faster
    ),
    StackOption(
        DROPOUT, ("megatron",), {"kernels": {"dropout": True}},
        "dropout where attention and the MLP return to the stream, of any share: masks and their passes",
        since="2024-01",
        kind=OptionKind.FACT,  # of the job: it is trained otherwise
    ),
    StackOption(  # the update copies a rank's share to fp32: core/optimizer/distrib_optimizer.py
        GRADIENTS_16, ("megatron",),
        {"states": {"gradient": 2.0, "optimizer_transient": 4.0}, "communication": {"gradient_bytes": 2.0}},
        "gradients are kept and reduced in 16 bits", StateEngine.CONTIGUOUS, _SIXTEEN, since="2024-01", needed=True,
        kind=OptionKind.NUMERICS,  # gradients of micro-batches and replicas are summed in 16 bits
    ),
    StackOption(
        GRADIENTS_32, ("megatron",),
        {"states": {"gradient": 4.0, "optimizer_transient": 0.0}, "communication": {"gradient_bytes": 4.0}},
        "gradients are kept and reduced in fp32", StateEngine.CONTIGUOUS, _SIXTEEN, since="2024-01",
        kind=OptionKind.NUMERICS,  # gradients are summed in 32 bits
    ),
    StackOption(
        Dispatcher.DEEPEP, ("megatron",), {"communication": {"dispatcher": Dispatcher.DEEPEP}},
        "tokens reach their experts once a node, by DeepEP's kernels, not by NCCL's all-to-all", since="2025-02",
        experts=True, needs="DeepEP",
        kind=OptionKind.SPEED,  # which kernels send the same tokens
    ),
    StackOption(
        Dispatcher.HYBRIDEP, ("megatron",), {"communication": {"dispatcher": Dispatcher.HYBRIDEP}},
        "tokens reach their experts once a node, by HybridEP's kernels, in NVLink domains beyond a node too",
        since="2025-12", experts=True, needs="HybridEP",
        kind=OptionKind.SPEED,  # which kernels send the same tokens
    ),
    StackOption(
        ALL_GATHERED, ("megatron",), {"communication": {"dispatcher": Dispatcher.ALL_GATHER}},
        "every token is gathered by all ranks of its experts' group, and their sums are reduce-scattered (the default "
        "of Megatron-LM's arguments)", since="2023-11", experts=True,
        kind=OptionKind.SPEED,  # which collectives send the same tokens
    ),
    StackOption(  # Megatron-Core 0.14 (its moe/README.md): forward and backward of two micro-batches side by side
        EXPERTS_OVERLAPPED, ("megatron",), {"communication": {"ep_overlap": EP_OVERLAP}},
        "dispatch and combine are hidden under another micro-batch's compute", StateEngine.CONTIGUOUS, since="2025-09",
        experts=True,
        kind=OptionKind.SPEED,  # when the same tokens are sent
    ),
    StackOption(
        FUSED_EXPERTS, ("megatron",), {"kernels": {"fused_experts": True}},
        "grouped GEMMs apply the experts' activation and quantise what they write (MXFP8 on Blackwell)",
        precisions=(Precision.FP8_MX,), since="2026-05", experts=True, needed=True, needs="Transformer Engine 2.15",
        kind=OptionKind.SPEED,  # fewer passes over the same products
    ),
    StackOption(  # as 8 of 13 performance recipes of full-iteration graphs (Megatron-Bridge 067f987 perf_recipes)
        PAGED_STASH, ("megatron",), {"kernels": {"expert_capacity": 1.5, "expert_stash": 1.2}},
        "HybridEP's experts receive half as many rows again as balanced routing sends into a buffer of one size, and "
        "keep 1.2 times as many: graphs of the full iteration take them", since="2026-05", experts=True,
        dispatcher=Dispatcher.HYBRIDEP,
        kind=OptionKind.SPEED,  # buffers of one size, for graphs of the full iteration
    ),
    *(
        StackOption(
            name, ("megatron",), {"kernels": {"sparse_attention": kernel}}, _DSA_MEANINGS[kernel], since="2026-05",
            indexers=True, kind=kind,
        )
        # TileLang's score in 16 bits where cuDNN's do in fp32; PyTorch's are what one has without either
        for (kernel, name), kind in zip(DSA_KERNELS.items(), (OptionKind.NUMERICS, OptionKind.FACT), strict=True)
    ),
)  # fmt: skip


def options_for(stack: Stack) -> tuple[StackOption, ...]:
    """The options that a stack takes."""
    return tuple(
        option
        for option in OPTIONS
        if stack.framework in option.frameworks
        and option.engine in (None, stack.states.engine)
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
        if option.name == LIGER and model.family not in LIGER_FAMILIES:
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
