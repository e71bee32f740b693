"""What does a training step of a Hugging Face model ask of a device? The model's own code, run on fake tensors.

Twice: the first step makes the moments of the optimizer, those after it find them. Left out: what other software runs;
loading of weights, which is over before the first step.
"""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.cost.captured.operation import Phase
from planner.dryrun.folding import UnequalPartsError
from planner.dryrun.periods import Links
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.repeated import repeated
from planner.dryrun.transformers.batches import inputs_of
from planner.dryrun.transformers.library import not_traced, on_device
from planner.dryrun.transformers.model import config_of, experts_of, loaded, plain_token, prepared
from planner.dryrun.transformers.parts import needed
from planner.dryrun.transformers.recipe import MOST_MICROBATCHES, Recipe, Sharding
from planner.dryrun.transformers.shortened import Shortened, shortened
from planner.dryrun.transformers.updates import check_update, optimizer_of
from planner.dryrun.values import Values
from planner.errors import InputError, PlannerError, install_hint

# names of what some models are given as well
_BESIDE_TOKENS: Final = ("pixel_values", "_features", "_states")


def record_step(recipe: Recipe, capability: tuple[int, int]) -> Recording:
    """Everything that building a model and two of its steps ask of a device of such a compute capability.

    Raises `InputError` for a configuration that transformers refuses, `UnsupportedError` for what cannot be run.
    """
    check_update(recipe)
    config = config_of(recipe)
    if recipe.objective is not None:
        _load_trl()
    if recipe.compiled:
        import_module("torch._inductor.decomposition")  # takes what `cuda_branches` keeps from others
    few = shortened(recipe, config)
    if few is not None and (found := by_few(recipe, few, capability)) is not None:
        return found
    return whole_step(recipe, config, capability)


def by_few(recipe: Recipe, few: Shortened, capability: tuple[int, int]) -> Recording | None:
    """The record of the whole model, by one of few of its layers; None where one of fewer is not as that says, or does
    not run."""
    links = Links()
    try:
        short = whole_step(recipe, few.config, capability, links)
        shorter = whole_step(recipe, few.shorter, capability)
        return repeated(short, links, few.stretch, shorter, few.periods)
    except (UnequalPartsError, PlannerError):  # the whole model says why
        return None


def passes_of(recipe: Recipe, config: Any, capability: tuple[int, int]) -> Recording:
    """What a model of this configuration asks for in the forward and backward passes of a first step."""
    return whole_step(recipe, config, capability, run=_pass_once)


def whole_step(
    recipe: Recipe,
    config: Any,
    capability: tuple[int, int],
    links: Links | None = None,
    run: Callable[[Recipe, Any, Any, Recorder], None] | None = None,
) -> Recording:
    """Everything that a model of this configuration asks for; `links` of its operations are written down. `run`: what
    is run of it, by default two steps."""
    recorder = Recorder(Values(experts_of(config)), capability)
    recorder.links = links
    with (
        on_device(capability) as undone,
        _process(recipe, recorder),
        FakeTensorMode(allow_non_fake_inputs=True),
        recorder,
    ):
        model = _built(recipe, config, recorder, undone)
        with _compiled(recorder, capability) if recipe.compiled else not_traced():
            called = torch.compile(model) if recipe.compiled else model
            with needed(f"what {recipe.name} is trained for to be made ready"):
                task = _task(recipe, called, config, recorder, undone)
            (run or _step_twice)(recipe, model, task, recorder)
        del model, called, task
        gc.collect()
    return recorder.recording


def _process(recipe: Recipe, recorder: Recorder) -> AbstractContextManager[None]:
    """One of the ranks that take the step."""
    if recipe.ranks == 1:
        return nullcontext()
    from planner.dryrun.processes import process_of  # most steps have one

    return process_of(0, recipe.ranks, recorder)


def _load_trl() -> None:
    """Before tensors are fake. Raises `InputError` where it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("planner.dryrun.transformers.preferences")
    except ImportError as error:
        raise InputError("losses of DPO and GRPO need trl", str(error), install_hint("dryrun")) from error


@contextmanager
def _compiled(recorder: Recorder, capability: tuple[int, int]) -> Iterator[None]:
    """The model is traced here, as on a device."""
    from planner.dryrun.compiled.lowering import lowered_for_cuda  # few recipes are compiled

    with lowered_for_cuda(recorder, capability):
        yield


def _built(recipe: Recipe, config: Any, recorder: Recorder, undone: ExitStack) -> Any:
    """The model, with what is trained of it; its weights, or the rank's part of them, are written down."""
    with nullcontext() if recipe.sharding is Sharding.NONE else recorder.beside():  # loaded by the host
        model = spread = prepared(recipe, config, recorder, undone)
        if recipe.ranks > 1:
            from planner.dryrun.transformers import data_parallel

            must = (
                f"{recipe.name} to be such that {_spread_by(recipe)} can spread it over {recipe.ranks} ranks"
            )
            with (
                recorder.holding(Holds.GRADIENTS),
                needed(must, "run it on one device"),
            ):
                spread = data_parallel.spread(recipe, model)
    recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    recorder.name_modules(model)
    return spread


