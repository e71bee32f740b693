"""Are pages drawn by a real browser with the plan's numbers, without a request, in light, dark and on a phone?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.report import chart_data
from planner.report.facts import days
from planner.spec.planfile import Plan
from planner.units import GIB
from tests.browser import marks, opened
from tests.report.test_page import HOSTILE, hostile, page_of, plan

__all__ = ["plan"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def address(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> str:
    from planner.cli.report import drawn_plan_page
    from planner.report.html import page_html

    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_html(drawn_plan_page(plan)), encoding="utf-8")
    return path.as_uri()


def test_every_chart_is_drawn_with_the_plans_numbers(plan: Plan, address: str) -> None:
    best = plan.choices[0]
    with opened(address) as page:
        places = page.eval_on_selector_all(
            "[data-chart]", "all => all.map(p => [p.dataset.chart, p.dataset.drawn])"
        )
        assert len(places) >= 6
        assert all(drawn == "yes" for _, drawn in places)
        steps = chart_data.waterfall_rows(best.time, best.step_time)
        assert marks(page, "waterfall") == [row["label"] for row in steps]
        parts = [row["label"] for row in chart_data.memory_rows(best.memory)]
        assert sorted(marks(page, "memory")) == sorted([*parts, f"limit: {best.memory.limit / GIB:.1f} GiB"])
        points = [row["label"] for row in chart_data.pareto_rows(plan)]
        assert sorted(marks(page, "pareto")) == sorted(points)
        assert best.run is not None
        assert marks(page, "goodput") == [row["label"] for row in chart_data.goodput_rows(best.run)]
        spans = chart_data.axis_spans(plan, best)
        for span in spans:
            held = [row["label"] for row in chart_data.map_rows([span], plan.subject.cluster)]
            assert marks(page, f"map-{span.group}") == held
        passes = page.eval_on_selector_all(".timeline .f", "all => all.length")
        assert passes >= best.config.pp * best.config.num_microbatches
        assert page.inner_text("#verdict") == "fits"


def test_bars_are_as_long_as_their_numbers(plan: Plan, address: str) -> None:
    best = plan.choices[0]
    with opened(address) as page:
        widths = page.eval_on_selector_all(
            '[data-chart="waterfall"] .role-mark > path[aria-label]', "all => all.map(b => b.getBBox().width)"
        )
    rows = chart_data.waterfall_rows(best.time, best.step_time)
    for row, width in zip(rows, widths, strict=True):
        assert width / widths[-1] == pytest.approx(row["amount"] / best.step_time, abs=0.003)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light"), (390, "dark")])
def test_it_fits_the_screen_and_its_light(address: str, width: int, scheme: str) -> None:
    with opened(address, width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in paper[4:-1].split(",")) < 200) == (scheme == "dark")
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper


def test_a_hostile_plan_is_text(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(page_of(hostile(plan)), encoding="utf-8")
    with opened(path.as_uri()) as page:
        assert page.eval_on_selector_all("script", "all => all.length") == 3
        assert page.eval_on_selector_all("img", "all => all.length") == 0
        assert page.inner_text("h1").startswith(HOSTILE.split("\u202e")[0])


def test_pages_of_compare_and_size(tmp_path: Path) -> None:
    from planner.answer.compare import compare_clusters
    from planner.answer.size import Goal, size_cluster
    from planner.ask.request import Request
    from planner.report.comparison import comparison_facts
    from planner.report.html import page_html
    from planner.report.page_results import result_page
    from planner.report.result_file import parse_result
    from planner.report.sizing import sizing_facts

    request = Request("llama-3.2-1b", "dgx-h100", seq_len=2048, global_batch="256", tokens=1e11)
    compared = comparison_facts(compare_clusters(request, ["dgx-h100", "dgx-b200"], [16]))
    sized = sizing_facts(size_cluster(replace(request, global_batch="8192"), Goal.DAYS, 2.0))
    for name, document in (("compare", compared), ("size", sized)):
        path = tmp_path / f"{name}.html"
        page_text = page_html(result_page(parse_result(json.loads(json.dumps(document)), "x")))
        path.write_text(page_text, encoding="utf-8")
        with opened(path.as_uri()) as page:
            chart = "trade" if name == "compare" else "days"
            said = marks(page, chart)
            rows = compared["clusters"] if name == "compare" else sized["curve"]
            for row in rows:
                assert any(f"{row['gpus']:,} GPUs" in text and days(row["days"]) in text for text in said)
        assert _narrowest_gap(path.as_uri(), 320) >= 4


def _narrowest_gap(address: str, width: int) -> float:
    """Pixels between the closest two labels of any horizontal axis."""
    with opened(address, width=width) as page:
        gaps: list[float] = page.evaluate(
            """() => [...document.querySelectorAll('.role-axis-label')].flatMap(labels => {
              const shown = [...labels.querySelectorAll('text')].filter(label => label.getAttribute('opacity') !== '0')
                .map(label => label.getBoundingClientRect()).filter(box => box.width).sort((a, b) => a.left - b.left);
              if (shown.some(box => Math.abs(box.bottom - shown[0].bottom) > 1)) return [];
              return shown.slice(1).map((box, i) => box.left - shown[i].right);
            })"""
        )
    return min(gaps)
