"""Is what README.md shows what the main command prints and RESULTS.md holds? `python -m benchmarks.readme_output`
rewrites both.

The output is shortened to the answer, the best configurations and the search; the accuracy is a part of the summary
of RESULTS.md with its sources that are furthest off. Left out: the rest of the report and of the table, which the
reader gets from the command and from RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.results_file import RESULTS, section_of, with_section

README: Final = Path(__file__).parents[1] / "README.md"
FURTHEST: Final = 6  # sources named
# of the summary, what the README tells; single sources and what a table's author would mend are in RESULTS.md alone
TOLD: Final = tuple(
    f"- {start}"
    for start in ("step time", "peak memory", "out of memory, sweeps", "out of memory, all", *"0123456789")
)
SHOWN: Final = ("Best 10", "Where the step goes", "The space searched")


def command(readme: str) -> list[str]:
    """The arguments of the main job, from the line that installs and runs it."""
    line = re.search(r"^pip install \. && planner (.*)$", readme, re.MULTILINE)
    assert line, "README.md holds the line that installs and runs the main job"
    return shlex.split(line[1])


def printed(arguments: list[str]) -> str:
    """What `planner ARGUMENTS` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "planner", *arguments], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80"},
    )  # fmt: skip
    return done.stdout


def shortened(output: str) -> str:
    """The headline and the sections that the README shows."""
    sections = re.split(r"\n\n(?=\S)", output.rstrip("\n"))
    shown = [s for i, s in enumerate(sections) if i < 2 or s.splitlines()[0] in SHOWN]
    return "\n\n".join(shown)


def replaced(readme: str, output: str) -> str:
    """README.md with this output between the markers."""
    indented = "\n".join(f"    {line}".rstrip() for line in output.splitlines())
    return with_section(readme, "output", indented)


def accuracy(results: str) -> str:
    """The summary of RESULTS.md, and its sources furthest off in step time."""
    block = section_of(results, "accuracy")
    summary = block.split("\n|", 1)[0]
    lines = [line for line in summary.splitlines() if line.startswith(TOLD)]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in block.splitlines()
        if line.startswith("|")
    ]
    timed = [(float(row[2]), row[0], row[4]) for row in rows if re.fullmatch(r"[0-9.]+", row[2])]
    worst = sorted(timed, reverse=True)[:FURTHEST]
    named = "; ".join(f"{source} {error:g} % (bias {bias} %)" for error, source, bias in worst)
    return "\n".join([*lines, f"- sources furthest off, median: {named}"])


def current(readme: str, results: str) -> str:
    """README.md with the accuracy of RESULTS.md."""
    return with_section(readme, "accuracy", accuracy(results))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it has no options
    text = README.read_text(encoding="utf-8")
    text = current(text, RESULTS.read_text(encoding="utf-8"))
    README.write_text(replaced(text, shortened(printed(command(text)))), encoding="utf-8")
