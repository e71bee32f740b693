"""What does `planner probe` do? Times this machine's device with torch and writes a profile for `planner calibrate`.

Left out: what is timed and how (`calibrate/probe.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from planner.cli.options import JsonOption
from planner.cli.output import progress, say, say_json, updates

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.calibrate.profile import Measurement, Profile

EPILOG = (
    "\b\nExamples:\n  planner probe -o profile.json\n"
    "  torchrun --nproc-per-node 8 -m planner probe -o profile.json\n"
    "  planner calibrate - dgx-h100 --profile profile.json -o ours.yaml"
)
SHAKY: Final = 0.2


def probe(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Profile to write, or to go on with (JSON)."),
    ],
    device: Annotated[
        str | None, typer.Option(help="cuda (ROCm too) or cpu (default: a GPU if there is one).")
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small shapes, to try it out.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Benchmark GEMMs, attention and collectives here. And a layer; needs torch alone."""
    from planner.calibrate.probe import probe as measure
    from planner.spec.save import check_target

    check_target(output)
    with progress("probing") as spinner:
        profile, leads = measure(output, device, tiny, updates(spinner))
    if not leads:
        return 0
    if as_json:
        say_json(profile.model_dump(mode="json"))
    else:
        say(_document(profile))
    sys.stderr.write(f"profile written to {output}; use it with planner calibrate --profile\n")
    return 0


def _document(profile: Profile) -> RenderableType:
    from rich.console import Group

    from planner.report.text import listing, prose, section

    rows = [(f"{m.kind.replace('_', ' ')}: {m.name}", _shape(m), *_figures(m)) for m in profile.measurements]
    versions = ", ".join(f"{key} {value}" for key, value in sorted(profile.versions.items()))
    device = profile.device
    shaky = sum(m.seconds is not None and m.spread > SHAKY for m in profile.measurements)
    notes = ["spread: width of the middle half of an operation's times over their median"]
    if shaky:
        notes.append(
            f"{shaky} of {len(rows)} operations spread by more than {SHAKY:.0%}, so that their times say little: "
            "measure again into another file when nothing else runs on the machine"
        )
    return Group(
        prose(f"{device.name} ({device.kind}): {len(rows)} operations", "bold green"),
        prose(versions),
        section("Measured", listing(("operation", "shape", "time", "spread", "rate"), rows, left=2)),
        *map(prose, notes),
    )


def _shape(measured: Measurement) -> str:
    return " ".join(f"{name}={value}" for name, value in measured.shape.items())


def _figures(measured: Measurement) -> tuple[str, str, str]:
    from planner.units import format_bandwidth, format_capacity, format_compute, format_time

    if measured.seconds is None:
        return "skipped", "", measured.skipped[:40]
    shape, seconds, rate = measured.shape, measured.seconds, ""
    if measured.kind == "gemm":
        rate = format_compute(2.0 * shape["m"] * shape["n"] * shape["k"] / seconds)
    elif measured.kind == "grouped_gemm":
        rate = format_compute(2.0 * shape["rows"] * shape["n"] * shape["k"] / seconds)
    elif "bytes" in shape:
        rate = format_bandwidth(shape["bytes"] / seconds)
    elif measured.peak_memory:
        rate = f"peak {format_capacity(measured.peak_memory)}"
    return format_time(seconds), f"{measured.spread:.0%}", rate
