"""Is every way in which people write a device, a machine of a cloud or a handful of either understood?"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError, PlannerError, UnknownNameError
from planner.report.words import texts
from planner.spec.machine.device_names import DeviceName, called, device_name
from planner.spec.machine.load_cluster import (
    _ACCELERATORS as ACCELERATORS,
)
from planner.spec.machine.load_cluster import (
    _CLUSTERS as CLUSTERS,
)
from planner.spec.machine.load_cluster import (
    _devices,
    accelerator_names,
    accelerator_of,
    load_accelerator,
    load_cluster,
    names_no_file,
    names_of_clusters,
)

# nvidia-smi, rocm-smi, torch.cuda.get_device_name, tpu-info, hl-smi; forums and commands
WRITTEN = {
    "a10": "NVIDIA A10|A10|nvidia-a10",
    "a100-pcie-40g": "NVIDIA A100-PCIE-40GB",
    "a100-pcie-80g": "NVIDIA A100 80GB PCIe|A100-PCIE",
    "a100-sxm-40g": "NVIDIA A100-SXM4-40GB|a100 40gb|A100 40G",
    "a100-sxm-80g": "NVIDIA A100-SXM4-80GB|a100 80 GB|A100 SXM|A100 Tensor Core GPU",
    "a10g": "NVIDIA A10G",
    "a30": "NVIDIA A30",
    "a40": "NVIDIA A40",
    "a800-pcie-80g": "NVIDIA A800 80GB PCIe",
    "a800-sxm-80g": "NVIDIA A800-SXM4-80GB",
    "b200": "NVIDIA B200",
    "b300": "NVIDIA B300 SXM6 AC",
    "gaudi2": "HL-225|Gaudi 2|Intel Gaudi2",
    "gaudi3": "HL-325L|gaudi3",
    "gb10": "NVIDIA GB10|DGX Spark",
    "gb200": "NVIDIA GB200",
    "gh200": "NVIDIA GH200 480GB|GH200",
    "h100-nvl-94g": "NVIDIA H100 NVL",
    "h100-pcie-80g": "NVIDIA H100 PCIe",
    "h100-sxm-80g": "NVIDIA H100 80GB HBM3|H100-SXM5-80GB|h100 80gb sxm|H100",
    "h20-sxm-141g": "NVIDIA H20-3e|h20 141gb",
    "h20-sxm-96g": "NVIDIA H20",
    "h200-nvl": "NVIDIA H200 NVL",
    "h200-sxm": "NVIDIA H200",
    "l20": "NVIDIA L20",
    "l4": "NVIDIA L4",
    "l40": "NVIDIA L40",
    "l40s": "NVIDIA L40S|L40s",
    "mi210": "AMD Instinct MI210",
    "mi250x": "AMD INSTINCT MI250X|AMD Instinct MI250X / MI250|MI250X GCD",
    "mi300a": "AMD Instinct MI300A",
    "mi300x": "AMD Instinct MI300X|AMD Instinct MI300X OAM",
    "mi325x": "AMD Instinct MI325X",
    "mi350x": "AMD Instinct MI350X",
    "mi355x": "AMD Instinct MI355X",
    "quadro-rtx-8000": "Quadro RTX 8000|NVIDIA Quadro RTX 8000",
    "rtx-4000-sff-ada": "NVIDIA RTX 4000 SFF Ada Generation",
    "rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation|RTX 6000 Ada",
    "rtx-a4000": "NVIDIA RTX A4000|A4000",
    "rtx-a6000": "NVIDIA RTX A6000|A6000",
    "rtx-pro-4500": "NVIDIA RTX PRO 4500 Blackwell",
    "rtx-pro-6000-max-q": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "rtx-pro-6000-server": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "rtx-pro-6000-workstation": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "rtx2080ti": "NVIDIA GeForce RTX 2080 Ti",
    "rtx3080-12g": "rtx 3080 12gb",
    "rtx3080ti": "NVIDIA GeForce RTX 3080 Ti|3080 ti",
    "rtx4080-super": "4080 super",
    "rtx4090d": "4090 D",
    "rtx3090": "NVIDIA GeForce RTX 3090|rtx 3090|rtx-3090 24gb|RTX3090|rtx_3090|3090",
    "rtx4060ti-16g": "NVIDIA GeForce RTX 4060 Ti 16GB",
    "rtx4060ti-8g": "rtx 4060 ti 8gb",
    "rtx4070ti-super": "NVIDIA GeForce RTX 4070 Ti SUPER",
    "rtx4090": "NVIDIA GeForce RTX 4090|rtx 4090 24 GB",
    "rtx4090-48g": "4090 48gb|RTX 4090 48G",
    "rtx5090": "NVIDIA GeForce RTX 5090|GeForce RTX 5090 32GB",
    "t4-pcie-16g": "Tesla T4|NVIDIA Tesla T4 16GB",
    "titan-rtx": "NVIDIA TITAN RTX",
    "tpu-v5e": "TPU v5 lite|v5litepod|Google TPU v5e",
    "tpu-v6e": "TPU v6 lite|Trillium",
    "tpu-v7": "TPU v7|ironwood|tpu7x",
    "trainium2": "AWS Trainium2|trn2",
    "v100-pcie-16g": "Tesla V100-PCIE-16GB",
    "v100-sxm2-16g": "Tesla V100-SXM2-16GB",
    "v100-sxm2-32g": "Tesla V100-SXM2-32GB|V100",
    "v100-sxm3-32g": "Tesla V100-SXM3-32GB",
    "v100s-pcie-32g": "Tesla V100S-PCIE-32GB",
}
MACHINES = {  # of clouds: the accelerator, and how many of it
    "p4d.24xlarge": ("a100-sxm-40g", 8),
    "g5.xlarge": ("a10g", 1),
    "g5.12xlarge": ("a10g", 4),
    "g6.48xlarge": ("l4", 8),
    "g6e.12xlarge": ("l40s", 4),
    "p5e.48xlarge": ("h200-sxm", 8),
    "a2-highgpu-8g": ("a100-sxm-40g", 8),
    "a2-ultragpu-2g": ("a100-sxm-80g", 2),
    "a4-highgpu-8g": ("b200", 8),
    "g2-standard-24": ("l4", 2),
    "ND96amsr_A100_v4": ("a100-sxm-80g", 8),
    "Standard_NC24ads_A100_v4": ("a100-pcie-80g", 1),
    "Standard_NC80adis_H100_v5": ("h100-nvl-94g", 2),
    "BM.GPU.A100-v2.8": ("a100-sxm-80g", 8),
    "a4x-highgpu-4g": ("gb200", 4),
}


@pytest.mark.parametrize(
    ("text", "name"), [(text, name) for name, texts in WRITTEN.items() for text in texts.split("|")]
)
def test_a_device_is_found_as_people_write_it(text: str, name: str) -> None:
    assert load_accelerator(text).name == name
    cluster = load_cluster(f"2x {text}")
    assert (cluster.accelerator.name, cluster.num_devices) == (name, 2)
    if text != "trn2":  # also a machine, which is named first
        assert accelerator_of(text) == accelerator_of(f"{text} x 2") == name


def test_every_name_is_read_however_it_is_spaced_and_counted() -> None:
    """A number that begins a name is none of a count's, nor an x that ends it."""
    for device in _devices():
        document = yaml.safe_load((ACCELERATORS / f"{device.name}.yaml").read_text())
        for name in (device.name, *document["aliases"]):
            spaced = re.sub(r"(?<=\d)(?=[a-z])(?!g$)|-", " ", str(name))
            if called(spaced, _devices()) == [device.name]:
                for text in (
                    spaced,
                    f"2x{spaced}",
                    f"2x {spaced}",
                    f"2 {spaced}",
                    f"{spaced} x 2",
                    f"1x2 {spaced}",
                ):
                    cluster = load_cluster(text, 2) if text == spaced else load_cluster(text)
                    assert (cluster.accelerator.name, cluster.num_devices) == (device.name, 2), text


