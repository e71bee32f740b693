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
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

from planner.dryrun.autocast import cuda_policies
from planner.dryrun.loaded import cast_as_loaded
from planner.dryrun.on_cuda import cuda_branches
from planner.dryrun.recipe import MOST_MICROBATCHES, Checkpointing, Recipe, Update
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Phase, Recording
from planner.dryrun.values import Values
from planner.errors import InputError, PlannerError, UnsupportedError

_TRACED: Final = "is_tracing"
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
    recorder = Recorder(Values(_experts(config)), capability)
    with _on_device(), FakeTensorMode(allow_non_fake_inputs=True), recorder:
        model = None
        try:
            model = _built(recipe, config, recorder)
            with _not_traced():
                _step_twice(recipe, model, config, recorder)
        except PlannerError:
            raise
        except (
            Exception
        ) as error:  # whatever the library's own code, or an operation without shapes, ends with
            raise _refusal(recipe, model, error) from error
        end = len(recorder.recording.trace)
    recorder.recording.end = end
    del model
    gc.collect()
    return recorder.recording


@contextmanager
def _on_device() -> Iterator[None]:
    """PyTorch and transformers as they are on a GPU, and silent."""
    level = transformers.logging.get_verbosity()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(transformers.logging.set_verbosity, level)
        transformers.logging.set_verbosity_error()
        stack.enter_context(cuda_policies())
        stack.enter_context(cuda_branches())
        yield


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


def _built(recipe: Recipe, config: Any, recorder: Recorder) -> Any:
    """The model, with what is trained of it; its weights are written down."""
    held = getattr(torch, recipe.weights.held)
    torch.set_default_dtype(held)
    try:
        with no_init_weights():
            model = transformers.AutoModelForCausalLM.from_config(
                config, attn_implementation="eager" if recipe.attention == "eager" else None, dtype=held
            )
    finally:
        torch.set_default_dtype(torch.float32)
    cast_as_loaded(model, held)
    model.tie_weights()
    recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    if recipe.adapters is not None:
        model = _with_adapters(recipe, model)
        recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    model.train()
    if recipe.checkpointing is not Checkpointing.NONE:
        reentrant = recipe.checkpointing is Checkpointing.REENTRANT
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if recipe.adapters is not None:
            model.enable_input_require_grads()
    recorder.name_modules(model)
    return model


def _with_adapters(recipe: Recipe, model: Any) -> Any:
    import peft  # few recipes have adapters

    adapters = recipe.adapters
    assert adapters is not None, "asked for"
    targets = adapters.targets if isinstance(adapters.targets, str) else list(adapters.targets)
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=adapters.rank, lora_alpha=16, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM",
        ),
    )  # fmt: skip


def _step_twice(recipe: Recipe, model: Any, config: Any, recorder: Recorder) -> None:
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = _optimizer(recipe.update, trained)
    tokens = torch.full((recipe.micro_batch, recipe.seq_len), _plain_token(config))
    recorder.hold([tokens], Holds.INPUT)
    autocast = recipe.weights.autocast
    dtype = getattr(torch, autocast or "bfloat16")
    micro = min(recipe.num_microbatches, MOST_MICROBATCHES)
    for step in range(2):
        if step:
            recorder.recording.second_step = len(recorder.recording.trace)
            recorder.recording.trace.reset_peaks()
        for _ in range(micro):
            recorder.phase = Phase.FORWARD
            with (
                recorder.modules_followed(),
                torch.autocast("cpu", dtype=dtype, enabled=autocast is not None),
            ):
                loss = model(input_ids=tokens, labels=tokens).loss / micro
            recorder.phase = Phase.BACKWARD
            with recorder.modules_followed():
                loss.backward()
        recorder.hold([one.grad for one in trained if one.grad is not None], Holds.GRADIENTS)
        recorder.phase = Phase.OPTIMIZER
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        moments = (one for state in optimizer.state.values() for one in state.values())
        recorder.hold([one for one in moments if isinstance(one, torch.Tensor)], Holds.OPTIMIZER_STATES)
        optimizer.zero_grad(set_to_none=True)


def _plain_token(config: Any) -> int:
    """The first token that stands for no padding, end, image or the like."""
    parts = (config, config.get_text_config(decoder=True))
    named = [value for part in parts for name, value in vars(part).items() if name.endswith(_SPECIAL)]
    special = {one for value in named for one in (value if isinstance(value, list) else [value])}
    return next(token for token in range(len(special) + 1) if token not in special)


def _optimizer(update: Update, trained: list[Any]) -> Any:
    fused = update is Update.ADAMW_FUSED
    return torch.optim.AdamW(trained, lr=1e-5, fused=fused or None, foreach=None if fused else True)


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
