"""Do the messages that are told take what the step's terms are made of, on every stack? Are exposed seconds no more?"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_stacks import stacks_to_plan
from planner.cost import layer
from planner.cost.messages import data_parallel
from planner.cost.model import CostModel
from planner.solve.in_sight import busy_by_term, heaviest_data_parallel, layer_terms, with_exposed
from planner.solve.place import place
from planner.solve.step_messages import StepMessages
from planner.space.enumerate import enumerate_configs
from planner.space.framework_rules import all_rules_for
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.rule import Problem
from planner.spec.stack.kinds import Dispatcher, StaysGathered
from tests.problems import with_section

OPTIONS = {"megatron-2026": ("", "+hybridep", "+deepep")}
CLUSTERS, MODELS = ("dgx-h100", "gb200-nvl72", "aws-p5"), ("llama-3.1-8b", "qwen3-30b-a3b")
QUICK = {  # the others are slow
    ("deepspeed-2025", "dgx-h100"), ("megatron-2026+hybridep", "gb200-nvl72"), ("megatron-2026+deepep", "aws-p5"),
    ("nanotron-2024", "dgx-h100"), ("torchtitan-2026", "dgx-h100"),
}  # fmt: skip
STACKS = [name + option for name in stacks_to_plan() for option in OPTIONS.get(name, ("",))]
CASES = [
    pytest.param(*case, marks=() if case[:2] in QUICK else pytest.mark.slow)
    for case in product(STACKS, CLUSTERS, MODELS)
]
# nothing hides, and all take what the links do, beside which nothing is copied
BARE = {"tp_exposed": 1.0, "tp_exposed_nodes": 1.0, "ep_overlap": 0.0, "dp_overlap": 0.0}


def posed(stack: str, cluster: str, model: str) -> Problem:
    """A job of 64 devices."""
    return resolve(Request(model, cluster, 64, stack=stack, seq_len=4096, global_batch="512"))[0]


def rows(subject: Problem) -> list[ParallelConfig]:
    """Of every ZeRO stage one legal configuration of each axis beyond 1, and of pairs of axes; none recomputes."""
    table = enumerate_configs(subject, all_rules_for(subject.stack.framework)).table()
    plain = (table["recompute"] == 0) & (table["offload"] == 0) & (table["schedule"] <= 1)
    table = table.take(np.flatnonzero(plain))
    more = {axis: table[axis] > 1 for axis in ("tp", "cp", "ep", "etp", "pp", "dp")}
    sights = [
        *more.values(), more["tp"] & more["ep"], more["cp"] & more["pp"], table["hsdp"] > 0, table["cp_kind"] > 0
    ]  # fmt: skip
    chance, chosen = np.random.default_rng(len(table)), set[int]()
    for zero in range(4):
        for sight in sights:
            places = np.flatnonzero(sight & (table["zero"] == zero))
            chosen |= set(chance.choice(places, size=min(len(places), 1)).tolist())
    return [table.row(i) for i in sorted(chosen)]


def terms_of(model: CostModel, config: ParallelConfig) -> dict[str, float]:
    detail = model.evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    return {name: float(values[0]) for name, values in detail.time.items()}


def test_what_is_quick_is_there() -> None:
    assert set(product(STACKS, CLUSTERS)) >= QUICK


@pytest.mark.parametrize(("stack", "cluster", "model"), CASES)
def test_messages_take_the_terms_before_hiding(
    stack: str, cluster: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing hides them: of the stage shown what its layers send, of the heaviest what data parallelism does.
    Else no axis has more in sight than its links work."""
    subject = posed(stack, cluster, model)
    costed, bare = (cost_model(one) for one in (subject, with_section(subject, "communication", **BARE)))
    looked_at, stages = rows(subject), dict[ParallelConfig, int]()
    for config in looked_at:
        shown = with_exposed(costed, place(costed, config), terms_of(costed, config))
        for axis in shown.axes:
            assert (axis.exposed or 0.0) <= axis.busy * (1 + 1e-9), (axis.axis, config.describe())
        stages[config] = shown.stage
    monkeypatch.setattr(data_parallel, "OVERLAP_SLOWDOWN", 0.0)
    monkeypatch.setattr(layer, "RING_OVERLAP", 0.0)
    monkeypatch.setattr(Dispatcher, "pair_share", None)
    for name in ("latency_of_bucket", "reduction_copies", "gather_copies"):
        monkeypatch.setattr(type(subject.stack.engine), name, 0.0)
    monkeypatch.setattr(type(subject.stack.engine), "hidden_in_layers", lambda engine, overlap: 0.0)
    for config in looked_at:
        messages = StepMessages.of(bare, config)
        busy = busy_by_term(messages.of_stage(stages[config]))
        for term, seconds in layer_terms(messages, stages[config]).items():
            assert busy[term] == pytest.approx(seconds, rel=1e-9), (term, config.describe())
        # what stays gathered is of one stage, and the term has the heaviest without it and the heaviest with
        stays = config.pp > 1 and subject.stack.engine.keeps_gathered is not StaysGathered.NOTHING
        whole = terms_of(bare, config)["dp_comm"]
        rel = 0.06 if stays and config.zero >= 3 else 1e-9
        assert heaviest_data_parallel(messages) == pytest.approx(whole, rel=rel), config.describe()
