"""What does a training step of torchtitan ask of a device? Its own models and parallelisation, on fake tensors.

What its Trainer does in `__init__` and `train_step` is done here, without data, checkpoints and logs, by the functions
that it calls: of the rank's stage alone under pipeline parallelism. Source: torchtitan 0.3.0 trainer.py. Left out:
torch.compile; float8; the backend of types that fully_shard of PyTorch 2.14 reads (`spmd_types`): the one of DTensor
runs, whose tensors are as large.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

import torch
import torchtitan.tools.utils as tools
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

tools.device_type, tools.device_module = "cpu", torch.cpu  # before others of its modules take them

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import utils as distributed  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: E402
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from planner.cost.captured.operation import Phase  # noqa: E402
from planner.dryrun.folding import Part, UnequalPartsError, lengthened  # noqa: E402
from planner.dryrun.on_cuda import cuda_branches  # noqa: E402
from planner.dryrun.processes import process_of  # noqa: E402
from planner.dryrun.recorder import Recorder  # noqa: E402
from planner.dryrun.recording import Holds, Recording  # noqa: E402
from planner.dryrun.sharded import shards_beside  # noqa: E402
from planner.dryrun.torchtitan.attention import Mask, flex_attention  # noqa: E402
from planner.dryrun.torchtitan.models import torchtitan_model  # noqa: E402
from planner.dryrun.torchtitan.pipeline import Stage, stage_alone  # noqa: E402
from planner.dryrun.torchtitan.recipe import TitanRecipe  # noqa: E402
from planner.dryrun.transformers.recipe import MOST_MICROBATCHES  # noqa: E402
from planner.dryrun.values import NoValues  # noqa: E402
from planner.errors import PlannerError, UnsupportedError, in_short  # noqa: E402

_BACKEND: Final = "partial_dtensor"
_CHECKPOINTING: Final = {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}


def record_step(recipe: TitanRecipe, capability: tuple[int, int]) -> Recording:
    """Everything that building the rank's part of a model and two steps ask of a device of such a compute capability.

    Raises `UnsupportedError` for what cannot be run.
    """
    recording, parts, more = _recorded(recipe, capability, _step_twice)
    if not more:
        return recording
    try:
        return lengthened(recording, parts, more)
    except UnequalPartsError:
        return record_step(replace(recipe, folds=False), capability)


def passes_of(recipe: TitanRecipe, capability: tuple[int, int]) -> Recording:
    """What the forward and backward pass of a first micro-batch ask for, without what fully_shard gathers and sums.

    Raises `UnsupportedError` for what cannot be run.
    """
    return _recorded(recipe, capability, _pass_once, shards_beside)[0]


def _recorded(
    recipe: TitanRecipe,
    capability: tuple[int, int],
    step: Callable[[TitanRecipe, _Run, Recorder], None],
    within: Callable[[Recorder], AbstractContextManager[None]] = lambda recorder: nullcontext(),
) -> tuple[Recording, Sequence[Part], int]:
    """What building the rank's part of a model and a `step` of it ask for, which runs `within` a context; passes of a
    pipeline, and micro-batches in flight beside those that ran."""
    recorder = Recorder(NoValues(), capability)
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(_collected_later())
        stack.enter_context(cuda_branches(capability))
        stack.enter_context(flex_attention())
        stack.enter_context(_even_experts())
        stack.enter_context(_wide_autocast())
        stack.enter_context(process_of(recipe.rank, recipe.ranks, recorder))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder)
        stack.enter_context(within(recorder))
        try:
            run = _built(recipe, recorder)
            step(recipe, run, recorder)
        except PlannerError:
            raise
        except Exception as error:  # whatever its code, or an operation without shapes, ends with
            must = f"a dry run needs a step that runs on tensors without data, here {recipe.model.name}'s by torchtitan"
            raise UnsupportedError(must, in_short(error)) from error
        stage = run.stage
        del run
        return recorder.recording, *(((), 0) if stage is None else (stage.ran, stage.more))


@dataclass
class _Run:
    """What a step needs: `stage` is none without a pipeline."""

    parts: list[Any]
    loss: Any
    optimizers: Any
    dims: Any
    stage: Stage | None


@contextmanager
def _collected_later() -> Iterator[None]:
    """Python collects no garbage while it is entered, as torchtitan has it: but every 50 steps."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        gc.collect()


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torchtitan.tools.logging")
    level, root = logger.level, logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(root)
        logger.setLevel(level)


@contextmanager
def _even_experts() -> Iterator[None]:
    """Have every expert-parallel rank send as many tokens to each, which on a device counts say."""

    def counted(dispatcher: Any, local: Any, exchanged: Any, ranks: int) -> Any:
        exchanged = torch.ops._c10d_functional.wait_tensor(exchanged)
        share = dispatcher.planner_tokens * dispatcher.top_k // ranks
        return exchanged.reshape(-1), [share] * ranks, [share] * ranks

    own = AllToAllTokenDispatcher.dispatch

    def dispatch(dispatcher: Any, x: Any, *rest: Any) -> Any:
        dispatcher.planner_tokens = x.shape[0]
        return own(dispatcher, x, *rest)

    with (
        patch.object(AllToAllTokenDispatcher, "_sync_token_count_exchange", counted),
        patch.object(AllToAllTokenDispatcher, "dispatch", dispatch),
    ):
        yield


