"""Clusters: files, names, shorthand, device counts, and hostile input to each."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.published_data import published
from planner.errors import (
    FileInputError,
    InputError,
    PlannerError,
    UnitError,
    UnknownNameError,
    UnsupportedError,
)
from planner.report.words import texts
from planner.spec.machine.accelerator import AcceleratorSpec
from planner.spec.machine.build_cluster import assemble_cluster, beyond_any_nic
from planner.spec.machine.cluster import Architecture, Cluster, LinkKind
from planner.spec.machine.device_names import DeviceName, device_name
from planner.spec.machine.load_cluster import (
    accelerator_names,
    cluster_names,
    cluster_specs,
    load_accelerator,
    load_cluster,
    names_of_clusters,
)
from planner.spec.precision import Dtype
from planner.units import GIB, parse_quantity

REPO = Path(__file__).resolve().parents[3]
CATALOG = REPO / "planner" / "catalog" / "accelerators"

GOOD = """
name: mine
accelerator: h100
nodes: 4
node:
  accelerators: 8
  nics: 8
  nic_bandwidth: 400 Gbit/s
  scale_up: {kind: nvlink, domain: 8}
fabric:
  kind: infiniband
  tiers:
    - {name: rack, devices: 16, oversubscription: 1}
    - {name: core, devices: all, oversubscription: 2}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


# --- accelerators


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "h100-sxm-80g"),
        ("H100_SXM_80G", "h100-sxm-80g"),
        ("a100", "a100-sxm-80g"),
        ("b200", "b200"),
        ("gb200", "gb200"),
        ("mi300x", "mi300x"),
        ("v100", "v100-sxm2-32g"),
        ("v100_16g", "v100-sxm2-16g"),
        ("t4", "t4-pcie-16g"),
        ("t4_pcie_16g", "t4-pcie-16g"),
        ("v100_32g", "v100-sxm2-32g"),
        ("h100_sxm_96g_hbm2e_500w", "h100-sxm-96g-hbm2e-500w"),
    ],
)
def test_accelerators_are_found_by_name_and_alias(name: str, found: str) -> None:
    assert load_accelerator(name).name == found


def test_h100_is_what_its_datasheet_says() -> None:
    h100 = load_accelerator("h100")
    assert h100.memory == pytest.approx(79.1 * GIB)
    assert h100.memory_bandwidth == 3350e9
    assert h100.peak_flops(Dtype.BF16) == pytest.approx(989.4e12)
    assert h100.scale_up_bandwidth == 450e9
    assert (h100.tdp, h100.compute_units, h100.l2) == (700, 132, 50 * 2**20)
    assert (h100.architecture, h100.compute_capability) == (Architecture.HOPPER, "9.0")


def test_missing_format_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UnsupportedError, match=r"fp8(.|\n)*bf16"):
        load_accelerator("a100").peak_flops(Dtype.FP8)
    with pytest.raises(UnsupportedError, match="bf16"):
        load_accelerator("v100").peak_flops(Dtype.BF16)


def test_what_may_run_as_tf32_runs_in_fp32_where_there_is_no_tf32() -> None:
    assert load_accelerator("v100").peak_flops(Dtype.TF32) == pytest.approx(15.7e12)
    assert load_accelerator("a100").peak_flops(Dtype.TF32) == pytest.approx(156e12)
    with pytest.raises(UnsupportedError, match="fp32"):
        load_accelerator("gaudi2").peak_flops(Dtype.TF32)


def test_unknown_accelerator_lists_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="h100-sxm-80g"):
        load_accelerator("h1000")


def test_every_accelerator_has_its_own_names() -> None:
    seen: dict[DeviceName, str] = {}
    for name in accelerator_names():
        spec = AcceleratorSpec.model_validate(yaml.safe_load((CATALOG / f"{name}.yaml").read_text()))
        assert spec.name == name
        known = {device_name(alias): alias for alias in (name, *spec.aliases)}
        assert len(known) == 1 + len(spec.aliases), (
            f"{name} has an alias that says the same as another of its names"
        )
        for said, alias in known.items():
            assert seen.setdefault(said, name) == name, alias
            assert load_accelerator(alias).name == name


SHOWN_BY_NVIDIA_SMI = ("h20_sxm_96g", "h200_sxm", "gb200", "b300", "gb300", "l40s")


