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
