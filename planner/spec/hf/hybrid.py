"""Which layers do hybrids of attention and Mamba have? Nemotron-H, Granite 4, Bamba, Falcon-H1 and Jamba; Mamba alone.

Left out: time-step limits, the width in which a residual is kept, and multipliers but for that Falcon-H1 has them.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.dimensions import MOST_LAYERS
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.mixtures import check_chosen, read_moe
from planner.spec.hf.parts import Core, gated_mlp, grouped_attention, read_core, rotary_model
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.mixers import SelectiveScan, StateSpace
from planner.spec.model import ModelSpec

# letters of a pattern, and spellings of `layers_block_type` before and from transformers 5 on
_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SPELLINGS = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention",
    "mlp": "mlp", "moe": "moe",
}  # fmt: skip


def read_nemotron_h(f: ConfigFields, name: str, with_mtp: bool) -> ModelSpec:
    """Nemotron-H and Nemotron 3: every block is a Mamba-2 mixer, attention, an MLP or experts, after one norm.

    `with_mtp` adds the multi-token-prediction modules (Nemotron 3 Super and Ultra), attention and experts each.
    """
    kinds = _nemotron_kinds(f)
    core = Core(f.integer("hidden_size"), len(kinds), f.integer("vocab_size"))
    bias = f.boolean("use_bias", False)
    blocks: dict[str, Layer] = {}
    if "mamba" in kinds:
        state = StateSpace(
            heads=f.integer("mamba_num_heads", default=128),
            head_dim=f.integer("mamba_head_dim", default=64),
            state=f.integer("ssm_state_size", default=128),
            groups=f.integer("mamba_n_groups", "n_groups", default=8),
            conv=f.integer("mamba_d_conv", "conv_kernel", default=4),
            chunk=f.integer("mamba_chunk_size", "chunk_size", default=128),
            conv_bias=f.boolean(
                "mamba_conv_bias" if "mamba_conv_bias" in f.values else "use_conv_bias", True
            ),
            bias=bias,
        )
        blocks["mamba"] = Layer(None, None, None, norms=1, state_space=state)
    if "attention" in kinds:
        width = f.integer("head_dim", "attention_head_dim", default=128)
        attention = grouped_attention(f, core, kv_heads=8, head_dim=width, heads=32)
        blocks["attention"] = Layer(attention, None, None, norms=1)
    activation = f.activation("mlp_hidden_act", default=Activation.RELU2)
    mlp_bias = f.boolean("mlp_bias", False)
    if "mlp" in kinds:
        mlp = Mlp(f.integer("intermediate_size", default=21504), False, mlp_bias, activation)
        blocks["mlp"] = Layer(None, mlp, None, norms=1)
    if "moe" in kinds:
        blocks["moe"] = Layer(None, None, _nemotron_experts(f, mlp_bias, activation), norms=1)
    model = rotary_model(f, name, core, tuple(blocks[kind] for kind in kinds), max_position=4096)
    modules = f.integer("num_nextn_predict_layers", default=0, least=0) if with_mtp else 0
    if not modules:
        return model
    behind = _listed_kinds(f, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or ["attention", "moe"]
    if not set(behind) <= set(kinds):
        must = "must be of types that the model's own layers have"
        raise f.error("mtp_layers_block_type", must, ", ".join(behind), "correct one of the two")
    return replace(model, mtp_layers=modules, mtp_block=tuple(blocks[kind] for kind in behind))


def _nemotron_kinds(f: ConfigFields) -> list[str]:
    """What every block is, from the list of types, a pattern of letters, or the library's four blocks."""
    spelling = "layers_block_type" if "layers_block_type" in f.values else "layer_types"
    kinds = _listed_kinds(f, spelling, "hybrid_override_pattern")
    if kinds is None:
        f.assume("layers_block_type", "mamba, moe, attention, mlp")
        return ["mamba", "moe", "attention", "mlp"]
    said = f.optional_integer("num_hidden_layers")
    if said is not None and said != len(kinds):
        raise f.error(
            "num_hidden_layers",
            f"must be as many as the blocks named, {len(kinds)}",
            said,
            "correct one of the two",
        )
    return _counted(f, kinds)


def _listed_kinds(f: ConfigFields, words: str, letters: str) -> list[str] | None:
    """Types of blocks from a list of words, else from a pattern of letters; None where neither is given."""
    listed = f.words(words, tuple(_SPELLINGS))
    if listed is not None:
        return [_SPELLINGS[word] for word in listed]
    pattern = f.values.get(letters)
    if pattern is not None and (not isinstance(pattern, str) or not set(pattern) <= set(_KINDS)):
        raise f.error(letters, f"must be a word of {' '.join(_KINDS)}", pattern, "write it like M-M*-M-")
    return None if pattern is None else [_KINDS[letter] for letter in pattern]


