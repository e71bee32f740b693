"""How is the work divided? One candidate (`ParallelConfig`) and columns of candidates (`ConfigTable`).

A table is a struct of arrays: one int32 array per axis, all of one length. Cost equations read columns;
nothing loops over candidates. A configuration is complete: `dp` and the number of micro-batches follow
from it, the cluster and the job, and are kept as columns so that nobody derives them twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

IntColumn = NDArray[np.int32]
FloatColumn = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Recompute(IntEnum):
    """Which activations are recomputed in the backward pass.

    SELECTIVE recomputes the modules of `recompute_modules` in every layer; FULL keeps only the layer's
    input for `recompute_layers` layers of each stage (Megatron's method "block").
    """

    NONE = 0
    SELECTIVE = 1
    FULL = 2


class ContextKind(IntEnum):
    """How attention sees the other context-parallel ranks' keys and values (Megatron --cp-comm-type)."""

    P2P = 0
    ALL_GATHER = 1
    A2A = 2

    @property
    def label(self) -> str:
        """As `--set cp_kind=` takes it."""
        return self.name.lower().replace("_", "-")


class Schedule(IntEnum):
    """A pipeline schedule."""

    ONE_F_ONE_B = 0
    INTERLEAVED = 1
    GPIPE = 2
    ZB_H1 = 3
    ZB_H2 = 4
    ZB_V = 5
    V_HALF = 6
    V_MIN = 7
    DUALPIPE = 8
    DUALPIPE_V = 9

    @property
    def label(self) -> str:
        """Its name in every text that planner writes or reads."""
        return SCHEDULE_LABELS[self]

    @property
    def placement(self) -> Placement:
        """Which ranks hold which chunks."""
        if self is Schedule.DUALPIPE:
            return Placement.MIRRORED
        return Placement.FOLDED if self in FOLDED_SCHEDULES else Placement.LOOPED

    def runs_chunks(self, v: int) -> bool:
        """Has it an order for v chunks a rank?"""
        if self in FOLDED_SCHEDULES:
            return v == 2
        if self is Schedule.INTERLEAVED:
            return v > 1
        return v == 1 or self in (Schedule.GPIPE, Schedule.ZB_H1)


class Placement(IntEnum):
    """Where the chunks of a pipeline of p ranks lie.

    LOOPED: chunk i on rank i mod p. FOLDED: rank r holds chunks r and 2p - 1 - r. MIRRORED: two copies of the model in
    opposite directions, rank r holds stages r and p - 1 - r, each for half of the micro-batches.
    """

    LOOPED = 0
    FOLDED = 1
    MIRRORED = 2


SCHEDULE_LABELS: Final = (
    "1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev"
)  # fmt: skip
FOLDED_SCHEDULES: Final = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V)


def default_schedule(vpp: int) -> Schedule:
    """The schedule that a number of virtual stages means where nothing else is said."""
    return Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B


def ranks_of_chunks(pp: int, vpp: int, placement: Placement) -> list[int]:
    """The rank of every chunk in pipeline order; MIRRORED chunks also lie on the rank pp - 1 - r."""
    if placement is Placement.FOLDED:
        return [*range(pp), *range(pp - 1, -1, -1)]
    return [chunk % pp for chunk in range(pp * vpp)]


# Bits of `offload`, and what `--set offload=` and reports call their sums.
OFFLOAD_OPTIMIZER: Final = 1
OFFLOAD_PARAMETERS: Final = 2
OFFLOAD_ACTIVATIONS: Final = 4
OFFLOAD_STATES: Final = OFFLOAD_OPTIMIZER | OFFLOAD_PARAMETERS
OFFLOAD_LABELS: Final[dict[str, int]] = {
    "none": 0,
    "optimizer": 1,
    "params": 2,
    "optimizer+params": 3,
    "activations": 4,
    "optimizer+activations": 5,
    "params+activations": 6,
    "optimizer+params+activations": 7,
}

# Megatron-LM's --recompute-modules.
MEGATRON_MODULES: Final = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)
# Bits of `recompute_modules`. "op" is no module: it checkpoints a layer by operations (torchtitan's
# selective_ac_option=op).
RECOMPUTE_MODULES: Final = (*MEGATRON_MODULES, "op")


_CLASSIC: Final = ((), ("core_attn",), ("op",))  # "selective" in the words of Megatron-LM and of torchtitan


def recomputed_modules(mask: int) -> tuple[str, ...]:
    """Modules that `recompute_modules` names."""
    return tuple(name for bit, name in enumerate(RECOMPUTE_MODULES) if mask >> bit & 1)


