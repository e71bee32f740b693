"""Which model does a recipe mean, as the library builds and loads it, with what is trained of it?

Left out: how it is spread over ranks (`data_parallel.py`), and its step (`step.py`).
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any, Final

import torch
import transformers
from transformers.initialization import no_init_weights

from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds
from planner.dryrun.transformers.loaded import cast_as_loaded
from planner.dryrun.transformers.parts import needed
from planner.dryrun.transformers.quantized import quantize
from planner.dryrun.transformers.recipe import Checkpointing, Recipe
from planner.errors import InputError, UnknownNameError, UnsupportedError, in_short, nearest_names

_HALF: Final = 16
_FEW: Final = 3  # names that are suggested
_IDLE_EXPERTS: Final = "zero_expert_num"
_SPECIAL: Final = ("_token_id", "_token_index", "_index")  # names of tokens with a meaning
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def config_of(recipe: Recipe) -> Any:
    fields = copy.deepcopy(dict(recipe.config))  # some classes take fields out of what is inside
    kind = fields.pop("model_type", None)
    release = f"transformers {transformers.__version__}"
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        near = nearest_names(str(kind), transformers.CONFIG_MAPPING, _FEW)
        raise UnknownNameError(f"model_type of {release}", str(kind), near, "Or install one that has it")
    try:
        config = transformers.AutoConfig.for_model(kind, **fields)
    except Exception as error:  # each class checks its fields in its own way
        must = f"{release} must know the configuration of {recipe.name}"
        raise InputError(must, f"model_type {kind!r}: {in_short(error)}") from error
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        must = f"a dry run needs a model that predicts the next token by {release} (AutoModelForCausalLM)"
        raise UnsupportedError(must, f"model_type {kind!r}", "give the config.json of a decoder")
    config.use_cache = False
    if recipe.experts is not None:
        config._experts_implementation = recipe.experts
    return config


def experts_of(config: Any) -> int:
    """How many experts a layer has, by the text's own configuration or one inside it, with those that do nothing; 0
    where there are none."""
    text = config.get_text_config(decoder=True)
    parts = (text, *(one for one in vars(text).values() if isinstance(one, transformers.PreTrainedConfig)))
    found = (getattr(part, name, None) for part in parts for name in _EXPERTS)
    experts = next((one for one in found if isinstance(one, int) and one), 0)
    return experts + (getattr(text, _IDLE_EXPERTS, 0) or 0)


def plain_token(config: Any) -> int:
    """The first token that stands for no padding, end, image or the like."""
    parts = (config, config.get_text_config(decoder=True))
    named = [value for part in parts for name, value in vars(part).items() if name.endswith(_SPECIAL)]
    special = {one for value in named for one in (value if isinstance(value, list) else [value])}
    return next(token for token in range(len(special) + 1) if token not in special)


def prepared(recipe: Recipe, config: Any, recorder: Recorder, undone: ExitStack) -> Any:
    """The model as it is trained, on one device; `undone`: what undoes changes of the library."""
    with needed(
        f"a model that transformers {transformers.__version__} can build of {recipe.name}'s configuration"
    ):
        model = loaded(recipe, config, recorder)
    if recipe.liger:
        from planner.dryrun.transformers.liger import with_liger  # few recipes have it

        with_liger(model, undone, loss=recipe.objective is None)
    if recipe.objective is not None:
        from planner.dryrun.transformers.preferences import add_heads

        add_heads(recipe, model, undone)
    if recipe.adapters is not None:
        from planner.dryrun.transformers.adapters import (  # few recipes have adapters
            prepare_quantized,
            with_adapters,
        )

        with needed(f"adapters that PEFT can put on {recipe.name}"):
            if recipe.adapters.frozen_bits < _HALF:
                prepare_quantized(model)
                recorder.recording.trace.empty_cache()
            model = with_adapters(recipe.adapters, model)
        recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
    model.train()
    if recipe.checkpointing is not Checkpointing.NONE:
        reentrant = recipe.checkpointing is Checkpointing.REENTRANT
        with needed(f"layers of {recipe.name} that transformers can checkpoint", "leave recomputation out"):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if recipe.adapters is not None:
            model.enable_input_require_grads()
    return model


def loaded(recipe: Recipe, config: Any, recorder: Recorder) -> Any:
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
