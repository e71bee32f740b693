"""What do the links reach? Reads tables of nccl-tests and rccl-tests, and fits what they say of a cluster's links.

Two factors for the links inside a scale-up domain and two for those between: bandwidth, and time of an empty message;
a table from one node speaks of the first, one from several of the second. Left out: contention between groups.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.calibrate.logs.text import plain
from planner.catalog.cluster_rates import rates_of
from planner.cost.network.collectives import CollectiveKind, collective_time, p2p_time
from planner.cost.network.traffic import GroupLinks
from planner.dialect import option
from planner.errors import FileInputError, InputError
from planner.spec.findings import Finding, finding
from planner.spec.load_file import read_text
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkFactors, LinkRates
from planner.units import format_bandwidth

Array = NDArray[np.float64]

LARGEST_FILE: Final = 50_000_000  # bytes
SMALLEST_SIZE: Final = 256.0  # bytes; below, timers say more than links
_RUN: Final = "run all_reduce_perf -b 8 -e 4G -f 2"
_NAMES: Final = (
    ("all_reduce", CollectiveKind.ALL_REDUCE),
    ("all_gather", CollectiveKind.ALL_GATHER),
    ("reduce_scatter", CollectiveKind.REDUCE_SCATTER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("all_to_all", CollectiveKind.ALL_TO_ALL),
    ("sendrecv", CollectiveKind.P2P),
)
_RANK: Final = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+\d+\s*(?:\[[^\]]*\])?\s*(.*)"
)
_START: Final = re.compile(r"# (?:Collective test starting:|nThread\b)")
_ROW: Final = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(?:\S+\s+){1,3}?(?:-?\d+\s+)?([\d.]+(?:e[+-]?\d+)?)\s+([\d.]+)\s+([\d.]+)\s+(\S+)(?:\s|$)"
)
# widths of the prior [log]: a well-kept machine lies within a fifth of a like one; latencies spread more. Its tails are
# Student's with 4 degrees of freedom: links that are broken are a hundred times slower
_PRIOR: Final = (0.4, 0.7)
_NOISE: Final = 0.12
_TELLING: Final = 5.0  # independent sizes that a table of many stands for
_SENT: Final = 2.0**20  # bytes: where training sends, messages of which weigh `_WEIGHT` times those below
_WEIGHT: Final = 3.0
_SLOWEST: Final = math.log(1e-3)  # of what is looked for
_LEFT: Final = 0.3  # relative error where training sends above which the factors do not describe the links
_CONTRADICTS: Final = 1.0  # and above which they describe nothing
_REPAIR: Final = "repair the links first: NCCL_DEBUG=INFO, and the test again with -b 1M -e 8G"
_SLOW, _BROKEN = (
    0.5,
    0.1,
)  # shares of what such links reach below which they are looked into, and are not merely slow
_FALLS: Final = 1.5  # largest bandwidth of a table over that of its largest message: more is a collapse


@dataclass(frozen=True)
class LinkTest:
    """One table. `hosts`: ranks on each; `sizes` [bytes], `times` [s]."""

    file: str
    kind: CollectiveKind
    hosts: tuple[int, ...]
    device: str
    sizes: Array
    times: Array

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return sum(self.hosts)

    @property
    def name(self) -> str:
        """The test in words."""
        return f"{self.kind} on {self.ranks} devices of {len(self.hosts)} node{'s' * (len(self.hosts) > 1)}"

    @property
    def bus_bandwidths(self) -> Array:
        """Of every message, as nccl-tests counts it [bytes/s]."""
        n = self.ranks
        share = {CollectiveKind.ALL_REDUCE: 2 * (n - 1) / n, CollectiveKind.P2P: 1.0}.get(
            self.kind, (n - 1) / n
        )
        return np.asarray(share * self.sizes / self.times)

    @property
    def bus_bandwidth(self) -> float:
        """Of the largest message [bytes/s]."""
        return float(self.bus_bandwidths[-1])


def read_tests(path: Path) -> list[LinkTest]:
    """Every table in a file. Raises `FileInputError`."""
    text = read_text(path, LARGEST_FILE, missing=f"check the path, or {_RUN} > {path.name}")
    return parse_tests(text, str(path))


def parse_tests(text: str, name: str) -> list[LinkTest]:
    """Every table in the output of nccl-tests or rccl-tests. Raises `FileInputError`."""
    if text.lstrip().startswith("{"):
        return [_parse_json(text, name)]
    blocks: list[list[str]] = [[]]
    for raw in text.splitlines():
        line, _ = plain(raw)
        if _START.match(line) and any(map(_ROW.match, blocks[-1])):
            blocks.append([])
        blocks[-1].append(line)
    tests = [test for block in blocks if (test := _parse_block(block, name)) is not None]
    if not tests:
        must = "must hold a table of nccl-tests or rccl-tests"
        raise FileInputError(name, must, "no row of sizes and times", _RUN)
    return tests


def _parse_block(lines: Sequence[str], name: str) -> LinkTest | None:
    hosts: dict[str, set[int]] = {}
    device, sizes, times, wrong = "", [], [], False
    for line in lines:
        if match := _RANK.match(line):
            hosts.setdefault(match[2], set()).add(int(match[1]))
            device = match[3].strip()
        elif "Out of bounds values" in line and "FAILED" in line:
            wrong = True
        elif match := _ROW.match(line):
            size, time = float(match[1]), float(match[3]) * 1e-6
            if size >= SMALLEST_SIZE and time > 0 and math.isfinite(size):
                sizes.append(size)
                times.append(time)
    if not sizes:
        return None
    if wrong:
        must = "the collectives of a test must give right results"
        raise FileInputError(name, must, "out of bounds values: FAILED", "repair the machine first")
    if not hosts:
        must = "the output must list its ranks (# Rank 0 ... on HOST ...)"
        raise FileInputError(name, must, "no such line", "keep the head of the output")
    order = np.argsort(sizes, kind="stable")
    counts = tuple(len(ranks) for ranks in hosts.values())
    kind = _kind_of(lines, name)
    return LinkTest(name, kind, counts, device, np.array(sizes)[order], np.array(times)[order])


def _parse_json(text: str, name: str) -> LinkTest:
    """What nccl-tests wrote with -J (NVIDIA/nccl-tests a0b82b2 src/util.cu). Raises `FileInputError`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise FileInputError(name, "must be JSON where it begins with a brace", "no JSON", _RUN) from None
    hosts: dict[str, set[int]] = {}
    try:
        devices = document["config"]["devices"]
        for one in devices:
            hosts.setdefault(str(one["hostname"]), set()).add(int(one["rank"]))
        rows = [
            (float(row["size"]), row.get("out_of_place") or row["in_place"]) for row in document["results"]
        ]
        times = [(size, float(row["time"]) * 1e-6) for size, row in rows]
        right = document.get("out_of_bounds", {}).get("count", 0) == 0
        command, device = " ".join(map(str, document["args"])), str(devices[0].get("device_info", ""))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        must = "must be what nccl-tests writes with -J: args, config.devices and results"
        raise FileInputError(name, must, "other JSON", _RUN) from None
    lines = [f"#  Rank {rank} Pid 0 on {host} device 0 {device}" for host, of in hosts.items() for rank in of]
    lines += [f"# Collective test starting: {command}", *([] if right else ["Out of bounds values FAILED"])]
    lines += [f"{size:.0f} 0 float {seconds * 1e6:.6f} 0 0 0" for size, seconds in times]
    found = _parse_block(lines, name)
    if found is None:
        raise FileInputError(name, "must hold a table of nccl-tests", "no result", _RUN)
    return found


