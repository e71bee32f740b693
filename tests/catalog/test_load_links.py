"""Does each of the two tables of links hold what it is for, and nothing empty?"""

from __future__ import annotations

import pytest

from planner.catalog.load_links import LINKS_FILE, PUBLISHED_FILE, load_link_rates, read_links_file


def test_fitted_links_are_those_of_scale_up_alone() -> None:
    """Fabrics are not fitted: the file says nothing of them, and of an entry nothing that is empty."""
    fitted = read_links_file(LINKS_FILE)
    assert fitted.model_fields_set == {"scale_up"}
    assert not [entry.accelerator for entry in fitted.scale_up if "note" in entry.model_fields_set]
    assert read_links_file(PUBLISHED_FILE).fabric


@pytest.mark.parametrize("fabric", ["infiniband", "roce", "efa", "ethernet", "slingshot", "omnipath"])
def test_every_fabric_has_rates(fabric: str) -> None:
    assert load_link_rates("h100-sxm-80g", "hopper", "nvlink", fabric).fabric.fraction > 0


def test_a_host_of_one_pcie_card_stands_in_for_no_other_of_its_generation() -> None:
    """Eight L40S reached a twentieth of PCIe, three hosts of other cards 0.41 to 0.44."""
    l40s, rtx4090 = (load_link_rates(name, "ada", "pcie", "infiniband") for name in ("l40s", "rtx4090"))
    assert l40s.all_reduce.fraction[-1] < 0.1
    assert rtx4090.all_reduce.fraction[-1] == 0.418
    assert "a100-pcie" in rtx4090.kin
    assert not l40s.kin
