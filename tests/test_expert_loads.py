"""Do uneven expert loads reach time and memory, and are bad ones refused in words?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.answer.routing import BusiestRank
from planner.ask.request import Request, cost_model, resolve
from planner.cli.check import check_files
from planner.cli.estimate import estimated
from planner.cli.explain import explain_plan
from planner.cost.routing import placed_by_index, trained_balance, zipf_loads
from planner.errors import InputError
from planner.frameworks import framework
from planner.report.words import texts
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Job
from planner.spec.load_plan import save_plan
from tests.frameworks.launches import launch, problem

NAMED = {"tp": (1,), "pp": (2,), "ep": (8,), "micro_batch": (1,)}


def request(**changes: object) -> Request:
    return Request("Qwen/Qwen3-30B-A3B", "2x8 h100 400G-ib", seq_len=4096, set=NAMED, **changes)  # type: ignore[arg-type]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_loads_falling_by_index_leave_the_first_rank_2_96_times_the_mean() -> None:
    """16 of 128 experts a rank, loads 1, 2^-0.6, 3^-0.6, ...: the first 16 have 37 % of all tokens."""
    assert placed_by_index(zipf_loads(128, 0.6, 8), 8) == pytest.approx(2.96, abs=0.005)
    told = resolve(request(expert_loads="zipf:0.6"))[0].job.imbalance(np.array([1.0, 8.0, 128.0]))
    assert told[:2] == pytest.approx([1.0, 2.96], abs=0.005)
    assert told[2] == pytest.approx(128 / sum(i**-0.6 for i in range(1, 129)))


def test_the_busiest_rank_sets_time_and_memory() -> None:
    """Time and memory of a job whose busiest rank has 2.96 times the mean, in rows of experts and beyond."""
    uneven, even = (make_estimate(request(expert_loads=one)) for one in ("zipf:0.6", "balanced"))
    told, said = uneven.choices[0], next(one for one in uneven.choices[0].why if one.code == "busiest_rank")
    assert said.values["imbalance"] == pytest.approx(2.96, abs=0.005)
    assert said.values["balanced_time"] == pytest.approx(even.choices[0].step_time)
    assert said.values["balanced_peak"] == pytest.approx(even.choices[0].memory.peak)
    assert said.values["placed"] == pytest.approx(1.0, abs=0.01)
    assert told.step_time > 1.2 * even.choices[0].step_time
    assert told.memory.terms["weights"] == even.choices[0].memory.terms["weights"]
    asked = resolve(request(expert_loads="zipf:0.6"))[0]
    table = ConfigTable.of([uneven.choices[0].config.parallel()])
    layer = asked.model.layers[0]
    busy = cost_model(asked).layers.shape(table, layer)
    mean = cost_model(replace(asked, job=replace(asked.job, expert_imbalance=1.0))).layers.shape(table, layer)
    assert layer.moe is not None
    for own, of_mean in (
        (busy.routed_tokens, mean.routed_tokens),
        (busy.rows_for_experts(8.0, 0.0), mean.rows_for_experts(8.0, 0.0)),
    ):
        assert own / of_mean == pytest.approx(2.96, abs=0.005)


def test_balanced_experts_are_costed_under_the_layout_of_the_choice() -> None:
    """Figures at a choice's own imbalance are its own, of a plan whose layers were dealt anew."""
    held = {**NAMED, "vpp": (4,), "cp": (1,), "zero": (1,), "recompute": (2,)}
    asked = replace(request(expert_loads="zipf:0.6"), set=held, without=("all",), top=1)
    best = make_plan(asked).choices[0]
    problem, assumed = resolve(asked)
    busiest = BusiestRank(problem, assumed)
    said = busiest.noted(best).why[-1].values
    assert best.layout
    assert busiest.figures(best, said["imbalance"]) == (best.step_time, best.memory.peak)  # type: ignore[arg-type]
    assert busiest.figures(best, 1.0) == (said["balanced_time"], said["balanced_peak"])