def test_a_name_of_several_devices_is_refused_with_all_of_them() -> None:
    """Unless one of them alone has it without a memory, as `h100` has."""
    shared = {name.text for device in _devices() for name in device.names}
    several = {text: found for text in shared if len(found := called(text, _devices())) > 1}
    assert {"rtx4060ti", "rtx5060ti"} <= several.keys()
    several["NVIDIA RTX PRO 6000"] = [f"rtx-pro-6000-{sort}" for sort in ("max-q", "server", "workstation")]
    for text, devices in several.items():
        for written in (text, f"2x{text}"):
            with pytest.raises(UnknownNameError) as caught:
                load_cluster(written, 2)
            assert all(device in str(caught.value) for device in devices)


@pytest.mark.parametrize("name", ["8xh100", "mine_2x8 v2", "h100", "4090 x 2", "64x8 h100 400G-ib"])
def test_the_name_of_a_file_is_never_read_as_a_cluster(name: str, tmp_path: Path) -> None:
    document = (CLUSTERS / "dgx-h100.yaml").read_text().replace("name: dgx-h100", "name: mine")
    for path in (tmp_path / f"{name}.yaml", tmp_path / f"{name}.YML", tmp_path / name):
        path.write_text(document)
        assert not names_no_file(str(path))
        assert load_cluster(str(path), 8).name == "mine"
    assert not names_no_file(f"{name}.yaml")
    assert not names_no_file(f"./{name}")