def _counted(f: ConfigFields, kinds: list[str]) -> list[str]:
    if not 1 <= len(kinds) <= MOST_LAYERS:
        raise f.error(
            "layers_block_type", f"must name 1 to {MOST_LAYERS} blocks", len(kinds), "correct the list"
        )
    return kinds


def _nemotron_experts(f: ConfigFields, bias: bool, activation: Activation) -> Moe:
    """Experts without gates beside shared ones, which the library builds whatever their number."""
    experts = f.integer("n_routed_experts", "num_local_experts", default=8)
    top_k, groups = f.integer("num_experts_per_tok", default=2), f.integer("n_group", default=1)
    check_chosen(f, "num_experts_per_tok", top_k, experts)
    return Moe(
        experts, top_k, f.integer("moe_intermediate_size", default=7688), gated=False, expert_bias=False,
        shared_ffn=f.integer("moe_shared_expert_intermediate_size", default=7688), shared_gate=False,
        router_bias=False, groups=groups if groups > 1 else 0,
        top_groups=f.integer("topk_group", default=1) if groups > 1 else 0, shared_bias=bias, activation=activation,
        latent=f.optional_integer("moe_latent_size") or 0,
    )  # fmt: skip


def _mamba_of(f: ConfigFields, hidden: int, stated: int | None = None) -> StateSpace:
    """The mixer of Bamba, Granite 4 and Falcon-H1, whose heads share `mamba_expand` hidden widths or a `stated` one."""
    heads, inner = f.integer("mamba_n_heads", default=128), stated
    name = "mamba_d_ssm" if stated else "mamba_expand x hidden_size"
    if inner is None:
        inner = f.integer("mamba_expand", default=2) * hidden
    f.divides("mamba_n_heads", heads, name, inner)
    width = f.values.get("mamba_d_head")
    if width not in (None, "auto", inner // heads):
        must = f"must be auto or {name} / mamba_n_heads, {inner // heads}"
        raise f.error("mamba_d_head", must, width, "correct one of them")
    return StateSpace(
        heads, inner // heads, f.integer("mamba_d_state", default=256), f.integer("mamba_n_groups", default=1),
        f.integer("mamba_d_conv", default=4), f.integer("mamba_chunk_size", default=256),
        f.boolean("mamba_conv_bias", True), f.boolean("mamba_proj_bias", False),
    )  # fmt: skip


def read_bamba(f: ConfigFields, name: str) -> ModelSpec:
    """Bamba: Mamba-2 or, in a few layers, attention, then a gated MLP."""
    core = read_core(f)
    with_attention = set(f.integers("attn_layer_indices") or [])
    bias = f.boolean("attention_bias", False)
    mlp = gated_mlp(f, bias=f.boolean("mlp_bias", False))
    scan = Layer(None, mlp, None, state_space=_mamba_of(f, core.hidden))
    layers = (scan,) * core.num_layers
    if with_attention & set(range(core.num_layers)):
        attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=8, heads=32)
        whole = Layer(attention, mlp, None)
        layers = tuple(whole if i in with_attention else scan for i in range(core.num_layers))
    return rotary_model(f, name, core, layers, max_position=262144)


def read_falcon_h1(f: ConfigFields, name: str) -> ModelSpec:
    """Falcon-H1: attention and Mamba-2 side by side in every layer (arXiv 2507.22448, section 2.1), then a gated MLP;
    constants multiply what they read and write. Raises `UnsupportedError` for a bias of one projection alone."""
    core, bias = read_core(f), f.boolean("attention_bias", False)
    attention = grouped_attention(f, core, qkv_bias=bias, out_bias=bias, kv_heads=8, heads=32)
    inner = f.optional_integer("mamba_d_ssm")
    if "mamba_d_ssm" not in f.values:
        inner = f.integer("mamba_d_ssm", default=1024)
    state = replace(_mamba_of(f, core.hidden, inner), norm=f.boolean("mamba_rms_norm", False))
    if state.bias != f.boolean("projectors_bias", False):
        must = "mamba_proj_bias and projectors_bias must be alike: one projection's bias is not modelled"
        raise f.refused(f"{must}", f"mamba_proj_bias={state.bias}", "set both or none")
    mlp = gated_mlp(f, bias=f.boolean("mlp_bias", False))
    layer = Layer(attention, mlp, None, state_space=state, multiplied=True)
    return rotary_model(f, name, core, layer, max_position=8192)


