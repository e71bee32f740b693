"""What rows keep on the host."""

from __future__ import annotations

import pytest

from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import Run, RunReader
from planner.spec.config import offload_text
from tests.benchmarks.rows import MODELS, ROW


def read(**changed: str) -> Run:
    alone = {**ROW, "tp": "1", "pp": "1", "dp": "64", "dp_sharding": "zero3"}
    return RunReader(MODELS).read({**alone, **changed})


@pytest.mark.parametrize(
    ("changed", "kept", "beyond"),
    [
        ({"framework": "DeepSpeed", "extras": "ZeRO-Offload"}, "optimizer", False),
        ({"framework": "DeepSpeed", "extras": "CPU optimizer offload"}, "optimizer", False),
        ({"framework": "DeepSpeed", "extras": "optimizer state offload"}, "optimizer", False),
        (
            {"framework": "DeepSpeed", "extras": "offload_optimizer=cpu; offload_param=cpu"},
            "optimizer+params",
            False,
        ),
        ({"framework": "DeepSpeed", "extras": "ZeRO-Infinity NVMe"}, "optimizer+params", False),
        ({"framework": "DeepSpeed", "optimizer": "DeepSpeedCPUAdam"}, "optimizer", False),
        ({"framework": "DeepSpeed", "extras": "cpu_offload=True"}, "optimizer", False),
        ({"framework": "DeepSpeed", "extras": "offload_param=cpu", "dp_sharding": "zero2"}, "none", True),
        ({"framework": "PyTorch FSDP", "extras": "CPU offload"}, "optimizer+params", False),
        ({"framework": "PyTorch FSDP", "extras": "optimizer offload"}, "optimizer+params", False),
        ({"framework": "PyTorch FSDP", "extras": "cpu_offload=True", "dp_sharding": "zero2"}, "none", True),
        ({"framework": "PyTorch FSDP", "extras": "cpu_offload=False"}, "none", False),
        ({"framework": "DeepSpeed", "extras": "no optimizer offload"}, "none", False),
        ({"framework": "DeepSpeed", "extras": "offload_optimizer: none"}, "none", False),
        ({"framework": "NeMo 24.07", "extras": "optimizer offload"}, "none", True),
        ({"framework": "NeMo 24.07", "extras": "cpu_offload=true"}, "none", True),
        ({"framework": "DeepSpeed", "extras": "activation offload"}, "none", True),
        ({"framework": "DeepSpeed", "extras": "ZeRO-Offload, CPU offload of activations"}, "optimizer", True),
    ],
)
def test_what_a_row_keeps_on_the_host(changed: dict[str, str], kept: str, beyond: bool) -> None:
    run = read(**changed)
    assert (offload_text(run.config.offload), run.offloads) == (kept, beyond)
    assert any(said.startswith("in CPU memory") for said in run.assumed) is (kept != "none")
    assert any(said.startswith("offload to the host is not modelled") for said in run.assumed) is beyond


def test_an_optimizer_on_the_host_takes_less_memory_and_more_time() -> None:
    plain, offloaded = predict_runs(
        [read(framework="DeepSpeed"), read(framework="DeepSpeed", extras="ZeRO-Offload")]
    )
    assert plain is not None
    assert offloaded is not None
    assert (offloaded.peak_memory or 0) < (plain.peak_memory or 0)
    assert (offloaded.step_time or 0) > (plain.step_time or 0)
