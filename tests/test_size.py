"""Sizing a cluster: against every size tried by hand, the curve and its knee, the verb, and bad input."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from planner.answer.growth import PAYING_SPEEDUP, Point
from planner.answer.outcome import best_of, run_days
from planner.answer.plan import make_plan
from planner.answer.planners import Planners
from planner.answer.size import LONGEST_DAYS, Goal, Sizing, size_cluster
from planner.ask.request import Request
from planner.errors import InputError
from planner.report.page_results import sizing_page
from planner.report.result_file import SizingFile
from planner.report.sizing import headline, sizing_document, sizing_facts
from planner.report.text import render
from planner.report.words import line_of, text_of
from planner.space.without import ALL
from planner.spec.planfile import Plan

NODES = 12
REQUEST = Request(
    "llama-3.1-8b", f"{NODES}x8 h100 400G-ib", seq_len=4096, global_batch="48", tokens=1e11,
    assume=("price=2 $/h",), without=(ALL,), set={"cp": (1,), "vpp": (1, 2)},
)  # fmt: skip


@pytest.fixture(scope="module")
def every_size() -> dict[int, Plan]:
    """The plan of every number of whole nodes."""
    return {n: make_plan(replace(REQUEST, gpus=8 * n, top=1)) for n in range(1, NODES + 1)}


def days(plan: Plan) -> float:
    best = best_of(plan)
    return run_days(best.run) if best and best.run else math.inf


def cost(plan: Plan) -> float:
    best = best_of(plan)
    return best.run.cost if best and best.run and best.run.cost is not None else math.inf


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 0.15])
def test_fewest_in_time_equals_every_size_tried(every_size: dict[int, Plan], share: float) -> None:
    target = share * days(every_size[1])
    best = min((n for n, plan in every_size.items() if days(plan) <= target), default=None)
    found = size_cluster(REQUEST, Goal.DAYS, target)
    assert (found.answer.nodes if found.answer else None) == best


@pytest.mark.parametrize("factor", [0.5, 1.02, 1.1, 2.0])
def test_fastest_in_budget_equals_every_size_tried(every_size: dict[int, Plan], factor: float) -> None:
    target = factor * min(map(cost, every_size.values()))
    within = [n for n, plan in every_size.items() if cost(plan) <= target]
    best = min(within, key=lambda n: (days(every_size[n]), n), default=None)
    found = size_cluster(REQUEST, Goal.BUDGET, target)
    assert (found.answer.nodes if found.answer else None) == best
    if best is None:
        assert "the cheapest" in headline(found)


def test_sizes_that_would_take_an_age_are_not_looked_at() -> None:
    """20 years on one node are no answer to who asks for days; what is left out takes that long even at the peak."""
    asked = Request("llama-3.1-8b", "dgx-h100", 4096, tokens=1e13, set={"pp": (1,)}, without=("all",))
    found = size_cluster(asked, Goal.DAYS, 30.0)
    assert found.found
    assert found.least_gpus > 8
    assert found.longest == LONGEST_DAYS * 30.0
    assert min(point.gpus for point in found.tried) >= found.least_gpus
    rate = 989.4e12 * 0.999
    flops = 6 * 7.5e9 * 1e13  # of the parameters in products
    assert flops / rate / found.longest / 86400 == pytest.approx(found.least_gpus, abs=8)
    assert f"fewer than {found.least_gpus} GPUs would take" in " ".join(sizing_facts(found)["landmarks"])


def test_fewest_that_fit_equals_every_size_tried() -> None:
    large = replace(REQUEST, model="llama-3.1-70b", tokens=None, front=False, set={"vpp": (1, 2)})
    found = size_cluster(large, Goal.MIN)
    fits = [
        n
        for n in range(1, NODES + 1)
        if best_of(make_plan(replace(large, gpus=8 * n, top=1, thorough=False)))
    ]
    assert found.answer is not None
    assert found.answer.nodes == fits[0]
    assert fits[0] > 1, "the question has an answer other than the first size"


@pytest.mark.parametrize("more", [{"without": ()}, {"lora_rank": 16, "frozen_bits": 4}], ids=str)
def test_states_that_are_on_hosts_or_not_there_need_no_devices(more: dict[str, Any]) -> None:
    """What would fill two nodes with the states of every parameter runs on one."""
    found = size_cluster(replace(REQUEST, model="llama-3.1-70b", tokens=None, **more), Goal.MIN)
    assert found.answer is not None
    assert found.answer.nodes == 1


@pytest.fixture(scope="module")
def curve() -> Sizing:
    """A curve long enough to stop paying."""
    return size_cluster(replace(REQUEST, cluster="dgx-h100", global_batch="64"), Goal.DAYS, 3.0)


def test_a_doubling_is_never_slower_without_a_reason(curve: Sizing) -> None:
    assert len(curve.doublings) >= 4
    for doubling in curve.doublings:
        assert doubling.speedup > 1 or doubling.binds
        if doubling.speedup < 0.97 * doubling.end.gpus / doubling.start.gpus:
            assert doubling.binds, "what was not saved has a name"


def test_the_excess_is_what_the_step_did_not_shrink(curve: Sizing) -> None:
    for doubling in curve.doublings:
        a, b = doubling.start.best, doubling.end.best
        assert a is not None
        assert b is not None
        excess = sum(seconds for name, seconds in doubling.excess if name != "stops")
        assert excess == pytest.approx(b.step_time - a.step_time * doubling.start.gpus / doubling.end.gpus)


def test_the_knee_is_where_doublings_stop_paying(curve: Sizing) -> None:
    assert curve.knee is not None
    for doubling in curve.doublings:
        if doubling.end.gpus <= curve.knee.gpus:
            assert doubling.speedup >= PAYING_SPEEDUP
    after = next(d for d in curve.doublings if d.start.gpus == curve.knee.gpus)
    assert after.speedup < PAYING_SPEEDUP
    assert not after.pays


def test_the_batch_is_held_at_every_size(curve: Sizing) -> None:
    assert {point.plan.subject.job.global_batch for point in curve.tried} == {64}
    assert all(point.gpus % 8 == 0 for point in curve.tried)


def test_a_batch_that_nobody_named_suits_every_size() -> None:
    """Of 7 nodes a held batch has no use for the factor 7; the one that a plan chooses there has."""
    own = replace(REQUEST, cluster="7x8 h100 400G-ib", global_batch=None, set={"pp": (1,)})
    held = size_cluster(replace(own, global_batch="1024"), Goal.DAYS, 0.001)
    free = size_cluster(own, Goal.DAYS, 0.001)
    (seven,) = [point for point in free.tried if point.nodes == 7]
    assert seven.batch == make_plan(replace(own, gpus=56)).subject.job.global_batch == 896
    assert seven.best is not None
    assert [point.best for point in held.tried if point.nodes == 7] == [None]
    assert {point.batch for point in held.tried} == {1024}
    facts = {tried["gpus"]: tried["global_batch"] for tried in sizing_facts(free)["tried"]}
    assert facts == {point.gpus: point.batch for point in free.tried}
    assert "896 to 1,024 sequences" in text_of(free.batch)


@pytest.fixture(scope="module")
def of_two_batches() -> Sizing:
    """A curve whose last size has a smaller batch: 24 GPUs."""
    own = replace(REQUEST, cluster="3x8 h100 400G-ib", global_batch=None)
    return size_cluster(own, Goal.BUDGET, 1.0)


def test_steps_of_different_batches_are_compared_by_sequence(of_two_batches: Sizing) -> None:
    last = of_two_batches.doublings[-1]
    a, b = last.start.best, last.end.best
    assert a is not None
    assert b is not None
    assert last.start.batch > last.end.batch
    fair = a.step_time * (last.start.gpus / last.end.gpus) * (last.end.batch / last.start.batch)
    lost = dict(last.excess)
    assert sum(lost.values()) - lost["stops"] == pytest.approx(b.step_time - fair)
    assert abs(lost["gemm"]) < 0.03 * fair, "as many sequences multiply as many matrices"
    assert last.binds is None or last.binds.values["cause"] != "none"


def test_the_curve_states_batches_that_differ(of_two_batches: Sizing, curve: Sizing) -> None:
    facts = sizing_facts(of_two_batches)
    batches = [point.batch for point in of_two_batches.curve]
    assert [point["global_batch"] for point in facts["curve"]] == batches
    page = sizing_page(SizingFile.model_validate(json.loads(json.dumps(facts))))
    (drawn,) = (section for section in page.sections if section.name == "curve")
    (table,) = (block for block in drawn.blocks if block.kind == "table")
    assert [row[1] for row in table.rows] == [f"{batch:,}" for batch in batches]
    for width in (60, 80, 160):
        text = render(sizing_document(of_two_batches), Console(width=width, file=io.StringIO()))
        assert " batch " in text.partition("Time and cost over size")[2].splitlines()[1]
        assert f"24    {batches[-1]} " in text
        one = render(sizing_document(curve), Console(width=width, file=io.StringIO()))
        assert " batch " not in one.partition("Time and cost over size")[2].splitlines()[1]


def test_a_batch_of_planners_own_stays_near_what_was_assumed() -> None:
    """Pinned to data parallelism alone, large sizes could only be dealt a larger batch."""
    alone = {"tp": (1,), "pp": (1,), "cp": (1,)}
    own = replace(REQUEST, cluster="h100-sxm-roce", global_batch=None, critical_batch=1e6, set=alone)
    found = size_cluster(own, Goal.DAYS, 0.01)
    assert max(point.gpus for point in found.tried) > 1024
    assert all(0.75 * 1024 <= point.batch <= 1.25 * 1024 for point in found.tried)


LIMITED = Request(
    "llama-3.2-1b", "dgx-h100", 2048, seq_len=8192, tokens=2e11, without=(ALL,),
    set={"cp": (1,), "pp": (1,), "micro_batch": (1,), "recompute": (0,)},
)  # fmt: skip


def tokens_of(point: Point) -> float:
    assert point.run is not None
    assert point.run.tokens is not None
    return point.run.tokens


@pytest.mark.parametrize("critical", [1e6, 3e7, 1e11])
def test_a_batch_grows_with_the_size_while_a_run_ends_sooner_for_it(critical: float) -> None:
    found = size_cluster(replace(LIMITED, critical_batch=critical), Goal.MIN)
    usual = found.curve[0].batch
    for point in found.curve:
        counted = 2e11 * max((1 + point.batch * 8192 / critical) / 2, 1.0)
        assert tokens_of(point) == pytest.approx(counted)
        if point.batch > usual:
            asked = replace(LIMITED, critical_batch=critical, gpus=point.gpus, top=1)
            law = (1 + point.batch * 8192 / critical) / (1 + usual * 8192 / critical)
            same = law / (counted / (2e11 * max((1 + usual * 8192 / critical) / 2, 1.0)))
            assert point.days * same < days(make_plan(replace(asked, global_batch=str(usual)))), (
                "to the same loss"
            )
            named = make_plan(replace(asked, global_batch=str(point.batch))).choices[0].run
            assert named is not None
            assert named.tokens == tokens_of(point), "as many whichever verb is asked"
    batches = [point.batch for point in found.curve]
    assert batches == sorted(batches)
    if critical == 1e6:  # any larger batch takes as many more tokens
        assert set(batches) == {usual}
    if critical == 1e11:  # none
        assert batches[-1] > usual


def test_where_doublings_lose_to_the_critical_batch_it_is_said() -> None:
    found = size_cluster(replace(LIMITED, critical_batch=6e6), Goal.MIN)
    grown = next(d for d in found.doublings if tokens_of(d.end) > tokens_of(d.start))
    lost = dict(grown.excess)["tokens"]
    assert grown.end.best is not None
    assert lost == pytest.approx(
        grown.end.best.step_time * (tokens_of(grown.end) / tokens_of(grown.start) - 1)
    )
    shown = io.StringIO()
    Console(file=shown, width=120).print(sizing_document(found))
    assert "times the tokens for the same loss" in " ".join(shown.getvalue().split())


def test_a_size_that_cannot_divide_the_batch_is_refused_with_the_reason() -> None:
    # 7 nodes: the factor 7 has no place where neither batch, heads nor layers have it
    found = size_cluster(replace(REQUEST, cluster="7x8 h100 400G-ib", set={"pp": (1,)}), Goal.DAYS, 0.001)
    (refused,) = [point for point in found.tried if point.nodes == 7]
    assert refused.best is None
    assert "no legal way to split 56 devices" in line_of(refused.reason)
    assert not found.found


def test_sizes_are_told_in_a_line_and_the_answer_is_planned_in_full(curve: Sizing) -> None:
    assert curve.answer is not None
    assert curve.answer.settled
    assert any(not point.settled for point in curve.tried), "looking at the others in full takes long"
    full = make_plan(replace(REQUEST, cluster="dgx-h100", global_batch="64", gpus=curve.answer.gpus, top=1))
    best = best_of(full)
    assert best is not None
    assert curve.answer.best.step_time == best.step_time
    odd = size_cluster(replace(REQUEST, cluster="7x8 h100 400G-ib", set={"pp": (1,)}), Goal.DAYS, 30.0)
    text = render(sizing_document(odd), Console(width=160, file=io.StringIO()))
    assert "56 GPUs: no legal way to split the model and 48 sequences over them" in text
    assert "would help" not in text


@pytest.mark.parametrize(("bound", "gpus"), [(0.9, 8), (0.999, None)])
def test_a_size_that_misses_by_little_is_planned_in_full(
    monkeypatch: pytest.MonkeyPatch, bound: float, gpus: int | None
) -> None:
    """Only where the bound says that more effort could meet the goal; here it takes 2 % off the time."""
    loose = make_plan(replace(REQUEST, gpus=8, top=1, thorough=False))
    best, proof = best_of(loose), loose.search.certificate
    assert best is not None
    assert best.run is not None
    assert proof is not None
    search = loose.search.model_copy(
        update={"certificate": proof.model_copy(update={"bound": bound * best.step_time})}
    )
    loose = loose.model_copy(update={"search": search})
    run = best.run.model_copy(
        update={"days": 0.98 * best.run.days, "effective_days": 0.98 * run_days(best.run)}
    )
    tight = loose.model_copy(update={"choices": (best.model_copy(update={"run": run}),)})
    monkeypatch.setattr(Planners, "plan", lambda self, asked: tight if asked.thorough else loose)
    found = size_cluster(replace(REQUEST, cluster="1x8 h100"), Goal.DAYS, 0.99 * days(loose))
    assert (found.answer.gpus if found.answer else None) == gpus


def test_nothing_fits_anywhere() -> None:
    found = size_cluster(
        replace(REQUEST, model="llama-3.1-405b", cluster="8x8 h100 400G-ib", tokens=None), Goal.MIN
    )
    assert not found.found
    assert headline(found).startswith("nothing runs on up to 64 GPUs")
    text = render(sizing_document(found), Console(width=160, file=io.StringIO()))
    assert "\nSizes\n" not in text, "a heading without a line below it"
    page = sizing_page(SizingFile.model_validate(json.loads(json.dumps(sizing_facts(found)))))
    assert "landmarks" not in {part.name for part in page.sections}
    assert sizing_facts(found)["answer"] is None


def test_spares_are_paid_for() -> None:
    plain = size_cluster(REQUEST, Goal.DAYS, 20.0)
    more = size_cluster(replace(REQUEST, assume=(*REQUEST.assume, "spare_nodes=2")), Goal.DAYS, 20.0)
    assert plain.answer is not None
    assert more.answer is not None
    assert more.answer.nodes == plain.answer.nodes
    assert more.answer.cost == pytest.approx(plain.answer.cost * (more.answer.nodes + 2) / plain.answer.nodes)


def test_a_budget_needs_a_price() -> None:
    with pytest.raises(InputError, match="price"):
        size_cluster(replace(REQUEST, cluster="4x8 l40s", assume=()), Goal.BUDGET, 1e6)


def test_facts_are_plain_data(curve: Sizing) -> None:
    facts = json.loads(json.dumps(sizing_facts(curve), allow_nan=False))
    assert facts["found"] is True
    assert facts["answer"]["days"] <= 3.0
    assert [point["gpus"] for point in facts["curve"]] == [point.gpus for point in curve.curve]
    assert facts["knee"] == (curve.knee.gpus if curve.knee else None)


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("colour", [False, True])
def test_the_document_fits_the_terminal(curve: Sizing, width: int, colour: bool) -> None:
    console = Console(width=width, file=io.StringIO())
    text = render(sizing_document(curve), console)
    assert max(map(len, text.splitlines())) <= width
    assert "knee" in text
    assert "\x1b" not in text
    if colour:
        bright = Console(
            width=width, file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False
        )
        assert "\x1b[" in render(sizing_document(curve), bright)


JOB = ("llama-3.2-1b", "2x8 h100 400G-ib", "--seq-len", "4096", "--global-batch", "64")


def test_the_verb(planner: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = planner("size", *JOB, "--min", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["answer"]["gpus"] == 8
    code, out, err = planner("size", *JOB, "--tokens", "1T", "--days", "0.1")
    assert (code, err) == (1, "")
    assert "no size ends within 2.4 h" in out
    code, out, _ = planner("size", *JOB, "--tokens", "1G", "--days", "10", "--spare-nodes", "1")
    assert code == 0
    assert "with 1 spare node" in out


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--min", "--days", "3", "--tokens", "1T"),
        ("--days", "3"),
        ("--days", "0", "--tokens", "1T"),
        ("--days", "soon", "--tokens", "1T"),
        ("--days", "nan", "--tokens", "1T"),
        ("--budget", "-5", "--tokens", "1T"),
        ("--budget", "lots", "--tokens", "1T"),
        ("--min", "--max-gpus", "4"),
        ("--min", "--max-gpus", "0"),
        ("--min", "--spare-nodes", "some"),
    ],
)
def test_malformed_input_exits_2(
    planner: Callable[..., tuple[int, str, str]], options: tuple[str, ...]
) -> None:
    code, out, err = planner("size", *JOB, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_small_batches_at_the_start_are_blamed_for_what_they_cost() -> None:
    asked = replace(LIMITED, gpus=256, critical_batch=1e11, batch_schedule=(("64", 1.5e11),))
    found = size_cluster(asked, Goal.MIN)
    assert {point.batch for point in found.curve} == {512}, "the schedule names its batches"
    last = found.doublings[-1]
    assert last.end.best is not None
    assert last.start.best is not None
    lost = dict(last.excess)
    fair = last.start.best.step_time / 2
    assert sum(lost.values()) - lost["stops"] - lost["batch_schedule"] == pytest.approx(
        last.end.best.step_time - fair
    )
    assert lost["batch_schedule"] > lost["dp_comm"], "a rank has fewer sequences of 64 to hide it"
