"""Which layers do the GPT-2 generation of models have? GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, MPT, XGLM, BioGPT,
CTRL, and the first GPT.

Left out: cross-attention and attention scaling variants, which these files never switch on for training.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, AttentionKind
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.parts import Core, read_core, rotary_model
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.model import ModelSpec


def _full_attention(
    f: ConfigFields, hidden: int, heads_name: str, *names: str, bias: bool = True
) -> Attention:
    heads = f.integer(heads_name, *names)
    f.divides(heads_name, heads, "hidden size", hidden)
    width = hidden // heads
    return Attention(AttentionKind.MHA, heads, heads, width, width, qkv_bias=bias, out_bias=bias)


def _plain_mlp(
    f: ConfigFields, *names: str, hidden: int, bias: bool, activation: Activation, act: str
) -> Mlp:
    """An MLP of two matrices, four times as wide as the model unless stated."""
    width = f.optional_integer(*names) or 0
    if not width:
        width = 4 * hidden
        f.assume(names[0], width, "4 x hidden")
    return Mlp(width, False, bias, f.activation(act, default=activation))


def read_gpt2(f: ConfigFields, name: str) -> ModelSpec:
    hidden = f.integer("n_embd", "hidden_size")
    core = Core(hidden, f.layer_count("n_layer", "num_hidden_layers"), f.integer("vocab_size"))
    attention = _full_attention(f, hidden, "n_head", "num_attention_heads")
    mlp = _plain_mlp(
        f, "n_inner", hidden=hidden, bias=True, activation=Activation.GELU_TANH, act="activation_function"
    )
    positions = f.integer("n_positions", "max_position_embeddings", default=1024)
    layer = Layer(attention, mlp, None, norm_bias=True)
    return replace(_layer_norm_model(f, name, core, layer, positions, tied=True), position_rows=positions)


def read_openai_gpt(f: ConfigFields, name: str) -> ModelSpec:
    """The first GPT: norms behind attention and MLP, and none before the head. What it calls gelu is the tanh one."""
    hidden = f.integer("n_embd", "hidden_size")
    core = Core(hidden, f.layer_count("n_layer", "num_hidden_layers"), f.integer("vocab_size"))
    attention = _full_attention(f, hidden, "n_head", "num_attention_heads")
    stated = f.activation("afn", default=Activation.GELU)
    activation = Activation.GELU_TANH if stated is Activation.GELU else stated
    layer = Layer(attention, Mlp(4 * hidden, False, True, activation), None, norm_bias=True)
    positions = f.integer("n_positions", "max_position_embeddings", default=512)
    model = _layer_norm_model(f, name, core, layer, positions, tied=True)
    return replace(model, position_rows=positions, final_norm=False)


def read_ctrl(f: ConfigFields, name: str) -> ModelSpec:
    """CTRL: sinusoidal positions, a bias of the head."""
    hidden = f.integer("n_embd", "hidden_size")
    core = Core(hidden, f.layer_count("n_layer", "num_hidden_layers"), f.integer("vocab_size"))
    attention = _full_attention(f, hidden, "n_head", "num_attention_heads")
    layer = Layer(attention, Mlp(f.integer("dff"), False, True, Activation.RELU), None, norm_bias=True)
    positions = f.integer("n_positions", "max_position_embeddings", default=256)
    return _layer_norm_model(f, name, core, layer, positions, tied=True, head_bias=True)


def read_xglm(f: ConfigFields, name: str) -> ModelSpec:
    """XGLM: sinusoidal positions, biases everywhere but in the head."""
    hidden = f.integer("d_model", "hidden_size")
    core = Core(hidden, f.layer_count("num_layers", "num_hidden_layers"), f.integer("vocab_size"))
    attention = _full_attention(f, hidden, "attention_heads", "num_attention_heads")
    activation = f.activation("activation_function", default=Activation.GELU)
    layer = Layer(attention, Mlp(f.integer("ffn_dim"), False, True, activation), None, norm_bias=True)
    positions = f.integer("max_position_embeddings", default=2048)
    return _layer_norm_model(f, name, core, layer, positions, tied=True)


def read_biogpt(f: ConfigFields, name: str) -> ModelSpec:
    """BioGPT: OPT with other names of fields, two more position rows than positions."""
    core = read_core(f)
    attention = _full_attention(f, core.hidden, "num_attention_heads")
    activation = f.activation("hidden_act", default=Activation.GELU)
    layer = Layer(
        attention, Mlp(f.integer("intermediate_size"), False, True, activation), None, norm_bias=True
    )
    positions = f.integer("max_position_embeddings", default=1024)
    return replace(_layer_norm_model(f, name, core, layer, positions, tied=True), position_rows=positions + 2)


def read_gpt_bigcode(f: ConfigFields, name: str) -> ModelSpec:
    """StarCoder 1: GPT-2 with one kv head."""
    model = read_gpt2(f, name)
    if not f.boolean("multi_query", True):
        return replace(model, assumed=tuple(f.assumed))
    layer = model.layers[0]
    assert layer.attention is not None, "read above"
    attention = replace(layer.attention, kind=AttentionKind.GQA, kv_heads=1)
    layers = (replace(layer, attention=attention),) * model.num_layers
    return replace(model, layers=layers, assumed=tuple(f.assumed))


def read_gptj(f: ConfigFields, name: str) -> ModelSpec:
    """GPT-J, CodeGen: attention beside the MLP after one norm, no biases in attention, one in the head."""
    hidden = f.integer("n_embd", "hidden_size")
    core = Core(hidden, f.layer_count("n_layer", "num_hidden_layers"), f.integer("vocab_size"))
    attention = _full_attention(f, hidden, "n_head", "num_attention_heads", bias=False)
    mlp = _plain_mlp(
        f, "n_inner", hidden=hidden, bias=True, activation=Activation.GELU_TANH, act="activation_function"
    )
    layer = Layer(attention, mlp, None, norms=1, norm_bias=True, parallel=True)
    positions = f.integer("n_positions", "max_position_embeddings", default=2048)
    return _layer_norm_model(f, name, core, layer, positions, tied=False, head_bias=True)


def read_mpt(f: ConfigFields, name: str) -> ModelSpec:
    """MPT: ALiBi positions, no bias anywhere, MLP of 4 x hidden."""
    hidden = f.integer("d_model", "hidden_size")
    core = Core(hidden, f.layer_count("n_layers", "num_hidden_layers"), f.integer("vocab_size"))
    if not f.boolean("no_bias", True):
        raise f.refused("no_bias=false is not modelled", "no_bias", "set it to true")
    kv_heads = f.section("attn_config").optional_integer("kv_n_heads")
    attention = _full_attention(f, hidden, "n_heads", "num_attention_heads", bias=False)
    if kv_heads not in (None, attention.heads):
        must = "must equal n_heads; grouped queries of MPT are not modelled"
        raise f.error("attn_config.kv_n_heads", must, kv_heads, "leave it out")
    ratio = f.integer("expansion_ratio", default=4)
    layer = Layer(attention, Mlp(ratio * hidden, False, False, Activation.GELU), None)
    positions = f.integer("max_seq_len", "max_position_embeddings", default=2048)
    return _layer_norm_model(f, name, core, layer, positions, tied=True)


def read_gpt_neo(f: ConfigFields, name: str) -> ModelSpec:
    """GPT-Neo: GPT-2 without biases of q, k and v, half of whose layers slide."""
    core = Core(
        f.integer("hidden_size"), f.layer_count("num_layers", "num_hidden_layers"), f.integer("vocab_size")
    )
    attention = _full_attention(f, core.hidden, "num_heads", "num_attention_heads")
    mlp = _plain_mlp(
        f, "intermediate_size", hidden=core.hidden, bias=True, activation=Activation.GELU_TANH,
        act="activation_function",
    )  # fmt: skip
    layer = Layer(replace(attention, qkv_bias=False), mlp, None, norm_bias=True)
    positions = f.integer("max_position_embeddings", default=2048)
    model = _layer_norm_model(f, name, core, layer, positions, tied=True)
    kinds = _gpt_neo_kinds(f, core.num_layers)
    window = f.integer("window_size", default=256)
    assert layer.attention is not None, "read above"
    slides = replace(layer, attention=replace(layer.attention, window=window))
    layers = tuple(slides if kind == "local" else layer for kind in kinds)
    return replace(model, layers=layers, position_rows=positions, assumed=tuple(f.assumed))


def _gpt_neo_kinds(f: ConfigFields, num_layers: int) -> list[str]:
    """`attention_types`: kinds of layers in order, and how often they follow each other, or half of each in turn."""
    stated = f.values.get("attention_types")
    if stated is None:
        f.assume("attention_types", [[["global", "local"], 12]])
        stated = [[["global", "local"], 12]]
    try:
        kinds = [kind for period, count in stated for _ in range(count) for kind in period]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != num_layers or not {*kinds} <= {"global", "local"}:
        must = f"must give {num_layers} layers, each global or local"
        raise f.error("attention_types", must, stated, 'write [[["global", "local"], 12]]')
    return kinds


def _layer_norm_model(
    f: ConfigFields,
    name: str,
    core: Core,
    layer: Layer,
    positions: int,
    *,
    tied: bool,
    embedding_norm: bool = False,
    head_bias: bool = False,
) -> ModelSpec:
    """The parts around the layers, of so many `positions`, whatever the file calls them."""
    stated = replace(f, values={**f.values, "max_position_embeddings": positions})
    return rotary_model(
        stated,
        name,
        core,
        layer,
        tied=tied,
        max_position=positions,
        norm_kind=NormKind.LAYER,
        head_bias=head_bias,
        embedding_norm=embedding_norm,
    )


def read_gpt_neox(f: ConfigFields, name: str) -> ModelSpec:
    """GPT-NeoX: two norms a layer even where attention and MLP run in parallel."""
    core = read_core(f)
    attention = _full_attention(f, core.hidden, "num_attention_heads", bias=f.boolean("attention_bias", True))
    width = f.integer("intermediate_size")
    mlp = Mlp(width, False, True, f.activation("hidden_act", default=Activation.GELU))
    parallel = f.boolean("use_parallel_residual", True)
    layer = Layer(attention, mlp, None, norm_bias=True, parallel=parallel)
    positions = f.integer("max_position_embeddings", default=2048)
    return _layer_norm_model(f, name, core, layer, positions, tied=False)


def read_gpt_neox_japanese(f: ConfigFields, name: str) -> ModelSpec:
    """GPT-NeoX Japanese: one bias, of attention's output in the last layer."""
    core = read_core(f)
    attention = _full_attention(f, core.hidden, "num_attention_heads", bias=False)
    width = core.hidden * f.integer("intermediate_multiple_size", default=4)
    mlp = Mlp(width, False, False, f.activation("hidden_act", default=Activation.GELU))
    layer = Layer(attention, mlp, None, norm_bias=True)
    positions = f.integer("max_position_embeddings", default=2048)
    model = _layer_norm_model(f, name, core, layer, positions, tied=True)
    last = replace(layer, attention=replace(attention, out_bias=True))
    return replace(model, layers=(*model.layers[:-1], last))


