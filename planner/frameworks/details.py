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

from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.wrappers import text_fields, wrappers
from planner.spec.load_model import resolve_catalog_name
from planner.spec.model import ModelSpec

_CATALOG: Final = "catalog/models/"
# Families whose router scores experts with a sigmoid and corrects their balance by a bias (arXiv 2412.19437).
_SIGMOID: Final = frozenset(
    {
        "deepseek_v3",
        "deepseek_v32",
        "kimi_k2",
        "kimi_k3",
        "kimi_linear",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "minimax_m3",
        "minimax_m3_vl_text",
        "dots1",
        "solar_open",
        "hy_v3",
        "bailing_hybrid",
        "bailing_moe_v2",
        "nemotron_h",
        "afmoe",
        "sarvam_mla",
        "sarvam_moe",
    }
)
# Share of a head that the library rotates where a configuration does not say.
_ROTATED: Final = {
    "qwen3_next": 0.25, "qwen3_5_text": 0.25, "qwen3_5_moe_text": 0.25, "minimax_m3": 0.5, "minimax_m3_vl_text": 0.5
}  # fmt: skip

_MULTIPLIERS: Final = "multipliers of embeddings, residuals and logits"
_POST_NORM: Final = "norms after attention and MLP instead of before them"
_ROTATED_PAIRS: Final = "rotary positions of neighbouring pairs on a part of each head"
_LIGHTNING: Final = "lightning attention, multiplied residuals"
_CONVOLUTIONS: Final = "short convolutions in place of attention"
_NO_WEIGHT: Final = "norms without weights"
# What a family computes that no argument states from its dimensions (modeling files of transformers 5.23); a
# launcher that is told only dimensions would train another model. A test asks for a decision on every family.
TRAITS: Final[Mapping[str, str]] = {
    "afmoe": "norms on both sides, layers without rotary positions",
    "apertus": "the xIELU activation",
    "apertus1p5_text": "the xIELU activation",
    "axk1": "a norm behind the experts",
    "bailing_hybrid": "a decay of every channel, a gate of every head on latent attention",
    "baichuan": "ALiBi positions or a head whose rows are normed, by version",
    "bamba": "rotary positions on a half of each head",
    "bloom": "ALiBi positions",
    "chatglm": _ROTATED_PAIRS,
    "codegen": _ROTATED_PAIRS,
    "cohere": "attention beside the MLP, scaled logits",
    "cohere2": "attention beside the MLP, scaled logits",
    "cohere2_moe": "attention beside experts, scaled logits",
    "dots3_note_text": "latent attention to a window, heads that differ between layers, a gate of every head",
    "ernie4_5": _ROTATED_PAIRS,
    "ernie4_5_moe": _ROTATED_PAIRS,
    "deepseek_v4": "attention to compressed keys and several residual streams (its dev branch has both)",
    "exaone4": _POST_NORM,
    "exaone_moe": _POST_NORM,
    "falcon": "attention beside the MLP, ALiBi positions",
    "falcon_h1": "attention and a state space side by side, what constants multiply",
    "flex_olmo": _POST_NORM,
    "flint": "layers without rotary positions",
    "gemma": "scaled embeddings and norms around 1",
    "gemma2": "scaled embeddings, capped logits, norms on both sides",
    "gemma3_text": "scaled embeddings, norms on both sides, two rotary bases",
    "gemma4_text": "scaled embeddings, norms on both sides and of values, heads of two widths",
    "gemma4_unified_text": "scaled embeddings, norms on both sides and of values, heads of two widths",
    "glm": _ROTATED_PAIRS,
    "glm4": _ROTATED_PAIRS,
    "gpt_neo": "attention scores that are not scaled",
    "gptj": _ROTATED_PAIRS,
    "granite": _MULTIPLIERS,
    "granite_swa": _MULTIPLIERS,
    "granitemoe": _MULTIPLIERS,
    "granitemoe_swa": _MULTIPLIERS,
    "granitemoehybrid": _MULTIPLIERS,
    "granitemoeshared": _MULTIPLIERS,
    "helium": _ROTATED_PAIRS,
    "hunyuan": "keys that pairs of layers share, normed after the rotation",
    "hunyuan_v1_dense": "norms of q and k after the rotation",
    "hunyuan_v1_moe": "norms of q and k after the rotation",
    "hy_v4": "residual streams that are not mixed, sinks and a gate of latent attention",
    "hy_v4_vl_text": "residual streams that are not mixed, sinks and a gate of latent attention",
    "hyperclovax": _MULTIPLIERS,
    "k2_horizon": "norms of groups of channels",
    "kimi_k3": "attention residuals, a decay of every channel, latent attention with a gate and without positions",
    "kimi_linear": "a decay of every channel, latent attention without positions",
    "kolibri1": "norms on both sides",
    "laguna": "a gate of every head, heads that differ between layers",
    "lara_mini": "layers without rotary positions",
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS,
    "lfm3": _CONVOLUTIONS,
    "llama4_text": "chunked attention and norms of q and k without weights",
    "mellum": "two rotary bases",
    "mimo_v2": "values narrower than keys, heads that differ between layers",
    "mimo_v2_flash": "values narrower than keys, heads that differ between layers",
    "longcat_flash": "two blocks a layer, experts beside both and experts that compute nothing",
    "minicpm": _MULTIPLIERS,
    "minicpm3": _MULTIPLIERS,
    "minimax": _LIGHTNING,
    "minimax_m1": _LIGHTNING,
    "minimax_text_01": _LIGHTNING,
    "minimax_m2": "a norm over all query heads",
    "ministral3": "queries scaled by position",
    "mistral4": "queries scaled by position",
    "mistral_large4_text": "trained frequencies and scales of queries by position, latent keys that layers share",
    "mpt": "ALiBi positions",
    "muse_glimmer_text": "norms on both sides, layers without rotary positions",
    "nanochat": _NO_WEIGHT,
    "nemotron-nas": "layers of several widths, some without attention",
    "olmo": _NO_WEIGHT,
    "olmo2": _POST_NORM,
    "olmo3": _POST_NORM,
    "olmo_hybrid": _POST_NORM,
    "persimmon": "a bias of the norms of q and k",
    "smollm3": "layers without rotary positions",
    "step3p5": "a gate of every head, heads that differ between layers",
    "vaultgemma": "scaled embeddings and norms around 1",
}


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


