"""What did a search turn on, hold fixed and compare? The sentences of plans and pages.

Left out: how many candidates there were and what is proven of them (`proof.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from planner.catalog.load_options import OPTIONS
from planner.catalog.stack_options import SEPARATOR
from planner.dialect import option
from planner.report.words import line_of
from planner.spec.planfile import CLOSED_GAP, Choice, Plan
from planner.spec.tried import Held, HeldBy, StackStanding, TurnedOn
from planner.units import format_small, format_time

_WHY: Final[Mapping[HeldBy, str]] = {
    HeldBy.NUMERICS: "which would change numerics",
    HeldBy.LEFT_OUT: "left out",
    HeldBy.UNTRIED: "not tried",
    HeldBy.STACK: "as the stack runs",
}
_HELD_AT: Final = {  # axis, any where empty, and value, where these are no number or name of an axis
    ("", "off"): "off",
    ("etp", "divisors_of_tp"): "divisors of tp",
    ("recompute_layers", "all"): "all of them",
    ("chunks", "filled_by_own_split"): "as many as the stack's own split fills",
    ("recompute_layers", "as_many_on_every_rank"): "as many on every pipeline rank",
}


def _lists(value: str) -> str:
    """How many lists of modules are tried; empty where that is not what a value says."""
    return f"{value.removesuffix('_lists')} lists of modules" if value.endswith("_lists") else ""


def turned_on_lines(plan: Plan) -> tuple[str, ...]:
    """What the search turned on for the best configuration, and what it would be without."""
    if not (plan.search.turned_on and plan.choices):
        return ()
    best, found = plan.choices[0].step_time, plan.search.turned_on
    lines = [f"turned on: {', '.join(f'{one.name}{_without(one, best)}' for one in found)}"]
    needs = {option.name: option.needs for option in OPTIONS if option.needs}
    wanted = [f"{one.name} needs {needs[one.name]}" for one in found if one.name in needs]
    if plan.search.as_named is not None and len(found) > 1:
        lines.append(f"without all of these: {_slower(plan.search.as_named, best)}")
    how = (
        f"{option('without', 'NAME')} leaves one out"
        if len(found) > 1
        else f"{option('without', found[0].name)} leaves it out"
    )
    return (*lines, "; ".join([how, *wanted]))


def _without(one: TurnedOn, best: float) -> str:
    return "" if one.without_step_time is None else f" (without it {_slower(one.without_step_time, best)})"


def _slower(time: float, best: float) -> str:
    """A step time against the best."""
    more = time / best - 1
    return f"{format_time(time)}, " + (f"{format_small(more)} slower" if more > CLOSED_GAP else "as fast")


def held_sentence(held: Sequence[Held]) -> str:
    """What the program holds fixed, by stack and the reason why; empty where that is nothing."""
    groups = []
    for stack, (why, words) in product(dict.fromkeys(one.stack for one in held), _WHY.items()):
        some = [_held(one) for one in held if one.why is why and one.stack == stack]
        if some:
            groups.append(f"{f'{stack}: ' if stack else ''}{', '.join(some)} ({words})")
    return f"held fixed: {'; '.join(groups)}" if groups else ""


def _held(one: Held) -> str:
    name = f"{one.axis}={one.value}"
    if said := _lists(one.value) or _HELD_AT.get((one.axis, one.value)) or _HELD_AT.get(("", one.value)):
        name = f"{one.axis} {said}"
    return name if one.gain is None else f"{name} (freeing it saves {one.gain:.0%})"


def stack_rows(standings: Sequence[StackStanding]) -> tuple[tuple[str, str, str, str], ...]:
    """Stack, its best step, how much slower that is than the first's, and the configuration with what was turned on, or
    why there is none."""
    best = next((one.step_time for one in standings if one.step_time is not None), None)
    rows = []
    for one in standings:
        if one.step_time is None or best is None:
            rows.append((one.name, "", "", line_of(one.reason)))
            continue
        slower = "" if one.step_time == best else format_small(one.step_time / best - 1)
        more = one.stack.removeprefix(one.name)
        rows.append(
            (one.name, format_time(one.step_time), slower, " ".join(filter(None, (one.configuration, more))))
        )
    return tuple(rows)


def lead_sentence(standings: Sequence[StackStanding]) -> str:
    """Which of several stacks wins, and by how much; empty where fewer than two run."""
    running = [one for one in standings if one.step_time is not None]
    if len(running) < 2:
        return ""
    first, second = running[0], running[1]
    assert first.step_time is not None
    assert second.step_time is not None
    lead = second.step_time / first.step_time - 1
    if lead <= CLOSED_GAP:
        return f"{first.name} and {second.name} are as fast as each other"
    return f"{first.name} wins: {second.name}, the next, takes {format_small(lead)} longer"


def stack_letters(choices: Sequence[Choice]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A letter for the stack of every choice, and what each letter stands for; nothing where all have one stack."""
    names = list(dict.fromkeys(choice.stack for choice in choices))
    if len(names) < 2:
        return (), ()
    bases = {name.partition(SEPARATOR)[0] for name in names}
    shown = [name if len(bases) > 1 else _options_of(name) for name in names]
    letters = {name: _letter(place) for place, name in enumerate(names)}
    legend = tuple(f"{letters[name]}: {text}" for name, text in zip(names, shown, strict=True))
    return tuple(letters[choice.stack] for choice in choices), legend


def changed_options(best: str, other: str) -> str:
    """How another stack differs from the best one, as options less and more."""
    mine, others = best.split(SEPARATOR), other.split(SEPARATOR)
    if mine[0] != others[0]:
        return f"{best} -> {other}"
    less = [f"without {name}" for name in mine if name not in others]
    more = [f"with {name}" for name in others if name not in mine]
    return ", ".join([*less, *more])


def _options_of(name: str) -> str:
    options = name.partition(SEPARATOR)[2]
    return SEPARATOR + options if options else "no options"


def _letter(place: int) -> str:
    return chr(ord("A") + place % 26) * (place // 26 + 1)
