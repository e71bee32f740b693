"""Are pairs of runs ranked, and published runs linked, as benchmarks/told_apart.py and published_runs.py say?"""

from __future__ import annotations

import pytest

from benchmarks.published.validate import answer_of
from benchmarks.published_runs import link_of
from benchmarks.told_apart import Ran, pairs, rights, sweeps
from planner.calibrate.measured import Measurement
from planner.calibrate.statistics import Answer


def answer(config: str, predicted: float, measured: float) -> Answer:
    output = {"step_time_s": predicted, "config": config}
    row = {"source": "a", "model": "m", "gpu": "g", "gpus": "8"}
    return answer_of(row, output, Measurement(measured, None))


def test_pairs_by_how_far_apart_they_are_predicted() -> None:
    members = [Ran(*seconds, answer("", *seconds)) for seconds in ((1.0, 1.0), (1.1, 0.9), (1.32, 2.0))]
    found = [(round(apart, 3), right) for apart, right in pairs(members)]
    assert found == [(0.1, False), (0.32, True), (0.2, True)]


def test_a_configuration_counts_once() -> None:
    same = [answer("tp1", 1.0, 1.0), answer("tp1", 1.0, 1.2), answer("tp2", 1.005, 1.1)]
    ((members),) = sweeps(same).values()
    assert [ran.measured for ran in members] == [1.0, 1.1]


def test_shares_need_some_pairs_of_a_publisher() -> None:
    few = [answer(f"tp{i}", 1.0 + i / 1000, 1.0 + i) for i in range(3)]
    many = [answer(f"tp{i}", 1.0 + i / 1000, 1.0 + i) for i in range(5)]
    assert rights(few)[0][2:] == (0, {})
    assert rights(many)[0][2:] == (10, {"a": 1.0})


@pytest.mark.parametrize(
    ("reference", "link"),
    [
        ("NVIDIA/NeMo docs/a.md line 3 (pretraining)", "https://github.com/NVIDIA/NeMo/blob/HEAD/docs/a.md"),
        ("NVIDIA/dgxc tag v25.03 x/README.md line 1", "https://github.com/NVIDIA/dgxc/blob/v25.03/x/README.md"),
        ("pytorch/torchtitan docs/p.md @3faaa1a0d^ FSDP2", "https://github.com/pytorch/torchtitan/commit/3faaa1a0d"),
        ("HF space nanotron/playbook assets/x.html", "https://huggingface.co/spaces/nanotron/playbook"),
        ("NVIDIA/B skills/perf/SKILL.md", "https://github.com/NVIDIA/B/tree/HEAD/skills"),
    ],
)  # fmt: skip
def test_links(reference: str, link: str) -> None:
    assert link_of(reference) == link


def test_a_reference_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="must name a repository"):
        link_of("from memory")
