"""How far do picks in vTrain's single-node sweeps hang on a few profiles? The profiles out of the steps, and regrets.

    python -m benchmarks.vtrain_profiles RUNS.csv MODELS.json

vtrain_single publishes sums: on one pipeline stage a step is m (L layer + ends) + L once + rest, one `layer` and one
`ends` for each hidden size, tp and micro-batch, for m micro-batches of L layers. Solved by least squares, and held
against the layer that planner predicts. Then the picks of planner's step times, of the same with layers as published,
and of any law in which a layer's launches take as long whatever its size. Left out: every other source.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.published.runs import Run, RunReader, read_models, read_rows
from benchmarks.published.validate import validation_answers
from planner.calibrate.statistics import Answer, sweep_summaries
from planner.catalog.cluster_rates import rates_of
from planner.cost.layer_cost import LayerCost
from planner.cost.model import CostModel
from planner.cost.network.overlap import soft_maximum
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.spec.config import ConfigTable

SOURCE: Final = "vtrain_single"
FURTHEST: Final = 3  # profiles that are also replaced alone
# of the laws that are tried: launches, and kernels, over the stack's own; exponents of their soft maximum
FLOORS: Final = tuple(np.arange(0.75, 1.2, 0.05).tolist())
SOFTNESS: Final = (2.5, 4.0, 8.0)
PRODUCTS: Final = (0.9, 1.0)
Key = tuple[int, int, int]  # hidden size, tp, micro-batch


@dataclass(frozen=True)
class Step:
    """A published step [s] and what it is a sum over."""

    answer: Answer
    run: Run

    @property
    def key(self) -> Key:
        return self.run.problem.model.hidden, self.run.config.tp, self.run.config.micro_batch

    @property
    def layers(self) -> int:
        return self.run.problem.model.num_layers

    @property
    def microbatches(self) -> int:
        job, config = self.run.problem.job, self.run.config
        return int(job.global_batch) // (config.dp * config.micro_batch)

    @property
    def passes(self) -> float:
        """Layers that follow one another, of an even split [1]."""
        stages = self.run.config.pp
        return (self.microbatches + stages - 1) * self.layers / stages

    @property
    def seconds(self) -> float:
        return self.answer.measured.step_time or 0.0


def steps_of(answers: Sequence[Answer], reader: RunReader) -> list[Step]:
    """The steps of the source."""
    return [Step(a, reader.read(a.row)) for a in answers if a.row["source"] == SOURCE]


def profiles(steps: Sequence[Step]) -> tuple[dict[Key, float], float]:
    """Seconds of a layer by key, and the largest relative error of the sums."""
    groups: dict[tuple[int, int], list[Step]] = defaultdict(list)
    for step in steps:
        if step.run.config.pp == 1:
            groups[step.key[:2]].append(step)
    found: dict[Key, float] = {}
    worst = 0.0
    for (hidden, tp), members in groups.items():
        fewest = min(step.run.config.dp for step in members)
        members = [step for step in members if step.run.config.dp == fewest]
        batches = sorted({step.key[2] for step in members})
        table = np.zeros((len(members), 2 * len(batches) + 2))
        for row, step in zip(table, members, strict=True):
            at, m = 2 * batches.index(step.key[2]), step.microbatches
            row[at : at + 2] = m * step.layers, m
            row[-2:] = step.layers, 1.0
        seconds = np.array([step.seconds for step in members])
        solved = np.linalg.lstsq(table, seconds, rcond=None)[0]
        worst = max(worst, float(np.abs(table @ solved / seconds - 1).max()))
        found |= {(hidden, tp, batch): float(solved[2 * i]) for i, batch in enumerate(batches)}
    return found, worst


def layer_of(run: Run) -> LayerCost:
    """A layer of a run as its stack has it."""
    model = CostModel(run.problem, *rates_of(run.problem.cluster))
    return model.layers.layer(model.kinds[0], ConfigTable.of([run.config]))


def predicted_layer(run: Run) -> float:
    """Seconds of a layer, forward and backward, as the stack of the run has them."""
    return float(layer_of(run).time_full[0])


def kernels_over_launches(run: Run) -> float:
    """Seconds that a layer's kernels run over those the host takes to launch them, collectives apart [1]."""
    layer = layer_of(run)
    passes = (layer.forward, layer.backward)
    kernels = sum(float(seconds[0]) for part in passes for name, seconds in part.items() if name != "tp_comm")
    return kernels / float(layer.host[0])


def at_common_floor(published: dict[Key, float], some: dict[Key, Run], bound: list[Key]) -> dict[Key, float]:
    """The profiles [s], those that launches bound as long as predicted times their median ratio to it, of those at tp 1
    and of those above."""
    found = dict(published)
    for alone in (True, False):
        predicted = {key: predicted_layer(some[key]) for key in bound if (key[1] == 1) is alone}
        ratio = float(np.median([published[key] / seconds for key, seconds in predicted.items()]))
        found |= {key: ratio * seconds for key, seconds in predicted.items()}
    return found


