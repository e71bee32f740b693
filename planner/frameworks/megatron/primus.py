"""Which Megatron-LM arguments does a YAML of Primus state? Presets of its trainer and model under the file's overrides.

Source: AMD-AGI/Primus fd1eeab: primus/core/launcher/parser.py (order of the parts), core/config/yaml_loader.py
(environment variables), backends/megatron/argument_builder.py (names are those of Megatron-LM's parsed arguments) and
patches/ (settings of its own). Presets ship as `primus.yaml`, see `benchmarks/primus_presets.py`. Left out: frameworks
other than Megatron-LM, and overrides on the command line of primus-cli.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from planner.errors import FileInputError, nearest_names, sort_of
from planner.frameworks.adapters import Adapters
from planner.frameworks.fields import load_settings
from planner.frameworks.megatron.primus_notes import (
    accept,
    adapters_in,
    layers_recomputed,
    notes_on,
    of_its_own,
)
from planner.frameworks.options import option_table, table_releases

PRESET_FILE: Final = Path(__file__).with_name("primus.yaml")
Settings = dict[str, Any]
Options = list[tuple[str, ...]]
_MARKS: Final = (
    re.compile(r"^modules:", re.MULTILINE),
    re.compile(r"^\s+framework:\s*[\"']?megatron[\"']?\s*(?:#.*)?$", re.MULTILINE),
)
_VARIABLE: Final = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")
# arguments that Megatron-LM's parser keeps under another name
_RENAMED: Final = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "fp4_param": "--fp4-param-gather",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "moe_enable_deepep": "--moe-enable-deepep",
}
# ... and what is given where it is false
_NEGATED: Final = {
    "add_bias_linear": "--disable-bias-linear",
    "apply_rope_fusion": "--no-rope-fusion",
    "bias_gelu_fusion": "--no-bias-gelu-fusion",
    "bias_swiglu_fusion": "--no-bias-swiglu-fusion",
    "check_for_nan_in_loss_and_grad": "--no-check-for-nan-in-loss-and-grad",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
    "masked_softmax_fusion": "--no-masked-softmax-fusion",
}
# what says nothing of time or memory, and stands at values here that Megatron-LM's command line does not take
_IGNORED: Final = frozenset(("model_type", "spec", "mock_dataset"))


def is_primus(name: str, text: str) -> bool:
    """Is it a file of Primus for Megatron-LM?"""
    return name.endswith((".yaml", ".yml")) and all(mark.search(text) for mark in _MARKS)


def arguments_in(
    text: str, name: str, variables: Mapping[str, str]
) -> tuple[Options, list[str], Adapters | None]:
    """Megatron-LM's arguments as options, what of the file is not costed or was taken for granted, and its adapters.

    `variables`: of the environment, for `${NAME:default}`. Raises `FileInputError` and `InputError`.
    """
    defaults: list[str] = []
    trainer, found = _trainer(load_settings(text, name), name)
    module = _filled(found, variables, defaults, name)
    stated = _mapping(module.get("overrides"), f"modules.{trainer}.overrides", name)
    settings = {
        **_preset("models", module.get("model"), f"modules.{trainer}.model", name),
        **_preset("modules", module.get("config"), f"modules.{trainer}.config", name),
        **stated,
    }
    accept(settings)
    # presets are merged setting by setting below the first level too (core/config/merge_utils.py)
    preset = _preset("modules", module.get("config"), f"modules.{trainer}.config", name).get("lora") or {}
    own = stated.get("lora")
    adapters, said = adapters_in({"lora": {**preset, **own} if isinstance(own, Mapping) else preset})
    notes = [*notes_on(settings), *_strange(stated), *said]
    if defaults:
        notes.append(
            f"variables of the environment at the file's defaults: {', '.join(dict.fromkeys(defaults))}"
        )
    settings = {**settings, **of_its_own(settings), **layers_recomputed(settings)}
    return options_of(settings), notes, adapters


def options_of(settings: Mapping[str, Any]) -> Options:
    """Settings by the names of Megatron-LM's parsed arguments, as the options of its command line."""
    table = option_table("megatron", table_releases("megatron")[-1])
    found: Options = []
    for key, value in settings.items():
        if key in _NEGATED:
            found += [(_NEGATED[key],)] if value is False else []
            continue
        option = _RENAMED.get(key, "--" + key.replace("_", "-"))
        if value is None or key in _IGNORED or option not in table:
            continue
        if table[option].type == "flag":
            found += [(option,)] if value and value != "0" else []
        elif value is not False or table[option].type == "bool":
            found.append((option, *_words(key, value)))
    return found