@given(st.integers(1, 40), st.sampled_from(["h100", "rtx 4090", "gb200", "v100-sxm3"]))
def test_a_count_is_of_one_node_or_of_whole_ones(count: int, device: str) -> None:
    node = load_accelerator(device).typical_node
    usual = node.accelerators if node else 0
    if count > usual and count % usual:
        with pytest.raises(InputError, match=f"{-(-count // usual)}x{usual} {device}"):
            load_cluster(f"{count} {device}")
        return
    cluster = load_cluster(f"{count} {device}")
    assert (cluster.num_devices, cluster.devices_per_node) == (count, min(count, usual))
    assert not any("bridges" in text for text in texts(cluster.assumed))


def test_nearest_names_are_of_clusters_devices_and_machines_alike() -> None:
    for machine in ("g5.12xlarge", "p4d.24xlarge", "a2-highgpu-8g", "bm.gpu.a100-v2.8"):
        for text in (f"{machine[:-1]}q", f"3x {machine}q"):
            with pytest.raises(UnknownNameError, match=re.escape(machine)):
                load_cluster(text)
    for nothing in ("qqqq", "2x qqqq"):
        with pytest.raises(UnknownNameError, match=r"none of \d+ known names is like it") as caught:
            load_cluster(nothing)
        assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("text", MACHINES)
def test_a_machine_of_a_cloud_is_a_node_type(text: str) -> None:
    name, devices = MACHINES[text]
    with pytest.raises(InputError, match=f"--gpus {devices}"):
        load_cluster(text)
    cluster = load_cluster(text, devices)
    assert (cluster.accelerator.name, cluster.devices_per_node) == (name, devices)
    several = load_cluster(f"3x {text}")
    assert (several.num_devices, several.devices_per_node) == (3 * devices, devices)
    assert load_cluster(several.name, several.num_devices).tiers == several.tiers  # as a plan names it
    assert accelerator_of(f"3x {text}") == name