def _kind_of(lines: Sequence[str], name: str) -> CollectiveKind:
    """The collective of a table: from the lines above it, else from the name of the file."""
    file = Path(name).stem.lower().replace("-", "_")
    for text, suffix in (("\n".join(lines), "_perf"), (file, "")):
        found = [kind for word, kind in _NAMES if word + suffix in text]
        if found:
            return found[0]
    hint = "name the file after it, such as all_gather.txt, or keep the command line in it"
    raise FileInputError(
        name, "the output must say which collective it is", "neither text nor name does", hint
    )


def predicted_times(test: LinkTest, cluster: Cluster, rates: LinkRates) -> Array:
    """What planner predicts for the sizes of a test on a cluster [s]."""
    ranks, local = float(test.ranks), float(min(max(test.hosts), test.ranks))
    nvlink = cluster.tiers[0].bandwidth
    fabric = cluster.tiers[1].bandwidth if len(cluster.tiers) > 1 else nvlink
    if test.kind is CollectiveKind.P2P:
        return np.asarray(p2p_time(test.sizes, len(test.hosts) > 1, nvlink, fabric, rates))
    group = GroupLinks(ranks, local, nvlink, fabric, fabric)
    return np.asarray(collective_time(test.kind, test.sizes, group, rates))


@dataclass(frozen=True)
class LinkFit:
    """Factors of a cluster's links, and the median error of the tests before and after [1]."""

    factors: LinkFactors
    before: tuple[float, ...]
    after: tuple[float, ...]
    tests: tuple[LinkTest, ...]
    findings: tuple[Finding, ...] = ()


