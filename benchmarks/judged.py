"""Is the answer to one question beaten by a configuration that `planner estimate` accepts?

Beaten is an answer where something that fits within the same limits takes less than what the answer says none takes
(its certificate's bound). Axes that the certificate names as held by the program count at the values it holds them at;
all others count with all their values. Left out: how the best is found (`benchmarks/exhaustive.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.exhaustive import ROUNDING, Hunt, Layout, Oracle, holds
from benchmarks.legal_space import LegalSpace
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import Request, cost_model
from planner.errors import PlannerError
from planner.space.axes import RESTRICTABLE, Axes, Domain, modules_tried
from planner.spec.config import ConfigTable, Mask, ParallelConfig, Recompute, value_text
from planner.spec.planfile import CLOSED_GAP, Choice, Ending, Plan, Verdict
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryVerdict, safe_limit

SAME: Final = 1e-9  # relative, of a step time costed twice


@dataclass(frozen=True)
class Judged:
    """One answer and what beats it; `tried` is the same within what the program tries unasked. Times in seconds."""

    name: str
    question: str
    verdict: str
    step: float | None
    gap: float | None
    proven: bool
    beaten: str  # why; empty where it is not
    best: float | None
    reproduce: str
    tried: float | None
    legal: int
    costed: int
    simulated: int
    complete: bool
    refused: tuple[str, ...]
    plan_seconds: float
    oracle_seconds: float

    @property
    def faster(self) -> float:
        """By how much of the best's time the answer is slower; 0 where nothing is faster."""
        return _slower(self.step, self.best)

    @property
    def faster_tried(self) -> float:
        """The same of what the program tries."""
        return _slower(self.step, self.tried)


def _slower(step: float | None, best: float | None) -> float:
    return step / best - 1 if step is not None and best is not None else 0.0


CHUNKS: Final = "chunks"  # what a certificate calls pp and vpp that the stack's own split does not fill


def held_at(problem: Problem, request: Request) -> dict[str, tuple[int, ...]]:
    """The axes that the program holds where a question leaves them open, with the values it tries; of `CHUNKS` and
    "etp" the values follow from other axes."""
    axes = Axes(problem, request.restrict, request.without)
    values: dict[str, tuple[int, ...]] = {
        "offload": _values(axes.offload(1)),
        "cuda_graph_impl": _values(axes.cuda_graph_impl(1)),
        "cuda_graph_modules": _values(axes.cuda_graph_modules(1)),
        "recompute_modules": modules_tried(problem),
        "etp": (),
        CHUNKS: (),
    }
    if "recompute" in request.restrict:
        values["recompute_layers"] = ()  # all or none
    if not axes.pipelines:
        values["pp"] = (1,)
    if not axes.weight_groups:
        values["hsdp"] = (0,)
    return {axis: tried for axis, tried in values.items() if axis not in request.restrict}


def _values(domain: Domain) -> tuple[int, ...]:
    return tuple(value for (value,) in domain)


