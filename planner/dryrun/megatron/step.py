"""What does a training step of a model in Megatron-Core ask of a device? Its own code, run on tensors without data.

One rank of the pipeline at a time, in a process group of the whole size in which nothing is sent: its chunks, its
data parallelism and optimizer, and its schedule are the package's own. Two steps, as the first makes the moments of the
optimizer. Left out: what other ranks do; loading of weights.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.cost.captured.operation import Phase
from planner.dryrun.megatron.core import (
    Float16Module,
    GPTModel,
    distributed,
    optimizers,
    parallel_state,
    schedules,
)
from planner.dryrun.megatron.layers import block_spec
from planner.dryrun.megatron.recipe import MegatronRecipe
from planner.dryrun.megatron.settings import Settings, settings_of
from planner.dryrun.megatron.stand_ins import NoValues, without_gpu
from planner.dryrun.on_cuda import cuda_branches
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Recording
from planner.errors import PlannerError, UnsupportedError, in_short


def record_step(recipe: MegatronRecipe, capability: tuple[int, int]) -> Recording:
    """Everything that building a pipeline rank and two of its steps ask of a device.

    Raises `UnsupportedError` for what cannot be run.
    """
    recorder = Recorder(NoValues(), capability)
    try:
        with (
            _in_group(recipe),
            without_gpu(recorder, capability),
            _recorded(recipe, recorder, capability) as settings,
        ):
            _run(settings, recipe, recorder)
            end = len(recorder.recording.trace)
    except PlannerError:
        raise
    except Exception as error:  # whatever the package's own code, or an operation without shapes, ends with
        must = f"a dry run needs a step that Megatron-Core runs on tensors without data, here {recipe.name}'s"
        raise UnsupportedError(must, in_short(error)) from error
    recorder.recording.end = end
    gc.collect()
    return recorder.recording


@contextmanager
def _in_group(recipe: MegatronRecipe) -> Iterator[None]:
    """The first of the devices of a pipeline rank, in a world in which nothing is sent, and silent."""
    level = logging.root.manager.disable
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        stack.callback(logging.disable, level)
        stack.callback(setattr, sys, "excepthook", sys.excepthook)  # PyTorch puts one in that names the rank
        torch.distributed.init_process_group(
            "fake", rank=recipe.first_device, world_size=recipe.devices, store=FakeStore()
        )
        stack.callback(torch.distributed.destroy_process_group)
        yield


@contextmanager
def _recorded(recipe: MegatronRecipe, recorder: Recorder, capability: tuple[int, int]) -> Iterator[Settings]:
    """Megatron-Core's own groups, and everything on tensors without data."""
    config, settings = recipe.config, settings_of(recipe)
    with ExitStack() as stack:
        stack.enter_context(cuda_branches(capability))
        parallel_state.initialize_model_parallel(
            config.tp,
            config.pp,
            config.vpp if config.vpp > 1 else None,
            expert_model_parallel_size=config.ep,
            expert_tensor_parallel_size=config.etp,
            num_distributed_optimizer_instances=settings.instances,
            create_gloo_process_groups=False,
        )
        stack.callback(parallel_state.destroy_model_parallel)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder)
        yield settings


def _run(settings: Settings, recipe: MegatronRecipe, recorder: Recorder) -> None:
    config = settings.transformer
    chunks = _chunks(settings, recipe, recorder)
    optimizer = optimizers.get_megatron_optimizer(settings.optimizer, chunks, use_gloo_process_groups=False)
    _hold_states(chunks, optimizer, recorder)
    config.finalize_model_grads_func = distributed.finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if settings.buffers.overlap_grad_reduce:
        config.no_sync_func = _one_or_all([chunk.no_sync for chunk in chunks])
        config.grad_sync_func = _one_or_all([chunk.start_grad_sync for chunk in chunks])
    run = schedules.get_forward_backward_func()
    for step in range(2):
        recorder.begin_step(step)
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        with recorder.modules_followed(), _phases(recorder):
            run(
                forward_step_func=partial(_forward, recorder, recipe),
                data_iterator=[None] * len(chunks) if len(chunks) > 1 else None,
                model=chunks,
                num_microbatches=recipe.run_microbatches,
                seq_length=recipe.seq_len,
                micro_batch_size=recipe.micro_batch,
                forward_only=False,
            )
        recorder.phase = Phase.OPTIMIZER
        optimizer.step()
        _hold_moments(optimizer, recorder)


