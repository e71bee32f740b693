"""What does `planner calibrate` do? Reads what was measured on a cluster, and writes corrections for it.

Left out: reading formats and estimating (`calibrate/`), and how it looks (`report/calibration.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.ask.question import Question
from planner.cli.options import JsonOption, Shown
from planner.cli.output import check_output, say, say_json
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.calibrate.correction.estimate import Calibration
    from planner.calibrate.logs.machine import Nodes
    from planner.calibrate.logs.nccl_tests import LinkFit
    from planner.spec.machine.accelerator import Accelerator
    from planner.spec.machine.cluster import Cluster
    from planner.spec.overlay import Overlay

NO_MODEL = "-"
EPILOG = (
    "\b\nExamples:\n"
    "  planner calibrate llama-3-8b dgx-h100 --gpus 16 --global-batch 128 -o ours.yaml \\\n"
    "    --run a.log:tp=2 --run b.log:tp=4,micro_batch=2 --run '7.9 s:tp=1,pp=2'\n"
    "  planner calibrate - '4x8 h100 400G-ib' --nccl all_reduce.txt --topo topo.txt -o ours.yaml\n"
    "  planner plan llama-3-8b dgx-h100 --gpus 64 --calibration ours.yaml"
)


SUBJECT = {
    "model": Shown(text="Model of the runs; - where no runs are given (nothing is read from stdin)."),
    "cluster": Shown(text="Cluster they ran on."),
}
RunOption = Annotated[
    list[str] | None,
    typer.Option(
        "--run",
        metavar="LOG[:AXIS=V,...]",
        help="A log, '7.9 s' or '9300 tokens/s/GPU', with its own axes, gpus, seq_len, global_batch; repeatable.",
    ),
]
NcclOption = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Output of nccl-tests or rccl-tests; repeatable.")
]
ProfileOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Profile written by planner probe.")]
TopoOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Output of nvidia-smi topo -m or rocm-smi --showtopo.")
]
NodesOption = Annotated[
    str | None, typer.Option(metavar="FILE|LIST", help="Hostfile, or Slurm list such as gpu[001-064].")
]
ClusterFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the machine that --topo and --nodes show (YAML)."),
]
NameOption = Annotated[str, typer.Option(help="What to call the calibration.")]
OverlayOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the calibration here (YAML).")
]


def calibrate(
    asked: Annotated[Question, SUBJECT],
    run: RunOption = None,
    nccl: NcclOption = None,
    profile: ProfileOption = None,
    topo: TopoOption = None,
    nodes: NodesOption = None,
    cluster_file: ClusterFileOption = None,
    name: NameOption = "own measurements",
    output: OverlayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Correct predictions with your own measurements. Runs, link tests or a probe of your cluster."""
    from planner.calibrate.logs.machine import read_nodes
    from planner.calibrate.own_runs import parse_run
    from planner.catalog.load_overlay import save_overlay
    from planner.report.calibration import calibration_document, calibration_facts
    from planner.report.text import bullets, section
    from planner.spec.overlay import LONGEST_NAME
    from planner.spec.save import save_text

    if not 1 <= len(name) <= LONGEST_NAME:
        raise InputError(f"--name must have from 1 to {LONGEST_NAME} characters", f"{len(name)}")
    if asked.model == NO_MODEL and run:
        raise InputError(
            "runs need the model that they trained", asked.model, "give its name or config.json first"
        )
    if asked.calibration is not None:
        hint = "leave out --calibration, and give what it was made from again: --run, --nccl, --profile"
        raise InputError(
            "a calibration corrects the shipped numbers, not another one", asked.calibration, hint
        )
    logs = [parse_run(text)[0] for text in run or []]
    read = [asked, *logs, *(nccl or []), profile, topo, nodes]
    _check_outputs(output, bool(run or nccl or profile), cluster_file, bool(topo or nodes), read)
    hosts = read_nodes(nodes) if nodes else None
    machine = _machine(asked.cluster, asked.gpus, hosts, exact=cluster_file is not None)
    said, found = _machine_lines(machine, topo, hosts, cluster_file)
    overlay, runs, links, notes = _corrections(asked, machine, name, run or [], nccl or [], profile)
    said += notes
    if cluster_file is not None:
        save_text(found, cluster_file)
    if overlay is None:
        say_json({"notes": said}) if as_json else say(section("Machine", bullets(said)))
        return 0
    if output is not None:
        save_overlay(overlay, output)
    if as_json:
        say_json(calibration_facts(overlay, runs, links) | {"said": said})
    else:
        where = [f"written to {output}; use it with --calibration {output}"] if output else []
        say(calibration_document(overlay, runs, links, [*said, *where]))
    return 0


def _corrections(
    asked: Question, machine: Cluster, name: str, run: list[str], nccl: list[Path], profile: Path | None
) -> tuple[Overlay | None, Calibration | None, LinkFit | None, list[str]]:
    """What a probe, link tests and runs correct, in this order, and what is to be said of them."""
    said: list[str] = []
    overlay = None
    if profile is not None:
        overlay, left = _probed(profile, machine.accelerator, name)
        said += left
    links = _links(nccl, profile, machine) if nccl or profile else None
    if links is not None:
        overlay = _with_links(overlay, links, name)
    runs, notes = _runs(asked, run, name, overlay) if run else (None, ())
    if runs is not None:
        overlay = _joined(overlay, runs.overlay)
    return overlay, runs, links, [*said, *notes]


