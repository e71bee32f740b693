"""What does the whole run take: days, money, energy, checkpoints, with the stops of a real cluster?

Binds the equations to a problem and its assumptions; the result is the plan file's `Run`. Left out: the
equations themselves, and how a run is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.campaign.batch import CriticalBatch, Stage, Staged, critical_batch, staged_run, token_factor
from planner.campaign.checkpoint import (
    full_state_size,
    host_copy_time,
    storage_size,
    storage_time,
    weights_size,
)
from planner.campaign.duration import SECONDS_PER_DAY, SECONDS_PER_HOUR, device_hours
from planner.campaign.energy import average_power, emissions, run_energy
from planner.campaign.goodput import (
    DEVICES_PER_COUNTED_NODE,
    Goodput,
    daly_interval,
    goodput_shares,
    software_stops_rate,
    spare_nodes,
    time_between_stops,
)
from planner.campaign.money import break_even_hours, depreciation_per_hour, running_cost_per_hour
from planner.cost.params import model_parameters
from planner.spec.assumptions import Assumptions, MarketPrice, Pricing
from planner.spec.batch_fit import FitOf
from planner.spec.findings import Finding, finding
from planner.spec.job import Job
from planner.spec.machine.cluster import Cluster
from planner.spec.planfile import OWNED, Run
from planner.spec.precision import RECIPES
from planner.spec.rule import Problem

SLOWEST_PROGRESS = 1e-6  # a goodput below this is said to be this: such a run never ends


@dataclass(frozen=True)
class Interruptions:
    """How a job stops and saves itself; times [s], sizes [bytes]. `between_stops_ends`: at the largest and the least
    rates that sources give."""

    shares: Goodput[float]
    between_stops: float
    between_stops_ends: tuple[float, float]
    restart: float
    interval: float
    stall: float
    write: float
    full_size: float
    weights: float


def run_facts(
    step_time: float, problem: Problem, assumptions: Assumptions, early: Sequence[float] = ()
) -> Run | None:
    """The whole run at `step_time` [s]; None where the job states no tokens. `early`: step times of the batches of its
    schedule [s]."""
    job, cluster = problem.job, problem.cluster
    if job.tokens is None:
        return None
    limit, stages = batch_limit(problem, assumptions), _stages(step_time, early, job, job.tokens)
    ideal, least, most = (
        staged_run(stages, critical)
        for critical in ((limit.middle, limit.high, limit.low) if limit is not None else (None, None, None))
    )
    stops = interruptions(step_time, ideal.seconds, problem, assumptions)
    goodput = max(stops.shares.productive, SLOWEST_PROGRESS)
    days = ideal.seconds / SECONDS_PER_DAY / goodput
    needed = _spares(cluster, assumptions)
    spares = needed if assumptions.spare_nodes is None else int(assumptions.spare_nodes)
    held = device_hours(days * SECONDS_PER_DAY, cluster.num_devices + spares * cluster.devices_per_node)
    power, power_source = device_power(cluster, assumptions)
    price, price_source = device_price(cluster, assumptions)
    market = market_price(cluster, assumptions)
    energy = None if power is None else run_energy(held, power, assumptions.pue)
    rent, _ = device_price(cluster, assumptions, owned=False)
    owned, even = owning(cluster, rent, assumptions)
    lost = (stops.shares.checkpoint_stalls, stops.shares.repeated_work, stops.shares.restarts)
    scale = (1 - goodput) / (sum(lost) or 1.0)
    return Run(
        steps=ideal.steps,
        days=ideal.seconds / SECONDS_PER_DAY,
        gpu_hours=device_hours(ideal.seconds, cluster.num_devices),
        tokens=ideal.tokens,
        tokens_least=least.tokens,
        tokens_most=most.tokens,
        batch=_batch_said(limit, problem, assumptions, (ideal, least, most), step_time),
        price_per_device_hour=price,
        price_source=price_source,
        cost=None if price is None else held * price,
        goodput=goodput,
        lost=dict(
            zip(("checkpoint_stalls", "repeated_work", "restarts"), (x * scale for x in lost), strict=True)
        ),
        effective_days=days,
        held_gpu_hours=held,
        spare_nodes=spares,
        spare_nodes_needed=needed,
        list_price=price is not None and _is_listed(cluster, assumptions),
        market_price_low=None if market is None else market.low,
        market_price_high=None if market is None else market.high,
        market_date="" if market is None else market.date,
        time_between_stops=stops.between_stops,
        time_between_stops_low=stops.between_stops_ends[0],
        time_between_stops_high=stops.between_stops_ends[1],
        restart_time=stops.restart,
        checkpoint_interval=stops.interval,
        checkpoint_stall=stops.stall,
        checkpoint_write=stops.write,
        checkpoint_size=stops.full_size,
        weights_size=stops.weights,
        storage=storage_size(
            stops.full_size,
            stops.weights,
            assumptions.full_checkpoints_kept,
            days * SECONDS_PER_DAY,
            assumptions.weight_checkpoint_interval,
        ),
        power_per_device=power,
        power_source=power_source,
        energy=energy,
        emissions=None if energy is None else emissions(energy, assumptions.grid_carbon),
        owned_price_per_device_hour=owned,
        break_even=even,
    )


def _stages(step_time: float, early: Sequence[float], job: Job, tokens: float) -> list[Stage]:
    """The run by batch: those of the schedule, then the global one."""
    batches = [batch for batch, _ in job.batch_schedule]
    ends = [0.0, *(end for _, end in job.batch_schedule), tokens]
    rows = zip([*batches, job.global_batch], [*early, step_time], ends, ends[1:], strict=False)
    return [Stage(end - start, job.useful_length * batch, time) for batch, time, start, end in rows]


def _layers_parameters(problem: Problem) -> float:
    """Parameters of the layers that a token meets, as fits count them."""
    parameters = model_parameters(problem.model)
    return float(
        parameters.active - sum(parameters.by_kind[kind] for kind in ("embedding", "position", "head"))
    )


def batch_limit(problem: Problem, a: Assumptions) -> CriticalBatch | None:
    """The critical batch of a run, as given, or by the fits that speak of it; None where none does, or where adapters
    are trained, or no length is stated."""
    job = problem.job
    if job.critical_batch is not None:
        return CriticalBatch(job.critical_batch, job.critical_batch, given=True)
    if job.lora_rank is not None or job.tokens is None:
        return None
    return critical_batch(a.batch_fits, _layers_parameters(problem), job.tokens)


def _best_batch(problem: Problem, a: Assumptions) -> CriticalBatch | None:
    """The batch found best for such a run, which stands beside the critical one; None where no fit speaks of it."""
    tokens = problem.job.tokens
    return (
        None
        if tokens is None
        else critical_batch(a.batch_fits, _layers_parameters(problem), tokens, FitOf.BEST)
    )


def _fits_unverified(problem: Problem, a: Assumptions) -> list[str]:
    """The fits that a run's batch is judged by whose figures are from memory."""
    limit = batch_limit(problem, a)
    best = None if limit is None else _best_batch(problem, a)
    return [name for found in (limit, best) if found is not None for name in found.unverified]


