"""What is the answer? Turns costs into the plan file: figures, reasons, confidence, what is left out.

Left out: how the configurations were found (`plan.py`, `solve/`) and how they are drawn (`report/`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.campaign.run import run_assumptions, run_facts
from planner.cost.chunks import PipelineSimulator
from planner.cost.flops import MfuConvention, mfu_flops_per_token, weight_gradient_flops_per_token
from planner.cost.memory import PHASES
from planner.cost.model import CostModel
from planner.cost.params import model_parameters
from planner.cost.shapes import shape_distance_of
from planner.cost.simulated import evaluate_exactly
from planner.cost.step import slow_mode_time
from planner.cost.table import CostTable
from planner.frameworks import explicit_splits
from planner.frameworks.layout import write_layout
from planner.solve.pareto import ParetoFront
from planner.solve.refine import SplitsSolved
from planner.solve.search import SearchResult
from planner.solve.split import SplitResult, cost_of_split, even_split, own_split
from planner.space.enumerate import Enumeration, Removed
from planner.space.restriction import value_text
from planner.spec.assumptions import Assumptions
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.planfile import (
    BrokenRule,
    CalibrationLevel,
    Certificate,
    Choice,
    Confidence,
    Ending,
    Memory,
    Objective,
    ParetoPoint,
    Plan,
    PlannedConfig,
    RemovedBy,
    Search,
    SplitFacts,
    StageMemory,
    Verdict,
)
from planner.spec.rule import Problem, Violation
from planner.spec.stack import UNLIKE_BAND
from planner.spec.subject import ClusterFacts, JobFacts, ModelFacts, StackFacts, Subject, TierFacts
from planner.spec.verdict import MemoryVerdict, memory_verdict
from planner.units import GIB, format_capacity, format_time

NOT_MODELLED = (
    "queueing, evaluation and planned maintenance: they add to the days of a run",
    "network congestion from other jobs, and a pathological network state",
    "the matrix products of Muon's update",
    "experts that get more tokens than others, unless their loads are given (--expert-loads)",
    "varying sequence lengths and padding, unless their mean is given (estimate --mean-len), and the data loader",
    "pipeline schedules that the stack does not run (`planner schedule` simulates them)",
    "memory pools of CUDA graphs; buffers registered with NCCL, and its settings by the environment",
)
# Share of nanotron's published multi-node runs in its slow mode, by the most devices (residual study 3.1).
SLOW_MODE_SHARES = ((128, 0.18), (256, 0.42), (math.inf, 0.88))
UNMEASURED_BAND = 0.5  # the least where the device was not measured
# What the busiest figure of a step is called when it decides, in the order of the cost model's terms.
_COMMUNICATION = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")


class Answerer:
    """Builds the plan of one problem."""

    def __init__(
        self, problem: Problem, model: CostModel, simulator: PipelineSimulator, assumed: tuple[str, ...],
        headroom: float, restricted: Mapping[str, tuple[int, ...]], campaign: Assumptions,
    ) -> None:  # fmt: skip
        self.problem, self.model, self.headroom, self.restricted = problem, model, headroom, dict(restricted)
        self.simulator, self.assumed, self.campaign = simulator, assumed, campaign
        self.limit = problem.cluster.accelerator.memory * (1 - headroom)

    def fits(self, config: ParallelConfig) -> bool:
        """Does the configuration fit within the limit?"""
        return bool(self.model.evaluate(ConfigTable.of([config])).device_memory[0] <= self.limit)

    def plan(
        self, space: Enumeration, found: SearchResult, splits: SplitsSolved | None, helps: Sequence[str] | None,
        front: ParetoFront, ending: Ending, objective: Objective, clock: Callable[[], float], allowed: float,
    ) -> Plan:  # fmt: skip
        """The answer to a search; `helps`: changes under which something would be legal, None where none were sought;
        `allowed`: the largest peak it took [bytes], below the limit where the memory model's error must fit as well."""
        choices = self.choices(found.best, splits.splits if splits else None)
        if choices and splits and splits.per_stage:
            choices = (self._noted(choices[0], splits.per_stage), *choices[1:])
        verdict, change, nearest = Verdict.FOUND, "", None
        if choices:
            change = "; or ".join(helps or ())
        if not len(space):
            verdict = Verdict.NOTHING_LEGAL
            if helps is not None:
                change = "; or ".join(helps) or "no single change of the request makes a configuration legal"
        elif not choices:
            verdict, nearest = Verdict.NOTHING_FITS, self.choices(found.smallest)[0]
            over = nearest.memory.peak - self.limit
            change = f"the smallest, {nearest.config.text}, needs {format_capacity(over)} more per device than there is"
            if helps:
                change += "; what would fit: " + "; or ".join(helps)
            elif helps is not None:
                change += "; no other single change makes something fit (more devices than the cluster has: not tried)"
        search = Search(
            candidates=space.total,
            removed=tuple(RemovedBy(rule=r.rule, candidates=r.candidates) for r in _largest(space)),
            legal=len(space),
            too_large=found.too_large,
            costed=found.costed,
            seconds=clock(),
            restricted=self.restricted,
            certificate=self._certificate(
                space, found, splits, choices, front, ending, objective, clock(), allowed
            ),
        )
        pareto = self._pareto(front)
        return self._plan(verdict, choices, search, nearest=nearest, smallest_change=change, pareto=pareto)

    def _certificate(
        self, space: Enumeration, found: SearchResult, splits: SplitsSolved | None, choices: tuple[Choice, ...],
        front: ParetoFront, ending: Ending, objective: Objective, seconds: float, allowed: float,
    ) -> Certificate:  # fmt: skip
        best = bound = gap = None
        if choices and objective is Objective.HEADROOM:
            best = self.limit - choices[0].memory.peak
            bound, gap = (best, 0.0) if front.complete else (None, None)
        elif choices:
            best = choices[0].step_time
            bound = min(best, found.unseen, splits.bound if splits else np.inf)
            gap = (best - bound) / best
        return Certificate(
            objective=objective,
            compared="the step time of the cost model's equations under the stack's own split; the fastest "
            f"{found.solved} with their pipelines simulated, and under any split and number of recomputed layers"
            + (
                f"; peaks up to {format_capacity(allowed)}, so that the model's error fits"
                * (allowed < self.limit)
            ),
            candidates=space.total,
            by_rule=space.total - len(space),
            by_memory=found.by_memory + found.too_large,
            by_bound=found.behind,
            costed=found.costed,
            solved=found.solved,
            splits_solved=len(splits.splits) if splits else 0,
            split_bound=splits.bound if splits and np.isfinite(splits.bound) else None,
            best=best,
            bound=bound,
            gap=gap,
            ending=ending,
            seconds=seconds,
        )

    def _pareto(self, front: ParetoFront) -> tuple[ParetoPoint, ...]:
        return tuple(
            ParetoPoint(
                config=PlannedConfig.of(front.table.row(row)),
                step_time_s=float(front.step_time[row]),
                peak_mem_gib=float(front.device_memory[row]) / GIB,
                headroom_gib=max(self.limit - float(front.device_memory[row]), 0.0) / GIB,
            )
            for row in range(len(front.table))
        )

    def estimate(
        self, config: ParallelConfig, broken: tuple[Violation, ...], nearest: ParallelConfig | None,
        clock: Callable[[], float],
    ) -> Plan:  # fmt: skip
        """The answer to one named configuration."""
        legal = not broken
        choices = self.choices(ConfigTable.of([config])) if legal else ()
        near = self.choices(ConfigTable.of([nearest]))[0] if nearest is not None else None
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
            restricted=self.restricted,
        )
        rules = tuple(BrokenRule(rule=b.rule, reason=b.reason, hint=b.hint) for b in broken)
        text = config.describe()
        return self._plan(verdict, choices, search, violations=rules, nearest=near, named=text)

    def choices(
        self, table: ConfigTable, splits: Mapping[ParallelConfig, SplitResult] | None = None
    ) -> tuple[Choice, ...]:
        """Everything predicted about each row of a short table, under its solved split where there is one."""
        if not len(table):
            return ()
        cost = evaluate_exactly(self.model, table, self.simulator)
        found = []
        for row in range(len(table)):
            config = table.row(row)
            solved = (splits or {}).get(config)
            found.append(
                self._choice(config, cost, row) if solved is None else self._split(config, cost, row, solved)
            )
        return tuple(found)

    def _split(self, config: ParallelConfig, cost: CostTable, row: int, solved: SplitResult) -> Choice:
        """A configuration whose split was solved: taken where the framework can be told, else said."""
        spec, stack = self.problem.model, self.problem.stack
        own, note = own_split(self.model, config), ""
        better = bool(solved.chunks) and solved.chunks != own
        if better and explicit_splits(stack.framework):
            assert solved.dealt is not None, "a split that is better"
            choice = self._choice(config, cost_of_split(self.model, config, solved.dealt), 0)
            choice = choice.model_copy(update={"layout": write_layout(solved.chunks, spec.mtp_layers)})
            own = solved.chunks
        else:
            choice = self._choice(config, cost, row)
            if better and solved.step_time < choice.step_time:
                gain = 1 - solved.step_time / choice.step_time
                note = (
                    f"{stack.framework} deals layers to stages itself; {', '.join(map(str, solved.chunks))} "
                    f"layers would be {gain:.1%} faster"
                )
        even = even_split(spec.num_layers, config.pp, config.vpp)
        even_cost = cost_of_split(self.model, config, even) if even else None
        even_time = (
            float(even_cost.step_time[0]) if even_cost and even_cost.device_memory[0] <= self.limit else None
        )
        if even_time is not None and even_time < choice.step_time and not note:
            note = "the even split's memory might not fit"
        facts = SplitFacts(
            layers_per_chunk=own,
            own_step_time=float(cost.step_time[row]),
            even_step_time=even_time,
            bound=min(solved.bound, choice.step_time),
            gap=max(1 - solved.bound / choice.step_time, 0.0),
            note=note,
        )
        return choice.model_copy(update={"split": facts})

    def _noted(self, choice: Choice, found: SplitResult) -> Choice:
        """The best configuration with what differing numbers of recomputed layers would bring."""
        assert found.dealt is not None, "faster than the best"
        counts = ", ".join(map(str, found.dealt.recomputed))
        note = (
            f"{self.problem.stack.framework} recomputes as many layers on every pipeline rank; {counts} layers, of "
            f"{', '.join(map(str, found.chunks))} held, would be {1 - found.step_time / choice.step_time:.1%} faster"
        )
        if choice.split is None:
            return choice.model_copy(update={"why": (*choice.why, note)})
        text = "; ".join(filter(None, (choice.split.note, note)))
        return choice.model_copy(update={"split": choice.split.model_copy(update={"note": text})})

    def _choice(self, config: ParallelConfig, cost: CostTable, row: int) -> Choice:
        job, cluster = self.problem.job, self.problem.cluster
        step = float(cost.step_time[row])
        rate = job.tokens_per_step / step / cluster.num_devices
        convention = MfuConvention.FULL_SQUARE
        counted = float(mfu_flops_per_token(self.problem.model, job.attended_length, convention))
        said = "model FLOPs with attention over the full square (Megatron-LM), recomputation not counted"
        if job.lora_rank is not None:
            counted -= weight_gradient_flops_per_token(self.problem.model)
            said += ", nor weight gradients of the frozen model"
        flops = rate * counted
        peak = self.model.layers.gemm_peak
        band = self._confidence().band
        memory, layers = self._memory(cost, row)
        assert cost.detail is not None, "costed with keep_terms"
        time = {name: float(value[row]) for name, value in cost.detail.time.items()}
        return Choice(
            config=PlannedConfig.of(config),
            step_time=step,
            step_time_low=step / (1 + band),
            step_time_high=step * (1 + band),
            tokens_per_second_per_device=rate,
            flops_per_device=flops,
            mfu=flops / peak,
            mfu_convention=said,
            peak_flops=peak,
            time=time,
            memory=memory,
            layers_per_stage=layers,
            layout=self._layout(config),
            run=run_facts(step, self.problem, self.campaign),
            why=(*self._why(config, time, memory), self._shapes(config)),
        )

    def _layout(self, config: ParallelConfig) -> str:
        """The model's split as a layout where chunks differ and a launcher has to be told; empty otherwise."""
        dealt = own_split(self.model, config)
        told = len(set(dealt)) > 1 and explicit_splits(self.problem.stack.framework)
        return write_layout(dealt, self.problem.model.mtp_layers) if told else ""

    def _memory(self, cost: CostTable, row: int) -> tuple[Memory, tuple[int, ...]]:
        detail = cost.detail
        assert detail is not None, "costed with keep_terms"
        pipeline, binding = int(detail.class_row[row]), int(detail.stage_class[row])
        phase = PHASES[int(cost.phase[row])]
        terms = {name: float(value[row, binding]) for name, value in detail.memory[phase].items()}
        terms["outside_allocator"] = float(detail.outside[row])
        peak = float(cost.device_memory[row])
        members = detail.classes.members[pipeline]
        stages = []
        layers = [0] * sum(len(ranks) for ranks in members)
        for j, ranks in enumerate(members):
            by_phase = {
                name: sum(float(v[row, j]) for v in parts.values()) for name, parts in detail.memory.items()
            }
            worst = max(by_phase, key=lambda name: by_phase[name])
            count = int(detail.classes.copies[pipeline] * detail.classes.layers[pipeline, j].sum())
            parts = {name: float(value[row, j]) for name, value in detail.memory[worst].items()}
            parts["outside_allocator"] = float(detail.outside[row])
            stages.append(
                StageMemory(
                    stages=_ranges(ranks),
                    layers=count,
                    peak=sum(parts.values()),
                    phase=worst,
                    terms={name: value for name, value in parts.items() if value},
                )
            )
            for rank in ranks:
                layers[rank] = count
        memory = Memory(
            peak=peak,
            stage=int(cost.stage[row]),
            stages=len(layers),
            phase=phase,
            limit=self.limit,
            verdict=memory_verdict(
                peak, self.limit, self.problem.cluster.accelerator.memory, self.problem.stack.overhead.error
            ),
            logged=float(cost.peak_memory[row]),
            terms={name: value for name, value in terms.items() if value},
            per_stage=tuple(stages),
        )
        return memory, tuple(layers)

    def _run_assumptions(self) -> tuple[str, ...]:
        return run_assumptions(self.campaign) if self.problem.job.tokens is not None else ()

    def _why(self, config: ParallelConfig, time: Mapping[str, float], memory: Memory) -> tuple[str, ...]:
        total = sum(time.values())
        largest = sorted(time, key=lambda name: -time[name])[:3]
        shares = ", ".join(f"{name.replace('_', ' ')} {time[name] / total:.0%}" for name in largest)
        exposed = sum(time[name] for name in _COMMUNICATION) / total
        top = max(memory.terms, key=lambda name: memory.terms[name])
        return (
            f"the step is {shares}; exposed communication {exposed:.0%}",
            f"memory binds on pipeline rank {memory.stage} of {memory.stages} in the {memory.phase} phase, "
            f"most of it {top.replace('_', ' ')} ({format_capacity(memory.terms[top])})",
            *self._health(config, total),
        )

    def _health(self, config: ParallelConfig, healthy: float) -> tuple[str, ...]:
        """What a measurement far above the prediction would mean, where published runs show two states."""
        comm = self.problem.stack.communication
        m, p = np.array([float(config.num_microbatches)]), np.array([float(config.pp)])
        lost = float(slow_mode_time(m, p, comm)[0])
        if not lost:
            return ()
        share = next(share for most, share in SLOW_MODE_SHARES if self.problem.cluster.num_devices <= most)
        return (
            f"measured above {format_time(1.5 * healthy)}, it is this stack's slow mode (full device memory, or a sick "
            f"network; {share:.0%} of published runs of this size): about {format_time(healthy + lost)} a step",
        )

    def _shapes(self, config: ParallelConfig) -> str:
        """How far the configuration's kernels lie from measured ones."""
        far = shape_distance_of(config, self.model.layers)
        beyond = (
            f"{far.outside:.0%} of their work beyond the largest or smallest"
            if far.outside > 0
            else "none beyond"
        )
        text = (
            f"its matrix products are a factor {2**far.mean:.2f} from the nearest measured shape on average, "
            f"{2**far.most:.2f} at most, {beyond}"
        )
        if far.attention > 0:
            text += f"; its attention is a factor {2**far.attention:.1f} beyond what was measured"
        rates = self.model.kernels
        return (
            text
            if rates.measured or rates.kin
            else f"{text}; the shapes are those of another device, of this one none was measured"
        )

    def _confidence(self) -> Confidence:
        stack, kernels, links = self.problem.stack, self.model.kernels, self.model.links
        level = CalibrationLevel.L1 if stack.fitted else CalibrationLevel.L0
        moe = self.problem.model.is_moe
        notes, band = [_fit_in_short(stack.fitted)], stack.band_at(self.problem.cluster.num_devices, moe)
        if stack.band_widening:
            notes.append("wider on more devices, as its errors are")
        if stack.calibration:
            level = CalibrationLevel(stack.calibration_level)
            notes.insert(0, f"calibrated with {stack.calibration}")
        if moe and level != CalibrationLevel.L3:
            notes.append("wider for a mixture of experts, of which fewer runs were seen")
        device = self.problem.cluster.accelerator.name
        if stack.devices and device not in stack.devices and kernels.measured and not stack.calibration:
            band *= UNLIKE_BAND
            notes.append(f"wider because the stack's runs were on {', '.join(stack.devices)}")
        if not kernels.measured and not stack.calibration:
            level, band = CalibrationLevel.L0, max(band * UNLIKE_BAND, UNMEASURED_BAND)
            notes.append("wider because no run of this stack on such a device was seen")
        if kernels.kin:
            notes.append(f"kernel rates of {self.problem.cluster.accelerator.name} come from {kernels.kin}")
        if links.kin:
            notes.append(f"link rates come from {links.kin}")
        if self.problem.cluster.unverified:
            fields = ", ".join(self.problem.cluster.unverified)
            notes.append(f"figures of the cluster from memory: {fields}")
        return Confidence(level=level, band=band, explanation="; ".join(notes))

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
            not_modelled=NOT_MODELLED,
            confidence=self._confidence(),
            headroom=self.headroom,
        )

    def _headline(self, verdict: Verdict, choices: tuple[Choice, ...], search: Search, named: str) -> str:
        if verdict is Verdict.NOTHING_LEGAL:
            return f"none of {search.candidates:,} configurations{_pinned(search)} is legal"
        if verdict is Verdict.NOTHING_FITS:
            return f"none of {search.legal:,} legal configurations{_pinned(search)} fits"
        if verdict is Verdict.ILLEGAL:
            return f"{named} is not legal"
        best = choices[0]
        free = best.memory.limit - best.memory.peak
        room = f"{format_capacity(abs(free))} {'free' if free >= 0 else 'too much'}"
        return (
            f"{best.config.text}: {format_time(best.step_time)} a step "
            f"({format_time(best.step_time_low)} to {format_time(best.step_time_high)}), "
            f"{best.tokens_per_second_per_device:,.0f} tokens/s per device, {best.mfu:.0%} MFU, "
            f"{best.memory.verdict.replace('_', ' ')}, {room} on pipeline rank {best.memory.stage}"
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
            ),
            cluster=ClusterFacts(
                name=p.cluster.name,
                accelerator=p.cluster.accelerator.name,
                devices=p.cluster.num_devices,
                devices_per_node=p.cluster.devices_per_node,
                scale_up_domain=p.cluster.scale_up_domain,
                memory_per_device=p.cluster.accelerator.memory,
                source=p.cluster.source,
                tiers=tuple(
                    TierFacts(name=t.name, kind=t.kind, devices=t.size, bandwidth=t.bandwidth)
                    for t in p.cluster.tiers
                ),
                unverified=p.cluster.unverified,
            ),
            job=JobFacts.of(p.job),
            stack=StackFacts(
                name=p.stack.name,
                framework=p.stack.framework,
                released=p.stack.released,
                description=p.stack.description,
            ),
        )


def _pinned(search: Search) -> str:
    """The axes that the request pins, as part of a sentence."""
    pins = [
        f"{axis} {' or '.join(value_text(axis, v) for v in held)}" for axis, held in search.restricted.items()
    ]
    return f" with {', '.join(pins)}" if pins else ""


def _fit_in_short(fitted: str) -> str:
    """What a stack was fitted on; the names of its numbers, which `planner stacks` lists, are only counted."""
    names, colon, runs = fitted.partition(": on ")
    if not fitted:
        return "the stack's numbers are start values, not fitted"
    return f"{len(names.split(','))} numbers of the stack fitted on {runs}" if colon else fitted


def _largest(space: Enumeration) -> list[Removed]:
    return sorted(space.removed, key=lambda removed: -removed.candidates)


def _ranges(ranks: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) as "0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