def test_a_plan_file_keeps_the_loads_that_were_stated(tmp_path: Path) -> None:
    loads = tmp_path / "loads.csv"
    found = make_estimate(request(expert_loads=write(loads, " ".join(str(200 - i) for i in range(128)))))
    loads.unlink()
    save_plan(found, tmp_path / "plan.json")
    again, _, said = estimated(Request(str(tmp_path / "plan.json"), ""), None, None)
    told = next(one for one in again.choices[0].why if one.code == "busiest_rank")
    assert told in found.choices[0].why
    assert told.values["placed"] == pytest.approx(1.0, abs=0.01)
    stated = next(one for one in found.assumptions if one.code == "expert_loads")
    assert stated in said
    explained = explain_plan(found).facts["routing"]
    assert [one["code"] for one in explained] == ["expert_loads", "busiest_rank"]


def test_replicas_are_placed_as_evenly_as_can_be() -> None:
    by_index, moved, replicated = (
        make_estimate(request(expert_loads="zipf:1.2", expert_replicas=count)).choices[0]
        for count in (None, 128, 256)
    )
    assert by_index.step_time > moved.step_time > replicated.step_time
    assert moved.memory.terms["weights"] == by_index.memory.terms["weights"]
    assert replicated.memory.terms["weights"] > 1.3 * by_index.memory.terms["weights"]


def test_equal_loads_change_nothing(tmp_path: Path) -> None:
    loads = write(tmp_path / "loads.txt", "3 " * 128)
    times = [
        make_estimate(request(expert_loads=one)).choices[0].step_time for one in (loads, "zipf:0", "Balanced")
    ]
    assert times[1:] == pytest.approx(times[:-1])


@given(st.integers(1, 7), st.integers(0, 7), st.floats(0, 1e3), st.floats(0, 1))
def test_the_busiest_rank_is_between_the_mean_and_all_tokens(
    log: int, less: int, exponent: float, part: float
) -> None:
    """No expert gets more than every token, of which each goes to `choices` different ones."""
    experts, ranks = 2**log, 2 ** max(log - less, 0)
    choices = 1 + part * (experts - 1)
    loads = zipf_loads(experts, exponent, choices)
    assert loads.sum() == pytest.approx(1)
    assert loads[0] == pytest.approx(max(loads))
    assert loads[0] * choices <= 1 + 1e-9
    assert 1 <= placed_by_index(loads, ranks) + 1e-9 <= ranks + 2e-9
    assert 1 <= trained_balance(experts, ranks) <= trained_balance(experts, experts)


def test_what_training_leaves_is_as_measured() -> None:
    """Of 8 experts 1.084 (16 layers that log theirs), of 64 the mean of 1.72 and 1.52 (arXiv 2408.15664)."""
    assert trained_balance(8, 8) == pytest.approx(1.084)
    assert trained_balance(64, 64) == pytest.approx(1.62)
    assert 1.15 < trained_balance(128, 8) < 1 / (1 - 0.186)  # arXiv 2604.19654: devices wait 18.6 %
    assert 1.30 < trained_balance(128, 64) < 4.01  # arXiv 2606.04101


@pytest.mark.parametrize(
    ("model", "stack", "said"),
    [
        ("Qwen/Qwen3-30B-A3B", "megatron-2026", "loads_unstated"),
        ("Qwen/Qwen3-30B-A3B", "torchtitan-2026", "loads_balanced_by_bias"),
        ("deepseek-v3", "megatron-2026", "loads_balanced_by_bias"),
        ("minimax-m2.5", "megatron-2026", "loads_balanced_by_bias"),
    ],
)
def test_unstated_loads_are_as_the_router_is_trained(model: str, stack: str, said: str) -> None:
    job, assumed = resolve(Request(model, "2x8 h100 400G-ib", seq_len=4096, stack=stack))
    assert said in {one.code for one in assumed}
    factor = float(job.job.imbalance(np.array([8.0]))[0])
    assert factor == (pytest.approx(1.157, abs=0.001) if said == "loads_unstated" else 1.0)


