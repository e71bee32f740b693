"""Hints that name options of the command line are said in the words of where the question was asked."""

from __future__ import annotations

import pytest

import planner
from planner.cli.serve import on_page
from planner.errors import InputError
from planner.wording import Say, as_key, as_keyword, reworded


@pytest.mark.parametrize(
    ("say", "hint", "said"),
    [
        (as_keyword, "add --gpus 8", "add gpus=8"),
        (as_keyword, "add --mean-len 512, say", "add mean_len=512, say"),
        (as_keyword, "add --tokens 15.6T.", "add tokens='15.6T'."),
        (as_keyword, "write --set pp=8,16", "write set={'pp': '8,16'}"),
        (as_keyword, "ask for one (--set cp_kind=...), or", "ask for one (set={'cp_kind': ...}), or"),
        (as_keyword, "give --assume 'price=2.50 $/h'", "give assume={'price': '2.50 $/h'}"),
        (as_keyword, "use --stack megatron-2026+te-2.17, or", "use stack='megatron-2026+te-2.17', or"),
        (as_keyword, "--gpus must be one number", "gpus must be one number"),
        (as_key, "write --set tp=8,16", "write set: {tp: [8,16]}"),
        (as_key, "unknown axis of --set 'speed'", "unknown axis of set: speed"),
        (as_key, "use --seq-len 4096 or less", "use seq_len: 4096 or less"),
        (on_page, "add --gpus 8", "add GPUs: 8"),
        (on_page, "write --set cp_kind=a2a", "write only: cp_kind=a2a"),
        (on_page, "add --lora-rank 16, say", "add LoRA rank: 16, say"),
        (on_page, "add --calibration ours.yaml", "add --calibration ours.yaml"),  # which the form lacks
        (on_page, '<i style="--bar: 3">', '<i style="--bar: 3">'),
    ],
)
def test_options_in_other_words(say: Say, hint: str, said: str) -> None:
    assert reworded(hint, say) == said


def test_python_is_told_keywords() -> None:
    with pytest.raises(planner.InputError) as refused:
        planner.plan("llama-3.2-1b", "dgx-h100")
    assert refused.value.hint == "add gpus=8"
    assert str(refused.value).endswith("hint: add gpus=8")
    with pytest.raises(planner.PlannerError, match=r"^max_gpus must be at least"):
        planner.size("llama-3.2-1b", "dgx-h100", max_gpus=7, days=9, tokens="1T")


def test_errors_are_at_hand() -> None:
    assert planner.InputError is InputError
    assert issubclass(planner.InputError, planner.PlannerError)
