"""How is a model described in MaxText's settings, and which one do settings describe?

Models of configs/models are named, Gemma 3 by its name alone; others are written by their dimensions where the decoder
block is that of Llama, Mixtral, Qwen 2 or Qwen 3, and those of DeepSeek are read too. Left out: other decoder blocks
whose layers differ (Gemma 2 and 4, Llama 4, gpt-oss, hybrids), and windows, which these blocks do not have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from planner.frameworks.details import Details, unwritten_rotation
from planner.frameworks.fields import Settings
from planner.frameworks.framework import Launch
from planner.frameworks.known import same_architecture
from planner.frameworks.maxtext.names import CATALOG, IN_BLOCKS, MODELS, TITLE, VOCABULARY, WITHOUT_WINDOWS
from planner.frameworks.refuse import require
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.dimensions import MOST_LAYERS
from planner.spec.hf.families import facts_of
from planner.spec.layer import Activation, Layer, Mlp, Moe, NormKind
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec

LIKE_LLAMA: Final = ("llama2", "mistral")
DENSE: Final = (*LIKE_LLAMA, "qwen2", "qwen3")
ROUTED: Final = ("mixtral", "qwen3_moe")
READ: Final = (*DENSE, *ROUTED, "deepseek")
# of configs/base.yml, where settings leave a size out
DEFAULTS: Final = {
    "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16, "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16, "head_dim": 128, "vocab_size": 32_000,
}  # fmt: skip
_ACTIVATIONS: Final = {
    "silu": Activation.SILU,
    "gelu": Activation.GELU_TANH,
}  # flax's gelu is the approximate one
# what its rotation of Llama 3.1 has (layers/embeddings.py LLaMARotaryEmbedding)
_ROTATION: Final = {
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
    }
}  # fmt: skip


def shipped_name(model: ModelSpec) -> str:
    """What MaxText calls the model; empty where it has none of these dimensions."""
    names = sorted(MODELS, key=lambda name: name != model.name)
    return next((MODELS[name] for name in names if _is_called(MODELS[name], load_model(name), model)), "")


def _is_called(name: str, catalogs: ModelSpec, model: ModelSpec) -> bool:
    """Is the model MaxText's of that name, or the catalog's, whose vocabulary may have more rows?"""
    return any(same_architecture(one, model) for one in (catalogs, _with_vocabulary(name, catalogs)))


def _with_vocabulary(name: str, model: ModelSpec) -> ModelSpec:
    return replace(model, vocab=VOCABULARY.get(name, model.vocab))


def decoder_block(launch: Launch) -> str:
    """The decoder block of a model that can be written, of a named one too."""
    name = shipped_name(launch.model)
    if name in IN_BLOCKS:
        return "gemma3"
    first = launch.model.layers[0]
    latent = first.attention is not None and first.attention.kind is AttentionKind.MLA
    return "deepseek" if latent else _block(first)


def model_settings(launch: Launch) -> dict[str, Any]:
    """The model's name, else its dimensions. Raises `UnsupportedError`."""
    model = launch.model
    require(not model.mtp_layers, TITLE, "multi-token prediction here", f"{model.mtp_layers} modules")
    name = shipped_name(model)
    return {"model_name": name, **_groups(model)} if name else _dimensions(model, launch.details)


def _groups(model: ModelSpec) -> dict[str, int]:
    """Groups of experts, which files of configs/models leave out."""
    moe = next((layer.moe for layer in model.layers if layer.moe is not None and layer.moe.groups > 1), None)
    return {} if moe is None else {"n_routing_groups": moe.groups, "topk_routing_group": moe.top_groups}