def test_files_that_force_balance_are_costed_so() -> None:
    meant, stack = framework("megatron"), problem("qwen3-30b-a3b", "megatron-2026", gpus=64)
    config = ParallelConfig(dp=64, ep=8, micro_batch=1, num_microbatches=4, zero=1)
    text = meant.render(launch("qwen3-30b-a3b", config, stack), meant.versions[-1])["launch.sh"]
    forced = text.replace("--moe-grouped-gemm", "--moe-grouped-gemm --moe-router-force-load-balancing")
    even, usual = (
        check_files({"launch.sh": one}, Request("", "8x8 h100 400G-ib", 64)) for one in (forced, text)
    )
    assert "expert loads not stated" in str(usual["notes"])
    assert "expert loads" not in str(even["notes"])
    assert even["routing"] == []
    (told,) = usual["routing"]
    assert told["values"]["balanced_time"] == pytest.approx(even["step_time_s"])
    assert even["step_time_s"] < usual["step_time_s"]


@pytest.mark.parametrize(
    "text", ["1 2 3", "[1, x]", "", "nan " * 128, "-1 " * 128, "0 " * 128, "1e308 " * 128, "inf " * 128]
)
def test_a_file_that_holds_no_loads_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="loads"):
        resolve(request(expert_loads=write(tmp_path / "loads.csv", text)))


def test_loads_that_no_router_can_leave_are_refused_or_capped(tmp_path: Path) -> None:
    """A token goes to 8 of 128 experts: none gets more than an eighth of what all get, where zipf:1 would give 18 %."""
    with pytest.raises(InputError, match=r"at most 0.125 of their sum each: a token goes to 8 experts"):
        resolve(request(expert_loads=write(tmp_path / "loads.csv", "20 " + "1 " * 127)))
    problem, assumed = resolve(request(expert_loads="zipf:1"))
    assert problem.job.imbalance(np.array([128.0]))[0] == pytest.approx(128 / 8)
    assert any("at most 12.5% each, as a token goes to 8" in text for text in texts(assumed))


def test_loads_of_a_dense_model_are_refused_or_said_to_be_unused() -> None:
    dense = replace(request(), model="llama-3.1-8b", set={})
    for loads in ("zipf:1", "loads.csv"):
        with pytest.raises(InputError, match="needs a model with experts"):
            resolve(replace(dense, expert_loads=loads))
    assert "loads_unused" in {one.code for one in resolve(replace(dense, expert_loads="balanced"))[1]}
    with pytest.raises(InputError, match="balanced, zipf:A or a file"):
        resolve(replace(dense, expert_loads=""))


@pytest.mark.parametrize(
    "more",
    [{"expert_loads": "zipf:x"}, {"expert_loads": "zipf:-1"}, {"expert_loads": "zipf:nan"},
     {"expert_loads": "zipf:inf"}, {"expert_loads": "absent.csv"}, {"expert_replicas": 256},
     {"expert_loads": "zipf:1", "expert_replicas": 64}],
)  # fmt: skip
def test_bad_options_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(InputError):
        resolve(request(**more))
    with pytest.raises(InputError, match="busiest"):
        Job(4096, 8, expert_imbalance=0.5)


@pytest.mark.parametrize("replicas", [0, 3, 127, 8 * 128 + 1, 10**12])
def test_too_few_or_too_many_replicas_are_named_as_given(replicas: int) -> None:
    with pytest.raises(InputError, match=r"from 128, one of every expert, to 1,024") as refused:
        resolve(request(expert_loads="zipf:1.2", expert_replicas=replicas))
    assert refused.value.given == str(replicas)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="smaller than 10 MB"):
        resolve(request(expert_loads=write(tmp_path / "loads.csv", "1 " * 6_000_000)))


def test_a_factor_is_at_least_the_mean() -> None:
    assert Job(4096, 8, expert_imbalance=1.3).imbalance(np.array([1.0, 2.0])).tolist() == [1.0, 1.3]
