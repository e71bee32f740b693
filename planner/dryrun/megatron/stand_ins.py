"""What takes the place of a GPU while Megatron-Core runs on tensors without data?

Devices, streams, random generators and objects that ranks exchange; Apex's product that adds to a buffer of gradients
(csrc/megatron/fused_weight_gradient_dense.cpp); Transformer Engine's optimizer (TransformerEngine 2.x
pytorch/optimizers/fused_adam.py) and kernels over many tensors. Tokens are dealt evenly to experts, as their numbers
are not known. Left out: kernels of layers (`kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from planner.dryrun.megatron.core import (
    clip_grads,
    distrib_optimizer,
    language_module,
    layers,
    moe_utils,
    multi_latent_attention,
    optimizer,
    optimizers,
    parallel_state,
    param_and_grad_buffer,
    random,
    rope_utils,
    token_dispatcher,
)
from planner.dryrun.megatron.kernels import (
    AT_WORK,
    LatentKeys,
    LatentQueries,
    Loss,
    Permuted,
    Rotated,
    Sorted,
    Unpermuted,
    Work,
    changed,
    standing_in,
)
from planner.dryrun.megatron.layers import DuplicatedLinear
from planner.dryrun.recorder import Recorder
from planner.dryrun.values import Values

_CPU: Final = torch.device("cpu")
_COUNTED: Final = token_dispatcher.MoEAlltoAllTokenDispatcher.preprocess


@contextmanager
def without_gpu(recorder: Recorder, capability: tuple[int, int]) -> Iterator[None]:
    """Megatron-Core finds a GPU and kernels while it is entered."""
    with ExitStack() as stack:
        for where, name, what in (*_on_device(), *_fused()):
            stack.enter_context(patch.object(where, name, what, create=True))
        stack.enter_context(_OnCpu())
        AT_WORK.append(Work(recorder, capability))
        stack.callback(AT_WORK.pop)
        yield


Change = tuple[Any, str, Any]


def _on_device() -> list[Change]:
    cuda, distributed = torch.cuda, torch.distributed
    return [
        (cuda, "current_device", lambda: _CPU),
        (cuda, "device_count", lambda: 1),
        (cuda, "is_current_stream_capturing", lambda: False),
        (cuda, "synchronize", lambda *_: None),
        (cuda, "Stream", _Stream),
        (cuda, "current_stream", lambda *_: _STREAM),
        (cuda, "default_stream", lambda *_: _STREAM),
        (cuda, "stream", lambda *_: nullcontext()),
        (distributed, "all_gather_object", _all_alike),
        (param_and_grad_buffer, "_coalescing_manager", lambda *_, **__: nullcontext(_Stream())),
        (parallel_state, "create_group", _own_group(parallel_state.create_group)),
        (random, "_CUDA_RNG_STATE_TRACKER", _Generators()),
        (random, "_CUDA_RNG_STATE_TRACKER_INITIALIZED", True),
        (random, "_get_all_rng_states", lambda: (None, None, None)),
        (random, "_set_all_rng_states", lambda *_: None),
        (random, "_fork_rng", nullcontext),
    ]


def _fused() -> list[Change]:
    return [
        (layers, "_grad_accum_fusion_available", True),
        (layers, "fused_weight_gradient_mlp_cuda", _WeightGradients),
        (layers, "HAVE_TE", True),
        (layers, "get_dummy_wgrad", standing_in),
        (clip_grads, "multi_tensor_scale_impl", _scale),
        (optimizer, "multi_tensor_scale_impl", _scale),
        (optimizer, "get_grad_norm_fp32", _norm),
        (optimizers, "Adam", FusedAdam),
        (distrib_optimizer, "Adam", FusedAdam),
        (optimizers, "USING_PYTORCH_OPTIMIZER", False),
        (language_module, "te_parallel_cross_entropy", lambda logits, *_: Loss.apply(logits)),
        (rope_utils, "fused_apply_rotary_pos_emb", lambda heads, angles, **_: Rotated.apply(heads, angles)),
        (multi_latent_attention, "TELinear", DuplicatedLinear),
        (multi_latent_attention, "fused_apply_mla_rope_for_q", lambda queries, *_: LatentQueries.apply(queries)),
        (multi_latent_attention, "fused_apply_mla_rope_for_kv", _latent_keys),
        (moe_utils, "_MOE_LAYER_WISE_LOGGING_TRACKER", {}),
        (moe_utils, "HAVE_TE", True),
        (moe_utils, "te_general_gemm", None),
        (moe_utils, "fused_permute", Permuted),  # only asked whether it is there
        (moe_utils, "fused_permute_with_probs", _permute),
        (moe_utils, "fused_unpermute", _unpermute),
        (moe_utils, "fused_sort_chunks_by_index", lambda rows, *_: Sorted.apply(rows)[0]),
        (moe_utils, "fused_sort_chunks_by_index_with_probs", lambda rows, probs, *_: Sorted.apply(rows, probs)),
        (token_dispatcher.MoEAlltoAllTokenDispatcher, "preprocess", _even_shares),
    ]  # fmt: skip


class _OnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked
    """Tensors that are asked for on "cuda" are made on the CPU, and say by their type that they are on "cuda"."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if str(named.get("device", "")).startswith("cuda"):
            named = {**named, "device": _CPU}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **named)


