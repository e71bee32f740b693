"""What does a dry run alone know of training? Variants of adapters, of checkpointing, and what is trained for.

Left out: what every question says (`question.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.ask.option import as_written, options_of
from planner.ask.question import DryrunQuestion, EstimateQuestion, Question
from planner.catalog.stack_options import COMPILE
from planner.dialect import option
from planner.dryrun.transformers.recipe import Checkpointing, Method, Objective, Recipe
from planner.errors import InputError, UnsupportedError

NEXT_TOKEN: Final = "sft"
_METHODS: Final = f"add {option('method', 'dpo')}, say"
_BETAS: Final = {Method.DPO: 0.1, Method.GRPO: 0.0}  # trl 1.16 dpo_config.py, grpo_config.py


def alone_known(asked: Question) -> tuple[str, ...]:
    """Names of options of a dry run alone that were given."""
    own = options_of(DryrunQuestion).keys() - options_of(EstimateQuestion).keys()
    return tuple(sorted(own & as_written(asked).keys()))


def trained_as(asked: Question, recipe: Recipe) -> Recipe:
    """The recipe with what a dry run alone knows. Raises `InputError` for what lacks its other half."""
    if not isinstance(asked, DryrunQuestion):
        return recipe
    if (asked.use_dora or asked.lora_dropout) and recipe.adapters is None:
        name = "use_dora" if asked.use_dora else "lora_dropout"
        raise InputError(f"{option(name)} needs adapters", "none", f"add {option('lora_rank', 16)}, say")
    if asked.use_reentrant and recipe.checkpointing is Checkpointing.NONE:
        must = f"{option('use_reentrant')} needs checkpointing"
        raise InputError(must, "none", f"add {option('set', 'recompute=full')}")
    if recipe.adapters is not None:
        adapters = replace(recipe.adapters, dropout=asked.lora_dropout, dora=asked.use_dora)
        recipe = replace(recipe, adapters=adapters)
    recipe = replace(recipe, objective=_objective(asked, recipe))
    return replace(recipe, checkpointing=Checkpointing.REENTRANT) if asked.use_reentrant else recipe


def _objective(asked: DryrunQuestion, recipe: Recipe) -> Objective | None:
    """What is trained for, beside the next token. Raises `InputError` and `UnsupportedError`."""
    if asked.method == NEXT_TOKEN:
        given = [name for name in ("completion_len", "beta") if getattr(asked, name) is not None]
        if given or asked.num_iterations > 1:
            name = given[0] if given else "num_iterations"
            raise InputError(f"{option(name)} needs a method with a reference", NEXT_TOKEN, _METHODS)
        return None
    if asked.method not in [*Method]:
        raise InputError(
            f"unknown method {asked.method!r}", hint=f"one of: {NEXT_TOKEN}, {', '.join(Method)}"
        )
    method = Method(asked.method)
    if recipe.ranks > 1 or recipe.compiled:
        there = "torch.compile" if recipe.compiled else f"{recipe.ranks} devices"
        must = f"a dry run runs {method} on one device, without torch.compile"
        hint = f"leave +{COMPILE} out of {option('stack')}" if recipe.compiled else option("gpus", 1)
        raise UnsupportedError(must, there, hint)
    if recipe.texts is not None and (recipe.texts.packed or method is Method.GRPO):
        kind = "packed" if recipe.texts.packed else "padded"
        raise UnsupportedError(
            f"a dry run has no {kind} batches of {method}", option("mean_len"), "leave it out"
        )
    if asked.num_iterations > 1 and method is Method.DPO:
        raise InputError(f"{option('num_iterations')} needs grpo", method, f"add {option('method', 'grpo')}")
    if asked.completion_len is not None and not 1 <= asked.completion_len < recipe.seq_len:
        must = (
            f"{option('completion_len')} must be from 1 to {recipe.seq_len - 1:,}, a prompt being before it"
        )
        hint = f"leave it out for {recipe.seq_len - 1:,}, or make {option('seq_len')} longer"
        raise InputError(must, str(asked.completion_len), hint)
    beta = _BETAS[method] if asked.beta is None else asked.beta
    return Objective(method, beta, asked.num_iterations, asked.completion_len)
