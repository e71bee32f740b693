"""What tests share: a hand-made plan, and the command itself."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from planner import cli
from planner.spec.config import ParallelConfig
from planner.spec.planfile import (
    CalibrationLevel,
    Choice,
    Confidence,
    Memory,
    Plan,
    RemovedBy,
    Run,
    Search,
    StageMemory,
    Verdict,
)
from planner.spec.planned_config import PlannedConfig
from planner.spec.subject import ClusterFacts, JobFacts, ModelFacts, StackFacts, Subject
from planner.spec.verdict import MemoryVerdict

GIB = 2.0**30


def pytest_collection_finish() -> None:
    """What modules and thousands of tests hold is not looked through for garbage again and again."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Libraries that list what nobody has collected find nothing."""
    gc.unfreeze()


def make_choice(
    config: ParallelConfig, scale: float = 1.0, verdict: MemoryVerdict = MemoryVerdict.FITS
) -> Choice:
    """A choice with round numbers; `scale` stretches its step."""
    time = {"compute_layers": 3.5 * scale, "tp_exposed": 0.75, "pipeline_bubble": 0.5, "step_overhead": 0.25}
    terms = {
        "weights": 6.25 * GIB,
        "gradients": 12.5 * GIB,
        "optimizer": 3.25 * GIB,
        "activations": 40.0 * GIB,
    }
    step = sum(time.values())
    return Choice(
        config=PlannedConfig.of(config),
        step_time=step,
        step_time_low=0.9 * step,
        step_time_high=1.1 * step,
        tokens_per_second_per_device=1024 / step * 2,
        flops_per_device=400e12,
        mfu=400 / 989,
        mfu_convention="causal_half",
        peak_flops=989e12,
        time=time,
        memory=Memory(
            peak=62 * GIB,
            stage=0,
            stages=16,
            phase="backward",
            limit=76 * GIB,
            verdict=verdict,
            logged=58 * GIB,
            terms=terms,
            per_stage=(
                StageMemory(stages="0", layers=7, peak=62 * GIB, phase="backward"),
                StageMemory(stages="1-15", layers=8, peak=55 * GIB, phase="backward"),
            ),
        ),
        layers_per_stage=(7, *[8] * (config.pp - 1)),
        run=Run(steps=929836, days=53.8, gpu_hours=21.2e6, cost=53e6, price_per_device_hour=2.5),
        why=("tp stays inside the node",),
    )


@pytest.fixture
def choice_of() -> Callable[..., Choice]:
    """Makes a choice with round numbers of a configuration."""
    return make_choice


@pytest.fixture
def example_plan() -> Plan:
    """A plan that was found, with two choices."""
    best = ParallelConfig(tp=8, pp=16, dp=128, vpp=8, schedule=1, num_microbatches=16, sp=1, zero=1)
    return Plan(
        verdict=Verdict.FOUND,
        headline="fits with 14.0 GiB to spare, 5.0 s per step",
        subject=Subject(
            model=ModelFacts(
                name="llama [bold]405B[/bold]", family="llama", source="catalog",
                params_total=405853388800, params_active=405853388800, layers=126,
            ),
            cluster=ClusterFacts(
                name="h100-sxm-roce", accelerator="h100-sxm-80g", devices=16384, devices_per_node=8,
                scale_up_domain=8, memory_per_device=80 * GIB, source="datasheet",
            ),
            job=JobFacts(
                seq_len=8192, global_batch=2048, precision="bf16", optimizer="adamw",
                tokens=15.6e12, tokens_per_step=8192 * 2048,
            ),
            stack=StackFacts(name="megatron-x", framework="megatron", released="2026-01", description=""),
        ),
        choices=(
            make_choice(best),
            make_choice(ParallelConfig(tp=8, pp=8, dp=256, num_microbatches=8, sp=1, zero=1), 1.1),
        ),
        search=Search(
            candidates=1_000_000, removed=(RemovedBy(rule="heads-tp", candidates=900_000),), legal=100_000,
            too_large=60_000, costed=40_000, seconds=0.8, restricted={"tp": (8,)},
        ),
        assumptions=("micro-batches are equal",),
        not_modelled=("failures",),
        confidence=Confidence(level=CalibrationLevel.L1, band=0.1, explanation="public runs of this stack"),
        headroom=0.05,
    )  # fmt: skip


@pytest.fixture
def planner(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Calls the command in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["planner", *arguments])
        with pytest.raises(SystemExit) as raised:
            cli.main()
        out, err = capsys.readouterr()
        return (raised.value.code if isinstance(raised.value.code, int) else 0), out, err

    return call