def tokens_of_batch(problem: Problem, a: Assumptions, batch: int) -> float:
    """Times as many tokens that another global batch [sequences] is counted with [1]; 1 where none is stated, or no
    critical batch known."""
    limit = None if problem.job.tokens is None else batch_limit(problem, a)
    if limit is None:
        return 1.0
    other, own = problem.job.useful_length * batch, problem.job.tokens_per_step
    return float(token_factor(other, limit.middle) / token_factor(own, limit.middle))


def _batch_said(
    limit: CriticalBatch | None,
    problem: Problem,
    a: Assumptions,
    runs: tuple[Staged, Staged, Staged],
    step_time: float,
) -> Finding:
    """Where the batch lies beside the critical one, and what it costs. `runs`: counted, least tokens, most."""
    job = problem.job
    assert job.tokens is not None, "asked for runs alone"
    parameters, whole = _layers_parameters(problem), job.tokens_per_step
    if limit is None:
        short = job.tokens < parameters
        why = "adapters" if job.lora_rank is not None else "fine_tuning" if short else "range"
        return finding("critical_batch_unknown", why=why, batch=whole)
    best, unverified = _best_batch(problem, a), _fits_unverified(problem, a)
    factor, least, most = (run.tokens / job.tokens for run in runs)
    longer = runs[0].seconds - runs[0].tokens / whole * step_time
    early: dict[str, Any] = {
        "schedule": [job.useful_length * batch for batch, _ in job.batch_schedule],
        "schedule_ends": [end for _, end in job.batch_schedule], "schedule_longer": max(longer, 0.0),
    }  # fmt: skip
    return finding(
        "critical_batch", low=limit.low, high=limit.high, counted=limit.middle, fits=limit.fits,
        extrapolated=limit.extrapolated, unverified=unverified or None, given=limit.given, batch=whole,
        factor=factor, factor_low=least, factor_high=most, best_low=None if best is None else best.low,
        best_high=None if best is None else best.high, **(early if job.batch_schedule else {}),
    )  # fmt: skip


