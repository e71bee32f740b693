"""How is what is given for an option read? One reader a kind of value: numbers, lengths, shares, names, settings.

The same for text of the command line, YAML and the page and for values of Python. What a name stands for, and whether
values suit each other, is seen where the question is resolved. Left out: units (`planner.units`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Final

from planner.ask.option import Reader, refuse
from planner.dialect import option
from planner.errors import InputError, UnitError
from planner.units import parse_count, parse_length, parse_quantity

LARGEST_COUNT: Final = 10**9  # of tokens, sequences or devices; above it a figure is a slip of the keyboard
MOST_TOKENS: Final = 1e18  # of a run; the largest are some 1e14
LEAST_STEP: Final = 1e4  # tokens of a critical batch: that of Kaplan 2020 at a loss of 8 nats, hardly trained
MOST_STEP: Final = 1e11
LEAST_BYTES: Final = 1e6  # of a float that is taken as bytes, as planner has them inside
_GROUPED: Final = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_SWITCH: Final = {
    "yes": True,
    "true": True,
    "on": True,
    "1": True,
    "no": False,
    "false": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True)
class Settings:
    """What `set` says: the values that it leaves to axes, in codes, and the layout of an estimate ("" for none)."""

    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layout: str = ""


def _bare(given: object) -> object:
    """Text without spaces around it, and without commas between thousands."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def whole(least: int = 1, most: int = LARGEST_COUNT, example: str = "8") -> Reader[int]:
    """Whole numbers."""

    def read(given: Any, name: str) -> int:
        bare = _bare(given)
        if isinstance(bare, str) and re.fullmatch(r"-?[0-9][0-9_]{0,18}", bare):
            bare = int(bare)
        if isinstance(bare, bool) or not isinstance(bare, Integral):
            raise refuse(name, f"a whole number, such as {example}", given)
        if not least <= int(bare) <= most:
            raise refuse(
                name,
                f"a whole number from {least:,} to {most:,}",
                int(bare),
                f"write {option(name, example)}, say",
            )
        return int(bare)

    return Reader(read, "<int>")


def _length(given: Any, name: str) -> int:
    if isinstance(given, str):
        try:
            given = parse_length(str(_bare(given)), option(name))
        except UnitError:
            raise refuse(name, "a whole number, such as 4096 or 8k", given) from None
    return whole(example="4096").read(given, name)


def _real(given: Any) -> float:
    """A number of Python, or one that stands alone in text; NaN for anything else, and for what no float holds."""
    if isinstance(given, bool) or not isinstance(given, str | Real):
        return math.nan
    try:
        return float(given)
    except (ValueError, OverflowError):
        return math.nan


def number(above: float = 0.0, most: float = math.inf) -> Reader[float]:
    """Numbers above a least one, at most another."""

    def read(given: Any, name: str) -> float:
        found = _real(_bare(given))
        if math.isnan(found):
            raise refuse(name, "a number", given)
        if not above < found <= most:
            bound = f"above {above:g}" + (f" and at most {most:g}" if most < math.inf else "")
            raise refuse(name, bound, given)
        return found

    return Reader(read, "<float>")


def _mean_length(given: Any, name: str) -> float:
    if isinstance(given, str) and math.isnan(_real(_bare(given))):
        try:
            return float(parse_length(given, option(name)))
        except UnitError:
            raise refuse(name, "a number, such as 512 or 2k", given) from None
    return number().read(given, name)


def _share(given: Any, name: str) -> float:
    in_percent = isinstance(given, str) and given.strip().endswith("%")
    found = _real(given.strip().removesuffix("%")) / 100 if in_percent else _real(given)
    if not 0 <= found < 1:
        raise refuse(name, "a share from 0 to below 1", given, "write 0.05 for 5%")
    return found


