"""What would make an answer legal, fit or faster, and what one change of a configuration is, in words.

Left out: what the changes bring beyond what is said here, which tables of numbers show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.dialect import option
from planner.report.words.memory import host_of, parts_said
from planner.report.words.template import Words, amount, counted, fit, marked
from planner.spec.config import layers_text
from planner.spec.findings import Finding
from planner.spec.job import length_in_words
from planner.spec.terms import term_name
from planner.units import format_capacity, format_time


def _axis_values(found: Finding) -> str:
    *most, last = (str(value) for value in amount(found, "values", list))
    choice = f"{', '.join(most)} or {last}" if most else last
    return f"{found.values['axis']}={choice} instead of {found.values['asked']}"


def _least_memory(found: Finding) -> str:
    values = found.values
    lacks = []
    if "over" in values:
        lacks.append(f"the limit by {format_capacity(amount(found, 'over', float))} per device")
    if "host_over" in values:
        short = format_capacity(amount(found, "host_over", float))
        lacks.append(f"host memory by {short} per node ({parts_said(host_of(found))})")
    seen = ", of those looked at in time," if values.get("of_those_seen") else ""
    return (
        f"even the configuration that needs least memory{seen} ({values['configuration']}) exceeds "
        f"{' and '.join(lacks)}"
    )


def lengths(found: Finding, unit: str = " tokens") -> str:
    """How long sequences are."""
    mean = found.values.get("mean")
    return length_in_words(
        amount(found, "longest", int), None if mean is None else float(str(mean)), bool(found.values["packed"]), unit
    )  # fmt: skip


def _shorter(found: Finding) -> str:
    config = found.values["configuration"]
    bound = ", the longest that it holds, which need not be the longest of all"
    return f"{fit(found)}sequences of {lengths(found)} ({config}{bound if found.values['holds_no_more'] else ''})"


def _better_batch(found: Finding) -> str:
    values = found.values
    what = f"a global batch of {values['batch']} sequences"
    if "tp" in values:
        what += (
            f" (of {values['asked']}, tp {values['tp']} has to cross scale-up domains of "
            f"{values['domain']} devices)"
        )
    elif "tokens_per_device" in values:
        few, many = values["asked_tokens_per_device"], values["tokens_per_device"]
        what += f", {many:,.0f} tokens a device ({values['asked']} have {few:,.0f})"
    else:
        what += f", which more data-parallel degrees divide than {values['asked']}"
    gain = _share(found)
    more = f"{gain:.0%} more" if gain < 1 else f"{gain + 1:.1f} times as many"
    said = f"{what}: {more} tokens a second, {values['configuration']} in {values['step_time']:.3g} s a step"
    if "more_tokens" not in values:
        return said
    return f"{said}; the same loss takes {amount(found, 'more_tokens', float):.0%} more tokens"


def _share(found: Finding) -> float:
    assert found.effect is not None, "it has one"
    assert found.effect.share is not None, "of a share"
    return found.effect.share


_OPTIONS: Final[Mapping[str, str]] = {
    "deepep": "tokens dispatched by deepep instead of NCCL's all-to-all",
    "hybridep": "tokens dispatched by hybridep instead of NCCL's all-to-all",
    "overlap-moe-expert-parallel-comm": "expert all-to-all hidden under another micro-batch's compute",
    "use-transformer-engine-op-fuser": "experts fused with their GEMMs",
    "grad-reduce-in-bf16": "gradients kept and reduced in bf16",
    "activation-func-fp8-input-store": "inputs of SwiGLU kept in 8 bits",
}
_NUMERICS: Final[Mapping[str, str]] = {
    "grad-reduce-in-bf16": " (a choice of numerics; performance recipes of Megatron-Bridge make it)"
}


def _untried_option(found: Finding) -> str:
    values = found.values
    names, meanings = amount(found, "options", list), amount(found, "meanings", list)
    what = [f"GEMMs in {values['precision']}"] if "precision" in values else []
    what += [_OPTIONS.get(n, f"{n} ({meaning})") for n, meaning in zip(names, meanings, strict=True)]
    fits = found.effect is not None and found.effect.share is None
    does = "make it fit" if fits else f"cut the step time by {-_share(found):.0%}"
    instead = f" ({values['configuration']})" if "configuration" in values else ""
    needs = " and ".join(amount(found, "needs", list))
    note = f", if {needs} is installed" if needs else ""
    if values["numerics"]:
        note += _NUMERICS.get(names[0] if names else "", " (a choice of numerics)")
    return f"{' and '.join(what)} would {does}{instead}: {marked(found)}{note}"


def _fewer_devices(found: Finding) -> str:
    values = found.values
    new = f" of {values['batch']:,} sequences" if "batch" in values else ""
    old = f" of {values['asked_batch']:,}" if "asked_batch" in values else ""
    steps = [format_time(amount(found, name, float)) for name in ("step_time", "asked_step_time")]
    spares = values["spare_nodes"]
    left = f"{spares} nodes as spares" if spares != 1 else "a node as a spare"
    return (
        f"{values['devices']:,} devices would take {steps[0]} a step{new}, where {values['asked_devices']:,} take "
        f"{steps[1]}{old}: leave {left}"
    )


def _sooner(found: Finding) -> str:
    values = found.values
    columns = [amount(found, name, list) for name in ("others", "others_days", "others_more")]
    others = " or ".join(
        f"{devices:,} devices in {days:,.1f} days for {more:.0%} more"
        for devices, days, more in zip(*columns, strict=True)
    )
    return (
        f"a deadline: {values['devices']:,} devices take {values['days']:,.1f} days, {others} (planner size "
        f"{option('days', 'N')} takes the fewest devices that end in time)"
    )


_AXES: Final[Mapping[str, str]] = {
    "micro_batch": "micro-batch {}", "zero": "ZeRO stage {}", "recompute": "{} recomputation",
    "cuda_graphs": "CUDA graphs {}", "offload": "{} in CPU memory", "schedule": "{}",
}  # fmt: skip
_NONE: Final = {
    "recompute": "no recomputation", "cuda_graphs": "no CUDA graphs", "offload": "nothing in CPU memory",
}  # fmt: skip


def _axes(found: Finding) -> str:
    """What a configuration has that another one has not."""
    return ", ".join(
        filter(None, (_axis(name, value) for name, value in found.values.items()))
    ) or "the same degrees"  # fmt: skip


def _axis(name: str, value: object) -> str:
    if name == "sp":
        return "sp" if value else "no sp"
    if name == "recompute_layers":
        return f"{layers_text(int(str(value)))} recomputed"
    if value == "full" and name == "recompute":  # the layers say it
        return ""
    return _NONE[name] if value == "none" else _AXES.get(name, f"{name} {{}}").format(value)


def _recompute_layers(found: Finding) -> str:
    values = found.values
    least, most = values.get("least_held"), values.get("most_held")
    held = "" if least is None else f"{least} " if least == most else f"{least} to {most} "
    number = "all" if values["all"] else str(values["layers"])
    of = " of" if held and not values["all"] else ""
    one = not held and number == "1"
    return f"recompute {number}{of} {held}layer{'' if one else 's'}{_graphs(found)}"


def _graphs(found: Finding) -> str:
    return ", no CUDA graphs" if found.values.get("cuda_graphs") == "none" else ""


_CAUSES: Final = {
    "host": "CPU",
    "compute": "smaller kernels",
    "stops": "interruptions",
    "tokens": "critical batch",
    "batch_schedule": "smaller batches at the start",
}


def _holds_back(found: Finding) -> str:
    values = found.values
    terms = zip(amount(found, "terms", list), amount(found, "shares", list), strict=True)
    said = ", ".join(f"{term_name(name)} {share:+.0%}" for name, share in terms)
    cause = str(values["cause"])
    if cause == "none":
        return f"none ({said})"
    words = _CAUSES.get(cause, cause)
    if "num_microbatches" in values:
        number = counted(amount(found, "num_microbatches", int), "micro-batch", "micro-batches")
        words = f"batch ({number} for each pipeline of {values['pp']})"
    return f"{words}: {said}" if said else words


WORDS: Final[Mapping[str, Words]] = {
    "axis_values": _axis_values,
    "least_memory": _least_memory,
    "shorter_sequences": _shorter,
    "better_batch": _better_batch,
    "untried_option": _untried_option,
    "fewer_devices": _fewer_devices,
    "sooner": _sooner,
    "axes": _axes,
    "recompute_layers": _recompute_layers,
    "lengths": lambda found: f"sequences of {lengths(found, '')}",
    "holds_back": _holds_back,
}