def is_held(table: ConfigTable, axis: str, values: tuple[int, ...], layers: int) -> Mask:
    """Which rows have one of these values; of recomputed modules only where any are, of layers all or none, of shards
    of experts those that divide tp."""
    if axis == "etp":
        return np.asarray(table["tp"] % table[axis] == 0)
    if axis == "recompute_layers":
        return np.asarray((table[axis] == 0) | (table[axis] >= -(-layers // table["pp"])))
    idle = (table["recompute"] != Recompute.SELECTIVE) & (axis == "recompute_modules")
    return np.asarray(np.isin(table[axis], values) | idle)


def named_as_held(plan: Plan) -> tuple[str, ...]:
    """The axes that an answer says the program holds."""
    proof = plan.search.certificate
    if plan.verdict is Verdict.NOTHING_LEGAL and plan.headline[0].values["other_chunks"]:
        return (CHUNKS,)
    return tuple(one.axis for one in proof.held) if proof else ()


def within(space: LegalSpace, values: Mapping[str, tuple[int, ...]], layers: int) -> LegalSpace:
    """The configurations whose axes are held at these values."""
    if CHUNKS in values:
        own = set(zip(space.own["pp"].tolist(), space.own["vpp"].tolist(), strict=True))
        told = {chunks: table for chunks, table in space.told.items() if chunks in own}
        space, values = replace(space, told=told), {axis: of for axis, of in values.items() if axis != CHUNKS}
    return space.where(lambda table: [is_held(table, *one, layers) for one in values.items()])


def judge(name: str, request: Request, problem: Problem, space: LegalSpace) -> Judged:
    """Ask for the plan, and look for what beats it in the whole space."""
    started = time.process_time()
    plan = make_plan(request)
    planned = time.process_time()
    asked, layers = Asked(request, problem), problem.model.num_layers
    held = held_at(problem, request)
    named = {axis: held[axis] for axis in named_as_held(plan) if axis in held}
    everything = within(space, named, layers)
    hunt, why = asked.hunted(plan, everything)
    tried = hunt
    if hunt.config is not None and held != named:
        tried, _ = asked.hunted(plan, within(space, held, layers))
    # what options allow that the program turned on, the oracle does not know
    own = plan.found and plan.choices[0].stack == problem.stack.name
    if own and not _known(everything, plan.choices[0], problem):
        why = f"the answer {plan.choices[0].config.text} is not among what the oracle knows"
    seconds = planned - started, time.process_time() - planned
    return replace(asked.judged(name, plan, hunt, why, tried, seconds), legal=len(everything))


def _known(space: LegalSpace, best: Choice, problem: Problem) -> bool:
    """Is the answer among what the oracle looks at?"""
    config, layout = best.config.parallel(), best.split.layers_per_chunk if best.split else ()
    own = config.cp_kind == problem.context_kinds[0]
    config = replace(config, cp_kind=0) if own else config
    return holds(space, config, ()) or bool(layout and holds(space, config, layout))


def why_beaten(plan: Plan, hunt: Hunt) -> str:
    """Does what was found take less than the answer says none takes?"""
    proof = plan.search.certificate
    bound = plan.choices[0].step_time if proof is None or proof.bound is None else proof.bound
    return "faster than its bound" if hunt.config and hunt.step < bound * (1 - ROUNDING) else ""


class Asked:
    """One question, asked again of single configurations."""

    def __init__(self, request: Request, problem: Problem) -> None:
        self.request, self.problem, self.model = request, problem, cost_model(problem)
        capacity = problem.cluster.accelerator.memory
        self.limit = capacity * (1 - request.headroom)
        self.safe = safe_limit(self.limit, capacity, problem.stack.overhead.error)

    def hunted(self, plan: Plan, space: LegalSpace) -> tuple[Hunt, str]:
        """The best that is faster than the answer, and why it beats it; empty where it does not."""
        if plan.verdict is Verdict.NOTHING_LEGAL:
            hunt = self._any_legal(space)
            return hunt, "nothing is said to be legal" if hunt.config else ""
        if not plan.found:
            hunt = self._oracle(self.limit).of_space(space, math.inf)
            return hunt, "nothing is said to fit" if hunt.config else ""
        best = plan.choices[0]
        sure = best.memory.verdict is MemoryVerdict.FITS
        if not sure:
            hunt = self._oracle(self.safe).of_space(space, math.inf)
            if hunt.config:
                return hunt, "nothing is said to fit for sure"
        known = best.step_time * (1 - ROUNDING)
        hunt = self._oracle(self.safe if sure else self.limit).of_space(space, known)
        return hunt, why_beaten(plan, hunt)

    def judged(
        self, name: str, plan: Plan, hunt: Hunt, why: str, tried: Hunt, seconds: tuple[float, float]
    ) -> Judged:
        """The record of an answer. `seconds`: of the plan and of the oracle."""
        proof = plan.search.certificate
        gap = proof.gap if proof else None
        return Judged(
            name=name,
            question=command("plan", self.request, self.problem, settings(self.request.restrict)),
            verdict=plan.verdict,
            step=plan.choices[0].step_time if plan.found else None,
            gap=gap,
            proven=proof is not None and proof.ending is Ending.COMPLETE and (gap or 0.0) <= CLOSED_GAP,
            beaten=why,
            best=hunt.step if hunt.config else None,
            reproduce=self.reproduced(hunt) if hunt.config else "",
            tried=tried.step if tried.config else None,
            legal=0,
            costed=hunt.costed,
            simulated=hunt.simulated,
            complete=hunt.complete,
            refused=tuple(hunt.refused),
            plan_seconds=seconds[0],
            oracle_seconds=seconds[1],
        )

    def _any_legal(self, space: LegalSpace) -> Hunt:
        """Any configuration that `planner estimate` calls legal."""
        hunt, layers = Hunt(math.inf), self.problem.model.num_layers
        for chunks, table in (
            (1, space.own),
            *((pp * vpp, table) for (pp, vpp), table in space.told.items()),
        ):
            for row in range(min(len(table), 3)):
                layout = (layers, *[0] * (chunks - 1)) if chunks > 1 else ()
                refusal = self.confirm(table.row(row), layout, math.nan)
                if not refusal:
                    hunt.config, hunt.layout = table.row(row), layout
                    return hunt
                hunt.refused.append(refusal)
        return hunt

    def _oracle(self, allowed: float) -> Oracle:
        return Oracle(self.model, allowed, self.confirm)

    def confirm(self, config: ParallelConfig, layout: Layout, seconds: float) -> str:
        """Why `planner estimate` does not say that a configuration is legal, fits and takes so long; not a number: that
        it is legal."""
        values = {axis: (value,) for axis, value in pinned(config, self.problem).items()}
        request = replace(self.request, set={**values, "layout": layout})
        try:
            found = make_estimate(request)
        except PlannerError as error:
            return f"{config.describe()} {layout}: {error}"
        except Exception as error:  # estimate must never do this
            return f"{config.describe()} {layout}: crashed with {type(error).__name__}: {error}"
        if math.isnan(seconds) and found.choices:
            return ""
        if found.verdict is not Verdict.FOUND:
            rules = ", ".join(violation.rule for violation in found.violations)
            return f"{config.describe()} {layout}: {found.verdict} {rules}"
        differs = abs(found.choices[0].step_time / seconds - 1)
        return f"{config.describe()} {layout}: {differs:.1e} from its costing" if differs > SAME else ""

    def reproduced(self, hunt: Hunt) -> str:
        """The command that shows what beats the answer."""
        assert hunt.config is not None, "found"
        axes = pinned(hunt.config, self.problem)
        usual = {"dp": hunt.config.dp, "cp_kind": axes["cp_kind"] if hunt.config.cp == 1 else -1}
        neutral = {**dict.fromkeys(axes, 1), **dict.fromkeys(_CODES, 0), **usual}
        said = {
            axis: (value,) for axis, value in axes.items() if value != neutral[axis] or axis in ("sp", "zero")
        }
        layout = [f"layout={','.join(map(str, hunt.layout))}"] if hunt.layout else []
        return command("estimate", self.request, self.problem, [*settings(said), *layout])


_CODES: Final = ("sp", "zero", "schedule", "recompute", "recompute_layers", "recompute_modules", "offload", "hsdp",
                 "cuda_graph_impl", "cuda_graph_modules", "cp_kind")  # fmt: skip


def pinned(config: ParallelConfig, problem: Problem) -> dict[str, int]:
    """The value of every axis that `--set` takes, of one configuration."""
    values = {axis: getattr(config, axis) for axis in RESTRICTABLE}
    values["cp_kind"] = config.cp_kind or int(problem.context_kinds[0])
    if config.recompute != Recompute.SELECTIVE:
        del values["recompute_modules"]
    return values


def settings(restrict: Mapping[str, tuple[int, ...]]) -> list[str]:
    return [
        f"{axis}={','.join(value_text(axis, value) for value in values)}" for axis, values in restrict.items()
    ]


def command(verb: str, request: Request, problem: Problem, settings: list[str]) -> str:
    """The question as the command line asks it."""
    options = {
        "gpus": problem.cluster.num_devices,
        "seq-len": problem.job.seq_len,
        "global-batch": problem.job.global_batch,
        "stack": problem.stack.name,
        "headroom": f"{100 * request.headroom:g}%",
    }
    words = [f"planner {verb} {request.model} '{request.cluster}'"]
    words += [f"--{name} {value}" for name, value in options.items()]
    return " ".join([*words, *(f"--set {setting}" for setting in settings)])
