"""Which fields of a ConfigContainer does a plan decide, and what does it write there?

Source: see `planner.frameworks.megatron_bridge`. Left out: formats (`precision.py`), the model (`model.py`), CUDA
graphs (`graphs.py`).
"""

from __future__ import annotations

from typing import Any, Final

from planner.errors import UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.fused_experts import (
    INTERLEAVE,
    capacity_fields,
    fuses_experts,
    padding_fields,
    require_fuser,
)
from planner.frameworks.layout import is_even, write_layout
from planner.frameworks.megatron.arguments import (
    ATTENTION,
    CONTEXT_KINDS,
    SCHEDULES,
    check_offload,
    fused_dispatcher,
    fuses_loss,
    gathers_aside,
    nccl_dispatcher,
    offloaded_layers,
    overlaps_experts,
    overlaps_gradients,
    overlaps_tensor_parallel,
    reduces_in_bf16,
    state_copies,
)
from planner.frameworks.megatron.muon import MUON, TP_MODE
from planner.frameworks.megatron.states import (
    STRATEGIES,
    fsdp_of,
    keeps_narrow_parameters,
    megatron_stack,
    uses_fsdp,
)
from planner.frameworks.megatron_bridge.graphs import graph_fields
from planner.frameworks.megatron_bridge.model import model_fields
from planner.frameworks.megatron_bridge.notes import SHARED_OVERLAP
from planner.frameworks.megatron_bridge.parse import FLOAT8_INPUT, FUSED_ACTIVATION, LAYOUT
from planner.frameworks.megatron_bridge.precision import NAMED, PRECISIONS, Mixed, mixed_of
from planner.frameworks.megatron_bridge.recipes import Recipe
from planner.frameworks.megatron_bridge.sharding import FUSED_GRADIENTS, MAIN_GRADIENTS, MOMENTS
from planner.frameworks.refuse import require, require_masters
from planner.spec.config import (
    MEGATRON_MODULES,
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_OPTIMIZER,
    ContextKind,
    Recompute,
)
from planner.spec.job import NEWTON_SCHULZ_STEPS, Optimizer
from planner.spec.stack.losses import Compiled

TITLE: Final = "Megatron-Bridge"


def overrides_of(launch: Launch, recipe: Recipe) -> dict[str, Any]:
    """Dotted fields of the ConfigContainer but for its mixed precision. Raises `UnsupportedError`."""
    config, job, model = launch.config, launch.job, launch.model
    require(launch.schedule in SCHEDULES, TITLE, "this pipeline schedule", launch.schedule.name.lower())
    require_masters(launch, TITLE)
    require(job.precision in PRECISIONS, TITLE, "this precision", job.precision)
    _check_optimizer(launch)
    wide = job.optimizer is not Optimizer.ADAMW_BF16
    require(
        wide or config.zero >= 1, TITLE, "narrow moments without the distributed optimizer", job.optimizer
    )
    require_fuser(launch, TITLE, "export --to megatron")
    fields: dict[str, Any] = {
        "model.tensor_model_parallel_size": config.tp,
        "model.pipeline_model_parallel_size": config.pp,
        "model.virtual_pipeline_model_parallel_size": config.vpp if config.vpp > 1 else None,
        "model.context_parallel_size": config.cp,
        "model.sequence_parallel": bool(config.sp),
        LAYOUT: _layout(launch),
        "model.num_layers_in_first_pipeline_stage": None,
        "model.num_layers_in_last_pipeline_stage": None,
        "model.account_for_embedding_in_pipeline_split": False,
        "model.account_for_loss_in_pipeline_split": False,
        "model.seq_length": job.seq_len,
        "dataset.seq_length": job.seq_len,
        **_optimizer(launch),
        "optimizer.use_precision_aware_optimizer": not wide,
        "optimizer.main_grads_dtype": "torch.float32",
        "optimizer.main_params_dtype": "torch.float32",
        "optimizer.exp_avg_dtype": MOMENTS.get(job.optimizer, MOMENTS[Optimizer.ADAMW]),
        "optimizer.exp_avg_sq_dtype": MOMENTS.get(job.optimizer, MOMENTS[Optimizer.ADAMW]),
        "train.global_batch_size": job.global_batch,
        "train.micro_batch_size": config.micro_batch,
        "train.train_iters": launch.steps,
        "logger.log_interval": 1,
        **_sharding(launch),
        **_recompute(launch),
        **_kernels(launch),
        **_overlap(launch, recipe),
        **_offloaded(launch),
        **graph_fields(launch, TITLE),
    }
    if config.cp > 1:
        fields["model.cp_comm_type"] = CONTEXT_KINDS[model.context_kind(ContextKind(config.cp_kind))]
    if model.is_moe:
        fields["model.expert_model_parallel_size"] = config.ep
        fields["model.expert_tensor_parallel_size"] = config.etp
        dispatcher = fused_dispatcher(launch)
        fields["model.moe_token_dispatcher_type"] = "flex" if dispatcher else nccl_dispatcher(launch)
        if dispatcher:
            fields["model.moe_flex_dispatcher_backend"] = str(dispatcher)
        sized = capacity_fields(launch) if dispatcher else padding_fields(launch)
        fields |= {"model." + name: value for name, value in sized.items()}
        fields["model.moe_grouped_gemm"] = fields["model.moe_permute_fusion"] = True
        fused = fuses_experts(launch)
        fields["model.use_transformer_engine_op_fuser"] = fused
        fields["model.moe_mlp_glu_interleave_size"] = INTERLEAVE if fused else None
    return fields | model_fields(launch, recipe.settings)


