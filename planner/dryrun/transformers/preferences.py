"""What do trl's DPO and GRPO run in a step? Their own losses, with the passes of the reference and of the old policy.

`DPOTrainer._compute_loss`, `GRPOTrainer._compute_loss` and `_get_per_token_logps_and_entropies` are called as they are,
beside what a trainer holds; so is the head that makes logits tile by tile, whose Triton kernels have stand-ins with the
same operands. Source: trl 1.16 trainer/dpo_trainer.py, grpo_trainer.py, utils.py (`add_fused_lm_head`),
kernels/chunked_logprob.py. Left out: generation of completions and rewards, which are over before a step; numbers that
are only logged, which are taken to be 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from trl.kernels import chunked_logprob
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import dpo_trainer, grpo_trainer, utils

from planner.dryrun.recorder import Recorder
from planner.dryrun.transformers.batches import inputs_of, known
from planner.dryrun.transformers.recipe import Checkpointing, Method, Objective, Recipe
from planner.dryrun.transformers.stand_in import stand_in

_DPO_OUTPUTS: Final = ("log_probs", "entropy", "mean_logits", "is_top1")
_GRPO_OUTPUTS: Final = ("log_probs", "entropy")
_fold = stand_in(
    "trl_chunked_logprob(Tensor tile, Tensor targets, Tensor(a!) most, Tensor(b!) sums, Tensor(c!) target) -> ()"
)
_fold_backward = stand_in(
    "trl_chunked_logprob_backward(Tensor(a!) tile, Tensor targets, Tensor log_z, Tensor entropy, Tensor gradient) -> ()"
)
_add_product = stand_in("trl_addmm(Tensor(a!) sums, Tensor left, Tensor right) -> ()")


def reference_needed(recipe: Recipe) -> bool:
    """Is there a second model beside the trained one? Not where adapters are taken off instead."""
    objective = recipe.objective
    return objective is not None and recipe.adapters is None and (
        objective.method is Method.DPO or objective.beta > 0
    )  # fmt: skip


def add_heads(recipe: Recipe, model: Any, undone: ExitStack) -> None:
    """Have a model give logarithms of probabilities, made tile by tile, until `undone` is closed."""
    assert recipe.objective is not None, "asked for"
    for module, name, own in (
        (chunked_logprob, "_forward_tile", _forward_tile),
        (chunked_logprob, "_backward_tile", _backward_tile),
        (chunked_logprob, "_addmm_fp32", _add_product),
        (utils, "_use_triton", lambda device: True),
        (grpo_trainer, "nanmin", torch.min),
        (grpo_trainer, "nanmax", torch.max),
    ):
        undone.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, own)
    dpo = recipe.objective.method is Method.DPO
    utils.add_fused_lm_head(model, outputs=_DPO_OUTPUTS if dpo else _GRPO_OUTPUTS)
    if recipe.weights.autocast is not None:
        model.forward = _under_autocast(model.forward, getattr(torch, recipe.weights.autocast))


def _under_autocast(forward: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """Each model's pass by itself, as Accelerate prepares models; casts of weights are kept as long."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=dtype):
            return forward(*args, **kwargs)

    return run


def _forward_tile(tile: Any, _: Any, targets: Any, most: Any, sums: Any, *rest: Any, **__: Any) -> None:
    _fold(tile, targets, most, sums, rest[4])


def _backward_tile(
    tile: Any, _: Any, targets: Any, log_z: Any, entropy: Any, gradient: Any, *__: Any, **___: Any
) -> None:
    _fold_backward(tile, targets, log_z, entropy, gradient)


