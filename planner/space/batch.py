"""Which global batch does a question mean, where it gives tokens, or nothing?

Left out: whether a configuration can deal it (`space/rules.py`), and for which sizes one batch is held (`outcome.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from planner.errors import InputError
from planner.space.axes import divisors
from planner.units import format_count, parse_count

DEFAULT_BATCH_TOKENS: Final = 4e6
USUAL_PIPELINE: Final = 16  # an odd factor of the devices up to this a pipeline can take
LARGEST_USUAL_STEP: Final = 1e9  # tokens; DeepSeek-V3's steps have 63M
LARGEST_CREDIBLE_STEP: Final = 1e10  # tokens, and a million sequences, however they are written
MOST_CREDIBLE: Final = 1_000_000
TOKENS_MEANT: Final = ": if tokens are meant, write "
_WORST: Final = (0, 0.0)
LARGEST_BATCH: Final = 2**30  # sequences; columns of candidates hold 32-bit numbers


def global_batch_of(
    text: str | None, seq_len: int, devices: int, shards: int = 1
) -> tuple[int, tuple[str, ...]]:
    """Sequences per step: as given, from tokens, or about 4M tokens rounded so that dp can divide it.

    `shards`: what a batch that nobody named must be a multiple of.
    """
    in_tokens = text is None or text.lower().endswith("tok")
    wanted = (
        DEFAULT_BATCH_TOKENS
        if text is None
        else parse_count(text[:-3] if in_tokens else text, "the global batch", example="512 or 16Mtok")
    )
    sequences = wanted / seq_len if in_tokens else wanted
    if sequences > LARGEST_BATCH:
        raise InputError(
            f"the global batch must be at most {LARGEST_BATCH} sequences", f"{text} ({sequences:.3g})"
        )
    if not in_tokens:
        if sequences != int(sequences):
            raise InputError("the global batch must be a whole number of sequences", str(text))
        return int(sequences), _doubted(str(text), int(sequences), seq_len)
    batch, most = rounded_batch(sequences, (devices,), shards if text is None else 1)
    what = "asked for as tokens"
    if text is None:
        what = (
            "about 4M tokens"
            if batch <= most
            else "more than 4M tokens, which the named degrees do not divide"
        )
    return batch, (f"global batch {batch_words(batch, seq_len)} ({what}, rounded to a legal size)",)


def batch_words(batch: int, seq_len: int) -> str:
    """A batch and its tokens in words: below a million, all of them."""
    tokens = batch * seq_len
    size = f"{tokens / 1e6:.3g}M" if 1e6 <= tokens < 9.995e8 else format_count(tokens).replace(" ", "")
    said = f"{tokens:,}" if tokens < 1e6 else size
    return f"{batch:,} sequence{'s' * (batch != 1)}, {said} token{'s' * (tokens != 1)}"


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


def _doubted(text: str, sequences: int, seq_len: int) -> tuple[str, ...]:
    """That a batch such as "4M" counts sequences, where tokens are likelier to be meant."""
    tokens = sequences * seq_len
    credible = tokens <= (LARGEST_CREDIBLE_STEP if text[-1:].isdigit() else LARGEST_USUAL_STEP)
    if credible and sequences <= MOST_CREDIBLE:
        return ()
    return (f"global batch {sequences:,} sequences, {tokens / 1e9:,.3g}B tokens{TOKENS_MEANT}{text}tok",)


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
