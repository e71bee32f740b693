"""Which layers do families of multi-head latent attention have? DeepSeek-V2 and V3, LongCat-Flash, GLM-4.7-Flash,
Mistral 4, A.X K1, Sarvam 105B, Youtu, MiniCPM 3.

Left out: V3.2's sparse attention (`sparse.py`), and balance-correction buffers, which are not trained by the
optimizer.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, AttentionKind
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import (
    ROUTED,
    blocks_of,
    check_chosen,
    leading_dense,
    mixed_layers,
    shared_and_routed,
    sparse_from,
    with_prediction,
)
from planner.spec.hf.parts import Core, gated_mlp, grouped_attention, read_core, rotary_model
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.model import ModelSpec


def latent_attention(f: ConfigFields, *, default_q_rank: int | None) -> Attention:
    """MLA. `q_lora_rank: null` means an uncompressed query; left out, the library's default."""
    heads = f.integer("num_attention_heads")
    nope, rope = f.integer("qk_nope_head_dim", default=128), f.integer("qk_rope_head_dim", default=64)
    bias = f.boolean("attention_bias", False)
    q_rank = f.optional_integer("q_lora_rank")
    if "q_lora_rank" not in f.values and default_q_rank is not None:
        q_rank = default_q_rank
        f.assume("q_lora_rank", q_rank)
    return Attention(
        AttentionKind.MLA,
        heads,
        heads,
        nope + rope,
        f.integer("v_head_dim", default=128),
        q_lora_rank=q_rank or 0,
        kv_lora_rank=f.integer("kv_lora_rank", default=512),
        qk_rope_dim=rope,
        qkv_bias=bias,
        out_bias=bias,
    )


def _stack_layers(
    f: ConfigFields, attention: Attention, moe: Moe, dense: int, bias: bool
) -> tuple[Layer, ...]:
    """`first_k_dense_replace` dense layers, then experts in every `moe_layer_freq`-th layer."""
    num_layers = f.layer_count("num_hidden_layers", "n_layer")
    every = f.optional_integer("moe_layer_freq") or 1
    sparse = [i >= dense and i % every == 0 for i in range(num_layers)]
    return tuple(Layer(attention, *block) for block in blocks_of(f, moe, sparse, bias=bias))


def read_deepseek_v2(f: ConfigFields, name: str) -> ModelSpec:
    """DeepSeek-V2; `use_mla: false` of its own code (DeepSeek-VL2 Small's and DeepSeek-OCR's text models) is MHA."""
    core = read_core(f)
    if f.values.get("use_mla") is False:
        attention = grouped_attention(f, core, switch="attention_bias")
    else:
        attention = latent_attention(f, default_q_rank=1536)
    bias = f.boolean("mlp_bias", False)
    f.integer("moe_intermediate_size"), f.integer("num_experts_per_tok")  # must be stated
    moe = replace(shared_and_routed(f, ROUTED, experts=64, top_k=1, shared=2), shared_bias=bias)
    dense = f.integer("first_k_dense_replace", default=0, least=0)
    layers = _stack_layers(f, attention, moe, dense, bias)
    return rotary_model(f, name, core, layers, max_position=2048)


