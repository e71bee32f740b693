"""How long was a step of which TFLOP/s are stated? The FLOPs are planner's, counted by the convention that is named.

A figure means little without its convention: they lie a third apart, at long sequences more. Left out: MFU, which needs
the peak that its publisher took as well.
"""

from __future__ import annotations

from typing import Final

from planner.calibrate.predict import Run
from planner.cost.mfu import (
    MfuConvention,
    core_forward_flops_per_token,
    layers_forward_flops_per_token,
    mfu_flops_per_token,
)
from planner.errors import UnsupportedError
from planner.spec.config import RECOMPUTE_MODULES, ParallelConfig, Recompute
from planner.spec.rule import Problem

_HARDWARE: Final = {
    "hardware_full_square": MfuConvention.FULL_SQUARE,
    "hardware_causal_half": MfuConvention.CAUSAL_HALF,
}
KINDS: Final = (*MfuConvention, *_HARDWARE)
_CORE: Final = 1 << RECOMPUTE_MODULES.index("core_attn")


def step_of_rate(rate: float, kind: str, run: Run) -> tuple[float, str]:
    """The step that TFLOP/s mean [s], and how it was found. Raises `UnsupportedError` for what cannot be counted.

    `rate`: of a device [FLOP/s]. `kind`: the convention, one of `KINDS`.
    """
    per_token = counted_flops_per_token(run.problem, run.config, kind)
    job, devices = run.problem.job, run.problem.cluster.num_devices
    noun = run.problem.cluster.accelerator.noun
    seconds = per_token * job.tokens_per_step / devices / rate
    said = (
        f"measured step of {seconds:.4g} s: {rate / 1e12:g} TFLOP/s per {noun} at {per_token / 1e9:.4g} GFLOP a token "
        f"({kind})"
    )
    return seconds, said


def counted_flops_per_token(problem: Problem, config: ParallelConfig, kind: str) -> float:
    """FLOPs of a token as a row's `flops_kind` counts them [FLOP/token]. Raises `UnsupportedError`."""
    if kind not in KINDS:
        must = "TFLOP/s can be read where flops_kind says what they count"
        raise UnsupportedError(must, repr(kind), "state one of " + ", ".join(KINDS) + ", or the step time")
    job, model = problem.job, problem.model
    if job.lora_rank is not None:
        must = "TFLOP/s of adapters' jobs are counted differently by every framework"
        raise UnsupportedError(must, f"rank {job.lora_rank}", "state the step time or tokens/s")
    seq = float(job.seq_len)
    if kind not in _HARDWARE:
        return float(mfu_flops_per_token(model, seq, MfuConvention(kind)))
    return float(mfu_flops_per_token(model, seq, _HARDWARE[kind])) + _recomputed(problem, config, kind)


def _recomputed(problem: Problem, config: ParallelConfig, kind: str) -> float:
    """FLOPs per token that recomputation adds [FLOP/token]: whole layers or attention cores."""
    model, seq = problem.model, float(problem.job.seq_len)
    recompute = Recompute(config.recompute)
    if recompute is Recompute.NONE:
        return 0.0
    selective = recompute is Recompute.SELECTIVE
    if model.indexers or (selective and config.recompute_modules != _CORE):
        raise UnsupportedError(
            "hardware FLOPs can be counted where whole layers or the attention core are recomputed",
            "attention behind an indexer" if model.indexers else config.describe(),
            "state model FLOPs (full_square, causal_half), or the step time",
        )  # fmt: skip
    if selective:
        return float(core_forward_flops_per_token(model, seq, _HARDWARE[kind]))
    share = min(config.recompute_layers * config.pp / model.num_layers, 1.0)
    return share * float(layers_forward_flops_per_token(model, seq, _HARDWARE[kind]))
