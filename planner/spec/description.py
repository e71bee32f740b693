"""Which model does a description by hand stand for? For architectures without a `config.json`.

    layers: 80            hidden: 8192
    ffn: 28672            # width of the dense MLP; not needed if all layers have experts
    heads: 64             kv_heads: 8          head_dim: 128     # default: heads; hidden / heads
    vocab: 128256         tied_embeddings: false
    gated_mlp: true       attention: gqa       # mha, gqa or mla
    moe: {experts: 8, top_k: 2, expert_ffn: 14336, shared_ffn: 0, first_dense_layers: 0, moe_every: 1}
    mla: {q_lora_rank: 1536, kv_lora_rank: 512, qk_nope: 128, qk_rope: 64, v: 128}
    mamba: {heads: 64, head_dim: 64, state: 128, groups: 8, conv: 4, chunk: 128}     # with hybrid_pattern
    hybrid_pattern: "MEMEM*E"   # a letter for every layer: M Mamba-2, * attention, - MLP, E experts, one norm each

Optional: norm (rms, layer), bias (all linear layers), qk_norm (none, head, full), positions (rows of a
learned position table), context, window. What is not stated follows one of two styles: a gated MLP goes with
RMS norms and no biases (Llama), a plain one with layer norms, biases and 2048 learned positions (GPT); a hybrid, gated
or not, has RMS norms and neither (Nemotron-H).
Left out: layers that differ in anything but these letters, or in a dense or expert MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.errors import FileInputError, InputError, UnsupportedError, field_given, field_must
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.dimensions import LARGEST, MOST_LAYERS
from planner.spec.findings import Finding, finding
from planner.spec.layer import Activation, Layer, Mlp, Moe, NormKind
from planner.spec.mixers import StateSpace
from planner.spec.model import ModelSpec

T = TypeVar("T")
GPT_POSITIONS = 2048


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MoeDescription(_Strict):
    """Experts: `moe_every` n puts them into layers n, 2n, ... (from 1) after the leading dense ones; `latent`: the
    width that routed experts work in, where it is not the hidden one."""

    experts: int = Field(gt=0, le=LARGEST)
    top_k: int = Field(gt=0, le=LARGEST)
    expert_ffn: int = Field(gt=0, le=LARGEST)
    shared_ffn: int | None = Field(default=None, ge=0, le=LARGEST)
    first_dense_layers: int | None = Field(default=None, ge=0, le=LARGEST)
    moe_every: int | None = Field(default=None, gt=0, le=LARGEST)
    latent: int | None = Field(default=None, ge=0, le=LARGEST)


class MlaDescription(_Strict):
    """Multi-head latent attention; no `q_lora_rank` means an uncompressed query."""

    q_lora_rank: int | None = Field(default=None, ge=0, le=LARGEST)
    kv_lora_rank: int = Field(gt=0, le=LARGEST)
    qk_nope: int = Field(gt=0, le=LARGEST)
    qk_rope: int = Field(ge=0, le=LARGEST)
    v: int = Field(gt=0, le=LARGEST)


class MambaDescription(_Strict):
    """Mamba-2; `conv` and `chunk` as Nemotron-H has them where they are not stated."""

    heads: int = Field(gt=0, le=LARGEST)
    head_dim: int = Field(gt=0, le=LARGEST)
    state: int = Field(gt=0, le=LARGEST)
    groups: int = Field(gt=0, le=LARGEST)
    conv: int = Field(default=4, gt=0, le=LARGEST)
    chunk: int = Field(default=128, gt=0, le=LARGEST)


class ModelDescription(_Strict):
    """An architecture by its dimensions; null means not stated."""

    layers: int = Field(gt=0, le=MOST_LAYERS)
    hidden: int = Field(gt=0, le=LARGEST)
    heads: int = Field(gt=0, le=LARGEST)
    vocab: int = Field(gt=0, le=LARGEST)
    ffn: int | None = Field(default=None, gt=0, le=LARGEST)
    kv_heads: int | None = Field(default=None, gt=0, le=LARGEST)
    head_dim: int | None = Field(default=None, gt=0, le=LARGEST)
    tied_embeddings: bool | None = None
    gated_mlp: bool | None = None
    attention: AttentionKind | None = Field(default=None, strict=False)
    moe: MoeDescription | None = None
    mla: MlaDescription | None = None
    mamba: MambaDescription | None = None
    hybrid_pattern: str | None = Field(
        default=None, min_length=1, max_length=MOST_LAYERS, pattern=r"^[-M*E]+$"
    )
    norm: NormKind | None = Field(default=None, strict=False)
    bias: bool | None = None
    qk_norm: QkNorm = Field(default=QkNorm.NONE, strict=False)
    positions: int | None = Field(default=None, ge=0, le=LARGEST)
    positional: str | None = None
    context: int | None = Field(default=None, gt=0, le=LARGEST)
    window: int | None = Field(default=None, gt=0, le=LARGEST)
    hf_id: str | None = None
    name: str | None = None
    params_total_b: float | None = Field(default=None, strict=False)
    params_active_b: float | None = Field(default=None, strict=False)
    source: str | None = None


def spec_from_description(
    description: Mapping[str, Any], name: str, file: str = "", assumed: Sequence[Finding] = ()
) -> ModelSpec:
    """The model that a description by hand stands for.

    `assumed`: what whoever made the description of other words already filled in or dropped. Raises
    `UnsupportedError` for unstated dimensions or hybrids of other than Mamba-2, `FileInputError` for a field
    that is wrong or contradicts another.
    """
    where = file or name
    fields = {str(key): value for key, value in description.items()}
    _refuse_unsupported(fields, name)
    if fields.get("hybrid_pattern") and isinstance(fields.get("attention"), str):
        fields["attention"] = fields["attention"].partition(" (")[0]  # a remark such as "gqa (hybrid mamba2)"
    try:
        parsed = ModelDescription.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        hint = f"known fields: {', '.join(ModelDescription.model_fields)}"
        raise FileInputError(where, field_must(first), field_given(first), hint, field=field) from error
    try:
        return _Builder(parsed, list(assumed)).build(name)
    except FileInputError:
        raise
    except InputError as error:
        raise FileInputError(where, error.must, error.given, error.hint) from error


def _refuse_unsupported(fields: Mapping[str, Any], name: str) -> None:
    kind = str(fields.get("attention") or "")
    described = fields.get("mamba") and fields.get("hybrid_pattern")
    if not described and (
        "hybrid" in kind or "mamba" in kind or fields.get("mamba") or fields.get("hybrid_pattern")
    ):
        raise UnsupportedError(
            f"{name}: a hybrid must state its layers",
            f"attention {kind!r}, mamba {fields.get('mamba')!r}, hybrid_pattern {fields.get('hybrid_pattern')!r}",
            "state mamba and hybrid_pattern; of state spaces planner models Mamba-2",
        )
    for required in ("layers", "hidden", "heads", "vocab"):
        if fields.get(required) is None:
            reason = f" ({source})" if (source := fields.get("source")) else ""
            raise UnsupportedError(
                f"{name}: the architecture must be described",
                f"{required} is not stated{reason}",
                f"add `{required}` (check the spelling of the keys)",
            )


class _Builder:
    """Fills in what a description leaves out, and notes it."""

    def __init__(self, d: ModelDescription, assumed: list[Finding]) -> None:
        self.d, self.assumed = d, assumed
        self.gated = self._default("gated_mlp", d.gated_mlp, True)
        self.like_gpt = not self.gated and d.hybrid_pattern is None
        self.bias = self._default("bias", d.bias, self.like_gpt)
        self.norm = self._default("norm", d.norm, NormKind.LAYER if self.like_gpt else NormKind.RMS)
        plain = Activation.GELU if self.like_gpt else Activation.RELU2
        self.activation = Activation.SILU if self.gated else plain

    def _default(self, field: str, value: T | None, default: T) -> T:
        if value is not None:
            return value
        self.assumed.append(finding("default_field", field=field, value=str(default)))
        return default

    def build(self, name: str) -> ModelSpec:
        d = self.d
        positions = self._positions()
        return ModelSpec(
            name=name,
            family="described",
            hidden=d.hidden,
            vocab=d.vocab,
            layers=self._layers() if d.hybrid_pattern is None else self._hybrid_layers(d.hybrid_pattern),
            tied_embeddings=self._default("tied_embeddings", d.tied_embeddings, False),
            position_rows=positions,
            norm_kind=self.norm,
            norm_bias=self.norm is NormKind.LAYER and self.bias,
            max_position=d.context or positions,
            source=d.source or "described by hand",
            assumed=tuple(self.assumed),
        )

    def _positions(self) -> int:
        if self.d.positions is not None:
            return self.d.positions
        learned = self.like_gpt if self.d.positional is None else self.d.positional == "learned"
        return self._default("positions", None, GPT_POSITIONS if learned else 0)

    def _attention(self) -> Attention:
        d = self.d
        if d.mla is not None or d.attention is AttentionKind.MLA:
            return self._latent_attention()
        kv_heads = self._default("kv_heads", d.kv_heads, d.heads)
        if d.head_dim is None and d.hidden % d.heads:
            raise InputError(
                "heads must divide hidden", f"hidden={d.hidden}, heads={d.heads}", "state head_dim"
            )
        width = self._default("head_dim", d.head_dim, d.hidden // d.heads)
        kind = AttentionKind.MHA if kv_heads == d.heads else AttentionKind.GQA
        return Attention(
            kind, d.heads, kv_heads, width, width, 0, 0, 0, self.bias, self.bias, d.qk_norm, window=d.window
        )

    def _latent_attention(self) -> Attention:
        d = self.d
        if d.mla is None:
            raise InputError(
                "mla must be described where attention is mla", "mla: null", "add the mla dimensions"
            )
        return Attention(
            AttentionKind.MLA,
            d.heads,
            d.heads,
            d.mla.qk_nope + d.mla.qk_rope,
            d.mla.v,
            q_lora_rank=d.mla.q_lora_rank or 0,
            kv_lora_rank=d.mla.kv_lora_rank,
            qk_rope_dim=d.mla.qk_rope,
            qkv_bias=self.bias,
            out_bias=self.bias,
            window=d.window,
        )

    def _layers(self) -> tuple[Layer, ...]:
        d, attention = self.d, self._attention()
        norm_bias = self.norm is NormKind.LAYER and self.bias
        sparse = [False] * d.layers
        moe = None
        if d.moe is not None:
            first, every = d.moe.first_dense_layers or 0, d.moe.moe_every or 1
            sparse = [i >= first and (i + 1) % every == 0 for i in range(d.layers)]
            moe = self._moe(d.moe)
        mlp = None
        if not all(sparse):
            if d.ffn is None:
                raise InputError("ffn must be stated where a layer has a dense MLP", "ffn: null", "state ffn")
            mlp = Mlp(d.ffn, self.gated, self.bias, self.activation)
        dense_layer = None if mlp is None else Layer(attention, mlp, None, norm_bias=norm_bias)
        moe_layer = None if moe is None else Layer(attention, None, moe, norm_bias=norm_bias)
        picked = (moe_layer if is_sparse else dense_layer for is_sparse in sparse)
        return tuple(layer for layer in picked if layer is not None)

    def _hybrid_layers(self, pattern: str) -> tuple[Layer, ...]:
        d = self.d
        if len(pattern) != d.layers:
            given = f"{len(pattern)} letters, layers={d.layers}"
            raise InputError(
                "hybrid_pattern must have a letter for every layer", given, "correct one of them"
            )
        needed = {"M": ("mamba", d.mamba), "E": ("moe", d.moe), "-": ("ffn", d.ffn)}
        for letter, (field, value) in needed.items():
            if letter in pattern and value is None:
                must = f"{field} must be stated where hybrid_pattern has {letter}"
                raise InputError(must, f"{field}: null", f"state {field}")
        norm_bias = self.norm is NormKind.LAYER and self.bias
        bare = Layer(None, None, None, 1, norm_bias, state_space=self._state_space()) if d.mamba else None
        kinds = {"M": bare}
        if "*" in pattern:
            kinds["*"] = Layer(self._attention(), None, None, 1, norm_bias)
        if "-" in pattern and d.ffn is not None:
            kinds["-"] = Layer(None, Mlp(d.ffn, self.gated, self.bias, self.activation), None, 1, norm_bias)
        if "E" in pattern and d.moe is not None:
            kinds["E"] = Layer(None, None, self._moe(d.moe), 1, norm_bias)
        return tuple(layer for letter in pattern if (layer := kinds[letter]) is not None)

    def _state_space(self) -> StateSpace:
        m = self.d.mamba
        assert m is not None, "a pattern has it"
        return StateSpace(m.heads, m.head_dim, m.state, m.groups, m.conv, m.chunk, bias=self.bias)

    def _moe(self, m: MoeDescription) -> Moe:
        return Moe(
            m.experts,
            m.top_k,
            m.expert_ffn,
            self.gated,
            expert_bias=self.bias,
            shared_ffn=m.shared_ffn or 0,
            shared_gate=False,
            router_bias=False,
            shared_bias=self.bias and bool(m.shared_ffn),
            activation=self.activation,
            latent=m.latent or 0,
        )
