"""In which formats does a configuration of Megatron-Bridge train? Its mixed precision, by name or field by field.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, src/megatron/bridge/training/mixed_precision.py; training/utils/
omegaconf_utils.py for what an override may be. At setup it overwrites fields of the same names of model, optimizer and
ddp. Left out: scaling of losses, and formats of attention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from planner.errors import FileInputError, nearest_names
from planner.frameworks.fields import Settings
from planner.frameworks.megatron_bridge.recipes import Recipe
from planner.spec.load_yaml import parse_yaml
from planner.spec.precision import Precision

SECTION: Final = "mixed_precision"
CLASS: Final = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
GRADIENTS: Final = "grad_reduce_in_fp32"
_HALF: Final = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_BF16: Final = {"bf16": True, GRADIENTS: True}
_FP16: Final = {"fp16": True, GRADIENTS: False}


def _ends(first: int, last: int) -> dict[str, Any]:
    """Layers at either end in 16 bits."""
    return {
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": first,
        "num_layers_at_end_in_bf16": last,
    }


_DELAYED: Final = {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True}
_CURRENT: Final = {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True}
_MX: Final = {
    "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True,
}  # fmt: skip
_BLOCKS: Final = {"fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param_gather": False}
_NVFP4: Final = {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": True}
# MIXED_PRECISION_RECIPES: name -> fields that it sets
NAMED: Final[Mapping[str, Mapping[str, Any]]] = {
    "bf16_mixed": _BF16,
    "fp16_mixed": _FP16,
    "bf16_with_fp8_delayed_scaling_mixed": {**_BF16, **_DELAYED},
    "fp16_with_fp8_delayed_scaling_mixed": {**_FP16, **_DELAYED},
    "bf16_with_mxfp8_mixed": {**_BF16, **_MX},
    "fp16_with_mxfp8_mixed": {**_FP16, **_MX},
    "bf16_with_fp8_current_scaling_mixed": {**_BF16, **_CURRENT, **_ends(1, 1)},
    "fp16_with_fp8_current_scaling_mixed": {**_FP16, **_CURRENT, **_ends(1, 1)},
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": {**_BF16, **_CURRENT, **_ends(2, 2)},
    "nanov2_bf16_with_fp8_current_scaling_mixed": {
        **_BF16, **_BLOCKS, "fp8_param_gather": True, **_ends(2, 2),
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {**_BF16, **_BLOCKS},
    "fp16_with_fp8_subchannel_scaling_mixed": {**_FP16, **_BLOCKS},
    "bf16_with_nvfp4_mixed": {**_BF16, **_NVFP4},
    "nemotron_3_super_bf16_with_nvfp4_mixed": {**_BF16, **_NVFP4, **_ends(0, 14)},
}  # fmt: skip
# fields of its class that model, optimizer or ddp have too, and what they are unless they are set
DEFAULTS: Final[Mapping[str, Any]] = {
    "bf16": False, "fp16": False, GRADIENTS: True, "fp8": None, "fp8_recipe": "tensorwise", "fp8_param": False,
    "fp8_param_gather": False, "fp4": None, "fp4_recipe": "nvfp4", "fp4_param": False, "fp4_param_gather": False,
    "first_last_layers_bf16": False, "num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 0,
    "reuse_grad_buf_for_mxfp8_param_ag": False,
}  # fmt: skip
# the one that is written for a precision, where its fields are the plan's
PRECISIONS: Final = {
    Precision.BF16: "bf16_mixed",
    Precision.FP16: "fp16_mixed",
    Precision.FP8: "bf16_with_fp8_delayed_scaling_mixed",
    Precision.FP8_CS: "bf16_with_fp8_current_scaling_mixed",
    Precision.FP8_MX: "bf16_with_mxfp8_mixed",
    Precision.FP8_BLOCKWISE: "bf16_with_fp8_subchannel_scaling_mixed",
    Precision.NVFP4: "bf16_with_nvfp4_mixed",
}
_FP8: Final = {
    "delayed": Precision.FP8,
    "tensorwise": Precision.FP8_CS,
    "mxfp8": Precision.FP8_MX,
    "blockwise": Precision.FP8_BLOCKWISE,
}
# how names of recipes end that are not known, before _config: of benchmarks
_OF_NAMES: Final = {
    "bf16": Precision.BF16, "fp8cs": Precision.FP8_CS, "fp8ds": Precision.FP8, "fp8mx": Precision.FP8_MX,
    "fp8sc": Precision.FP8_BLOCKWISE, "nvfp4": Precision.NVFP4,
}  # fmt: skip


@dataclass(frozen=True)
class Mixed:
    """What a mixed precision decides. `wide`: are gradients kept and reduced in fp32? `gathers`: are linear weights
    kept and gathered in 8 or 4 bits (None: the recipe has none)? `ends`: layers at either end in 16 bits."""

    precision: Precision
    wide: bool
    gathers: bool | None
    ends: tuple[int, int]


def mixed_of(fields: Mapping[str, Any], file: str) -> Mixed:
    """What these fields of a MixedPrecisionConfig decide. Raises `FileInputError`."""
    s = Settings(fields, file)
    if s.text("fp4", "") not in ("", "None", "null"):
        precision, bits = Precision.NVFP4, "fp4"
    elif s.text("fp8", "") not in ("", "None", "null"):
        recipe = s.text("fp8_recipe", "tensorwise")
        if recipe not in _FP8:
            raise FileInputError(
                file, "must be one of " + ", ".join(_FP8), recipe[:40], field=f"{SECTION}.fp8_recipe"
            )
        precision, bits = _FP8[recipe], "fp8"
    else:
        half = {"bf16": Precision.BF16, "fp16": Precision.FP16}
        precision = next((kind for name, kind in half.items() if s.flag(name)), Precision.FP32)
        return Mixed(precision, s.flag(GRADIENTS, True) or precision is Precision.FP32, None, (0, 0))
    # either name sets both (__setattr__)
    gathers = s.flag(f"{bits}_param_gather", s.flag(f"{bits}_param"))
    counts = [s.count(f"num_layers_at_{end}_in_bf16", 0, least=0) for end in ("start", "end")]
    ends = (counts[0], counts[1]) if s.flag("first_last_layers_bf16") else (0, 0)
    return Mixed(precision, s.flag(GRADIENTS, True), gathers, ends)


def written(wanted: Mixed) -> list[tuple[str, str]]:
    """The overrides under which a recipe trains so: a name, and where no name is right a configuration after it, which
    Hydra puts in the place of a name, not of another configuration."""
    name = PRECISIONS[wanted.precision]
    if mixed_of(NAMED[name], "") == wanted:
        return [(SECTION, name)]
    fields = {**NAMED[name], GRADIENTS: wanted.wide}
    half = "torch.bfloat16" if fields.get("bf16") else "torch.float16"
    fields |= dict.fromkeys(("params_dtype", "pipeline_dtype"), f"{{_target_:{half},_call_:false}}")
    if wanted.gathers is not None:
        narrow = "fp4" if wanted.precision is Precision.NVFP4 else "fp8"
        fields[f"{narrow}_param_gather"] = wanted.gathers
        if wanted.precision is Precision.FP8_MX:
            fields["reuse_grad_buf_for_mxfp8_param_ag"] = wanted.gathers
        fields |= _ends(*wanted.ends) if any(wanted.ends) else {"first_last_layers_bf16": False}
    words = [
        f"{field}:{str(value).lower() if isinstance(value, bool) else value}"
        for field, value in fields.items()
    ]
    return [(SECTION, name), (SECTION, "{" + ",".join([f"_target_:{CLASS}", *words]) + "}")]


def fields_stated(overrides: Mapping[str, Any], recipe: Recipe, file: str) -> dict[str, Any] | None:
    """Fields of the mixed precision that a recipe trains with under overrides; None where neither says.

    Raises `FileInputError`, also for a field of a precision that is but a name, which Hydra refuses.
    """
    prefix = SECTION + "."
    own = {name.removeprefix(prefix): value for name, value in overrides.items() if name.startswith(prefix)}
    given = overrides.get(SECTION)
    spelled = isinstance(given, str) and given.startswith("{")
    whole = given is not None and not spelled
    if own and (whole or not (spelled or recipe.spells_precision or not recipe.known)):
        name = given if whole else recipe.settings.get(SECTION)
        must = f"must not be overridden: {SECTION} is a name, {name}, which has no fields"
        how = f"name another one, or write {SECTION}='{{_target_:{CLASS},...}}'"
        raise FileInputError(file, must, f"{next(iter(own))}={next(iter(own.values()))}", how, field=SECTION)
    if spelled:
        return {**_of_braces(str(given), file), **own}
    if given is not None:
        return None if given == "null" else dict(_named(str(given), file))
    said = recipe.settings.get(SECTION)
    if said is None or said == "computed":
        return own or None
    kept = {n.removeprefix(prefix): value for n, value in recipe.settings.items() if n.startswith(prefix)}
    return {**_named(str(said), file), **kept, **own}


def overwrites(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What these fields make of those of the same names in other sections, at setup; either name of kept weights sets
    both."""
    found = {**DEFAULTS, **{name: value for name, value in fields.items() if name in DEFAULTS}}
    for narrow in ("fp8", "fp4"):
        kept = fields.get(f"{narrow}_param_gather", fields.get(f"{narrow}_param", False))
        found |= {f"{narrow}_param": kept, f"{narrow}_param_gather": kept}
    return found


