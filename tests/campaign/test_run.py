"""The whole run: published campaigns, what each assumption moves, and bad settings."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest

from planner.campaign.run import checkpoint_sizes, device_price, run_assumptions, run_facts
from planner.catalog.load_campaign import load_assumptions
from planner.catalog.load_stacks import DEFAULT_STACK, load_stack
from planner.errors import InputError, UnknownNameError
from planner.report.words import texts
from planner.spec.assumptions import Assumptions
from planner.spec.findings import Finding
from planner.spec.job import Job
from planner.spec.load_model import load_model
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.planfile import Run
from planner.spec.rule import Problem


def problem(
    model: str = "llama-3.1-405b", cluster: str = "h100-sxm-roce", gpus: int = 16384, **job: Any
) -> Problem:
    settings: dict[str, Any] = {"seq_len": 8192, "global_batch": 2048, "tokens": 15.6e12} | job
    return Problem(load_model(model), load_cluster(cluster, gpus), Job(**settings), load_stack(DEFAULT_STACK))


def run(step_time: float, given: Problem, *settings: str) -> Run:
    facts = run_facts(step_time, given, load_assumptions(settings))
    assert facts is not None
    return facts


def llama_step() -> float:
    """Step time that the paper's 400 TFLOP/s per GPU mean (arXiv 2407.21783, table 4: 8,192 tokens, 16M)."""
    per_token = 6 * 405e9 + 12 * 126 * 16384 * 8192
    return per_token * 2048 * 8192 / (400e12 * 16384)


def test_llama_3_goodput_stops_and_hours() -> None:
    facts = run(llama_step(), problem())
    assert facts.goodput is not None
    assert facts.effective_days is not None
    assert facts.held_gpu_hours is not None
    assert facts.time_between_stops is not None
    # published: more than 90 % effective; 419 unexpected stops in 54 days
    assert 0.90 < facts.goodput < 0.95
    assert 54 * 86400 / facts.time_between_stops == pytest.approx(419, rel=0.04)
    assert facts.time_between_stops_low is not None
    assert facts.time_between_stops_high is not None
    assert facts.time_between_stops_low < facts.time_between_stops < facts.time_between_stops_high
    # published: 30.84M H100-hours, at 380 to 430 TFLOP/s: within 5 % at 400
    assert facts.held_gpu_hours == pytest.approx(30.84e6, rel=0.05)
    low, high = facts.held_gpu_hours * 400 / 430, facts.held_gpu_hours * 400 / 380
    assert low < 30.84e6 < high
    assert facts.spare_nodes_needed == 13


def test_deepseek_v3_hours_per_trillion_tokens() -> None:
    # 180K H800-hours and 3.7 days per trillion tokens on 2,048 (arXiv 2412.19437, section 1); batch 15,360 x 4,096
    # of 14.8T, whose critical batch is far beyond that of a run of 1T
    more = {"seq_len": 4096, "global_batch": 15360, "tokens": 1e12, "critical_batch": 2e8}
    given = problem("deepseek-v3", "deepseek-h800", 2048, **more)
    step = 180e3 * 3600 / 2048 / (1e12 / (15360 * 4096))
    facts = run(step, given)
    assert facts.gpu_hours == pytest.approx(180e3, rel=1e-3)
    assert facts.days == pytest.approx(3.7, abs=0.05)
    whole = run(step, replace(given, job=replace(given.job, tokens=14.8e12, critical_batch=None)))
    assert whole.tokens == 14.8e12
    assert whole.effective_days is not None
    assert 1.0 < whole.effective_days / whole.days < 1.05
    # 2,664K hours at 2 $: 5.328M $ (table 1); with stops a few percent more
    assert whole.gpu_hours == pytest.approx(2664e3, rel=1e-3)
    assert whole.price_per_device_hour == 2.0
    assert whole.cost == pytest.approx(5.328e6, rel=0.05)