def test_accelerators_agree_with_the_collected_data() -> None:
    collected = json.loads(published("hardware/accelerators.json").read_text())["accelerators"]
    assert len(collected) == 33
    for key, entry in collected.items():
        chip = load_accelerator(key)
        share = 0.5 if key == "mi250x" else 1  # a device is one of its two dies
        assert chip.name == key.replace("_", "-")
        # of some, collected: what nvidia-smi shows, of which a program gets 0.4 to 1.3 % less
        memory = chip.memory / (entry["hbm_usable_gib"] * share * GIB)
        assert memory == pytest.approx(1) or (key in SHOWN_BY_NVIDIA_SMI and 0.985 < memory < 0.997)
        assert chip.memory_bandwidth == pytest.approx(entry["hbm_bw_gbs"] * share * 1e9)
        assert chip.scale_up_bandwidth == pytest.approx(
            entry["scaleup"]["per_gpu_per_direction_gbs"] * share * 1e9
        )
        assert chip.pcie_bandwidth == pytest.approx(entry["pcie"]["per_direction_gbs"] * 1e9)
        peaks = {d: v for d, v in entry["peak_tflops_dense"].items() if v and d != "int8"}
        if key == "mi250x":
            peaks["fp32"] *= 2  # collected: the vectors' rate
        if key == "rtx_pro_6000_server":  # collected: those of 16 bits alone
            bf16 = peaks["bf16"]
            peaks |= {"fp8": 2 * bf16, "fp4": 4 * bf16, "tf32": bf16 / 2, "fp32": 126}
        assert dict(chip.peak) == {Dtype(d): pytest.approx(v * share * 1e12) for d, v in peaks.items()}


# --- shipped clusters