def selective_text(mask: int) -> str:
    """Selective recomputation in a word: its modules, where it is not what stacks call so (`_CLASSIC`)."""
    names = recomputed_modules(mask)
    return "selective" if names in _CLASSIC else "+".join(names)


class CudaGraphs(IntEnum):
    """What captures CUDA graphs (Megatron-LM --cuda-graph-impl).

    LOCAL is Megatron-Core's own capture of layers or of their modules, TRANSFORMER_ENGINE that of
    `make_graphed_callables`; FULL_ITERATION is one graph of forward and backward passes, the optimizer's step outside.
    """

    NONE = 0
    LOCAL = 1
    TRANSFORMER_ENGINE = 2
    FULL_ITERATION = 3

    @property
    def label(self) -> str:
        """Its name in every text that planner writes or reads."""
        return self.name.lower()


# Bits of `cuda_graph_modules`, named as Megatron-LM's --cuda-graph-modules; without any of them whole layers are
# captured, which is written as its name of old, "full".
CUDA_GRAPH_MODULES: Final = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
WHOLE_LAYER: Final = "full"
FIXED_SHAPES: Final = ("attn", "moe_router", "moe_preprocess")  # of a layer whose experts drop no tokens


def captured_modules(mask: int) -> tuple[str, ...]:
    """Modules of a layer that `cuda_graph_modules` names; none of them: the whole layer."""
    return tuple(name for bit, name in enumerate(CUDA_GRAPH_MODULES) if mask >> bit & 1)


def module_mask(names: Iterable[str]) -> int:
    """The `cuda_graph_modules` of names, which must all be known."""
    return sum(1 << CUDA_GRAPH_MODULES.index(name) for name in set(names))


