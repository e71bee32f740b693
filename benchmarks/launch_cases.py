"""Which launches is the export tried on? Random (model, cluster, job) triples, and configurations of each.

    from benchmarks.launch_cases import triples, legal_launches, illegal_launches

Of every triple and framework: the best plan, and random legal configurations of the space; or random illegal ones.
`varied` draws precision, optimizer, options of the stack and axes held fixed too. The same seed gives the same
launches. Left out: what the frameworks say of them (`launch_acceptance.py`), and adapters, which no export states.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from planner.answer.choices import Chooser
from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_campaign import load_assumptions
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import SEPARATOR, options_for
from planner.cost.simulated import simulator_of
from planner.errors import PlannerError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.details import read_details
from planner.frameworks.framework import Launch
from planner.frameworks.layout import chunk_layers
from planner.solve.search import search
from planner.space.axes import divisors, stack_modules
from planner.space.enumerate import Enumeration, enumerate_configs
from planner.space.framework_rules import all_rules_for, rules_for
from planner.space.legality import explain_config
from planner.space.recomputations import Recomputations
from planner.space.restriction import parse_restriction
from planner.spec.config import ParallelConfig, Recompute, Schedule
from planner.spec.job import Optimizer
from planner.spec.load_model import catalog_models
from planner.spec.planfile import Choice
from planner.spec.precision import Precision
from planner.spec.rule import Problem

STACKS: Final = {
    "megatron": "megatron-2026",
    "megatron-bridge": "megatron-2026",
    "deepspeed": "deepspeed-2025",
    "torchtitan": "torchtitan-2026",
    "accelerate": "fsdp1-2023",
    "nanotron": "nanotron-2024",
    "maxtext": "maxtext-2024",
}
CLUSTERS: Final = (
    "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "aws-p5", "gb200-nvl72", "oci-h100", "h800-sxm-80g",
    "64x8 h100 400G-ib",
)  # fmt: skip
DEVICES: Final = (8, 16, 24, 32, 48, 64, 96, 128, 256, 512)
# axes held fixed, which the best plan seldom has; one that the stack cannot run is drawn again
PINS: Final = (
    "recompute_modules=core_attn", "recompute_modules=layernorm+moe_act", "recompute_modules=mlp+layernorm",
    "recompute_modules=moe+mla_up_proj", "recompute_modules=core_attn+mlp", "recompute=full", "recompute=none",
    "cp_kind=p2p", "cp_kind=a2a", "cp_kind=all-gather", "cp=2", "cp=4", "tp=2", "tp=8", "pp=2", "pp=4", "ep=8",
    "etp=2", "vpp=2", "zero=0", "zero=1", "zero=2", "zero=3", "hsdp=8", "hsdp=4", "offload=optimizer",
    "offload=activations", "offload=params", "offload=optimizer+params", "cuda_graph_impl=transformer-engine",
    "cuda_graph_impl=full-iteration", "cuda_graph_impl=local", "schedule=gpipe", "schedule=zb-h1",
    "schedule=zb-v", "schedule=interleaved-1f1b", "schedule=dualpipe-v", "micro_batch=2",
)  # fmt: skip
TRIES: Final = 40  # draws of one question's settings before it is asked plainly
SETTINGS: Final = 3  # options of the stack, and axes held fixed, at most


@dataclass(frozen=True)
class Triple:
    """A question: model, cluster and job, in a user's words. `options`: of the stack; `pins`: as `--set` has them."""

    model: str
    cluster: str
    devices: int
    seq_len: int
    batch: int
    precision: str = Precision.BF16
    optimizer: str = Optimizer.ADAMW
    options: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()

    def problem(self, stack: str) -> Problem:
        """The question on a stack. Raises `PlannerError` where it cannot be asked."""
        request = Request(
            self.model,
            self.cluster,
            self.devices,
            seq_len=self.seq_len,
            global_batch=str(self.batch),
            precision=self.precision,
            optimizer=self.optimizer,
            stack=SEPARATOR.join((stack, *self.options)),
        )
        return resolve(request)[0]


def triples(seed: int = 0) -> Iterator[Triple]:
    """Random questions over the catalog that the default stack understands, without end."""
    chance = random.Random(seed)
    names = catalog_models()
    while True:
        devices = chance.choice(DEVICES)
        batch = chance.choice([1, 2, 3, 4, 8]) * max(devices, 16)
        triple = Triple(
            chance.choice(names),
            chance.choice(CLUSTERS),
            devices,
            chance.choice([2048, 4096, 8192, 6144]),
            batch,
        )
        try:
            triple.problem("megatron-2026")
        except PlannerError:
            continue
        yield triple


def varied(triple: Triple, name: str, seed: int) -> Triple:
    """The question with precision, optimizer, options of the framework's stack and axes drawn, such that some
    configuration is legal; as it is where none was drawn."""
    chance = random.Random(f"varied {seed} {name} {triple}")
    names = sorted({option.name for option in options_for(load_stack(STACKS[name]))})
    for _ in range(TRIES):
        asked = replace(
            triple,
            precision=chance.choice(tuple(Precision)),
            optimizer=chance.choice((Optimizer.ADAMW, *Optimizer)),
            options=tuple(chance.sample(names, min(len(names), chance.randint(0, SETTINGS)))),
            pins=tuple(chance.sample(PINS, chance.randint(0, SETTINGS))),
        )
        try:
            problem = asked.problem(STACKS[name])
            if len(enumerate_configs(problem, rules_for(problem.stack), parse_restriction(asked.pins))):
                return asked
        except PlannerError:
            continue
    return triple