def _dimensions(model: ModelSpec, details: Details) -> dict[str, Any]:
    what = (
        "models but those of its own that planner names, and blocks of Llama, Mixtral, Qwen 2 and Qwen 3 without "
        "windows"
    )
    traits = facts_of(model.family).traits
    require(not traits, TITLE, f"what {model.family} computes", traits)
    plain = not model.state_spaces and len(model.layer_kinds) == 1 and model.norm_kind is NormKind.RMS
    require(plain and not model.position_rows and not model.head_bias, TITLE, what, model.name)
    layer = model.layers[0]
    block = _block(layer)
    require(bool(block), TITLE, what, model.name)
    require(details.rotary_fraction == 1.0, TITLE, "a partial rotation", details.rotary_fraction)
    attention, mlp, moe = layer.attention, layer.mlp, layer.moe
    assert attention is not None, "a block has it"
    width = moe.expert_ffn if moe is not None else mlp.ffn if mlp is not None else 0
    found: dict[str, Any] = {
        "model_name": "default",
        "decoder_block": block,
        "base_emb_dim": model.hidden,
        "base_mlp_dim": width,
        "base_num_decoder_layers": model.num_layers,
        "base_num_query_heads": attention.heads,
        "base_num_kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "mlp_activations": ["silu", "linear"],
        "vocab_size": model.vocab,
        "logits_via_embedding": model.tied_embeddings,
        "normalize_embedding_logits": False,
        "normalization_layer_epsilon": details.norm_eps or 1e-5,
        "rope_max_timescale": int(details.rope_theta or 10_000),
    }
    if attention.qkv_bias:
        found["attention_bias"] = True
    if attention.qk_norm is QkNorm.HEAD:
        found["use_qk_norm"] = True
    if moe is not None:
        found |= {"base_moe_mlp_dim": width, "num_experts": moe.experts, "num_experts_per_tok": moe.top_k}
        if block == "qwen3_moe":
            found["norm_topk_prob"] = details.normalize_topk
    if details.rope_kind == "llama3":
        found["rope_type"] = "llama3.1"
    return found


def _block(layer: Layer) -> str:
    """The decoder block that computes a layer; empty where none of those written does."""
    attention, mlp, moe = layer.attention, layer.mlp, layer.moe
    if attention is None or attention.kind is AttentionKind.MLA or layer.norms != 2 or layer != _plain(layer):
        return ""
    biased, normed = attention.qkv_bias, attention.qk_norm is QkNorm.HEAD
    if attention.qk_norm not in (QkNorm.NONE, QkNorm.HEAD):
        return ""
    if moe is not None and mlp is None and not biased:
        alike = moe == Moe(moe.experts, moe.top_k, moe.expert_ffn, True, False, 0, False, False)
        return ("qwen3_moe" if normed else "mixtral") if alike else ""
    if mlp is None or moe is not None or mlp != Mlp(mlp.ffn, True, False, Activation.SILU):
        return ""
    if biased:
        return "" if normed else "qwen2"
    return "qwen3" if normed else "llama2"


def _plain(layer: Layer) -> Layer:
    """The layer without what no block written here has: windows, sinks, gates, biases of the output."""
    a = layer.attention
    assert a is not None, "asked for above"
    plain = Attention(
        a.kind, a.heads, a.kv_heads, a.head_dim, a.head_dim, qkv_bias=a.qkv_bias, qk_norm=a.qk_norm
    )
    return Layer(plain, layer.mlp, layer.moe)


def unwritten(launch: Launch, name: str) -> list[str]:
    """What of the model the settings do not state."""
    rows = VOCABULARY.get(name, launch.model.vocab)
    if rows != launch.model.vocab:
        return [f"a vocabulary of {launch.model.vocab:,}: model_name {name} has {rows:,}"]
    return [] if name != "default" else unwritten_rotation(launch.details, _ROTATION)


def named_model(name: str, s: Settings) -> ModelSpec | None:
    """The catalog's model that MaxText calls so, with the groups of experts of the settings; None for another."""
    own = name.replace("-Instruct", "")
    if not (known := CATALOG.get(own)):
        return None
    model, (groups, top) = _with_vocabulary(own, load_model(known)), _routing_groups(s)

    def grouped(layer: Layer) -> Layer:
        if own in WITHOUT_WINDOWS and layer.attention is not None:
            return replace(layer, attention=replace(layer.attention, window=None))
        if layer.moe is None or layer.moe.groups in (groups, 1):
            return layer
        return replace(layer, moe=replace(layer.moe, groups=groups, top_groups=top))

    return replace(model, layers=tuple(grouped(layer) for layer in model.layers))


def _routing_groups(s: Settings) -> tuple[int, int]:
    """Groups of experts and how many of them a token may reach; 0 where there are none."""
    groups, top = (s.count(name, -1, least=-1) for name in ("n_routing_groups", "topk_routing_group"))
    return max(groups, 0), max(top, 0)


