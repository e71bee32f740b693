"""Megatron-FSDP in launch files: what is written, read back and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cli.files import newest_stack
from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig
from planner.spec.stack.engines import EngineKind
from tests.frameworks.launches import launch, problem

STACK = "megatron-fsdp-2026"
CONFIG = ParallelConfig(tp=2, dp=64, num_microbatches=4, sp=1, zero=3)
FSDP = "pretrain_gpt.py --num-layers 32 --tensor-model-parallel-size 1 --micro-batch-size 1 --bf16 --use-megatron-fsdp"
PLAIN = FSDP + " --ckpt-format fsdp_dtensor"


def planned(zero: int, options: str = "") -> Launch:
    return launch("llama-3.1-8b", replace(CONFIG, zero=zero), problem("llama-3.1-8b", STACK + options))


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("zero", "strategy"), list(enumerate(["no_shard", "optim", "optim_grads", "optim_grads_params"]))
)
def test_strategies_are_written_and_read(name: str, zero: int, strategy: str) -> None:
    found = framework(name)
    text = found.render(planned(zero), found.default_version)["launch.sh"]
    assert strategy in text
    assert "fsdp_dtensor" in text
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1\n" not in text
    read = found.parse({"launch.sh": text})
    assert read.axes["zero"] == zero
    assert read.engine is EngineKind.MEGATRON_FSDP
    assert newest_stack(found, read.engine) == STACK


def test_options_of_the_stack() -> None:
    megatron, options = framework("megatron"), "+fsdp-double-buffer+megatron-fsdp-main-grads-dtype=fp32"
    plain = megatron.render(planned(3), "main-2026-08")["launch.sh"]
    assert "--grad-reduce-in-bf16" in plain
    assert "--fsdp-double-buffer" not in plain
    assert "--init-model-with-meta-device" in plain
    assert "--no-gradient-accumulation-fusion" in plain
    text = megatron.render(planned(3, options), "main-2026-08")["launch.sh"]
    assert "--megatron-fsdp-main-grads-dtype fp32" in text
    assert "--grad-reduce-in-bf16" not in text
    read = megatron.parse({"launch.sh": text})
    assert read.stack_options == ("fsdp-double-buffer", "megatron-fsdp-main-grads-dtype=fp32")
    # 0.16 has no such option: without --grad-reduce-in-bf16 its gradients are in fp32
    assert "main-grads-dtype" not in megatron.render(planned(3, options), "0.16.1")["launch.sh"]


def test_ranks_that_share_a_shard() -> None:
    # dp 64 of which 16 share: 4 replicas
    given = replace(planned(3), config=replace(CONFIG, hsdp=16))
    text = framework("megatron").render(given, "main-2026-08")["launch.sh"]
    assert "--num-distributed-optimizer-instances 4" in text


@pytest.mark.parametrize(
    ("words", "must"),
    [
        (FSDP, "fsdp_dtensor"),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1\n" + PLAIN, "CUDA_DEVICE_MAX_CONNECTIONS"),
        (PLAIN + " --optimizer muon", "adam or sgd"),
        (PLAIN + " --data-parallel-sharding-strategy no_shard --init-model-with-meta-device", "no_shard"),
        (PLAIN + " --megatron-fsdp-version 2 --use-distributed-optimizer", "version 2"),
    ],
)
def test_refused_as_by_megatron(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("megatron").parse({"run.sh": words})
    assert framework("megatron").parse({"run.sh": PLAIN}).axes["zero"] == 3


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_no_virtual_stages_whatever_is_sharded(zero: int) -> None:
    """The stack wraps in Megatron-FSDP at every stage of ZeRO, others at 2 and 3 alone."""
    config = replace(CONFIG, tp=1, sp=0, dp=32, pp=4, vpp=2, zero=zero, num_microbatches=8, schedule=1)
    for stack, broken in ((STACK, True), ("megatron-2026", zero >= 2)):
        given = problem("llama-3.1-8b", stack)
        rules = {v.rule for v in explain_config(config, given, all_rules_for("megatron"))}
        assert ("fsdp-vpp" in rules) == broken, stack