class _Stream:
    """A stream that nothing waits for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        pass

    def wait(self) -> None:
        pass


_STREAM: Final = _Stream()


class _Generators:
    """Random generators of a rank, which no shape depends on."""

    def fork(self, name: str = "") -> Any:
        return nullcontext()

    def is_initialized(self) -> bool:
        return True

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, states: Any) -> None:
        pass


def _all_alike(found: list[Any], own: Any, group: Any = None) -> None:
    found[:] = [own] * len(found)


def _own_group(create: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the groups that this rank is in: a large world has tens of thousands of others."""

    def created(ranks: Any = None, **named: Any) -> Any:
        return create(ranks=ranks, **named) if torch.distributed.get_rank() in ranks else None

    return created


class _WeightGradients:
    """Apex's product that adds to the buffer of gradients."""

    @staticmethod
    def wgrad_gemm_accum_fp32(taken: Any, gradient: Any, total: Any) -> None:
        changed("wgrad_gemm_accum_fp32", taken, gradient, total)

    @staticmethod
    def wgrad_gemm_accum_fp16(taken: Any, gradient: Any, total: Any) -> None:
        changed("wgrad_gemm_accum_fp16", taken, gradient, total)


def _norm(gradients: Any, norm_type: float = 2.0, grad_stats_parallel_group: Any = None) -> float:
    """The norm of all gradients, by one kernel over many tensors."""
    changed("multi_tensor_l2norm", *gradients)
    return 1.0


def _scale(_: int, __: Any, tensors: Sequence[Sequence[Any]], ___: float) -> None:
    changed("multi_tensor_scale", *tensors[0], *tensors[1])


class FusedAdam(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not checked
    """AdamW whose update is one kernel over many tensors; the first step makes two moments of each."""

    def __init__(self, params: Any, lr: float = 1e-3, **named: Any) -> None:
        super().__init__(params, {"lr": lr, **named})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            trained = [one for one in group["params"] if one.grad is not None]
            for one in trained:
                if not self.state[one]:
                    self.state[one] = {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
            moments = [moment for one in trained for moment in self.state[one].values()]
            changed("multi_tensor_adam", *[one.grad for one in trained], *trained, *moments)


def _permute(tokens: Any, probs: Any, routing: Any, num_out_tokens: int) -> Any:
    return Permuted.apply(tokens, probs, routing, num_out_tokens)


def _unpermute(rows: Any, places: Any, restore_shape: Any, **_: Any) -> Any:
    return Unpermuted.apply(rows, places, restore_shape)


def _latent_keys(
    both: Any, shared: Any, cos: Any, sin: Any, width: int, keys: int, values: int, *_: Any
) -> Any:
    return LatentKeys.apply(both, shared, keys, values)


class NoValues(Values):
    """No values at all: what Megatron-Core asks of a tensor is whether a number is finite or none."""

    def __init__(self) -> None:
        super().__init__(0)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: list[Any]) -> None:
        """Nothing is computed."""


def _even_shares(dispatcher: Any, routing: Any) -> Any:
    """Counts of tokens where every rank sends every expert as many; those of a capacity follow from it alone."""
    senders = dispatcher.ep_size * dispatcher.tp_size
    if dispatcher.drop_and_pad:
        _COUNTED(dispatcher, routing)
        return _Counts([dispatcher.capacity * senders] * dispatcher.num_local_experts)
    sent = routing.shape[0] * dispatcher.config.moe_router_topk
    ranks = dispatcher.ep_size
    dispatcher.num_out_tokens = sent
    if senders > 1:
        dispatcher.input_splits = dispatcher.output_splits = [sent // ranks] * ranks
        dispatcher.output_splits_tp = _Counts([sent] * dispatcher.tp_size)
    each = sent // dispatcher.num_experts
    dispatcher.num_global_tokens_per_local_expert = _Counts([each] * senders * dispatcher.num_local_experts)
    dispatcher._maybe_update_cuda_sync_point("before_finish")
    return _Counts([senders * each] * dispatcher.num_local_experts)


class _Counts(list[int]):
    """Whole numbers, asked as a tensor of them is."""

    def tolist(self) -> list[int]:
        return list(self)

    def ravel(self) -> _Counts:
        return self

    @property
    def T(self) -> _Counts:  # noqa: N802  # as tensors have it
        return self