def _check_outputs(
    output: Path | None, corrects: bool, cluster_file: Path | None, describes: bool,
    read: Sequence[Question | Path | str | None],
) -> None:  # fmt: skip
    """Refuse files that cannot be written, that are read, or with nothing to write, before any work is done.

    Raises `InputError`.
    """
    from planner.spec.save import check_target

    if not (corrects or describes):
        hint = "give --run, --nccl, --profile, --topo or --nodes"
        raise InputError("something measured must be given", "nothing", hint)
    if output is not None and not corrects:
        hint = "leave -o out; --cluster-file writes the machine"
        raise InputError("a calibration needs --run, --nccl or --profile", "--topo or --nodes alone", hint)
    if cluster_file is not None and not describes:
        raise InputError(
            "--cluster-file needs what it writes", "neither --topo nor --nodes", "give one of them"
        )
    for file, other in ((output, cluster_file), (cluster_file, output)):
        if file is not None:
            check_target(file, other)
            check_output(file, *read)


def _machine(cluster: str, gpus: int | None, hosts: Nodes | None, exact: bool) -> Cluster:
    """The cluster; of a node type without a size, as many nodes as there are hosts, or, unless `exact`, as have every
    link. Raises `InputError`."""
    from planner.spec.machine.build_cluster import NodeTypeError
    from planner.spec.machine.load_cluster import load_cluster

    try:
        return load_cluster(cluster, gpus)
    except NodeTypeError as error:
        if hosts is None and exact:
            raise
        return load_cluster(cluster, len(hosts.names) * error.per_node if hosts else error.smallest)


def _machine_lines(
    machine: Cluster, topo: Path | None, hosts: Nodes | None, cluster_file: Path | None
) -> tuple[list[str], str]:
    """What the machine says of itself, and the file that describes it; empty where none is asked for."""
    from planner.calibrate.logs.machine import cluster_text, machine_notes, read_topology

    if topo is None and hosts is None:
        return [], ""
    topology = read_topology(topo) if topo else None
    lines = [*topology.lines] if topology else []
    if hosts is not None:
        lines.append(f"{len(hosts.names)} nodes, {hosts.names[0]} to {hosts.names[-1]}")
    notes = machine_notes(machine, topology, hosts)
    text = ""
    if cluster_file is not None:
        text = cluster_text(machine, topology, hosts, cluster_file.stem)
        lines.append(f"the machine as a cluster: {cluster_file}")
    return [*lines, *(f"contradicts the cluster given: {note}" for note in notes)], text


def _links(files: list[Path], profile: Path | None, machine: Cluster) -> LinkFit | None:
    """What tables of link tests, and the collectives of a profile, say of the links."""
    from planner.calibrate.logs.nccl_tests import fit_links, read_tests
    from planner.calibrate.profile import link_tests, read_profile

    tests = [test for file in files for test in read_tests(file)]
    if profile is not None:
        tests += link_tests(read_profile(profile), str(profile))
    return fit_links(tests, machine) if tests else None


def _with_links(overlay: Overlay | None, links: LinkFit, name: str) -> Overlay:
    from planner.spec.overlay import LinkSection, Overlay

    f = links.factors
    section = LinkSection(
        scale_up_bandwidth=round(f.scale_up_bandwidth, 4), scale_up_latency=round(f.scale_up_latency, 4),
        fabric_bandwidth=round(f.fabric_bandwidth, 4), fabric_latency=round(f.fabric_latency, 4),
    )  # fmt: skip
    tests = tuple(f"{test.name}: {test.bus_bandwidth / 1e9:.0f} GB/s" for test in links.tests)
    if overlay is not None:
        made_from = (*overlay.made_from, *tests)
        return overlay.model_copy(update={"links": section, "made_from": made_from})
    return Overlay(name=name, date=_today(), level="L2", made_from=tests, links=section)


def _runs(
    asked: Question, texts: list[str], name: str, overlay: Overlay | None
) -> tuple[Calibration, tuple[str, ...]]:
    from planner.calibrate.correction.estimate import calibrate as estimate
    from planner.calibrate.correction.estimate import corrected
    from planner.calibrate.own_runs import observe

    observations, said = [], []
    for text in texts:
        seen, assumed = observe(asked, text)
        observations.append(seen)
        said += [line for line in assumed if line not in said]
    if overlay is not None:  # what the links and kernels explain is not explained again
        observations = corrected(observations, overlay)
    return estimate(observations, name, _today()), tuple(said)


def _joined(first: Overlay | None, runs: Overlay) -> Overlay:
    """Corrections by probes and link tests, and those by runs on top of them."""
    if first is None:
        return runs
    multiply = dict(first.multiply)
    for path, factor in runs.multiply.items():
        multiply[path] = round(multiply.get(path, 1.0) * factor, 4)
    update = {
        "multiply": multiply, "values": first.values, "links": first.links,
        "made_from": (*first.made_from, *runs.made_from),
    }  # fmt: skip
    return runs.model_copy(update=update)


def _probed(profile: Path, accelerator: Accelerator, name: str) -> tuple[Overlay, tuple[str, ...]]:
    from planner.calibrate.profile import not_used, overlay_of, read_profile

    held = read_profile(profile)
    return overlay_of(held, accelerator, name, _today()), not_used(held, accelerator)


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
