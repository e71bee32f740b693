"""Is the output in README.md what the main command prints? `python -m benchmarks.readme_output` rewrites it.

Shortened to the answer, the best configurations and the search. Left out: the rest of the report, which the reader
gets from the command itself.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

README: Final = Path(__file__).parents[1] / "README.md"
BEGIN: Final = "<!-- output:begin -->"
END: Final = "<!-- output:end -->"
SHOWN: Final = ("Best 10", "Where the step goes", "The space searched")


def command(readme: str) -> list[str]:
    """The arguments of the main job, from the line that installs and runs it."""
    line = re.search(r"^pip install \. && planner (.*)$", readme, re.MULTILINE)
    assert line, "README.md holds the line that installs and runs the main job"
    return shlex.split(line[1])


def printed(arguments: list[str]) -> str:
    """What `planner ARGUMENTS` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "planner.cli", *arguments], capture_output=True, text=True, check=True,
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
    before, rest = readme.split(BEGIN, 1)
    indented = "\n".join(f"    {line}".rstrip() for line in output.splitlines())
    return f"{before}{BEGIN}\n{indented}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(replaced(text, shortened(printed(command(text)))), encoding="utf-8")