def _one_or_all(functions: list[Any]) -> Any:
    """As schedules take them: a list where a rank has several chunks."""
    return functions if len(functions) > 1 else functions[0]


def _chunks(settings: Settings, recipe: MegatronRecipe, recorder: Recorder) -> list[Any]:
    """The rank's part of the model, as Megatron-LM's `get_model` builds it."""
    pp, vpp = recipe.config.pp, recipe.config.vpp
    built = []
    for chunk in range(vpp):
        stage = chunk if vpp > 1 else None
        built.append(
            GPTModel(
                config=settings.transformer,
                transformer_layer_spec=block_spec(settings.transformer, stage),
                pre_process=recipe.rank == 0 and chunk == 0,
                post_process=recipe.rank == pp - 1 and chunk == vpp - 1,
                vp_stage=stage,
                **settings.model,
            )
        )
    recorder.name_modules(built[0] if vpp == 1 else torch.nn.ModuleList(built))
    return [
        distributed.DistributedDataParallel(
            settings.transformer,
            settings.buffers,
            Float16Module(settings.transformer, model),
            disable_bucketing=number > 0,
        )
        for number, model in enumerate(built)
    ]


def _forward(recorder: Recorder, recipe: MegatronRecipe, _: Any, model: Any) -> tuple[Any, Any]:
    """One micro-batch through a chunk: the ends of the pipeline read tokens, labels and positions."""
    recorder.phase = Phase.FORWARD
    inner = model.module.module
    shape = (recipe.micro_batch, recipe.seq_len)
    tokens = labels = places = mask = None
    if inner.pre_process or inner.post_process:
        tokens, labels, places = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
        mask = torch.ones(shape, dtype=torch.float32)
        recorder.hold([tokens, labels, places, mask], Holds.INPUT)
    out = model(tokens, places, None, labels=labels if inner.post_process else None, loss_mask=mask)
    return out, partial(_loss, mask)


def _loss(mask: Any, losses: Any) -> tuple[Any, Any, dict[str, Any]]:
    """As Megatron-LM's pretrain_gpt.py adds up the losses of tokens."""
    kept = mask.view(-1).float()
    loss = torch.sum(losses.view(-1).float() * kept)
    tokens = kept.sum().clone().detach().to(torch.int)
    return loss, tokens, {"lm loss": torch.cat([loss.clone().detach().view(1), tokens.view(1)])}


@contextmanager
def _phases(recorder: Recorder) -> Iterator[None]:
    """Know while it is entered which operations are of a backward pass."""
    backward = schedules.backward_step

    def step(*args: Any, **named: Any) -> Any:
        recorder.phase = Phase.BACKWARD
        return backward(*args, **named)

    with patch.object(schedules, "backward_step", step):
        yield


def _hold_states(chunks: list[Any], optimizer: Any, recorder: Recorder) -> None:
    buffers = [buffer for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    recorder.hold([parameter for chunk in chunks for parameter in chunk.parameters()], Holds.WEIGHTS)
    recorder.hold([buffer.grad_data for buffer in buffers], Holds.GRADIENTS)
    masters = [one for each in optimizer.chained_optimizers for one in _masters(each)]
    recorder.hold(masters, Holds.OPTIMIZER_STATES)


def _masters(optimizer: Any) -> list[Any]:
    """Weights in fp32: of the distributed optimizer its shards, else of all weights."""
    names = ("shard_fp32_from_float16_groups", "fp32_from_float16_groups")
    return [one for name in names for group in getattr(optimizer, name, ()) for one in group]


def _hold_moments(optimizer: Any, recorder: Recorder) -> None:
    states = [state for each in optimizer.chained_optimizers for state in each.optimizer.state.values()]
    recorder.hold([one for state in states for one in state.values()], Holds.OPTIMIZER_STATES)
