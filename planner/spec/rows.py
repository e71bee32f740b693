"""What is one configuration of a plan as a row of a table? Columns of data frames and of sweep results.

A table has nowhere else to say it, so columns of quantities end in their unit. Left out: the parts of time and
memory, which are in the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from planner.errors import InputError
from planner.spec.findings import one_line
from planner.spec.planfile import Choice, Plan

Row = dict[str, Any]

# column -> what its values are, in the order of a table
COLUMNS: Final[Mapping[str, type]] = {
    "model": str, "cluster": str, "accelerator": str, "gpus": int, "seq_len": int, "global_batch": int,
    "precision": str, "optimizer": str, "stack": str, "tokens": float, "tokens_trained": float,
    "verdict": str, "place": int, "configuration": str,
    "tp": int, "cp": int, "pp": int, "dp": int, "vpp": int, "ep": int, "etp": int, "micro_batch": int,
    "num_microbatches": int, "sp": int, "zero": int, "hsdp": int, "recompute": str, "recompute_layers": int,
    "recompute_modules": str, "schedule": str, "offload": str, "cuda_graph_impl": str, "cuda_graph_modules": str,
    "cp_kind": str,
    "step_time_s": float, "step_time_low_s": float, "step_time_high_s": float, "tokens_per_s_per_gpu": float,
    "mfu": float, "memory_peak_bytes": float, "memory_free_bytes": float, "memory_verdict": str,
    "days": float, "goodput": float, "gpu_hours": float, "cost_usd": float, "energy_j": float, "co2_kg": float,
    "calibration_level": str, "band": float, "reason": str,
}  # fmt: skip


def subject_row(plan: Plan) -> Row:
    """What was asked, and how it ended; every column, those of a configuration empty."""
    subject = plan.subject
    job = subject.job
    return dict.fromkeys(COLUMNS) | {
        "model": subject.model.name,
        "cluster": subject.cluster.name,
        "accelerator": subject.cluster.accelerator,
        "gpus": subject.cluster.devices,
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "stack": subject.stack.name,
        "tokens": job.tokens,
        "verdict": str(plan.verdict),
        "calibration_level": str(plan.confidence.level),
        "band": plan.confidence.band,
        "reason": "" if plan.found else one_line(plan.smallest_change) or one_line(plan.headline),
    }


def choice_row(plan: Plan, place: int) -> Row:
    """The configuration at a place of the plan, from 1."""
    choice = plan.choices[place - 1]
    axes = choice.config.by_axis()
    named = {"stack": choice.stack, "place": place, "configuration": choice.config.text}
    return subject_row(plan) | named | axes | _figures(choice)


def _figures(choice: Choice) -> Row:
    run, memory = choice.run, choice.memory
    figures: Row = {
        "step_time_s": choice.step_time,
        "step_time_low_s": choice.step_time_low,
        "step_time_high_s": choice.step_time_high,
        "tokens_per_s_per_gpu": choice.tokens_per_second_per_device,
        "mfu": choice.mfu,
        "memory_peak_bytes": memory.peak,
        "memory_free_bytes": memory.limit - memory.peak,
        "memory_verdict": str(memory.verdict),
    }
    if run is None:
        return figures
    return figures | {
        "tokens_trained": run.tokens,
        "days": run.days if run.effective_days is None else run.effective_days,
        "goodput": run.goodput,
        "gpu_hours": run.gpu_hours if run.held_gpu_hours is None else run.held_gpu_hours,
        "cost_usd": run.cost,
        "energy_j": run.energy,
        "co2_kg": run.emissions,
    }


def plan_rows(plan: Plan) -> list[Row]:
    """All configurations of a plan, best first; one row with the reason where there is none."""
    return [choice_row(plan, place) for place in range(1, len(plan.choices) + 1)] or [subject_row(plan)]


def data_frame(rows: Iterable[Row]) -> Any:
    """The rows as a pandas data frame. Raises `InputError` where pandas is not installed."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise InputError("to_dataframe needs pandas", hint="install it: pip install pandas") from None
    return pandas.DataFrame(list(rows), columns=list(COLUMNS))
