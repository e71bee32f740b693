"""What would a perfect model lose on the published sweeps, which were measured once and not without noise?

    python -m benchmarks.noise_floor RUNS.csv MODELS.json

A model that knows every true step time still loses what noise makes of near ties. The noise of a run: pairs of one
source with the same settings (at tp 1 with and without sequence parallelism, which is the same). vtrain_single repeats
nothing, but sums 32 profiles: layers whose kernels run for less than half as long as the host takes to launch them
launch the same kernels, so that their scatter around planner's is noise; it is drawn for all that launches bound. True
times: the published ones, in vtrain_single planner's. Left out: what no row states, such as a slow mode.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import vtrain_profiles as vtrain
from benchmarks.published.measured import group_of, is_judged
from benchmarks.published.runs import RunReader, read_models, read_rows
from benchmarks.published.validate import validation_answers
from planner.calibrate.statistics import Answer, sweep_summaries

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Array]

DRAWS: Final = 200
PAIRED: Final = 0.6745 * 2.0**0.5  # median gap of two normal draws over their standard deviation
NO_SETTINGS: Final = (
    "source_ref", "split", "notes", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "flops_kind", "mfu",
    "peak_mem_gib",
)  # fmt: skip


def noise_of(answers: Sequence[Answer]) -> tuple[float, int]:
    """Standard deviation of a run's log step time by the median gap of pairs with the same settings; their number."""
    alike: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for answer in answers:
        row = dict(answer.row) | ({"sequence_parallel": ""} if float(answer.row["tp"] or 0) == 1 else {})
        settings = tuple(value for name, value in row.items() if name not in NO_SETTINGS)
        alike[settings].append(answer.measured.step_time or 0.0)
    gaps = [np.log(max(times) / min(times)) for times in alike.values() if len(times) > 1]
    return float(np.median(gaps)) / PAIRED, len(gaps)


def lost(answers: Sequence[Answer], draw: Draw, draws: int = DRAWS) -> dict[str, Array]:
    """By source the mean and the worst regret of the pick and the mean of the best of three, (draws, 3) [1], by
    predictions of runs that take as many times as long as `draw` says."""
    found, rng = defaultdict(list), np.random.default_rng(0)
    seconds = np.array([a.output["step_time_s"] for a in answers])
    for _ in range(draws):
        times = zip(answers, (seconds * draw(rng)).tolist(), strict=True)
        again = sweep_summaries([replace(a, measured=replace(a.measured, step_time=s)) for a, s in times])
        for source in {sweep["source"] for sweep in again}:
            part = [(s["regret"], s["regret_of_three"]) for s in again if s["source"] == source]
            one, three = np.array(part).T
            found[source].append((one.mean(), one.max(), three.mean()))
    return {source: np.array(part) for source, part in sorted(found.items())}


def jitter(answers: Sequence[Answer], reader: RunReader) -> tuple[Draw, float]:
    """Draws of vtrain_single's steps over planner's, by the layers that launches bound; these layers' scatter [1]."""
    steps = vtrain.steps_of(answers, reader)
    some = {step.key: step.run for step in steps}
    layers = {key: vtrain.predicted_layer(run) for key, run in some.items()}
    shares = {key: vtrain.kernels_over_launches(run) for key, run in some.items()}
    off = [s / layers[key] for key, s in vtrain.profiles(steps)[0].items() if shares[key] < 0.5]

    def draw(rng: np.random.Generator) -> Array:
        more = {key: s * (rng.choice(off) / np.mean(off) - 1) for key, s in layers.items() if shares[key] < 1}
        drawn = zip(answers, vtrain.with_layers(steps, more), strict=True)
        return np.array([b.output["step_time_s"] / a.output["step_time_s"] for a, b in drawn])

    return draw, float(np.std(off) / np.mean(off))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise_floor", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    given = parser.parse_args()
    described = read_models(given.models)
    answers = validation_answers(read_rows(given.runs), described)
    ran = [a for a in answers if a.time_ratio is not None and is_judged(group_of(a.row))]
    sums = [a for a in ran if a.row["source"] == vtrain.SOURCE]
    known = [
        replace(a, output={"step_time_s": a.measured.step_time, "verdict": "fits"})
        for a in ran
        if a.row["source"] != vtrain.SOURCE
    ]
    (noise, pairs), (draw, scatter) = noise_of(ran), jitter(sums, RunReader(described))
    found = lost(known, lambda rng: np.exp(noise * rng.standard_normal(len(known)))) | lost(sums, draw)
    print(f"noise of a run {noise:.1%} by {pairs} pairs, of a profile that launches bound {scatter:.1%}")
    print("regret by source, mean over draws (5 to 95 %):")
    for source, part in found.items():
        low, high = 100 * np.percentile(part, (5, 95), axis=0)
        one, worst, three = (
            f"{100 * mean:.1f} % ({a:.1f} to {b:.1f})"
            for mean, a, b in zip(part.mean(axis=0), low, high, strict=True)
        )
        print(f"  {source}: of the pick {one}, in its worst sweep {worst}, of the best of three {three}")


if __name__ == "__main__":
    main()
