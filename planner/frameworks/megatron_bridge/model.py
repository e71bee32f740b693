"""Which model does a recipe of Megatron-Bridge train under overrides, and how is the plan's written as such?

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, src/megatron/bridge/training/setup.py _validate_and_set_vocab_size (S),
models/hybrid/hybrid_provider.py HybridModelProvider.finalize (H). Left out: other dimensions than a recipe has
(`unread.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from planner.errors import FileInputError, InputError, UnsupportedError
from planner.frameworks.fields import Settings
from planner.frameworks.framework import Launch
from planner.frameworks.layout import ChunkLayers
from planner.frameworks.megatron.hybrid import letter_of, pattern_options
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec

PATTERN: Final = "model.hybrid_layer_pattern"
OLDER_PATTERN: Final = "model.hybrid_override_pattern"
MODULES: Final = "model.mtp_num_layers"
OF_MODULE: Final = "model.mtp_hybrid_override_pattern"
REPEATED: Final = "model.mtp_use_repeated_layer"
SYNTHETIC: Final = "NullTokenizer"
VOCABULARY: Final = "tokenizer.use_tokenizer_vocab_size"
MULTIPLE: Final = 128  # make_vocab_size_divisible_by of providers


def model_fields(launch: Launch, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary, the layers of a hybrid and prediction modules of a plan as fields; `recipe`: what that sets.

    A vocabulary of one's own is not padded (S), so that it is written as the plan counts it.
    """
    model, config = launch.model, launch.config
    multiple = launch.pad_vocabulary * config.tp
    fields: dict[str, Any] = {
        "model.vocab_size": -(-model.vocab // multiple) * multiple,
        VOCABULARY: False,
    }
    if model.mambas:
        if config.vpp > 1:
            must = "Megatron-Bridge's hybrids must have one chunk of layers a pipeline rank"
            raise UnsupportedError(must, f"vpp={config.vpp}", "plan with vpp=1, or export --to megatron")
        pattern = pattern_options(model, launch.chunks)[0][1].split("/")[0]
        fields |= {PATTERN: pattern, "model.mamba_chunk_size": model.state_spaces[0].chunk}
    elif not (MODULES in recipe or model.mtp_layers or model.has_latent_attention or model.delta_nets):
        return fields
    fields[MODULES] = model.mtp_layers or None
    if model.mambas:
        block = "".join(letter_of(layer) for layer in model.mtp_block)
        fields |= {OF_MODULE: block if model.mtp_layers else None, REPEATED: False}
    return fields


def model_of(s: Settings, name: str, tp: int) -> tuple[ModelSpec | None, list[str]]:
    """The model of a catalog `name` with the prediction modules and the vocabulary that are stated, and notes; None
    without a name. Raises `InputError`."""
    if not name:
        return None, []
    modules, said = s.count(MODULES, 0, least=0), []
    model = load_model(name, with_mtp=modules > 0)
    if model.mambas and modules > 1:  # each may have weights of its own
        model = replace(model, mtp_layers=modules)
    if model.mambas and modules and s.flag(REPEATED) and modules > 1:
        said.append(f"{REPEATED}: MTP modules share their weights, which are counted for each")
    _check_pattern(s, model)
    vocabulary = _vocabulary(s, model, tp)
    if vocabulary == model.vocab:
        return model, said
    said.append(
        f"the vocabulary is {vocabulary:,}, not the model's {model.vocab:,}: "
        f"{VOCABULARY}=false takes the model's, as planner export writes it"
    )
    return replace(model, vocab=vocabulary), said


def chunks_of(s: Settings) -> ChunkLayers:
    """Layers of every pipeline rank of a hybrid whose pattern has them parted; empty elsewhere."""
    parts = s.text(PATTERN, s.text(OLDER_PATTERN, "")).split("/")[0].split("|")
    return tuple(map(len, parts)) if len(parts) > 1 else ()


def _check_pattern(s: Settings, model: ModelSpec) -> None:
    """Raise `InputError` for other layers than the recipe's model has."""
    stated = s.text(PATTERN, s.text(OLDER_PATTERN, ""))
    if not stated:
        return
    own = "".join(letter_of(layer) for layer in model.layers) if model.mambas else ""
    if stated.split("/")[0].replace("|", "") != own:
        must = f"{PATTERN} must have the layers of {model.name}, {own or 'which is no hybrid'}"
        raise InputError(must, stated[:120], "name a config.json of what is trained with --model")


def _vocabulary(s: Settings, model: ModelSpec, tp: int) -> int:
    """The vocabulary that is trained: the tokenizer's where that is asked for or no other is stated, else the model's;
    as the model's where it differs by padding alone, or by what a tokenizer has that is not read."""
    own = s.count("model.vocab_size", model.vocab)
    synthetic = s.text("tokenizer.tokenizer_type", "") == SYNTHETIC
    found = own
    if s.flag(VOCABULARY) or (synthetic and model.mambas and not s.has("model.vocab_size")):
        if not synthetic:
            return model.vocab
        found = s.count("tokenizer.vocab_size", model.vocab)
    elif synthetic and own < (least := s.count("tokenizer.vocab_size", 1)):  # S
        must = f"must be at least that of the tokenizer, {least:,}"
        raise FileInputError(s.file, must, f"{own:,}", field="model.vocab_size")
    multiple = MULTIPLE * tp
    padded = [-(-size // multiple) for size in (found, model.vocab)]
    return model.vocab if padded[0] == padded[1] else found