@dataclass(frozen=True)
class Case:
    """A launch and where it comes from. `kind`: best, legal or illegal; `broken`: the rules it breaks."""

    triple: Triple
    kind: str
    launch: Launch
    broken: tuple[str, ...] = ()


def legal_launches(
    triple: Triple, name: str, count: int, seed: int = 0, release: str | None = None
) -> Iterator[Case]:
    """The best plan of a triple on the framework's stack and `count` random legal configurations, fitting or not.

    Raises `UnsupportedError` where the framework's release (None: its default) cannot express the model at all, or no
    configuration of it is legal, as of a hybrid where the framework has none.
    """
    problem = triple.problem(STACKS[name])
    pins = (*triple.pins, *_asked_for(problem, name))
    space = enumerate_configs(problem, rules_for(problem.stack), parse_restriction(pins))
    if not len(space):
        raise UnsupportedError("a triple must have a legal configuration", str(triple), "draw another")
    if (missing := _inexpressible(problem, name, release, space)) is not None:
        raise missing
    model = cost_model(problem)
    limit = 0.95 * problem.cluster.accelerator.memory
    found = search(model, space, limit, 1)
    chance = random.Random(f"{seed} {triple}")
    stems = np.array([chance.randrange(len(space.stems)) for _ in range(count)], dtype=np.intp)
    choices = [space.choices[space.kind[stem]] for stem in stems]
    ways = [ways.take(np.array([chance.randrange(len(ways))])) for ways in choices]
    legal = Recomputations.joined(ways).given_to(space.stems.take(stems))
    chooser = Chooser(problem, model, simulator_of(model), 0.05, load_assumptions(()))
    for kind, part in (("best", found.best if len(found.best) else found.smallest), ("legal", legal)):
        for choice in chooser.choices(part):
            yield Case(triple, kind, launch_of_choice(problem, choice))


def _asked_for(problem: Problem, name: str) -> tuple[str, ...]:
    """What a plan has to be asked for where the framework runs less than the stack whose plans it takes, as its export
    says: Megatron-Bridge has no virtual stages of hybrids, which Megatron-LM has."""
    return ("vpp=1",) if name == "megatron-bridge" and problem.model.mambas else ()


def _inexpressible(
    problem: Problem, name: str, release: str | None, space: Enumeration
) -> UnsupportedError | None:
    """Why the framework cannot express the model, tried on a configuration without a pipeline; None where it can."""
    rows = np.flatnonzero(space.stems["pp"] == 1)
    config = space.part(rows[:1] if len(rows) else np.zeros(1, dtype=np.intp)).table().row(0)
    chosen = framework(name)
    try:
        chunks = chunk_layers(problem.model.num_layers, config.pp, config.vpp)
        chosen.render(_launch(problem, config, chunks), release or chosen.default_version)
    except UnsupportedError as error:
        return error
    return None


def launch_of_choice(problem: Problem, choice: Choice) -> Launch:
    """A costed configuration as a launch, its layers dealt as the plan says."""
    config = choice.config.parallel()
    model = problem.model
    chunks = chunk_layers(model.num_layers, config.pp, config.vpp, choice.layers_per_stage, choice.layout)
    return _launch(problem, config, chunks)


def _launch(problem: Problem, config: ParallelConfig, chunks: tuple[int, ...]) -> Launch:
    cluster = problem.cluster
    return Launch(
        model=problem.model,
        details=read_details(problem.model),
        config=config,
        job=problem.job,
        devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        accelerator=cluster.accelerator.name,
        chunks=chunks,
        stack=problem.stack,
        domain=cluster.scale_up_domain,
    )


def illegal_launch(triple: Triple, name: str, seed: int) -> Case | None:
    """A random configuration that makes up the devices and the batch but breaks rules; None where none was drawn.

    Only one whose layers can be written down at all: every chunk has a layer.
    """
    problem = triple.problem(STACKS[name])
    chance = random.Random(f"illegal {seed} {triple}")
    rules = all_rules_for(problem.stack.framework)
    layers = problem.model.num_layers
    for _ in range(400):
        config = _drawn(problem, chance)
        if config is None or config.pp * config.vpp > layers:
            continue
        broken = tuple(violation.rule for violation in explain_config(config, problem, rules))
        if broken and not {"world-size", "batch-dp", "batch"} & set(broken):
            return Case(
                triple,
                "illegal",
                _launch(problem, config, chunk_layers(layers, config.pp, config.vpp)),
                broken,
            )
    return None


def _drawn(problem: Problem, chance: random.Random) -> ParallelConfig | None:
    devices, batch = problem.cluster.num_devices, problem.job.global_batch
    tp, cp, pp = (chance.choice([1, 1, 2, 3, 4, 6, 8, 16]) for _ in range(3))
    if devices % (tp * cp * pp):
        return None
    dp = devices // (tp * cp * pp)
    if batch % dp:
        return None
    micro = chance.choice(divisors(batch // dp))
    vpp = chance.choice([1, 1, 2, 3, 4]) if pp > 1 else 1
    recompute = chance.choice(tuple(Recompute))
    deep = -(-problem.model.num_layers // pp)
    experts = (1, 2, 4, 8, 16, 64) if problem.model.is_moe else (1,)
    return ParallelConfig(
        tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, ep=chance.choice(experts),
        etp=chance.choice([1, tp]) if problem.model.is_moe else 1, micro_batch=micro,
        num_microbatches=batch // dp // micro, sp=chance.choice([0, 1]), zero=chance.choice([0, 1, 2, 3]),
        recompute=int(recompute), recompute_layers=chance.randint(1, deep) if recompute == Recompute.FULL else 0,
        recompute_modules=stack_modules(problem) if recompute == Recompute.SELECTIVE else 0,
        schedule=int(Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B),
    )  # fmt: skip
