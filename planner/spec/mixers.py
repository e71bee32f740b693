"""What stands in a layer in place of attention? State spaces, delta rules, linear attention, short convolutions.

Their fields are those of a Mamba-2 mixer, which the others reuse. A new one is a dataclass here, named in `MIXERS`.
Left out: time and memory (`cost/operations/`, a module named as `kind`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from planner.spec.dimensions import require, require_not_negative, require_not_too_large, require_positive


@dataclass(frozen=True)
class StateSpace:
    """A Mamba-2 mixer: Dao and Gu 2024, arXiv 2405.21060.

    `state`: width of a head's state (N). `groups`: heads of a group share B and C. `conv`: taps of the causal
    convolution over x, B and C. `chunk`: tokens that the scan works on as one block. `bias`: of both projections.
    `norm`: the gated output passes a norm before the last projection.

    `kind`: of its parameters, and its module in `cost/operations`. `packages`: those whose kernels transformers runs.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int = 4
    chunk: int = 256
    conv_bias: bool = True
    bias: bool = False
    norm: bool = True
    kind: ClassVar[str] = "state_space"
    packages: ClassVar[tuple[str, ...]] = ("mamba-ssm", "causal-conv1d")

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("heads", "head_dim", "state", "groups", "chunk")}
        require_positive("state_space", **sizes)
        require_not_negative("state_space", conv=self.conv)
        require_not_too_large("state_space.heads x head_dim", self.heads * self.head_dim)
        given = f"heads={self.heads}, groups={self.groups}"
        require(self.heads % self.groups == 0, "state_space.groups must divide state_space.heads", given)

    @property
    def title(self) -> str:
        """What such layers are called."""
        return "state spaces"

    @property
    def inner(self) -> int:
        """Width of x, of its gate and of the scan's output."""
        return self.heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def scalars(self) -> int:
        """Numbers a token for every head: its time step."""
        return 1

    @property
    def in_width(self) -> int:
        """Outputs of the input projections: the gate, x, B, C and every head's scalars."""
        return self.inner + self.conv_width + self.scalars * self.heads

    @property
    def ranked_width(self) -> int:
        """Those of them that come through a product of low rank; 0 without one."""
        return 0


@dataclass(frozen=True)
class DeltaNet(StateSpace):
    """A gated delta net: Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464; or Kimi Delta Attention, arXiv 2510.26692.

    In a state space's fields: `heads` of values, `head_dim` wide; `groups`: heads of queries and keys, which are
    `state` wide and which `heads` / `groups` heads of values share. The convolution runs over queries, keys and values.
    `channel_decay`: every channel of a key decays by itself, not every head (Kimi Delta Attention). `gate_rank`: width
    through which the decays and the output's gate are projected, each by itself; 0: straight from the hidden state.
    `whole_gate`: the output's gate is projected straight, the decays alone through `gate_rank` (Kimi K3).
    """

    chunk: int = 64
    conv_bias: bool = False
    channel_decay: bool = False
    gate_rank: int = 0
    whole_gate: bool = False
    kind: ClassVar[str] = "delta_net"
    packages: ClassVar[tuple[str, ...]] = ("flash-linear-attention", "causal-conv1d")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative("state_space", gate_rank=self.gate_rank)

    @property
    def title(self) -> str:
        if not self.channel_decay:
            return "gated delta nets"
        return "Kimi Delta Attention with a whole gate" if self.whole_gate else "Kimi Delta Attention"

    @property
    def scalars(self) -> int:
        """Numbers a token for every head: how fast the state or its channels decay, and how much is written."""
        return 1 + (self.state if self.channel_decay else 1)

    @property
    def ranked_width(self) -> int:
        gate = 0 if self.whole_gate else self.inner
        return gate + (self.scalars - 1) * self.heads if self.gate_rank else 0

    @property
    def ranks(self) -> int:
        """Outputs of the products down to a low rank."""
        return self.gate_rank * (1 if self.whole_gate else 2)


@dataclass(frozen=True)
class LightningAttention(StateSpace):
    """Linear attention in blocks whose heads decay by a fixed rate: Qin et al. 2024, arXiv 2405.17381.

    In a state space's fields: `heads` of queries, keys and values, all `head_dim` wide; `chunk`: tokens of a block. It
    has no convolution, and an output gate as wide as the heads.
    """

    conv: int = 0
    conv_bias: bool = False
    kind: ClassVar[str] = "lightning_attention"
    packages: ClassVar[tuple[str, ...]] = ()

    @property
    def title(self) -> str:
        return "lightning attention"

    @property
    def scalars(self) -> int:
        return 0


@dataclass(frozen=True)
class ShortConvolution(StateSpace):
    """A convolution over a few tokens between two gates: LFM2, arXiv 2511.23404, section 2.

    In a state space's fields: one head as wide as its channels, which has no state; `conv`: taps.
    """

    conv: int = 3
    conv_bias: bool = False
    kind: ClassVar[str] = "short_convolution"
    packages: ClassVar[tuple[str, ...]] = ("causal-conv1d",)

    @property
    def title(self) -> str:
        return "short convolutions"

    @property
    def conv_width(self) -> int:
        return self.inner

    @property
    def scalars(self) -> int:
        return 0

    @property
    def in_width(self) -> int:
        """Outputs of the input projection: both gates and what they multiply."""
        return 3 * self.inner


@dataclass(frozen=True)
class SelectiveScan(StateSpace):
    """A Mamba-1 mixer: Gu and Dao 2023, arXiv 2312.00752.

    In a state space's fields: as many heads as channels, each one value wide, whose decays, one for every state, are
    weights. `rank`: width through which their time steps are projected; `normed`: they, B and C pass norms with weights
    (Jamba). The convolution runs over the channels alone.
    """

    norm: bool = False
    rank: int = 1
    normed: bool = False
    kind: ClassVar[str] = "selective_scan"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("state_space", rank=self.rank)

    @property
    def title(self) -> str:
        return "selective scans"

    @property
    def conv_width(self) -> int:
        return self.inner

    @property
    def scalars(self) -> int:
        return 0

    @property
    def in_width(self) -> int:
        """Outputs of the input projection: the gate and what is scanned."""
        return 2 * self.inner


MIXERS: Final[tuple[type[StateSpace], ...]] = (
    StateSpace,
    DeltaNet,
    LightningAttention,
    ShortConvolution,
    SelectiveScan,
)