def _remarkable(factors: LinkFactors, left: Sequence[tuple[LinkTest, Array]]) -> Iterator[Finding]:
    """What is remarkable about the links. `left`: of each test the error of every size under the factors [1]."""
    inside, between = factors.scale_up_bandwidth, factors.fabric_bandwidth
    if inside < _SLOW:
        yield finding("slow_links_inside", share=inside, broken=inside < _BROKEN)
    if between < _SLOW:
        yield finding("slow_links_between", share=between, broken=between < _BROKEN)
    for test, errors in left:
        wide = test.bus_bandwidths
        best = int(wide.argmax())
        if wide[best] > _FALLS * test.bus_bandwidth:
            yield finding(
                "bandwidth_falls", test=test.name, size=float(test.sizes[best]), most=float(wide[best]),
                last=float(test.sizes[-1]), least=test.bus_bandwidth,
            )  # fmt: skip
        sent = np.where(test.sizes >= _SENT, np.abs(errors), 0.0)
        if sent.max() > _LEFT:
            worst = int(sent.argmax())
            yield finding(
                "links_not_described", test=test.name, size=float(test.sizes[worst]), off=float(errors[worst])
            )


def fit_links(tests: Sequence[LinkTest], cluster: Cluster) -> LinkFit:
    """Factors under which the tests are predicted best. Raises `InputError` where they are not of this cluster."""
    _check_tests(tests, cluster)
    rates = rates_of(replace(cluster, links=LinkFactors()))[1]
    inside = [test for test in tests if len(test.hosts) == 1]
    across = [test for test in tests if len(test.hosts) > 1]
    factors = LinkFactors()
    if inside:
        wide, late = _fit(inside, cluster, rates, factors, "scale_up")
        factors = replace(factors, scale_up_bandwidth=wide, scale_up_latency=late)
    if across:
        wide, late = _fit(across, cluster, rates, factors, "fabric")
        factors = replace(factors, fabric_bandwidth=wide, fabric_latency=late)
    before = [_errors(test, cluster, rates) for test in tests]
    after = [_errors(test, cluster, rates.scaled(factors)) for test in tests]
    for test, errors in zip(tests, after, strict=True):
        sent = test.sizes >= _SENT
        if sent.any() and float(np.median(np.abs(np.log1p(errors[sent])))) > math.log1p(_CONTRADICTS):
            reached = test.bus_bandwidths[sent]
            least, most = (format_bandwidth(float(of)) for of in (reached.min(), reached.max()))
            raise InputError(
                f"{test.file} must show links that a bandwidth and a latency describe",
                f"{least} to {most} for messages of 1 MiB and more", _REPAIR,
            )  # fmt: skip
    said = tuple(_remarkable(factors, list(zip(tests, after, strict=True))))
    return LinkFit(factors, tuple(map(_off, before)), tuple(map(_off, after)), tuple(tests), said)