def mixed_precision(launch: Launch) -> Mixed:
    """The formats of a plan; what its stack does not say is as the named precision has it."""
    precision = launch.job.precision
    named, stack = mixed_of(NAMED[PRECISIONS[precision]], ""), megatron_stack(launch)
    wide = named.wide if stack is None or uses_fsdp(launch) else not reduces_in_bf16(launch)
    gathers = named.gathers
    if gathers is not None and stack is not None:
        gathers = keeps_narrow_parameters(launch)
    return Mixed(precision, wide, gathers, launch.job.bf16_layers)


def _check_optimizer(launch: Launch) -> None:
    """Raise `UnsupportedError` for an optimizer that is not written.

    Its Muon of whole replicas is what planner costs; that of matrices dealt to ranks (dist_muon) is wired without
    Megatron-LM's layout of parameters (training/optim.py, Megatron-Core optimizer/muon.py), so that every rank keeps
    and all-reduces all gradients.
    """
    job = launch.job
    if job.optimizer is Optimizer.MUON and launch.config.zero:
        must = "Megatron-Bridge must scatter gradients of matrices to the ranks that update them; it all-reduces them"
        raise UnsupportedError(
            must, f"zero={launch.config.zero}", "plan with zero=0, or export --to megatron"
        )
    if job.optimizer not in (*MOMENTS, Optimizer.MUON):
        names = ", ".join((*MOMENTS, Optimizer.MUON))
        must = f"planner must know how to write the optimizer for Megatron-Bridge: {names}"
        raise UnsupportedError(must, job.optimizer, "plan with one of these, or export --to megatron")


def _optimizer(launch: Launch) -> dict[str, Any]:
    if launch.job.optimizer is not Optimizer.MUON:
        return {"optimizer.optimizer": "adam"}
    return {
        "optimizer.optimizer": MUON[0],
        "optimizer.muon_tp_mode": TP_MODE,
        "optimizer.muon_num_ns_steps": NEWTON_SCHULZ_STEPS,
    }


def _overlap(launch: Launch, recipe: Recipe) -> dict[str, Any]:
    """What runs under compute. A recipe's section comm_overlap, where it has one, overwrites model and ddp at setup."""
    config = launch.config
    ranks = config.dp * config.cp
    # tp ranks that do not divide an expert hold it alike
    alike = launch.model.is_moe and config.tp * ranks > config.ep * config.etp
    gradients = (ranks > 1 or alike) and overlaps_gradients(launch)
    of_replicas = {
        "overlap_grad_reduce": gradients,
        "overlap_param_gather": gradients and gathers_aside(launch),
    }
    of_model: dict[str, Any] = {"tp_comm_overlap": overlaps_tensor_parallel(launch)}
    experts = overlaps_experts(launch)
    if launch.model.is_moe:
        of_model["overlap_moe_expert_parallel_comm"] = experts
        if not experts:
            of_model["delay_wgrad_compute"] = False  # which needs it
    fields = {f"ddp.{name}": value for name, value in of_replicas.items()}
    if experts:
        fields[SHARED_OVERLAP] = False  # each refuses the other
    if recipe.overlaps:
        return fields | {f"comm_overlap.{name}": value for name, value in (of_model | of_replicas).items()}
    # as the section has them (training/comm_overlap.py _get_model_comm_overlap_cfgs)
    if launch.config.pp > 1:
        interleaved = launch.config.vpp > 1
        of_model |= {"overlap_p2p_comm": interleaved, "batch_p2p_comm": not interleaved}
    return fields | {f"model.{name}": value for name, value in of_model.items()}


