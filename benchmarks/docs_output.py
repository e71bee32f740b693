"""Do the pages of docs/ show what their commands print? `python -m benchmarks.docs_output [PAGE ...]` rewrites them.

A page holds `<!-- run: planner ... -->` and everything up to `<!-- end -->` is the command and what it printed, at 80
columns; after `||` it names the sections that are shown. A python block is followed by a text block of what it printed.
Commands of a page run in one folder that starts with the files of docs/examples. Left out: how long a search took,
which differs from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from planner.ask import question
from planner.ask.option import Option, options_of
from planner.ask.readers import Settings
from planner.dialect import in_words
from planner.spec.planfile import Plan

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
SCHEMA_FILE: Final = DOCS / "plan.schema.json"
_RUN: Final = re.compile(r"<!-- run: (.*?)(?: \|\| (.*?))? -->\n.*?<!-- end -->", re.DOTALL)
_PYTHON: Final = re.compile(r"```python\n(.*?)```\n\n```text\n.*?```", re.DOTALL)
_OPTIONS: Final = re.compile(r"<!-- options: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_TIMES: Final = re.compile(r"(answered in|answers in) [0-9.]+ ?[a-z]+")


def write_schema() -> None:
    """The JSON Schema of a plan, which docs/json.md names."""
    text = json.dumps(Plan.model_json_schema(), indent=1, ensure_ascii=False)
    SCHEMA_FILE.write_text(f"{text}\n", encoding="utf-8")


def pages() -> list[Path]:
    """The pages that show output."""
    marks = ("<!-- run:", "<!-- options:", "```python")
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
    return [page for page, text in texts.items() if any(mark in text for mark in marks)]


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1", "PYTHONPATH": path}


def printed(command: str, folder: Path) -> str:
    """What a command prints in that folder; planner's exit code may be 1, which is an answer."""
    words = shlex.split(command)
    assert words[0] == "planner", f"pages run planner alone: {command}"
    arguments = [sys.executable, "-m", "planner", *words[1:]]
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=folder, env=_environment(), check=False
    )
    assert done.returncode in (0, 1), f"{command}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr, f"{command} crashed\n{done.stderr}"
    return _TIMES.sub(r"\1 a moment", done.stdout or done.stderr).rstrip("\n")


def shown(output: str, titles: str | None) -> str:
    """The sections with these titles; "first" is what stands before the first title, all of it where none is named."""
    if not titles:
        return output
    sections = re.split(r"\n\n(?=\S)", output)
    wanted = [title.strip() for title in titles.split(";")]
    kept = [s for i, s in enumerate(sections) if (i == 0 and "first" in wanted)
            or any(s.splitlines()[0].startswith(title) for title in wanted if title != "first")]  # fmt: skip
    assert len(kept) >= len(wanted), f"no such section: {wanted} in {[s.splitlines()[0] for s in sections]}"
    return "\n\n".join(kept)


def current(text: str) -> str:
    """The page with the output of its commands as it is now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(DOCS / "examples", folder, dirs_exist_ok=True)

        def run(match: re.Match[str]) -> str:
            command, titles = " ".join(match[1].split()), match[2]
            output = shown(printed(command, folder), titles)
            head = f"<!-- run: {match[1]}{' || ' + titles if titles else ''} -->"
            return f"{head}\n```text\n$ {command}\n{output}\n```\n<!-- end -->"

        def python(match: re.Match[str]) -> str:
            done = subprocess.run(
                [sys.executable, "-c", match[1]], capture_output=True, text=True, cwd=folder, env=_environment(),
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            return f"```python\n{match[1]}```\n\n```text\n{done.stdout.rstrip()}\n```"

        return _PYTHON.sub(python, _RUN.sub(run, with_options(text)))


def with_options(text: str) -> str:
    """The page with its tables of options, each of a kind of question, as they are declared now."""
    return _OPTIONS.sub(
        lambda match: f"<!-- options: {match[1]} -->\n{option_table(match[1])}\n<!-- end -->", text
    )


def option_table(kind: str) -> str:
    """The options that a kind of question has by itself."""
    asked = vars(question)[kind]
    own = [one for name, one in options_of(asked).items() if isinstance(vars(asked).get(name), Option)]
    rows = [
        f"| `{one.words}` | `{one.name}` | {one.unit} | {_usual(one)} | {in_words(one.help)} |" for one in own
    ]
    return "\n".join(["| option | keyword and key | unit | default | |", "|---|---|---|---|---|", *rows])


def _usual(one: Option[Any, Any]) -> str:
    if one.required:
        return "needed"
    return "" if one.default in (None, (), False, Settings()) else f"`{one.written(one.default)}`"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("page", nargs="*", type=Path)
    write_schema()
    for page in arguments.parse_args().page or pages():
        page.write_text(current(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page)