def test_no_tokens_no_run() -> None:
    assert run_facts(5.0, problem(tokens=None), load_assumptions()) is None


def test_checkpoint_of_the_405b() -> None:
    full, weights = checkpoint_sizes(problem())
    assert full == pytest.approx(5.68e12, rel=0.01)
    assert full / weights == pytest.approx(7.0)
    assert checkpoint_sizes(problem(optimizer="sgd"))[0] == pytest.approx(6 / 14 * full)


def test_more_failures_slower_storage_and_blocking_lose_more() -> None:
    given = problem()
    default = run(6.0, given).goodput or 0.0
    for setting in (
        "hardware_failures=0.03 /day",
        "software_stops=0.2 /day",
        "checkpoint_writing=blocking",
        "restart_time=1 h",
        "pricing=spot",
        "checkpoint_interval=2 h",
        "checkpoint_interval=10 s",
        "checkpoint_bandwidth_limit=1 GB/s",
    ):
        assert (run(6.0, given, setting).goodput or 0.0) < default, setting


def test_a_job_that_cannot_progress_is_said_so_and_finite() -> None:
    facts = run(6.0, problem(), "hardware_failures=100 /day")
    assert facts.goodput == 1e-6
    assert facts.cost is not None


def test_spares_are_paid_for() -> None:
    given = problem()
    plain, more = run(6.0, given), run(6.0, given, "spare_nodes=256")
    assert (more.held_gpu_hours or 0) == pytest.approx((plain.held_gpu_hours or 0) * (1 + 256 / 2048))
    assert run(6.0, given, "spare_nodes=enough").spare_nodes == 13


def test_prices() -> None:
    stated = load_cluster("aws-p5", 64)
    listed = load_cluster("dgx-h100", 64)
    assert device_price(stated, load_assumptions()) == (6.88, "stated by aws-p5")
    assert device_price(listed, load_assumptions())[0] == 10.0
    assert device_price(listed, load_assumptions(["price=3 $/h"])) == (3.0, "as given")
    assert device_price(stated, load_assumptions(["price=3 $/h", "pricing=spot"]))[0] == pytest.approx(1.2)
    assert device_price(stated, load_assumptions(["pricing=reserved"]))[0] == pytest.approx(0.6 * 6.88)
    both = replace(stated, reserved_price_per_device_hour=4.0, spot_price_per_device_hour=2.0)
    assert device_price(both, load_assumptions(["pricing=reserved"])) == (
        4.0,
        "reserved price stated by aws-p5",
    )
    assert device_price(both, load_assumptions(["pricing=spot"]))[0] == 2.0
    assert device_price(both, load_assumptions(["pricing=spot", "price=3 $/h"]))[0] == pytest.approx(1.2)
    assert device_price(both, load_assumptions())[0] == 6.88
    own, source = device_price(stated, load_assumptions(["pricing=own"]))
    assert source == "owned hardware"
    assert own == pytest.approx(2.06, abs=0.05)
    assert device_price(load_cluster("8 rtx4090"), load_assumptions()) == (None, "")


def test_power() -> None:
    measured = run(6.0, problem(), "power=700 W", "pue=1")
    assert measured.energy == pytest.approx((measured.held_gpu_hours or 0) * 700 * 3600)
    node = run(6.0, problem(cluster="dgx-h100", gpus=16384))
    assert node.power_per_device == pytest.approx(0.76 * 10200 / 8)


def test_a_node_stops_as_a_node_does() -> None:
    # Meta RSC-1: its jobs of 8 GPUs stop every 47.7 days, by hardware alone every 154 (arXiv 2410.21680)
    given = problem("llama-3.1-8b", "dgx-h100", 8, global_batch=512, tokens=1e12)
    facts = run(49.5, given)
    assert 150 * 86400 < (facts.time_between_stops or 0.0) < 250 * 86400
    assert 3600 < (facts.checkpoint_interval or 0.0) < 6 * 3600
    assert (facts.goodput or 0.0) > 0.995
    text = " ".join(texts(run_assumptions(given, load_assumptions())))
    assert "Llama 3" in text
    assert "RSC-1" in text
    settled = run(49.5, given, "hardware_failures=0.003 /day", "software_stops=0.0063 /day")
    assert settled.time_between_stops_low == settled.time_between_stops == facts.time_between_stops