def laws(some: dict[Key, Run]) -> Iterator[dict[Key, float]]:
    """Seconds of a layer by key under every law of `FLOORS`, `SOFTNESS` and `PRODUCTS`.

    Each pass takes the soft maximum of its kernels and of its launches, which take as long whatever the layer's size,
    at tp 1 and above; collectives follow.
    """
    parts = {}
    for key, run in some.items():
        layer = layer_of(run)
        passes = (layer.forward, layer.backward)
        seconds = [sum(float(s[0]) for name, s in part.items() if name != "tp_comm") for part in passes]
        sent = sum(float(part["tp_comm"][0]) for part in passes)
        parts[key] = (
            np.array(seconds),
            float(layer.host[0]) * np.array([FORWARD_SHARE, 1 - FORWARD_SHARE]),
            sent,
        )
    for alone, divided, softness, products in product(FLOORS, FLOORS, SOFTNESS, PRODUCTS):
        yield {
            key: sent
            + float(
                soft_maximum(products * seconds, (alone if key[1] == 1 else divided) * host, softness).sum()
            )
            for key, (seconds, host, sent) in parts.items()
        }


def with_layers(steps: Sequence[Step], differences: dict[Key, float]) -> list[Answer]:
    """Predictions with so many seconds more per layer."""
    changed = []
    for step in steps:
        seconds = step.answer.output["step_time_s"] + step.passes * differences.get(step.key, 0.0)
        changed.append(replace(step.answer, output={**step.answer.output, "step_time_s": seconds}))
    return changed


def regrets(answers: Sequence[Answer]) -> tuple[float, float]:
    """Mean and worst regret of the picks over all sweeps [1]."""
    found = np.array([s["regret"] for s in sweep_summaries(answers)])
    return float(found.mean()), float(found.max())


def regret_line(answers: Sequence[Answer]) -> str:
    """Regret of the picks over all sweeps."""
    sweeps = sweep_summaries(answers)
    pick, three = (np.array([s[name] for s in sweeps]) for name in ("regret", "regret_of_three"))
    order = float(np.median([s["spearman"] for s in sweeps]))
    return (
        f"regret of the pick {100 * pick.mean():.1f} %, worst {100 * pick.max():.1f} %, best of three "
        f"{100 * three.mean():.1f} %, Spearman median {order:.3f}, {len(sweeps)} sweeps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vtrain_profiles", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("models", type=Path)
    given = parser.parse_args()
    described = read_models(given.models)
    rows = [row for row in read_rows(given.runs) if row["source"] == SOURCE]
    steps = steps_of(validation_answers(rows, described), RunReader(described))
    published, worst = profiles(steps)
    some = {step.key: step.run for step in steps}
    predicted = {key: predicted_layer(some[key]) for key in published}
    off = {key: published[key] / predicted[key] - 1 for key in published}
    furthest = sorted(off, key=lambda key: -abs(off[key]))[:FURTHEST]
    print(
        f"{len(published)} profiles of a layer, sums exact to {worst:.0e}; published over predicted, less 1:"
    )
    print(f"  standard deviation {100 * np.std(list(off.values())):.1f} %")
    for hidden, tp, batch in furthest:
        print(f"  h {hidden} tp {tp} mbs {batch}: {100 * off[hidden, tp, batch]:+.1f} %")
    differences = {key: published[key] - predicted[key] for key in published}
    print("as predicted: " + regret_line(with_layers(steps, {})))
    few = {key: differences[key] for key in furthest}
    print(f"those {FURTHEST} as published: " + regret_line(with_layers(steps, few)))
    print("all as published: " + regret_line(with_layers(steps, differences)))
    bound = [key for key, run in some.items() if kernels_over_launches(run) < 1.0]
    floored = at_common_floor(published, some, bound)
    apart = {key: floored[key] - predicted[key] for key in published}
    print(f"{len(bound)} that launches bound at their median, the others as published:")
    print("  " + regret_line(with_layers(steps, apart)))
    apart = {key: differences[key] for key in bound}
    print("these as published, the others as predicted: " + regret_line(with_layers(steps, apart)))
    tried = [{key: law[key] - predicted[key] for key in law} for law in laws(some)]
    mean, worst = 100 * np.array([regrets(with_layers(steps, law)) for law in tried]).T
    print(
        f"{len(tried)} laws of launches and kernels: pick {mean.min():.1f} to {mean.max():.1f} %, of all laws"
    )
    print(f"  worst sweep {worst.min():.1f} % or more")


if __name__ == "__main__":
    main()
