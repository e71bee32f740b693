"""What does a training step of a Hugging Face model ask of a device? The model's own code, run on fake tensors.

Twice: the first step makes the moments of the optimizer, those after it find them. Left out: what other software runs;
loading of weights, which is over before the first step.
"""

from __future__ import annotations

import copy
import gc
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

from planner.dryrun.autocast import cuda_policies
from planner.dryrun.batches import inputs_of
from planner.dryrun.flash_attention import flash_attention
from planner.dryrun.loaded import cast_as_loaded
from planner.dryrun.on_cuda import cuda_branches
from planner.dryrun.quantized import quantize
from planner.dryrun.recipe import MOST_MICROBATCHES, Checkpointing, Recipe, Sharding
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Phase, Recording
from planner.dryrun.updates import optimizer_of
from planner.dryrun.values import Values
from planner.errors import InputError, PlannerError, UnsupportedError, install_hint

_TRACED: Final = "is_tracing"
_HALF: Final = 16
_BESIDE_TOKENS: Final = (
    "pixel_values",
    "_features",
    "_states",
)  # names of what some models are given as well
_IDLE_EXPERTS: Final = "zero_expert_num"
_SPECIAL: Final = ("_token_id", "_token_index", "_index")  # names of tokens with a meaning
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def record_step(recipe: Recipe, capability: tuple[int, int]) -> Recording:
    """Everything that building a model and two of its steps ask of a device of such a compute capability.

    Raises `InputError` for a configuration that transformers refuses, `UnsupportedError` for what cannot be run.
    """
    config = _config_of(recipe)
    if recipe.objective is not None:
        _load_trl()
    if recipe.compiled:
        import_module("torch._inductor.decomposition")  # takes what `cuda_branches` keeps from others
    recorder = Recorder(Values(_experts(config)), capability)
    with (
        _on_device() as undone,
        _process(recipe, recorder),
        FakeTensorMode(allow_non_fake_inputs=True),
        recorder,
    ):
        model = None
        try:
            model = _built(recipe, config, recorder, undone)
            with _compiled(recorder, capability) if recipe.compiled else _not_traced():
                run = torch.compile(model) if recipe.compiled else model
                _step_twice(recipe, model, _task(recipe, run, config, recorder, undone), recorder)
        except PlannerError:
            raise
        except (
            Exception
        ) as error:  # whatever the library's own code, or an operation without shapes, ends with
            raise _refusal(recipe, model, error) from error
        del model
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
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):  # of what trl imports beside
            warnings.simplefilter("ignore")
            import_module("planner.dryrun.preferences")
    except ImportError as error:
        raise InputError("losses of DPO and GRPO need trl", str(error), install_hint("dryrun")) from error


@contextmanager
def _on_device() -> Iterator[ExitStack]:
    """PyTorch and transformers as they are on a GPU, and silent; with what undoes other changes too."""
    level = transformers.logging.get_verbosity()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(transformers.logging.set_verbosity, level)
        transformers.logging.set_verbosity_error()
        stack.enter_context(cuda_policies())
        stack.enter_context(cuda_branches())
        stack.enter_context(flash_attention())
        yield stack


@contextmanager
def _not_traced() -> Iterator[None]:
    """transformers takes fake tensors for a trace, and makes masks then that it leaves out otherwise.

    To be entered when the model's own modules are loaded.
    """
    modules = [
        one for name, one in sys.modules.items() if name.startswith("transformers.") and _TRACED in vars(one)
    ]
    before = [vars(module)[_TRACED] for module in modules]
    try:
        for module in modules:
            setattr(module, _TRACED, lambda tensor=None: False)
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            setattr(module, _TRACED, own)


@contextmanager
def _compiled(recorder: Recorder, capability: tuple[int, int]) -> Iterator[None]:
    """The model is traced here, as on a device."""
    from planner.dryrun.compiled.lowering import lowered_for_cuda  # few recipes are compiled

    with lowered_for_cuda(recorder, capability):
        yield