def numbers(value: object, path: str = "") -> list[str]:
    """Dotted fields of `value` that hold a number or a quantity."""
    if isinstance(value, dict):
        return [f for key, inner in value.items() for f in numbers(inner, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [f for index, inner in enumerate(value) for f in numbers(inner, f"{path}.{index}")]
    return (
        [path] if isinstance(value, int | float) or (isinstance(value, str) and value[:1].isdigit()) else []
    )


def covered(field: str, by: set[str]) -> bool:
    parts = field.split(".")
    return any(".".join(parts[:n]) in by for n in range(1, len(parts) + 1))


def test_every_number_shipped_names_its_source() -> None:
    for path, spec in cluster_specs():
        document = yaml.safe_load(path.read_text())
        sources = document.pop("sources")
        for text in ("name", "aliases", "description", "accelerator", "unverified"):
            document.pop(text, None)
        fields = numbers(document)
        assert fields, path
        for field in fields:
            assert covered(field, set(sources)), f"{path.name}: {field} has no source"
        for field in (*sources, *spec.unverified):
            keys: object = document
            for part in field.split("."):
                assert isinstance(keys, dict), f"{path.name}: {field}"
                assert part in keys, f"{path.name}: {field}"
                keys = keys[part]
        for field, source in sources.items():
            inner = {other for other in sources if other.startswith(field + ".")}
            own = [f for f in fields if covered(f, {field}) and not covered(f, inner)]
            if source.endswith("from memory") and own:
                marked = [f for f in own if covered(f, set(spec.unverified))]
                assert marked, f"{path.name}: {field} is from memory but not in unverified"


def test_figures_without_a_source_are_named_and_sources_name_fields(tmp_path: Path) -> None:
    document = yaml.safe_load(next(p for p, spec in cluster_specs() if spec.name == "dgx-h100").read_text())
    said = "figures of the cluster file that name no source: "

    def unsourced() -> list[str]:
        cluster = load_cluster(write(tmp_path, yaml.safe_dump(document)), 16)
        return [line.removeprefix(said) for line in texts(cluster.assumed) if line.startswith(said)]

    assert not unsourced()
    del document["sources"]["node"]
    assert unsourced() == ["node.accelerators, node.nics, node.nic_bandwidth, node.scale_up, node.power"]
    document["sources"] = {}
    document["unverified"] = []
    assert unsourced() == ["node, fabric"]
    document["unverified"] = ["node.memory"]
    with pytest.raises(PlannerError, match=r"such as node\.nics, given 'node\.memory'"):
        unsourced()


def test_names_are_those_of_the_files_and_unique() -> None:
    seen: dict[str, str] = {}
    for path, spec in cluster_specs():
        assert spec.name == path.stem
        for name in (spec.name, *spec.aliases):
            assert seen.setdefault(name, spec.name) == spec.name, name


def test_the_promised_clusters_ship() -> None:
    promised = """v100-sxm2-32g a100-sxm-40g a100-sxm-80g a800-sxm-80g h100-sxm-80g h100-pcie-80g h800-sxm-80g
        h100-sxm-96g-hbm2e-500w h20-sxm-96g h200-sxm b200 b300 gb200-nvl72 gb300-nvl72 mi300x mi355x l40s rtx4090 cpu
        dgx-a100 dgx-h100 dgx-h200 dgx-b200 deepseek-h800 aws-p4d aws-p4de aws-p5 aws-p5en aws-p6-b200 aws-p6-b300
        gcp-a3-mega
        gcp-a3-ultra azure-nd-h100-v5 oci-h100 h100-sxm-roce"""
    assert set(promised.split()) <= set(names_of_clusters())


def test_every_shipped_cluster_loads_at_several_sizes() -> None:
    for name in cluster_names():
        per_node = load_cluster(name, 1).accelerator.typical_node.accelerators  # type: ignore[union-attr]
        for gpus in (1, per_node, 16 * per_node):
            cluster = load_cluster(name, gpus)
            assert cluster.num_devices == cluster.tiers[-1].size == gpus
            assert all(gpus % tier.size == 0 for tier in cluster.tiers)
            assert all(0 < tier.bandwidth <= tier.bandwidth_alone for tier in cluster.tiers)
            assert cluster.scale_up_domain == cluster.tiers[0].size
            assert cluster.source


def test_price_power_and_memory_are_per_device_or_node() -> None:
    p5 = load_cluster("p5.48xlarge", 16)
    assert p5.name == "aws-p5"
    assert p5.price_per_device_hour == 6.88
    assert p5.fabric == LinkKind.EFA
    dgx = load_cluster("dgx-h100", 16)
    assert dgx.power_per_device == pytest.approx(10_200 / 8)
    assert dgx.host_memory == 2 * 2**40
    assert "node.host_memory" in dgx.unverified
    assert "accelerator.memory" in dgx.unverified


# --- how many devices


def test_a_cluster_of_fixed_size_defaults_to_all_of_it() -> None:
    assert load_cluster("deepseek-h800", None).num_devices == 2048
    assert load_cluster("meta-24k", None).num_devices == 24_576


def test_a_node_type_needs_a_number_and_has_no_limit() -> None:
    with pytest.raises(InputError, match="--gpus 8"):
        load_cluster("dgx-h100", None)
    assert load_cluster("dgx-h100", 131_072).num_devices == 131_072


@pytest.mark.parametrize("gpus", [0, -8, True, 10**12])
def test_impossible_counts_are_refused(gpus: int) -> None:
    with pytest.raises(InputError, match="number of GPUs"):
        load_cluster("dgx-h100", gpus)


def test_a_broken_node_names_the_nearest_legal_counts() -> None:
    with pytest.raises(InputError, match="8 or 16"):
        load_cluster("dgx-h100", 12)
    with pytest.raises(InputError, match="nearest: 2040 or 2048"):
        load_cluster("deepseek-h800", 2047)


def test_more_than_there_is_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"2048 devices(.|\n)*shorthand"):
        load_cluster("deepseek-h800", 4096)
    with pytest.raises(InputError, match="512 devices"):
        load_cluster("64x8 h100 400G-ib", 1024)


def test_part_of_a_node_is_one_small_domain() -> None:
    cluster = load_cluster("dgx-h100", 3)
    assert (cluster.num_devices, cluster.devices_per_node, cluster.num_nodes) == (3, 3, 1)
    assert [tier.size for tier in cluster.tiers] == [3]


def test_domains_that_would_be_partly_filled_are_filled_evenly_and_said() -> None:
    cluster = load_cluster("gb200-nvl72", 256)
    assert [tier.size for tier in cluster.tiers] == [64, 256]
    assert any("64 in each" in text for text in texts(cluster.assumed))
    assert [tier.size for tier in load_cluster("gb200-nvl72", 144).tiers] == [72, 144]
    assert [tier.size for tier in load_cluster("meta-24k", 16_384).tiers] == [8, 2048, 16_384]
    assert [tier.size for tier in load_cluster("meta-24k", 3072).tiers] == [8, 3072]


def test_the_first_devices_of_the_first_devices_are_the_same() -> None:
    whole = load_cluster("dgx-h100", 1024)
    assert whole.with_devices(1024) is whole
    assert whole.with_devices(256).with_devices(64).tiers == whole.with_devices(64).tiers


# --- shorthand


def test_shorthand_of_many_nodes() -> None:
    cluster = load_cluster("64x8 h100 400G-ib")
    assert (cluster.num_devices, cluster.devices_per_node, cluster.num_nodes) == (512, 8, 64)
    assert [(t.kind, t.size, t.bandwidth) for t in cluster.tiers] == [
        (LinkKind.NVLINK, 8, 450e9),
        (LinkKind.INFINIBAND, 512, 50e9),
    ]
    assert load_cluster("64x8 h100 400G-ib", 64).num_devices == 64


def test_shorthand_of_one_node_has_no_fabric_to_assume() -> None:
    cluster = load_cluster("8 rtx4090")
    assert [(t.kind, t.size) for t in cluster.tiers] == [(LinkKind.PCIE, 8)]
    assert not any("fabric" in text for text in texts(cluster.assumed))


def test_shorthand_without_fabric_says_what_it_assumes() -> None:
    cluster = load_cluster("4x8 h100")
    assert cluster.tiers[-1].bandwidth == 50e9
    assert any("3200 Gbit/s" in text for text in texts(cluster.assumed))


def test_the_speed_of_a_shorthand_is_one_devices() -> None:
    cluster = load_cluster("64x8 h100 400G-ib")
    assert "infiniband of 400 Gbit/s a device, 3,200 Gbit/s a node" in texts(cluster.assumed)
    assert cluster.tiers[-1].bandwidth == 50e9
    assert not any("a device" in said for said in texts(load_cluster("1x8 h100 400G-ib").assumed))
    with pytest.raises(InputError, match="SPEED in Gbit/s of one device"):
        load_cluster("64x8 h100 400X-ib")


def test_a_network_that_no_card_has_is_pointed_out(tmp_path: Path) -> None:
    def doubts(name: str) -> list[str]:
        return [text for text in texts(load_cluster(name).assumed) if "no NIC sends more" in text]

    assert not doubts(write(tmp_path, GOOD)) + doubts("4x8 h100 400G-ib") + doubts("4x8 b300 800G-ib")
    [said] = doubts(write(tmp_path, GOOD.replace("400 Gbit/s", "150 GB/s")))
    assert said.startswith("node.nic_bandwidth is 1,200 Gbit/s")
    [said] = doubts("4x8 h100 3200G-efa")
    assert said.startswith("the speed of one device is 3,200 Gbit/s")


def test_no_shipped_cluster_has_a_network_that_no_card_has() -> None:
    for _, spec in cluster_specs():
        assert not beyond_any_nic(spec.node.nic_bandwidth or 0.0, spec.name)


def test_slingshot_in_a_shorthand() -> None:
    cluster = load_cluster("16x8 mi250x 100G-slingshot")
    assert (cluster.fabric, cluster.tiers[-1].bandwidth) == (LinkKind.SLINGSHOT, 12.5e9)


def test_leonardo_and_marenostrum5_join_four_devices_of_64_gb() -> None:
    leonardo, mn5 = load_cluster("leonardo", 64), load_cluster("mn5", 64)
    for cluster, card in ((leonardo, 100e9 / 8), (mn5, 200e9 / 8)):
        assert (cluster.devices_per_node, cluster.scale_up_domain) == (4, 4)
        assert cluster.tiers[-1].bandwidth == pytest.approx(card)
        assert 63 * GIB < cluster.accelerator.memory < 64 * GIB
    # as many units more as the chip of an A100 has in Leonardo
    a100 = dict(load_accelerator("a100").peak)
    assert dict(leonardo.accelerator.peak)[Dtype.BF16] / a100[Dtype.BF16] == pytest.approx(
        124 / 108, rel=1e-3
    )


def test_gh200_alone_and_four_of_them() -> None:
    four, alone = load_cluster("16x4 gh200 200G-slingshot"), load_cluster("16x1 gh200 400G-ib")
    assert [tier.size for tier in four.tiers] == [4, 64]
    assert four.tiers[0].pair_bandwidth == 150e9
    assert [tier.size for tier in alone.tiers] == [1, 16]
    alps = load_cluster("alps", 64)
    assert [(tier.kind, tier.size, tier.bandwidth) for tier in alps.tiers] == [
        (tier.kind, tier.size, tier.bandwidth) for tier in four.tiers
    ]


def test_shorthand_of_a_rack_knows_its_domain() -> None:
    assert [t.size for t in load_cluster("18x4 gb200 400G-ib").tiers] == [72]


def test_nics_faster_than_pcie_are_as_slow_as_pcie() -> None:
    assert load_cluster("2x8 rtx4090 400G-eth").tiers[-1].bandwidth == 31e9


@pytest.mark.parametrize(
    "text",
    [
        "64x8",
        "0x8 h100",
        "4x0 h100",
        "-4x8 h100",
        "4x8 h100 400G",
        "4x8 h100 400-ib",
        "4x8 h100 400G-wifi",
        "4x8 h100 0G-ib",
        "4x8 h100 40000G-ib",
        "4x8 h100 400G-ib extra",
        "1x72 gb200",
        "9999999999x8 h100",
        "8 h100 " + "9" * 5000 + "G-ib",
    ],
)
def test_broken_shorthand_shows_the_grammar(text: str) -> None:
    with pytest.raises(InputError, match="400G-ib"):
        load_cluster(text)


def test_shorthand_of_an_unknown_accelerator() -> None:
    with pytest.raises(UnknownNameError, match="h100-sxm-80g"):
        load_cluster("4x8 h10 400G-ib")


# --- clusters from figures


def build(name: str, *figures: Any) -> Cluster:
    return assemble_cluster(load_accelerator(name), *figures)


def test_build_cluster_shares_the_injection_of_a_node() -> None:
    cluster = build("a100_sxm_80g", 256, 8, 8, LinkKind.ROCE, 50e9)
    assert cluster.tiers[-1].bandwidth == pytest.approx(6.25e9)
    assert cluster.fabric == LinkKind.ROCE
    assert not any("sends" in text for text in texts(cluster.assumed))


def test_build_cluster_says_what_it_assumes() -> None:
    cluster = build("h100", 64, 8)
    assert cluster.tiers[-1].bandwidth == 50e9
    assert any("typical h100-sxm-80g node" in text for text in texts(cluster.assumed))
    assert [t.size for t in build("gb300", 128, 4, 72).tiers] == [64, 128]
    assert build("h100", 4, 8).num_devices == 4


def test_bridged_pairs_meet_the_rest_of_the_node_over_pcie() -> None:
    tiers = build("h100-nvl-94g", 16, 8).tiers
    assert [(t.kind, t.size) for t in tiers] == [
        (LinkKind.NVLINK, 2),
        (LinkKind.PCIE, 8),
        (LinkKind.INFINIBAND, 16),
    ]


@pytest.mark.parametrize("chip", ["rtx4090", "l40s", "a100_pcie_80g"])
def test_pcie_joins_a_node_whatever_is_said_of_nvlink(chip: str) -> None:
    """No NVLink, or bridged pairs alone, is no faster than what PCIe gives."""
    usual = build(chip, 8, 8).tiers
    for domain in (1, 2, 8):
        cluster = build(chip, 8, 8, domain)
        assert cluster.tiers == usual
        assert any("bridges" in said for said in texts(cluster.assumed)) is (domain == 2)


@pytest.mark.parametrize(
    "figures", [("h100", 12, 8), ("h100", 0, 8), ("h100", 8, 0), ("h100", 8, -8), ("h100", 16, 8, 3)]
)
def test_build_cluster_refuses_what_cannot_be(figures: tuple[str, int, int]) -> None:
    with pytest.raises(InputError):
        build(*figures)
    with pytest.raises(InputError, match="above 0"):
        build("h100", 16, 8, 8, LinkKind.ROCE, 0.0)
    with pytest.raises(InputError):
        build("h100", 16, 8, 8, LinkKind.ROCE, float("nan"))


# --- files


def test_a_file_is_a_cluster(tmp_path: Path) -> None:
    cluster = load_cluster(write(tmp_path, GOOD))
    assert (cluster.num_devices, cluster.name) == (32, "mine")
    assert [t.bandwidth for t in cluster.tiers] == [450e9, 50e9, 25e9]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("400 Gbit/s", "400", "node.nic_bandwidth"),
        ("400 Gbit/s", "'400'", "node.nic_bandwidth"),
        ("400 Gbit/s", "400 GiB", "node.nic_bandwidth"),
        ("400 Gbit/s", "0 Gbit/s", "node.nic_bandwidth"),
        ("400 Gbit/s", "-1 Gbit/s", "node.nic_bandwidth"),
        ("400 Gbit/s", "[1, 2]", "node.nic_bandwidth"),
        ("  nics: 8", "  nicks: 8", "node.nicks"),
        ("  nics: 8", "  nics: 0", "node.nics"),
        ("  nics: 8", "  nics: 8.5", "node.nics"),
        ("  nics: 8\n", "", "node.nics"),
        ("  kind: infiniband", "  kind: infiniband\n  rails: 16", "fabric.rails"),
        ("  kind: infiniband", "  kind: infiniband\n  rails: 3", "fabric.rails"),
        ("400 Gbit/s", "400 GB/s", "node.nic_bandwidth"),
        ("400 Gbit/s", "40 Tbit/s", "node.nic_bandwidth"),
        ("nodes: 4", "nodes: -4", "nodes"),
        ("nodes: 4", "nodes: true", "nodes"),
        ("nodes: 4", "nodes: many", "nodes"),
        ("nodes: 4\n", "", "nodes"),
        ("nodes: 4", "nodes: 3", "fabric.tiers.0.devices"),
        ("domain: 8", "domain: 3", "node.scale_up.domain"),
        ("domain: 8", "domain: 24", "node.scale_up.domain"),
        ("kind: nvlink", "kind: string", "node.scale_up.kind"),
        ("devices: 16", "devices: 12", "fabric.tiers.0.devices"),
        ("devices: 16", "devices: all", "fabric.tiers.0.devices"),
        ("devices: all", "devices: 16", "fabric.tiers.1.devices"),
        ("devices: 16", "devices: 64", "fabric.tiers.0.devices"),
        ("oversubscription: 2", "oversubscription: 0.5", "fabric.tiers.1.oversubscription"),
        ("oversubscription: 2", "oversubscription: .nan", "fabric.tiers.1.oversubscription"),
        ("accelerator: h100", "accelerator: h999", "accelerator"),
        ("accelerator: h100", "accelerator: [h100]", "accelerator"),
        ("node:", "node: 8\nnodex:", "node"),
    ],
)
def test_a_bad_field_is_named_with_its_file(tmp_path: Path, old: str, new: str, field: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(FileInputError) as caught:
        load_cluster(path)
    assert caught.value.field == field
    assert path in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "- a\n- list",
        "name: a\nname: b",
        "node: {nics: 8, nics: 4}",
        "name:\t\tx\n\tnode: 1",
        "name: [unclosed",
        "name: !!python/object/apply:os.system ['true']",
        "a: &x [*x]",
        "? [1, 2]\n: 3",
        "price: 2026-13-45",
        "[" * 400_000,
        "- " * 100_000,
        "{a: " * 2000,
        "a: \x00",
        "name: x\n---\nname: y",
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileInputError):
        load_cluster(write(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "field", "hint"),
    [
        ("nod: {accelerators: 8}", "nod", "node"),  # and not only that node is missing
        ("nodes: 2", "node", "cluster_specs/"),
        ("node: {accelerators: 8, fabric: ib}", "node.fabric", "nic_bandwidth"),
    ],
)
def test_a_wrong_key_is_named_with_those_there_are(tmp_path: Path, line: str, field: str, hint: str) -> None:
    with pytest.raises(FileInputError) as caught:
        load_cluster(write(tmp_path, f"name: mine\naccelerator: h100-sxm-80g\n{line}\n"), 8)
    assert caught.value.field == field
    assert hint in caught.value.hint


