"""Properties of the whole cost: rows don't see each other, terms sum up, and more of a good thing never hurts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ask.request import Request, cost_model, resolve
from planner.cost.memory.moments import PHASES
from planner.cost.model import CostModel
from planner.cost.network.collectives import all_reduce_time
from planner.cost.network.traffic import group_links
from planner.cost.table import STAGE_TERMS, CostTable
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig, Recompute, Schedule
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.problems import costs, dense_model, legal_table, moe_model, problem, random_rows

COMMUNICATION = {"tp": "tp_comm", "cp": "cp_comm", "ep": "ep_comm", "pp": "pp_comm"}
STACKS = ("megatron-2026", "nanotron-2024", "torchtitan-2024", "deepspeed-2025", "megatron-2021")


def _subjects() -> dict[str, Problem]:
    found = {}
    for stack in STACKS:
        found[f"dense-{stack}"] = problem(dense_model(), stack=stack)
    for stack in ("megatron-2026", "torchtitan-2024"):
        found[f"moe-{stack}"] = problem(moe_model(), stack=stack)
    racks = load_cluster("gb200-nvl72", 144)
    found["moe-fp8-nvl72"] = problem(moe_model(), racks, precision=Precision.FP8, global_batch=144)
    found["tied-24-a100"] = problem(dense_model(tied=True, layers=7), "3x8 a100 200G-ib", global_batch=48)
    found["pods"] = problem(dense_model(), load_cluster("h100-sxm-roce", 6144), global_batch=6144)
    return found


SUBJECTS = _subjects()
by_subject = pytest.mark.parametrize("name", SUBJECTS)


def all_arrays(cost: CostTable, row: int) -> dict[str, float]:
    """Everything a table says about one row, padded classes left out."""
    found = {
        name: float(getattr(cost, name)[row])
        for name in ("step_time", "peak_memory", "device_memory", "stage", "phase")
    }
    detail = cost.detail
    assert detail is not None
    found |= {f"time.{name}": float(value[row]) for name, value in detail.time.items()}
    pipeline = int(detail.class_row[row])
    for j, ranks in enumerate(detail.classes.members[pipeline]):
        found[f"class.{ranks}"] = float(detail.by_class[row, j])
        for phase, parts in detail.memory.items():
            found |= {f"{phase}.{name}.{ranks}": float(value[row, j]) for name, value in parts.items()}
    found["outside"] = float(detail.outside[row])
    return found


@by_subject
def test_a_row_alone_equals_the_row_in_a_table(name: str) -> None:
    subject = SUBJECTS[name]
    model, rows = costs(subject), random_rows(legal_table(subject), 60, seed=len(name))
    together = model.evaluate(rows, keep_terms=True)
    for row in range(len(rows)):
        alone = model.evaluate(rows.take(slice(row, row + 1)), keep_terms=True)
        assert all_arrays(alone, 0) == all_arrays(together, row), rows.row(row)


@by_subject
def test_order_and_company_of_rows_do_not_matter(name: str) -> None:
    subject = SUBJECTS[name]
    model, rows = costs(subject), random_rows(legal_table(subject), 500, seed=3)
    order = np.random.default_rng(4).permutation(len(rows))
    plain, shuffled = model.evaluate(rows), model.evaluate(rows.take(order))
    assert np.array_equal(plain.step_time[order], shuffled.step_time)
    assert np.array_equal(plain.device_memory[order], shuffled.device_memory)


@by_subject
def test_terms_are_the_total(name: str) -> None:
    subject = SUBJECTS[name]
    rows = random_rows(legal_table(subject), 500, seed=1)
    cost = costs(subject).evaluate(rows, keep_terms=True)
    assert cost.detail is not None
    assert set(cost.detail.time) == {
        *STAGE_TERMS, "pipeline_bubble", "pp_comm", "dp_comm", "optimizer", "host_transfer", "step_overhead",
        "memory_pressure", "stragglers", "own_runs",
    }  # fmt: skip
    np.testing.assert_allclose(sum(cost.detail.time.values()), cost.step_time, rtol=1e-12)
    for term, value in cost.detail.time.items():
        floor = -1e-9 * cost.step_time
        assert np.all(value >= floor), term


def test_pairs_without_experts_hide_launches_alone() -> None:
    """An overlapped pair hides exchanges with experts, and launches behind the other micro-batch's kernels: what it
    saves beyond the former is off the latter, so that neither term falls below 0."""
    config = ParallelConfig(tp=2, pp=2, dp=4, zero=1, num_microbatches=16, schedule=Schedule.DUALPIPE)
    detail = (
        costs(problem(dense_model(), stack="hai-llm-2024"))
        .evaluate(ConfigTable.of([config]), keep_terms=True)
        .detail
    )
    assert detail is not None
    assert detail.time["ep_comm"][0] == 0
    assert detail.time["host_bound"][0] >= 0
    # launches that a repeated forward pass hides as well are no pair's
    fields = {
        "seq_len": 8192,
        "global_batch": "64",
        "stack": "hai-llm-2024",
        "precision": "bf16",
        "mean_len": 700.0,
    }
    short = cost_model(resolve(Request("mistral-nemo-12b", "dgx-a100", 64, **fields))[0])  # type: ignore[arg-type]
    full = replace(config, tp=16, cp=2, dp=1, sp=1, num_microbatches=64, recompute=Recompute.FULL)
    again = [replace(full, recompute_layers=n) for n in (10, 20)]
    cost = short.evaluate(ConfigTable.of(again), keep_terms=True)
    assert cost.detail is not None
    np.testing.assert_allclose(sum(cost.detail.time.values()), cost.step_time, rtol=1e-12)
    assert all((value >= 0).all() for value in cost.detail.time.values())


@by_subject
def test_peak_is_the_largest_sum_over_stages_and_phases(name: str) -> None:
    subject = SUBJECTS[name]
    rows = random_rows(legal_table(subject), 300, seed=2)
    cost = costs(subject).evaluate(rows, keep_terms=True)
    detail = cost.detail
    assert detail is not None
    sums = np.stack(
        [sum(parts.values()) for parts in (detail.memory[p] for p in PHASES if p in detail.memory)]
    )
    alive = detail.classes.count[detail.class_row] > 0
    sums = np.where(alive, sums, -np.inf)  # (phase, row, class)
    np.testing.assert_allclose(sums.max(axis=(0, 2)) + detail.outside, cost.device_memory, rtol=1e-12)
    index = np.arange(len(rows))
    np.testing.assert_allclose(
        sums[cost.phase, index, detail.stage_class] + detail.outside, cost.device_memory, rtol=1e-12
    )
    assert np.array_equal(detail.classes.stage[detail.class_row, detail.stage_class], cost.stage)


@by_subject
def test_degrees_of_one_communicate_nothing(name: str) -> None:
    subject = SUBJECTS[name]
    rows = random_rows(legal_table(subject), 2000, seed=5)
    cost = costs(subject).evaluate(rows, keep_terms=True)
    assert cost.detail is not None
    for axis, term in COMMUNICATION.items():
        alone = rows[axis] == 1
        if axis == "ep":
            alone &= rows["etp"] == 1
        assert not cost.detail.time[term][alone].any(), term
    alone = (rows["dp"] == 1) & (rows["cp"] == 1)
    if subject.model.is_moe:  # ranks of tensor parallelism may have experts alike
        copied = alone & (rows["tp"] > rows["ep"] * rows["etp"])
        assert cost.detail.time["dp_comm"][copied].all()
        alone &= ~copied
    if subject.model.tied_embeddings:  # its copies on two stages are summed
        assert cost.detail.time["dp_comm"][alone & (rows["pp"] > 1)].all()
        alone &= rows["pp"] == 1
    assert not cost.detail.time["dp_comm"][alone].any()
    alone = rows["pp"] == 1
    assert not cost.detail.time["pipeline_bubble"][alone].any()


@pytest.mark.parametrize(
    ("stages", "module", "copies"),
    # untied without modules: one embedding; on one stage it serves both
    [(2, 1, True), (2, 0, False), (1, 1, False)],
)
def test_copies_of_an_embedding_sum_their_gradients(stages: int, module: int, copies: bool) -> None:
    """Of 32,000 x 2,048 in fp32 over tp 2, between ranks of two nodes, by the all-reduce of a group of two."""
    spec = replace(dense_model(8), mtp_layers=module)
    subject = problem(spec, f"{stages}x8 h100 400G-ib", stack="megatron-2026", global_batch=32)
    row = ParallelConfig(tp=2, sp=1, pp=stages, dp=4, micro_batch=1, num_microbatches=8, zero=1)
    model = costs(subject)
    found = float(model.prepare(ConfigTable.of([row])).shards.copied[0])
    group = group_links(8.0, 2.0, subject.cluster)
    seconds = float(all_reduce_time(4.0 * 32000 * 2048 / 2, group, model.links))
    assert found == pytest.approx(copies * subject.stack.communication.dp_time * seconds)
    for stage in range(stages):
        sent = [e for e in step_messages(model, row, stage) if "replicated" in e.what]
        assert [e.sent for e in sent] == copies * [4.0 * 32000 * 1024]


def with_links(machine: Cluster, tier: int, factor: float) -> Cluster:
    """The cluster with one tier of links `factor` times as fast."""
    tiers = list(machine.tiers)
    old = tiers[tier]
    pair = None if old.pair_bandwidth is None else old.pair_bandwidth * factor
    tiers[tier] = replace(
        old, bandwidth=old.bandwidth * factor, bandwidth_alone=old.bandwidth_alone * factor,
        pair_bandwidth=pair,
    )  # fmt: skip
    return replace(machine, tiers=tuple(tiers))


def with_device(machine: Cluster, memory_bandwidth: float = 1.0, peak: float = 1.0) -> Cluster:
    device = machine.accelerator
    return replace(
        machine,
        accelerator=replace(
            device, memory_bandwidth=device.memory_bandwidth * memory_bandwidth,
            peak=tuple((dtype, rate * peak) for dtype, rate in device.peak),
        ),
    )  # fmt: skip


def faster_machines(machine: Cluster) -> dict[str, Cluster]:
    """The same cluster with one thing better."""
    found = {f"tier {i}": with_links(machine, i, 2.0) for i in range(len(machine.tiers))}
    found |= {"slightly faster fabric": with_links(machine, len(machine.tiers) - 1, 1.07)}
    return found | {
        "memory bandwidth": with_device(machine, memory_bandwidth=1.3),
        "peak": with_device(machine, peak=1.5),
    }


@by_subject
def test_a_better_machine_is_never_slower(name: str) -> None:
    subject = SUBJECTS[name]
    rows = random_rows(legal_table(subject), 2000, seed=6)
    plain = costs(subject).evaluate(rows).step_time
    for what, machine in faster_machines(subject.cluster).items():
        better = costs(replace(subject, cluster=machine)).evaluate(rows).step_time
        worst = int((better / plain).argmax())
        assert better[worst] <= plain[worst] * (1 + 1e-9), (what, rows.row(worst))
        assert better.sum() < plain.sum(), what


def changed(rows: ConfigTable, **columns: object) -> ConfigTable:
    return ConfigTable(
        {**rows.columns, **{axis: np.asarray(value, dtype=np.int32) for axis, value in columns.items()}}
    )


def kept_activations(model: CostModel, rows: ConfigTable) -> np.ndarray:
    """Bytes of activations held in the backward phase, (n, C)."""
    detail = model.evaluate(rows, keep_terms=True).detail
    assert detail is not None
    return detail.memory["backward"]["activations"]


@by_subject
def test_more_recomputation_is_never_faster_and_keeps_no_more(name: str) -> None:
    subject = SUBJECTS[name]
    rows = legal_table(subject)
    rows = random_rows(rows.take(rows["recompute"] == Recompute.NONE), 200, seed=7)
    model = costs(subject)
    most = -(-subject.model.num_layers // rows["pp"])
    before_time, before_kept = model.evaluate(rows).step_time, kept_activations(model, rows)
    for layers in range(1, int(most.max()) + 1):
        table = changed(
            rows, recompute=np.full(len(rows), Recompute.FULL), recompute_layers=np.minimum(layers, most)
        )
        after_time, after_kept = model.evaluate(table).step_time, kept_activations(model, table)
        assert np.all(after_time >= before_time * (1 - 1e-12))
        assert np.all(after_kept <= before_kept * (1 + 1e-12))
        before_time, before_kept = after_time, after_kept
    assert before_kept.sum() < 0.5 * kept_activations(model, rows).sum()


@by_subject
def test_selective_recomputation_is_never_faster_and_keeps_no_more(name: str) -> None:
    subject = SUBJECTS[name]
    rows = legal_table(subject)
    rows = random_rows(rows.take(rows["recompute"] == Recompute.SELECTIVE), 200, seed=7)
    if not len(rows):
        pytest.skip("the stack has no selective recomputation")
    model, none = costs(subject), np.zeros(len(rows))
    plain = changed(rows, recompute=none, recompute_modules=none)
    assert np.all(model.evaluate(rows).step_time >= model.evaluate(plain).step_time)
    assert np.all(kept_activations(model, rows) <= kept_activations(model, plain) * (1 + 1e-12))


@by_subject
def test_a_larger_micro_batch_never_keeps_less(name: str) -> None:
    subject = SUBJECTS[name]
    rows = legal_table(subject)
    rows = random_rows(rows.take(rows["num_microbatches"] % 2 == 0), 300, seed=8)
    model = costs(subject)
    larger = changed(
        rows, micro_batch=rows["micro_batch"] * 2, num_microbatches=rows["num_microbatches"] // 2
    )
    few = rows["num_microbatches"] // 2 >= rows["pp"] * rows["vpp"]  # as many in flight as before
    small, large = kept_activations(model, rows), kept_activations(model, larger)
    assert np.all(large[few] >= small[few] * (1 - 1e-12))
    # even where fewer are in flight, a device holds at least as many sequences
    assert np.all(large >= small * (1 - 1e-12))


@by_subject
def test_zero_never_raises_static_memory(name: str) -> None:
    subject = SUBJECTS[name]
    rows = legal_table(subject)
    rows = random_rows(rows.take((rows["dp"] * rows["cp"]) > 1), 200, seed=9)
    model = costs(subject)
    before = None
    for zero in range(4):
        detail = model.evaluate(changed(rows, zero=np.full(len(rows), zero)), keep_terms=True).detail
        assert detail is not None
        parts = detail.memory["backward"]
        static = parts["weights"] + parts["gradients"] + parts["optimizer"] + parts["dp_buffers"]
        if before is not None:
            assert np.all(static <= before * (1 + 1e-12)), zero
        before = static


@pytest.mark.parametrize("model", [dense_model(), moe_model()], ids=lambda model: model.name)
def test_a_longer_sequence_is_never_faster(model: object) -> None:
    table, before = None, None
    for seq_len in (1024, 2048, 4096, 8192, 16384, 32768):
        subject = problem(model, seq_len=seq_len)  # type: ignore[arg-type]
        table = random_rows(legal_table(subject), 1000, seed=10) if table is None else table
        now = costs(subject).evaluate(table).step_time
        if before is not None:
            worst = int((now / before).argmin())
            assert now[worst] >= before[worst], (seq_len, table.row(worst))
        before = now


def test_expert_parallelism_divides_experts_and_not_dense_weights() -> None:
    subject = problem(moe_model(shared_ffn=0), "2x8 h100 400G-ib", global_batch=64)
    wide = ParallelConfig(tp=1, dp=16, num_microbatches=4, zero=0)
    detail = costs(subject).evaluate(
        ConfigTable.of([replace(wide, ep=ep) for ep in (1, 4, 16)]), keep_terms=True
    )
    assert detail.detail is not None
    weights = detail.detail.memory["optimizer"]["weights"][:, 0]
    experts = 2 * 7 * 16 * 3 * 2048 * 1024  # bf16, 7 layers, 16 experts, three matrices
    assert weights[0] - weights[1] == pytest.approx(experts * (1 - 1 / 4))
    assert weights[0] - weights[2] == pytest.approx(experts * (1 - 1 / 16))


def test_tensor_parallelism_divides_no_expert() -> None:
    # only etp does: Megatron-LM's expert-tensor-parallel size of 1 leaves whole experts on every rank of tp
    subject = problem(moe_model(shared_ffn=0, leading_dense=0))
    rows = [
        ParallelConfig(tp=8, dp=2, ep=8, etp=etp, sp=1, num_microbatches=32, micro_batch=1, zero=0)
        for etp in (1, 2)
    ]
    detail = costs(subject).evaluate(ConfigTable.of(rows), keep_terms=True).detail
    assert detail is not None
    weights = detail.memory["optimizer"]["weights"][:, 0]
    experts = 2 * 8 * 16 * 3 * 2048 * 1024
    assert weights[0] - weights[1] == pytest.approx(experts / 8 * (1 - 1 / 2))


def test_the_same_table_gives_the_same_bytes() -> None:
    subject = problem(moe_model())
    rows = random_rows(legal_table(subject), 1000, seed=11)
    first, second = (cost_model(subject).evaluate(rows) for _ in range(2))
    assert first.step_time.tobytes() == second.step_time.tobytes()
    assert first.device_memory.tobytes() == second.device_memory.tobytes()


def test_an_empty_table_costs_nothing() -> None:
    rows = legal_table(problem()).take(slice(0, 0))
    assert len(costs(problem()).evaluate(rows).step_time) == 0