def parsed_model(s: Settings) -> tuple[ModelSpec | None, str]:
    """The model that the settings name or describe, and what keeps it from being known where it is not."""
    name = s.text("model_name", "default")
    if name != "default":
        found = named_model(name, s)
        return (
            found,
            "" if found is not None else f"model_name {name[:60]}, whose dimensions planner does not have",
        )
    block = s.text("decoder_block", "llama2")
    if block not in READ:
        return None, f"decoder_block {block[:60]}, of which planner reads {', '.join(READ)}"
    acts = s.values.get("mlp_activations", ["silu", "linear"])
    acts = [str(act) for act in acts] if isinstance(acts, list | tuple) else [str(acts)]
    if acts[0] not in _ACTIVATIONS or acts[1:] not in ([], ["linear"]):
        return None, f"mlp_activations {', '.join(acts)[:60]}"
    return _described(s, block, _ACTIVATIONS[acts[0]], len(acts) == 2), ""


def _scales(s: Settings) -> tuple[int, int, int]:
    """Factors on the width, on heads and MLP, on layers (configs/types.py get_individual_scales)."""
    scale = s.count("global_parameter_scale", 1)
    third, rest = divmod(scale.bit_length() - 1, 3)
    return 2 ** (third + (rest > 1)), 2 ** (third + (rest > 0)), 2**third


def _described(s: Settings, block: str, activation: Activation, gated: bool) -> ModelSpec:
    wide, wider, deep = _scales(s)

    def size(name: str, factor: int = 1) -> int:
        return s.count(name, DEFAULTS[name]) * factor

    attention = _attention(s, block, size("base_num_query_heads", wider), size("base_num_kv_heads", wider))
    dense = Mlp(size("base_mlp_dim", wider), gated, False, activation)
    layers = s.count("base_num_decoder_layers", DEFAULTS["base_num_decoder_layers"]) * deep
    layers = min(layers, MOST_LAYERS + 1)  # no tuple of any length for what the model then refuses
    first, moe = layers, None
    if s.count("num_experts", 1) > 1 and block in (*ROUTED, "deepseek"):
        first = s.count("first_num_dense_layers", 0, least=0) if block == "deepseek" else 0
        moe = _moe(s, activation, gated, wider, dense.ffn)
    stack = (Layer(attention, dense, None),) * min(first, layers)
    stack += (Layer(attention, None, moe),) * (layers - len(stack))
    return ModelSpec(
        name="from MaxText settings",
        family="deepseek_v3" if block == "deepseek" else "llama",
        hidden=size("base_emb_dim", wide),
        vocab=size("vocab_size"),
        layers=stack,
        tied_embeddings=s.flag("logits_via_embedding"),
        source="MaxText settings",
    )


def _attention(s: Settings, block: str, heads: int, kv_heads: int) -> Attention:
    if s.text("attention_type", "global") == "mla" and block == "deepseek":
        nope, rope = s.count("qk_nope_head_dim", 128), s.count("qk_rope_head_dim", 64)
        return Attention(
            AttentionKind.MLA, heads, heads, nope + rope, s.count("v_head_dim", 128),
            q_lora_rank=s.count("q_lora_rank", 0, least=0), kv_lora_rank=s.count("kv_lora_rank", 512),
            qk_rope_dim=rope,
        )  # fmt: skip
    width = s.count("head_dim", DEFAULTS["head_dim"])
    normed = s.flag("use_qk_norm") and block not in LIKE_LLAMA and block not in ("mixtral", "deepseek")
    return Attention(
        AttentionKind.MHA if heads == kv_heads else AttentionKind.GQA, heads, kv_heads, width, width,
        qkv_bias=block == "qwen2" and s.flag("attention_bias"),
        qk_norm=QkNorm.HEAD if normed else QkNorm.NONE,
    )  # fmt: skip


def _moe(s: Settings, activation: Activation, gated: bool, wider: int, ffn: int) -> Moe:
    width = s.count("base_moe_mlp_dim", -1, least=-1)
    width = width * wider if width > 0 else ffn
    groups, top = _routing_groups(s)
    return Moe(
        s.count("num_experts", 1), s.count("num_experts_per_tok", 1), width, gated, expert_bias=False,
        shared_ffn=s.count("shared_experts", 0, least=0) * width, shared_gate=False, router_bias=False,
        groups=groups, top_groups=top, activation=activation,
    )  # fmt: skip