def read_details(model: ModelSpec) -> Details:
    """The details in the model's configuration, or defaults where it cannot be found again."""
    fields = _configuration(model)
    if fields is None:
        return Details(router_sigmoid=model.family in _SIGMOID)
    if (wrapper := fields.get("model_type")) in wrappers():  # what is planned is the text model alone
        text = text_fields(ConfigFields({**fields}, model.source), wrapper).values
        fields = {**text, "model_type": model.family, "tie_word_embeddings": model.tied_embeddings}
    scoring = fields.get("scoring_func", fields.get("score_function"))
    sigmoid = (scoring or ("sigmoid" if model.family in _SIGMOID else "softmax")) == "sigmoid"
    always = model.family in (
        "mixtral",
        "gpt_oss",
        "phimoe",
        "dbrx",
        "qwen3_5_moe_text",
        "afmoe",
        "aria_text",
    )
    always = always or (model.family == "qwen3_next" and "norm_topk_prob" not in fields)
    rope = fields.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}  # transformers 5 writes all of the rotation there
    scaling = fields.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
    return Details(
        rope_theta=_number(fields, "rope_theta") or _number(rope, "rope_theta"),
        norm_eps=_number(
            fields, "rms_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layer_norm_eps", "norm_eps"
        ),
        rotary_fraction=_number({**rope, **fields}, "partial_rotary_factor", "rotary_pct")
        or _ROTATED.get(model.family, 1.0),
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
    if model.position_rows or model.family in ("bloom", "mpt") or _unrotated(model):
        silent = {"the norm epsilon": details.norm_eps is None}  # it rotates nothing
    if not any(silent.values()):
        return []
    what = " and ".join(name for name, absent in silent.items() if absent)
    return [
        f"{what}: the catalog keeps what decides time and memory; to go on from published weights, plan with their "
        "own config.json"
    ]


def _unrotated(model: ModelSpec) -> bool:
    """Hybrids whose attention knows no positions, or that have none."""
    return model.family in ("nemotron_h", "mamba2", "kimi_k3", "kimi_linear")


def unwritten_rotation(details: Details, written: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What of a model's rope_scaling a launcher is not told: `written` are the kinds that it takes, each with the
    values that it has for the fields that it does not take."""
    scaling = details.rope_scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
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