def test_a_value_out_of_range_says_what_must_hold(tmp_path: Path) -> None:
    text = "name: mine\naccelerator: h100-sxm-80g\nnodes: -3\nnode: {accelerators: 8}\n"
    with pytest.raises(FileInputError, match="must be greater than 0"):
        load_cluster(write(tmp_path, text), 8)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    (tmp_path / "large.yaml").write_text("a: 1\n" * 300_000)
    for name in ("binary.yaml", "large.yaml", "missing.yaml", "", "mine\x00.yaml", "n" * 5000 + ".yaml"):
        with pytest.raises(FileInputError):
            load_cluster(f"{tmp_path}/{name}")


@pytest.mark.parametrize("text", ["", "   ", "dgx-h101", "n" * 5000, "\x00", "..", "4090x", "☃"])
def test_no_text_gives_a_traceback(text: str) -> None:
    with pytest.raises(PlannerError):
        load_cluster(text, 8)


def test_unknown_cluster_lists_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="dgx-h100"):
        load_cluster("dgx-h101", 8)


def test_a_bandwidth_in_bits_is_an_eighth_of_one_in_bytes() -> None:
    assert parse_quantity("400 Gbit/s", "bandwidth") == parse_quantity("50 GB/s", "bandwidth") == 50e9
    with pytest.raises(UnitError):
        parse_quantity("400", "bandwidth")
