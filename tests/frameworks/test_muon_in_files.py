"""Muon in Megatron-LM's launch files: what is written, read back and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import OFFLOAD_OPTIMIZER, ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.frameworks.launches import launch, problem

CONFIG = ParallelConfig(tp=2, dp=64, num_microbatches=4, sp=1, zero=1)
WORDS = "pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 2 --micro-batch-size 1 --optimizer muon"


def asked(stack: str = "megatron-2026", precision: Precision = Precision.BF16) -> Problem:
    subject = problem("llama-3.1-8b", stack)
    return replace(subject, job=replace(subject.job, optimizer=Optimizer.MUON, precision=precision))


def planned(zero: int) -> Launch:
    return launch("llama-3.1-8b", replace(CONFIG, zero=zero), asked())


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("version", ["0.18.2", "main-2026-08"])
def test_written_and_read(zero: int, version: str) -> None:
    megatron = framework("megatron")
    text = megatron.render(planned(zero), version)["launch.sh"]
    assert "--optimizer muon" in text
    assert "--muon-tp-mode duplicated" in text  # blockwise by default up to 0.18
    assert ("--use-distributed-optimizer" in text) == bool(zero)
    read = megatron.parse({"launch.sh": text})
    assert (read.optimizer, read.axes["zero"]) == (Optimizer.MUON, zero)


def test_releases_that_reduce_whole_gradients_are_not_written() -> None:
    with pytest.raises(UnsupportedError, match="reduce-scattered"):
        framework("megatron").render(planned(1), "0.16.1")
    assert "--optimizer muon" in framework("megatron").render(planned(0), "0.16.1")["launch.sh"]


def test_the_older_name_deals_matrices() -> None:
    read = framework("megatron").parse({"launch.sh": WORDS.replace("muon", "dist_muon") + " --bf16"})
    assert (read.optimizer, read.axes["zero"]) == (Optimizer.MUON, 1)


@pytest.mark.parametrize(
    ("words", "must"),
    [
        (" --fp16", "--fp16"),
        (" --bf16 --muon-tp-mode blockwise", "duplicated"),
        (" --bf16 --muon-num-ns-steps 10", "no other number"),
        (" --bf16 --muon-no-split-qkv", "planner costs"),
        (" --bf16 --use-distributed-optimizer --num-distributed-optimizer-instances 2", "must be 1"),
        (" --bf16 --use-torch-fsdp2", "--use-torch-fsdp2"),
    ],
)
def test_refused(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse({"launch.sh": WORDS + words})


def test_other_optimizers_are_not_taken_for_adam() -> None:
    with pytest.raises(InputError, match="adam, sgd, muon"):
        framework("megatron").parse({"launch.sh": WORDS.replace("muon", "soap")})


def test_shards_of_every_rank_are_accepted_whatever_the_mode() -> None:
    words = WORDS.replace("size 2", "size 1") + " --bf16 --muon-tp-mode blockwise"
    assert framework("megatron").parse({"launch.sh": words}).optimizer is Optimizer.MUON


@pytest.mark.parametrize(
    ("config", "subject", "broken"),
    [
        (CONFIG, asked(), False),
        (replace(CONFIG, zero=0), asked(), False),
        (replace(CONFIG, hsdp=8), asked(), True),
        (replace(CONFIG, offload=OFFLOAD_OPTIMIZER), asked(), True),
        (CONFIG, asked(precision=Precision.FP16), True),
        (CONFIG, asked("megatron-fsdp-2026"), True),
        (replace(CONFIG, hsdp=8), problem("llama-3.1-8b", "megatron-2026"), False),
    ],
)
def test_where_it_runs(config: ParallelConfig, subject: Problem, broken: bool) -> None:
    found = {v.rule for v in explain_config(config, subject, all_rules_for(subject.stack.framework))}
    assert ("muon-states" in found) == broken
