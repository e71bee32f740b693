"""Which global batch does a question mean, where it gives tokens, or nothing?

Left out: whether a configuration can deal it (`space/rules.py`), and for which sizes one batch is held
(`answer/outcome.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from planner.dialect import option
from planner.errors import InputError
from planner.space.axes import divisors
from planner.spec.findings import Finding, finding
from planner.units import format_count, parse_count

DEFAULT_BATCH_TOKENS: Final = 4e6
USUAL_PIPELINE: Final = 16  # an odd factor of the devices up to this a pipeline can take
TOKENS, SEQUENCES = "tok", "seq"  # behind a number
LARGEST_CREDIBLE_STEP: Final = 1e10  # tokens; DeepSeek-V3's steps have 63M
MOST_CREDIBLE: Final = 1_000_000  # sequences
_WORST: Final = (0, 0.0)
LARGEST_BATCH: Final = 2**30  # sequences; columns of candidates hold 32-bit numbers


def global_batch_of(
    text: str | None, seq_len: int, devices: int, shards: int = 1, name: str = "global_batch"
) -> tuple[int, tuple[Finding, ...]]:
    """Sequences per step: as given ("512", "512seq"), from tokens ("4Mtok"), or about 4M tokens rounded so that dp can
    divide it; and what was assumed.

    `shards`: what a batch that nobody named must be a multiple of; `name`: of the option that gives it. Raises
    `InputError` for a number that may be either.
    """
    number, in_tokens = DEFAULT_BATCH_TOKENS, True
    if text is not None:
        number, in_tokens = _number_of(text, seq_len, option(name))
    sequences = number / seq_len if in_tokens else number
    if sequences > LARGEST_BATCH:
        raise InputError(
            f"{option(name)} must be at most {LARGEST_BATCH} sequences", f"{text} ({sequences:.3g})"
        )
    if not in_tokens:
        if sequences != int(sequences):
            raise InputError(f"{option(name)} must be a whole number of sequences", str(text))
        return int(sequences), ()
    batch, most = rounded_batch(sequences, (devices,), shards if text is None else 1)
    basis = "tokens" if text is not None else "usual" if batch <= most else "degrees"
    return batch, (finding("global_batch", batch=batch, seq_len=seq_len, basis=basis),)


def in_tokens(text: str) -> bool:
    """Is a batch given in tokens?"""
    return text.strip().lower().endswith(TOKENS)


def _number_of(text: str, seq_len: int, what: str) -> tuple[float, bool]:
    """The number of a batch, and whether it counts tokens; sequences where it says nothing and is a usual number of
    these."""
    bare = text.strip()
    example = "512 or 16Mtok"
    if in_tokens(bare):
        return parse_count(bare[: -len(TOKENS)], what, example=example), True
    stated = bare.lower().endswith(SEQUENCES)
    bare = bare[: -len(SEQUENCES)] if stated else bare
    number = parse_count(bare, what, example=example)
    usual = bare[-1:].isdigit() or bare[-1:] in ("k", "K")
    credible = usual and number <= MOST_CREDIBLE and number * seq_len <= LARGEST_CREDIBLE_STEP
    if stated or credible:
        return number, False
    raise InputError(
        f"{what} must say what so large a number counts",
        f"{text}: {number:,.0f} sequences ({_count(number * seq_len)} tokens), or as many tokens "
        f"({number / seq_len:,.0f} sequences of {seq_len:,})",
        f"write {bare}{TOKENS} or {bare}{SEQUENCES}",
    )


def _count(number: float) -> str:
    return format_count(number).replace(" ", "")


def rounded_batch(sequences: float, sizes: Sequence[int], held: int = 1) -> tuple[int, int]:
    """A batch within a quarter of `sequences` that divides well over each number of devices, worst for none, and the
    most that is within it. `held`: what it must be a multiple of, even where that is more."""
    least, most = max(int(0.75 * sequences), 1), max(int(1.25 * sequences), 1)
    # many degrees divide a batch that shares many divisors with the devices, or has a high power of two in it; what is
    # odd in the devices and not in the batch is left to pipelines, as heads and sequences are powers of two
    common = {1}
    for devices in set(sizes):
        common = {d for one in common for own in divisors(devices) if (d := math.lcm(one, own)) <= most}
    steps = ((min(_suits(d, devices) for devices in sizes), math.lcm(d, held)) for d in common)
    step = max((s for s in steps if most // s[-1] * s[-1] >= least), default=(_WORST, held))[-1]
    first = -(-least // step) * step
    near = range(first, max(most, first) + 1, step)
    return max(near, key=lambda b: (b & -b, -abs(b - sequences))), most


def _suits(step: int, devices: int) -> tuple[int, float]:
    """How well a batch of multiples of `step` divides over devices: the part it leaves to pipelines, and the share of
    the divisors it has."""
    common = math.gcd(step, devices)
    return -max(odd_part(devices // common), USUAL_PIPELINE), len(divisors(common)) / len(divisors(devices))


def odd_part(number: int) -> int:
    """The largest odd divisor."""
    return number // (number & -number)


def shards_of(degrees: Mapping[str, tuple[int, ...]], devices: int) -> int:
    """What the batch must be a multiple of under the degrees that have one value; 1 where they leave it open."""
    one = {axis: values[0] for axis, values in degrees.items() if len(values) == 1 and values[0] > 0}
    dp = one.get("dp", 1)
    if "dp" not in one and {"tp", "cp", "pp"} <= one.keys():
        dp = max(devices // (one["tp"] * one["cp"] * one["pp"]), 1)
    rounds = one["pp"] if "pp" in one and one.get("vpp", 1) > 1 else 1
    return min(dp * one.get("micro_batch", 1) * rounds, LARGEST_BATCH)
