"""Is README.md current: its two set-up lines, its commands, its tree, and the shape of the output it shows?"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from benchmarks.readme_output import README, SHOWN, command, current, printed, shortened
from benchmarks.results_file import RESULTS, section_of
from planner.cli import app

ROOT = README.parent
TEXT = README.read_text(encoding="utf-8")


def labels(output: str) -> list[str]:
    """What stays the same when numbers move: titles, and the first words of the answer's lines."""
    found = re.findall(r"(?m)^ {2}([a-zA-Z]+(?: [a-zA-Z]+)?) {2,}\S", output.split("Best 10")[0])
    return [*found, *(title for title in SHOWN if title in output)]


def test_exactly_two_lines_set_up() -> None:
    lines = re.findall(r"(?m)^pip install .*$", TEXT)
    assert [line.split(" && ")[1].split()[0] for line in lines] == ["planner", "pytest"]


def test_verbs_exist() -> None:
    known = {
        info.name or (info.callback.__name__ if info.callback else "") for info in app.registered_commands
    }
    assert set(re.findall(r"`planner ([a-z]+) ", TEXT)) <= known


def test_every_file_named_in_the_tree_exists() -> None:
    tree = TEXT.split("## What is where", 1)[1].split("## ", 1)[0]
    folder, checked = {0: ROOT}, 0
    for line in re.findall(r"(?m)^ {4}( *)(\S.*?)(?: {2,}|$)", tree):
        depth = len(line[0]) // 2
        for name in line[1].split(" "):
            assert any(folder[depth].glob(name.rstrip("/"))), f"{folder[depth]} holds no {name}"
            folder[depth + 1] = folder[depth] / name
            checked += 1
    assert checked > 20


@pytest.mark.slow
def test_output_has_the_shape_of_what_is_printed() -> None:
    shown = textwrap.dedent(section_of(TEXT, "output"))
    now = shortened(printed(command(TEXT)))
    assert len(labels(now)) > 6
    assert labels(shown) == labels(now), "run python -m benchmarks.readme_output"
    assert verdict(shown)[0] == verdict(now)[0]
    assert verdict(shown)[1] == pytest.approx(verdict(now)[1], rel=0.01)


def verdict(output: str) -> tuple[str, float]:
    """The configuration and the step time of the first line."""
    found = re.match(r"\s*(.*): ([0-9.]+) s\sa step", output)
    assert found, output[:80]
    return found[1], float(found[2])


def test_the_accuracy_shown_is_that_of_the_results() -> None:
    assert current(TEXT, RESULTS.read_text(encoding="utf-8")) == TEXT, (
        "run python -m benchmarks.readme_output"
    )


def test_the_ci_runs_the_lines_of_the_readme() -> None:
    script = (Path(ROOT) / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_line planner" in script
    assert "readme_line pytest" in script
