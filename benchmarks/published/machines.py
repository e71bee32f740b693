"""How fast does a source's own machine multiply, where the source timed its products apart?

Left out: machines that nobody timed, which multiply as the catalog's devices do.
"""

from __future__ import annotations

from typing import Final

# (how the source's name begins, accelerator): rate of products over the catalog's sustained rate [1].
# SimuMax: median of its 136 forward products of a B200 from 5e10 FLOP on, in MooreThreads/SimuMax@4dcaae5
# (benchmarks/kernel_checks.py; its input gradients 0.836, weight gradients 0.865). Two other machines sustain the
# catalog's rate (benchmarks/build_kernel_tables.py, `sustained_fraction`); its attention is that of the catalog.
TIMED: Final = {("simumax", "b200"): 0.835}


def timed_products(source: str, accelerator: str) -> float:
    """Rate of products on a source's machine over that of the catalog's [1]; 1 where it timed none."""
    of = ((rate, start) for (start, device), rate in TIMED.items() if device == accelerator)
    return next((rate for rate, start in of if source.lower().startswith(start)), 1.0)
