"""How far is the memory that planner says MaxText takes on TPUs from what XLA's buffer assignment says?

    python -m benchmarks.xla_memory [--write]                     compares the committed cases (xla_memory.csv)
    python -m benchmarks.xla_memory --compile PYTHON MAXTEXT      compiles them anew, and writes the table

XLA places all buffers of a program before it runs. MaxText's train_compile compiles a training step for a TPU topology
on a CPU; with its dump the bytes of arguments (weights and moments) and of temporaries are known, which together the
compiler holds against the device's memory. `PYTHON` has `jax[tpu]` and MaxText's requirements, `MAXTEXT` is a checkout.
A case takes a minute: the compiler is stopped once buffers are placed. Left out: what is outside the program.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import planner
from benchmarks.results_file import judging, tell

TABLE: Final = Path(__file__).with_suffix(".csv")
ROOT: Final = Path(__file__).parents[1]
SECTION: Final = "xla-memory"
GIB: Final = 2.0**30
SETTINGS: Final = ("tp", "cp", "micro_batch", "recompute", "recompute_modules", "offload")
COMPILED: Final = ("arguments", "temporaries", "jax", "libtpu")
PROGRAM: Final = "maxtext.trainers.pre_train.train_compile"
ALONE: Final = {
    "JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE", "TPU_SKIP_MDS_QUERY": "1", "PYTHONPATH": "src",
    "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip
ALLOCATION: Final = re.compile(r"^allocation \d+: size (\d+),(.*)$", re.MULTILINE)
NOTED: Final = {
    "maxtext-2024+pure-bf16": ", weights in bf16",
    "benchmarks/rounds/stacks/r12_maxtext_vocab_tiling.yaml": ", loss in 16 parts",
}
PATIENCE: Final = 1800.0  # seconds that a case may take


@dataclass(frozen=True)
class Case:
    """A compiled case: as planner is asked (`row`), bytes of XLA's arguments and temporaries, and planner's peak."""

    row: dict[str, str]
    arguments: float
    temporaries: float
    told: float

    @property
    def ratio(self) -> float:
        """Planner's peak over XLA's total [1]."""
        return self.told / (self.arguments + self.temporaries)


def rows() -> list[dict[str, str]]:
    """The committed table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def told(row: dict[str, str]) -> float:
    """The peak of a row as planner has it [bytes]."""
    chips = int(row["chips"])
    replicas = chips // (int(row["tp"]) * int(row["cp"]))
    batch = int(row["micro_batch"]) * int(row["num_microbatches"]) * replicas
    settings = {name: row[name] for name in SETTINGS if row[name]}
    settings |= {"dp": str(replicas), "zero": "3"}
    stack = str(ROOT / row["stack"]) if row["stack"].endswith(".yaml") else row["stack"]
    plan = planner.estimate(
        row["model"], row["cluster"], chips, seq_len=int(row["seq_len"]), global_batch=batch, stack=stack,
        set=settings,
    )  # fmt: skip
    return float(plan.choices[0].memory.peak)


def cases() -> Iterator[Case]:
    """All of the table."""
    for row in rows():
        yield Case(row, float(row["arguments"]), float(row["temporaries"]), told(row))


def section(found: Sequence[Case]) -> str:
    """What stands in RESULTS.md."""
    lines = [
        "| model | chips | tokens x sequences | tp x cp | remat_policy | arguments | temporaries | planner | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in found:
        row, policy = case.row, re.search(r"remat_policy=(\S+)", case.row["maxtext"])
        shape = f"{int(row['seq_len']):,} x {row['micro_batch']}"
        shape += f", {row['num_microbatches']} accumulated" if row["num_microbatches"] != "1" else ""
        what = (policy[1] if policy else "") + (", inputs offloaded" if row["offload"] else "")
        what += NOTED.get(row["stack"], "")
        figures = (case.arguments, case.temporaries, case.told)
        gib = " | ".join(f"{figure / GIB:.1f} GiB" for figure in figures)
        name = f"{row['chips']} {row['cluster'].removeprefix('tpu-')}"
        lines.append(
            f"| {row['model']} | {name} | {shape} | {row['tp']} x {row['cp']} | {what} | {gib} | {case.ratio:.2f} |"
        )
    errors = [abs(case.ratio - 1.0) for case in found]
    said = f"{len(found)} cases: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}."
    return "\n".join([*lines, "", said])


def buffers(text: str) -> tuple[int, int]:
    """Bytes of arguments and of temporaries in the device's memory, of a dumped buffer assignment."""
    arguments = temporaries = 0
    for size, rest in ALLOCATION.findall(text):
        if "thread-local" in rest or "color" in rest:  # registers, or memory on the chip
            continue
        if " parameter " in rest:
            arguments += int(size)
        else:
            temporaries += int(size)
    return arguments, temporaries


def compiled(python: str, maxtext: Path, given: Sequence[str]) -> tuple[int, int]:
    """The same of a case that is compiled now. Raises `RuntimeError` where the compiler ends without buffers."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_step.*"
        command = [
            python,
            "-m",
            PROGRAM,
            "src/maxtext/configs/base.yml",
            "compile_topology_num_slices=1",
            *given,
        ]
        process = subprocess.Popen(
            command, cwd=maxtext, env={**os.environ, **ALONE, "XLA_FLAGS": flags}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        ended = time.monotonic() + PATIENCE
        try:
            while True:
                over = process.poll() is not None or time.monotonic() > ended
                # written behind the buffer assignment
                if list(Path(folder).glob("*train_step*memory-usage-report.txt")):
                    (dumped,) = Path(folder).glob("*train_step*after_optimizations-buffer-assignment.txt")
                    return buffers(dumped.read_text(encoding="utf-8"))
                if over:
                    raise RuntimeError(f"XLA must place buffers, {' '.join(given)} ended without")
                time.sleep(1.0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def compile_all(python: str, maxtext: Path) -> None:
    """Compile every case of the table, one after the other, and write its bytes and versions."""
    asked = "import jax, importlib.metadata as m; print(jax.__version__, m.version('libtpu'))"
    jax, libtpu = subprocess.run(
        [python, "-c", asked], check=True, capture_output=True, text=True
    ).stdout.split()
    table = rows()
    for row in table:
        arguments, temporaries = compiled(python, maxtext, row["maxtext"].split())
        row.update(zip(COMPILED, (str(arguments), str(temporaries), jax, libtpu), strict=True))
        print(row["model"], row["maxtext"], arguments, temporaries, file=sys.stderr)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = judging("xla_memory", __doc__)
    parser.add_argument("--compile", nargs=2, metavar=("PYTHON", "MAXTEXT"), help="compile all cases first")
    given = parser.parse_args(arguments)
    if given.compile:
        compile_all(given.compile[0], Path(given.compile[1]))
    found = list(cases())
    tell(given, SECTION, section(found), found)


if __name__ == "__main__":
    main()
