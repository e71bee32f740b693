"""How large are the spaces, and how long does a proven plan take, from 64 to 131,072 devices?

    python -m benchmarks.solver [--write]

Every row is one `planner plan` in a process of its own, the start of the interpreter included; seconds are processor
time of all its threads, which other work on the machine does not change. `--write` puts the table into
benchmarks/RESULTS.md, between the markers. Left out: accuracy (`benchmarks/accuracy.py`) and candidates costed per
second (`benchmarks/speed.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys

from benchmarks.results_file import write_section

MODELS = ("llama-3.1-8b", "llama-3.1-405b", "deepseek-v3")
SIZES = (64, 512, 2_048, 16_384, 131_072)
HEADS = (
    "model",
    "GPUs",
    "candidates",
    "legal",
    "costed",
    "simulated",
    "splits solved",
    "gap",
    "seconds",
    "best",
)


def measured(model: str, devices: int) -> list[str]:
    """One line of the table."""
    batch = max(512, devices // 8)
    command = [sys.executable, "-m", "planner", "plan", model, f"{devices // 8}x8 h100 400G-ib", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [*command, "--global-batch", str(batch), "--top", "3"], capture_output=True, text=True, env=os.environ
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if run.returncode not in (0, 1):
        raise SystemExit(run.stderr)
    plan = json.loads(run.stdout)
    search, proof = plan["search"], plan["search"]["certificate"]
    gap = "" if proof["gap"] is None else f"{proof['gap']:.2%}"
    best = plan["choices"][0]["config"]["text"] if plan["choices"] else "nothing fits"
    counts = (search["candidates"], search["legal"], proof["costed"], proof["solved"], proof["splits_solved"])
    return [model, f"{devices:,}", *(f"{count:,}" for count in counts), gap, f"{seconds:.1f}", best]


def table() -> str:
    """All lines, as Markdown."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|" + "---:|" * (len(HEADS) - 2) + "---|"]
    for model in MODELS:
        for devices in SIZES:
            lines.append("| " + " | ".join(measured(model, devices)) + " |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solver", description=__doc__)
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    writes, found = parser.parse_args().write, table()
    if writes:
        write_section("solver", found)
    else:
        print(found)


if __name__ == "__main__":
    main()