@pytest.mark.parametrize(
    ("text", "nodes", "devices"),
    [
        ("8 rtx4090", 1, 8),
        ("8xH100", 1, 8),
        ("2x4090", 1, 2),
        ("2x 4090", 1, 2),
        ("4x rtx-3090 24gb", 1, 4),
        ("1x RTX 4090", 1, 1),
        ("1x1 RTX 5090", 1, 1),
        ("h100 x 8", 1, 8),
        ("h100x8", 1, 8),
        ("rtx 4090 x2", 1, 2),
        ("mi300x x 8", 1, 8),
        ("8 × H100", 1, 8),
        ("32xH100", 4, 8),
        ("16 h100", 2, 8),
        ("1x16 v100", 1, 16),
        ("2x8xH100 400G-ib", 2, 8),
        ("64x8 h100 400G-ib", 64, 8),
        ("64 x 8 NVIDIA H100 80GB HBM3 400G-ib", 64, 8),
        ("rtx 4090 x 8 100G-eth", 1, 8),
        ("4x gb10", 4, 1),
        ("2x dgx-h100", 2, 8),
    ],
)  # fmt: skip
def test_counts_stand_where_people_put_them(text: str, nodes: int, devices: int) -> None:
    cluster = load_cluster(text)
    assert (cluster.num_nodes, cluster.devices_per_node) == (nodes, devices)
    assert load_cluster(cluster.name, cluster.num_devices).num_devices == nodes * devices
    assert names_no_file(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("rtx 3091", "rtx3090"),
        ("2x4091", "rtx4090"),
        ("rtx 6000", "rtx-6000-ada"),  # of three generations: none is guessed
        ("3x rtx3090 48gb", "rtx3090"),
        ("a100 60gb", "a100-sxm-80g"),
        ("8x h101", "h100-sxm-80g"),
    ],
)
def test_unknown_devices_are_quoted_with_those_most_like_them(text: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near) as caught:
        load_cluster(text, 8)
    assert caught.value.name in text


def test_a_device_reads_alike_on_the_command_line_and_in_a_file(tmp_path: Path) -> None:
    node = {"accelerators": 2, "scale_up": {"kind": "pcie", "domain": 2}}
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump({"name": "mine", "accelerator": "RTX 3090 24GB", "nodes": 1, "node": node})
    )
    assert load_cluster(str(path)).accelerator == load_cluster("2x rtx 3090").accelerator


@given(st.text(max_size=40))
def test_no_text_is_taken_for_a_device_with_a_traceback(text: str) -> None:
    with contextlib.suppress(PlannerError):
        load_cluster(text, 8)


@given(st.sampled_from(accelerator_names()), st.sampled_from(["NVIDIA {}", "{} GPU", " {} ", "{}-edition"]))
def test_words_that_tell_nothing_change_nothing(name: str, form: str) -> None:
    text = form.format(name.upper().replace("-", " "))
    assert device_name(text) == device_name(name)
    assert load_accelerator(text).name == name


def test_memory_is_read_off_a_name() -> None:
    assert device_name("NVIDIA A100-SXM4-80GB") == DeviceName("a100sxm", 80)
    assert device_name("rtx 4090 24 GB") == device_name("rtx-4090-24g") == DeviceName("rtx4090", 24)
    two = {device_name(text).memory for text in ("a100 40gb 80gb", "80g h100 94g")}
    assert two == {None}  # and their names are nobody's
    assert device_name("h100 0gb").memory == 0
    for text in ("a100 40gb 80gb", "h100 0gb", "h100" + " x" * 60 + " 94gb"):
        with pytest.raises(InputError):
            load_accelerator(text)
    assert device_name("mi300x").memory == device_name("g4dn").memory is None


def test_every_name_that_is_offered_is_a_cluster() -> None:
    for name in names_of_clusters():
        assert names_no_file(name)
        assert load_cluster(name, 1).num_devices == 1


def test_machines_of_clouds_have_names_of_their_own() -> None:
    from planner.spec.machine.load_cluster import _INSTANCES

    seen: dict[str, Any] = {}
    readme = (Path(__file__).resolve().parents[3] / "README.md").read_text()
    for family in yaml.safe_load(_INSTANCES.read_text())["families"]:
        assert family["accelerator"] in accelerator_names()
        assert ("from memory" in family["source"]) == ("unverified" in family)
        for name, size in family["instances"].items():
            assert seen.setdefault(name, size) is size, name
            assert name not in names_of_clusters()
            assert load_cluster(name, size[0]).num_devices == size[0]
    assert f"one of {len(accelerator_names())} devices or {len(seen)} machines of clouds" in readme
