"""Over how many ranks did a published row divide the work along each axis, and what could it be where cells are empty?

What is stated multiplies up to the device count, so that one empty degree follows from the others. Where several are
empty they are 1 unless that cannot be; then `options` lists what can. Left out: which of these a run would have taken
(`undecided.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from benchmarks.published.cells import Row, count_in, sequence_parallel_stated
from benchmarks.published.schedules import names_pipeline
from planner.errors import UnsupportedError
from planner.space.axes import divisors
from planner.spec.model import ModelSpec

_AXES: Final = ("tp", "cp", "pp")


@dataclass(frozen=True)
class Degrees:
    """Ranks along each axis; `dp` is the device count over tp x cp x pp. `etp`: of experts, 0 where nothing says."""

    tp: int
    cp: int
    pp: int
    ep: int
    dp: int
    etp: int = 0

    def of(self, axes: Iterable[str]) -> str:
        """Those of some axes, and the data-parallel one, in words."""
        return " ".join(f"{axis}{getattr(self, axis)}" for axis in (*axes, "dp"))


@dataclass(frozen=True)
class Found:
    """Degrees as stated or derived, the others 1. `filled`: what was filled in. `open`: axes that nothing determines.
    `dp`: as stated; `holds`: whether it can be. `whole`: whether degrees multiply up and agree with the rest of the
    row."""

    degrees: Degrees
    filled: tuple[str, ...]
    open: tuple[str, ...] = ()
    dp: int | None = None
    holds: bool = True
    whole: bool = True

    def said(self, gpus: int) -> tuple[str, ...]:
        """What is assumed about degrees."""
        if self.dp is None or self.dp == self.degrees.dp:
            return self.filled
        return (*self.filled, f"dp {self.dp} contradicts {gpus} devices: {self.degrees.dp}")

    def planned(self, taken: Degrees) -> Found:
        """With degrees of a plan along the open axes."""
        filled = [text for text in self.filled if text.split(" ")[0] not in self.open]
        said = f"{', '.join(self.open)} not stated: those of a plan, {taken.of(self.open)}"
        return replace(self, degrees=taken, filled=(*filled, said))


def degrees_in(cells: Row, gpus: int, moe: bool) -> Found:
    """The degrees of a row. Raises `UnsupportedError` for those that do not divide the devices."""
    told = {axis: count_in(cells, axis) for axis in (*_AXES, "ep", "dp")}
    known = math.prod(told[axis] or 1 for axis in _AXES)
    if gpus % known:
        raise UnsupportedError(
            "tp x cp x pp must divide the device count", f"{known} of {gpus} devices", "check the row"
        )
    empty, said, dp = [axis for axis in _AXES if told[axis] is None], [], told["dp"]
    rest = gpus // known // dp if dp and gpus // known % dp == 0 else 0
    if len(empty) == 1 and rest:
        told[empty[0]] = rest
        said.append(f"{empty[0]} not stated: {rest}{f', of {gpus} devices' if rest > 1 else ''}")
    else:
        said += [f"{axis} not stated: 1" for axis in empty]
    ones = {axis: told[axis] or 1 for axis in (*_AXES, "ep")}
    degrees = Degrees(**ones, dp=gpus // math.prod(ones[axis] for axis in _AXES))
    open_axes = [axis for axis in empty if told[axis] is None] if rest != 1 else []
    if open_axes == ["cp"]:
        open_axes = []
    whole = not (rest > 1 and open_axes) and not _contradicts(cells, degrees, open_axes)
    if moe and told["ep"] is None:
        open_axes.append("ep")
        said.append("ep not stated: 1")
    return Found(degrees, tuple(said), tuple(open_axes), dp, bool(rest), whole)


def _contradicts(cells: Row, degrees: Degrees, open_axes: list[str]) -> bool:
    """Does the rest of a row name parallelism along an axis that was left at 1?"""
    return any(axis in open_axes and getattr(degrees, axis) == 1 for axis in _named(cells))


def _named(cells: Row) -> list[str]:
    """Axes along which the rest of a row says that there are several ranks."""
    named = ["pp"] if names_pipeline(cells) else []
    return [*named, "tp"] if sequence_parallel_stated(cells["sequence_parallel"]) else named


def options(
    found: Found, cells: Row, model: ModelSpec, gpus: int, domain: int, with_cp: bool
) -> list[Degrees]:
    """Degrees that the open axes can have: tensor groups inside a scale-up domain, no more stages than layers, experts
    whole, as the rest of the row has them where any can. `with_cp`: context parallelism, too, where that is open."""
    degrees = found.degrees
    sizes = divisors(gpus)
    heads = math.gcd(*(attention.heads for attention in model.attentions))  # 0, which all divide, without any
    tokens = count_in(cells, "seq_len") or 1
    values = {
        "tp": [t for t in sizes if heads % t == 0 and domain % t == 0],
        "cp": [c for c in sizes if c == 1 or (with_cp and tokens % (2 * c) == 0)],
        "pp": [p for p in sizes if p <= model.num_layers],
    }
    ways = [values[axis] if axis in found.open else [getattr(degrees, axis)] for axis in _AXES]
    whole = []
    for t, c, p in product(*ways):
        if gpus % (t * c * p) or (found.dp and found.holds and gpus // (t * c * p) != found.dp):
            continue
        d = gpus // (t * c * p)
        made = replace(degrees, tp=t, cp=c, pp=p, dp=d)
        whole += _expert_ways(found, cells, model, made)
    for axis in _named(cells):
        if axis in found.open:
            whole = [made for made in whole if getattr(made, axis) > 1] or whole
    batch = count_in(cells, "global_batch") or 0
    return [made for made in whole if batch % made.dp == 0] or whole


def _expert_ways(found: Found, cells: Row, model: ModelSpec, degrees: Degrees) -> list[Degrees]:
    """Experts over so many ranks, each whole or over the ranks of a tensor group, as far as that is open."""
    if "ep" not in found.open:
        return [degrees]
    experts = math.gcd(*(layer.moe.experts for layer in model.layer_kinds if layer.moe is not None))
    ranks = degrees.tp * degrees.cp * degrees.dp
    told = count_in(cells, "etp")
    return [
        replace(degrees, ep=ep, etp=etp)
        for etp in ((told,) if told else sorted({1, degrees.tp}))
        for ep in divisors(experts)
        if ranks % (ep * etp) == 0
    ]


def expert_tp_in(cells: Row, model: ModelSpec, degrees: Degrees, assumed: list[str]) -> int:
    """Expert tensor parallelism; not stated: tp, as Megatron-LM's default is, where that divides the ranks."""
    stated, tp = count_in(cells, "etp"), degrees.tp
    if stated is not None or not model.is_moe or tp == 1:
        return stated or 1
    etp = degrees.etp or (tp if tp * degrees.cp * degrees.dp % (degrees.ep * tp) == 0 else 1)
    assumed.append(f"expert tensor parallelism not stated: {etp}")
    return etp
