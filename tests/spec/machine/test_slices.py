"""Which shape does a slice have, which of its axes are rings, and what must a file say of one?"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError, PlannerError
from planner.report.words import texts
from planner.spec.machine.build_cluster import assemble_cluster
from planner.spec.machine.load_cluster import load_accelerator, load_cluster
from planner.spec.machine.torus import Torus

V5P = Torus((16, 20, 28), (90e9, 90e9, 90e9), 4, cubes=True)
V6E = Torus((16, 16), (90e9, 90e9), 16)
ULTRA = Torus((4, 4, 4), (128e9, 128e9, 64e9), 4)


# Google's own shapes: cloud.google.com/tpu/docs/v5p and v6e
@pytest.mark.parametrize(
    ("torus", "devices", "shape"),
    [
        (V5P, 4, (1, 2, 2)), (V5P, 8, (2, 2, 2)), (V5P, 16, (2, 2, 4)), (V5P, 32, (2, 4, 4)), (V5P, 64, (4, 4, 4)),
        (V5P, 128, (4, 4, 8)), (V5P, 256, (4, 8, 8)), (V5P, 512, (8, 8, 8)), (V5P, 1024, (8, 8, 16)),
        (V5P, 3072, (12, 16, 16)), (V5P, 6144, (16, 16, 24)), (V5P, 8960, (16, 20, 28)),
        (V6E, 1, (1, 1)), (V6E, 4, (2, 2)), (V6E, 8, (2, 4)), (V6E, 32, (4, 8)), (V6E, 128, (8, 16)),
        (V6E, 256, (16, 16)), (ULTRA, 16, (4, 4, 1)), (ULTRA, 32, (2, 4, 4)),
    ],
)  # fmt: skip
def test_a_slice_is_as_near_a_cube_as_it_can(torus: Torus, devices: int, shape: tuple[int, ...]) -> None:
    part = torus.holding(devices)
    assert part is not None
    assert sorted(part.shape) == sorted(shape)


# MaxText's own names of slices, utils/accelerator_to_spec_map.py at e591f30; XPK's defaults are the same
@pytest.mark.parametrize(
    ("name", "devices", "shape"),
    [
        ("tpu-v5p", 192, (4, 4, 12)), ("tpu-v5p", 320, (4, 4, 20)), ("tpu-v5p", 384, (4, 8, 12)),
        ("tpu-v5p", 448, (4, 4, 28)), ("tpu-v5p", 576, (4, 12, 12)), ("tpu-v5p", 1280, (8, 8, 20)),
        ("tpu-v5p", 1536, (8, 12, 16)), ("tpu-v5p", 1792, (8, 8, 28)), ("tpu-v5p", 2560, (8, 16, 20)),
        ("tpu-v4", 192, (4, 4, 12)), ("tpu-v4", 768, (8, 8, 12)), ("tpu-v5e", 32, (4, 8)), ("tpu-v6e", 8, (2, 4)),
    ],
)  # fmt: skip
def test_slices_of_whole_cubes_are_googles(name: str, devices: int, shape: tuple[int, ...]) -> None:
    torus = load_accelerator(name).torus
    assert torus is not None
    part = torus.holding(devices)
    assert part is not None
    assert tuple(sorted(part.shape)) == shape


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("tpu-v5p", 12),
        ("tpu-v5p", 96),
        ("tpu-v5p", 288),
        ("tpu-v4", 48),
        ("tpu-v6e", 96),
        ("tpu-v5e", 64 * 3),
    ],
)
def test_shapes_that_nobody_is_lent_are_no_slices(name: str, devices: int) -> None:
    torus = load_accelerator(name).torus
    assert torus is not None
    assert torus.holding(devices) is None
    cluster = load_cluster(name, devices)
    assert cluster.scale_up_domain < devices
    assert torus.holding(cluster.scale_up_domain) is not None


def test_a_node_of_trainium_is_used_in_part() -> None:
    assert load_cluster("trn2", 12).tiers[0].size == 12


def test_what_is_no_grid_is_no_slice() -> None:
    assert V6E.holding(17) is None
    assert V6E.holding(512) is None
    assert V5P.holding(29 * 4) is None


@pytest.mark.parametrize(
    ("torus", "devices", "rings"),
    [(V5P, 64, 3), (V5P, 128, 3), (V5P, 32, 0), (V6E, 256, 2), (V6E, 128, 1), (V6E, 64, 0), (ULTRA, 16, 2)],
)
def test_axes_close_to_rings(torus: Torus, devices: int, rings: int) -> None:
    part = torus.holding(devices)
    assert part is not None
    assert sum(axis.closed for axis in part.axes) == rings


def test_the_links_of_a_device_are_its_scale_up_bandwidth() -> None:
    for name in ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "trainium2"):
        chip = load_accelerator(name)
        assert chip.torus is not None
        assert chip.torus.bandwidth == pytest.approx(chip.scale_up_bandwidth)


def test_a_slice_of_a_cluster_has_its_shape_and_says_so() -> None:
    slice_ = load_cluster("tpu-v5p", 128)
    assert slice_.tiers[0].torus == Torus((4, 4, 8), V5P.links, 4, cubes=True)
    assert "128 devices of a slice are joined as 4 x 4 x 8" in texts(slice_.assumed)
    assert [tier.size for tier in slice_.tiers] == [128]
    pods = load_cluster("tpu-v6e", 1024)
    assert [tier.size for tier in pods.tiers] == [256, 1024]
    assert pods.tiers[1].bandwidth == pytest.approx(4 * 25e9 / 8)
    assert not [line for line in texts(pods.assumed) if "joined as" in line]


def test_several_slices_of_a_pod() -> None:
    two = assemble_cluster(load_accelerator("tpu-v5p"), 128, 4, 64)
    assert two.tiers[0].torus == Torus((4, 4, 4), V5P.links, 4, cubes=True)
    assert [tier.size for tier in two.tiers] == [64, 128]


def test_ultraservers_join_four_instances_by_slower_links() -> None:
    assert load_cluster("trn2u", 64).tiers[0].bandwidth == 640e9  # of NeuronLink's 1.28 TB/s both ways
    assert load_cluster("trn2u", 64).tiers[0].hop_bandwidth == 64e9
    assert load_cluster("trn2", 64).tiers[0].bandwidth == 512e9


def test_messages_pass_one_link_of_a_torus_and_all_of_a_switch() -> None:
    assert load_cluster("tpu-v5p", 64).tiers[0].hop_bandwidth == 90e9
    node = load_cluster("dgx-h100", 8).tiers[0]
    assert node.hop_bandwidth == node.bandwidth


@pytest.mark.parametrize(("devices", "slice_"), [(124, 4), (8192, 4096), (8736, 32)])
def test_a_number_without_a_grid_is_several_slices(devices: int, slice_: int) -> None:
    for cluster in (load_cluster("tpu-v5p", devices), load_cluster(f"{devices // 4}x4 tpu-v5p")):
        assert [tier.size for tier in cluster.tiers] == [slice_, devices]
        assert any(f"{slice_} in each" in line for line in texts(cluster.assumed))


def test_a_domain_without_a_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="16 x 16") as refused:
        assemble_cluster(load_accelerator("tpu-v6e"), 8 * 17, 8, 8 * 17)
    assert "node.scale_up.torus" in refused.value.hint
    with pytest.raises(InputError, match="whole cubes of 4 along each axis"):
        assemble_cluster(load_accelerator("tpu-v5p"), 96, 4, 96)
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    with pytest.raises(InputError, match="grid within 4 x 4 x 4"):  # one slice, and nothing beyond it
        load_cluster(str(path), 28)


GOOD = """
name: mine
accelerator: tpu-v5p
nodes: 16
node:
  accelerators: 4
  scale_up: {kind: ici, domain: 64, torus: {shape: [4, 4, 4], links: [90 GB/s, 90 GB/s, 45 GB/s], ring: 4}}
"""


def test_a_file_describes_a_torus_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_cluster(str(path)).tiers[0].bandwidth == 450e9


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[4, 4, 4]", "[4, 4, 8]", "must hold the domain's 64 devices"),
        ("45 GB/s]", "45 GB/s, 45 GB/s]", "one for each of 3 axes"),
        ("domain: 64,", "domain: 64, bandwidth: 500 GB/s,", "must sum up to bandwidth"),
        ("ring: 4", "rings: 4", "ring"),
        ("ring: 4", "ring: 4, slices: [[4, 4]]", "shapes of 3 axes"),
    ],
)
def test_a_torus_that_does_not_fit_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(PlannerError, match=said):
        load_cluster(str(path))
