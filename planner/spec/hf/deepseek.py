"""Which layers do DeepSeek-V2, V3 and kin have? Multi-head latent attention, shared and routed experts.

Left out: V3.2's sparse attention (`sparse.py`), and balance-correction buffers, which are not trained by the
optimizer.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention, AttentionKind
from planner.spec.hf.dense import Core, gated_mlp, grouped_attention, read_core, rotary_model
from planner.spec.hf.experts import read_moe, with_groups
from planner.spec.hf.fields import ConfigFields
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


def _routed_experts(f: ConfigFields, experts: int, top_k: int | None, shared: int) -> Moe:
    count = f.integer("n_shared_experts", default=shared, least=0) if _states_shared(f) else 0
    width = f.integer("moe_intermediate_size")
    if top_k is None:
        f.integer("num_experts_per_tok")
    moe = read_moe(
        f,
        experts=("n_routed_experts", "num_local_experts"),
        expert_ffn=("moe_intermediate_size",),
        default_experts=experts,
        default_top_k=top_k or 1,
        shared_ffn=count * width,
    )
    return with_groups(f, moe)


def _states_shared(f: ConfigFields) -> bool:
    """`n_shared_experts: null` means none; left out, the default holds."""
    return "n_shared_experts" not in f.values or f.values["n_shared_experts"] is not None


def _stack_layers(
    f: ConfigFields, attention: Attention, moe: Moe, dense: int, bias: bool
) -> tuple[Layer, ...]:
    """`first_k_dense_replace` dense layers, then experts in every `moe_layer_freq`-th layer."""
    num_layers = f.layer_count("num_hidden_layers", "n_layer")
    every = f.optional_integer("moe_layer_freq") or 1
    sparse = [i >= dense and i % every == 0 for i in range(num_layers)]
    mlp = None if all(sparse) else gated_mlp(f, bias=bias)
    return tuple(Layer(attention, *((None, moe) if s else (mlp, None))) for s in sparse)


def read_deepseek_v2(f: ConfigFields, name: str) -> ModelSpec:
    """DeepSeek-V2; `use_mla: false` of its own code (DeepSeek-VL2 Small's and DeepSeek-OCR's text models) is MHA."""
    core = read_core(f)
    if f.values.get("use_mla") is False:
        switch = f.boolean("attention_bias", False)
        attention = grouped_attention(f, core.hidden, qkv_bias=switch, out_bias=switch)
    else:
        attention = latent_attention(f, default_q_rank=1536)
    bias = f.boolean("mlp_bias", False)
    moe = replace(_routed_experts(f, 64, None, 2), shared_bias=bias)
    dense = f.integer("first_k_dense_replace", default=0, least=0)
    layers = _stack_layers(f, attention, moe, dense, bias)
    return rotary_model(f, name, core, layers, max_position=2048)


def read_deepseek_v3(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """DeepSeek-V3, Kimi K2, Moonlight: `with_mtp` adds the multi-token-prediction modules."""
    f = f.with_defaults(n_group=8, topk_group=4)
    core = read_core(f)
    attention = latent_attention(f, default_q_rank=1536)
    moe = _routed_experts(f, 256, 8, 1)
    dense = f.integer("first_k_dense_replace", default=3, least=0)
    layers = _stack_layers(f, attention, moe, dense, bias=False)
    model = rotary_model(f, name, core, layers, max_position=4096)
    return (
        replace(model, mtp_layers=f.integer("num_nextn_predict_layers", default=1, least=0))
        if with_mtp
        else model
    )


def read_longcat_flash(f: ConfigFields, name: str) -> ModelSpec:
    """LongCat-Flash: two blocks of latent attention and an MLP in a layer, with experts beside them that read what the
    first MLP reads and are added behind the second (arXiv 2509.01322, section 2). A third of what the router can choose
    computes nothing: of 12 experts a token 8 do, on average. The first MLP is listed as a shared expert."""
    f = f.with_defaults(
        vocab_size=131072, hidden_size=6144, num_attention_heads=64, moe_topk=12, ffn_hidden_size=12288
    )  # fmt: skip
    hidden, both = f.integer("hidden_size"), f.optional_integer("num_hidden_layers")
    layers = f.layer_count("num_layers") if f.given("num_layers") or both is None else max(both // 2, 1)
    attention = latent_attention(f, default_q_rank=1536)
    f.integer("q_lora_rank", default=1536)
    ffn, activation = (
        f.integer("ffn_hidden_size", "intermediate_size"),
        f.activation("hidden_act", default=Activation.SILU),
    )
    top_k, experts = f.integer("moe_topk", "num_experts_per_tok"), f.integer("n_routed_experts", default=512)
    zero = f.integer("zero_expert_num", default=256, least=0)
    if top_k > experts:
        raise f.error(
            "moe_topk", f"must be at most the number of experts, {experts}", top_k, "correct one of the two"
        )
    moe = Moe(
        experts, top_k, f.integer("expert_ffn_hidden_size", "moe_intermediate_size", default=2048), gated=True,
        expert_bias=False, shared_ffn=ffn, shared_gate=False, router_bias=f.boolean("router_bias", False),
        activation=activation, zero_experts=zero,
    )  # fmt: skip
    layer = Layer(attention, None, moe, then=Layer(attention, Mlp(ffn, True, False, activation), None))
    core = Core(hidden, layers, f.integer("vocab_size"))
    return rotary_model(f, name, core, (layer,) * layers, max_position=131072)
