"""Is the best of all options found, said to be so, and never beaten by a question that leaves some out?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from planner.answer import over_members
from planner.answer.estimate import make_estimate
from planner.answer.over_members import _screened
from planner.answer.plan import make_plan
from planner.answer.posed import Posed, Screened
from planner.answer.stopping import Stopwatch
from planner.answer.turned_on import opened, plainest
from planner.ask.planned import planned_problem
from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_overlay import save_overlay
from planner.catalog.load_stacks import load_stack
from planner.cost.host_memory import on_host
from planner.cost.simulated import evaluate_exactly
from planner.dialect import option
from planner.errors import InputError
from planner.report import options_text, proof
from planner.report.words import line_of, text_of
from planner.solve.outside import Outside
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import rules_for
from planner.space.members import members, turned_on
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig
from planner.spec.overlay import Overlay
from planner.spec.planfile import CLOSED_GAP, Ending, Plan
from planner.spec.tried import Held, HeldBy, TurnedOn
from planner.spec.verdict import MemoryRoom
from tests.problems import pins_of

# without pipelines there is no split to solve, and the equations are the whole answer
ASKED = Request(
    "qwen3-30b-a3b", "2x8 h100 400G-ib", seq_len=4096, global_batch="256", front=False,
    set={"tp": (1,), "pp": (1,), "cp": (1,), "zero": (1,), "recompute": (0, 1)},
)  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(ASKED)


def fastest(stack: str) -> float:
    """Step time of the fastest configuration that fits under one stack as it is named [s], by costing all."""
    problem, _ = resolve(replace(ASKED, stack=stack))
    table = enumerate_configs(problem, rules_for(problem.stack), ASKED.restrict, ASKED.without).table()
    model = cost_model(problem)
    cost = evaluate_exactly(model, table)
    fits = (cost.device_memory <= MemoryRoom.of(problem, ASKED.headroom).sure) & on_host(model, table)
    return float(np.where(fits, cost.step_time, np.inf).min())


def test_the_best_of_every_member_is_found(plan: Plan) -> None:
    base = resolve(ASKED)[0]
    tried = [member.stack.name for member in members(base, ASKED.restrict)]
    assert sorted(plan.search.members) == sorted(tried)
    times = {name: fastest(name) for name in tried}
    best = plan.choices[0]
    assert best.step_time == pytest.approx(min(times.values()), rel=CLOSED_GAP)
    assert plan.subject.stack.name == best.stack
    assert text_of(plan.headline[0]).startswith(best.config.text)
    for one in plan.search.turned_on:
        others = [time for name, time in times.items() if one.name not in name.split("+")]
        if others:
            assert one.without_step_time == pytest.approx(min(others), rel=CLOSED_GAP)
        assert one.without_step_time is not None
        assert one.gain == pytest.approx(max(1 - best.step_time / one.without_step_time, 0))
    assert plan.search.as_named == pytest.approx(fastest(base.stack.name), rel=CLOSED_GAP)


def test_leaving_out_is_never_faster_and_naming_is_no_restriction(plan: Plan) -> None:
    best, names = plan.choices[0], [one.name for one in plan.search.turned_on]
    assert len(names) > 1
    for name in (*names, "all"):
        left = make_plan(replace(ASKED, without=(name,)))
        assert left.choices[0].step_time >= best.step_time * (1 - CLOSED_GAP)
        on = turned_on(left.choices[0].stack, "megatron-2026")
        assert not on if name == "all" else name not in on
    named = make_plan(replace(ASKED, stack=best.stack))
    assert named.choices[0].step_time == pytest.approx(best.step_time)
    assert not named.search.turned_on


def test_an_estimate_under_the_stack_of_a_choice_is_the_choice(plan: Plan) -> None:
    for choice in plan.choices[:3]:
        pins = pins_of(choice.config.parallel())
        again = make_estimate(replace(ASKED, stack=choice.stack, set=pins)).choices[0]
        assert again.step_time == choice.step_time
        assert again.memory == choice.memory


def test_an_option_that_gains_nothing_is_not_turned_on() -> None:
    """Of a step of 20 minutes a graph of the update saves a millisecond."""
    long = replace(ASKED, model="llama-3.2-1b", global_batch="131072")
    plan = make_plan(long)
    best, certificate = plan.choices[0], plan.search.certificate
    assert best.stack == plan.subject.stack.name == "megatron-2026"
    assert not plan.search.turned_on
    assert plan.search.members == ("megatron-2026", "megatron-2026+optimizer-cuda-graph")
    on = make_plan(replace(long, stack="megatron-2026+optimizer-cuda-graph")).choices[0].step_time
    assert on < best.step_time <= on * (1 + CLOSED_GAP)
    assert certificate is not None
    assert certificate.best == best.step_time
    assert certificate.bound is not None
    assert certificate.bound <= on


def test_of_what_ties_the_plainest_comes_first() -> None:
    stack = load_stack("megatron-2026")
    graphs = int(CudaGraphs.FULL_ITERATION)
    table = ConfigTable.of(
        [
            ParallelConfig(offload=4, cuda_graph_impl=graphs),
            ParallelConfig(cuda_graph_impl=graphs),
            ParallelConfig(dp=2),
            ParallelConfig(dp=4),
        ]
    )
    assert [opened(table.row(row), stack) for row in range(4)] == [2, 1, 0, 0]
    assert plainest(table, np.array([1.0, 1.00005, 1.00009, 1.00009]), stack) == 2
    assert plainest(table, np.array([1.0, 1.00005, 1.0002, 1.0002]), stack) == 1
    assert plainest(table, np.array([1.0, 1.0002, 1.0002, 1.0002]), stack) == 0
    assert opened(ParallelConfig(pp=2), load_stack("deepspeed-2025")) == 1


def test_candidates_of_all_members_add_up(plan: Plan) -> None:
    search, certificate = plan.search, plan.search.certificate
    assert certificate is not None
    removed = sum(rule.candidates for rule in search.removed)
    undealt = search.undealt + search.undealt_by_memory
    assert search.candidates == certificate.candidates == removed + search.legal + undealt
    assert certificate.by_rule == removed
    by_memory = certificate.by_memory - search.too_large - search.undealt_by_memory
    assert search.legal == search.costed + by_memory + certificate.by_bound - search.undealt
    (one,) = members(resolve(ASKED)[0], ASKED.restrict)[:1]
    space = enumerate_configs(one, rules_for(one.stack), ASKED.restrict, ASKED.without)
    assert search.candidates == space.total * len(search.members)


def test_an_option_is_listed_only_where_it_changes_something(plan: Plan) -> None:
    for choice in plan.choices:
        alone = choice.config.ep * choice.config.etp == 1
        assert not (alone and {"deepep", "hybridep"} & set(choice.stack.split("+")))


def test_what_changes_numerics_is_named_with_its_gain_and_not_taken(plan: Plan) -> None:
    certificate = plan.search.certificate
    assert certificate is not None
    kept = {one.axis: one for one in certificate.held}
    assert kept["grad-reduce-in-bf16"].why is HeldBy.NUMERICS
    assert kept["precision"].value == "bf16"
    narrow = make_plan(replace(ASKED, stack="megatron-2026+grad-reduce-in-bf16"))
    gain = 1 - narrow.choices[0].step_time / plan.choices[0].step_time
    said = kept["grad-reduce-in-bf16"].gain
    if gain > 0.02:
        assert said == pytest.approx(gain, abs=0.02)
        assert "--stack megatron-2026+grad-reduce-in-bf16" in line_of(plan.smallest_change)
    asked = make_plan(replace(ASKED, precision="bf16")).search.certificate
    assert asked is not None
    assert "precision" not in {one.axis for one in asked.held}


def test_what_is_left_out_stands_in_the_certificate() -> None:
    found = make_plan(replace(ASKED, without=("deepep", "offload")))
    assert found.search.certificate is not None
    kept = {one.axis: one for one in found.search.certificate.held}
    assert kept["deepep"].why is HeldBy.LEFT_OUT
    assert kept["offload"].why is HeldBy.LEFT_OUT
    said = proof.proof_sentence(found.search.certificate)
    assert "deepep off" in said
    assert "(left out)" in said
    assert proof.search_sentence(found.search).endswith("without deepep, offload")


def test_a_calibration_holds_with_options_that_change_speed(tmp_path: Path) -> None:
    """Of the search's choosing as where they are named, and where the plan is read again."""
    ours = Overlay(
        name="ours", date="2026", level="L3", made_from=("a run",), stack="megatron-2026",
        multiply={"compute.gemm": 1.2},
    )  # fmt: skip
    file = tmp_path / "ours.yaml"
    save_overlay(ours, file)
    asked = replace(ASKED, calibration=str(file))
    plan = make_plan(asked)
    best = plan.choices[0]
    assert turned_on(best.stack, "megatron-2026")
    assert make_plan(replace(asked, stack=best.stack)).choices[0].step_time == pytest.approx(best.step_time)
    again = cost_model(planned_problem(plan, best, None, file))
    assert evaluate_exactly(again, ConfigTable.of([best.config.parallel()])).step_time[0] == best.step_time
    with pytest.raises(InputError, match="holds for the stack megatron-2026"):
        make_plan(replace(asked, stack="megatron-2026+hidden-dropout=0.1"))