def read_opt(f: ConfigFields, name: str) -> ModelSpec:
    """OPT: two more position rows than positions; a narrower embedding and no final norm in the 350M one."""
    core = read_core(f)
    bias = f.boolean("enable_bias", True)
    affine = f.boolean("layer_norm_elementwise_affine", True)
    attention = _full_attention(f, core.hidden, "num_attention_heads", bias=bias)
    mlp = Mlp(f.integer("ffn_dim"), False, bias, f.activation("activation_function", default=Activation.RELU))
    layer = Layer(attention, mlp, None, norm_bias=affine, norm_weight=affine)
    positions = f.integer("max_position_embeddings", default=2048)
    before, removed = f.boolean("do_layer_norm_before", True), f.boolean("_remove_final_layer_norm", False)
    width = f.optional_integer("word_embed_proj_dim") or core.hidden
    model = _layer_norm_model(f, name, core, layer, positions, tied=True)
    return replace(
        model, position_rows=positions + 2, embedding_width=width, final_norm=before and not removed
    )


def read_bloom(f: ConfigFields, name: str) -> ModelSpec:
    """BLOOM: ALiBi positions, a norm after the embedding, MLP of 4 x hidden."""
    hidden = f.integer("hidden_size", "n_embed", "n_embd")
    core = Core(hidden, f.layer_count("n_layer", "num_hidden_layers"), f.integer("vocab_size"))
    attention = _full_attention(f, hidden, "n_head", "num_attention_heads")
    layer = Layer(attention, Mlp(4 * hidden, False, True, Activation.GELU_TANH), None, norm_bias=True)
    positions = f.integer("seq_length", "max_position_embeddings", default=2048)
    return _layer_norm_model(f, name, core, layer, positions, tied=True, embedding_norm=True)


