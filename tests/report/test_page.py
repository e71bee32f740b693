"""Do pages say what the plan says, escape what they are given, and stay within one file?"""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.ask.request import Request, cost_model, resolve
from planner.errors import FileInputError
from planner.report import chart_data, charts
from planner.report.html import clean
from planner.report.result_file import ComparisonFile, SizingFile, parse_result
from planner.solve.place import place
from planner.spec.planfile import Plan
from planner.units import GIB

HOSTILE = "</script><script>alert(1)</script>../../\u202e<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        Request("llama-3.1-8b", "4x8 h100 400G-ib", seq_len=4096, global_batch="256", tokens=1e12, top=5,
                set={"pp": (2,), "tp": (2,)})
    )  # fmt: skip


def hostile(plan: Plan) -> Plan:
    """The same plan from somebody who hopes that a page runs what a file says."""
    data = json.loads(plan.model_dump_json())
    data["subject"]["model"]["name"] = HOSTILE
    data["subject"]["cluster"]["name"] = HOSTILE
    data["assumptions"].append(HOSTILE)
    data["choices"][0]["config"]["text"] = HOSTILE
    return Plan.model_validate_json(json.dumps(data))


def test_waterfall_adds_up_to_the_step(plan: Plan) -> None:
    best = plan.choices[0]
    rows = chart_data.waterfall_rows(best.time, best.step_time)
    assert rows[-1]["end"] == best.step_time
    for above, below in pairwise(rows[:-1]):
        assert below["start"] == above["end"]
    assert rows[-2]["end"] == pytest.approx(best.step_time, rel=2 * chart_data.SMALLEST)


def test_what_own_runs_take_off_is_drawn_left_of_nothing() -> None:
    time = {"gemm": 2.0, "own_runs": -0.5, "recompute": 0.0}
    rows = chart_data.standing_rows([{"cluster": "a", "gpus": 8, "time": time}])
    assert [(row["kind"], row["amount"]) for row in rows] == [("compute", 2.0), ("other", -0.5)]


def test_memory_rows_add_up_to_every_ranks_peak(plan: Plan) -> None:
    memory = plan.choices[0].memory
    rows = chart_data.memory_rows(memory)
    for stage in memory.per_stage:
        held = sum(row["amount"] for row in rows if row["stage"].startswith(f"rank {stage.stages} "))
        assert held * GIB == pytest.approx(stage.peak, rel=1e-9)
    assert max(stage.peak for stage in memory.per_stage) == pytest.approx(memory.peak, rel=1e-9)


def test_nothing_on_the_front_is_beaten(plan: Plan) -> None:
    rows = chart_data.pareto_rows(plan)
    front = [row for row in rows if row["on_front"]]
    assert len(front) == len(plan.pareto) > 1
    for above, below in pairwise(front):
        assert above["step"] <= below["step"]
        assert above["free"] < below["free"]
    assert [row["best"] for row in rows].count(True) == 1
    older = chart_data.pareto_rows(plan.model_copy(update={"pareto": ()}))
    assert [row["configuration"] for row in older if row["best"]] == [plan.choices[0].config.text]
    assert older[0]["on_front"]


def test_the_answer_is_drawn_over_its_neighbours(plan: Plan) -> None:
    points = charts.pareto_chart(chart_data.pareto_rows(plan))["layer"][1]["data"]["values"]
    assert [point["best"] for point in points] == sorted(point["best"] for point in points)
    assert points[-1]["best"]


def test_groups_lie_where_ranks_are_counted(plan: Plan) -> None:
    spans = {span.axis: span for span in chart_data.axis_spans(plan, plan.choices[0])}
    assert spans["tp"].members == (0, 1)
    assert spans["pp"].members == (0, 16)  # the other half of 32 devices
    assert "nvlink" in spans["tp"].links
    assert "nvlink" not in spans["pp"].links
    rows = chart_data.map_rows(tuple(spans.values()), plan.subject.cluster)
    for axis, span in spans.items():
        assert sum(row["members"] for row in rows if row["axis"] == axis) == span.size