def test_nothing_is_left_out_of_an_estimate() -> None:
    with pytest.raises(InputError, match="--without"):
        make_estimate(replace(ASKED, without=("deepep",)))
    with pytest.raises(InputError, match="not both"):
        make_plan(replace(ASKED, stack="megatron-2026+deepep", without=("deepep",)))


def test_the_sentences_of_an_answer(plan: Plan) -> None:
    best = plan.choices[0].model_copy(update={"step_time": 20.0})
    on = (
        TurnedOn(name="deepep", without_step_time=22.0, gain=1 / 11),
        TurnedOn(name="optimizer-cuda-graph", without_step_time=20.0, gain=0.0),
    )
    search = plan.search.model_copy(update={"turned_on": on, "as_named": 30.0})
    shown = plan.model_copy(update={"search": search, "choices": (best,)})
    assert options_text.turned_on_lines(shown) == (
        "turned on: deepep (without it 22 s, 10.0 % slower), optimizer-cuda-graph (without it 20 s, as fast)",
        "without all of these: 30 s, 50.0 % slower",
        f"{option('without', 'NAME')} leaves one out; deepep needs DeepEP",
    )
    kept = (
        Held(axis="precision", value="bf16", why=HeldBy.NUMERICS, gain=0.3),
        Held(axis="deepep", value="off", why=HeldBy.LEFT_OUT),
        Held(axis="pp", value="1", why=HeldBy.UNTRIED, stack="deepspeed-2025"),
    )
    assert options_text.held_sentence(kept) == (
        "held fixed: precision=bf16 (freeing it saves 30%) (which would change numerics); deepep off (left out); "
        "deepspeed-2025: pp=1 (not tried)"
    )


