"""How fast are the links of a machine in practice, as a few measured numbers per operation?

Nominal bandwidths belong to the cluster; here are latencies and the fractions of the nominal bandwidth that
the collective libraries reach. Left out: contention between groups, which depends on placement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    `latency`: what a crossing takes beyond NCCL's own latencies, which InfiniBand has [s]; twice in the protocol of
    full bandwidth where the receiver must `flush` its card (before Hopper on EFA). `ordered`: bytes arrive in order, so
    that NCCL's low-latency protocols work. `fraction`: share of the nominal device bandwidth that collectives reach
    [1]. `switch_chunk`: largest chunk of a switch-assisted tree [bytes]. `ramp`, `saturation`: filling time of an
    all-to-all's pipeline and the most that it adds [s]; `message_ramp`, `message_saturation`: of each message of it.
    `message`: cost of one more peer in an all-to-all [s]; `all_to_all_fraction`: `fraction` in it [1]. `rendezvous`:
    what a message waits for its receiver beyond `latency`, in all protocols but LL [s]. `p2p_base` [s], `p2p_fraction`
    [1], `p2p_ramp` [s]: one send and its receive. `latency_factor`: latencies measured on the user's own fabric over
    these [1].
    """

    latency: float
    flush: bool
    ordered: bool
    fraction: float
    switch_chunk: float
    ramp: float
    saturation: float
    message: float
    all_to_all_fraction: float
    p2p_base: float
    p2p_fraction: float
    p2p_ramp: float
    rendezvous: float = 0.0
    message_ramp: float = 0.0
    message_saturation: float = 0.0
    latency_factor: float = 1.0


@dataclass(frozen=True)
class LinkFactors:
    """What was measured on the user's own links over what is said of such links [1]: bandwidth within a scale-up
    domain and between them, and the time of an empty message."""

    scale_up_bandwidth: float = 1.0
    scale_up_latency: float = 1.0
    fabric_bandwidth: float = 1.0
    fabric_latency: float = 1.0


AS_SHIPPED = LinkFactors()


@dataclass(frozen=True)
class LinkRates:
    """Everything that `cost.network.collectives` needs to know of a machine besides its nominal bandwidths.

    `dispatch`: fused dispatch or combine of tokens to experts (DeepEP), with the few multiprocessors that it
    is given. `switch_floor`: latency of an all-reduce inside the switch, whatever the number of ranks [s]; infinite
    where the switch does not reduce. `nvlink`: NCCL's LL128 works inside a domain, as it does not over PCIe. `kin`:
    empty, or whose numbers stand in for links without any of their own. `measured`: both the scale-up link and the
    fabric have rows of their own.
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
    nvlink: bool = True

    def scaled(self, factors: LinkFactors) -> LinkRates:
        """These rates with bandwidths and latencies as measured on one cluster."""
        if factors == AS_SHIPPED:
            return self
        wide, slow = factors.scale_up_bandwidth, factors.scale_up_latency

        def inside(of: OperationRates) -> OperationRates:
            fractions = tuple(wide * f for f in of.fraction)
            return replace(of, base=slow * of.base, hop=slow * of.hop, fraction=fractions)

        f, far, late = self.fabric, factors.fabric_bandwidth, factors.fabric_latency
        fabric = replace(
            f, latency_factor=late * f.latency_factor, message=late * f.message,
            p2p_base=late * f.p2p_base, fraction=far * f.fraction,
            all_to_all_fraction=far * f.all_to_all_fraction, p2p_fraction=far * f.p2p_fraction,
        )  # fmt: skip
        return replace(
            self, all_reduce=inside(self.all_reduce), all_gather=inside(self.all_gather),
            reduce_scatter=inside(self.reduce_scatter), all_to_all=inside(self.all_to_all),
            dispatch=inside(self.dispatch), p2p=inside(self.p2p), switch_floor=slow * self.switch_floor,
            fabric=fabric,
        )  # fmt: skip
