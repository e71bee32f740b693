"""At which measured rates do the devices of a cluster compute and exchange?

Left out: peaks and bandwidths, which the cluster states itself.
"""

from __future__ import annotations

from functools import lru_cache

from planner.catalog.load_links import load_link_rates
from planner.catalog.loader import load_kernel_rates
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.links import LinkRates
from planner.spec.machine.rates import KernelRates


@lru_cache(maxsize=256)
def _rates(
    accelerator: str, architecture: str, scale_up: str, fabric: str, products: float
) -> tuple[KernelRates, LinkRates]:
    kernels = load_kernel_rates(accelerator)
    if products != 1.0:
        kernels = kernels.multiplying(products, f"this machine's products run at {products:g} of that")
    return kernels, load_link_rates(accelerator, architecture, scale_up, fabric)


def rates_of(cluster: Cluster) -> tuple[KernelRates, LinkRates]:
    """The measured rates that hold on a cluster, its own or its kin's, by its factors of products and links."""
    chip = cluster.accelerator
    names = chip.name, str(chip.architecture), str(cluster.tiers[0].kind), str(cluster.fabric)
    kernels, links = _rates(*names, cluster.products)
    return kernels, links.scaled(cluster.links)
