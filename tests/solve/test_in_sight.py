"""Are exposed seconds those of the stage shown, the step's terms on the slowest, and never more than busy ones?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.network.collectives import remote_copies
from planner.solve.in_sight import with_exposed
from planner.solve.place import place
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.precision import Precision
from planner.spec.stack.kinds import Dispatcher, StaysGathered
from tests.problems import costs, moe_model, problem, with_section


@pytest.mark.parametrize("pp", [1, 4])
def test_exposed_is_the_stages_own_and_within_busy(pp: int) -> None:
    """Eight layers, the first two dense: the first of four stages has no experts, and exposes none of their time."""
    subject = problem(moe_model(8, leading_dense=2, experts=8), "4x8 h100 400G-ib", global_batch=64)
    communication = subject.stack.communication.model_copy(update={"ep_exposed": 1.5})
    subject = replace(subject, stack=subject.stack.model_copy(update={"communication": communication}))
    model = costs(subject)
    config = ParallelConfig(tp=2, pp=pp, dp=16 // pp, ep=8, num_microbatches=4 * pp, sp=1, zero=1)
    detail = model.evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    time = {name: float(values[0]) for name, values in detail.time.items()}
    bare = [place(model, config, stage) for stage in range(pp)]
    shown = [with_exposed(model, placement, time).by_axis for placement in bare]
    for axes in shown:
        for found in axes.values():
            assert found.exposed is None or found.exposed <= found.busy
    for axis, term in (("ep", "ep_comm"), ("tp", "tp_comm")):
        assert max(axes[axis].exposed or 0.0 for axes in shown) == pytest.approx(time[term], rel=1e-9)
    if pp > 1:
        assert not shown[0]["ep"].exchanges
        assert shown[0]["ep"].exposed is None
    plain = costs(with_section(subject, "communication", ep_exposed=1.0))
    for stage, after in enumerate(shown):  # the factor above 1 is in the busy seconds too
        before = place(plain, config, stage).by_axis["ep"].busy
        assert after["ep"].busy == pytest.approx(1.5 * before, rel=1e-9)
    each = [sum(axes[name].exposed or 0.0 for name in ("dp", "edp") if name in axes) for axes in shown]
    assert 0 < max(each) <= time["dp_comm"] * (1 + 1e-9)
    assert pp > 1 or each[0] == pytest.approx(time["dp_comm"], rel=1e-9)


def test_fused_dispatch_sends_what_is_charged() -> None:
    """fp8 tokens there, bf16 results back, to at most as many nodes as groups are chosen."""
    model = moe_model(2, leading_dense=0, experts=64, top_k=8)
    layer = model.layers[0]
    assert layer.moe is not None
    limited = replace(layer, moe=replace(layer.moe, groups=4, top_groups=2))
    subject = problem(replace(model, layers=(limited,) * 2), "4x8 h100 400G-ib", stack="hai-llm-2024")
    config = ParallelConfig(dp=32, ep=32, num_microbatches=2, zero=1)
    there, back = (e for e in step_messages(costs(subject), config, 0) if e.axis == "ep")
    whole = 4096 * model.hidden * 2
    assert (there.size, back.size) == (whole * 1.03125 / 2, whole)
    assert there.calls == back.calls == 2 * 2 * 2
    assert back.sent == pytest.approx(whole * remote_copies(8.0, 32.0, 64.0, (2.0, 4.0)))
    assert back.sent < whole * remote_copies(8.0, 32.0, 64.0)


def test_fused_dispatch_reaches_every_shard_of_an_expert() -> None:
    """Megatron's sends over etp x ep and gathers nothing behind; the all-to-all gathers what its rank received."""
    spec = load_stack("megatron-2026")
    config = ParallelConfig(tp=4, dp=4, ep=4, etp=4, sp=1, num_microbatches=2, zero=1)
    model = moe_model(2, leading_dense=0, experts=64, top_k=4)
    seconds = {}
    for kind in (Dispatcher.ALL_TO_ALL, Dispatcher.DEEPEP):
        comm = spec.communication.model_copy(update={"dispatcher": kind, "ep_exposed": 1.0})
        subject = problem(model, "2x8 h100 400G-ib", stack=spec.model_copy(update={"communication": comm}))
        costed = costs(subject)
        placed = place(costed, config)
        sent = {axis: place.exchanges for axis, place in placed.by_axis.items() if axis in ("ep", "etp")}
        if kind is Dispatcher.ALL_TO_ALL:
            assert len(sent["etp"]) == 2
        else:
            assert not sent["etp"]
            (only,) = sent["ep"]
            assert only.sent == pytest.approx(only.size * remote_copies(4.0, 16.0, 64.0, shards=4.0))
            assert only.ranks == 16.0
        detail = costed.evaluate(ConfigTable.of([config]), keep_terms=True).detail
        assert detail is not None
        seconds[kind] = float(detail.time["ep_comm"][0])
        busy = sum(placed.by_axis[axis].busy for axis in ("ep", "etp"))
        assert busy == pytest.approx(seconds[kind], rel=1e-9)
    assert seconds[Dispatcher.DEEPEP] < seconds[Dispatcher.ALL_TO_ALL]


def test_a_torch_pipeline_reduces_once_a_step() -> None:
    """8 micro-batches: with ZeRO 2 one scatter and one gather of every unit, with ZeRO 3 a gather more for every
    backward pass, were nothing kept gathered; without a pipeline one scatter for each."""
    subject = problem(stack="torchtitan-2024")
    model = costs(with_section(subject, "engine", stays_gathered=StaysGathered.NOTHING))

    def calls(**axes: int) -> tuple[float, ...]:
        config = ParallelConfig(**{"dp": 4, "num_microbatches": 8, **axes})
        return tuple(e.calls for e in step_messages(model, config, 0) if e.axis == "dp")

    layers = model.problem.model.num_layers
    units, whole = (
        (layers + 2) / 4,
        layers + 2,
    )  # of a mean stage, and of all: with the embedding, and the head
    assert calls(zero=2, pp=4) == (units, units)
    assert calls(zero=3, pp=4) == (units, 9 * units)
    assert calls(zero=3, pp=1, dp=16) == (8 * whole, 16 * whole)


def test_float8_gathers_send_half_of_what_is_scattered() -> None:
    subject = problem(machine="1x8 h100", stack="torchtitan-2024", precision=Precision.FP8_CS)
    config = ParallelConfig(tp=8, sp=1, num_microbatches=2)
    gather, scatter = (e for e in step_messages(costs(subject), config, 0) if e.axis == "tp")
    assert scatter.size == 4096 * 2048 * 2 == 2 * gather.size
    assert gather.calls == scatter.calls
