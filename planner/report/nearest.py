"""What is worth saying of the nearest published run? Its settings, and its figures beside those that planner predicts.

Left out: which run is nearest (`answer/nearest_run.py`).
"""

from __future__ import annotations

from planner.report.facts import Figure, precise_time
from planner.spec.planfile import Choice, NearestRun, Plan


def settings_sentence(run: NearestRun) -> str:
    """What was trained, on what, how, and by which software."""
    model = run.model if run.same_model else f"{run.model} (another model of this kind and size)"
    return (
        f"{model} on {run.devices:,} {run.accelerator}, {run.software}: {run.global_batch:,} sequences of "
        f"{run.seq_len:,} tokens, {run.precision}, {run.config.text}"
    )


def figures(plan: Plan, run: NearestRun, noun: str) -> tuple[Figure, ...]:
    """Measured, predicted for the same configuration, and the plan's own. `noun`: what a device is called."""
    unit, apart = f"tokens/s/{noun}", run.predicted_step_time / run.step_time - 1
    off = f", {abs(apart):.1%} {'slower' if apart > 0 else 'faster'} than measured"
    found = [
        Figure("measured", f"{run.tokens_per_second_per_device:,.0f} {unit}", precise_time(run.step_time)),
        Figure(
            "predicted",
            f"{run.predicted_tokens_per_second_per_device:,.0f} {unit}",
            precise_time(run.predicted_step_time) + off,
        ),
    ]
    choice: Choice | None = plan.choices[0] if plan.choices else None
    if choice is not None:
        other = ", ".join(_differing(plan, run))
        what = "this plan" if plan.search.candidates > 1 else "this one"
        value = f"{choice.tokens_per_second_per_device:,.0f} {unit}"
        found.append(Figure(what, value, f"of another {other}" if other else "of the same job"))
    return tuple(found)


def _differing(plan: Plan, run: NearestRun) -> list[str]:
    """In what the job of the plan is another than the run's."""
    job, cluster = plan.subject.job, plan.subject.cluster
    pairs = (
        ("model", run.same_model, True),
        ("number of devices", cluster.devices, run.devices),
        ("sequence length", job.seq_len, run.seq_len),
        ("batch", job.global_batch, run.global_batch),
        ("precision", job.precision, run.precision),
    )
    return [name for name, own, other in pairs if own != other]
