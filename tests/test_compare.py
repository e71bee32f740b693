"""Comparing clusters: order, rows without a plan, scoped assumptions, the verb, and bad input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from planner.answer.compare import Comparison, Objective, compare_clusters
from planner.answer.outcome import hold_batch, limits, run_days
from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.cli import app
from planner.errors import InputError, UnknownNameError
from planner.report.comparison import comparison_document, comparison_facts
from planner.report.text import render
from planner.report.words import dumped, line_of, text_of

REQUEST = Request("llama-3.2-1b", "", seq_len=4096, global_batch="64", tokens=1e11, set={"pp": (1, 2)})
CLUSTERS = ("dgx-h100", "dgx-a100", "l40s")


@pytest.fixture(scope="module")
def three() -> Comparison:
    return compare_clusters(REQUEST, CLUSTERS, (16,), "days")


def test_each_row_is_that_clusters_own_plan(three: Comparison) -> None:
    for standing in three.standings:
        alone = make_plan(replace(REQUEST, cluster=standing.cluster, gpus=16))
        assert standing.best is not None
        assert standing.best.config == alone.choices[0].config
        assert standing.best.step_time == alone.choices[0].step_time


@pytest.mark.parametrize("objective", list(Objective))
def test_rows_are_in_the_order_of_the_objective(objective: Objective) -> None:
    found = compare_clusters(REQUEST, CLUSTERS, (16,), objective)
    values = [standing.value(objective) for standing in found.standings]
    known = [value for value in values if value is not None]
    assert known == sorted(known)
    assert values[: len(known)] == known, "clusters without the value come last"


def test_no_price_is_last_by_cost_and_said(three: Comparison) -> None:
    found = compare_clusters(REQUEST, CLUSTERS, (16,), "cost")
    assert found.standings[-1].cluster == "l40s"
    text = render(comparison_document(found), Console(width=100, file=io.StringIO()))
    assert "no price known" in text


def test_each_cluster_says_what_was_turned_on_there_and_what_nobody_wants_is_left_out() -> None:
    request = replace(REQUEST, stack="deepspeed-2025", tokens=None)
    found = compare_clusters(request, CLUSTERS[:2], (8,))
    stacks = {standing.cluster: standing.best.stack for standing in found.standings if standing.best}
    assert "flash-attention-3" in stacks["dgx-h100"]
    assert "flash-attention-3" not in stacks["dgx-a100"]
    text = render(comparison_document(found), Console(width=200, file=io.StringIO()))
    assert stacks["dgx-h100"] in text
    plain = compare_clusters(replace(request, without=("all",)), CLUSTERS[:2], (8,))
    assert {standing.best.stack for standing in plain.standings if standing.best} == {"deepspeed-2025"}


def test_one_count_for_each() -> None:
    found = compare_clusters(REQUEST, CLUSTERS[:2], (8, 16))
    assert {standing.cluster: standing.gpus for standing in found.standings} == {
        "dgx-h100": 8,
        "dgx-a100": 16,
    }


def test_a_cluster_where_nothing_fits_is_a_row_with_the_reason() -> None:
    found = compare_clusters(
        replace(REQUEST, model="llama-3.1-70b", set={"vpp": (1,)}), ("dgx-h100", "l40s"), (32, 8)
    )
    assert found.found
    last = found.standings[-1]
    assert (last.cluster, last.best) == ("l40s", None)
    assert "nothing fits" in line_of(last.reason)
    facts = comparison_facts(found)["clusters"][-1]
    assert facts["place"] is None
    assert comparison_facts(found)["headline"].startswith("only dgx-h100 can train the model: ")
    assert facts["verdict"] == "nothing_fits"
    assert facts["reason"] == dumped(last.reason)


def test_a_cluster_that_is_too_small_or_lacks_the_format_is_a_row() -> None:
    found = compare_clusters(
        replace(REQUEST, precision="fp8", set={"pp": (1,)}), ("dgx-h100", "dgx-a100"), (16,)
    )
    assert found.standings[-1].cluster == "dgx-a100"
    assert "fp8" in line_of(found.standings[-1].reason)
    large = replace(REQUEST, global_batch="4096", set={"tp": (1,), "pp": (1,)})
    found = compare_clusters(large, ("dgx-h100", "deepseek-h800"), (4096,))
    assert "2048 devices" in line_of(found.standings[-1].reason)


def test_a_setting_for_one_cluster() -> None:
    dear = replace(REQUEST, assume=("pue=1.5", "dgx-h100:price=100 $/h"))
    found = compare_clusters(dear, CLUSTERS[:2], (16,), "cost")
    prices = {s.cluster: s.best.run.price_per_device_hour for s in found.standings if s.best and s.best.run}
    assert prices["dgx-h100"] == 100.0
    assert prices["dgx-a100"] == 4.0
    assert "dgx-h100: given: pue 1.5, price 100 $/h" in [
        one["text"] for one in comparison_facts(found)["assumptions"]
    ]


@pytest.mark.parametrize(
    ("clusters", "gpus", "objective", "says"),
    [
        ((), (16,), "days", "at least one cluster"),
        (("dgx-h100", "dgx-a100"), (8, 16, 32), "days", "one for each of the 2"),
        (("dgx-h100",), (16,), "speed", "one of: step_time, days, cost, energy"),
        (("dgx-h100", "dgx-h1000"), (16,), "days", "did you mean"),
        (("dgx-h100",), (), "days", "node type"),
        (("dgx-h100",), (13,), "days", "must be a multiple of 8"),
    ],
)
def test_bad_input(clusters: tuple[str, ...], gpus: tuple[int, ...], objective: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        compare_clusters(REQUEST, clusters, gpus, objective)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="purchase_price"):
        compare_clusters(replace(REQUEST, assume=("purchase=1 $",)), ("dgx-h100",), (8,))
    with pytest.raises(UnknownNameError, match="dgx-h100"):
        compare_clusters(replace(REQUEST, assume=("dgx-h200:pue=1.5",)), ("dgx-h100",), (8,))
    with pytest.raises(InputError, match="--tokens"):
        compare_clusters(replace(REQUEST, tokens=None), ("dgx-h100",), (8,), "cost")


def test_the_batch_is_the_same_for_all() -> None:
    request, said = hold_batch(replace(REQUEST, global_batch=None))
    assert request.global_batch == "1024"
    assert "1,024 sequences" in text_of(said)
    assert hold_batch(replace(REQUEST, global_batch="16Mtok"))[0].global_batch == "4096"
    assert hold_batch(REQUEST)[0] == REQUEST


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [((144,), "576"), ((144, 144), "576"), ((144, 256), "576"), ((24, 40), "480"), ((64,), "512")],
)
def test_a_batch_that_nobody_named_divides_over_every_size(sizes: tuple[int, ...], batch: str) -> None:
    request, said = hold_batch(Request("llama-3.1-8b", "", seq_len=8192), sizes)
    assert request.global_batch == batch
    assert f"rounded to divide over {' or '.join(map(str, sorted(set(sizes))))} devices" in text_of(said)
    tokens = replace(request, global_batch="4Mtok")
    assert hold_batch(tokens, sizes)[0].global_batch == batch


def test_a_batch_that_nobody_named_suits_the_degrees_that_are() -> None:
    fixed = Request("llama-3.1-8b", "", seq_len=8192, set={"dp": (48,), "micro_batch": (2,)})
    assert int(hold_batch(fixed, (96, 192))[0].global_batch or 0) % 96 == 0


def test_a_comparison_takes_the_batch_that_a_plan_of_its_size_does() -> None:
    asked = Request("llama-3.2-1b", "dgx-h100", gpus=72, seq_len=4096)
    compared = compare_clusters(asked, ("dgx-h100", "dgx-a100"), (72,))
    alone = make_plan(asked)
    assert text_of(compared.batch).startswith(
        f"global batch held at {alone.subject.job.global_batch:,} sequences"
    )
    best = next(standing.best for standing in compared.standings if standing.cluster == "dgx-h100")
    assert best is not None
    assert best.config == alone.choices[0].config


def test_money_and_energy_are_spoken_of_where_a_run_was_asked_for(three: Comparison) -> None:
    said = "each cluster's fastest plan is also its cheapest and takes least energy"
    assert said in str(comparison_facts(three)["assumptions"])
    short = compare_clusters(replace(REQUEST, tokens=None), ("dgx-h100",), (8,))
    assert said not in str(comparison_facts(short)["assumptions"])


def test_shares_of_the_step(three: Comparison) -> None:
    for standing in three.standings:
        assert standing.best is not None
        shares = limits(standing.best, smallest=0.0)
        assert sum(share for _, share in shares) == pytest.approx(1.0)
        assert shares[0][0] == "compute"


def test_facts_hold_the_figures(three: Comparison) -> None:
    facts = json.loads(json.dumps(comparison_facts(three), allow_nan=False))
    first = facts["clusters"][0]
    best = three.standings[0].best
    assert best is not None
    assert best.run is not None
    assert first["place"] == 1
    assert first["step_time"] == best.step_time
    assert first["days"] == run_days(best.run)
    assert first["days_low"] < first["days"] < first["days_high"]
    assert first["run"]["goodput"] == best.run.goodput
    assert facts["found"] is True


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_document_fits_the_terminal(three: Comparison, width: int) -> None:
    text = render(comparison_document(three), Console(width=width, file=io.StringIO()))
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for cluster in CLUSTERS:
        assert cluster in text
    assert ("energy" in text.split("dgx-h100, 16 GPUs")[0]) == (width == 160)


def test_colour_only_where_wanted(three: Comparison) -> None:
    coloured = Console(
        width=80, file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False
    )
    assert "\x1b[" in render(comparison_document(three), coloured)


def test_the_verb(planner: Callable[..., tuple[int, str, str]]) -> None:
    job = ("llama-3.2-1b", "--seq-len", "4096", "--global-batch", "64", "--gpus", "8")
    code, out, err = planner("compare", *job, "--clusters", "dgx-h100,dgx-a100", "--json")
    assert (code, err) == (0, "")
    assert [row["cluster"] for row in json.loads(out)["clusters"]] == ["dgx-h100", "dgx-a100"]
    code, out, err = planner("compare", *job, "--clusters", "dgx-h100", "--set", "tp=3")
    assert code == 1
    assert "no plan" in out
    assert err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "llama-3.2-1b"),
        ("compare", "llama-3.2-1b", "--clusters", "dgx-h100,", "--gpus", "8"),
        ("compare", "llama-3.2-1b", "--clusters", "dgx-h100", "--gpus", "eight"),
        ("compare", "llama-3.2-1b", "--clusters", "dgx-h100", "--gpus", "-8"),
        ("compare", "no-such-model", "--clusters", "dgx-h100", "--gpus", "8"),
        ("plan", "llama-3.2-1b", "dgx-h100", "--gpus", "8", "--assume", "pue"),
        ("assumptions", "--assume", "pue=12"),
    ],
)
def test_malformed_input_exits_2(
    planner: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...]
) -> None:
    code, out, err = planner(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("verb", ["compare", "size", "assumptions"])
def test_help_ends_with_an_example(planner: Callable[..., tuple[int, str, str]], verb: str) -> None:
    code, out, _ = planner(verb, "--help")
    example = out.rstrip().partition("Example:\n")[2]
    assert code == 0
    assert example.strip().startswith(f"planner {verb}")
    assert max(map(len, example.splitlines())) <= 80


def test_assumptions_are_listed_with_sources(planner: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = planner("assumptions", "--assume", "pue=1.3", "--json")
    listed = json.loads(out)["assumptions"]
    assert code == 0
    assert listed["pue"] | {"meaning": ""} == {
        "value": "1.3", "kind": "number", "meaning": "", "source": "given by the user", "unverified": False,
        "given": True,
    }  # fmt: skip
    assert listed["repair_time"]["unverified"] is True
    assert listed["load"]["range"] == ["76 %", "82 %"]
    code, out, _ = planner("assumptions")
    assert "hardware_failures = 0.003 /day" in out
    assert "Llama 3" in out


def test_a_cluster_is_compared_with_itself_only_at_another_size() -> None:
    with pytest.raises(InputError, match="named once"):
        compare_clusters(REQUEST, ("dgx-h100", "dgx-h100"), (16,))
    assert len(compare_clusters(REQUEST, ("dgx-h100", "dgx-h100"), (8, 16)).standings) == 2


def test_a_tie_is_not_told_as_a_multiple(three: Comparison) -> None:
    first = three.standings[0]
    twin = replace(three, standings=(first, replace(first, cluster="its-twin")))
    assert "its-twin is as good within 0.5 %" in comparison_facts(twin)["headline"]


@pytest.mark.parametrize("verb", [("compare", "--clusters", "1x8 h100"), ("size", "1x8 h100", "--min")])
def test_an_answer_can_be_written_to_a_file(verb: tuple[str, ...], tmp_path: Path) -> None:
    name, *rest = verb
    where = tmp_path / "answer.json"
    words = [name, "llama-3.2-1b", *rest, "--global-batch", "64", "--seq-len", "4096", "-o", str(where)]
    told = CliRunner().invoke(app, [*words, "--json"])
    assert told.exit_code == 0
    strip = lambda facts: {k: v for k, v in facts.items() if k in ("kind", "headline", "assumptions")}  # noqa: E731
    assert strip(json.loads(where.read_text())) == strip(json.loads(told.stdout))
