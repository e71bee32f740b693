"""What is known of a model_type before its file is read? Its reader, names and defaults of its fields, plain layers,
what no dimension says of it; or why it is refused.

`families.json` has a row for each; one that is `like` another holds what differs from it. Left out: what a field means,
which the readers know; refused types that nobody trains at scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from planner.spec.attention import QkNorm
from planner.spec.hf.load_tables import load_tables
from planner.spec.layer import Activation, NormKind

Switch = bool | tuple[str, bool]  # what holds, or the field that says so and what holds where it is left out


class Row(BaseModel):
    """A part of a row of `families.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PlainExperts(Row):
    """A mixture in every layer. `names`: spellings of the number of experts; `count`, `top_k`: of experts and of those
    that a token visits; `shared`: the field that holds the width of a shared expert, none by default."""

    names: tuple[str, ...]
    count: int
    top_k: int
    shared: str = ""


class PlainLayers(Row):
    """Layers that are all alike: a Llama's, but for this. Numbers hold where a file leaves them out.

    `bias`: of attention's projections, `out_bias`: of its output where that differs; `window`: every layer sees
    `sliding_window` tokens where that is given.
    """

    bias: Switch = False
    out_bias: Switch | None = None
    mlp_bias: Switch = False
    kv_heads: int | None = None
    head_dim: int | None = None
    qk_norm: QkNorm = QkNorm.NONE
    window: bool = False
    gated: bool = True
    activation: Activation = Activation.SILU
    experts: PlainExperts | None = None
    norms: int = 2
    norm: NormKind = NormKind.RMS
    norm_bias: bool = False
    norm_weight: bool = True
    embedding_norm: bool = False
    head_bias: Switch = False
    tied: bool = False
    max_position: int


class Family(Row):
    """One model_type. `reader`: module and function; `mtp`: can it also count modules of multi-token prediction?
    `renamed`: names of the library, and what the file calls these fields; `defaults`: what holds where a field is left
    out or null; `about`: what sets plain `layers` apart.

    `traits`: what no argument states from dimensions, in words: a launcher that is told only these would train another
    model. `sigmoid`: its router scores experts with a sigmoid and corrects their balance by a bias (arXiv 2412.19437).
    `biased`: it corrects their balance so, with scores of another kind, or that configurations state.
    `normalized`: the weights of chosen experts always add up to 1. `rotated`: share of a head that the library rotates
    where a configuration does not say. `caps_logits`: does it cap logits where the configuration does not say? none: it
    never does. `positions`: does its attention, if it has any, know them? `in_library`: has
    transformers 5.24 a causal language model of it (models/auto/modeling_auto.py), not only code published with it or a
    model beside a vision tower? `since`: the release before which there was none, if later than 5.23.
    """

    reader: str = "dense.read_plain"
    mtp: bool = False
    renamed: Mapping[str, str] = {}
    defaults: Mapping[str, int] = {}
    layers: PlainLayers | None = None
    about: str = ""
    traits: str = ""
    sigmoid: bool = False
    biased: bool = False
    normalized: bool = False
    rotated: float = 1.0
    caps_logits: bool | None = None
    positions: bool = True
    in_library: bool = True
    since: str = ""

    @property
    def balances(self) -> bool:
        """Does its router keep experts balanced by a bias on their scores, which leaves the busiest 4 % over the mean
        (Wang et al. 2024, arXiv 2408.15664, table 2)?"""
        return self.sigmoid or self.biased


def families() -> dict[str, Any]:
    """The rows of all families by model_type, as they stand in the file."""
    rows: dict[str, Any] = load_tables()["families"]
    return rows


@cache
def family(model_type: str) -> Family:
    """The row of a model_type."""
    row = dict(families()[model_type])
    like = row.pop("like", None)
    return Family.model_validate({**families()[like], **row} if like else row)


def facts_of(model_type: str) -> Family:
    """The same, and nothing known of a type without a row, as models have that are described by hand."""
    return family(model_type) if model_type in families() else Family()


@cache
def refused() -> Mapping[str, str]:
    """The reason of every refused model_type; `instead`: what planner models of that kind."""
    held = load_tables()
    reasons: dict[str, str] = {}
    for row in held["refused"]:
        why = "; ".join((row["why"], held["instead"][row["instead"]])) if "instead" in row else row["why"]
        reasons |= dict.fromkeys(row["types"], why)
    return reasons