@contextmanager
def _wide_autocast() -> Iterator[None]:
    """Have autocast to fp32 cast, as that of CUDA does: that of a CPU refuses it."""
    own = torch.autocast

    @contextmanager
    def to_fp32() -> Iterator[None]:
        enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.float32)
        torch.autocast_increment_nesting()
        try:
            yield
        finally:
            if not torch.autocast_decrement_nesting():
                torch.clear_autocast_cache()
            torch.set_autocast_enabled("cpu", enabled)
            torch.set_autocast_dtype("cpu", dtype)

    def autocast(device_type: str, dtype: Any = None, **said: Any) -> Any:
        return to_fp32() if dtype is torch.float32 else own(device_type, dtype=dtype, **said)

    with patch.object(torch, "autocast", autocast):
        yield


def _config(recipe: TitanRecipe, spec: Any) -> Any:
    loss: Any = CrossEntropyLoss.Config(global_vocab_size=recipe.model.vocab)
    if recipe.chunks_loss:
        loss = ChunkedLossWrapper.Config(loss_fn=loss)
    return Trainer.Config(
        model_spec=spec,
        loss=loss,
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(**recipe.training, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(**recipe.parallelism, spmd_backend=_BACKEND),
        activation_checkpoint=_CHECKPOINTING[recipe.checkpointing],
        compile=CompileConfig(enable=False),
    )


def _built(recipe: TitanRecipe, recorder: Recorder) -> _Run:
    """The rank's parts of the model, split, checkpointed and sharded by torchtitan; their weights are written down."""
    spec = torchtitan_model(recipe.model, recipe.seq_len)
    config = _config(recipe, spec)
    distributed.set_spmd_backend(_BACKEND)
    loss = config.loss.build(compile_config=config.compile)
    with _disable_current_modes():  # on the meta device, as it does; numbers of ranks are real
        dims = ParallelDims.from_config(config.parallelism, recipe.ranks)
        dims.build_mesh()
        spec.model.update_from_config(config=config)
        with torch.device("meta"), tools.set_default_dtype(getattr(torch, config.training.dtype)):
            model = spec.model.build()
        said = {
            "parallel_dims": dims,
            "training": config.training,
            "parallelism": config.parallelism,
            "compile_config": config.compile,
            "ac_config": config.activation_checkpoint,
            "dump_folder": "",
        }
        stage = stage_alone(recipe, spec, model, loss, said) if recipe.stages > 1 else None
        parts = [spec.parallelize_fn(model, **said)] if stage is None else stage.parts
    with recorder.beside():
        for part in parts:
            part.to_empty(device="cpu")
            part.train()
        if recipe.chunks_loss and (stage is None or stage.is_last):
            loss.set_lm_head(parts[-1].lm_head)
            parts[-1]._skip_lm_head = True
        optimizers = config.optimizer.build(model_parts=parts)
        if spec.post_optimizer_build_fn is not None:
            spec.post_optimizer_build_fn(optimizers, parts, dims)
    for part in parts:
        recorder.hold([*part.parameters(), *part.buffers()], Holds.WEIGHTS)
    recorder.name_modules(parts[0] if len(parts) == 1 else torch.nn.ModuleList(parts))
    return _Run(parts, loss, optimizers, dims, stage)


def _pass_once(recipe: TitanRecipe, run: _Run, recorder: Recorder) -> None:
    batch = _batch(recipe, recorder)
    recorder.begin_step(0)
    with recorder.modules_followed():
        _micro_batch(run, recorder, batch)
    recorder.recording.end = len(recorder.recording.trace)  # before the end of the batch


def _step_twice(recipe: TitanRecipe, run: _Run, recorder: Recorder) -> None:
    trained = [one for part in run.parts for one in part.parameters()]
    for step in range(2):
        recorder.begin_step(step)
        run.optimizers.zero_grad(set_to_none=True)
        recorder.phase = Phase.FORWARD
        with recorder.modules_followed():
            if run.stage is not None:
                run.stage.run(recorder, [_batch(recipe, recorder) for _ in range(recipe.num_microbatches)])
            else:
                for _ in range(min(recipe.num_microbatches, MOST_MICROBATCHES)):
                    _micro_batch(run, recorder, _batch(recipe, recorder))
        recorder.hold([one.grad for one in trained if one.grad is not None], Holds.GRADIENTS)
        recorder.phase = Phase.OPTIMIZER
        distributed.clip_grad_norm_(
            trained,
            1.0,
            foreach=True,
            pp_mesh=run.dims.get_optional_mesh("pp"),
            ep_enabled=run.dims.ep_enabled,
        )
        run.optimizers.step()
        moments = (one for each in run.optimizers for state in each.state.values() for one in state.values())
        recorder.hold([one for one in moments if isinstance(one, torch.Tensor)], Holds.OPTIMIZER_STATES)
    recorder.recording.end = len(recorder.recording.trace)


@dataclass
class Batch:
    """Of one micro-batch: tokens, labels and positions (sequences, length), the tensors of its mask, and a count."""

    tokens: Any
    labels: Any
    positions: Any
    mask: Mask
    valid: Any


def _batch(recipe: TitanRecipe, recorder: Recorder) -> Batch:
    shape = (recipe.micro_batch, recipe.seq_len)
    tokens, labels, positions = (torch.empty(shape, dtype=torch.int64) for _ in range(3))
    mask, valid = Mask.of(positions), torch.empty((), dtype=torch.int64)
    recorder.hold([tokens, labels, positions, *mask.tensors, valid], Holds.INPUT)
    return Batch(tokens, labels, positions, mask, valid)


def _micro_batch(run: _Run, recorder: Recorder, batch: Batch) -> None:
    recorder.phase = Phase.FORWARD
    found = run.parts[0](batch.tokens, positions=batch.positions, attention_masks=batch.mask)
    loss, _ = run.loss(found, batch.labels, batch.valid)
    del found
    recorder.phase = Phase.BACKWARD
    loss.backward()
