"""What is in the JSON that `compare`, `size` and `dryrun` print? Read back, for a page about it.

Left out: plan files, which `spec.load_plan` reads, and how a comparison or a sizing is made.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from planner.errors import FileInputError, field_given, field_must
from planner.report.dryrun_file import DryRunFile
from planner.spec.findings import Finding, Findings, OrText, Said
from planner.spec.planfile import Run

_MAKE_ONE = "write one with: planner compare ... --json or planner size ... --json or planner dryrun ... -o"
Positive = Annotated[float, Field(gt=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Outcome(_Record):
    """The best plan of one size of one cluster; without a plan, `reason`."""

    verdict: str
    gpus: int | None = Field(None, ge=1)
    nodes: int | None = Field(None, ge=1)
    accelerator: str = ""
    global_batch: int | None = Field(None, ge=1)  # not in older files
    reason: Findings = ()
    configuration: str = ""
    step_time: Positive | None = None
    step_time_low: Positive | None = None
    step_time_high: Positive | None = None
    tokens_per_second_per_device: Positive | None = None
    mfu: Positive | None = None
    memory_peak: float | None = None
    memory_headroom: float | None = None
    memory_verdict: str = ""
    limits: dict[str, float] = Field(default_factory=dict)
    time: dict[str, float] = Field(default_factory=dict)
    days: Positive | None = None
    days_low: Positive | None = None
    days_high: Positive | None = None
    run: Run | None = None
    stack: str = ""
    calibration_level: str = ""
    band: float = 0.0
    search_seconds: float = 0.0


class Standing(Outcome):
    """A cluster of a comparison."""

    place: int | None
    cluster: str
    seconds: float = 0.0


class Doubling(_Record):
    """From one size to twice as many."""

    start: int = Field(alias="from")
    to: int
    speedup: float
    pays: bool
    binds: Annotated[Finding | None, OrText(optional=True)]
    excess_seconds: dict[str, float]


class Tried(_Record):
    """A size that was looked at."""

    gpus: int
    nodes: int
    global_batch: int | None = None  # not in older files
    verdict: str
    days: float | None
    cost: float | None
    reason: Findings


class ComparisonFile(_Record):
    """The JSON of `planner compare`."""

    kind: Literal["comparison"]
    planner_version: str
    headline: str
    subject: tuple[str, ...]
    objective: str
    found: bool
    tokens: float | None
    global_batch: Said
    clusters: tuple[Standing, ...]
    assumptions: tuple[Said, ...]


class SizingFile(_Record):
    """The JSON of `planner size`."""

    kind: Literal["sizing"]
    planner_version: str
    headline: str
    subject: tuple[str, ...]
    goal: str
    target: float | None
    found: bool
    answer: Outcome | None
    fewest: Outcome | None
    cheapest: Outcome | None
    fastest: Outcome | None
    knee: int | None
    curve: tuple[Outcome, ...]
    curve_ended: Findings
    least_gpus: int = 0
    longest_days: float | None = None
    landmarks: tuple[str, ...]
    doublings: tuple[Doubling, ...]
    tried: tuple[Tried, ...]
    global_batch: Said
    assumptions: tuple[Said, ...]


ResultFile = ComparisonFile | SizingFile | DryRunFile
_RESULTS: TypeAdapter[ResultFile] = TypeAdapter(Annotated[ResultFile, Field(discriminator="kind")])


def parse_result(document: dict[str, Any], name: str) -> ResultFile:
    """The answer in a JSON object that came from `name`. Raises `FileInputError` naming the key."""
    try:
        return _RESULTS.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    given = field_given(first)
    raise FileInputError(name, field_must(first), given, _MAKE_ONE, field=field)
