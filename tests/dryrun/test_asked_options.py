"""Does every option that planner dryrun takes change what is run, or is it refused by name?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from planner.ask.option import options_of
from planner.ask.question import DryrunQuestion
from planner.dialect import in_words
from planner.dryrun import question, software
from planner.dryrun.allocator.settings import read_alloc_conf
from planner.dryrun.question import STAND_IN, make_dryrun
from planner.dryrun.recording import Recording
from planner.errors import InputError, PlannerError, UnsupportedError
from planner.spec.verdict import MemoryVerdict
from tests.dryrun.test_dryrun_outcome import two_steps

MODEL, CLUSTER = "llama-3.2-1b", "1x2 h100"
# read elsewhere: what is asked about, and corrections of links and of what is estimated
ELSEWHERE = {"model", "cluster", "calibration"}
SAID: dict[str, dict[str, Any]] = {
    "gpus": {"gpus": 1}, "seq_len": {"seq_len": 512}, "global_batch": {"global_batch": 32},
    "precision": {"precision": "fp16"},
    "optimizer": {"optimizer": "sgd"}, "mean_len": {"mean_len": 100}, "packed": {"packed": True, "mean_len": 100},
    "mtp": {"mtp": True}, "lora_rank": {"lora_rank": 8}, "lora_targets": {"lora_rank": 16, "lora_targets": "qkv"},
    "frozen_bits": {"lora_rank": 16, "frozen_bits": 4, "gpus": 1}, "stack": {"stack": "transformers-2026+amp"},
    "bf16_layers": {"bf16_layers": "1,1"}, "set": {"set": {"micro_batch": 2}}, "without": {"without": "all"},
    "headroom": {"headroom": 0.1}, "min_free": {"min_free": "9GiB"}, "tokens": {"tokens": "1T"},
    "critical_batch": {"critical_batch": "8Mtok"}, "batch_schedule": {"batch_schedule": ("4Mtok:252M",)},
    "assume": {"assume": "pue=1.3"}, "expert_loads": {"expert_loads": "zipf:1"},
    "expert_replicas": {"expert_replicas": 4},
    "alloc_conf": {"alloc_conf": "expandable_segments:True"}, "use_dora": {"lora_rank": 16, "use_dora": True},
    "lora_dropout": {"lora_rank": 16, "lora_dropout": 0.1}, "method": {"method": "dpo", "gpus": 1},
    "completion_len": {"method": "dpo", "gpus": 1, "completion_len": 9},
    "beta": {"method": "grpo", "gpus": 1, "beta": 0.3},
    "num_iterations": {"method": "grpo", "gpus": 1, "num_iterations": 2},
    "largest": {"largest": True}, "longest": {"longest": True},
    "use_reentrant": {"set": {"recompute": 2}, "use_reentrant": True},
}  # fmt: skip
Ran = list[Any]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """What is run, and on how much memory, without running it."""
    found: Ran = []

    def record(recipe: Any, capability: tuple[int, int]) -> Recording:
        found.append(recipe)
        return two_steps()

    def of_memory(recording: Recording, settings: Any, limit: int, *more: int) -> Any:
        found.append((settings, limit))
        return memory_of(recording, settings, limit, *more)

    memory_of = question.memory_of
    monkeypatch.setattr(software.Software, "recorder", lambda self: record)
    monkeypatch.setattr(question, "memory_of", of_memory)
    monkeypatch.setattr(question, "_times", lambda *asked: ())
    return found


def what_runs(ran: Ran, **said: Any) -> Ran:
    ran.clear()
    asked = DryrunQuestion(MODEL, CLUSTER, **{"seq_len": 256, "global_batch": 8} | said)
    make_dryrun(asked, read_alloc_conf(asked.alloc_conf), asked.largest, asked.longest)
    return list(ran)


def test_every_option_is_tried() -> None:
    assert SAID.keys() | ELSEWHERE == options_of(DryrunQuestion).keys()


@pytest.mark.parametrize("name", SAID)
def test_an_option_counts_or_is_refused(name: str, ran: Ran) -> None:
    others = {key: value for key, value in SAID[name].items() if key != name}
    before = what_runs(ran, **others)
    after, refused = None, None
    try:
        after = what_runs(ran, **SAID[name])
    except PlannerError as error:
        refused = error
    if refused is None:
        assert after != before
        return
    assert refused.hint
    assert not re.search(r"[({\[]", refused.given), "nothing but what was asked, as it is asked"
    assert any(
        named in in_words(str(refused)) for named in (f"--{name.replace('_', '-')}", "experts", "bf16")
    )


@pytest.mark.parametrize("recompute", [1, 2])
@pytest.mark.parametrize("stack", ["transformers-2026", "deepspeed-2025"])
def test_selective_recomputation_is_refused_where_there_is_none(stack: str, recompute: int, ran: Ran) -> None:
    said: dict[str, Any] = {"stack": stack, "set": {"recompute": recompute}}
    if recompute == 2:
        assert what_runs(ran, **said)
        return
    with pytest.raises((InputError, UnsupportedError), match=r"selective|single modules"):
        what_runs(ran, **said)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ({"precision": "fp32"}, "--precision bf16"),
        ({"frozen_bits": 32, "lora_rank": 8}, "--frozen-bits 16"),
        ({"frozen_bits": 4, "lora_rank": 8}, "--frozen-bits 16, or --gpus 1"),
        ({"stack": "transformers-2026+compile"}, "--stack transformers-2026, or --gpus 1"),
        ({"method": "dpo"}, "--gpus 1"),
        ({"method": "dpo", "gpus": 1, "completion_len": 256}, "leave it out"),
        ({"stack": "torchtitan-2026-eager", "precision": "fp16"}, "--precision"),
        ({"stack": "torchtitan-2026"}, "--stack torchtitan-2026-eager"),
        ({"stack": "megatron", "lora_rank": 8}, "leave --lora-rank out"),
        ({"expert_loads": "zipf:0.5"}, "leave --expert-loads out"),
    ],
)
def test_what_to_do_is_what_helps(said: dict[str, Any], hint: str, ran: Ran) -> None:
    with pytest.raises(PlannerError) as told:
        what_runs(ran, **said)
    assert hint in in_words(told.value.hint)


@pytest.mark.parametrize("said", [{"headroom": 0.995}, {"headroom": "99.9999%"}, {"min_free": "79GiB"}])
@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "per_process_memory_fraction:0.05"])
def test_nothing_left_for_the_allocator_does_not_fit(said: dict[str, Any], conf: str, ran: Ran) -> None:
    asked = DryrunQuestion(MODEL, CLUSTER, seq_len=256, global_batch=8, **said)
    found = make_dryrun(asked, read_alloc_conf(conf), largest=True, longest=True)
    assert (found.fits, found.worst.verdict, found.worst.limit) == (False, MemoryVerdict.DOES_NOT_FIT, 0)
    assert (found.largest_micro_batch, found.longest_sequence) == (0, 0)


@pytest.mark.parametrize(
    "stack", ["transformers-2026", "deepspeed-2025", "megatron", "torchtitan-2026-eager"]
)
def test_settings_of_the_allocator_go_with_every_stack_and_an_estimate(stack: str, ran: Ran) -> None:
    conf = "expandable_segments:True"
    asked = DryrunQuestion(MODEL, CLUSTER, stack=stack, seq_len=256, global_batch=8, alloc_conf=conf)
    found = make_dryrun(asked, read_alloc_conf(conf))
    assert (found.estimated_peak is not None, found.unestimated) == (True, ())


def test_another_model_than_torchtitans_is_sent_to_transformers(ran: Ran) -> None:
    asked = DryrunQuestion("qwen2.5-7b", CLUSTER, stack="torchtitan-2026-eager", seq_len=256, global_batch=8)
    with pytest.raises(UnsupportedError) as told:
        make_dryrun(asked, read_alloc_conf(""))
    assert in_words(told.value.hint) == "--stack transformers-2026 runs it"
    assert not ran


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"set": {"zero": 1}}, "zero=1"), ({"set": {"pp": 2}}, "pp=2"), ({"set": {"cp": 2}}, "cp=2"),
        ({"gpus": 1, "set": {"vpp": 2}}, "vpp=2"), ({"global_batch": 3}, "global batch"),
        ({"stack": "torchtitan-2026-eager"}, "can read"), ({"stack": "megatron"}, "has a reader"),
        ({"mtp": True}, "can read"),
    ],
)  # fmt: skip
def test_a_model_that_planner_cannot_read_is_run_as_asked_or_not(
    said: dict[str, Any], told: str, ran: Ran, tmp_path: Path
) -> None:
    """What takes its place is run by no framework, and obeys the rules of its stack."""
    (tmp_path / "config.json").write_text('{"model_type": "diffllama", "hidden_size": 512}', encoding="utf-8")
    given = {"seq_len": 256, "global_batch": 8, "set": {"dp": 2}} | said
    with pytest.raises(PlannerError) as refused:
        make_dryrun(DryrunQuestion(str(tmp_path), CLUSTER, **given), read_alloc_conf(""))
    assert told in in_words(str(refused.value))
    assert STAND_IN not in str(refused.value)
    assert not ran
