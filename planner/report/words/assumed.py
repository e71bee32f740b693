"""What an answer assumes of cluster, job and run, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.dialect import option
from planner.report.words.template import PER_DAY, Words, amount, counted
from planner.spec.findings import Finding
from planner.units import format_count, format_time


def _batch(found: Finding) -> str:
    """A batch and its tokens: below a million, all of them."""
    batch, seq_len = amount(found, "batch", int), amount(found, "seq_len", int)
    tokens = batch * seq_len
    whole = format_count(tokens).replace(" ", "")
    size = f"{tokens / 1e6:.3g}M" if 1e6 <= tokens < 9.995e8 else whole
    said = f"{tokens:,}" if tokens < 1e6 else size
    return f"{counted(batch, 'sequence', 'sequences')}, {said} token{'s' * (tokens != 1)}"


_BASIS: Final[Mapping[str, str]] = {
    "tokens": "asked for as tokens, rounded to a legal size",
    "usual": "about 4M tokens, rounded to a legal size",
    "degrees": "more than 4M tokens, which the named degrees do not divide, rounded to a legal size",
    "nearest": "the nearest to 4M tokens that is legal here",
    "chosen": "about 4M tokens",
}


def _held_batch(found: Finding) -> str:
    values = found.values
    if "seq_len" not in values:
        return (
            f"global batch held at {counted(amount(found, 'batch', int), 'sequence', 'sequences')}, as given"
        )
    what = f"{values['asked']} asked for" if "asked" in values else "about 4M tokens"
    over = " or ".join(f"{devices:,}" for devices in amount(found, "sizes", list))
    return f"global batch held at {_batch(found)} ({what}{f', rounded to divide over {over} devices' if over else ''})"


def _by_degree(found: Finding, name: str = "imbalances") -> str:
    """Factors by expert-parallel degree."""
    each = zip(amount(found, "degrees", list), amount(found, name, list), strict=True)
    return ", ".join(f"{factor:.2f} at ep {ep}" for ep, factor in each)


def _stated_loads(found: Finding) -> str:
    """Which loads, and where a distribution asked for more than an expert can get."""
    said = str(found.values["loads"])
    if "choices" in found.values:
        choices = amount(found, "choices", float)
        said += f" (at most {1 / choices:.1%} each, as a token goes to {choices:.4g})"
    return f"expert loads {said}"


def _expert_loads(found: Finding) -> str:
    values = found.values
    return (
        f"{_stated_loads(found)} of {values['experts']} experts placed by index: the busiest rank has this "
        f"many times the mean: {_by_degree(found)}; placed as evenly as can be "
        f"({option('expert_replicas', amount(found, 'experts', int))}): {_by_degree(found, 'placed')}"
    )


def _experts_replicated(found: Finding) -> str:
    values = found.values
    return (
        f"{_stated_loads(found)}, {values['replicas']} replicas of {values['experts']} experts placed as "
        f"evenly as can be: the busiest rank has this many times the mean: {_by_degree(found)}"
    )


def _loads_unstated(found: Finding) -> str:
    return (
        "expert loads not stated: as training with an auxiliary loss leaves them, experts placed by index, so that the "
        f"busiest rank has {_by_degree(found)} times the mean of tokens ({option('expert_loads', 'balanced')} where a "
        "benchmark forces balance)"
    )


def _latencies(found: Finding) -> str:
    hops = zip(amount(found, "kinds", list), amount(found, "latencies", list), strict=True)
    return f"assumed link latency per hop: {', '.join(f'{kind} {hop * 1e6:g} µs' for kind, hop in hops)}"


def _fabric_speed(found: Finding) -> str:
    device, node = (8e-9 * amount(found, name, float) for name in ("bandwidth", "node_bandwidth"))
    return f"{found.values['fabric']} of {device:g} Gbit/s a device, {node:,g} Gbit/s a node"


def _node_sends(found: Finding) -> str:
    values = found.values
    speed = amount(found, "bandwidth", float) * 8e-9
    return (
        f"a node sends {speed:g} Gbit/s, as a typical {values['accelerator']} node on {values['fabric']} does"
    )


def _defaults(found: Finding) -> str:
    axes = zip(amount(found, "axes", list), amount(found, "set", list), strict=True)
    return "defaults used: " + ", ".join(f"{axis}={value}" for axis, value in axes)


_LEAST: Final = {
    "cost": "cost of the run", "energy": "energy of the run", "gpus": "devices that hold the job",
}  # fmt: skip


def _size_chosen(found: Finding) -> str:
    """Which of several sizes an objective takes."""
    sizes = ", ".join(f"{devices:,}" for devices in amount(found, "sizes", list))
    least = _LEAST[str(found.values["objective"])]
    return f"{found.values['devices']:,} devices: of the sizes tried ({sizes}) the one with least {least}"


def _site(found: Finding) -> str:
    values = found.values
    carbon, price = amount(found, "grid_carbon", float), amount(found, "electricity_price", float)
    return f"site: PUE {values['pue']:g}, {carbon * 3.6e9:.0f} g CO2 per kWh, electricity ${price * 3.6e6:.3g} per kWh"


def _owned(found: Finding) -> str:
    values = found.values
    prices = zip(amount(found, "accelerators", list), amount(found, "prices", list), strict=True)
    bought = ", ".join(f"${price:,.0f}" + (f" ({name})" if name else "") for name, price in prices)
    years = amount(found, "depreciation_time", float) / (365.25 * PER_DAY)
    return (
        f"owned hardware: {bought} per device with its network, over {years:.2g} years at "
        f"{values['utilisation']:.0%} use, ${values['staff_cost']:,.0f} staff and "
        f"{values['maintenance']:.1%} upkeep a year"
    )


def _tokens(amount_of: float) -> str:
    """A batch in tokens, with three digits."""
    return format_count(amount_of).replace(" ", "")


_NO_FIT: Final[Mapping[str, str]] = {
    "adapters": "no published fit is of adapters",
    "fine_tuning": "no published fit is of so few tokens, fewer than parameters, as in fine-tuning",
    "range": "no published fit is of such a run",
}


def _critical_batch(found: Finding) -> str:
    """Where a batch lies beside the critical one, and what tokens it costs."""
    values = found.values
    low, high, batch, factor, least, most = (
        amount(found, name, float) for name in ("low", "high", "batch", "factor", "factor_low", "factor_high")
    )  # fmt: skip
    names, beyond = amount(found, "fits", list), amount(found, "extrapolated", list)
    after = (
        f"{', '.join(map(str, beyond))} beyond {'its' if len(beyond) == 1 else 'their'} runs"
        if beyond
        else ""
    )
    whose = "as given" if values["given"] else "; ".join(filter(None, [", ".join(map(str, names)), after]))
    range_ = _tokens(low) if low == high else f"{_tokens(low)} to {_tokens(high)}"
    where = "lies below it" if batch < low else "lies beyond it" if batch > high else "lies within that range"
    said = f"critical batch {range_} tokens ({whose}); the global batch of {_tokens(batch)} {where}"
    small = 1 + batch / amount(found, "counted", float)
    if most - 1 < LEAST_FACTOR:
        said += (
            f": no tokens added (at a very small batch {1 - 1 / small:.0%} fewer would reach the same loss)"
        )
    elif factor - 1 < LEAST_FACTOR:
        said += f": no tokens added (up to {most:.2f} times as many by the fits)"
    else:
        ends = f" ({least:.2f} to {most:.2f} by the fits)" if most - least > LEAST_FACTOR else ""
        said += f": {factor:.2f} times the tokens for the same loss{ends}"
    if "best_low" in values:
        best = dict.fromkeys(_tokens(amount(found, name, float)) for name in ("best_low", "best_high"))
        said += f"; batches found best for such a run: {' to '.join(best)}"
    if "unverified" in values:
        said += f"; from memory: {', '.join(map(str, amount(found, 'unverified', list)))}"
    if "schedule" in values:
        stages = zip(amount(found, "schedule", list), amount(found, "schedule_ends", list), strict=True)
        early = ", ".join(f"{_tokens(own)} up to {_tokens(end)}" for own, end in stages)
        said += f"; the batches before it, {early}, take {format_time(amount(found, 'schedule_longer', float))} longer"
    return said


LEAST_FACTOR: Final = 0.005  # of tokens, that is worth saying

WORDS: Final[Mapping[str, Words]] = {
    "critical_batch": _critical_batch,
    "critical_batch_unknown": lambda found: (
        f"critical batch not known: {_NO_FIT[str(found.values['why'])]}; no tokens added for a batch of "
        f"{_tokens(amount(found, 'batch', float))} ({option('critical_batch', '8Mtok')} states it)"
    ),
    "global_batch": lambda found: f"global batch {_batch(found)} ({_BASIS[str(found.values['basis'])]})",
    "held_batch": _held_batch,
    "expert_loads": _expert_loads,
    "experts_replicated": _experts_replicated,
    "loads_unstated": _loads_unstated,
    "nominal_latencies": _latencies,
    "fabric_speed": _fabric_speed,
    "typical_node_sends": _node_sends,
    "defaults_used": _defaults,
    "size_chosen": _size_chosen,
    "site": _site,
    "owned_hardware": _owned,
}