def _capacity(given: Any, name: str) -> float:
    if isinstance(given, str):
        try:
            return parse_quantity(given, "capacity")
        except UnitError:
            given = given.strip()
    if type(given) is not float or not LEAST_BYTES <= given < math.inf:  # a bare number may be anything
        raise refuse(name, "a number with a unit of bytes", given, f"write {option(name, '4GiB')}, say")
    return given


def _tokens(given: Any, name: str) -> float:
    if isinstance(given, str):
        return parse_count(given, option(name), MOST_TOKENS)
    found, hint = _real(given), f"write {option(name, '15.6T')}, say"
    if math.isnan(found):
        raise refuse(name, "a number or text", given, hint)
    if not 0 < found <= MOST_TOKENS:
        raise refuse(name, f"above 0 and at most {MOST_TOKENS:g}", given, hint)
    return found


def _batch(given: Any, name: str) -> str:
    if isinstance(given, Integral) and not isinstance(given, bool):
        return str(int(given))
    if not isinstance(given, str):
        raise refuse(
            name, "a whole number or text", given, f"write {option(name, 512)} or {option(name, '16Mtok')}"
        )
    return str(_bare(given))


def _step_tokens(given: Any, name: str) -> float:
    """Tokens of a step: 8Mtok, 8M or a number."""
    text = given.strip().lower().removesuffix("tok") if isinstance(given, str) else given
    found = parse_count(text.upper(), option(name), example="8Mtok") if isinstance(text, str) else _real(text)
    if not LEAST_STEP <= found <= MOST_STEP:
        must = f"from {LEAST_STEP:,.0f} to {MOST_STEP:,.0f} tokens"
        raise refuse(name, must, given, f"write {option(name, '8Mtok')}, say")
    return found


def _batch_stages(given: Any, name: str) -> tuple[tuple[str, float], ...]:
    """Batches and the tokens of the run at which each ends: "4Mtok:252M, 8Mtok:2.87T"."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence):
        raise refuse(name, "text", given, f"write {option(name, '4Mtok:252M,8Mtok:2.87T')}")
    parts = [
        part for text in texts for part in (re.split(r"[,;]", text) if isinstance(text, str) else [text])
    ]
    found = []
    for part in parts:
        batch, end = part.split(":", 1) if isinstance(part, str) and ":" in part else _two(part, name)
        if batch == "":
            raise refuse(name, "batches, each with the tokens at which it ends", part, "write 4Mtok:252M")
        found.append((_batch(batch, name), _tokens(end, name)))
    return tuple(found)


def _two(part: Any, name: str) -> tuple[Any, Any]:
    if isinstance(part, str) or not isinstance(part, Sequence) or len(part) != 2:
        raise refuse(name, "batches, each with the tokens at which it ends", part, "write 4Mtok:252M")
    return part[0], part[1]


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise refuse(name, "text", given)
    return given


def _name(given: Any, name: str) -> str:
    if not isinstance(given, str | PathLike):
        hint = "describe a model in a YAML file, or give its config.json" if name == "model" else ""
        raise InputError(f"{option(name)} must be a name or a path", type(given).__name__, hint)
    return fspath(given)


def _switch(given: Any, name: str) -> bool:
    found = _SWITCH.get(given.strip().lower()) if isinstance(given, str) else given
    if not isinstance(found, bool):
        raise refuse(name, "True or False", given)
    return found


def _texts(given: Any, name: str, between: str) -> tuple[str, ...]:
    """Texts one by one, of which a text may hold several."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        raise refuse(name, "a name or a list of names", given)
    return tuple(part.strip() for text in texts for part in re.split(between, text.strip()))


def _left_out(given: Any, name: str) -> tuple[str, ...]:
    from planner.space.without import names_left_out

    return names_left_out(_texts(given, name, r"[\s,]+"))


def _names(given: Any, name: str) -> tuple[str, ...]:
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(one, str | PathLike) for one in listed):
        raise refuse(name, "a list of names", given, f"write {option(name, 'dgx-h100,dgx-b200')}")
    names = _texts([fspath(one) for one in listed], name, ",")
    if not all(names):
        raise InputError(f"{option(name)} must be names with commas between", ",".join(names))
    return names