def read_deepseek_v3(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """DeepSeek-V3, Kimi K2, Moonlight: `with_mtp` adds the multi-token-prediction modules."""
    core = read_core(f)
    attention = latent_attention(f, default_q_rank=1536)
    moe = shared_and_routed(f, ROUTED, experts=256, top_k=8, shared=1)
    dense = f.integer("first_k_dense_replace", default=3, least=0)
    layers = _stack_layers(f, attention, moe, dense, bias=False)
    return with_prediction(f, rotary_model(f, name, core, layers, max_position=4096), with_mtp)


def read_sarvam_mla(f: ConfigFields, name: str) -> ModelSpec:
    """Sarvam 105B: DeepSeek-V3 with queries of full rank and no groups of experts, in its publisher's spelling or the
    library's. No prediction modules are published."""
    core = read_core(f)
    attention = latent_attention(f, default_q_rank=None)
    moe = shared_and_routed(f, ROUTED, experts=128, top_k=8, shared=1)
    layers = _stack_layers(
        f, attention, moe, f.integer("first_k_dense_replace", default=1, least=0), bias=False
    )
    return rotary_model(f, name, core, layers, max_position=4096)


def read_longcat_flash(f: ConfigFields, name: str) -> ModelSpec:
    """LongCat-Flash: two blocks of latent attention and an MLP in a layer, with experts beside them that read what the
    first MLP reads and are added behind the second (arXiv 2509.01322, section 2). A third of what the router can choose
    computes nothing: of 12 experts a token 8 do, on average. The first MLP is listed as a shared expert."""
    hidden, both = f.integer("hidden_size"), f.optional_integer("num_hidden_layers")
    layers = f.layer_count("num_layers") if f.given("num_layers") or both is None else max(both // 2, 1)
    attention = latent_attention(f, default_q_rank=1536)
    f.integer("q_lora_rank", default=1536)
    ffn = f.integer("ffn_hidden_size", "intermediate_size")
    activation = f.activation("hidden_act", default=Activation.SILU)
    top_k, experts = f.integer("moe_topk", "num_experts_per_tok"), f.integer("n_routed_experts", default=512)
    zero = f.integer("zero_expert_num", default=256, least=0)
    check_chosen(f, "moe_topk", top_k, experts)
    moe = Moe(
        experts, top_k, f.integer("expert_ffn_hidden_size", "moe_intermediate_size", default=2048), gated=True,
        expert_bias=False, shared_ffn=ffn, shared_gate=False, router_bias=f.boolean("router_bias", False),
        activation=activation, zero_experts=zero,
    )  # fmt: skip
    layer = Layer(attention, None, moe, then=Layer(attention, Mlp(ffn, True, False, activation), None))
    core = Core(hidden, layers, f.integer("vocab_size"))
    return rotary_model(f, name, core, (layer,) * layers, max_position=131072)


def read_glm4_moe_lite(f: ConfigFields, name: str) -> ModelSpec:
    """GLM-4.7-Flash: latent attention, one leading dense layer, shared experts."""
    core = read_core(f)
    f = f.with_defaults(qk_nope_head_dim=192, v_head_dim=256)
    attention = latent_attention(f, default_q_rank=768)
    attention = replace(attention, out_bias=attention.qkv_bias)
    moe = shared_and_routed(f, ROUTED, experts=64, top_k=4, shared=1)
    sparse = sparse_from(f, core.num_layers, f.integer("first_k_dense_replace", default=1, least=0))
    layers = mixed_layers(f, attention, moe, [None] * core.num_layers, sparse)
    return rotary_model(f, name, core, layers, max_position=202752)


def read_mistral4(f: ConfigFields, name: str) -> ModelSpec:
    """Mistral 4: DeepSeek-V3's latent attention and experts, none of the layers dense."""
    core = read_core(f)
    attention = latent_attention(f, default_q_rank=1024)
    moe = shared_and_routed(f, ROUTED, experts=128, top_k=4, shared=1)
    layers = leading_dense(f, core.num_layers, attention, moe)
    return rotary_model(f, name, core, layers, max_position=1048576)


def read_youtu(f: ConfigFields, name: str) -> ModelSpec:
    """Youtu-LLM: latent attention in a dense model with tied embeddings."""
    core = read_core(f)
    layer = Layer(latent_attention(f, default_q_rank=1536), gated_mlp(f), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=131072)


def read_minicpm3(f: ConfigFields, name: str) -> ModelSpec:
    """MiniCPM 3: latent attention in a dense model; value heads share the hidden size where no width is given."""
    core = read_core(f)
    width = max(core.hidden // f.integer("num_attention_heads"), 1)
    f = f.with_defaults(v_head_dim=width, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32)
    attention = latent_attention(f, default_q_rank=768)
    layer = Layer(attention, gated_mlp(f, bias=f.boolean("mlp_bias", False)), None)
    return rotary_model(f, name, core, layer, tied=True, max_position=32768)


def read_axk1(f: ConfigFields, name: str) -> ModelSpec:
    """A.X K1: DeepSeek-V3 with a norm behind the experts too."""
    core = read_core(f)
    f = f.with_defaults(n_group=8, topk_group=4, moe_intermediate_size=2048)
    moe = shared_and_routed(f, ROUTED, experts=192, top_k=8, shared=1)
    dense = f.integer("first_k_dense_replace", default=1, least=0)
    every = f.integer("moe_layer_freq", default=1)
    sparse = sparse_from(f, core.num_layers, dense)
    if f.given("mlp_layer_types") is None:
        sparse = [routed and i % every == 0 for i, routed in enumerate(sparse)]
    attention = latent_attention(f, default_q_rank=1536)
    layers = mixed_layers(f, attention, moe, [None] * core.num_layers, sparse)
    layers = tuple(replace(layer, norms=2 if layer.moe is None else 3) for layer in layers)
    return rotary_model(f, name, core, layers, max_position=32768)
