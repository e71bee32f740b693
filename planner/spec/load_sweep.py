"""Which questions does a sweep file ask? Every combination of the values it lists.

    model: [llama-3.1-8b, llama-3.1-70b]     one value or several: model, cluster, gpus, seq_len,
    cluster: dgx-h100                        global_batch, precision, optimizer, stack
    gpus: [64, 128, 256]
    seq_len: [4096, 8192]
    tokens: 1T                               the same for all: tokens, set, without, assume, headroom, mtp, top, ..
    set: {tp: [1, 2, 4, 8]}

Left out: how a combination is answered (`sweep`).
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planner.errors import FileInputError, UnitError, field_given, field_must
from planner.spec.load_yaml import read_yaml
from planner.units import parse_length

MOST_POINTS: Final = 1_000_000
MOST_TOP: Final = 100
GRID: Final = ("model", "cluster", "gpus", "seq_len", "global_batch", "precision", "optimizer", "stack")
_WRITE_ONE: Final = (
    "write it, a line for each key, such as 'model: llama-3.1-8b', 'cluster: dgx-h100', 'gpus: [8, 16]'; "
    "docs/sweep.md has an example"
)


def _several(given: Any) -> Any:
    return given if isinstance(given, list) else [given]


def _as_text(given: Any) -> Any:
    return [
        str(one) if isinstance(one, int | float) and not isinstance(one, bool) else one
        for one in _several(given)
    ]


Texts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=500)], ...], BeforeValidator(_as_text)]


def _as_lengths(given: Any) -> Any:
    return given if given is None else [_as_length(one) for one in _several(given)]


def _as_length(given: Any) -> Any:
    try:
        return parse_length(given, "a sequence length") if isinstance(given, str) else given
    except UnitError:  # told with its key, as what is no number is
        return given


Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=10**9, strict=True)], ...], BeforeValidator(_several)]


class SweepFile(BaseModel):
    """What a sweep file holds. `top`: rows of a point at most. `thorough`: do layouts of pipelines get the whole effort
    of a plan?"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Texts
    cluster: Texts
    gpus: Counts | None = None
    seq_len: Annotated[Counts | None, BeforeValidator(_as_lengths)] = None
    global_batch: Texts | None = None
    precision: Texts | None = None
    optimizer: Texts | None = None
    stack: Texts | None = None
    tokens: str | int | float | None = None
    set: dict[str, Texts] = Field(default_factory=dict)
    without: Texts = ()
    assume: Texts = ()
    calibration: str | None = None
    headroom: str = "5%"
    mtp: bool = False
    top: int = Field(1, ge=1, le=MOST_TOP)
    thorough: bool = False

    def points(self) -> list[dict[str, Any]]:
        """Every combination, the last of `GRID` changing fastest; keys not given are left out."""
        given = {key: getattr(self, key) for key in GRID if getattr(self, key) is not None}
        return [dict(zip(given, values, strict=True)) for values in product(*given.values())]


def load_sweep(path: Path) -> SweepFile:
    """The sweep in a YAML file. Raises `FileInputError` naming file and key."""
    name = str(path)
    try:
        sweep = SweepFile.model_validate(read_yaml(path, _WRITE_ONE))
    except ValidationError as error:
        # a key that is not known comes first: it may be the one that is missed, misspelt
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        field = ".".join(str(part) for part in first["loc"])
        given = field_given(first)
        known = ", ".join(SweepFile.model_fields)
        raise FileInputError(name, field_must(first), given, f"keys: {known}", field=field) from None
    count = 1
    for key in GRID:
        values = getattr(sweep, key)
        if values is None:
            continue
        if not values:
            raise FileInputError(name, "must hold a value or more", "none", field=key)
        if len(set(values)) < len(values):
            raise FileInputError(
                name, "must not hold a value twice", ", ".join(map(str, values))[:200], field=key
            )
        count *= len(values)
    if count > MOST_POINTS:
        raise FileInputError(
            name, f"must ask at most {MOST_POINTS:,} questions", f"{count:,}", "list fewer values"
        )
    return sweep
