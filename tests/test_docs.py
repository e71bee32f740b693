"""Do the pages of docs/ show what their commands print, and is every job there?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.docs_output import DOCS, current, pages
from planner.cli import app

JOBS = 14


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_job_has_a_page_with_output() -> None:
    numbered = sorted(DOCS.glob("[0-9][0-9]-*.md"))
    assert [page.name[:2] for page in numbered] == [f"{job:02}" for job in range(1, JOBS + 1)]
    assert all("\n$ planner " in text_of(page) for page in numbered)
    index = text_of(DOCS / "README.md")
    assert all(f"[{page.name}]({page.name})" in index for page in pages())


def test_commands_are_verbs() -> None:
    known = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    commands = [
        command
        for page in pages()
        for command in re.findall(r"<!-- run: (planner .*?)(?: \|\|.*)? -->", text_of(page))
    ]
    assert len(commands) > 20
    assert {shlex.split(command)[1] for command in commands} <= known


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path) -> None:
    assert current(text_of(page)) == text_of(page), f"run python -m benchmarks.docs_output {page}"


def test_shells_complete_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.ask.option import options_of
    from planner.ask.question import Question
    from planner.cli.options import completion

    def completed(option: str, begun: str) -> list[str]:
        complete = completion(options_of(Question)[option])
        assert complete is not None
        return complete(begun)

    assert "llama-3.1-70b" in completed("model", "llama-3.1")
    assert completed("cluster", "dgx-h1") == ["dgx-h100"]
    assert completed("stack", "megatron-2026") == ["megatron-2026"]
    assert completed("stack", "deepspeed") == ["deepspeed", "deepspeed-2025"]
    assert completed("model", "nonsense") == []


def test_the_page_on_own_models_shows_its_example() -> None:
    assert text_of(DOCS / "examples" / "own-model.yaml") in text_of(DOCS / "own_models.md")
