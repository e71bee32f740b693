"""What do the readers of mixtures share? Routed and shared experts from their fields, and which layers hold them.

Left out: auxiliary losses, capacities, and balance-correction buffers, which the optimizer does not train.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec.attention import Attention
from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.parts import gated_mlp, with_window
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.model import ModelSpec

Block = tuple[Mlp | None, Moe | None]


# fields of the numbers of routed and shared experts
ROUTED = ("n_routed_experts", "n_shared_experts")


NUMBERED = ("num_experts", "num_shared_experts")
# those, and what they are in files of a publisher who numbers them so
PUBLISHED_EXPERTS = dict(zip(ROUTED, NUMBERED, strict=True))


def read_moe(
    f: ConfigFields,
    *,
    experts: tuple[str, ...],
    top_k: tuple[str, ...] = ("num_experts_per_tok",),
    expert_ffn: str = "intermediate_size",
    default: tuple[int, int],
    shared_ffn: int = 0,
    shared_gate: bool = False,
    bias: bool = False,
) -> Moe:
    """A mixture from its field names; `default`: experts, and chosen ones, of which more than experts are refused."""
    count = f.integer(*experts, default=default[0])
    if others := [other for other in experts if f.values.get(other) not in (None, count)]:
        must = f"must be what {f.given(*experts)} is, another name of it"
        raise f.error(others[0], must, f"{f.values[others[0]]} and {count}", "leave one of the two out")
    chosen = f.integer(*top_k, default=default[1])
    check_chosen(f, f.given(*top_k) or top_k[0], chosen, count)
    return Moe(
        experts=count,
        top_k=chosen,
        expert_ffn=f.integer(expert_ffn),
        gated=True,
        expert_bias=bias,
        shared_ffn=shared_ffn,
        shared_gate=shared_gate,
        router_bias=bias,
        activation=f.activation("hidden_act", default=Activation.SILU),
    )


def qwen_experts(
    f: ConfigFields, experts: int, top_k: int, *, shared: int = 0, shared_gate: bool = False
) -> Moe:
    """A mixture under Qwen's names, from its defaults; `shared`: width of the shared expert, 0 without one."""
    return read_moe(
        f,
        experts=("num_experts", "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(experts, top_k),
        shared_ffn=f.integer("shared_expert_intermediate_size", default=shared) if shared else 0,
        shared_gate=shared_gate,
    )


def check_chosen(f: ConfigFields, name: str, chosen: int, experts: int) -> None:
    """Raise `FileInputError` where a token is to visit more experts than there are."""
    if chosen > experts:
        must = f"must be at most the number of experts, {experts}"
        raise f.error(name, must, chosen, "correct one of the two")


def shared_and_routed(
    f: ConfigFields, names: tuple[str, str], *, experts: int, top_k: int, shared: int
) -> Moe:
    """Routed experts of `moe_intermediate_size` and as wide shared ones, `names` of their numbers; a null number of
    shared ones means none."""
    width, (routed, beside) = f.integer("moe_intermediate_size"), names
    stated_null = beside in f.values and f.values[beside] is None
    count = 0 if stated_null else f.integer(beside, default=shared, least=0)
    moe = read_moe(
        f,
        experts=(routed, "num_local_experts"),
        expert_ffn="moe_intermediate_size",
        default=(experts, top_k),
        shared_ffn=count * width,
    )
    return with_groups(f, moe)


def with_groups(f: ConfigFields, moe: Moe) -> Moe:
    """Group-limited routing, where there is more than one group."""
    name = f.given("n_group", "num_expert_group") or "n_group"
    groups = f.optional_integer(name) or 1
    if groups == 1:
        return moe
    experts = f.given("n_routed_experts", "num_local_experts", "num_experts") or "n_routed_experts"
    f.divides(name, groups, experts, moe.experts)
    top_groups = f.integer("topk_group")
    if top_groups > groups:
        raise f.error("topk_group", f"must be at most {name}, {groups}", top_groups, "correct one of the two")
    return replace(moe, groups=groups, top_groups=top_groups)


def sparse_from(f: ConfigFields, num_layers: int, dense: int) -> list[bool]:
    """Which layers hold experts: those that `mlp_layer_types` calls sparse, else all from the `dense`-th on."""
    types = f.words("mlp_layer_types", ("dense", "sparse"))
    if types is None:
        return [i >= dense for i in range(num_layers)]
    f.one_per_layer("mlp_layer_types", types, num_layers)
    return [kind == "sparse" for kind in types]


def sparse_layers(f: ConfigFields, num_layers: int) -> list[bool]:
    """Qwen's rule: every `decoder_sparse_step`-th layer, counted from one, unless in `mlp_only_layers`."""
    step = f.integer("decoder_sparse_step", default=1)
    dense = set(f.integers("mlp_only_layers") or [])
    return [i not in dense and (i + 1) % step == 0 for i in range(num_layers)]


def mixed_layers(
    f: ConfigFields, attention: Attention, moe: Moe, windows: list[int | None], sparse: list[bool]
) -> tuple[Layer, ...]:
    """Sparse and dense layers; the dense width is needed only where a dense layer exists."""
    blocks = zip(windows, blocks_of(f, moe, sparse), strict=True)
    return tuple(Layer(with_window(attention, window), *block) for window, block in blocks)


def blocks_of(f: ConfigFields, moe: Moe, sparse: list[bool], *, bias: bool = False) -> list[Block]:
    """Behind the attention of every layer: experts or an MLP, whose width is needed only where a layer has one."""
    mlp = None if all(sparse) else gated_mlp(f, bias=bias)
    return [(None, moe) if routed else (mlp, None) for routed in sparse]


def with_prediction(f: ConfigFields, model: ModelSpec, with_mtp: bool) -> ModelSpec:
    """The model with its modules of multi-token prediction, where they are asked for."""
    if not with_mtp:
        return model
    return replace(model, mtp_layers=f.integer("num_nextn_predict_layers", default=1, least=0))


def leading_dense(
    f: ConfigFields, count: int, attention: Attention, moe: Moe, every: int = 1
) -> tuple[Layer, ...]:
    """Dense layers up to `first_k_dense_replace`, then experts in one of `every` layers."""
    dense = f.integer("first_k_dense_replace", default=0, least=0)
    sparse = [i >= dense and i % every == 0 for i in range(count)]
    return mixed_layers(f, attention, moe, [None] * count, sparse)
