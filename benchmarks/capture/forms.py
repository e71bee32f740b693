"""Which forms do models of the catalog have in transformers, and which configurations show one at two sizes?

Left out: what of a configuration is no size and tells no forms apart stays as the first model has it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import planner
from planner.dryrun.transformers.model import config_of
from planner.dryrun.transformers.recipe import Recipe
from planner.errors import UnsupportedError
from planner.spec.listed import RELATIONS, fixed_sizes, model_form, sizes_of
from planner.spec.load_model import catalog_models, load_model
from planner.spec.model import ModelSpec

CATALOG: Final = Path(planner.__file__).parent / "catalog" / "models"
# Sizes of the two runs. Their ratios share no prime in a circle, so that no product of some is as one of others.
RANKS: Final = (8 * 71, 8 * 73)  # of adapters
MICRO_BATCHES: Final = (7, 11)
LENGTHS: Final = (128 * 5, 128 * 17)  # whole rows of blocks
WINDOW: Final = "window"
BEYOND: Final = (128 * 1031, 128 * 1033)  # windows that no sequence leaves
HEAD_DIM: Final = "head_dim"
# of heads, in the classes that memory-efficient attention tells apart
WIDTHS: Final = ((8 * 5, 8 * 8), (8 * 11, 8 * 13), (8 * 19, 8 * 29))
FIELDS: Final[Mapping[str, tuple[tuple[int, int], tuple[str, ...]]]] = {
    "hidden": ((6 * 8 * 137, 15 * 8 * 151), ("hidden_size", "n_embd", "d_model")),
    "ffn": ((8 * 211, 8 * 223), (
        "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp",
    )),
    "adjusted_ffn": ((384 * 211, 384 * 223), ("block_ff_dim",)),  # two thirds in whole multiples of 256 (LFM2)
    "heads": ((3 * 2, 5 * 3), ("num_attention_heads", "n_head", "n_heads")),
    "kv_heads": ((3, 5), ("num_key_value_heads", "num_kv_heads", "kv_n_heads")),
    "global_kv_heads": ((2, 3), ("num_global_key_value_heads",)),
    HEAD_DIM: (WIDTHS[1], ("head_dim",)),
    "global_head_dim": ((8 * 83, 8 * 97), ("global_head_dim",)),  # wider than what FlashAttention takes
    "vocab": ((8 * 39989, 8 * 40009), ("vocab_size",)),
    "expert_ffn": ((8 * 59, 8 * 61), ("moe_intermediate_size",)),
    "experts": ((19, 23), ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")),
    "top_k": ((2, 7), ("num_experts_per_tok", "top_k_experts", "moe_top_k")),
    "shared_ffn": ((8 * 41, 8 * 43), ("shared_expert_intermediate_size",)),
    "shared_experts": ((67, 79), ("n_shared_experts",)),
    "q_rank": ((8 * 29, 8 * 31), ("q_lora_rank",)),
    "kv_rank": ((8 * 17, 8 * 19), ("kv_lora_rank",)),
    WINDOW: ((8 * 47, 8 * 53), ("sliding_window", "attention_chunk_size")),
    "positions": ((8 * 257, 8 * 263), ("n_positions", "max_position_embeddings")),
}  # fmt: skip
PROJECTED: Final = "word_embed_proj_dim"
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers")
OF_EACH: Final = ("layer_types", "mlp_layer_types")
EVERY: Final = (
    "sliding_window_pattern",
    "full_attention_interval",
)  # one of so many layers is of another type
FEWEST: Final = 3
MOST: Final = 14


def sized(config: Mapping[str, Any], way: int, layers: int, beyond: bool) -> dict[str, Any]:
    """A configuration with the sizes of one of the two runs; `beyond`: its windows are as long as sequences."""
    own = dict(FIELDS) | {HEAD_DIM: (WIDTHS[width_class(read_model(config))], FIELDS[HEAD_DIM][1])}
    size_of = {name: sizes[way] for sizes, names in own.values() for name in names}
    found = _with_sizes(config, size_of)
    for name in FIELDS["experts"][1]:
        if found.get("n_group") and isinstance(found.get(name), int):
            found[name] *= found["n_group"]
    heads = next((found[name] for name in FIELDS["heads"][1] if found.get(name)), None)
    same = [config.get(FIELDS[of][1][0]) for of in ("heads", "kv_heads")]
    if same[0] is not None and same[0] == same[1]:
        found["num_key_value_heads"] = heads
    if config.get("head_dim") is None and heads and "qk_nope_head_dim" not in config:
        width = own[HEAD_DIM][0][way] * heads
        for name in FIELDS["hidden"][1]:
            if found.get(name) is not None:
                found[name] = width
    if config.get(PROJECTED) and config[PROJECTED] == config.get(
        "hidden_size"
    ):  # no projection of the embedding
        found[PROJECTED] = found.get("hidden_size")
    return short(found, layers, beyond, way)


def _with_sizes(config: Mapping[str, Any], size_of: Mapping[str, int]) -> dict[str, Any]:
    """With other sizes, also in sections, but of what there is one of."""
    return {
        name: _with_sizes(one, size_of) if isinstance(one, dict)
        else size_of[name] if name in size_of and isinstance(one, int) and one != 1
        else one
        for name, one in config.items()
    }  # fmt: skip


def width_class(model: ModelSpec) -> int:
    """Which of `WIDTHS` a model's heads belong to."""
    widest = max((one.head_dim for one in model.attentions), default=0)
    return sum(widest > most for most in (64, 128))