def _falcon_attention(f: ConfigFields, hidden: int, grouped: bool, bias: bool) -> Attention:
    """Three generations: grouped (40B, 180B), one kv head (7B), or a kv head per head (RW)."""
    heads = f.integer("num_attention_heads", "n_head")
    f.divides("num_attention_heads", heads, "hidden_size", hidden)
    width = hidden // heads
    if grouped:
        kv_heads = f.integer("num_kv_heads", "n_head_kv", default=heads)
        f.divides("num_kv_heads", kv_heads, "num_attention_heads", heads)
    else:
        kv_heads = 1 if f.boolean("multi_query", True) else heads
    kind = AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA
    return Attention(kind, heads, kv_heads, width, width, qkv_bias=bias, out_bias=bias)


def read_falcon(f: ConfigFields, name: str) -> ModelSpec:
    """Falcon: parallel attention and MLP with one norm (7B) or two (40B, 180B), or the serial RW layout."""
    core = Core(
        f.integer("hidden_size", "n_embed"),
        f.layer_count("num_hidden_layers", "n_layer"),
        f.integer("vocab_size"),
    )
    bias = f.boolean("bias", False)
    grouped = f.boolean("new_decoder_architecture", False)
    attention = _falcon_attention(f, core.hidden, grouped, bias)
    mlp = _plain_mlp(
        f, "ffn_hidden_size", hidden=core.hidden, bias=bias, activation=Activation.GELU, act="activation"
    )
    parallel = f.boolean("parallel_attn", True)
    layer = Layer(
        attention, mlp, None, norms=_falcon_norms(f, grouped, parallel), norm_bias=True, parallel=parallel
    )
    positions = f.integer("max_position_embeddings", default=2048)
    return _layer_norm_model(f, name, core, layer, positions, tied=True)


def _falcon_norms(f: ConfigFields, grouped: bool, parallel: bool) -> int:
    stated = f.optional_integer("num_ln_in_parallel_attn")
    if not parallel:
        return 2
    return 2 if stated == 2 or (grouped and stated is None) else 1