@dataclass(eq=False)
class _Member:
    """A member of a search: its best takes `step_time` and fits in the `tier`-th room."""

    step_time: float
    tier: int
    allowed: float = 1.0
    forgotten: bool = False

    @property
    def source(self) -> _Member:
        return self

    def forget_costs(self) -> None:
        self.forgotten = True

    def fastest(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(
            posed=self, best=(1,), step_time=self.step_time, allowed=self.allowed + self.tier
        )


@pytest.mark.parametrize("thorough", [True, False])
def test_what_is_planned_was_not_forgotten(thorough: bool) -> None:
    """A member may be far from the best known and near the best in the end, which fits more surely."""
    times, tiers = (38.25, 33.0, 39.3), (1, 1, 0)
    for order in permutations(range(3)):
        members = [_Member(times[i], tiers[i]) for i in order]
        _, near = _screened(members, thorough, Stopwatch())
        assert near
        assert not any(one.forgotten for one in near)
        assert {one.step_time for one in near} == set(times)
    rng = random.Random(3)
    for _ in range(200):
        members = [_Member(rng.choice((1.0, 1.01, 1.03, 1.2)), rng.randrange(3)) for _ in range(5)]
        _, near = _screened(members, thorough, Stopwatch())
        assert near
        assert not any(one.forgotten for one in near)
        assert all(one.forgotten for one in members if one not in near)


def test_the_headline_says_what_the_whole_certificate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts of members that nobody searches whole may be faster: the head of the answer says so as well."""
    monkeypatch.setattr(Posed, "outside", lambda self, best, *_: (Outside(3, 0.9 * best), 0.0))
    plan = make_plan(ASKED)
    assert plan.search.certificate is not None
    assert plan.search.certificate.gap == pytest.approx(0.1)
    assert "not proven: up to 10.0% faster may exist" in text_of(plan.headline[0])


def test_nothing_is_told_to_be_unbeaten_by_members_that_were_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_alone(
        posed: Sequence[Posed], thorough: bool, watch: Stopwatch
    ) -> tuple[list[Screened], list[Posed]]:
        screened, near = _screened(posed[:1], thorough, watch)
        watch.ending = Ending.TIME_LIMIT
        return screened, near

    monkeypatch.setattr(over_members, "_screened", first_alone)
    plan = make_plan(ASKED)
    assert plan.found
    assert plan.search.certificate is not None
    assert plan.search.certificate.gap is None
    assert plan.search.certificate.bound is None
    assert "faster may exist" not in text_of(plan.headline[0])
