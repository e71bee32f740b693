"""How fast are the links of a machine in practice, as a few measured numbers per operation?

Nominal bandwidths belong to the cluster; here are latencies and the fractions of the nominal bandwidth that
the collective libraries reach. Left out: contention between groups, which depends on placement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperationRates:
    """One operation among the devices of one scale-up domain.

    `base` + `hop` x (ranks - 1): time of an empty message [s]. `ranks`: group sizes at which the two curves
    are known, read linearly in log2(ranks) and constant outside. `fraction`: bus bandwidth of an endless
    message over the nominal bandwidth [1]; above 1 where the switch reduces. `ramp`: filling time of the
    pipeline [s]: a message of wire time W takes W + 2 sqrt(ramp W).
    """

    base: float
    hop: float
    ranks: tuple[float, ...]
    fraction: tuple[float, ...]
    ramp: tuple[float, ...]


@dataclass(frozen=True)
class FabricRates:
    """The network between scale-up domains.

    `ring_hop`, `tree_hop`: latency of one crossing on a ring, and of one level of a tree or switch-assisted
    tree, one way [s]. `fraction`: share of the nominal device bandwidth that collectives reach [1].
    `ramp`: filling time per tree level, one way [s]; what it adds stays below `saturation` per level [s],
    since NCCL then changes to the protocol of full bandwidth and higher latency. `message`: cost of one more
    peer in an all-to-all [s]; `all_to_all_fraction`: `fraction` in it [1]. `p2p_base` [s], `p2p_fraction`
    [1], `p2p_ramp` [s]: one send and its receive.
    """

    ring_hop: float
    tree_hop: float
    fraction: float
    ramp: float
    saturation: float
    message: float
    all_to_all_fraction: float
    p2p_base: float
    p2p_fraction: float
    p2p_ramp: float


@dataclass(frozen=True)
class LinkRates:
    """Everything that `cost.collectives` needs to know of a machine besides its nominal bandwidths.

    `dispatch`: fused dispatch or combine of tokens to experts (DeepEP), with the few multiprocessors that it
    is given. `switch_floor`: latency of an all-reduce inside the switch, whatever the number of ranks [s]; infinite
    where the switch does not reduce. `kin`: empty, or whose numbers stand in for links without any of their
    own. `measured`: both the scale-up link and the fabric have rows of their own.
    """

    all_reduce: OperationRates
    all_gather: OperationRates
    reduce_scatter: OperationRates
    all_to_all: OperationRates
    dispatch: OperationRates
    p2p: OperationRates
    switch_floor: float
    fabric: FabricRates
    source: str
    note: str
    measured: bool
    kin: str
