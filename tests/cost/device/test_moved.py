"""Do operations that only move bytes take what their bytes, their kernels and the cache say?"""

from dataclasses import replace

import pytest

from planner.catalog.loader import load_kernel_rates
from planner.cost.device.moved import Access, Moved, moved_time
from planner.spec.machine.load_cluster import load_accelerator

H100 = load_accelerator("h100")
RATES = load_kernel_rates("h100-sxm-80g")
LAUNCH = RATES.launch_latency
GIB = 2.0**30


def test_streams_by_hand() -> None:
    # 1 GiB read and 1 GiB written at 0.85 of 3,350 GB/s
    took = moved_time(Moved(GIB, GIB), H100, RATES)
    assert took == pytest.approx(2 * GIB / (0.85 * 3350e9) + LAUNCH)


@pytest.mark.parametrize(
    ("access", "width", "efficiency"),
    [
        (Access.APART, 2, RATES.moving.apart[2]),
        (Access.APART, 8, RATES.moving.apart[4]),
        (Access.LISTS, 2, RATES.moving.lists[2]),
        (Access.FUSED, 4, RATES.moving.fused[4]),
    ],
)
def test_each_access_has_its_bandwidth(access: Access, width: int, efficiency: float) -> None:
    took = moved_time(Moved(GIB, GIB, 3, access, width), H100, RATES)
    assert took == pytest.approx(2 * GIB / (efficiency * 3350e9) + 3 * LAUNCH)


def test_what_the_cache_holds_is_faster() -> None:
    assert H100.l2 is not None
    fits, thrice = Moved(H100.l2 / 2, H100.l2 / 2), Moved(2 * H100.l2, H100.l2)
    fast, slow = moved_time(fits, H100, RATES) - LAUNCH, moved_time(thrice, H100, RATES) - LAUNCH
    assert slow / fast == pytest.approx(3 * RATES.moving.cache_gain)
    without = moved_time(fits, replace(H100, l2=None), RATES) - LAUNCH
    assert without / fast == pytest.approx(RATES.moving.cache_gain)


def test_units_with_less_memory_each_use_more_of_it() -> None:
    """What a unit keeps in flight is the limit: 13 GB/s a unit of an H100 in 16 bits, as much of an A100, and of cards
    whose memory is slower all that kernels reach of it."""
    h100, a100, l4, h200 = (
        (load_accelerator(name), load_kernel_rates(name).moving) for name in ("h100", "a100", "l4", "h200")
    )
    per_unit = [chip.memory_bandwidth * rates.apart[2] / chip.compute_units for chip, rates in (h100, a100)]
    assert per_unit[0] == pytest.approx(per_unit[1])
    assert l4[1].apart == l4[1].fused == {2: 0.85, 4: 0.85}
    assert h200[1].apart == h100[1].apart  # a larger share of more memory was not measured, nor a smaller one
