"""What does a micro-batch hold? Its tensors, as the collator makes them and the Trainer moves them to the device.

Sequences of one length are token numbers, which are labels as well. Texts of several lengths are padded to the longest,
with a mask; or put end to end into one row, with positions, places where texts begin and the number of each token's
text (trl 1.16 trainer/sft_trainer.py `DataCollatorForLanguageModeling`, `padding_free`). Left out: how many tokens of a
text are trained on, which changes no bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from planner.dryrun.transformers.recipe import Recipe
from planner.dryrun.values import give_value


def inputs_of(recipe: Recipe, token: int) -> dict[str, Any]:
    """Arguments of the model's forward pass; `token`: one that stands for text."""
    rows, length, texts = recipe.micro_batch, recipe.seq_len, recipe.texts
    if texts is None:
        tokens = torch.full((rows, length), token)
        return {"input_ids": tokens, "labels": tokens}
    if not texts.packed:
        return _padded(rows, length, texts.mean, token)
    return _packed(rows * length, texts.mean, token)


def _padded(rows: int, length: int, mean: int, token: int) -> dict[str, Any]:
    """One text is as long as the longest of all, which a step has to have room for; the others are of the mean."""
    tokens, labels = (
        torch.full((rows, length), token),
        torch.full((rows, length), token),
    )
    with unset_fake_temporarily():
        ends = torch.tensor([length] + (rows - 1) * [mean])
        mask = (torch.arange(length)[None] < ends[:, None]).long()
    return {"input_ids": tokens, "attention_mask": known(mask), "labels": labels}


def _packed(length: int, mean: int, token: int) -> dict[str, Any]:
    """All texts of the micro-batch, end to end in one row."""
    tokens, labels = torch.full((1, length), token), torch.full((1, length), token)
    with unset_fake_temporarily():
        starts = torch.arange(0, length, mean, dtype=torch.int32)
        ends = torch.cat([starts, torch.tensor([length], dtype=torch.int32)])
        places = torch.arange(length)[None]
        positions, text = places % mean, (places // mean).int()
    ends = known(ends)
    longest = min(mean, length)
    return {
        "input_ids": tokens, "labels": labels, "position_ids": known(positions), "seq_idx": known(text),
        "cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest,
    }  # fmt: skip


def known(value: Any) -> Any:
    """A fake tensor that holds a value."""
    fake = torch.empty(value.shape, dtype=value.dtype)
    give_value(fake, value)
    return fake