def checkpoint_sizes(problem: Problem) -> tuple[float, float]:
    """The full state and the weights alone [bytes]."""
    parameters = float(model_parameters(problem.model).total)
    weight = RECIPES[problem.job.precision].weight_bytes
    states = problem.stack.engine
    master, moments = states.master_bytes(weight), states.moment_bytes(problem.job.optimizer)
    return full_state_size(parameters, weight, master, moments), weights_size(parameters, weight)


def interruptions(step_time: float, run_time: float, problem: Problem, a: Assumptions) -> Interruptions:
    """How often the job stops, how it checkpoints and what is left of the wall clock. `run_time` [s]: without stops."""
    cluster = problem.cluster
    devices = cluster.num_devices
    full, weights = checkpoint_sizes(problem)
    spot = a.pricing is Pricing.SPOT
    preempted_rate = a.spot_preemptions if spot else 0.0
    rates = zip(
        *((own, *a.ends(key)) for key, own in (
            ("hardware_failures", a.hardware_failures), ("software_stops", a.software_stops)
        )), strict=True,
    )  # fmt: skip
    between, most, least = (
        float(time_between_stops(
            float(devices), hardware, software_stops_rate(float(devices), software, run_time), preempted_rate
        ))
        for hardware, software in rates
    )  # fmt: skip
    write = float(
        storage_time(
            full,
            float(cluster.num_nodes),
            a.checkpoint_bandwidth_per_node,
            a.checkpoint_bandwidth_limit,
        )
    )
    behind = a.stages_checkpoints
    link = cluster.accelerator.host_bandwidth or cluster.accelerator.pcie_bandwidth
    copy = host_copy_time(full, float(devices), link, a.host_copy_efficiency)
    stall = a.checkpoint_overhead_time + (copy if behind else write)
    shortest = max(step_time, write if behind else 0.0)
    interval = a.checkpoint_interval
    if interval is None:
        interval = max(float(daly_interval(stall, between)), shortest)
    preempted = devices / DEVICES_PER_COUNTED_NODE * a.spot_preemptions * between if spot else 0.0
    restart = a.detection_time + a.restart_time + write + preempted * a.spot_wait
    shares = goodput_shares(interval, stall, between, restart, write if behind else 0.0)
    return Interruptions(shares, between, (least, most), restart, interval, stall, write, full, weights)


def _spares(cluster: Cluster, a: Assumptions) -> int:
    rate = a.hardware_failures * cluster.devices_per_node / DEVICES_PER_COUNTED_NODE
    return spare_nodes(cluster.num_nodes, rate, a.repair_time)


def device_power(cluster: Cluster, a: Assumptions) -> tuple[float | None, str]:
    """Average draw of a device with its share of the node [W], and where it comes from."""
    if a.power is not None:
        return a.power, "as given"
    if cluster.power_per_device:
        node = cluster.power_per_device * cluster.devices_per_node
        return float(
            average_power(cluster.power_per_device, a.load)
        ), f"{a.load:.0%} of a node's {node:,.0f} W"
    tdp = cluster.accelerator.tdp
    if tdp is None:
        return None, ""
    said = f"{a.load:.0%} of ({tdp:,.0f} W TDP x {a.node_power_ratio:g} node overhead)"
    return float(average_power(tdp * a.node_power_ratio, a.load)), said


def device_price(cluster: Cluster, a: Assumptions, owned: bool | None = None) -> tuple[float | None, str]:
    """Price of a device and hour [$/h] and where it comes from; `owned`: own or rented, whatever the pricing."""
    own = a.pricing is Pricing.OWN if owned is None else owned
    if own:
        price = owned_price(cluster, a)
        return price, "" if price is None else OWNED
    stated = {
        Pricing.RESERVED: cluster.reserved_price_per_device_hour, Pricing.SPOT: cluster.spot_price_per_device_hour
    }.get(a.pricing)  # fmt: skip
    if a.price is None and stated is not None:
        return stated, f"{a.pricing} price stated by {cluster.name}"
    price, source = _on_demand_price(cluster, a)
    if price is None:
        return None, ""
    if a.pricing is Pricing.RESERVED:
        return price * a.reserved_price_fraction, f"{a.reserved_price_fraction:.0%} of ${price:g}, {source}"
    if a.pricing is Pricing.SPOT:
        return price * a.spot_price_fraction, f"{a.spot_price_fraction:.0%} of ${price:g}, {source}"
    return price, source


