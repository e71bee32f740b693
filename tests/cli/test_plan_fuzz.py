"""Plan files with one value changed: every verb that reads plans answers, or refuses in words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.errors import PlannerError
from planner.spec.load_plan import parse_plan

JOBS: Final = {
    "dense": [
        "llama-3.1-8b",
        "dgx-h100",
        "--gpus",
        "16",
        "--set",
        "pp=2",
        "--set",
        "vpp=2",
        "--tokens",
        "1T",
    ],
    "experts": ["qwen3-30b-a3b", "4x8 h100 400G-ib", "--set", "ep=8", "--set", "cp=2"],
}
ABSENT: Final = object()
OTHERS: Final[tuple[Any, ...]] = (
    ABSENT, None, True, 0, 1, -1, 3, 2.5, 1e-9, 1e300, 10**9, 10**30, "", "x", "nan", "../../x", [], [0], {}, {"a": 1},
)  # fmt: skip
VERBS: Final = (
    ("estimate", "FILE"), ("estimate", "FILE", "--memory"), ("explain", "FILE", "--rank", "1"),
    ("explain", "FILE", "--why-not", "tp=2"), ("trace", "FILE", "-o", "-"), ("report", "FILE", "-o", "OUT"),
    ("export", "FILE", "-o", "OUT"),
)  # fmt: skip
SEED, TRIED = 20261124, 60  # files that are read, of each plan


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values that hold no others."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not value or not isinstance(value, dict | list):
        yield path
    for key, one in inside:
        yield from leaves(one, (*path, key))


def changed(document: dict[str, Any], path: tuple[str | int, ...], value: Any) -> str:
    """The document with another value there."""
    copy: Any = json.loads(json.dumps(document))
    held = copy
    for key in path[:-1]:
        held = held[key]
    if value is ABSENT:
        del held[path[-1]]
    else:
        held[path[-1]] = value
    return json.dumps(copy)


def is_read(text: str) -> bool:
    """Is it taken as a plan? Anything but a refusal goes through."""
    try:
        parse_plan(text, "plan.json")
    except PlannerError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_no_value_of_a_plan_file_ends_in_a_traceback(job: str, tmp_path: Path) -> None:
    file, runner, draw = tmp_path / "plan.json", CliRunner(), random.Random(SEED)
    words = ["estimate", *JOBS[job], "--seq-len", "4096", "--global-batch", "64", "-o", str(file)]
    assert runner.invoke(app, words).exit_code == 0
    document = json.loads(file.read_text())
    every = [(path, value) for path in leaves(document) for value in OTHERS]
    taken = [one for one in every if is_read(changed(document, *one))]
    for number, (path, value) in enumerate(draw.sample(taken, TRIED)):
        file.write_text(changed(document, path, value))
        verb, out = draw.choice(VERBS), str(tmp_path / str(number))
        done = runner.invoke(app, [{"FILE": str(file), "OUT": out}.get(word, word) for word in verb])
        what = f"{'.'.join(map(str, path))} = {value!r}: {' '.join(verb)}"
        assert done.exception is None or isinstance(done.exception, SystemExit), what
        assert done.exit_code in (0, 1, 2), what