def _layout(launch: Launch) -> str | None:
    """Layers of every chunk where they differ; a hybrid's pattern has them."""
    if launch.model.mambas:
        return None
    even = launch.config.pp == 1 or (is_even(launch.chunks) and not launch.model.mtp_layers)
    return None if even else write_layout(launch.chunks, launch.model.mtp_layers)


def _kernels(launch: Launch) -> dict[str, Any]:
    """Kernels of the stack, said even where they are off, since recipes differ; attention stays the recipe's unless
    the stack is slower than the fastest there is."""
    stack = megatron_stack(launch)
    if stack is None:
        return {}
    fused = fuses_loss(stack) or isinstance(stack.kernels.loss, Compiled)
    fields: dict[str, Any] = {"model.cross_entropy_loss_fusion": fused}
    if fused:
        fields["model.cross_entropy_fusion_impl"] = "te" if fuses_loss(stack) else "native"
    if stack.kernels.rotates_texts:
        fields["model.apply_rope_fusion"] = False
    if stack.kernels.kept_widths.narrow:
        fields[FLOAT8_INPUT] = True
    if not stack.kernels.code.fused_activation:
        fields[FUSED_ACTIVATION] = False
    if stack.kernels.dropout:
        fields |= {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1}
    attention = ATTENTION[stack.kernels.attention]
    return fields if attention == "auto" else fields | {"model.attention_backend": attention}


def _sharding(launch: Launch) -> dict[str, Any]:
    zero, stack = launch.config.zero, megatron_stack(launch)
    distributed = zero >= 1 or uses_fsdp(launch)
    fields: dict[str, Any] = {
        "ddp.use_distributed_optimizer": distributed,
        "optimizer.use_distributed_optimizer": distributed,
    }
    if uses_fsdp(launch):
        fields |= {
            "ddp.use_megatron_fsdp": True,
            "ddp.data_parallel_sharding_strategy": STRATEGIES[zero],
            "checkpoint.ckpt_format": "fsdp_dtensor",
        }
    if copies := state_copies(launch):
        fields["ddp.num_distributed_optimizer_instances"] = copies
    if (fsdp := fsdp_of(stack)) is not None:
        fields["ddp.fsdp_double_buffer"] = fsdp.buffers_twice
        fields["model.init_model_with_meta_device"] = zero >= 1
        if fsdp.gradient == 4.0:
            fields[MAIN_GRADIENTS] = "torch.float32"
        fields[FUSED_GRADIENTS] = fsdp.fused_weight_gradient
    return fields


def _offloaded(launch: Launch) -> dict[str, Any]:
    """What lies on the host, as Megatron-LM's arguments have it."""
    check_offload(launch)
    fields: dict[str, Any] = {}
    if launch.config.offload & OFFLOAD_OPTIMIZER:
        fields |= {
            "optimizer.optimizer_cpu_offload": True,
            "optimizer.optimizer_offload_fraction": 1.0,
            "optimizer.use_precision_aware_optimizer": True,
        }
    if launch.config.offload & OFFLOAD_ACTIVATIONS:
        fields |= {"model.cpu_offloading": True, "model.cpu_offloading_num_layers": offloaded_layers(launch)}
    return fields


def _recompute(launch: Launch) -> dict[str, Any]:
    config = launch.config
    kind = Recompute(config.recompute)
    names = [name for bit, name in enumerate(MEGATRON_MODULES) if config.recompute_modules >> bit & 1]
    if kind == Recompute.NONE:
        return {
            "model.recompute_granularity": None,
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
        }
    if kind == Recompute.SELECTIVE:
        return {
            "model.recompute_granularity": "selective",
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
            "model.recompute_modules": names,
            # which providers of models with shared experts have on, and which refuses to do these again
            **({SHARED_OVERLAP: False} if "shared_experts" in names else {}),
        }
    whole = config.recompute_layers >= -(-launch.model.num_layers // config.pp)
    count = config.recompute_layers
    require(whole or count % config.vpp == 0, TITLE, "this number of recomputed layers", count)
    return {
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform" if whole else "block",
        "model.recompute_num_layers": 1 if whole else config.recompute_layers // config.vpp,
    }
