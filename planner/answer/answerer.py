"""What is the answer? Turns costs into the plan file: figures, reasons, confidence, what is left out.

Left out: how the configurations were found (`plan.py`, `solve/`) and how they are drawn (`report/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from planner.answer.choices import Chooser
from planner.answer.headline import headline, recommended
from planner.answer.reasons import confidence_of
from planner.answer.recommend import TOLD_APART, Pick, Setting, recommend
from planner.answer.rivals import balanced_lead
from planner.answer.routing import BusiestRank
from planner.ask.request import cost_model
from planner.campaign.run import run_assumptions
from planner.cost.chunks import PipelineSimulator
from planner.cost.host_memory import always_on_host, on_host
from planner.cost.model import CostModel
from planner.cost.params import model_parameters
from planner.cost.simulated import evaluate_exactly
from planner.frameworks import explicit_splits
from planner.solve.layouts import SplitsSolved
from planner.solve.pareto import NEAR_MOST_ROOM, ParetoFront
from planner.solve.search import SearchResult
from planner.space.enumerate import Removed, Space
from planner.space.framework_rules import all_rules_for
from planner.space.held_fixed import has_other_chunks
from planner.space.legality import explain_config
from planner.spec.assumptions import Assumptions
from planner.spec.config import ConfigTable, ParallelConfig, named_value
from planner.spec.findings import Finding, finding
from planner.spec.job import Optimizer
from planner.spec.planfile import (
    BrokenRule,
    Certificate,
    Choice,
    Ending,
    Objective,
    ParetoPoint,
    Plan,
    RemovedBy,
    Search,
    Verdict,
)
from planner.spec.planned_config import PlannedConfig
from planner.spec.rule import Problem, Violation
from planner.spec.subject import ClusterFacts, JobFacts, ModelFacts, StackFacts, Subject
from planner.spec.verdict import MemoryVerdict
from planner.units import GIB

NOT_MODELLED: Final = (
    "interruptions", "congestion", "muon", "loads", "lengths", "loader", "schedules", "graphs", "buffers",
)  # fmt: skip


def not_modelled(problem: Problem) -> tuple[Finding, ...]:
    """What is left out of answers, of what this job has or does not state."""
    job, architecture = problem.job, problem.cluster.accelerator.architecture
    has_experts = any(layer.moe for layer in problem.model.blocks)
    irrelevant = {
        "muon": job.optimizer is not Optimizer.MUON or problem.deals_matrices,
        "loads": not has_experts or job.expert_imbalance not in ((), 1.0),
        "lengths": job.mean_length is not None,
        "graphs": architecture.is_compiled_for,
        "buffers": architecture.is_compiled_for,
    }
    library = {"buffers": {"library": architecture.words.collectives}}
    return tuple(
        finding(f"left_out_{what}", **library.get(what, {}))
        for what in NOT_MODELLED
        if not irrelevant.get(what, False)
    )


class Answerer:
    """Builds the plan of one problem."""

    def __init__(
        self, problem: Problem, model: CostModel, simulator: PipelineSimulator, assumed: tuple[Finding, ...],
        headroom: float, restricted: Mapping[str, tuple[int, ...]], campaign: Assumptions,
    ) -> None:  # fmt: skip
        self.problem, self.model, self.headroom, self.restricted = problem, model, headroom, dict(restricted)
        self.assumed, self.campaign = assumed, campaign
        self.chooser = Chooser(problem, model, simulator, headroom, campaign)
        self.room = self.chooser.room
        self.limit = self.room.limit
        self.busiest = BusiestRank(problem, assumed)

    def fits(self, config: ParallelConfig) -> bool:
        """Does the configuration surely fit, on its hosts as well?"""
        table = ConfigTable.of([config])
        fits = self.model.evaluate(table).device_memory[0] <= self.room.sure
        return bool(fits and on_host(self.model, table)[0])

    def plan(
        self, space: Space, found: SearchResult, splits: SplitsSolved | None, helps: Sequence[Finding] | None,
        front: ParetoFront, ending: Ending, objective: Objective, clock: Callable[[], float], allowed: float,
    ) -> Plan:  # fmt: skip
        """The answer to a search; `helps`: changes under which something would be legal, None where none were sought;
        `allowed`: the largest peak it took [bytes], below the limit where the memory model's error must fit as well."""
        choices = self.chooser.choices(found.best, splits.splits if splits else None)
        if choices and splits and splits.per_stage:
            choices = (self.chooser.noted(choices[0], splits.per_stage), *choices[1:])
        pick = Pick(choices, 0)
        if choices and objective is not Objective.HEADROOM:
            pick = recommend(Setting.of(self.problem), choices, self._roomier(front, choices))
            choices = pick.choices
            best = choices[0]
            others = balanced_lead(self.problem, found.best.row(0), choices, cost_model)
            choices = (best.model_copy(update={"why": (*best.why, *others)}), *choices[1:])
        choices = tuple(map(self.busiest.noted, choices))
        pick = replace(pick, choices=choices)
        verdict, change, nearest = Verdict.FOUND, tuple(helps or ()), None
        if not found.legal:
            verdict = Verdict.NOTHING_LEGAL
            if helps is not None:
                change = change or (finding("nothing_makes_legal"),)
        elif not choices:
            verdict, nearest = Verdict.NOTHING_FITS, self.chooser.choices(found.smallest)[0]
            seen = ending is not Ending.COMPLETE
            if seen and helps is None:
                change = (finding("changes_not_tried"),)
            elif helps is not None and not helps:
                change = (finding("nothing_makes_fit"),)
            change = (_least_memory(nearest, seen), *change)
        search = Search(
            candidates=space.total,
            removed=tuple(RemovedBy(rule=r.rule, candidates=r.candidates) for r in _largest(space)),
            legal=found.legal,
            undealt=found.undealt,
            undealt_by_memory=found.undealt_by_memory,
            too_large=found.too_large,
            costed=found.costed,
            seconds=clock(),
            restricted={
                axis: tuple(named_value(axis, value) for value in values)
                for axis, values in self.restricted.items()
            },
            once=found.once,
            certificate=self._certificate(
                space, found, splits, choices, front, ending, objective, clock(), allowed
            ),
        )
        pareto = self._pareto(front)
        made = self._plan(verdict, choices, search, nearest=nearest, smallest_change=change, pareto=pareto)
        return recommended(made, pick)

    def _roomier(self, front: ParetoFront, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Configurations that may be recommended and are not listed: those of the front as fast as the first, as far as
        a prediction can tell, with more memory free, and these and listed ones with the framework's own CUDA graphs."""
        first, listed = choices[0], [choice.config.parallel() for choice in choices]
        latest = first.step_time * (1 + TOLD_APART)
        rows = np.flatnonzero((front.step_time <= latest) & (front.device_memory < first.memory.peak))
        roomier = [front.table.row(row) for row in rows.tolist()]
        near = [config for config, choice in zip(listed, choices, strict=True) if choice.step_time <= latest]
        own = int(self.problem.stack.limits.own_graphs)
        asked = {"cuda_graph_impl", "cuda_graph_modules"} & set(self.restricted)
        alike = () if asked else (*near, *roomier)
        plain = [replace(config, cuda_graph_impl=own, cuda_graph_modules=0) for config in alike]
        new = [config for config in dict.fromkeys((*roomier, *plain)) if config not in listed]
        rules = all_rules_for(self.problem.stack.framework)
        legal = [config for config in new if not explain_config(config, self.problem, rules)]
        return self.chooser.choices(ConfigTable.of(legal)) if legal else ()

    def _certificate(
        self, space: Space, found: SearchResult, splits: SplitsSolved | None, choices: tuple[Choice, ...],
        front: ParetoFront, ending: Ending, objective: Objective, seconds: float, allowed: float,
    ) -> Certificate:  # fmt: skip
        best = bound = gap = None
        roomiest = objective is Objective.HEADROOM
        told = splits is not None and explicit_splits(self.problem.stack.framework)
        if choices and roomiest:
            best = self.limit - choices[0].memory.peak
            bound, gap = (best, 0.0) if front.complete else (None, None)
        elif choices:
            best = choices[0].step_time
            bound = min(best, found.unseen, found.behind_solved)
            if told and splits:  # a split that cannot be told is no candidate
                bound = min(bound, splits.bound, splits.outside.bound)
            gap = (best - bound) / best
            if told and splits and not splits.complete:
                bound = gap = None
        return Certificate(
            objective=objective,
            compared=(
                finding(
                    "compared",
                    quantity="peak_memory" if roomiest else "step_time",
                    near_most_room=NEAR_MOST_ROOM * self.limit if roomiest else None,
                    all_splits_of=splits.looked_at if told and splits else None,
                    host_memory=not self._hosts_suffice(space),
                    peaks_up_to=allowed if allowed < self.limit else None,
                ),
            ),
            candidates=space.total,
            by_rule=space.total - found.legal - found.undealt - found.undealt_by_memory,
            by_memory=found.by_memory + found.too_large + found.undealt_by_memory,
            by_bound=found.behind + found.undealt,
            costed=found.costed,
            solved=found.solved,
            splits_solved=len(splits.splits) if splits else 0,
            outside=splits.outside.configurations if told and splits else 0,
            outside_bound=splits.outside.bound if told and splits and splits.outside.configurations else None,
            split_bound=splits.bound if splits and np.isfinite(splits.bound) else None,
            best=best,
            bound=bound,
            gap=gap,
            ending=ending,
            seconds=seconds,
        )

    def _hosts_suffice(self, space: Space) -> bool:
        """Have the hosts room for all of a space, as can be told without costing it?"""
        offloads = any(kind for (kind,) in space.axes.offload(1))
        return self.problem.cluster.host_memory is None or (
            not offloads and always_on_host(self.model, space.cuts)
        )

    def _pareto(self, front: ParetoFront) -> tuple[ParetoPoint, ...]:
        """The points of a front with their pipelines simulated, without those that others are then as good as."""
        time = evaluate_exactly(self.model, front.table, self.chooser.simulator).step_time
        order = np.lexsort((front.device_memory, time))
        memory = front.device_memory[order]
        kept = order[memory < np.concatenate([[np.inf], np.minimum.accumulate(memory)])[:-1]]
        peaks = front.device_memory.tolist()
        return tuple(
            ParetoPoint(
                config=PlannedConfig.of(front.table.row(row), self.problem.context_kinds[0]),
                step_time_s=float(time[row]),
                peak_mem_gib=peaks[row] / GIB,
                headroom_gib=max(self.limit - peaks[row], 0.0) / GIB,
                memory_verdict=self.room.verdict(peaks[row]),
            )
            for row in kept.tolist()
        )

    def estimate(
        self, config: ParallelConfig, broken: tuple[Violation, ...], nearest: ParallelConfig | None,
        helps: Sequence[Finding], clock: Callable[[], float],
    ) -> Plan:  # fmt: skip
        """The answer to one named configuration; `helps`: what would make it faster."""
        legal = not broken
        choices = (
            tuple(map(self.busiest.noted, self.chooser.choices(ConfigTable.of([config])))) if legal else ()
        )
        near = self.chooser.choices(ConfigTable.of([nearest]))[0] if nearest is not None else None
        verdict = Verdict.ILLEGAL
        if choices:
            fits = choices[0].memory.verdict is not MemoryVerdict.DOES_NOT_FIT
            verdict = Verdict.FOUND if fits else Verdict.DOES_NOT_FIT
        search = Search(
            candidates=1,
            removed=tuple(RemovedBy(rule=b.rule, candidates=1) for b in broken[:1]),
            legal=int(legal),
            too_large=int(verdict is Verdict.DOES_NOT_FIT),
            costed=int(legal),
            seconds=clock(),
            restricted={
                axis: tuple(named_value(axis, value) for value in values)
                for axis, values in self.restricted.items()
            },
        )
        rules = tuple(BrokenRule(rule=b.rule, reason=b.reason, hint=b.hint) for b in broken)
        text = config.describe(self.problem.context_kinds[0])
        made = self._plan(
            verdict,
            choices,
            search,
            violations=rules,
            nearest=near,
            smallest_change=tuple(helps),
            named=text,
        )
        return recommended(made, Pick(choices, 0))

    def _run_assumptions(self) -> tuple[Finding, ...]:
        return run_assumptions(self.problem, self.campaign) if self.problem.job.tokens is not None else ()

    def _plan(
        self, verdict: Verdict, choices: tuple[Choice, ...], search: Search, *,
        violations: tuple[BrokenRule, ...] = (), nearest: Choice | None = None,
        smallest_change: tuple[Finding, ...] = (), named: str = "", pareto: tuple[ParetoPoint, ...] = (),
    ) -> Plan:  # fmt: skip
        nothing = verdict is Verdict.NOTHING_LEGAL
        other = nothing and has_other_chunks(self.problem, self.restricted)
        return Plan(
            verdict=verdict,
            headline=(
                headline(verdict, search, self.problem.job, choices[0] if choices else None, named, other),
            ),
            subject=self._subject(),
            choices=choices,
            violations=violations,
            nearest=nearest,
            nearest_config=nearest.config if nearest else None,
            smallest_change=smallest_change,
            search=search,
            pareto=pareto,
            assumptions=(
                *self.assumed,
                *self.problem.model.assumed,
                *(self._run_assumptions() if choices or nearest else ()),
            ),
            not_modelled=not_modelled(self.problem),
            confidence=confidence_of(self.problem, self.model, choices[0].time if choices else None),
            headroom=self.headroom,
        )

    def _subject(self) -> Subject:
        p = self.problem
        parameters = model_parameters(p.model)
        return Subject(
            model=ModelFacts(
                name=p.model.name,
                family=p.model.family,
                source=p.model.source,
                params_total=parameters.total,
                params_active=parameters.active,
                layers=p.model.num_layers,
                described=dict(p.model.described),
            ),
            cluster=ClusterFacts.of(p.cluster),
            job=JobFacts.of(p.job),
            stack=StackFacts(
                name=p.stack.name,
                framework=p.stack.framework,
                released=p.stack.released,
                description=p.stack.description,
            ),
        )


def _least_memory(choice: Choice, of_those_seen: bool) -> Finding:
    """Which limits even the configuration that needs least memory exceeds."""
    memory = choice.memory
    over, short = max(memory.peak - memory.limit, 0.0), memory.host_short
    host = memory.host_values if short else {}
    return finding(
        "least_memory", configuration=choice.config.text, of_those_seen=of_those_seen,
        over=over if over or not short else None, host_over=short or None, **host,
    )  # fmt: skip


def _largest(space: Space) -> list[Removed]:
    return sorted(space.removed, key=lambda removed: -removed.candidates)