def _config_of(recipe: Recipe) -> Any:
    fields = copy.deepcopy(dict(recipe.config))  # some classes take fields out of what is inside
    kind = fields.pop("model_type", None)
    try:
        config = transformers.AutoConfig.for_model(kind, **fields)
    except Exception as error:  # each class checks its fields in its own way
        must = f"transformers {transformers.__version__} must know the configuration of {recipe.name}"
        raise InputError(must, f"model_type {kind!r}: {_in_short(error)}") from error
    config.use_cache = False
    if recipe.experts is not None:
        config._experts_implementation = recipe.experts
    return config


def _experts(config: Any) -> int:
    """How many experts a layer has, by the text's own configuration or one inside it, with those that do nothing; 0
    where there are none."""
    text = config.get_text_config(decoder=True)
    parts = (text, *(one for one in vars(text).values() if isinstance(one, transformers.PreTrainedConfig)))
    found = (getattr(part, name, None) for part in parts for name in _EXPERTS)
    experts = next((one for one in found if isinstance(one, int) and one), 0)
    return experts + (getattr(text, _IDLE_EXPERTS, 0) or 0)


def _built(recipe: Recipe, config: Any, recorder: Recorder, undone: ExitStack) -> Any:
    """The model, with what is trained of it; its weights, or the rank's part of them, are written down."""
    with nullcontext() if recipe.sharding is Sharding.NONE else recorder.beside():  # loaded by the host
        model = spread = _prepared(recipe, config, recorder, undone)
        if recipe.ranks > 1:
            from planner.dryrun import data_parallel

            with recorder.holding(Holds.GRADIENTS):
                spread = data_parallel.spread(recipe, model)
    recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    recorder.name_modules(model)
    return spread


def _prepared(recipe: Recipe, config: Any, recorder: Recorder, undone: ExitStack) -> Any:
    model = _loaded(recipe, config, recorder)
    if recipe.liger:
        from planner.dryrun.liger import with_liger  # few recipes have it

        with_liger(model, undone, loss=recipe.objective is None)
    if recipe.objective is not None:
        from planner.dryrun.preferences import add_heads

        add_heads(recipe, model, undone)
    if recipe.adapters is not None:
        from planner.dryrun.adapters import prepare_quantized, with_adapters  # few recipes have adapters

        if recipe.adapters.frozen_bits < _HALF:
            prepare_quantized(model)
            recorder.recording.trace.empty_cache()
        model = with_adapters(recipe.adapters, model)
        recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    model.train()
    if recipe.checkpointing is not Checkpointing.NONE:
        reentrant = recipe.checkpointing is Checkpointing.REENTRANT
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if recipe.adapters is not None:
            model.enable_input_require_grads()
    return model


def _loaded(recipe: Recipe, config: Any, recorder: Recorder) -> Any:
    """The model as it is loaded, its weights quantised one by one where they are."""
    bits = _HALF if recipe.adapters is None else recipe.adapters.frozen_bits
    if bits == _HALF:
        model = _made(recipe, config, getattr(torch, recipe.weights.held))
    else:
        compute = getattr(torch, recipe.weights.autocast or recipe.weights.held)
        with recorder.beside():
            model = _made(recipe, config, compute)
            quantize(model, bits, compute)
    recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    return model


def _made(recipe: Recipe, config: Any, held: Any) -> Any:
    torch.set_default_dtype(held)
    try:
        with no_init_weights():
            model = transformers.AutoModelForCausalLM.from_config(
                config,
                attn_implementation=None if recipe.attention == "sdpa" else recipe.attention,
                dtype=held,
            )
    finally:
        torch.set_default_dtype(torch.float32)
    cast_as_loaded(model, held)
    model.tie_weights()
    return model