class Preferences:
    """The part of a trl trainer that a step runs; `reference`: None where adapters are taken off for it."""

    def __init__(self, recipe: Recipe, model: Any, reference: Any, recorder: Recorder) -> None:
        assert recipe.objective is not None, "asked for"
        self._recipe, self._model, self._recorder = recipe, model, recorder
        objective: Objective = recipe.objective
        self._dpo = objective.method is Method.DPO
        self._trainer = _trainer(recipe, objective, model, reference)
        if self._dpo:
            self.inputs = _pairs(recipe, objective, _vocabulary(model))
        else:
            self.inputs = _completions(recipe, objective, _vocabulary(model))

    def begin(self, micro_batches: int) -> None:
        """What runs before the micro-batches of a step: of GRPO, the passes that a generated batch is scored with."""
        if self._dpo:
            return
        trainer, inputs = self._trainer, self.inputs
        scored = [
            torch.cat([inputs["prompt_" + kind], inputs["completion_" + kind]], dim=1)
            for kind in ("ids", "mask")
        ]
        score = partial(
            trainer._get_per_token_logps_and_entropies, input_ids=scored[0], attention_mask=scored[1],
            logits_to_keep=inputs["completion_ids"].shape[1],
        )  # fmt: skip
        old, reference = [], []
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(self._model, trainer.args.gradient_checkpointing_kwargs),
        ):
            for _ in range(micro_batches):
                if self._recipe.objective and self._recipe.objective.num_iterations > 1:
                    old.append(score(self._model)[0])
            for _ in range(micro_batches):
                if trainer.beta:
                    reference.append(self._score_reference(score))
        if old:
            inputs["old_per_token_logps"] = old[-1]
        if reference:
            inputs["ref_per_token_logps"] = reference[-1]
        self._scored = old, reference  # of the whole batch, held until the next

    def _score_reference(self, score: Callable[..., Any]) -> Any:
        if self._trainer.ref_model is not None:
            return score(self._trainer.ref_model)[0]
        with utils.use_adapter(self._model, adapter_name=None):
            return score(self._model)[0]

    def loss(self) -> Any:
        """trl's own."""
        with self._recorder.numbers_reported():
            if self._dpo:
                return dpo_trainer.DPOTrainer._compute_loss(self._trainer, self._model, self.inputs, False)
            return grpo_trainer.GRPOTrainer._compute_loss(self._trainer, self._model, self.inputs)


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def _trainer(recipe: Recipe, objective: Objective, model: Any, reference: Any) -> Any:
    """What trl's losses read of a trainer, as its defaults are."""
    text = model.config.get_text_config()
    coefficient = getattr(text, "router_aux_loss_coef", 0.0)
    same = lambda one, **_: one  # noqa: E731
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=same, gather_for_metrics=same, reduce=same, unwrap_model=same,
        autocast=nullcontext, num_processes=1, is_main_process=False,
    )  # fmt: skip
    reentrant = {"use_reentrant": recipe.checkpointing is Checkpointing.REENTRANT}
    args = SimpleNamespace(
        gradient_checkpointing_kwargs=reentrant, use_bias_correction_kl=False, delta=None,
        steps_per_generation=recipe.num_microbatches, report_to=[],
    )  # fmt: skip
    found = SimpleNamespace(
        model=model, ref_model=reference, accelerator=accelerator, args=args, beta=objective.beta,
        aux_loss_enabled=hasattr(text, "output_router_logits") and bool(coefficient),
        router_aux_loss_coef=coefficient, _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0,
        _tp_size=1, precompute_ref_logps=False, ld_alpha=None, f_divergence_type="reverse_kl", loss_types=["sigmoid"],
        loss_weights=[1.0], label_smoothing=0.0, use_weighting=False, loss_type="dapo",
        importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.2, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, use_vllm=False, _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=recipe.num_microbatches,
    )  # fmt: skip
    own = grpo_trainer.GRPOTrainer._get_per_token_logps_and_entropies
    found._get_per_token_logps_and_entropies = partial(own, found)
    return found


def _pairs(recipe: Recipe, objective: Objective, vocabulary: int) -> dict[str, Any]:
    """A chosen and a rejected text of each example (`DataCollatorForPreference`)."""
    rows, length = 2 * recipe.micro_batch, recipe.seq_len
    return {
        "input_ids": known(_tokens(rows, length, vocabulary)),
        "attention_mask": _mask(recipe, rows),
        "completion_mask": known(_last(rows, length, objective.completed(length))),
    }


def _completions(recipe: Recipe, objective: Objective, vocabulary: int) -> dict[str, Any]:
    """A prompt and a completion each (`_generate_and_score_completions`)."""
    rows, completion = recipe.micro_batch, objective.completed(recipe.seq_len)
    prompt = recipe.seq_len - completion
    with unset_fake_temporarily():
        counted = torch.tensor(float(rows * completion * recipe.num_microbatches))
        ones = [torch.ones(rows, length, dtype=torch.int64) for length in (prompt, completion)]
    return {
        "prompt_ids": known(_tokens(rows, prompt, vocabulary)), "prompt_mask": known(ones[0]),
        "completion_ids": known(_tokens(rows, completion, vocabulary)), "completion_mask": known(ones[1]),
        "advantages": torch.empty(rows), "num_items_in_batch": known(counted),
    }  # fmt: skip


def _mask(recipe: Recipe, rows: int) -> Any:
    """Texts of several lengths are padded; others have no padding."""
    if recipe.texts is not None:
        doubled = Recipe(recipe.config, recipe.name, rows, recipe.seq_len, texts=recipe.texts)
        return inputs_of(doubled, 1)["attention_mask"]
    with unset_fake_temporarily():
        ones = torch.ones(rows, recipe.seq_len, dtype=torch.int64)
    return known(ones)


def _tokens(rows: int, length: int, vocabulary: int) -> Any:
    with unset_fake_temporarily():
        return torch.arange(rows * length).remainder(vocabulary).view(rows, length)


def _last(rows: int, length: int, completion: int) -> Any:
    with unset_fake_temporarily():
        return (torch.arange(length) >= length - completion).long().expand(rows, -1).clone()
