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


def test_a_host_that_the_others_are_unlike_is_kept_and_given_to_nobody() -> None:
    """Eight L40S reached a twentieth of PCIe, three hosts of other cards 0.41 to 0.44."""
    (kept,) = [entry for entry in read_links_file(LINKS_FILE).scale_up if entry.outlier]
    assert kept.accelerator == "l40s"
    assert kept.all_reduce.fraction[-1] < 0.1
    for name in ("l40s", "rtx4090"):
        rates = load_link_rates(name, "ada", "pcie", "infiniband")
        assert rates.all_reduce.fraction[-1] == 0.418
        assert "a100-pcie" in rates.kin
        assert not rates.measured