def _task(recipe: Recipe, model: Any, config: Any, recorder: Recorder, undone: ExitStack) -> Any:
    """What a step's passes are run for: `begin`, of a step, and `loss`, of a micro-batch."""
    if recipe.objective is None:
        inputs = inputs_of(recipe, plain_token(config))
        return SimpleNamespace(
            inputs=inputs, begin=lambda micro_batches: None, loss=lambda: model(**inputs).loss
        )
    from planner.dryrun.preferences import Preferences, add_heads, reference_needed

    reference = None
    if reference_needed(recipe):
        reference = _loaded(recipe, config, recorder).eval()
        add_heads(recipe, reference, undone)
        recorder.name_modules(reference, "reference.")
    return Preferences(recipe, model, reference, recorder)


def _step_twice(recipe: Recipe, model: Any, task: Any, recorder: Recorder) -> None:
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = optimizer_of(recipe.update, model)
    recorder.hold([one for one in task.inputs.values() if isinstance(one, torch.Tensor)], Holds.INPUT)
    autocast = recipe.weights.autocast if recipe.objective is None else None
    dtype = getattr(torch, autocast or "bfloat16")
    # hooks of modules would be compiled with them, and again whenever they change
    followed = nullcontext if recipe.compiled else recorder.modules_followed
    micro = min(recipe.num_microbatches, MOST_MICROBATCHES)
    for step in range(2):
        if step:
            recorder.recording.second_step = len(recorder.recording.trace)
            recorder.recording.trace.reset_peaks()
        recorder.phase = Phase.FORWARD
        with followed(), torch.autocast("cpu", dtype=dtype, enabled=autocast is not None):
            task.begin(micro)
        for number in range(micro):
            recorder.phase = Phase.FORWARD
            with followed(), _synchronising(recipe, model, number == micro - 1):
                with torch.autocast("cpu", dtype=dtype, enabled=autocast is not None):
                    loss = task.loss() / micro
                recorder.phase = Phase.BACKWARD
                loss.backward()
            del loss  # and what its graph holds beside tensors saved, as that of bitsandbytes' 8 bits does
        recorder.hold([one.grad for one in trained if one.grad is not None], Holds.GRADIENTS)
        recorder.phase = Phase.OPTIMIZER
        _clip(recipe, trained)
        optimizer.step()
        moments = (one for state in optimizer.state.values() for one in state.values())
        recorder.hold([one for one in moments if isinstance(one, torch.Tensor)], Holds.OPTIMIZER_STATES)
        optimizer.zero_grad(set_to_none=True)
    recorder.recording.end = len(recorder.recording.trace)  # before the optimizer's own end


def _clip(recipe: Recipe, trained: list[Any]) -> None:
    if recipe.ranks == 1:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        return
    from planner.dryrun import data_parallel

    data_parallel.clip(trained)


def _synchronising(recipe: Recipe, model: Any, last: bool) -> AbstractContextManager[None]:
    """Ranks sum gradients of every micro-batch, or those of the last one and all before it."""
    every = recipe.sharding is not Sharding.NONE and not recipe.accumulates_whole
    if recipe.ranks == 1 or every or last:
        return nullcontext()
    from planner.dryrun.data_parallel import accumulating

    return accumulating(recipe, model)


def plain_token(config: Any) -> int:
    """The first token that stands for no padding, end, image or the like."""
    parts = (config, config.get_text_config(decoder=True))
    named = [value for part in parts for name, value in vars(part).items() if name.endswith(_SPECIAL)]
    special = {one for value in named for one in (value if isinstance(value, list) else [value])}
    return next(token for token in range(len(special) + 1) if token not in special)


def _refusal(recipe: Recipe, model: Any, error: Exception) -> UnsupportedError:
    """What is said of a model that could not be built (None), or whose step did not end."""
    given = f"{type(error).__name__}: {_in_short(error)}"
    if model is None:
        must = f"a dry run needs a model that transformers {transformers.__version__} can build of {recipe.name}'s"
        return UnsupportedError(f"{must} configuration", given)
    names = inspect.signature(model.forward).parameters
    others = [one for one in names if one.endswith(_BESIDE_TOKENS) and not one.startswith("output_")]
    must = f"a dry run needs a model whose step runs on tokens without data, here {recipe.name}'s"
    return UnsupportedError(must, given, f"it is not given {', '.join(others)}" if others else "")


def _in_short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or "no message"