def _task(recipe: Recipe, model: Any, config: Any, recorder: Recorder, undone: ExitStack) -> Any:
    """What a step's passes are run for: `begin`, of a step, and `loss`, of a micro-batch."""
    if recipe.objective is None:
        inputs = inputs_of(recipe, plain_token(config))
        return SimpleNamespace(
            inputs=inputs, begin=lambda micro_batches: None, loss=lambda: model(**inputs).loss
        )
    from planner.dryrun.transformers.preferences import Preferences, add_heads, reference_needed

    reference = None
    if reference_needed(recipe):
        reference = loaded(recipe, config, recorder).eval()
        add_heads(recipe, reference, undone)
        recorder.name_modules(reference, "reference.")
    return Preferences(recipe, model, reference, recorder)


def _pass_once(recipe: Recipe, model: Any, task: Any, recorder: Recorder) -> None:
    recorder.hold([one for one in task.inputs.values() if isinstance(one, torch.Tensor)], Holds.INPUT)
    recorder.begin_step(0)
    _passes(recipe, model, task, recorder, 1)
    grown = (one.grad for one in model.parameters() if one.grad is not None)
    recorder.hold(list(grown), Holds.GRADIENTS)
    recorder.recording.end = len(recorder.recording.trace)


def _step_twice(recipe: Recipe, model: Any, task: Any, recorder: Recorder) -> None:
    trained = [one for one in model.parameters() if one.requires_grad]
    with needed(*_must_update(recipe)):
        optimizer = optimizer_of(recipe.update, model)
    recorder.hold([one for one in task.inputs.values() if isinstance(one, torch.Tensor)], Holds.INPUT)
    micro = min(recipe.num_microbatches, MOST_MICROBATCHES)
    for step in range(2):
        recorder.begin_step(step)
        _passes(recipe, model, task, recorder, micro)
        recorder.hold([one.grad for one in trained if one.grad is not None], Holds.GRADIENTS)
        recorder.phase = Phase.OPTIMIZER
        with needed(*_must_update(recipe)):
            _clip(recipe, trained)
            optimizer.step()
        moments = (one for state in optimizer.state.values() for one in state.values())
        recorder.hold([one for one in moments if isinstance(one, torch.Tensor)], Holds.OPTIMIZER_STATES)
        optimizer.zero_grad(set_to_none=True)
    recorder.recording.end = len(recorder.recording.trace)  # before the optimizer's own end


def _passes(recipe: Recipe, model: Any, task: Any, recorder: Recorder, micro: int) -> None:
    """The forward and backward passes of so many micro-batches."""
    dtype = recipe.weights.autocast if recipe.objective is None else None
    autocast = {"dtype": getattr(torch, dtype or "bfloat16"), "enabled": dtype is not None}
    # hooks of modules would be compiled with them, and again whenever they change
    followed = nullcontext if recipe.compiled else recorder.modules_followed
    recorder.phase = Phase.FORWARD
    with followed(), needed(*_must_run(recipe, model, "forward")), torch.autocast("cpu", **autocast):
        task.begin(micro)
    for number in range(micro):
        recorder.phase = Phase.FORWARD
        with followed(), _synchronising(recipe, model, number == micro - 1):
            with needed(*_must_run(recipe, model, "forward")), torch.autocast("cpu", **autocast):
                loss = task.loss() / micro
            recorder.phase = Phase.BACKWARD
            with needed(*_must_run(recipe, model, "backward")):
                loss.backward()
        del loss  # and what its graph holds beside tensors saved, as that of bitsandbytes' 8 bits does


def _clip(recipe: Recipe, trained: list[Any]) -> None:
    if recipe.ranks == 1:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        return
    from planner.dryrun.transformers import data_parallel

    data_parallel.clip(trained)


def _synchronising(recipe: Recipe, model: Any, last: bool) -> AbstractContextManager[None]:
    """Ranks sum gradients of every micro-batch, or those of the last one and all before it."""
    every = recipe.sharding is not Sharding.NONE and not recipe.accumulates_whole
    if recipe.ranks == 1 or every or last:
        return nullcontext()
    from planner.dryrun.transformers.data_parallel import accumulating

    return accumulating(recipe, model)


def _must_run(recipe: Recipe, model: Any, way: str) -> tuple[str, str]:
    """What must hold of a pass, and a hint where the model takes more than tokens."""
    under = f" under {_spread_by(recipe)}" if recipe.ranks > 1 else ""
    must = f"a model whose {way} pass runs on tokens without data, here {recipe.name}'s{under}"
    names = inspect.signature(model.forward).parameters if way == "forward" else ()
    others = [one for one in names if one.endswith(_BESIDE_TOKENS) and not one.startswith("output_")]
    return must, f"it is not given {', '.join(others)}" if others else ""


def _must_update(recipe: Recipe) -> tuple[str, str]:
    """What must hold of the optimizer, and a hint."""
    under = f", spread by {_spread_by(recipe)}" if recipe.ranks > 1 else ""
    must = (
        f"an optimizer that updates weights without data, here {recipe.update} those of {recipe.name}{under}"
    )
    return must, "try another optimizer"


def _spread_by(recipe: Recipe) -> str:
    """What spreads the model over ranks."""
    copies = "DDP" if recipe.sharding is Sharding.NONE else "FSDP2"
    return f"{copies} with tensor parallelism" if recipe.tensor > 1 else copies