def short(config: Mapping[str, Any], layers: int, beyond: bool, way: int = 0) -> dict[str, Any]:
    """A configuration with so many layers, whose types come by turns, its windows within the sequences of a run or
    `beyond` them."""
    found = dict(config)
    for name in FIELDS[WINDOW][1]:
        if isinstance(found.get(name), int):
            found[name] = (BEYOND if beyond else FIELDS[WINDOW][0])[way]
    for name in LAYERS:
        if name in found:
            found[name] = layers
    for name in EVERY:
        if isinstance(found.get(name), int) and found[name] > 1:
            found[name] = 2
    each = [name for name in OF_EACH if found.get(name)]
    for name in each:
        types = list(dict.fromkeys(found[name])) if len(each) == 1 else found[name]
        found[name] = [types[i % len(types)] for i in range(layers)]
    return found


def read_model(config: Mapping[str, Any]) -> ModelSpec:
    """As planner reads it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return load_model(folder)


def enough_layers(model: ModelSpec) -> int:
    """So few that every kind has one which is neither the first nor the last, as far as the model has."""
    kinds = model.layer_kind_of
    for count in range(FEWEST, min(model.num_layers, MOST) + 1):
        if set(kinds[1 : count - 1]) == set(kinds[1:-1]) and set(kinds[:count]) == set(kinds):
            return count
    return min(model.num_layers, MOST)


def config_of_model(name: str) -> dict[str, Any]:
    """The configuration of a model of the catalog."""
    found: dict[str, Any] = json.loads((CATALOG / name / "config.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Form:
    """The first model of the catalog that has a form, its configuration, and whether windows are `beyond` sequences;
    configurations of `others` that have it."""

    name: str
    config: Mapping[str, Any]
    beyond: bool
    others: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def layers(self) -> int:
        """As few of them as show all kinds."""
        return enough_layers(read_model(short(self.config, MOST, self.beyond)))


def builds(config: Mapping[str, Any]) -> bool:
    """Does the library build a decoder of it?"""
    try:
        config_of(Recipe(config, "a form", 1, LENGTHS[0]))
    except UnsupportedError:
        return False
    return True


def forms_of(family: str) -> dict[str, Form]:
    """By form of a family's models in the catalog that the library builds alone, not inside of one of images, with tied
    embeddings and without, the first that has it."""
    found: dict[str, Form] = {}
    for name in catalog_models():
        if load_model(name).family != family:
            continue
        for tied, beyond in product((False, True), (False, True)):
            config = config_of_model(name) | {"tie_word_embeddings": tied}
            if not builds(config):
                break
            model = read_model(short(config, load_model(name).num_layers, beyond))
            one = found.setdefault(model_form(model, LENGTHS[0], family), Form(name, config, beyond))
            if one.name != name:
                one.others.append(config)
    return found


def bounds_of(one: Form) -> dict[str, Any]:
    """What holds of sizes in both runs of a form, so that its lists hold where that does alone: relations between
    them, and those that are the same."""
    models = [read_model(sized(one.config, way, one.layers, one.beyond)) for way in (0, 1)]
    sizes = [sizes_of(model, None, MICRO_BATCHES[way], LENGTHS[way]) for way, model in enumerate(models)]
    return {
        "holds": [name for name, holds in RELATIONS.items() if all(map(holds, sizes))],
        "fixed": fixed_sizes(sizes),
    }
