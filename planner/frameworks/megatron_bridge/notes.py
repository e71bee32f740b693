"""What of a configuration of Megatron-Bridge is costed otherwise, or not known, in words?

Left out: of states and gradients (`sharding.py`), and overrides that are not read (`unread.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.errors import InputError
from planner.frameworks.fields import Settings
from planner.frameworks.megatron.muon import MUON, TP_MODE
from planner.frameworks.megatron_bridge.recipes import NAMES, Recipe
from planner.frameworks.megatron_bridge.sharding import OPTIMIZER, overlaps
from planner.spec.model import ModelSpec

SHARED_OVERLAP: Final = "model.moe_shared_expert_overlap"


def recipe_notes(
    recipe: Recipe, called: str, overrides: Mapping[str, Any], fields: Mapping[str, Any]
) -> list[str]:
    """What of a recipe is not known, or computed by it."""
    notes = []
    if recipe.model and not recipe.known:
        notes.append(
            f"two recipes are called {called}, of which run_recipe.py takes the benchmark's: what it sets is not "
            "known, and degrees that the script does not override are taken as 1"
        )
    elif not recipe.known:
        notes.append(
            f"what {called or 'the recipe'} sets is not known: degrees that the script does not override are taken as 1"
        )
    if "peft" in called or any(field.startswith("peft") for field in overrides):
        notes.append("adapters (peft): all weights are counted as trained, not the adapters alone")
    computed = [field for field, value in fields.items() if value == "computed"]
    return notes + [f"{field}, which the recipe computes, is not read" for field in computed]


def shared_experts(s: Settings, model: ModelSpec | None, section: bool) -> list[str]:
    """A note where shared experts run beside the dispatch of tokens. Raises `InputError` where that is refused
    (training/comm_overlap.py; Megatron-Core transformer_config.py __post_init__)."""
    shared = model is not None and any(layer.moe and layer.moe.shared_ffn for layer in model.blocks)
    if not (s.flag(SHARED_OVERLAP) and shared):
        return []
    if overlaps(s, "overlap_moe_expert_parallel_comm", section):
        must = f"{SHARED_OVERLAP} must be false with overlap_moe_expert_parallel_comm"
        raise InputError(must, "true, the recipe's unless the script sets it", f"add {SHARED_OVERLAP}=false")
    selective = s.text("model.recompute_granularity", "") == "selective"
    if selective and "shared_experts" in s.text("model.recompute_modules", ""):
        must = f"{SHARED_OVERLAP} must be false where shared_experts are recomputed"
        raise InputError(must, "true, the recipe's unless the script sets it", f"add {SHARED_OVERLAP}=false")
    return [f"{SHARED_OVERLAP}: shared experts beside the dispatch of tokens are modelled before it"]


def muon_notes(s: Settings, name: str) -> list[str]:
    """What of Muon is costed otherwise. Raises `InputError` for what planner costs in no way."""
    said = s.text(OPTIMIZER, "")
    if not said and name in NAMES.muon:
        return [
            f"the recipe's optimizer is Muon, counted as AdamW: {OPTIMIZER}=muon in the script says which it is"
        ]
    if said not in MUON:
        return []
    # Megatron-Core's default, and that of the recipes' function
    mode = s.text("optimizer.muon_tp_mode", "blockwise" if name in NAMES.muon else TP_MODE)
    if mode != TP_MODE and s.count("model.tensor_model_parallel_size", 1) > 1:
        must = f"optimizer.muon_tp_mode must be {TP_MODE}: planner costs no other"
        raise InputError(
            must, f"{mode}, the default unless it is set", f"add optimizer.muon_tp_mode={TP_MODE}"
        )
    if said == MUON[1]:
        return ["dist_muon: every rank all-reduces all gradients, which are modelled as scattered"]
    return []