def test_a_batch_beyond_the_critical_one_takes_more_tokens() -> None:
    # llama-3.1-8b on 1T tokens: 33.8M to 70.1M by the fits, counted with 48.7M; 4,096 x 8,192 tokens a step are 33.6M
    sizes = {1: 512, 8: 4096, 16: 8192, 32: 16384}
    runs = {}
    for times, batch in sizes.items():
        given = problem("llama-3.1-8b", "dgx-h100", 64, global_batch=batch, tokens=1e12)
        runs[times] = run(5.0 * times, given)
    said = runs[1].batch
    assert said is not None
    assert said.code == "critical_batch"
    assert said.values["counted"] == pytest.approx((33.77e6 * 70.1e6) ** 0.5, rel=0.01)
    assert runs[1].tokens == runs[8].tokens == 1e12, "as stated, at and below it"
    assert runs[16].tokens == pytest.approx(1e12 * (1 + 67.1e6 / 48.7e6) / 2, rel=0.01)
    assert runs[16].tokens_least == pytest.approx(1e12)  # below the largest that a fit gives
    assert runs[16].tokens_most == pytest.approx(1e12 * (1 + 67.1e6 / 33.8e6) / 2, rel=0.01)
    for low, high in pairwise(sorted(sizes)):
        assert (runs[high].tokens or 0.0) >= (runs[low].tokens or 0.0)
        assert runs[high].steps <= runs[low].steps
        assert runs[high].days >= runs[low].days * 0.999  # as many tokens a second
    assert "lies beyond it" in texts([said_of(runs[32])])[0]
    assert "lies below it: no tokens added" in texts([said])[0]


def said_of(facts: Run) -> Finding:
    assert facts.batch is not None
    return facts.batch


def test_what_rests_on_figures_from_memory_says_so() -> None:
    given, shipped = (
        problem("llama-3.1-8b", "dgx-h100", 64, global_batch=8192, tokens=1e12),
        load_assumptions(),
    )
    sure = replace(shipped, batch_fits=tuple(replace(fit, unverified=False) for fit in shipped.batch_fits))
    for held, named in ((shipped, ["Bergsma 2025", "Step Law"]), (sure, [])):
        facts = run_facts(5.0, given, held)
        assert facts is not None
        assert said_of(facts).values.get("unverified", []) == named
        assert all(name in texts([said_of(facts)])[0].split("from memory:")[-1] for name in named)
        (count,) = (one.values["number"] for one in run_assumptions(given, held)
                    if one.code == "assumptions_unverified")  # fmt: skip
        assert count == sum(record.unverified for record in held.records) + len(named)


def test_the_critical_batch_as_given_or_not_known() -> None:
    job = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 64, "tokens": 1e12}
    doubled = run(5.0, problem(**job, global_batch=2048, critical_batch=2048 * 8192 / 2))
    assert doubled.tokens == doubled.tokens_least == doubled.tokens_most == pytest.approx(1.5e12)
    for more, why in (
        ({"lora_rank": 16}, "adapters"),
        ({"tokens": 1e9}, "fine_tuning"),
    ):
        facts = run(5.0, problem(**{**job, "global_batch": 2048, **more}))
        assert facts.tokens == facts.tokens_most == {**job, **more}["tokens"]
        assert said_of(facts).values["why"] == why
        assert "--critical-batch" in texts([said_of(facts)])[0]
    plain = problem("llama-3.1-8b", "dgx-h100", 64, tokens=1e12)
    silent = run_facts(5.0, plain, replace(load_assumptions(), batch_fits=()))
    assert silent is not None
    assert said_of(silent).values["why"] == "range"


