"""What does a launch file need of a model that changes neither time nor memory?

Rotary base, norm epsilon, router conventions and the like: `ModelSpec` leaves them out, so they are read from
the model's `config.json` again. Left out: everything `ModelSpec` holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from planner.spec.hf.families import facts_of
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.wrappers import text_fields, wrappers
from planner.spec.load_model import resolve_catalog_name
from planner.spec.model import ModelSpec

_CATALOG: Final = "catalog/models/"


@dataclass(frozen=True)
class Details:
    """Facts of a model beside its dimensions; None where its configuration does not state them.

    `stated` is False where no configuration was found, and everything is a default.
    """

    rope_theta: float | None = None
    norm_eps: float | None = None
    rotary_fraction: float = 1.0
    rope_scaling: Mapping[str, Any] | None = None
    router_sigmoid: bool = False
    normalize_topk: bool = True
    routed_scaling: float | None = None
    stated: bool = False
    raw: Mapping[str, Any] | None = None

    @property
    def rope_kind(self) -> str:
        """How positions are scaled, as rope_scaling calls it."""
        scaling = self.rope_scaling or {}
        return str(scaling.get("rope_type", scaling.get("type", "default")))


def read_details(model: ModelSpec) -> Details:
    """The details in the model's configuration, or defaults where it cannot be found again."""
    fields, facts = _configuration(model), facts_of(model.family)
    if fields is None:
        return Details(router_sigmoid=facts.sigmoid)
    if (wrapper := fields.get("model_type")) in wrappers():  # what is planned is the text model alone
        text = text_fields(ConfigFields({**fields}, model.source), wrapper).values
        fields = {**text, "model_type": model.family, "tie_word_embeddings": model.tied_embeddings}
    scoring = fields.get("scoring_func", fields.get("score_function"))
    sigmoid = (scoring or ("sigmoid" if facts.sigmoid else "softmax")) == "sigmoid"
    unsaid = model.family == "qwen3_next" and "norm_topk_prob" not in fields
    always = unsaid or facts.normalized
    rope = fields.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}  # transformers 5 writes all of the rotation there
    scaling = fields.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
    return Details(
        rope_theta=_number(fields, "rope_theta") or _number(rope, "rope_theta"),
        norm_eps=_number(
            fields, "rms_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layer_norm_eps", "norm_eps"
        ),
        rotary_fraction=_number({**rope, **fields}, "partial_rotary_factor", "rotary_pct") or facts.rotated,
        rope_scaling=scaling if isinstance(scaling, dict) else None,
        router_sigmoid=sigmoid,
        normalize_topk=True if always else bool(fields.get("norm_topk_prob", sigmoid)),
        routed_scaling=_number(fields, "routed_scaling_factor", "router_scaling_factor", "route_scale"),
        stated=True,
        raw=fields,
    )


def left_out(model: ModelSpec) -> list[str]:
    """What the catalog's configuration of a model does not vouch for, in words."""
    if not model.source.startswith(_CATALOG):
        return []
    details = read_details(model)
    silent = {
        "rope_scaling": "rope_scaling" not in (details.raw or {}),
        "the rotary base": details.rope_theta is None,
        "the norm epsilon": details.norm_eps is None,
    }
    if model.position_rows or model.family in ("bloom", "mpt") or not facts_of(model.family).positions:
        silent = {"the norm epsilon": details.norm_eps is None}  # it rotates nothing
    if not any(silent.values()):
        return []
    what = " and ".join(name for name, absent in silent.items() if absent)
    return [
        f"{what}: the catalog keeps what decides time and memory; to go on from published weights, plan with their "
        "own config.json"
    ]


def unwritten_rotation(details: Details, written: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What of a model's rope_scaling a launcher is not told: `written` are the kinds that it takes, each with the
    values that it has for the fields that it does not take."""
    scaling, kind = details.rope_scaling or {}, details.rope_kind
    if kind == "default":
        return []
    if kind not in written:
        return [f"rope_scaling of kind {kind}: positions are rotated without it"]
    other = [
        f"{name} {scaling[name]} instead of {value:g}"
        for name, value in written[kind].items()
        if name in scaling and scaling[name] != value
    ]
    return [f"rope_scaling of kind {kind}: no option takes {', '.join(other)}"] if other else []


def _number(fields: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _configuration(model: ModelSpec) -> Mapping[str, Any] | None:
    if model.source.startswith(_CATALOG):
        name = resolve_catalog_name(model.name)
        return None if name is None else _catalog_fields(name)
    path = Path(model.source)
    try:
        fields = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else None
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


@lru_cache(maxsize=64)
def _catalog_fields(name: str) -> Mapping[str, Any]:
    path = files("planner.catalog") / "models" / name / "config.json"
    fields: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields
