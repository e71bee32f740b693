"""What does a training step of a Hugging Face model ask of a device? The model's own code, run on fake tensors.

Twice: the first step makes the moments of the optimizer, those after it find them. Left out: what other software runs;
loading of weights, which is over before the first step.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

from planner.dryrun.autocast import cuda_policies
from planner.dryrun.on_cuda import cuda_branches
from planner.dryrun.recipe import MOST_MICROBATCHES, Checkpointing, Recipe, Update
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Phase, Recording
from planner.dryrun.values import Values
from planner.errors import InputError, PlannerError, UnsupportedError

_TRACED: Final = "is_tracing"
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def record_step(recipe: Recipe, capability: tuple[int, int]) -> Recording:
    """Everything that building a model and two of its steps ask of a device of such a compute capability.

    Raises `InputError` for a configuration that transformers refuses, `UnsupportedError` for what cannot be run.
    """
    config = _config_of(recipe)
    recorder = Recorder(Values(_experts(config)), capability)
    with _on_device(), FakeTensorMode(allow_non_fake_inputs=True), recorder:
        try:
            model = _built(recipe, config, recorder)
            with _compiled(recorder, capability) if recipe.compiled else _not_traced():
                _step_twice(recipe, model, config, recorder)
        except PlannerError:
            raise
        except Exception as error:  # whatever the model's own code, or an operation without shapes, ends with
            must = f"a dry run needs a model whose step runs on tensors without data, here {recipe.name}'s"
            raise UnsupportedError(must, f"{type(error).__name__}: {_first_line(error)}") from error
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


@contextmanager
def _compiled(recorder: Recorder, capability: tuple[int, int]) -> Iterator[None]:
    """The model is traced here, as on a device."""
    from planner.dryrun.compiled.lowering import lowered_for_cuda  # few recipes are compiled

    with lowered_for_cuda(recorder, capability):
        yield


def _config_of(recipe: Recipe) -> Any:
    fields = dict(recipe.config)
    kind = fields.pop("model_type", None)
    try:
        config = transformers.AutoConfig.for_model(kind, **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        must = f"transformers {transformers.__version__} must know the configuration of {recipe.name}"
        raise InputError(must, f"model_type {kind!r}: {_first_line(error)}") from error
    config.use_cache = False
    if recipe.experts is not None:
        config._experts_implementation = recipe.experts
    return config


def _experts(config: Any) -> int:
    text = config.get_text_config()
    return next((int(getattr(text, name)) for name in _EXPERTS if getattr(text, name, None)), 0)


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
    tokens = torch.randint(0, config.get_text_config().vocab_size, (recipe.micro_batch, recipe.seq_len))
    recorder.hold([tokens], Holds.INPUT)
    autocast = recipe.weights.autocast
    dtype = getattr(torch, autocast or "bfloat16")
    run = torch.compile(model) if recipe.compiled else model
    # hooks of modules would be compiled with them, and again whenever they change
    followed = nullcontext if recipe.compiled else recorder.modules_followed
    micro = min(recipe.num_microbatches, MOST_MICROBATCHES)
    for step in range(2):
        if step:
            recorder.recording.second_step = len(recorder.recording.trace)
            recorder.recording.trace.reset_peaks()
        for _ in range(micro):
            recorder.phase = Phase.FORWARD
            with (
                followed(),
                torch.autocast("cpu", dtype=dtype, enabled=autocast is not None),
            ):
                loss = run(input_ids=tokens, labels=tokens).loss / micro
            recorder.phase = Phase.BACKWARD
            with followed():
                loss.backward()
        recorder.hold([one.grad for one in trained if one.grad is not None], Holds.GRADIENTS)
        recorder.phase = Phase.OPTIMIZER
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        moments = (one for state in optimizer.state.values() for one in state.values())
        recorder.hold([one for one in moments if isinstance(one, torch.Tensor)], Holds.OPTIMIZER_STATES)
        optimizer.zero_grad(set_to_none=True)


def _optimizer(update: Update, trained: list[Any]) -> Any:
    fused = update is Update.ADAMW_FUSED
    return torch.optim.AdamW(trained, lr=1e-5, fused=fused or None, foreach=None if fused else True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300] or "no message"
