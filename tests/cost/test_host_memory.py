"""Host memory of a node: by hand, against frameworks' own estimates, and what it keeps out of answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.campaign.run import checkpoint_sizes
from planner.cli import app
from planner.cost.host_memory import always_on_host, host_need, host_use, on_host
from planner.cost.model import CostModel
from planner.cost.params import model_parameters
from planner.report.words import line_of, text_of, texts
from planner.solve.pareto import pareto_front
from planner.solve.search import search
from planner.solve.splits.split import cost_of_split, solve_split
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from planner.spec.config import OFFLOAD_ACTIVATIONS, OFFLOAD_OPTIMIZER, ConfigTable, ParallelConfig
from planner.spec.planfile import Verdict
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from tests.problems import costs, dense_model, problem
from tests.solve.splits.test_split import layouts

REPOSITORY = Path(__file__).parents[2]
SUBJECT = problem(dense_model(8), "2x8 h100 400G-ib", global_batch=64)
CONFIG = ParallelConfig(tp=2, pp=2, dp=4, sp=1, zero=1, micro_batch=4, num_microbatches=4)


def used(model: CostModel, config: ParallelConfig) -> float:
    return float(model.evaluate(ConfigTable.of([config])).device_memory[0])


def with_room(subject: Problem, room: float | None) -> Problem:
    return replace(subject, cluster=replace(subject.cluster, host_memory=room))


def test_states_moved_to_the_host_take_their_gradient_along() -> None:
    model = costs(SUBJECT)
    assert host_need(model, CONFIG).states[0] == 0
    moved = replace(CONFIG, offload=OFFLOAD_OPTIMIZER)
    # master and moments, 12 bytes, leave the device; a gradient of 4 joins them on the host; a node has 8 ranks
    assert host_need(model, moved).states[0] == pytest.approx(
        8 * 16 / 12 * (used(model, CONFIG) - used(model, moved))
    )


@pytest.mark.parametrize(
    ("stack", "zero", "offload", "each"),
    # DeepSpeed's own estimates: 16 bytes a parameter on the host, 18 with the 16-bit parameters
    [("deepspeed-2025", 2, 1, 16.0), ("deepspeed-2025", 3, 1, 16.0), ("deepspeed-2025", 3, 3, 18.0)],
)
def test_bytes_of_a_parameter_on_the_host(stack: str, zero: int, offload: int, each: float) -> None:
    spec = dense_model(8)
    subject = problem(spec, "1x8 h100", global_batch=64, stack=stack)
    config = ParallelConfig(dp=8, zero=zero, num_microbatches=8, offload=offload)
    need = host_need(costs(subject), config)
    assert need.states[0] == pytest.approx(each * model_parameters(spec).total, rel=1e-6)
    # what lies on the host is written to storage from there: the checkpoint copies the rest of the 14 bytes
    rest = 14 - (each - 4)
    assert need.staging[0] == pytest.approx(max(rest, 0) * model_parameters(spec).total, rel=1e-6)


@pytest.mark.parametrize(
    "precision", [Precision.BF16, Precision.FP8, Precision.FP8_CS, Precision.FP8_MX, Precision.NVFP4]
)
def test_narrow_weights_that_turn_wide_do_not_shrink_what_the_host_holds(precision: Precision) -> None:
    """Without the optimizer on the device all recipes but delayed scaling keep 16-bit weights there: 16 bytes a
    parameter on the host, masters, moments and gradients, in every recipe."""
    spec = dense_model(8)
    subject = problem(spec, "1x8 b200", global_batch=64, precision=precision)
    config = ParallelConfig(dp=8, zero=1, num_microbatches=8, offload=OFFLOAD_OPTIMIZER)
    need = host_need(costs(subject), config)
    assert need.states[0] == pytest.approx(16.0 * model_parameters(spec).total, rel=1e-6)


def test_activations_on_the_host_are_those_that_leave_the_device() -> None:
    model, table = costs(SUBJECT), ConfigTable.of([CONFIG, replace(CONFIG, offload=OFFLOAD_ACTIVATIONS)])
    detail = model.evaluate(table, keep_terms=True).detail
    assert detail is not None
    kept = detail.memory["backward"]["activations"]
    need = host_use(model, table)
    assert need.activations[0] == 0
    assert need.activations[1] == pytest.approx(8 * (kept[0] - kept[1]).max())
    assert (need.states == 0).all()
    assert need.staging == pytest.approx(np.full(2, checkpoint_sizes(SUBJECT)[0] / 2))


def test_hosts_that_the_cluster_does_not_describe_hold_everything() -> None:
    asked = ConfigTable.of([replace(CONFIG, offload=bits) for bits in (0, 1, 4, 5)])
    assert SUBJECT.cluster.host_memory is None
    assert on_host(costs(SUBJECT), asked).all()
    assert always_on_host(costs(SUBJECT), asked)
    need = host_use(costs(SUBJECT), asked).total
    model = costs(with_room(SUBJECT, float(np.sort(need)[1])))
    assert on_host(model, asked).tolist() == (need <= np.sort(need)[1]).tolist()
    assert not always_on_host(model, asked)


def test_a_search_takes_no_configuration_that_the_hosts_cannot_hold() -> None:
    pins = {"offload": (0, OFFLOAD_OPTIMIZER), "tp": (1,), "pp": (1, 2), "cp": (1,), "zero": (1,)}
    free = costs(SUBJECT)
    space = enumerate_configs(SUBJECT, RULES, pins)
    table = space.table()
    cost, need = free.evaluate(table), host_use(free, table).total
    limit = float(np.quantile(cost.device_memory, 0.1))  # little but what has its states on the host fits
    for room in (np.inf, float(np.median(need)), float(need.min()) * 0.99):
        model = costs(with_room(SUBJECT, room))
        fits = (cost.device_memory <= limit) & (need <= room)
        best = search(model, space, limit, 1).best
        assert len(best) == bool(fits.any())
        if fits.any():
            assert model.least_step_time(best)[0] == free.least_step_time(table)[fits].min()
        front = pareto_front(model, space, limit)
        assert on_host(model, front.table).all()
    assert search(costs(with_room(SUBJECT, 1.0)), space, limit, 1).too_large > 0


def test_an_answer_names_the_host_that_is_too_small(tmp_path: Path) -> None:
    """Llama-3.1-8B with AdamW's states on the host: 16 bytes a parameter, 120 GiB, and a copy of 2 to store."""
    spec = (
        (REPOSITORY / "cluster_specs/dgx-h100.yaml")
        .read_text()
        .replace("host_memory: 2 TiB", "host_memory: {}")
    )
    given = {"zero": (3,), "tp": (1,), "pp": (1,), "micro_batch": (1,), "offload": (OFFLOAD_OPTIMIZER,)}
    for room, fits in (("128 GiB", False), ("160 GiB", True)):
        path = tmp_path / "cluster.yaml"
        path.write_text(spec.replace("{}", room))
        request = Request(
            "llama-3.1-8b",
            str(path),
            8,
            seq_len=4096,
            global_batch="32",
            stack="deepspeed-2025",
            set=given,
        )
        made = make_estimate(request)
        memory = made.choices[0].memory
        assert memory.peak < memory.limit
        assert sum(memory.host.values()) == pytest.approx(18 * 8.03e9, rel=0.01)
        assert (made.verdict is Verdict.FOUND) is fits
        assert ("host memory of a node" in text_of(made.headline[0])) is not fits
        assert any("a node's host must hold states 120 GiB" in said for said in texts(made.choices[0].why))
        found = make_plan(request)
        assert bool(found.choices) is fits
        if not fits:
            assert made.nearest is not None
            assert not made.nearest.memory.host_short
            assert "host memory by" in line_of(found.smallest_change)
            assert found.search.certificate is not None
            assert found.search.certificate.by_memory == found.search.legal


