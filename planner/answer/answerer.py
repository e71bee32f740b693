"""What is the answer? Turns costs into the plan file: figures, reasons, confidence, what is left out.

Left out: how the configurations were found (`plan.py`, `solve/`) and how they are drawn (`report/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.answer.choices import Chooser
from planner.answer.headline import recommended
from planner.answer.reasons import confidence_of
from planner.answer.recommend import TOLD_APART, Pick, Setting, recommend
from planner.answer.rivals import balanced_lead
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
from planner.spec.job import Job, Optimizer
from planner.spec.planfile import (
    BrokenRule,
    Certificate,
    Choice,
    Ending,
    Memory,
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
from planner.units import GIB, format_capacity, format_time

_MUON = "the GEMMs of Muon's update"
_LOADS = "experts that get more tokens than others, unless their loads are given (--expert-loads)"
_LENGTHS = "varying sequence lengths and padding, unless their mean is given (--mean-len)"
_GRAPHS = "what the driver keeps of CUDA graphs outside the allocator"
_BUFFERS = "buffers registered with {}, and its settings by the environment"
_NOTHING_HELPS = (
    "no other single change tried makes something fit (not tried: more devices than the cluster has, adapters on a "
    "frozen model (--lora-rank))"
)
_NOT_MODELLED = (
    "queueing, evaluation and planned maintenance: they add to the days of a run",
    "network congestion from other jobs, and a pathological network state",
    _MUON,
    _LOADS,
    _LENGTHS,
    "the data loader",
    "pipeline schedules that the stack does not run (`planner schedule` simulates them)",
    _GRAPHS,
    _BUFFERS,
)


def not_modelled(problem: Problem) -> tuple[str, ...]:
    """What is left out of answers, of what this job has or does not state."""
    job = problem.job
    has_experts = any(layer.moe for layer in problem.model.blocks)
    irrelevant = {
        _MUON: job.optimizer is not Optimizer.MUON or problem.deals_matrices,
        _LOADS: not has_experts or job.expert_imbalance not in ((), 1.0),
        _LENGTHS: job.mean_length is not None,
        **dict.fromkeys((_GRAPHS, _BUFFERS), problem.cluster.accelerator.architecture.is_compiled_for),
    }
    library = problem.cluster.accelerator.architecture.words.collectives
    return tuple(line.format(library) for line in _NOT_MODELLED if not irrelevant.get(line, False))


class Answerer:
    """Builds the plan of one problem."""

    def __init__(
        self, problem: Problem, model: CostModel, simulator: PipelineSimulator, assumed: tuple[str, ...],
        headroom: float, restricted: Mapping[str, tuple[int, ...]], campaign: Assumptions,
    ) -> None:  # fmt: skip
        self.problem, self.model, self.headroom, self.restricted = problem, model, headroom, dict(restricted)
        self.assumed, self.campaign = assumed, campaign
        self.chooser = Chooser(problem, model, simulator, headroom, campaign)
        self.room = self.chooser.room
        self.limit = self.room.limit

    def fits(self, config: ParallelConfig) -> bool:
        """Does the configuration surely fit, on its hosts as well?"""
        table = ConfigTable.of([config])
        fits = self.model.evaluate(table).device_memory[0] <= self.room.sure
        return bool(fits and on_host(self.model, table)[0])

    def plan(
        self, space: Space, found: SearchResult, splits: SplitsSolved | None, helps: Sequence[str] | None,
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
            pick = replace(pick, choices=choices)
        verdict, change, nearest = Verdict.FOUND, "", None
        if choices:
            change = "; or ".join(helps or ())
        if not found.legal:
            verdict = Verdict.NOTHING_LEGAL
            if helps is not None:
                change = "; or ".join(helps) or "no single change of the request makes a configuration legal"
        elif not choices:
            verdict, nearest = Verdict.NOTHING_FITS, self.chooser.choices(found.smallest)[0]
            seen = "" if ending is Ending.COMPLETE else ", of those looked at in time,"
            least = f"the configuration that needs least memory{seen} ({nearest.config.text})"
            change = f"even {least} exceeds {nearest.memory.lacking}"
            if seen and helps is None:
                change += "; changes that would make something fit were not tried: no time was left"
            elif helps:
                change += "; this would fit: " + "; or ".join(helps)
            elif helps is not None:
                change += f"; {_NOTHING_HELPS}"
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
        told = splits is not None and explicit_splits(self.problem.stack.framework)
        if choices and objective is Objective.HEADROOM:
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
            compared=("peak memory" if objective is Objective.HEADROOM else "step times")
            + " of all candidates with the stack's default layer split"
            + f"; the fastest within {format_capacity(NEAR_MOST_ROOM * self.limit)} of the most free memory"
            * (objective is Objective.HEADROOM)
            + (
                f"; {splits.looked_at} also over all splits and numbers of recomputed layers" * told
                if splits
                else ""
            )
            + "; within the host memory of a node" * (not self._hosts_suffice(space))
            + (
                f"; peaks up to {format_capacity(allowed)}, to leave room for the memory model's error"
                * (allowed < self.limit)
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
        helps: Sequence[str], clock: Callable[[], float],
    ) -> Plan:  # fmt: skip
        """The answer to one named configuration; `helps`: what would make it faster."""
        legal = not broken
        choices = self.chooser.choices(ConfigTable.of([config])) if legal else ()
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
            smallest_change="; or ".join(helps),
            named=text,
        )
        return recommended(made, Pick(choices, 0))

    def _run_assumptions(self) -> tuple[str, ...]:
        return run_assumptions(self.campaign) if self.problem.job.tokens is not None else ()

    def _plan(
        self, verdict: Verdict, choices: tuple[Choice, ...], search: Search, *,
        violations: tuple[BrokenRule, ...] = (), nearest: Choice | None = None, smallest_change: str = "",
        named: str = "", pareto: tuple[ParetoPoint, ...] = (),
    ) -> Plan:  # fmt: skip
        return Plan(
            verdict=verdict,
            headline=self._headline(verdict, choices, search, named),
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
            confidence=confidence_of(self.problem, self.model),
            headroom=self.headroom,
        )

    def _headline(self, verdict: Verdict, choices: tuple[Choice, ...], search: Search, named: str) -> str:
        if verdict is Verdict.NOTHING_LEGAL:
            told = has_other_chunks(self.problem, self.restricted)
            own = (
                " under the stack's own split of layers (estimate --set layout= takes others)" if told else ""
            )
            return f"none of {search.candidates:,} configurations{_pinned(search)} is legal{own}"
        if verdict is Verdict.NOTHING_FITS:
            return f"none of {search.legal:,} legal configurations{_pinned(search)} fits"
        if verdict is Verdict.ILLEGAL:
            return f"{named} is not legal"
        best = choices[0]
        return (
            f"{best.config.text}: {format_time(best.step_time)} a step "
            f"({format_time(best.step_time_low)} to {format_time(best.step_time_high)}), "
            f"{best.tokens_per_second_per_device:,.0f} tokens/s per device, {best.mfu:.0%} MFU, "
            f"{_room(best.memory)}{_adapters(self.problem.job)}"
            + (f", {best.run.effective_days or best.run.days:.1f} days" if best.run else "")
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


def _adapters(job: Job) -> str:
    """That adapters are trained, as part of a sentence."""
    return "" if job.lora_rank is None else f", LoRA of rank {job.lora_rank} on {job.frozen_bits}-bit weights"


def _room(memory: Memory) -> str:
    """Does it fit, and by how much, as part of a sentence."""
    free, where = memory.free, f"on pipeline rank {memory.stage}"
    if memory.verdict is MemoryVerdict.BORDERLINE and free < 0:
        over = f"{format_capacity(-free)} over the {format_capacity(memory.limit)} limit"
        return f"borderline: predicted {over} {where}, within the memory model's error"
    kept = f" beside {format_capacity(memory.kept_back)} kept back" if memory.kept_back and free >= 0 else ""
    room = f"{format_capacity(abs(free))} {'free' if free >= 0 else 'over the limit'} {where}{kept}"
    if memory.host_short:
        room = f"{memory.host_lack}, {room}"
    return f"{memory.verdict.replace('_', ' ')}, {room}"


def _pinned(search: Search) -> str:
    """The axes that the request pins, as part of a sentence."""
    pins = [f"{axis} {' or '.join(map(str, held))}" for axis, held in search.restricted.items()]
    return f" with {', '.join(pins)}" if pins else ""


def _largest(space: Space) -> list[Removed]:
    return sorted(space.removed, key=lambda removed: -removed.candidates)
