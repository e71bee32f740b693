"""Are tables of link tests read as they are, and do the factors found from them say what was slow?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.published_data import small_input
from planner.calibrate.logs.machine import (
    cluster_text,
    expand_nodes,
    machine_notes,
    parse_topology,
    read_nodes,
    read_topology,
)
from planner.calibrate.logs.nccl_tests import LinkTest, fit_links, parse_tests, predicted_times, read_tests
from planner.catalog.cluster_rates import rates_of
from planner.cost.network.collectives import CollectiveKind
from planner.errors import FileInputError, InputError
from planner.report.words import texts
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkFactors
from planner.spec.machine.load_cluster import load_cluster
from tests.calibrate.link_output import ROCM_TOPOLOGY, TOPOLOGY, table

NODES = load_cluster("dgx-h100", 32)
KINDS = {
    "all_reduce": CollectiveKind.ALL_REDUCE, "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER, "alltoall": CollectiveKind.ALL_TO_ALL,
    "sendrecv": CollectiveKind.P2P,
}  # fmt: skip


def as_if(op: str, hosts: int, cluster: Cluster, factors: LinkFactors) -> str:
    """The output of a test on links that are `factors` of what planner expects."""
    rates = rates_of(cluster)[1].scaled(factors)

    def seconds(size: float) -> float:
        test = LinkTest("", KINDS[op], (8,) * hosts, "", np.array([size]), np.ones(1))
        return float(predicted_times(test, cluster, rates)[0])

    return table(op, hosts, 8, seconds)


@pytest.mark.parametrize("op", KINDS)
@pytest.mark.parametrize("hosts", [1, 4])
def test_every_operation_on_one_node_and_several(op: str, hosts: int) -> None:
    (test,) = parse_tests(as_if(op, hosts, NODES, LinkFactors()), "x")
    assert (test.kind, test.ranks, len(test.hosts)) == (KINDS[op], 8 * hosts, hosts)
    assert test.sizes[-1] == 2.0**33
    fit = fit_links([test], NODES)
    for name in ("scale_up_bandwidth", "scale_up_latency", "fabric_bandwidth", "fabric_latency"):
        assert getattr(fit.factors, name) == pytest.approx(1.0, abs=0.05), name


def test_output_of_an_old_release() -> None:
    text = table("all_reduce", 1, 8, lambda size: 2e-5 + size / 2e11, old=True)
    (test,) = parse_tests(text, "logs/all_reduce_8.txt")
    assert test.ranks == 8
    with pytest.raises(FileInputError, match="which collective"):
        parse_tests(text, "out.txt")


@pytest.mark.parametrize("device", ["AMD Instinct MI300X", ""])
def test_rccl_tests(device: str) -> None:
    (test,) = parse_tests(table("alltoall", 2, 8, lambda s: 5e-5 + s / 5e10, device=device), "x")
    assert (test.device, test.hosts) == (device, (8, 8))


def test_several_tables_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("".join(as_if(op, 1, NODES, LinkFactors()) for op in KINDS))
    assert [test.kind for test in read_tests(tmp_path / "all.txt")] == list(KINDS.values())


def test_a_fabric_at_a_quarter_is_found() -> None:
    slow = LinkFactors(fabric_bandwidth=0.25, fabric_latency=2.0)
    tests = [
        *parse_tests(as_if("all_reduce", 4, NODES, slow), "a"),
        *parse_tests(as_if("all_gather", 4, NODES, slow), "b"),
        *parse_tests(as_if("all_reduce", 1, NODES, slow), "c"),
    ]
    fit = fit_links(tests, NODES)
    assert fit.factors.fabric_bandwidth == pytest.approx(0.25, rel=0.15)
    assert fit.factors.fabric_latency == pytest.approx(2.0, rel=0.3)
    assert fit.factors.scale_up_bandwidth == pytest.approx(1.0, abs=0.05)
    assert max(fit.after) < 0.1 < max(fit.before)
    assert "Socket" in texts(fit.findings)[0]


@pytest.mark.parametrize("seed", range(24))
def test_a_fabric_of_any_rate_is_found(seed: int) -> None:
    """From 1 to 100 % of the expected rate, with the noise of one size after the other: within 20 %."""
    rng = np.random.default_rng(seed)
    share, late = 10.0 ** rng.uniform(-2, 0), 10.0 ** rng.uniform(0, 1)
    slow = LinkFactors(fabric_bandwidth=share, fabric_latency=late)
    tests = parse_tests(as_if(list(KINDS)[seed % len(KINDS)], int(rng.integers(2, 5)), NODES, slow), "a")
    noisy = [replace(test, times=test.times * rng.lognormal(0, 0.05, len(test.times))) for test in tests]
    fit = fit_links(noisy, NODES)
    assert fit.factors.fabric_bandwidth == pytest.approx(share, rel=0.2)
    assert ("slow_links_between" in {one.code for one in fit.findings}) == (
        fit.factors.fabric_bandwidth < 0.5
    )


def test_a_bandwidth_that_falls_is_told_or_refused() -> None:
    for falls, refused in ((3.0, False), (300.0, True)):
        (test,) = parse_tests(as_if("all_reduce", 4, NODES, LinkFactors()), "a")
        large = test.sizes >= (2.0**31 if not refused else 2.0**22)
        broken = replace(
            test, times=test.times * np.where(large, falls * test.sizes / test.sizes[-1], 1.0).clip(1.0)
        )
        if refused:
            broken = replace(
                test, times=test.times * np.where(large, falls ** np.linspace(0, 2, len(large)), 1.0)
            )
            with pytest.raises(InputError, match="a bandwidth and a latency"):
                fit_links([broken], NODES)
        else:
            assert "bandwidth_falls" in {one.code for one in fit_links([broken], NODES).findings}


def test_slow_links_in_a_node_are_looked_for_in_the_node() -> None:
    slow = LinkFactors(scale_up_bandwidth=0.3)
    (found,) = fit_links(parse_tests(as_if("all_reduce", 1, NODES, slow), "a"), NODES).findings
    said = texts([found])[0]
    assert "inside a node" in said
    assert "P2P" in said
    assert "Socket" not in said


def test_tests_that_contradict_are_refused() -> None:
    one = parse_tests(as_if("all_reduce", 1, NODES, LinkFactors()), "a")
    other = parse_tests(as_if("all_reduce", 1, NODES, LinkFactors(scale_up_bandwidth=0.3)), "b")
    with pytest.raises(InputError, match="agree"):
        fit_links([*one, *other], NODES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "table"),
        ("garbage\n" * 1000, "table"),
        (table("all_reduce", 1, 8, lambda s: 1e-5).replace("0 OK", "3 FAILED"), "right results"),
        (table("all_reduce", 1, 8, lambda s: 1e-5).replace("#  Rank", "#  Process"), "ranks"),
    ],
)  # fmt: skip
def test_what_is_no_table(text: str, said: str) -> None:
    with pytest.raises(FileInputError, match=said):
        parse_tests(text, "x")


def test_a_table_that_is_not_there_is_told_what_writes_it(tmp_path: Path) -> None:
    with pytest.raises(FileInputError, match=r"run all_reduce_perf .* > links\.txt"):
        read_tests(tmp_path / "links.txt")


def test_of_another_cluster() -> None:
    tests = parse_tests(as_if("all_reduce", 1, NODES, LinkFactors()), "x")
    with pytest.raises(InputError, match="this cluster"):
        fit_links(tests, load_cluster("2x4 h100 400G-ib", None))


def test_truncated_tables() -> None:
    text = as_if("all_reduce", 2, NODES, LinkFactors())
    for end in range(0, len(text), 97):
        try:
            for test in parse_tests(text[:end], "x"):
                assert (test.times > 0).all()
        except FileInputError:
            pass


def test_topology() -> None:
    found = parse_topology("\x1b[4m" + TOPOLOGY, "topo.txt")
    assert (found.devices, found.cards, found.links, found.worst, found.near) == (4, 2, (18, 18), "NV", 2)
    no_nvlink = parse_topology(TOPOLOGY.replace("NV18", "PHB"), "topo.txt")
    assert (no_nvlink.links, no_nvlink.worst) == ((0, 0), "PHB")
    assert any("no NVLink" in note for note in machine_notes(NODES, no_nvlink, None))


def test_topology_of_rocm() -> None:
    found = parse_topology(ROCM_TOPOLOGY, "topo.txt")
    assert (found.devices, found.cards, found.links, found.worst) == (3, 0, (1, 1), "XGMI")
    one_far = parse_topology(ROCM_TOPOLOGY.replace("GPU2   XGMI", "GPU2   PCIE"), "topo.txt")
    assert (one_far.links, one_far.worst) == ((1, 0), "PCIE")
    assert "no Infinity Fabric between some" in one_far.lines[0]
    amd = load_cluster("1x8 mi300x 400G-ib", None)
    assert not [note for note in machine_notes(amd, found, None) if "pairs" in note]
    assert [note for note in machine_notes(amd, one_far, None) if "no Infinity Fabric" in note]
    assert "xgmi" in cluster_text(amd, found, None, "ours")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0",
        ROCM_TOPOLOGY[:560],
        ROCM_TOPOLOGY.replace("XGMI", "FOO"),
        TOPOLOGY[:200],
        "GPU0\tX\n" * 3,
        "\x00\xff",
    ],
)
def test_no_topology(text: str) -> None:
    with pytest.raises(FileInputError):
        parse_topology(text, "topo.txt")


def test_node_lists(tmp_path: Path) -> None:
    assert expand_nodes("gpu[001-003,007],login1") == ["gpu001", "gpu002", "gpu003", "gpu007", "login1"]
    assert expand_nodes("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
    file = tmp_path / "hosts"
    file.write_text("# two\nnode-1 slots=8\nnode-2 slots=8 max_slots=8\n\n")
    assert read_nodes(str(file)).slots == 8
    file.write_text("a slots=8\nb slots=4\n")
    with pytest.raises(FileInputError, match="as many"):
        read_nodes(str(file))
    for bad in ("", "[", "a[1-", "a[5-1]", "a[1-99999999]", "a b;rm", "a[x-y]"):
        with pytest.raises(InputError):
            read_nodes(bad)
    assert machine_notes(NODES, None, read_nodes("n[1-3]"))
    assert not machine_notes(NODES, None, read_nodes("n[1-4]"))


def test_the_machine_as_a_cluster_file(tmp_path: Path) -> None:
    topology, hosts = parse_topology(TOPOLOGY, "topo.txt"), read_nodes("gpu[1-6]")
    (tmp_path / "ours.yaml").write_text(cluster_text(NODES, topology, hosts, "ours"))
    found = load_cluster(str(tmp_path / "ours.yaml"), None)
    assert (found.num_devices, found.devices_per_node) == (24, 4)
    assert found.accelerator.name == NODES.accelerator.name
    (tmp_path / "same.yaml").write_text(cluster_text(NODES, None, None, "same"))
    same = load_cluster(str(tmp_path / "same.yaml"), None)
    assert same.tiers[1].bandwidth == pytest.approx(NODES.tiers[1].bandwidth)


@pytest.mark.parametrize("launcher", ["srun_l", "mpi_tag", "mpich_rank", "kubectl_time"])
def test_tables_behind_launchers(launcher: str) -> None:
    (test,) = read_tests(small_input(f"{launcher}_all_reduce.txt"))
    (plain,) = read_tests(small_input("slow_fabric_all_reduce.txt"))
    assert (test.kind, test.hosts, test.sizes.tolist()) == (plain.kind, plain.hosts, plain.sizes.tolist())


def test_a_fabric_fifty_times_too_slow_is_said_to_be_broken() -> None:
    fit = fit_links(read_tests(small_input("slow_fabric_all_reduce.txt")), load_cluster("dgx-h100", 16))
    assert fit.factors.fabric_bandwidth < 0.05
    assert max(fit.after) < 0.2
    assert "broken" in texts(fit.findings)[0]


def test_json_of_nccl_tests_says_what_its_table_says() -> None:
    text = as_if("all_gather", 2, NODES, LinkFactors())
    (plain,) = parse_tests(text, "x")
    devices = [
        {"rank": rank, "group": 0, "hostname": f"n{rank // 8}", "device": rank % 8, "device_info": "H100"}
        for rank in range(16)
    ]
    results = [
        {"size": int(size), "out_of_place": {"time": seconds * 1e6, "bus_bw": 1.0}, "in_place": None}
        for size, seconds in zip(plain.sizes, plain.times, strict=True)
    ]
    document = {
        "version": 1, "args": ["build/all_gather_perf", "-b", "8"], "config": {"devices": devices},
        "results": results, "out_of_bounds": {"count": 0, "okay": "true"},
    }  # fmt: skip
    (test,) = parse_tests(json.dumps(document), "x")
    assert (test.kind, test.hosts) == (plain.kind, plain.hosts)
    assert test.times == pytest.approx(plain.times, rel=1e-3)
    for broken in ("{", json.dumps({**document, "config": []}), json.dumps({**document, "results": []})):
        with pytest.raises(FileInputError):
            parse_tests(broken, "x")
    with pytest.raises(FileInputError, match="right results"):
        parse_tests(json.dumps({**document, "out_of_bounds": {"count": 3}}), "x")


def test_a_tray_does_not_part_the_domain_that_it_lies_in() -> None:
    found = read_topology(small_input("gb200_tray_topo.txt"))
    for devices, domain in ((72, 72), (144, 72), (36, 36)):
        text = cluster_text(load_cluster("gb200-nvl72", devices), found, None, "ours")
        assert yaml.safe_load(text)["node"]["scale_up"]["domain"] == domain


def test_cards_that_no_device_is_near_to_are_not_counted() -> None:
    assert read_topology(small_input("storage_cards_topo.txt")).cards == 4