def _counts(given: Any, name: str) -> tuple[int, ...]:
    several = (
        given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    )
    return tuple(whole(1, 10**7, "1024,512").read(one, name) for one in several)


def _pair(given: Any, name: str) -> tuple[int, int]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, Sequence) or len(parts) != 2:
        raise refuse(name, "two numbers, of first and of last layers", given, "write 1,1")
    first, last = (whole(0, 9999, "1,1").read(one, name) for one in parts)
    return first, last


def _settings(given: Any, name: str) -> Settings:
    if isinstance(given, Settings):
        return given
    from planner.space.restriction import parse_restriction, restriction_of, split_layout

    if isinstance(given, Mapping):
        return Settings(*restriction_of(given))
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        raise refuse(name, "a mapping", given, f"write {option(name, 'tp=8')}")
    layout, settings = split_layout(texts)
    return Settings(parse_restriction(settings), layout)


def _settings_written(held: Settings) -> dict[str, Any]:
    from planner.spec.config import value_text

    axes = {axis: [value_text(axis, value) for value in values] for axis, values in held.axes.items()}
    return axes | ({"layout": held.layout} if held.layout else {})


def _assumed(given: Any, name: str) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        given = [f"{key}={value}" for key, value in given.items()]
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        raise refuse(name, "a mapping", given, f"write {option(name, 'pue=1.2')}")
    return tuple(part.strip() for text in texts for part in text.split(";") if part.strip())


def _days(given: Any, name: str) -> float:
    if isinstance(given, str) and math.isnan(_real(given)):
        given = parse_quantity(given, "time") / 86400
    return number(0, 1e6).read(given, name)


def _dollars(given: Any, name: str) -> float:
    if isinstance(given, str):
        bare = given.strip().removeprefix("$").removesuffix("$").removesuffix("USD").strip()
        return parse_count(bare, option(name), example="5M")
    return number().read(given, name)


def listed(write: Callable[[Any], Any] = list) -> dict[str, Any]:
    """Of readers of several values: they may be given again and again, and files hold lists."""
    return {"many": True, "write": write}


TEXT: Final = Reader(_text)
NAME: Final = Reader(_name, may_be_file=True)
FILE: Final = Reader(_name, "FILE", is_file=True, may_be_file=True)
LENGTH: Final = Reader(_length, "<int>")
MEAN_LENGTH: Final = Reader(_mean_length, "<float>")
BATCH: Final = Reader(_batch)
SHARE: Final = Reader(_share, write=lambda value: f"{100 * value:.12g}%")
CAPACITY: Final = Reader(_capacity, "<size>", write=lambda value: f"{value:.0f} B")
TOKENS: Final = Reader(_tokens)
STEP_TOKENS: Final = Reader(_step_tokens, write=lambda value: f"{value:.12g}tok")
BATCH_STAGES: Final = Reader(
    _batch_stages, "BATCH:TOKENS", **listed(lambda stages: [f"{batch}:{end:.12g}" for batch, end in stages])
)
SWITCH: Final = Reader(_switch, flag=True)
PAIR: Final = Reader(_pair, "FIRST,LAST", write=lambda value: ",".join(map(str, value)))
COUNTS: Final = Reader(_counts, "N[,N...]", write=list)
NAMES: Final = Reader(_names, "A,B,...", may_be_file=True, **listed())
LEFT_OUT: Final = Reader(_left_out, "NAME", **listed())
SETTINGS: Final = Reader(_settings, "AXIS=V[,V...]", **listed(_settings_written))
ASSUMED: Final = Reader(_assumed, "KEY=VALUE", **listed())
DAYS: Final = Reader(_days, "D")
DOLLARS: Final = Reader(_dollars, "$")
