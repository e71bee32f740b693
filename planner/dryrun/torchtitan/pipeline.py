"""One rank's stages of torchtitan's pipeline, which run its schedule where no other rank is there.

torchtitan splits the model and PyTorch's schedule runs the stages in its order; tensors from other ranks have the
shapes that those would send. No more micro-batches run than are ever in flight and one; buffers are there for all of
them, as PyTorch makes them. Source: PyTorch 2.13 distributed/pipelining (stage.py, schedules.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.distributed.pipelining._utils import (
    InferenceMode,
    _StageBackwardMeta,
    _StageForwardMeta,
    extract_tensor_meta,
)
from torch.distributed.tensor import DTensor, Shard

from planner.cost.captured.operation import Phase
from planner.dryrun.folding import SHORTEST, Part
from planner.dryrun.recorder import Recorder
from planner.dryrun.torchtitan.recipe import TitanRecipe

_ALL_IN_FLIGHT: Final = ("GPipe", "LoopedBFS")
_ORDERED: Final = ("Interleaved1F1B",)  # whose actions are listed beforehand


@dataclass
class Stage:
    """The rank's parts of the model, and the schedule that runs them."""

    schedule: Any
    stages: Sequence[Any]
    parts: list[Any]
    is_first: bool
    is_last: bool
    count: int
    """Micro-batches that run."""
    more: int
    """Micro-batches that are in flight beside those."""
    ran: list[Part]
    """Passes that ran."""

    def run(self, recorder: Recorder, batches: Sequence[Any]) -> None:
        """Forward and backward of a step; `batches`: of all micro-batches."""
        ran, passes = batches[: self.count], _Passes(recorder, self.ran)
        for stage in self.stages:
            stage.has_backward = True
            stage.clear_runtime_states()
            passes.follow(stage)
        self.schedule._step_microbatches(
            arg_mbs=[(one.tokens,) for one in ran] if self.is_first else None,
            kwarg_mbs=[{"positions": one.positions, "attention_masks": one.mask} for one in ran],
            target_mbs=[one.labels for one in ran] if self.is_last else None,
            losses=[] if self.is_last else None,
            return_outputs=False,
            loss_kwargs={"global_valid_tokens": ran[0].valid},
        )
        passes.end()


def stage_alone(recipe: TitanRecipe, spec: Any, model: Any, loss: Any, said: Mapping[str, Any]) -> Stage:
    """The stages of the recipe's rank; `said`: what torchtitan's parallelisation is told."""
    count, more = micro_batches_run(recipe)
    planned = (
        count if recipe.parallelism["pipeline_parallel_schedule"] in _ORDERED else recipe.num_microbatches
    )
    training = replace(said["training"], local_batch_size=planned * recipe.micro_batch)
    schedule, parts, first, last = spec.pipelining_fn(
        model,
        **{**said, "training": training},
        device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=spec.parallelize_fn,
        loss_fn=loss,
    )
    schedule._n_microbatches = count
    if more:
        schedule._num_stages = recipe.pipeline_rank + SHORTEST
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    for stage in stages:
        _stand_for_others(recipe, stage, said["parallel_dims"])
    schedule._warmup_p2p = _shapes_are_found_out
    return Stage(schedule, stages, parts, first, last, count, more, [])


def _shapes_are_found_out(stages: Sequence[Any], *_: Any) -> None:
    """By a micro-batch that runs beforehand, on which ranks agree where nothing else tells them."""
    for stage in stages:
        stage._inference_mode = InferenceMode.DYNAMIC


def micro_batches_run(recipe: TitanRecipe) -> tuple[int, int]:
    """How many micro-batches run, and how many are in flight beside those on the rank.

    As many as are ever in flight, and one more that finds the first one's gradients; of interleaved stages a whole
    number of rounds. Of those in flight of 1F1B few need to run (`folding.py`).
    """
    every, stages = recipe.num_microbatches, recipe.stages
    name = recipe.parallelism["pipeline_parallel_schedule"]
    if name in _ALL_IN_FLIGHT:
        return every, 0
    if name != "1F1B":
        return min(every, 2 * stages), 0
    ahead = min(every, stages - recipe.pipeline_rank)
    behind = int(every > ahead)
    more = max(ahead - SHORTEST, 0) if recipe.folds else 0
    return ahead - more + behind, more


def _stand_for_others(recipe: TitanRecipe, stage: Any, dims: Any) -> None:
    """What stages of other ranks say of tensors that they send, and buffers for all micro-batches."""

    def received(source: int) -> Any:
        if source > stage.stage_index:
            gradients = (replace(one, requires_grad=False) for one in stage._stage_meta.outputs)
            return _StageBackwardMeta(backward_metas=tuple(gradients))
        return _StageForwardMeta(forward_metas=(extract_tensor_meta(_hidden(recipe, dims)),))

    stage._recv_meta, stage._send_meta = received, lambda *_: None
    for name in ("_setup_forward_recv_info", "_setup_backward_recv_info"):
        own = getattr(stage, name)
        setattr(stage, name, lambda _, *rest, own=own: own(recipe.num_microbatches, *rest))


def _hidden(recipe: TitanRecipe, dims: Any) -> Any:
    """What goes from stage to stage: the hidden state, of which every tensor-parallel rank has its part."""
    parts = dims.tp
    shape = (recipe.micro_batch, recipe.seq_len // parts, recipe.model.hidden)
    local = torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
    if parts == 1:
        return local
    return DTensor.from_local(local, dims.get_mesh(["tp"]), (Shard(1),), run_check=False)


class _Passes:
    """Notes where passes begin and end, and tells the recorder which they are."""

    def __init__(self, recorder: Recorder, parts: list[Part]) -> None:
        self.recorder, self.parts = recorder, parts
        self.step = parts[-1].step + 1 if parts else 0
        self.begun: tuple[bool, int, int] | None = None

    def follow(self, stage: Any) -> None:
        """A stage asks for what it receives before each of its passes."""
        for name, forward in (("get_fwd_recv_ops", True), ("get_bwd_recv_ops", False)):
            own = getattr(type(stage), name)

            def asked(number: int, own: Any = own, forward: bool = forward) -> Any:
                self.end()
                self.begun = forward, number, len(self.recorder.recording.trace)
                self.recorder.phase = Phase.FORWARD if forward else Phase.BACKWARD
                return own(stage, number)

            setattr(stage, name, asked)

    def end(self) -> None:
        """The pass that was begun is over."""
        if self.begun is not None:
            forward, number, first = self.begun
            self.parts.append(Part(self.step, forward, number, first, len(self.recorder.recording.trace)))
        self.begun = None