def named_like(recipe: str) -> Precision | None:
    """The precision that the name of a recipe ends with, where planner does not know the recipe."""
    match = re.search(r"_([a-z0-9]+)_config$", recipe)
    return _OF_NAMES.get(match[1]) if match else None


def _named(name: str, file: str) -> Mapping[str, Any]:
    plain = name.replace("-", "_")
    if plain not in NAMED:
        must = "must be a mixed precision of Megatron-Bridge"
        raise FileInputError(
            file, must, name[:80], f"nearest: {', '.join(nearest_names(plain, NAMED, 2))}", field=SECTION
        )
    return NAMED[plain]


def _of_braces(text: str, file: str) -> dict[str, Any]:
    """Fields of a configuration in Hydra's braces: `{_target_:NAME,bf16:true}`, of the class or of a named function."""
    found = parse_yaml(re.sub(r":(?=[^\s])", ": ", text), file)
    target = str(found.pop("_target_", "")) if isinstance(found, dict) else ""
    module, _, name = target.rpartition(".")
    if not isinstance(found, dict) or module != CLASS.rpartition(".")[0]:
        raise FileInputError(file, f"must be of {CLASS}", text[:80], field=SECTION)
    fields = {key: value for key, value in found.items() if not isinstance(value, Mapping)}
    return fields if target == CLASS else {**_named(name, file), **fields}
