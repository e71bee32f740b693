"""How fast is the planner? `python -m benchmarks.speed [--results]`

Four measurements: candidates completely costed per second in one thread; the same against rows costed one at a
time; a cold start of the command line against that of the interpreter; growth with the number of devices.
Every rate is given in wall time and in processor time, because the machine may be shared; ratios travel better
than either. `--results` writes the tables between the speed markers of benchmarks/RESULTS.md. Left out: memory
bandwidth of the machine, and more than one thread, which the planner does not use.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results_file import write_section
from planner.ask.request import Request, cost_model, resolve
from planner.solve.leaves import PREPARED_ROWS, costed_leaves
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES

ISSUE = (
    "plan", "llama-3.1-405b", "h100-sxm-roce", "--gpus", "16384", "--seq-len", "8192", "--global-batch", "2048",
    "--tokens", "15.6T",
)  # fmt: skip
DEEPSEEK = (
    "plan",
    "deepseek-v3",
    "deepseek-h800",
    "--gpus",
    "2048",
    "--seq-len",
    "4096",
    "--global-batch",
    "15360",
)
MANY_WIDTHS = ("plan", "llama-3.1-nemotron-ultra-253b", "dgx-h100", "--gpus", "1024")
SMALL = (  # most of which is starting
    ("--help",),
    ("model", "deepseek-v3"),
    ("estimate", "llama-3.1-8b", "dgx-h100", "--gpus", "8"),
    ("plan", "llama-3.1-8b", "dgx-h100", "--gpus", "64"),
)
SPACES = (
    Request("llama-3.1-405b", "h100-sxm-roce", 16384, seq_len=8192, global_batch="2048"),
    Request("deepseek-v3", "deepseek-h800", 2048, seq_len=4096, global_batch="15360"),
    Request("deepseek-v3", "dgx-h100", 2048, seq_len=4096, global_batch="15360"),
)
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read when numpy is loaded
GROWTH = tuple(2**power for power in range(6, 18))
ONE_ROWS = 200  # rows costed one at a time
MOST_COSTED = 10_000_000  # of a space


@dataclass(frozen=True)
class Clock:
    """Wall and processor seconds."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Clock) -> Clock:
        return Clock(self.wall - start.wall, self.cpu - start.cpu)

    def __add__(self, other: Clock) -> Clock:
        return Clock(self.wall + other.wall, self.cpu + other.cpu)


@dataclass(frozen=True)
class Process:
    """One run of a command: wall and processor seconds, largest resident set [bytes]."""

    time: Clock
    memory: float
    output: str


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        + " |"
        for r in (head, *rows)
    ]  # fmt: skip
    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join((lines[0], rule, *lines[1:]))


def run(command: Sequence[str]) -> Process:
    """Run a command in a fresh process and measure it. Raises `SystemExit` if it fails."""
    # with bytecode beside the modules, as an installed package has it
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if child.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Process(Clock(wall, usage.ru_utime + usage.ru_stime), usage.ru_maxrss * unit, output)


def fastest(command: Sequence[str], times: int) -> Process:
    """The run that took least processor time."""
    return min((run(command) for _ in range(times)), key=lambda process: process.time.cpu)


def planner_command() -> str:
    """Path of the installed command. Raises `SystemExit` if there is none."""
    path = shutil.which("planner") or str(Path(sys.executable).with_name("planner"))
    if not Path(path).exists():
        raise SystemExit("the planner command must be installed: pip install .")
    return path


@dataclass(frozen=True)
class Costed:
    """`legal` candidates, how many of them were `costed`, and the time that enumerating all and costing these took."""

    legal: int
    costed: int
    enumerated: Clock
    spent: Clock

    @property
    def rate(self) -> float:
        """Candidates costed a CPU second."""
        return self.costed / self.spent.cpu