def _check_tests(tests: Sequence[LinkTest], cluster: Cluster) -> None:
    for test in tests:
        if max(test.hosts) > cluster.devices_per_node:
            given = f"{max(test.hosts)} devices on a node, {cluster.name} has {cluster.devices_per_node}"
            raise InputError(f"{test.file} must be of this cluster", given, "name the cluster it ran on")
        if test.ranks < 2:
            raise InputError("a test of links needs two devices or more", f"{test.file}: one", "use -g 8")
        if len(test.hosts) > 1 and len(cluster.tiers) < 2:
            given = f"{len(test.hosts)} nodes; {cluster.name} as given is one"
            raise InputError(
                f"{test.file} must be of this cluster", given, f"add {option('gpus')}, or a larger cluster"
            )
    for i, one in enumerate(tests):
        for other in tests[:i]:
            if one.kind is other.kind and one.hosts == other.hosts:
                ratio = one.bus_bandwidth / other.bus_bandwidth
                if not 0.67 < ratio < 1.5:
                    given = ", ".join(f"{t.file}: {t.bus_bandwidth / 1e9:.0f} GB/s" for t in (one, other))
                    raise InputError(
                        f"tests of {one.name} must agree within a half", given, "measure on a quiet machine"
                    )


def _fit(
    tests: Sequence[LinkTest], cluster: Cluster, rates: LinkRates, factors: LinkFactors, where: str
) -> tuple[float, float]:
    """Bandwidth and latency factor of one tier: the most probable under a log-normal prior around 1."""
    centre, reach = np.array([(_SLOWEST + 1.5) / 2, 1.5]), np.array([(1.5 - _SLOWEST) / 2, 4.0])
    for _ in range(6):  # each round a grid a third as wide around the best point
        axes = [np.linspace(-1, 1, 13) * reach[i] + centre[i] for i in (0, 1)]
        loss = np.array(
            [
                [_loss(tests, cluster, rates, factors, where, wide, late) for late in axes[1]]
                for wide in axes[0]
            ]
        )
        best = np.unravel_index(int(loss.argmin()), loss.shape)
        centre, reach = np.array([axes[0][best[0]], axes[1][best[1]]]), reach / 3
    return float(np.exp(centre[0])), float(np.exp(centre[1]))


def _loss(
    tests: Sequence[LinkTest], cluster: Cluster, rates: LinkRates, factors: LinkFactors, where: str, wide: float,
    late: float,
) -> float:  # fmt: skip
    """Twice the negative log probability, up to a constant. Errors count by Huber's loss, smooth: the worse a link, the
    more they say."""
    changed = {f"{where}_bandwidth": math.exp(wide), f"{where}_latency": math.exp(late)}
    scaled = rates.scaled(replace(factors, **changed))
    total = sum(
        5.0 * math.log1p((value / width) ** 2 / 4.0)
        for value, width in zip((wide, late), _PRIOR, strict=True)
    )
    for test in tests:
        error = np.log(test.times / predicted_times(test, cluster, scaled)) / _NOISE
        weights = np.where(test.sizes >= _SENT, _WEIGHT, 1.0)
        total += 2.0 * _TELLING * float(np.average(np.sqrt(1.0 + error**2) - 1.0, weights=weights))
    return total


def _errors(test: LinkTest, cluster: Cluster, rates: LinkRates) -> Array:
    """Predicted over measured time of every size, less 1 [1]."""
    return predicted_times(test, cluster, rates) / test.times - 1


def _off(errors: Array) -> float:
    return float(np.median(np.abs(errors)))