def read_granitemoehybrid(f: ConfigFields, name: str) -> ModelSpec:
    """Granite 4: attention or Mamba-2, then a shared MLP, and experts beside it if there are any."""
    core = read_core(f)
    spelling = "layer_types" if f.values.get("layer_types") else "layers_block_type"
    kinds = f.words(spelling, ("attention", "full_attention", "mamba", "linear_attention"))
    if kinds is None:
        f.assume("layer_types", "mamba")
        kinds = ["mamba"] * core.num_layers
    f.one_per_layer(spelling, kinds, core.num_layers)
    mlp, moe = _granite_block(f)
    mixers = {_SPELLINGS[kind] for kind in kinds}
    layers: dict[str, Layer] = {}
    if "attention" in mixers:
        bias = f.boolean("attention_bias", False)
        layers["attention"] = Layer(grouped_attention(f, core, qkv_bias=bias, out_bias=bias), mlp, moe)
    if "mamba" in mixers:
        layers["mamba"] = Layer(None, mlp, moe, state_space=_mamba_of(f, core.hidden))
    return rotary_model(f, name, core, tuple(layers[_SPELLINGS[kind]] for kind in kinds), max_position=2048)


def _granite_block(f: ConfigFields) -> tuple[Mlp | None, Moe | None]:
    width = f.integer("shared_intermediate_size", default=1024)
    if not f.integer("num_local_experts", default=8, least=0):
        return Mlp(width, True, False, f.activation("hidden_act", default=Activation.SILU)), None
    moe = read_moe(f, experts=("num_local_experts",), default=(8, 2), shared_ffn=width)
    return None, moe


def read_mamba2(f: ConfigFields, name: str) -> ModelSpec:
    """Mamba-2: nothing but mixers, each after a norm."""
    core = read_core(f)
    heads, width = f.integer("num_heads", default=128), f.integer("head_dim", default=64)
    inner = f.integer("expand", default=2) * core.hidden
    if heads * width != inner:
        given = f"num_heads={heads}, head_dim={width}, expand x hidden_size={inner}"
        raise f.error(
            "num_heads", "times head_dim must be expand x hidden_size", given, "correct one of them"
        )
    state = StateSpace(
        heads, width, f.integer("state_size", default=128), f.integer("n_groups", default=8),
        f.integer("conv_kernel", default=4), f.integer("chunk_size", default=256),
        f.boolean("use_conv_bias", True), f.boolean("use_bias", False),
    )  # fmt: skip
    layer = Layer(None, None, None, norms=1, state_space=state)
    return rotary_model(f, name, core, layer, max_position=2048)


def _scan_of(
    f: ConfigFields, hidden: int, prefix: str, biases: tuple[str, str], normed: bool
) -> SelectiveScan:
    """A Mamba-1 mixer; `prefix`: of the names of its fields, `biases`: of its convolution and its projections."""
    state, taps, rank = (
        ("mamba_d_state", "mamba_d_conv", "mamba_dt_rank")
        if prefix
        else ("state_size", "conv_kernel", "time_step_rank")
    )
    inner = f.integer(f"{prefix}expand", default=2) * hidden
    if f.values.get(rank) in (None, "auto"):
        f = replace(f, values={**f.values, rank: -(-hidden // 16)})
    return SelectiveScan(
        heads=inner, head_dim=1, state=f.integer(state, default=16), groups=1, conv=f.integer(taps, default=4),
        conv_bias=f.boolean(biases[0], True), bias=f.boolean(biases[1], False), rank=f.integer(rank), normed=normed,
    )  # fmt: skip


def read_mamba(f: ConfigFields, name: str) -> ModelSpec:
    """Mamba and Falcon Mamba, whose norms of time steps, B and C have no weights: nothing but mixers, each after a
    norm."""
    core = read_core(f)
    scan = _scan_of(f, core.hidden, "", ("use_conv_bias", "use_bias"), False)
    layer = Layer(None, None, None, norms=1, state_space=scan)
    return rotary_model(f, name, core, layer, tied=True, max_position=2048)


def read_jamba(f: ConfigFields, name: str) -> ModelSpec:
    """Jamba: Mamba-1 or, in one layer of eight, attention without positions; an MLP, or experts in every second."""
    core = read_core(f)
    scan = _scan_of(f, core.hidden, "mamba_", ("mamba_conv_bias", "mamba_proj_bias"), True)
    attention, moe = grouped_attention(f, core, kv_heads=8), None
    if f.integer("num_experts", "num_local_experts", default=16) > 1:
        moe = read_moe(f, experts=("num_experts", "num_local_experts"), default=(16, 2))
    mlp = gated_mlp(f)
    attends = _periodic(f, "attn_layer", core.num_layers, 8, 4)
    routes = _periodic(f, "expert_layer", core.num_layers, 2, 1)
    layers = tuple(
        Layer(
            attention if attends[i] else None,
            None if routes[i] and moe else mlp,
            moe if routes[i] else None,
            state_space=None if attends[i] else scan,
        )
        for i in range(core.num_layers)
    )
    return rotary_model(f, name, core, layers, max_position=262144)


def _periodic(f: ConfigFields, what: str, layers: int, period: int, offset: int) -> list[bool]:
    """Layers of a kind: one of every `period`, from `offset` on."""
    every = f.integer(f"{what}_period", default=period)
    first = f.integer(f"{what}_offset", default=offset, least=0, most=every - 1)
    return [i % every == first for i in range(layers)]