def test_an_answer_says_where_hosts_are_not_known() -> None:
    given = {"zero": (3,), "offload": (OFFLOAD_OPTIMIZER,)}
    request = Request(
        "llama-3.1-8b", "1x8 h100", 8, seq_len=4096, global_batch="32", stack="deepspeed-2025", set=given
    )
    assert any("not checked" in said for said in texts(make_estimate(request).choices[0].why))
    plain = make_estimate(replace(request, set={"zero": (3,)}))
    assert not any("host" in said for said in texts(plain.choices[0].why))


def test_files_whose_states_the_hosts_cannot_hold_are_told_so(tmp_path: Path) -> None:
    spec = (REPOSITORY / "cluster_specs/dgx-h100.yaml").read_text()
    cluster, files = tmp_path / "cluster.yaml", tmp_path / "ds.json"
    cluster.write_text(spec.replace("host_memory: 2 TiB", "host_memory: 128 GiB"))
    files.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, '
        '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'
    )
    words = [
        "check",
        str(files),
        "--model",
        "llama-3.1-8b",
        "--cluster",
        str(cluster),
        "--gpus",
        "8",
        "--seq-len",
        "4096",
    ]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 1
    assert "does not fit" in told.stdout
    assert "a node's host needs" in told.stdout
    assert "more than its 128 GiB" in told.stdout