def test_the_map_is_that_of_the_placement() -> None:
    asked = Request(
        "qwen3-30b-a3b", "4x8 h100 400G-ib", seq_len=4096, set={"pp": (2,), "ep": (4,), "cp": (2,)}
    )
    plan = make_estimate(asked)
    problem, _ = resolve(asked)
    found = place(cost_model(problem), plan.choices[0].config.parallel()).by_axis
    spans = {span.group: span for span in chart_data.axis_spans(plan, plan.choices[0])}
    assert set(spans) == {"cp", "dp_cp", "ep", "edp", "pp"}
    assert {group: span.axis for group, span in spans.items() if span.axis != group} == {
        "dp_cp": "dp x cp",
        "edp": "expert dp",
    }  # as `planner explain` calls them
    for name, span in spans.items():
        assert (span.size, span.groups, span.stride) == (
            found[name].size,
            found[name].count,
            found[name].stride,
        )


def test_maps_of_large_clusters_stay_small() -> None:
    plan = make_estimate(
        Request("llama-3.1-405b", "h100-sxm-roce", 16384, set={"tp": (8,), "pp": (16,), "dp": (128,)})
    )
    spans = chart_data.axis_spans(plan, plan.choices[0])
    assert len(chart_data.map_rows(spans, plan.subject.cluster)) <= chart_data.MOST_CELLS * len(spans)


def test_results_of_compare_and_size_are_read_back_strictly() -> None:
    with pytest.raises(FileInputError, match="kind"):
        parse_result({"kind": "nonsense"}, "x.json")
    with pytest.raises(FileInputError, match="headline"):
        parse_result({"kind": "comparison", "planner_version": "0"}, "x.json")


def test_what_compare_and_size_print_is_what_is_read() -> None:
    from planner.answer.compare import compare_clusters
    from planner.answer.size import Goal, size_cluster
    from planner.report.comparison import comparison_facts
    from planner.report.sizing import sizing_facts

    request = Request("llama-3.2-1b", "dgx-h100", gpus=16, seq_len=2048, global_batch="64", tokens=1e11)
    compared = comparison_facts(compare_clusters(request, ["dgx-h100", "rtx4090"], [8]))
    read = parse_result(json.loads(json.dumps(compared)), "x.json")
    assert isinstance(read, ComparisonFile)
    assert read.clusters[0].step_time == compared["clusters"][0]["step_time"]
    sized = sizing_facts(size_cluster(request, Goal.MIN))
    result = parse_result(json.loads(json.dumps(sized)), "x.json")
    assert isinstance(result, SizingFile)
    assert result.answer is not None
    assert result.answer.gpus == sized["answer"]["gpus"]


def page_of(plan: Plan, drawing: str = "") -> str:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    from planner.report.html import page_html
    from planner.report.page import plan_page

    return page_html(plan_page(plan, drawing))


def test_a_page_is_one_file_without_addresses(plan: Plan) -> None:
    page = page_of(plan)
    head = html.unescape(re.sub(r"(?s)<script>.*?</script>", "", page))
    assert not re.findall(r'(?:src|href)="(?!data:)', head)
    assert "default-src 'none'" in head
    assert "connect-src" not in head
    assert plan.choices[0].config.text in head
    assert '<span class="unit">tokens/s/GPU</span>' in page


def test_charts_keep_to_vega_lites_schema(plan: Plan) -> None:
    altair = pytest.importorskip("altair")
    from planner.report.page import plan_page

    blocks = [block for section in plan_page(plan).sections for block in section.blocks if block.spec]
    assert len(blocks) >= 6
    for block in blocks:
        altair.Chart.from_dict(block.spec, validate=True)


def test_what_a_file_says_is_text(plan: Plan) -> None:
    page = page_of(hostile(plan))
    assert page.count("<script") == 3  # the data, the library, the page's own
    assert "<img" not in re.sub(r"(?s)<script.*?</script>", "", page)
    assert "\u202e" not in page
    assert clean("half a pair \ud800").encode()


def test_pages_of_plans_without_an_answer() -> None:
    nothing = make_plan(Request("llama-3.1-405b", "1x8 h100", seq_len=8192))
    assert not nothing.found
    page = page_of(nothing)
    assert "nothing fits" in page
    illegal = make_estimate(Request("llama-3.1-8b", "1x8 h100", set={"tp": (3,)}))
    assert "not legal" in page_of(illegal)


def test_the_verb_writes_all_or_nothing(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    from typer.testing import CliRunner

    from planner.cli import app
    from planner.spec.load_plan import save_plan

    save_plan(plan, tmp_path / "plan.json")
    run = CliRunner().invoke(app, ["report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "r.html")])
    assert run.exit_code == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'class="timeline"' in text
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    run = CliRunner().invoke(app, ["report", str(tmp_path / "bad.json"), "-o", str(tmp_path / "b.html")])
    assert run.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "plan.json", "r.html"]
