"""How is a Hugging Face model spread over ranks? By the libraries' own code: DDP, FSDP2, tensor parallelism.

Sources: accelerate 1.15.0 utils/fsdp_utils.py (`fsdp2_prepare_model`, which is called) and accelerator.py (`no_sync`);
transformers 5.17 distributed/tensor_parallel.py (`apply_tensor_parallelism`, which is called).
Left out: loading, which goes over the host; buffers of NCCL, which lie outside the allocator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as distributed
import transformers

from planner.dialect import option
from planner.dryrun.processes import mesh_of
from planner.dryrun.transformers.recipe import Recipe, Sharding
from planner.errors import UnsupportedError

_REPLICAS: Final = "replicas"
_SHARDS: Final = "shards"
_TENSOR: Final = "tensor"
_BUCKET: Final = 25 * 2**20  # bytes; DistributedDataParallel's bucket_cap_mb


def spread(recipe: Recipe, model: Any) -> Any:
    """The model as one rank trains it. Raises `UnsupportedError` for what the libraries cannot do."""
    sizes = {_REPLICAS: recipe.replicas, _SHARDS: recipe.shards, _TENSOR: recipe.tensor}
    mesh = mesh_of(sizes)
    if recipe.tensor > 1 and recipe.sharding is Sharding.NONE:
        must = "layers divided over ranks must be sharded too: DDP and fused AdamW take no DTensors beside others"
        raise UnsupportedError(must, f"tp={recipe.tensor} with ZeRO stage 0", option("set", "zero=2"))
    if recipe.tensor > 1 and recipe.adapters is not None:
        must = "a dry run puts adapters on whole layers, not on those divided over ranks"
        raise UnsupportedError(must, f"tp={recipe.tensor}", option("set", "tp=1"))
    if recipe.tensor > 1:
        _divided(model, mesh[_TENSOR])
    return _replicated(model) if recipe.sharding is Sharding.NONE else _sharded(recipe, model, mesh)


def _divided(model: Any, mesh: Any) -> None:
    try:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError as error:
        must = f"transformers {transformers.__version__} must divide layers by DTensors, as 5.17 does"
        raise UnsupportedError(must, str(error)) from error
    if not model.supports_tp_plan:
        raise UnsupportedError("a model must have a plan of tensor parallelism", type(model).__name__)
    plan = ()
    if "tp_plan" in signature(apply_tensor_parallelism).parameters:  # from 5.24 on
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))[:1]
    apply_tensor_parallelism(model, mesh, *plan)


def _sharded(recipe: Recipe, model: Any, mesh: Any) -> Any:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    names = (_REPLICAS, _SHARDS) if recipe.replicas > 1 else (_SHARDS,)
    mixed = {"bfloat16": "bf16", "float16": "fp16", None: "no"}[recipe.weights.autocast]
    with patch.dict(os.environ):  # the plugin writes what it found
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=recipe.sharding is Sharding.WEIGHTS,
            auto_wrap_policy="transformer_based_wrap",
            cpu_ram_efficient_loading=False,
        )
        if mixed != "no":
            plugin.set_mixed_precision(mixed)
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=names),
        mixed_precision=mixed,
        is_main_process=False,
        device=torch.device("cpu"),
    )
    return fsdp2_prepare_model(accelerator, model)


def _replicated(model: Any) -> Any:
    """DDP, which copies gradients into buckets, sums those over all ranks and copies them back.

    The buckets are those of every step but the first, after which DDP cuts them by the order in which gradients came:
    that of the parameters, backwards. The sum is a hook of ours: PyTorch's own asks the fake process group for a result
    that it does not have.
    """
    assigned = distributed._compute_bucket_assignment_by_size

    def as_rebuilt(parameters: list[Any], _: Any, sparse: list[bool]) -> Any:
        limits = [distributed._DEFAULT_FIRST_BUCKET_BYTES, _BUCKET]
        backwards = list(range(len(parameters)))[::-1]
        found, sizes = assigned(parameters[::-1], limits, sparse[::-1], backwards)
        return found[::-1], sizes[::-1]

    with (
        patch("torch.nn.parallel.distributed._verify_param_shape_across_processes"),  # reads what they hold
        patch("torch.distributed._compute_bucket_assignment_by_size", as_rebuilt),
    ):
        spread = torch.nn.parallel.DistributedDataParallel(model)
    spread.register_comm_hook([], _all_reduced)
    spread.reducer = _Reducer(spread.reducer)
    return spread


class _Reducer:
    """DDP's, whose buckets stay as they are."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _all_reduced(works: list[Any], bucket: Any) -> Any:
    """Buckets are summed while gradients of others are computed; once the last is on its way all are waited for."""
    buffer = bucket.buffer().div_(distributed.get_world_size())
    works.append(distributed.all_reduce(buffer, async_op=True))
    if bucket.is_last():
        for work in works:
            work.wait()
        works.clear()
    done = torch.futures.Future[Any]()
    done.set_result(buffer)
    return done


_all_reduced.__annotations__.clear()  # PyTorch compares them with its own, which are no strings


def clip(trained: list[Any]) -> None:
    """Clip gradients as accelerate does, which takes those of each mesh together."""
    from accelerate import Accelerator

    Accelerator._clip_grad_norm_dtensor_aware(None, trained, 1.0)


@contextmanager
def accumulating(recipe: Recipe, model: Any) -> Iterator[None]:
    """Gradients stay on the rank while it is entered, as the Trainer has it for all but the last micro-batch."""
    if recipe.sharding is Sharding.NONE:
        with getattr(model, "no_sync", nullcontext)():
            yield
        return
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
