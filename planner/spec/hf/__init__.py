"""Which model does a Hugging Face `config.json` describe? One reader per model_type.

Defaults are those of the transformers library; parameters and windows are checked against 5.24, and 5.23, on its meta
device. Where 4.57 differs 5 is followed: 4.57 gives DeepSeek-V2's routed experts biases under `mlp_bias`,
ignores Llama 4's `attention_bias`, and slides every layer of Qwen 2 MoE. Left out: what changes no cost, and
every model_type that `families.json` has not, which is refused rather than read as a Llama.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from planner.dialect import option
from planner.errors import FileInputError, InputError, UnsupportedError, nearest_names
from planner.spec.hf.families import families, family, refused
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mistaken import check_head, check_kind_of_file, nested_hint
from planner.spec.hf.wrappers import default_family, text_fields, wrappers
from planner.spec.model import ModelSpec

# families whose layers `per_layer_config` of transformers 5 may set apart
_READS_PER_LAYER = ("dots3_note_text", "gemma4_text", "gemma4_unified_text", "step3p5")


def reader(model_type: str) -> Callable[..., ModelSpec]:
    """What reads files of a model_type; its module is loaded."""
    module, function = family(model_type).reader.split(".")
    found: Callable[..., ModelSpec] = getattr(import_module(f"planner.spec.hf.{module}"), function)
    return found


def known_model_types() -> list[str]:
    return sorted({*families(), *wrappers()})


def quantised_bits(quantisation: object) -> int:
    """Bits of a quantised weight that adapters can be trained beside, 4 or 8; 0 where the config names none.

    `load_in_4bit` and `load_in_8bit` are those of bitsandbytes, `bits` that of GPTQ and AWQ (transformers
    utils/quantization_config.py).
    """
    if not isinstance(quantisation, dict):
        return 0
    for bits in (4, 8):
        if quantisation.get(f"load_in_{bits}bit") is True or quantisation.get("bits") == bits:
            return bits
    return 0


def read_hf_config(config: dict[str, Any], file: str, name: str, with_mtp: bool = False) -> ModelSpec:
    """The model that the parsed `config.json` describes; `file` is named in errors, `name` in answers.

    Raises `FileInputError` for a field that is missing, of the wrong type or contradictory, and
    `UnsupportedError` for architectures outside the cost model.
    """
    fields = ConfigFields(config, file)
    check_kind_of_file(fields)
    model_type = _model_type(fields)
    for flag in ("is_encoder_decoder", "add_cross_attention"):
        if config.get(flag):
            must = "must be false: attention to an encoder is not modelled"
            raise fields.error(flag, must, config[flag], "plan the decoder-only model")
    if (quantised := config.get("quantization_config")) is not None:
        bits = quantised_bits(quantised)
        frozen = (
            f"; with {option('lora_rank')}, {option('frozen_bits', bits)} holds them as the config does"
            if bits
            else ""
        )
        fields.assume(
            "quantization_config", "ignored", f"training holds weights in the job's precision{frozen}"
        )
    check_head(fields)
    if model_type in wrappers():
        fields = text_fields(fields, model_type)
        model_type = _tower_type(fields, model_type)
        fields.values = {**fields.values, "model_type": model_type}
    fields.check_figures()
    if fields.given("per_layer_config") and model_type not in _READS_PER_LAYER:
        must = "must be left out: layers of this family that differ in their dimensions are not modelled"
        raise fields.error(
            "per_layer_config", must, fields.values["per_layer_config"], "describe the model by hand"
        )
    own = family(model_type)
    try:
        fields = fields.renamed(own.renamed).with_defaults(**own.defaults)
        read = reader(model_type)
        return read(fields, name, with_mtp) if own.mtp else read(fields, name)
    except FileInputError:
        raise
    except InputError as error:
        raise FileInputError(file, error.must, error.given, error.hint) from error


def _tower_type(fields: ConfigFields, around: str) -> str:
    """The family of a wrapper's text model: what it states, or the wrapper's own. Raises as `_model_type`."""
    stated = fields.values.get("model_type")
    if stated is not None and not isinstance(stated, str):
        return _model_type(fields)
    if stated in families():
        return str(stated)
    inner = around if stated is None else stated.removesuffix("_text")
    return default_family(fields.values, inner) if inner in wrappers() else _model_type(fields)


def _model_type(fields: ConfigFields) -> str:
    """The model_type, if there is a reader for it."""
    value = fields.values.get("model_type")
    known = known_model_types()
    if not isinstance(value, str):
        stated = fields.values.get("architectures")
        hint = f"add that of {stated} in the transformers library" if stated else "give a model's config.json"
        raise fields.error("model_type", "must be given as text", value, hint)
    if reason := refused().get(value):
        raise UnsupportedError(
            f"{fields.file}: model_type must be a decoder-only transformer that planner models",
            f"{value!r}: {reason}",
            "plan a model without it; planner model lists those that come with planner",
        )
    if value not in known:
        near = f"did you mean: {', '.join(nearest_names(value, known))}?"
        hint = f"{nested_hint(fields.values, known) or near}; or describe the architecture by hand in the YAML form"
        raise fields.error("model_type", "must be a model type that planner can read", value, hint)
    return value