@dataclass(frozen=True)
class ParallelConfig:
    """One candidate: every axis a whole number, in the users' words.

    `zero` 0 none, 1 optimizer states, 2 and gradients, 3 and parameters sharded over data parallelism.
    `hsdp` is the number of ranks that share one shard (0: all data- and context-parallel ranks).
    `recompute_layers` counts layers per pipeline rank, recompute_layers / vpp of every chunk, and is 0 unless recompute
    is FULL.
    `recompute_modules` is a bit mask over `RECOMPUTE_MODULES`; `offload` a bit mask, see `OFFLOAD_LABELS`;
    `cuda_graph_impl` a `CudaGraphs`, `cuda_graph_modules` a bit mask over `CUDA_GRAPH_MODULES`.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    num_microbatches: int = 1
    sp: int = 0
    zero: int = 0
    hsdp: int = 0
    recompute: int = 0
    recompute_layers: int = 0
    recompute_modules: int = 0
    cp_kind: int = 0
    schedule: int = 0
    offload: int = 0
    cuda_graph_impl: int = 0
    cuda_graph_modules: int = 0

    def in_usual_words(self) -> ParallelConfig:
        """The same configuration with a shard that all dp x cp ranks share written as 0, as files are read."""
        return replace(self, hsdp=0) if self.hsdp == self.dp * self.cp else self

    def describe(self, own: ContextKind = ContextKind.P2P) -> str:
        """The configuration in one line, axes at their neutral value left out; `own`: what context parallelism
        exchanges by unasked, where that is known."""
        parts = [f"tp{self.tp}", f"pp{self.pp}", f"dp{self.dp}"]
        parts += [f"{name}{value}" for name in ("vpp", "cp", "ep") if (value := getattr(self, name)) > 1]
        exchange = ContextKind(self.cp_kind) or own
        if self.cp > 1 and exchange is not ContextKind.P2P:
            parts.append(f"cp:{exchange.label}")
        if self.etp > 1:
            parts.append(f"etp{self.etp}")
        parts += [f"mbs{self.micro_batch}", f"zero{self.zero}"]
        if self.hsdp:
            parts.append(f"hsdp{self.hsdp}")
        if self.sp:
            parts.append("sp")
        if self.schedule not in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):  # those follow from vpp
            parts.append(Schedule(self.schedule).label)
        if self.recompute == Recompute.SELECTIVE:
            parts.append(f"recompute:{selective_text(self.recompute_modules)}")
        if self.recompute == Recompute.FULL:
            parts.append(f"recompute:{layers_text(self.recompute_layers)}")
        if self.offload:
            parts.append(f"offload:{offload_text(self.offload)}")
        if self.cuda_graph_impl or self.cuda_graph_modules:
            parts.append(f"graphs:{graphs_text(self)}")
        return " ".join(parts)


def layers_text(count: int) -> str:
    """So many layers, in words."""
    return f"{count} layer" + "s" * (count != 1)


def offload_text(offload: int) -> str:
    """What is on the host, as `--set offload=` takes it."""
    return next((name for name, bits in OFFLOAD_LABELS.items() if bits == offload), str(offload))


def graphs_text(config: ParallelConfig) -> str:
    """Which CUDA graphs are captured, of which modules where not of all."""
    impl = CudaGraphs(config.cuda_graph_impl).label
    return "+".join((impl, *captured_modules(config.cuda_graph_modules)))


# axes whose values are codes; files and texts name them
CODED: Final = (
    "recompute", "recompute_modules", "cp_kind", "schedule", "offload", "cuda_graph_impl", "cuda_graph_modules",
)  # fmt: skip


def value_text(axis: str, value: int) -> str:
    """A value of an axis as `--set` takes it."""
    if axis == "recompute":
        return Recompute(value).name.lower()
    if axis == "recompute_modules":
        return "+".join(recomputed_modules(value)) or "none"
    if axis == "offload":
        return offload_text(value)
    if axis == "cuda_graph_impl":
        return CudaGraphs(value).label
    if axis == "cp_kind":
        return ContextKind(value).label
    if axis == "cuda_graph_modules":
        return "+".join(captured_modules(value)) or WHOLE_LAYER
    return SCHEDULE_LABELS[value] if axis == "schedule" else str(value)


def named_value(axis: str, value: int) -> int | str:
    """The same as files hold it: a number where it is one."""
    return value_text(axis, value) if axis in CODED else value


COUNTED_RANGE: Final = (
    2**22
)  # codes up to here are numbered by counting (32 MB of scratch), wider ones by sorting

WIDEST_CODE: Final = 2**62  # what a code of 64 bits holds

AXES: Final[tuple[str, ...]] = tuple(field.name for field in fields(ParallelConfig))


@dataclass(frozen=True)
class ConfigTable:
    """Candidates as columns. `columns[axis]` is an int32 array of length `len(table)`."""

    columns: Mapping[str, IntColumn]

    @classmethod
    def of(cls, configs: Sequence[ParallelConfig]) -> ConfigTable:
        """A table with one row per configuration."""
        return cls({a: np.array([getattr(c, a) for c in configs], dtype=np.int32) for a in AXES})

    @classmethod
    def joined(cls, parts: Sequence[ConfigTable]) -> ConfigTable:
        """The rows of one or more tables, one after another."""
        return cls({axis: np.concatenate([part[axis] for part in parts]) for axis in AXES})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, axis: str) -> IntColumn:
        return self.columns[axis]

    def take(self, rows: NDArray[np.intp] | Mask | slice) -> ConfigTable:
        """The table of the chosen rows."""
        return ConfigTable({axis: column[rows] for axis, column in self.columns.items()})

    def row(self, index: int) -> ParallelConfig:
        """One row as a configuration."""
        return ParallelConfig(**{axis: int(column[index]) for axis, column in self.columns.items()})


def _number_densely(code: NDArray[np.int64], span: int) -> tuple[NDArray[np.int64], int]:
    """Renumber codes in [0, span) without gaps, by counting."""
    present = np.zeros(span, dtype=np.bool_)
    present[code] = True
    codes = np.flatnonzero(present)
    number = np.empty(span, dtype=np.int64)
    number[codes] = np.arange(len(codes))
    return number[code], len(codes)


def distinct(*columns: NDArray[np.signedinteger[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows that are the first of their kind, and for every row the number of its kind.

    `columns` are equally long integer arrays. Returns (`first`, `inverse`): `first[j]` is a row index,
    and row i equals row `first[inverse[i]]` in all columns. Small ranges are numbered by counting, which
    is linear; wide ones fall back to sorting.
    """
    length = len(columns[0])
    if length < 2:
        return np.zeros(length, dtype=np.intp), np.zeros(length, dtype=np.intp)
    # a wider range of codes is renumbered, so that scratch memory stays small
    sparse = min(max(2 * length, 4096), COUNTED_RANGE)
    code = np.zeros(length, dtype=np.int64)
    span = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if high == low:
            continue
        width = high - low + 1
        part = column.astype(np.int64) - low
        if width > 64 and width <= COUNTED_RANGE:
            part, width = _number_densely(part, width)
        elif width > COUNTED_RANGE:
            values, part = np.unique(part, return_inverse=True)
            width = len(values)
        if span * width > sparse and span <= COUNTED_RANGE:
            code, span = _number_densely(code, span)
        if span * width > WIDEST_CODE:
            values, code = np.unique(code, return_inverse=True)
            span = len(values)
        code *= width
        code += part
        span *= width
    if span > COUNTED_RANGE:
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    code, span = _number_densely(code, span)
    first = np.empty(span, dtype=np.intp)
    first[code[::-1]] = np.arange(length - 1, -1, -1)
    return first, code