def test_a_schedule_of_batches_is_costed() -> None:
    job = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 64, "tokens": 1e12, "global_batch": 512}
    given = problem(**job, batch_schedule=((64, 1e11), (256, 2e11)))
    facts = run_facts(5.0, given, load_assumptions(), (1.0, 3.0))
    plain = run(5.0, problem(**job))
    assert facts is not None
    steps = [1e11 / (64 * 8192), 1e11 / (256 * 8192), 8e11 / (512 * 8192)]
    assert facts.steps == pytest.approx(sum(steps), rel=1e-4)
    assert facts.days * 86400 == pytest.approx(steps[0] * 1.0 + steps[1] * 3.0 + steps[2] * 5.0, rel=1e-4)
    longer = said_of(facts).values["schedule_longer"]
    assert longer == pytest.approx((facts.days - plain.days) * 86400, rel=1e-3)
    assert "524k up to 100B, 2.1M up to 200B" in texts([said_of(facts)])[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_schedule": ((64, 2e11), (256, 1e11))},
        {"batch_schedule": ((0, 1e11),)},
        {"batch_schedule": ((64, 2e12),)},
        {"critical_batch": 0.0},
    ],
)
def test_batches_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="batch"):
        problem("llama-3.1-8b", "dgx-h100", 64, tokens=1e12, **wrong)


def test_a_list_price_is_called_one_and_stands_beside_the_market() -> None:
    facts = run(6.0, problem(cluster="dgx-h100"))
    assert facts.list_price
    assert (facts.market_price_low, facts.market_price_high) == (1.99, 10.0)
    for stated in (run(6.0, problem(cluster="dgx-h100"), "price=3 $/h"), run(6.0, problem(cluster="aws-p5"))):
        assert not stated.list_price
        assert stated.market_price_low is None


def test_every_value_has_a_record_and_a_source() -> None:
    shipped = load_assumptions()
    keys = {field.name for field in fields(Assumptions)} - {
        "records",
        "list_prices",
        "market_prices",
        "purchase_prices",
        "batch_fits",
    }
    assert keys == {record.key for record in shipped.records}
    for record in shipped.records:
        assert record.source
        assert record.meaning
        low, high = shipped.ends(record.key)
        if record.ends:
            assert low <= getattr(shipped, record.key) <= high
        assert record.unverified or "no source" not in record.source or "convention" in record.source


def test_settings_are_echoed() -> None:
    changed = load_assumptions(["pue=1.4", "pue = 1.3", "detection-time=90 s"])
    assert changed.pue == 1.3
    assert changed.detection_time == 90.0
    assert changed.given == ("detection_time 90 s", "pue 1.3")
    assert any(
        "given: detection_time 90 s, pue 1.3" in line for line in texts(run_assumptions(problem(), changed))
    )
    assert changed.record("pue").source == "given by the user"
    assert not load_assumptions().given


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("pu=1.2", "did you mean: pue"),
        ("pue", "KEY=VALUE"),
        ("pue=", "KEY=VALUE"),
        ("pue=0.9", "from 1 to 5"),
        ("pue=nan", "pue must be"),
        ("pue=much", "without a unit"),
        ("load=0.7", "write it like '75 %'"),
        ("load=700 %", "1 % to 100 %"),
        ("detection_time=5", "no unit"),
        ("detection_time=5 GB", "unit of time"),
        ("price=-2 $/h", "0 or more"),
        ("pricing=free", "one of: on-demand"),
        ("checkpoint_interval=0 s", "from 1"),
    ],
)
def test_bad_settings(setting: str, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", "\\(")):
        load_assumptions([setting])


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="hardware_failures"):
        load_assumptions(["hardware_failure=1 /day"])
