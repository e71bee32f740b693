"""What is predicted of one configuration: time, memory of every stage, its split, the whole run?

Left out: why it is so (`reasons.py`), and the plan around it (`answerer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.answer.reasons import confidence_of, reasons
from planner.ask.request import cost_model
from planner.campaign.run import run_facts
from planner.cost.chunks import PipelineSimulator
from planner.cost.host_memory import host_need, on_host
from planner.cost.memory.moments import PHASES
from planner.cost.mfu import MfuConvention, mfu_flops_per_token, weight_gradient_flops_per_token
from planner.cost.model import CostModel
from planner.cost.simulated import evaluate_exactly
from planner.cost.table import CostTable
from planner.frameworks import explicit_splits
from planner.frameworks.layout import write_layout
from planner.solve.relax import with_batch
from planner.solve.splits.split import SplitResult, cost_of_split, even_split, own_split
from planner.spec.assumptions import Assumptions
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.findings import Finding, finding
from planner.spec.planfile import (
    Choice,
    Memory,
    SplitFacts,
    StageMemory,
)
from planner.spec.planned_config import PlannedConfig
from planner.spec.rule import Problem
from planner.spec.verdict import MemoryRoom, MemoryVerdict


class Chooser:
    """Predicts configurations of one problem. `headroom`: share of a device's memory that is kept back [1]."""

    def __init__(
        self,
        problem: Problem,
        model: CostModel,
        simulator: PipelineSimulator,
        headroom: float,
        campaign: Assumptions,
    ) -> None:
        self.problem, self.model, self.simulator = problem, model, simulator
        self.room, self.campaign = MemoryRoom.of(problem, headroom), campaign

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
        own, note = own_split(self.model, config), list[Finding]()
        better = bool(solved.chunks) and solved.chunks != own
        if better and explicit_splits(stack.framework):
            assert solved.dealt is not None, "a split that is better"
            dealt = cost_of_split(self.model, config, solved.dealt, self.simulator)
            choice = self._choice(config, dealt, 0, solved.dealt.of_model(self.model))
            choice = choice.model_copy(update={"layout": write_layout(solved.chunks, spec.mtp_layers)})
            own = solved.chunks
        else:
            choice = self._choice(config, cost, row)
            if better and solved.step_time < choice.step_time:
                gain = 1 - solved.step_time / choice.step_time
                note.append(
                    finding(
                        "layers_dealt_by_framework", framework=stack.framework, layers=solved.chunks, gain=gain
                    )
                )  # fmt: skip
        even = even_split(spec.num_layers, config.pp, config.vpp)
        even_cost = cost_of_split(self.model, config, even, self.simulator) if even else None
        even_time = (
            float(even_cost.step_time[0])
            if even_cost and even_cost.device_memory[0] <= self.room.sure
            else None
        )
        if even_time is not None and even_time < choice.step_time and not note:
            note.append(finding("even_split_too_large"))
        own_fits = cost.device_memory[row] <= self.room.allowed(choice.memory.peak)
        own_fits &= on_host(self.model, ConfigTable.of([config]))[0]
        facts = SplitFacts(
            layers_per_chunk=own,
            own_step_time=float(cost.step_time[row]) if own_fits else None,
            even_step_time=even_time,
            bound=min(solved.bound, choice.step_time),
            gap=max(1 - solved.bound / choice.step_time, 0.0),
            note=tuple(note),
        )
        return choice.model_copy(update={"split": facts})

    def noted(self, choice: Choice, found: SplitResult) -> Choice:
        """The best configuration with what differing numbers of recomputed layers would bring."""
        assert found.dealt is not None, "faster than the best"
        note = finding(
            "layers_recomputed_alike", framework=self.problem.stack.framework, recomputed=found.dealt.recomputed,
            layers=found.chunks, gain=1 - found.step_time / choice.step_time,
        )  # fmt: skip
        if choice.split is None:
            return choice.model_copy(update={"why": (*choice.why, note)})
        noted = choice.split.model_copy(update={"note": (*choice.split.note, note)})
        return choice.model_copy(update={"split": noted})

    def _choice(
        self, config: ParallelConfig, cost: CostTable, row: int, dealt: CostModel | None = None
    ) -> Choice:
        """A row of a table of costs; `dealt`: the model with layers dealt otherwise than the stack does."""
        job, cluster = self.problem.job, self.problem.cluster
        step = float(cost.step_time[row])
        rate = job.tokens_per_step / step / cluster.num_devices
        convention = MfuConvention.CAUSAL_HALF
        counted = float(mfu_flops_per_token(self.problem.model, job.attended_length, convention))
        frozen = job.lora_rank is not None
        if frozen:
            counted -= weight_gradient_flops_per_token(self.problem.model)
        flops = rate * counted
        peak = self.model.layers.gemm_peak
        memory, layers = self._memory(config, cost, row, dealt or self.model)
        assert cost.detail is not None, "costed with keep_terms"
        time = {name: float(value[row]) for name, value in cost.detail.time.items()}
        band = confidence_of(self.problem, self.model, time).band
        return Choice(
            config=PlannedConfig.of(config, self.problem.context_kinds[0]),
            stack=self.problem.stack.name,
            step_time=step,
            step_time_low=step / (1 + band),
            step_time_high=step * (1 + band),
            tokens_per_second_per_device=rate,
            flops_per_device=flops,
            mfu=flops / peak,
            mfu_convention=finding(
                "mfu_convention", indexers=bool(self.problem.model.indexers), frozen=frozen
            ),
            peak_flops=peak,
            time=time,
            memory=memory,
            layers_per_stage=layers,
            layout=self._layout(config),
            run=run_facts(step, self.problem, self.campaign, self._early_times(config, step)),
            why=reasons(self.problem, self.model, config, time, memory),
        )

    def _early_times(self, config: ParallelConfig, step: float) -> tuple[float, ...]:
        """Step times of the batches of the run's schedule [s]: that of the global batch, times what fewer micro-batches
        take of it."""
        job, of_one = self.problem.job, config.dp * config.micro_batch

        def at(batch: int) -> float:
            assert batch % of_one == 0, "a rule of every batch"
            fewer = ConfigTable.of([replace(config, num_microbatches=batch // of_one)])
            model = cost_model(with_batch(self.problem, batch))
            return float(evaluate_exactly(model, fewer).step_time[0])

        whole = at(job.global_batch) if job.early_batches else step
        return tuple(step * at(batch) / whole for batch in job.early_batches)

    def _layout(self, config: ParallelConfig) -> str:
        """The model's split as a layout where chunks differ and a launcher has to be told; empty otherwise."""
        dealt = own_split(self.model, config)
        told = len(set(dealt)) > 1 and explicit_splits(self.problem.stack.framework)
        return write_layout(dealt, self.problem.model.mtp_layers) if told else ""

    def _memory(
        self, config: ParallelConfig, cost: CostTable, row: int, model: CostModel
    ) -> tuple[Memory, tuple[int, ...]]:
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
        behind = sum(self.problem.model.last_stage_layers)  # of prediction modules, which no split deals
        for j, ranks in enumerate(members):
            by_phase = {
                name: sum(float(v[row, j]) for v in parts.values()) for name, parts in detail.memory.items()
            }
            worst = max(by_phase, key=lambda name: by_phase[name])
            held = detail.classes.layers[pipeline, j].sum() - detail.classes.last[pipeline, j] * behind
            count = int(detail.classes.copies[pipeline] * held)
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
        host = host_need(model, config)
        here = {"states": host.states, "activations": host.activations, "checkpoint copy": host.staging}
        room = self.problem.cluster.host_memory
        fits = room is None or float(host.total[0]) <= room
        memory = Memory(
            peak=peak,
            stage=int(cost.stage[row]),
            stages=len(layers),
            phase=phase,
            capacity=self.room.capacity,
            limit=self.room.limit,
            error=self.room.error,
            verdict=self.room.verdict(peak) if fits else MemoryVerdict.DOES_NOT_FIT,
            logged=float(cost.peak_memory[row]),
            terms={name: value for name, value in terms.items() if value},
            per_stage=tuple(stages),
            host={name: float(part[0]) for name, part in here.items() if part[0]},
            host_limit=room,
        )
        return memory, tuple(layers)


def _ranges(ranks: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) as "0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
