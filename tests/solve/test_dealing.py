"""Does no configuration beat the bounds of its cut, whatever the layout of its layers, and does dealing cuts one after
another find what dealing all of them finds?"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.simulated import evaluate_exactly
from planner.solve.dealing import Source
from planner.solve.kept import Front
from planner.solve.pareto import pareto_front
from planner.solve.search import search
from planner.space.enumerate import Space, enumerate_configs
from planner.space.framework_rules import rules_for
from planner.spec.config import CudaGraphs
from planner.spec.rule import Problem
from planner.spec.stack.engines import DeepSpeed
from tests.problems import (
    costs,
    delta_model,
    dense_model,
    hybrid_model,
    moe_model,
    problem,
    sparse_model,
)
from tests.solve.test_search import random_problem, searched

STACKS = (
    "megatron-2026", "megatron-2022", "megatron-fsdp-2026", "nanotron-2024", "torchtitan-2026",
    "torchtitan-2026-eager", "deepspeed-2025", "fsdp1-2023", "hai-llm-2024",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _pipelines_of_deepspeed() -> Iterator[None]:
    """They are searched too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeepSpeed, "pipelines_programmed", False)
        yield


def with_stack(name: str, seed: int) -> Problem:
    chance = random.Random(seed)
    stack = load_stack(name)
    megatron = [hybrid_model(), delta_model(), sparse_model()] if "megatron-2026" in name else []
    model = chance.choice([dense_model(chance.choice([4, 7, 8])), moe_model(), *megatron])
    machine = chance.choice(["1x8 h100", "1x8 rtx4090", "2x8 a100 200G-ib"])
    batch, seq_len = chance.choice([8, 24, 64]), chance.choice([1024, 8192])
    return problem(model, machine, seq_len=seq_len, global_batch=batch, stack=stack)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", STACKS)
def test_no_configuration_beats_its_cut(name: str, seed: int) -> None:
    subject = with_stack(name, seed)
    pins = {"offload": subject.stack.limits.offload[:2] + subject.stack.limits.offload[-1:]}
    if seed == 2 and len(subject.stack.limits.cuda_graphs) > 1:
        pins["cuda_graph_impl"] = (0, int(CudaGraphs[subject.stack.limits.cuda_graphs[-1].upper()]))
    space, model = Space(subject, rules_for(subject.stack), pins), costs(subject)
    source = Source(model, space, np.inf)
    checked = 0
    for dealt in source.blocks(lambda: np.inf):
        stem = np.repeat(np.arange(len(dealt.block.stems)), dealt.block.counts)
        some = np.random.default_rng(seed).permutation(len(stem))[:1500]
        table = dealt.block.table().take(some)
        cost = evaluate_exactly(model, table)
        assert (dealt.least.time[stem[some]] <= cost.step_time).all()
        assert (dealt.least.memory[stem[some]] <= cost.device_memory).all()
        assert (dealt.bounds.memory[stem[some]] <= cost.device_memory).all()
        checked += len(some)
        if checked > 4000:
            break
    assert checked


@pytest.mark.parametrize("seed", range(6))
def test_no_layout_beats_the_cut(seed: int) -> None:
    subject = with_stack(("megatron-2026", "torchtitan-2026-eager")[seed % 2], seed)
    space, model = Space(subject, rules_for(subject.stack), {"pp": (2, 4, 8)}), costs(subject)
    chance = np.random.default_rng(seed)
    for dealt in Source(model, space, np.inf).blocks(lambda: np.inf):
        for row in chance.permutation(len(dealt.block.stems))[:25].tolist():
            one = dealt.block.stems.take(np.array([row]))
            chunks = int(one["pp"][0] * one["vpp"][0])
            cuts = np.sort(chance.integers(0, subject.model.num_layers + 1, chunks - 1))
            layers = tuple(np.diff([0, *cuts, subject.model.num_layers]).tolist())
            cost = evaluate_exactly(model.with_split(layers), one)
            assert dealt.least.time[row] <= cost.step_time[0]
            assert dealt.least.memory[row] <= cost.device_memory[0]


@pytest.mark.parametrize("seed", range(12))
def test_cut_by_cut_is_all_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.solve.dealing.FIRST_CUTS", 4)
    monkeypatch.setattr("planner.solve.dealing.MOST_CUTS", 16)
    subject = random_problem(seed)
    model, rules = costs(subject), rules_for(subject.stack)
    whole = enumerate_configs(subject, rules, without=())
    if not len(whole):
        pytest.skip("nothing is legal")
    memory = model.evaluate(whole.table()).device_memory
    for share in (0.0, 0.2, 1.0):
        limit, front = float(np.quantile(memory, share)), Front()
        source = Source(model, space := Space(subject, rules), limit)
        found, expected = search(model, source, limit, 5, front=front), search(model, whole, limit, 5)
        assert model.least_step_time(found.best).tolist() == model.least_step_time(expected.best).tolist()
        removed = sum(each.candidates for each in space.removed)
        assert whole.total == space.total
        assert space.total == removed + found.legal + found.undealt + found.undealt_by_memory
        assert found.legal == found.costed + found.by_memory + found.behind
        points, every = pareto_front(model, source, limit, front=front), pareto_front(model, whole, limit)
        assert points.step_time.tolist() == every.step_time.tolist()
        assert points.device_memory.tolist() == every.device_memory.tolist()
        if share == 0.0:
            nothing = search(model, Source(model, Space(subject, rules), 1.0), 1.0, 1)
            assert not len(nothing.best)
            named = search(model, whole, 1.0, 1).smallest
            assert model.evaluate(nothing.smallest).device_memory == model.evaluate(named).device_memory


@pytest.mark.parametrize("seed", range(6))
def test_candidates_add_up_whoever_looked_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier search of the same source, within other memory, dealt and costed is neither lost nor counted
    twice."""
    monkeypatch.setattr("planner.solve.dealing.FIRST_CUTS", 4)
    monkeypatch.setattr("planner.solve.dealing.MOST_CUTS", 16)
    subject = random_problem(seed)
    model, rules = costs(subject), rules_for(subject.stack)
    memory = model.evaluate(enumerate_configs(subject, rules, without=()).table()).device_memory
    source = Source(model, space := Space(subject, rules), float(np.quantile(memory, 0.5)))
    for share, top in ((0.0, 1), (0.05, 40), (0.5, 1), (0.2, 5)):
        limit, front = float(np.quantile(memory, share)) * (0.9 if share == 0 else 1), Front()
        found = search(model, source, limit, top, front=front)
        removed = sum(each.candidates for each in space.removed)
        assert space.total == removed + found.legal + found.undealt + found.undealt_by_memory
        assert found.legal == found.costed + found.by_memory + found.behind
        assert min(found.costed, found.by_memory, found.behind) >= 0
        assert len(found.best) <= found.costed - found.too_large
        pareto_front(model, source, limit, front=front)


def test_a_cutoff_leaves_out_what_is_slower() -> None:
    model, space, _table, cost = searched(3)
    limit = float(np.median(cost.device_memory))
    best = float(cost.step_time[cost.device_memory <= limit].min())
    assert len(search(model, space, limit, 1, cutoff=best).best) == 1
    assert not len(search(model, space, limit, 1, cutoff=best * 0.999).best)
