"""What papers write of a fabric, on nodes of A100s and H100s."""

import pytest

from benchmarks.published.fabrics import parse_fabric
from planner.spec.machine.cluster import LinkKind
from planner.spec.machine.load_cluster import load_accelerator


@pytest.mark.parametrize(
    ("text", "kind", "gbit_per_node", "assumes"),
    [
        ("RoCE 8x200G", LinkKind.ROCE, 1600, False),
        ("IB HDR 8x200G (Selene)", LinkKind.INFINIBAND, 1600, False),
        ("IB 8x400G (ConnectX-7)", LinkKind.INFINIBAND, 3200, False),
        ("RDMA 8x400G", LinkKind.ROCE, 3200, False),
        ("RoCE 1600Gbps per node", LinkKind.ROCE, 1600, False),
        ("RoCE 4x100G", LinkKind.ROCE, 400, False),
        ("OPA 4x100G", LinkKind.OMNIPATH, 400, False),
        ("IB 100G (1 port per node)", LinkKind.INFINIBAND, 100, False),
        ("800 Gbps per node", LinkKind.INFINIBAND, 800, True),
        ("50 GB/s per GPU, RoCE", LinkKind.ROCE, 3200, False),
        ("EFA 4x100Gb/s", LinkKind.EFA, 400, False),
        ("EFA", LinkKind.EFA, 400, True),
        ("IB HDR", LinkKind.INFINIBAND, 1600, True),
        ("HDR100", LinkKind.INFINIBAND, 800, True),
        ("", LinkKind.INFINIBAND, 1600, True),
        ("something else", LinkKind.INFINIBAND, 1600, True),
        ("IB 99999999999999999999x400G", LinkKind.INFINIBAND, 3200, True),
        ("4xHDR", LinkKind.INFINIBAND, 800, False),
        ("4x HDR InfiniBand", LinkKind.INFINIBAND, 800, False),
        ("8 HDR InfiniBand", LinkKind.INFINIBAND, 1600, False),
        ("IB (HDR, 8 rails)", LinkKind.INFINIBAND, 1600, False),
        ("IB HDR x4", LinkKind.INFINIBAND, 800, False),
        ("NDR 4x", LinkKind.INFINIBAND, 3200, True),  # the width of a port
        ("2x EDR", LinkKind.INFINIBAND, 200, False),
        ("dual-rail EDR", LinkKind.INFINIBAND, 200, False),
        ("Dual EDR InfiniBand", LinkKind.INFINIBAND, 200, False),
        ("2x HDR100 per node", LinkKind.INFINIBAND, 200, False),
        ("4 HDR NICs per node", LinkKind.INFINIBAND, 800, False),
        ("IB 4x 200 Gb/s HDR HCAs", LinkKind.INFINIBAND, 800, False),
        ("8 x 400Gb/s IB NICs per node", LinkKind.INFINIBAND, 3200, False),
        ("8 NICs of 200Gb/s, RoCE", LinkKind.ROCE, 1600, False),
        ("RoCEv2 8×200 Gbps", LinkKind.ROCE, 1600, False),
        ("RoCE v2 8*200", LinkKind.ROCE, 1600, False),
        ("Slingshot-11 (200 Gb/s, 4 per node)", LinkKind.SLINGSHOT, 800, False),
        ("Slingshot 11 4x200G", LinkKind.SLINGSHOT, 800, False),
        ("Rosetta Slingshot 200Gb/s 4 NICs", LinkKind.SLINGSHOT, 800, False),
        ("HPE Slingshot 11 (4x 200 Gbps per node)", LinkKind.SLINGSHOT, 800, False),
        ("HPE Slingshot 4 x 25 GB/s", LinkKind.SLINGSHOT, 800, False),
        ("Slingshot-11", LinkKind.SLINGSHOT, 1600, True),
        ("IB 100G, one NIC", LinkKind.INFINIBAND, 100, False),
        ("single 100 Gb/s NIC", LinkKind.INFINIBAND, 100, True),
        ("IB, one 200 Gbps NIC per GPU", LinkKind.INFINIBAND, 1600, False),
        ("NDR IB (1 per GPU)", LinkKind.INFINIBAND, 3200, False),
        ("IB 8x400G, 1 per GPU", LinkKind.INFINIBAND, 3200, False),
        ("IB 200 Gbit", LinkKind.INFINIBAND, 1600, True),
        ("IB 200 Gbits/s per node", LinkKind.INFINIBAND, 200, False),
        ("IB 1.6 Tbit/s per node", LinkKind.INFINIBAND, 1600, False),
        ("1 Gbit Ethernet", LinkKind.ETHERNET, 1, True),
        ("10GbE", LinkKind.ETHERNET, 10, True),
        ("25 GbE per node", LinkKind.ETHERNET, 25, False),
        ("2x100GbE", LinkKind.ETHERNET, 200, False),
        ("100 Gigabit Ethernet, single port", LinkKind.ETHERNET, 100, False),
        ("RoCE 2x100GbE", LinkKind.ROCE, 200, False),
        ("EFA 400G", LinkKind.EFA, 400, True),
        ("NVLink 300 GB/s, IB 200G", LinkKind.INFINIBAND, 1600, True),
        ("NVSwitch 600GB/s + 8x HDR", LinkKind.INFINIBAND, 1600, False),
        ("8x HDR (NVLink3 600 GB/s inside)", LinkKind.INFINIBAND, 1600, False),
        ("InfiniBand, ConnectX-6, 4 adapters", LinkKind.INFINIBAND, 800, False),
        ("IB HDR 8x200G, oversubscribed 1:2", LinkKind.INFINIBAND, 1600, True),
        ("IB 4xHDR, 2:1 blocking", LinkKind.INFINIBAND, 800, True),
    ],
)
def test_fabric_texts_on_an_a100_node(text: str, kind: LinkKind, gbit_per_node: float, assumes: bool) -> None:
    found, bandwidth, assumed = parse_fabric(text, load_accelerator("a100"), 8)
    assert (found, bandwidth * 8e-9) == (kind, pytest.approx(gbit_per_node))
    assert (assumed is not None) == assumes
    if assumed and text:
        assert text in assumed


def test_one_port_of_ethernet_is_not_said_to_be_a_typical_nodes() -> None:
    said = {text: parse_fabric(text, load_accelerator("a100"), 8)[2] or "" for text in ("25GbE", "IB 100G")}
    assert "assumed: 1 NIC per node" in said["25GbE"]
    assert "typical a100-sxm-80g node: 8 NICs per node" in said["IB 100G"]


def test_a_bare_efa_is_what_that_accelerator_rents_with() -> None:
    assert parse_fabric("EFA", load_accelerator("h100"), 8)[1] == 400e9
