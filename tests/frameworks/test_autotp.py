"""AutoTP of DeepSpeed: how it counts a batch, and what it cannot run beside.

Source: deepspeed 0.19.8 runtime/config.py DeepSpeedConfig.__init__ (world_size without an mpu), utils/groups.py
_init_tp_mesh_device, runtime/sequence_parallel/parallel_state_sp.py initialize_sequence_parallel.
"""

from __future__ import annotations

import json

import pytest

from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig
from tests.frameworks.launches import launch, problem

DEEPSPEED = framework("deepspeed")
SPLIT = ParallelConfig(tp=2, dp=64, micro_batch=2, num_microbatches=2, zero=2)
BOTH = ParallelConfig(tp=2, cp=2, dp=32, micro_batch=2, num_microbatches=4, zero=2)


def test_a_written_batch_is_none_that_deepspeed_refuses() -> None:
    """256 sequences are 2 x 2 on 64 copies; DeepSpeed would ask for 2 x 2 x 128."""
    files = DEEPSPEED.render(
        launch("llama-3.1-8b", SPLIT, problem("llama-3.1-8b", "deepspeed-2025")), "0.19.8"
    )
    assert "train_batch_size" not in json.loads(files["ds_config.json"])
    read = DEEPSPEED.parse(files)
    assert (read.global_batch, read.axes["dp"], read.axes["num_microbatches"]) == (256, 64, 2)


@pytest.mark.parametrize("stated", ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps"])
def test_a_users_batch_counts_tensor_parallel_ranks(stated: str) -> None:
    """512 = 2 x 2 x 128 ranks are 256 sequences, whichever of the two factors is left to DeepSpeed."""
    settings = {"train_batch_size": 512, stated: 2, "zero_optimization": {"stage": 2}}
    files = {"ds.json": json.dumps({**settings, "tensor_parallel": {"autotp_size": 2}})}
    hosts = "".join(f"node-{i} slots=8\n" for i in range(16))
    read = DEEPSPEED.parse({**files, "hostfile": hosts})
    axes = (read.axes["dp"], read.axes["micro_batch"], read.axes["num_microbatches"])
    assert (read.global_batch, *axes) == (256, 64, 2, 2)


def test_ulysses_takes_the_same_ranks() -> None:
    given = problem("llama-3.1-8b", "deepspeed-2025")
    assert "autotp-ulysses" in {broken.rule for broken in explain_config(BOTH, given, rules_for(given.stack))}
    with pytest.raises(UnsupportedError, match="AutoTP with Ulysses"):
        DEEPSPEED.render(launch("llama-3.1-8b", BOTH, given), "0.19.8")
