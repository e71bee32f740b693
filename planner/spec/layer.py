"""What is one block of a model made of? Attention or a state space, an MLP or experts, and the norms around them.

Left out: dropout and initialisation, which change neither parameters, FLOPs nor bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from planner.spec.attention import Attention
from planner.spec.dimensions import (
    require,
    require_not_negative,
    require_positive,
)
from planner.spec.mixers import StateSpace
from planner.spec.residual import Residual


class NormKind(StrEnum):
    """What the hidden-wide norms compute."""

    RMS = "rms"
    LAYER = "layer"


class Activation(StrEnum):
    """The nonlinearity of an MLP; gated ones multiply it by a second projection."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    SILU = "silu"
    RELU = "relu"
    RELU2 = "relu2"  # squared ReLU
    XIELU = "xielu"  # has two trained scalars (Apertus)
    SITU = "situ"  # both of its factors saturate (Kimi K3)


@dataclass(frozen=True)
class Mlp:
    """A dense feed-forward block; `gated` ones have two input projections. `cut`: what its gate has of a token below a
    quantile of a normal distribution is set to 0 (Gemma 3n)."""

    ffn: int
    gated: bool
    bias: bool
    activation: Activation
    cut: bool = False

    def __post_init__(self) -> None:
        require_positive("mlp", ffn=self.ffn)
        require(self.gated or not self.cut, "mlp.cut is of a gate", "gated=false")


@dataclass(frozen=True)
class Moe:
    """A mixture of experts.

    `shared_ffn`: total width of the experts that every token visits (0: none). `shared_gate`: a learned
    scalar gate on them. `router_bias`: a trained bias of the router (balance-correction buffers are none).
    `groups`, `top_groups`: experts are chosen within the best `top_groups` of `groups` groups (0: no groups).
    `router_scale`: the router's input and every expert's probability have trained scales (Gemma 4).
    `latent`: width that the routed experts read and write, between two projections from and to the hidden state
    (LatentMoE of Nemotron 3, arXiv 2604.12374); 0: the hidden width itself. `zero_experts`: more experts that compute
    nothing, among which the router chooses its `top_k` too (LongCat-Flash, arXiv 2509.01322, section 2.1).
    `latent_norm`: what the routed experts return together passes a norm before the projection back (Kimi K3).
    `clamped`: gate and up are clamped, and the up offset, before they are multiplied (gpt-oss).
    """

    experts: int
    top_k: int
    expert_ffn: int
    gated: bool
    expert_bias: bool
    shared_ffn: int
    shared_gate: bool
    router_bias: bool
    groups: int = 0
    top_groups: int = 0
    shared_bias: bool = False
    activation: Activation = Activation.SILU
    latent: int = 0
    router_scale: bool = False
    zero_experts: int = 0
    latent_norm: bool = False
    clamped: bool = False

    def __post_init__(self) -> None:
        require_positive("moe", experts=self.experts, top_k=self.top_k, expert_ffn=self.expert_ffn)
        require_not_negative(
            "moe", shared_ffn=self.shared_ffn, groups=self.groups, top_groups=self.top_groups
        )
        require_not_negative("moe", latent=self.latent, zero_experts=self.zero_experts)
        given = f"experts={self.experts}, top_k={self.top_k}"
        require(self.top_k <= self.experts, "moe.top_k must be at most moe.experts", given)
        if self.groups:
            require(
                self.experts % self.groups == 0,
                "moe.groups must divide moe.experts",
                f"groups={self.groups}, experts={self.experts}",
            )
            require(
                self.top_groups <= self.groups,
                "moe.top_groups must be at most moe.groups",
                f"top_groups={self.top_groups}, groups={self.groups}",
            )

    @property
    def choices(self) -> int:
        """Outputs of the router."""
        return self.experts + self.zero_experts

    @property
    def mean_k(self) -> float:
        """Experts that compute for a token, of its `top_k`, where all are chosen alike [1]."""
        whole, rest = divmod(self.top_k * self.experts, self.choices)
        return whole + rest / self.choices if rest else whole

    def width(self, hidden: int) -> int:
        """What a routed expert reads and writes of a token [values]."""
        return self.latent or hidden


@dataclass(frozen=True)
class Layer:
    """One block: attention or a state space (Mamba-2 or a gated delta net), an MLP or a mixture of experts; of either
    pair, one may be all there is. Attention and a state space that are both there read the same normed input and are
    added together (Falcon-H1, arXiv 2507.22448, section 2.1).

    `norms`: how many hidden-wide norms it applies; `norm_weight`: whether they have a learned scale.
    `parallel`: attention and MLP read the same normed input and are added together. `wide`: its linear layers stay in
    16 bits where a recipe computes others in 8 or 4. `multiplied`: constants multiply what attention, state space and
    MLP read and write, and keys, projections and gates between (Falcon-H1's muP). `then`: a second block that follows
    in the same layer, so that no stage, gathering or recomputation divides both (LongCat-Flash). `side`: width of an
    input of the layer's own, made from the token alone, that multiplies a narrow projection behind the MLP (Gemma 4).
    `residual`: how it adds to the stream, where that is not one sum.
    """

    attention: Attention | None
    mlp: Mlp | None
    moe: Moe | None
    norms: int = 2
    norm_bias: bool = False
    parallel: bool = False
    norm_weight: bool = True
    wide: bool = False
    state_space: StateSpace | None = None
    multiplied: bool = False
    then: Layer | None = None
    side: int = 0
    residual: Residual | None = None

    def __post_init__(self) -> None:
        require_not_negative("layer", norms=self.norms, side=self.side)
        chained = self.then is not None and self.then.then is not None
        require(not chained, "a layer must have at most two blocks", "three")
        require(
            self.mlp is None or self.moe is None,
            "a layer must have at most one of mlp and moe",
            f"mlp={self.mlp}, moe={self.moe}",
        )
        require(self.sublayers > 0, "a layer must have something to compute", "nothing")
        if self.residual is not None:
            self.residual.check(self.sublayers)

    @property
    def blocks(self) -> tuple[Layer, ...]:
        """The layer itself, or its two blocks as layers of their own."""
        return (self,) if self.then is None else (replace(self, then=None), self.then)

    def in_format(self, wide: bool) -> Layer:
        """The same layer, `wide` or not."""
        if self.wide == wide:
            return self
        return replace(self, wide=wide, then=None if self.then is None else replace(self.then, wide=wide))

    @property
    def mixes(self) -> bool:
        """Is there attention or a state space, so that tokens see one another?"""
        return self.attention is not None or self.state_space is not None

    @property
    def mixes_twice(self) -> bool:
        """Do attention and a state space stand side by side?"""
        return self.attention is not None and self.state_space is not None

    @property
    def sublayers(self) -> int:
        """Residual branches: 1 or 2."""
        return int(self.mixes) + int(self.mlp is not None or self.moe is not None)
