"""What Accelerate's axes ask of the program that is launched: some it can bring, some it cannot.

Source: accelerate 1.15.0 accelerator.py (_prepare_tp, maybe_context_parallel), big_modeling.py
_attach_context_parallel_hooks; torch 2.13 context_parallel, which takes the place of SDPA alone.
"""

from __future__ import annotations

import pytest

from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Files
from planner.spec.config import ParallelConfig
from tests.frameworks.launches import STACKS, launch, problem


def written(model: str, **axes: int) -> Files:
    config = ParallelConfig(micro_batch=1, zero=3, **axes)
    given = problem(model, STACKS["accelerate"], batch=str(config.dp))
    return framework("accelerate").render(launch(model, config, given), "1.15.0")


def test_tensor_parallelism_is_no_setting() -> None:
    """transformers splits a model as it loads it; the YAML alone would train whole layers on every rank."""
    with pytest.raises(UnsupportedError, match="tp other than 1"):
        written("llama-3.1-8b", tp=2, dp=64)


def test_context_parallelism_needs_sdpa_and_full_attention() -> None:
    files = written("llama-3.1-8b", cp=2, dp=64)
    assert "--attention sdpa" in files["launch.sh"]
    assert "--attention flash_attention_2" in written("llama-3.1-8b", dp=128)["launch.sh"]
    with pytest.raises(UnsupportedError, match="windows or sinks"):
        written("gpt-oss-20b", cp=2, dp=64)


def test_train_py_reduces_gradients_as_the_plan_counts_them() -> None:
    """FSDP would keep them whole between micro-batches (accelerate docs, gradient_synchronization.md)."""

    def words(stack: str, zero: int = 3) -> str:
        config = ParallelConfig(micro_batch=1, zero=zero, dp=128, num_microbatches=2)
        given = problem("llama-3.1-8b", stack, batch="256")
        return framework("accelerate").render(launch("llama-3.1-8b", config, given), "1.15.0")["launch.sh"]

    assert "--sync-each-batch" in words(STACKS["accelerate"])
    assert "--sync-each-batch" not in words(STACKS["accelerate"] + "+no-sync")
    assert "--sync-each-batch" not in words(STACKS["accelerate"], zero=1)