def cost_everything(request: Request) -> Costed:
    """Cost the legal candidates of a space, memory of every stage and phase included; of more than `MOST_COSTED` every
    n-th batch."""
    problem, _ = resolve(request)
    start = Clock.now()
    space = enumerate_configs(problem, RULES)
    enumerated = Clock.now().since(start)
    model, rows, every = cost_model(problem), 0, -(-len(space) // MOST_COSTED)
    spent = Clock(0.0, 0.0)
    for leaves in islice(space.batches(PREPARED_ROWS), 0, None, every):
        start = Clock.now()
        stems = space.stems.take(leaves.stems)
        for _, cost in costed_leaves(model, stems, leaves.stem, leaves.recomputed):
            rows += len(cost.step_time)
        spent = spent + Clock.now().since(start)
    assert every > 1 or rows == len(space), "every legal candidate is costed once"
    return Costed(len(space), rows, enumerated, spent)


def one_at_a_time(request: Request) -> Clock:
    """Time to cost one row, through the same equations on tables of one row."""
    problem, _ = resolve(request)
    model, space = cost_model(problem), enumerate_configs(problem, RULES)
    some = np.random.default_rng(0).permutation(len(space.stems))[:ONE_ROWS]
    rows = [space.stems.take(some[i : i + 1]) for i in range(len(some))]
    start = Clock.now()
    for row in rows:
        model.evaluate(row)
    spent = Clock.now().since(start)
    return Clock(spent.wall / len(rows), spent.cpu / len(rows))


def candidate_rates() -> str:
    """Legal candidates costed per second, and the ratio to one at a time."""
    rows = []
    for request in SPACES:
        done = cost_everything(request)
        for _ in range(2 if done.legal < 5e6 else 0):
            done = max(done, cost_everything(request), key=lambda each: each.rate)
        single = one_at_a_time(request)
        # of all legal ones, whose costing the rate of those costed tells
        whole = done.enumerated.cpu + done.legal / done.rate
        rates = [
            f"{each / 1e6:.2f} M" for each in (done.costed / done.spent.wall, done.rate, done.legal / whole)
        ]
        name = f"{request.model}, {request.gpus or 0:,} of {request.cluster}"
        counts = (f"{done.legal:,}", f"{done.costed:,}")
        rows.append((name, *counts, *rates, f"{1 / single.cpu:,.0f}", f"{single.cpu * done.rate:,.0f}"))
        print(rows[-1], file=sys.stderr)
    head = (
        "space", "legal", "costed", "per wall second", "per CPU second", "with enumeration", "one at a time", "ratio",
    )  # fmt: skip
    return table(head, rows)


def cold_starts() -> str:
    """Fresh processes: the interpreter, short answers, three large plans."""
    planner = planner_command()
    commands = {"python -c pass": (sys.executable, "-c", "pass")} | {
        "planner " + " ".join(words): (planner, *words) for words in (*SMALL, ISSUE)
    }
    measured = {name: fastest(command, 5) for name, command in commands.items()}
    for large in (DEEPSEEK, MANY_WIDTHS):
        measured["planner " + " ".join(large)] = run((planner, *large))
    base = measured["python -c pass"].time
    head = ("fresh process", "wall s", "CPU s", "to interpreter", "MiB resident")
    rows = [
        (
            f"`{name}`", f"{p.time.wall:.2f}", f"{p.time.cpu:.2f}", f"{p.time.cpu / base.cpu:.0f}x",
            f"{p.memory / 2**20:,.0f}",
        )
        for name, p in measured.items()
    ]  # fmt: skip
    return table(head, rows)


def growth() -> str:
    """The same model on more and more devices."""
    rows = []
    for devices in GROWTH:
        options = ("--gpus", str(devices), "--seq-len", "8192", "--global-batch", "2048", "--json")
        process = run((planner_command(), "plan", "llama-3.1-405b", "dgx-h100", *options))
        answer: dict[str, Any] = json.loads(process.output)
        search = answer["search"]
        counts = [f"{search[key]:,}" for key in ("candidates", "legal", "costed")]
        timing = (f"{process.time.wall:.2f}", f"{process.time.cpu:.2f}", f"{process.memory / 2**20:,.0f}")
        rows.append((f"{devices:,}", *counts, *timing))
        print(rows[-1], file=sys.stderr)
    head = ("devices", "candidates", "legal", "costed in full", "wall s", "CPU s", "MiB resident")
    return table(head, rows)


def report() -> str:
    """All measurements as Markdown."""
    cores, load = os.cpu_count(), os.getloadavg()[0]
    # fresh processes first: Linux counts what this one holds when it forks as theirs
    starts, grown = cold_starts(), growth()
    where = f"Python {platform.python_version()}, numpy {np.__version__}, {cores} cores, load {load:.1f} at the start"
    return "\n\n".join(
        (
            "## Speed",
            f"{datetime.now(UTC):%Y-%m-%d}, {where}. The machine is shared and noisy: read ratios and processor time.",
            "Legal candidates completely costed in one process and one thread: all time terms, peak memory over "
            "every stage and phase. Rows that a rule removed do not count. `one at a time`: the same equations on "
            "tables of one row, candidates per CPU second.",
            candidate_rates(),
            "Cold start; processor time is the least of five runs, of the two last plans one.",
            starts,
            "Growth: llama-3.1-405b on dgx-h100, 2,048 sequences of 8,192 tokens, whole command with `--json`.",
            grown,
        )
    )


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description="How fast is the planner?")
    parser.add_argument("--results", action="store_true", help="write the tables into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != "1" for name in ONE_THREAD):
        os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
        os.execv(sys.executable, (sys.executable, "-m", "benchmarks.speed", *sys.argv[1:]))
    text = report()
    print(text)
    if arguments.results:
        write_section("speed", text)


if __name__ == "__main__":
    main()