def _on_demand_price(cluster: Cluster, a: Assumptions) -> tuple[float | None, str]:
    if a.price is not None:
        return a.price, "as given"
    if cluster.price_per_device_hour is not None:
        return cluster.price_per_device_hour, f"stated by {cluster.name}"
    listed = a.list_prices.get(cluster.accelerator.name)
    return (None, "") if listed is None else listed


def market_price(cluster: Cluster, a: Assumptions) -> MarketPrice | None:
    """What others ask for an hour of a device, where a list price was taken for want of the cluster's own; None where
    that is not so, or where it is not known."""
    return a.market_prices.get(cluster.accelerator.name) if _is_listed(cluster, a) else None


def _is_listed(cluster: Cluster, a: Assumptions) -> bool:
    """Is an hour's price that of a list, for want of the cluster's own?"""
    return a.price is None and cluster.price_per_device_hour is None and a.pricing is Pricing.ON_DEMAND


def purchase_price(cluster: Cluster, a: Assumptions) -> float | None:
    """Price of a device with its share of the cluster [$]; None where it is not known."""
    if a.purchase_price is not None:
        return a.purchase_price
    known = a.purchase_prices.get(cluster.accelerator.name)
    return None if known is None else known[0]


def owned_price(cluster: Cluster, a: Assumptions) -> float | None:
    """What an hour of one's own device costs [$/h]; None where its price or power is not known."""
    purchase, running = purchase_price(cluster, a), _running(cluster, a)
    if purchase is None or running is None:
        return None
    return float(depreciation_per_hour(purchase, a.depreciation_time, a.fleet_utilisation)) + running


def _running(cluster: Cluster, a: Assumptions) -> float | None:
    purchase, power = purchase_price(cluster, a), device_power(cluster, a)[0]
    if purchase is None or power is None:
        return None
    rates = (a.pue, a.electricity_price, a.staff_cost, a.maintenance_fraction, a.fleet_utilisation)
    return float(running_cost_per_hour(purchase, power, *rates))


def owning(cluster: Cluster, rent: float | None, a: Assumptions) -> tuple[float | None, float | None]:
    """Hourly cost of one's own device [$/h] and the use after which owning is cheaper [s]; None: never, or unknown."""
    own, purchase, running = owned_price(cluster, a), purchase_price(cluster, a), _running(cluster, a)
    if rent is None or purchase is None or running is None:
        return own, None
    hours = float(break_even_hours(purchase, rent, running))
    return own, hours * SECONDS_PER_HOUR if 0 < hours < 1e9 else None


def run_assumptions(problem: Problem, a: Assumptions) -> tuple[Finding, ...]:
    """What the figures of a run rest on; `planner assumptions` shows each with its source."""
    spot = a.pricing is Pricing.SPOT
    prices = {name: price for name, (price, _) in a.purchase_prices.items()}
    if a.purchase_price is not None:
        prices = {"": a.purchase_price}
    guesses = sum(record.unverified for record in a.records) + len(_fits_unverified(problem, a))
    given = (finding("assumptions_given", names=list(a.given)),) if a.given else ()
    unverified = (finding("assumptions_unverified", number=guesses),) if guesses else ()
    hardware, software = a.ends("hardware_failures"), a.ends("software_stops")
    return (
        finding(
            "interruptions", per_devices=DEVICES_PER_COUNTED_NODE, hardware_failures=a.hardware_failures,
            hardware_low=hardware[0], hardware_high=hardware[1],
            hardware_sources=a.record("hardware_failures").named or "given", software_stops=a.software_stops,
            software_low=software[0], software_high=software[1],
            software_sources=a.record("software_stops").named or "given",
            detection_time=a.detection_time, restart_time=a.restart_time,
            spot_preemptions=a.spot_preemptions if spot else None, spot_wait=a.spot_wait if spot else None,
        ),
        finding(
            "checkpoints", writing=str(a.checkpoint_writing), bandwidth_per_node=a.checkpoint_bandwidth_per_node,
            bandwidth_limit=a.checkpoint_bandwidth_limit, overhead=a.checkpoint_overhead_time,
            full_kept=a.full_checkpoints_kept, weights_interval=a.weight_checkpoint_interval,
        ),
        finding("site", pue=a.pue, grid_carbon=a.grid_carbon, electricity_price=a.electricity_price),
        finding(
            "owned_hardware", accelerators=list(prices), prices=list(prices.values()),
            depreciation_time=a.depreciation_time, utilisation=a.fleet_utilisation, staff_cost=a.staff_cost,
            maintenance=a.maintenance_fraction,
        ),
        *given,
        *unverified,
    )  # fmt: skip
