"""How are layers that differ in width, or lack attention or the MLP, written in Megatron-LM's arguments?

A JSON file beside the script, one block a layer, that --heterogeneous-layers-config-path names: Llama-Nemotrons that
were pruned by search. Source: Megatron-LM core/transformer/heterogeneous/heterogeneous_config.py, training/arguments.py
(validate_model_config_args_from_heterogeneous_config), gpt_builders.py, main of 2026-08. Left out: linear layers in
place of blocks, which planner does not model, and reading such a file.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from planner.frameworks.details import Details
from planner.frameworks.refuse import unstated
from planner.spec.layer import Activation, Layer, NormKind
from planner.spec.model import ModelSpec
from planner.spec.rule import Rule

FILE: Final = "layers.json"
OPTION: Final = "--heterogeneous-layers-config-path"
FAMILY: Final = "nemotron-nas"
_refuse: Final = partial(unstated, f"Megatron-LM's {OPTION}", "choose a model whose layers it can state")


def is_heterogeneous(model: ModelSpec) -> bool:
    """Are there layers that Megatron-LM builds from a file alone?"""
    return model.family == FAMILY


def check_heterogeneous(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for layers that the file cannot state: it has RMS norms, SwiGLU and one count of
    key/value heads."""
    mlps = {(layer.mlp.gated, layer.mlp.activation) for layer in model.layer_kinds if layer.mlp is not None}
    heads = {(a.heads, a.kv_heads) for a in model.attentions}
    if model.norm_kind is not NormKind.RMS or mlps - {(True, Activation.SILU)}:
        raise _refuse("norms other than RMS norms, and MLPs other than SwiGLU", model.name)
    if len(heads) != 1:
        raise _refuse("key/value heads that differ between layers", sorted(heads))


def heterogeneous_options(details: Details) -> list[tuple[str, ...]]:
    """What its check demands beside the file. Raises `UnsupportedError` without Llama 3's scaling of rotations."""
    _scaling_factor(details)
    return [("--use-rotary-position-embeddings",)]


def _scaling_factor(details: Details) -> float:
    scaling = details.rope_scaling or {}
    factor = scaling.get("factor")
    if details.rope_kind != "llama3" or not factor or not details.rope_theta:
        raise _refuse(
            "positions other than Llama 3.1's: rope_theta, and rope_scaling of kind llama3", scaling
        )
    return float(factor)


def layers_file(model: ModelSpec, details: Details) -> str:
    """The blocks, and the fields that Megatron-LM compares with its other arguments."""
    attention = model.attentions[0]
    said = {
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "num_attention_heads": attention.heads,
        "num_hidden_layers": model.num_layers,
        "rope_scaling": {"factor": _scaling_factor(details)},
        "rope_theta": details.rope_theta,
        "tie_word_embeddings": model.tied_embeddings,
        "block_configs": [_block(layer) for layer in model.layers],
    }
    return json.dumps(said, indent=1) + "\n"


def _block(layer: Layer) -> dict[str, dict[str, object]]:
    a, mlp = layer.attention, layer.mlp
    return {
        "attention": {"no_op": a is None, "n_heads_in_group": a.heads // a.kv_heads if a else None},
        "ffn": {"no_op": mlp is None, "ffn_hidden_size": mlp.ffn if mlp else None},
    }


def notes(model: ModelSpec) -> list[str]:
    """What the README says of the file."""
    if not is_heterogeneous(model):
        return []
    return [
        f"layers that compute nothing: {FILE} leaves them out, published weights are to be renumbered without them"
    ]


HETEROGENEOUS_RULES: Final = (
    Rule(
        "heterogeneous-vpp", ("vpp",), lambda c, p: (c["vpp"] == 1) | (not is_heterogeneous(p.model)),
        "layers that differ from one another are built without virtual stages", "set vpp=1",
        "Megatron-LM gpt_builders.py: get_gpt_heterogeneous_layer_spec is told no virtual stage", told=("vpp",),
    ),
)  # fmt: skip
