"""Which layers does Gemma 3n have? Streams that predict one another, inputs of layers' own, keys that layers share.

Left out: the towers of images and sound, soft-capped logits.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import QkNorm
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixed_heads import shared_keys, typed_layers
from planner.spec.hf.parts import grouped_attention, read_core, rotary_model
from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.model import ModelSpec
from planner.spec.residual import AltUp

_SPARSE, _LAYERS = 10, 10  # layers that are cut where a file does not say, of models with more


def read_gemma3n(f: ConfigFields, name: str) -> ModelSpec:
    """Gemma 3n E2B and E4B: attention as Gemma 4's, four sliding layers to one that sees everything; of the first ten
    layers the MLP's gate is cut at a quantile. Raises `FileInputError` for lists of other lengths than layers."""
    core = read_core(f)
    types = typed_layers(
        f, ["full_attention" if i % 5 == 4 else "sliding_attention" for i in range(core.num_layers)]
    )
    sees = grouped_attention(f, core, switch="attention_bias", qk_norm=QkNorm.HEAD, kv_heads=2, head_dim=256)
    sees = replace(sees, value_norm=True)
    slides = replace(sees, window=f.integer("sliding_window", default=512))
    attentions = shared_keys(f, [sees if kind == "full_attention" else slides for kind in types], types, 15)
    activation = f.activation("hidden_activation", default=Activation.GELU_TANH)
    streams = AltUp(f.integer("altup_num_inputs", default=4, least=2), f.integer("laurel_rank", default=64))
    side = f.integer("hidden_size_per_layer_input", default=256)
    layers = tuple(
        Layer(attention, Mlp(ffn, True, False, activation, cut), None, norms=5, side=side, residual=streams)
        for attention, ffn, cut in zip(
            attentions, _widths(f, core.num_layers), _cut(f, core.num_layers), strict=True
        )
    )
    model = rotary_model(f, name, core, layers, tied=True, max_position=32768)
    return replace(model, side_vocab=f.integer("vocab_size_per_layer_input", default=262144), wide_norms=True)


def _widths(f: ConfigFields, layers: int) -> list[int]:
    """Of the MLP of every layer."""
    if not isinstance(f.values.get("intermediate_size"), list):
        return [f.integer("intermediate_size", default=16384)] * layers
    widths = f.integers("intermediate_size") or []
    f.one_per_layer("intermediate_size", widths, layers)
    return widths


def _cut(f: ConfigFields, layers: int) -> list[bool]:
    """Whether the gate of every layer's MLP is cut."""
    name = "activation_sparsity_pattern"
    shares = f.values.get(name)
    if shares is None:
        f.assume(name, f"0.95 in the first {_SPARSE} layers" if layers > _LAYERS else "0")
        return [layers > _LAYERS and i < _SPARSE for i in range(layers)]
    numbers = isinstance(shares, list) and all(isinstance(share, int | float) for share in shares)
    if not numbers or len(shares) != layers:
        raise f.error(
            name, f"must be a list of {layers} numbers, one for every layer", shares, "correct the list"
        )
    return [share > 0 for share in shares]