def test_a_solved_split_is_one_that_the_hosts_can_hold() -> None:
    subject = problem(dense_model(9, vocab=65000), "1x8 h100", global_batch=64)
    config = ParallelConfig(pp=4, dp=2, zero=1, num_microbatches=32, offload=OFFLOAD_OPTIMIZER)
    free = costs(subject)
    fastest = solve_split(free, config, np.inf)
    assert fastest.proven
    room = 0.999 * float(host_need(free.with_split(fastest.chunks), config).total[0])
    held = [
        float(cost_of_split(free, config, split).step_time[0])
        for split in layouts(9, 4)
        if host_need(free.with_split(split), config).total[0] <= room
    ]
    found = solve_split(costs(with_room(subject, room)), config, np.inf)
    assert found.step_time == min(held) > fastest.step_time
    assert host_need(free.with_split(found.chunks), config).total[0] <= room
    assert fastest.step_time * (1 - 1e-4) <= found.bound <= found.step_time


def test_a_checkpoint_that_training_waits_for_is_not_copied_to_the_host(tmp_path: Path) -> None:
    """Llama-3.1-8B with its states, 14 bytes a parameter, on one node of 64 GiB."""
    spec, path, plan = (
        REPOSITORY / "cluster_specs/dgx-h100.yaml",
        tmp_path / "cluster.yaml",
        tmp_path / "plan.json",
    )
    path.write_text(spec.read_text().replace("host_memory: 2 TiB", "host_memory: 64 GiB"))
    request = Request("llama-3.1-8b", str(path), 8, seq_len=4096, global_batch="32", set={"tp": (8,)})
    waits = replace(request, assume=("checkpoint_writing=blocking",))
    assert make_plan(request).verdict is Verdict.NOTHING_FITS
    assert make_plan(waits).verdict is Verdict.FOUND
    assert make_estimate(request).choices[0].memory.host["checkpoint copy"] == pytest.approx(
        14 * 8.03e9, rel=0.01
    )
    assert any(
        "--assume checkpoint_writing=blocking" in said
        for said in texts(make_estimate(request).choices[0].why)
    )
    made = make_estimate(waits)
    assert not made.choices[0].memory.host
    named = replace(waits, cluster="dgx-h100")
    plan.write_text(make_estimate(named).model_dump_json())

    def told(*words: str) -> str:
        return CliRunner().invoke(app, ["estimate", *words, "--memory"]).stdout

    assert "a checkpoint's copy" not in " ".join(told(str(plan)).split())  # as the plan was asked
    assert "a checkpoint's copy" not in " ".join(told(str(plan), "--assume", "pue=1.1").split())
    assert "a checkpoint's copy" in " ".join(
        told(str(plan), "--assume", "checkpoint_writing=asynchronous").split()
    )
    short = told("llama-3.1-8b", str(path), "--gpus", "8", "--set", "tp=8")
    assert "does not fit" in short.splitlines()[0]
    assert "host memory  105 GiB of 64 GiB" in short