def with_primus_names(line: str, text: str) -> str:
    """A changed line of options, after its + or -, as the override that it is where `text` is a file of Primus."""
    option, _, value = line[1:].strip().partition(" ")
    if not option.startswith("--") or not all(mark.search(text) for mark in _MARKS):
        return line
    for names, alone in ((_RENAMED, "true"), (_NEGATED, "false")):
        for key, name in names.items():
            if name == option:
                return f"{line[0]}{key}: {value or alone}"
    return f"{line[0]}{option[2:].replace('-', '_')}: {value or 'true'}"


def _words(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, list):
        if key == "window_size":
            return [",".join(map(str, value))]
        return [str(value)] if key.endswith(("_freq", "_layout")) else list(map(str, value))
    return str(value).split() if key == "recompute_modules" else [str(value)]


def _trainer(document: Mapping[str, Any], name: str) -> tuple[str, Mapping[str, Any]]:
    """The one module that trains, by name."""
    modules = _mapping(document.get("modules"), "modules", name)
    trainers = {key: _mapping(value, f"modules.{key}", name) for key, value in modules.items()}
    if len(trainers) != 1:
        must = "must hold one trainer: planner checks one at a time"
        raise FileInputError(
            name, must, ", ".join(trainers) or "none", "leave the others out", field="modules"
        )
    return next(iter(trainers.items()))


def _mapping(value: Any, field: str, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise FileInputError(name, "must hold settings by name", sort_of(value), field=field)
    return {str(key): item for key, item in (value or {}).items()}


def _preset(kind: str, stated: Any, field: str, name: str) -> Settings:
    """What a preset of Primus sets. Raises `FileInputError` for one that does not ship."""
    known: Mapping[str, Settings] = _presets()[kind]
    called = str(stated).removesuffix(".yaml").removesuffix(".yml")
    if stated is None or called not in known:
        must = "must be a preset that Primus ships"
        near = ", ".join(f"{one}.yaml" for one in nearest_names(called, known, 3))
        how = f"nearest: {near}; state what one of your own sets among the overrides of one of these"
        raise FileInputError(name, must, str(stated)[:80], how, field=field)
    return known[called]


@lru_cache(maxsize=1)
def _presets() -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: Mapping[str, Any] = yaml.load(PRESET_FILE.read_text(encoding="utf-8"), Loader=loader)
    return document


def _strange(stated: Mapping[str, Any]) -> list[str]:
    """Overrides that neither Megatron-LM nor a preset of Primus knows; Primus passes over misspelt ones."""
    table = option_table("megatron", table_releases("megatron")[-1])
    known = {*_presets()["names"], *(option[2:].replace("-", "_") for option in table), *_RENAMED, *_NEGATED}
    strange = [key for key in stated if key not in known and not key.isupper()]
    said = [f"{key} (nearest: {', '.join(nearest_names(key, known, 1))})" for key in strange]
    return [f"overrides that no preset of Primus has, which are not read: {', '.join(said)}"] if said else []


def _filled(value: Any, variables: Mapping[str, str], defaults: list[str], name: str) -> Any:
    """A value with variables of the environment filled in; those at their defaults are added to `defaults`."""
    if isinstance(value, Mapping):
        return {key: _filled(item, variables, defaults, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables, defaults, name) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def text_of(found: re.Match[str]) -> str:
        variable, default = found[1], found[2]
        if variable in variables:
            return variables[variable]
        if default is None:
            must = f"the environment must set {variable}, which has no default"
            raise FileInputError(name, must, value[:80], f"write ${{{variable}:VALUE}}")
        if value.endswith((found[0], ".yaml")) and default not in ("", "null") and "/" not in default:
            defaults.append(f"{variable}={default}")
        return default

    text = _VARIABLE.sub(text_of, value)
    # Primus leaves "null" a string; where it matters, in paths of data, it is none
    return {"true": True, "false": False, "null": None}.get(text.lower(), _number(text))


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
