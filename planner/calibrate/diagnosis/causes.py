"""What could make a step slower than predicted? Each cause as a changed problem, with what betrays it.

A cause is tried at a few severities; its prediction is the cost model's own for the changed problem, or a stretch of
the step where the model has no such term. Left out: which cause it is (`diagnose.py`), and what it
is called, how it is looked for and what cures it (`planner.report.words.causes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from planner.calibrate.correction.estimate import Observation
from planner.calibrate.predict import predicted_cost
from planner.spec.config import Recompute
from planner.spec.machine.architecture import Architecture
from planner.spec.overlay import multiplied
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel

Changed = Callable[[Observation, float], Observation | None]


@dataclass(frozen=True)
class Cause:
    """One cause.

    `prior`: how often it is met, relative to the others: set by hand, those of dispatcher and imbalance so that the
    thread on Mixtral of benchmarks/RESULTS.md comes out, which is no test of them. `severities`: what is tried, in the
    cause's own unit; `change`: the run under it, None where it cannot be; `stretch`: factor on the step where nothing
    else changes; `reported`: factor on the FLOP rate or MFU that a log reports; `marks`, `against`: words of the log
    that speak for it, and against; `alone`: it is never one of two."""

    name: str
    prior: float
    severities: tuple[float, ...]
    change: Changed = lambda seen, severity: seen
    stretch: bool = False
    reported: bool = False
    marks: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    alone: bool = False
    needs: Callable[[Observation], bool] = field(default=lambda seen: True)


def _with_stack(seen: Observation, stack: Stack) -> Observation:
    return replace(seen, problem=replace(seen.problem, stack=stack))


def _links(seen: Observation, **factors: float) -> Observation:
    cluster = seen.problem.cluster
    links = replace(cluster.links, **{n: getattr(cluster.links, n) * f for n, f in factors.items()})
    return replace(seen, problem=replace(seen.problem, cluster=replace(cluster, links=links)))


def _no_overlap(seen: Observation, severity: float) -> Observation | None:
    comm = seen.problem.stack.communication.model_copy(update={"dp_overlap": 0.0, "ep_overlap": 0.0})
    return _with_stack(seen, seen.problem.stack.model_copy(update={"communication": comm}))


def _host_bound(seen: Observation, times: float) -> Observation | None:
    stack = seen.problem.stack
    for name in ("layer_floor", "layer_floor_tp"):
        stack = multiplied(stack, f"host.{name}", times)
    return _with_stack(seen, stack)


def _recompute(seen: Observation, severity: float) -> Observation | None:
    config = seen.config
    layers = -(-seen.problem.model.num_layers // config.pp)
    if config.recompute == Recompute.FULL and config.recompute_layers >= layers:
        return None
    return replace(
        seen,
        config=replace(config, recompute=int(Recompute.FULL), recompute_layers=layers, recompute_modules=0),
    )


def _slow_attention(seen: Observation, severity: float) -> Observation | None:
    kernels = seen.problem.stack.kernels
    if not kernels.attention.tiled:
        return None
    eager = kernels.model_copy(update={"attention": AttentionKernel.EAGER})
    return _with_stack(seen, seen.problem.stack.model_copy(update={"kernels": eager}))


def _dispatcher(seen: Observation, times: float) -> Observation | None:
    """An all-gather dispatcher moves every token to every expert rank; without grouped GEMM experts run one by one."""
    stack, moe = seen.problem.stack, next((k.moe for k in seen.problem.model.blocks if k.moe), None)
    if moe is None:
        return None
    copies = max(seen.config.ep / moe.top_k, 1.0) if seen.config.ep > 1 else 1.0
    stack = multiplied(stack, "communication.ep_exposed", times * copies)
    return _with_stack(seen, multiplied(stack, "host.moe_layer_floor", times))


def _imbalance(seen: Observation, times: float) -> Observation | None:
    if not seen.problem.model.is_moe or seen.config.ep < 2:
        return None
    return replace(seen, problem=replace(seen.problem, job=replace(seen.problem.job, expert_imbalance=times)))


def _full_precision(seen: Observation, severity: float) -> Observation | None:
    chip = seen.problem.cluster.accelerator
    usual = max((rate for dtype, rate in chip.peak if str(dtype) in ("bf16", "fp16")), default=0.0)
    plain = _FP32.get(str(chip.architecture))
    if not usual or not plain:
        return None
    stack = multiplied(seen.problem.stack, "compute.gemm", min(usual / plain, 90.0))
    return _with_stack(seen, stack)


# dense fp32 outside the tensor cores [FLOP/s]: A100, H100 and T4 datasheets (19.5, 67 and 8.1 TFLOP/s), from memory
_FP32: Final = {"ampere": 19.5e12, "hopper": 67e12, "blackwell": 75e12, "volta": 15.7e12, "turing": 8.1e12}


def _offload(seen: Observation, what: float) -> Observation | None:
    """States, then weights too, live in CPU memory, as a ZeRO configuration that is passed on may ask for."""
    if seen.config.offload or int(what) not in seen.problem.stack.limits.offload:
        return None
    return replace(seen, config=replace(seen.config, offload=int(what)))


def _several_nodes(seen: Observation) -> bool:
    return seen.problem.cluster.num_nodes > 1


def _nearly_full(seen: Observation) -> bool:
    """Whether a run's memory comes close to the device's, within the error of its prediction."""
    device = seen.problem.cluster.accelerator.memory
    return predicted_cost(seen.problem, seen.config).device > _FULL * device / (
        1 + seen.problem.stack.overhead.error
    )


def _moe(seen: Observation) -> bool:
    return seen.problem.model.is_moe


_FULL: Final = 0.9  # of the device: above it the allocator may have to start over

UNLISTED: Final = "unlisted"
SLOW_DATA: Final = "batch-generator slow"  # said of a log whose own timer shows it
CAUSES: Final[tuple[Cause, ...]] = (
    Cause("peak", 1.0, (0.5, 0.75, 4 / 3), reported=True),
    Cause(
        "fabric",
        1.0,
        (0.5, 0.25, 0.1, 0.05, 0.025),
        lambda seen, share: _links(seen, fabric_bandwidth=share),
        marks=("net/socket", "using network socket"),
        against=("using network ib", "net/ib"),
        needs=_several_nodes,
    ),
    Cause(
        "network",
        0.4,
        (30.0, 300.0, 3000.0),
        lambda seen, times: _links(seen, fabric_latency=times),
        needs=_several_nodes,
    ),
    Cause(
        "nvlink",
        0.3,
        (0.5, 0.2, 0.06),
        lambda seen, share: _links(seen, scale_up_bandwidth=share),
        marks=("p2p is disabled", "nccl_p2p_disable=1"),
        needs=lambda seen: seen.problem.cluster.num_devices > 1,
    ),
    Cause(
        "overlap",
        0.8,
        (1.0,),
        _no_overlap,
        marks=("overlap_grad_reduce=false",),
        against=("overlap_grad_reduce=true",),
        needs=lambda seen: seen.problem.cluster.num_devices > 1,
    ),
    Cause("host", 0.8, (1.5, 3.0, 6.0, 12.0), _host_bound),
    Cause(
        "recompute",
        0.8,
        (1.0,),
        _recompute,
        marks=("recompute_granularity=full",),
        against=("recompute_granularity=none",),
    ),
    Cause(
        "dispatcher",
        2.2,
        (1.5, 2.0, 3.0, 6.0),
        _dispatcher,
        marks=("moe_token_dispatcher_type=allgather", "moe_grouped_gemm=false"),
        against=("moe_grouped_gemm=true",),
        needs=_moe,
    ),
    Cause("imbalance", 2.0, (1.5, 2.0, 3.0), _imbalance, needs=_moe),
    Cause("attention", 0.2, (1.0,), _slow_attention, marks=("use_flash_attn=false",)),
    Cause(
        "precision", 0.2, (1.0,), _full_precision, marks=("using torch.float32 for parameters", "bf16=false")
    ),
    Cause("padding", 0.2, (1.2, 1.5, 2.0), stretch=True),
    Cause("stragglers", 0.2, (1.1, 1.25, 1.5), stretch=True, marks=("straggler",)),
    Cause(
        "thrash",
        0.3,
        (1.2, 1.6, 2.5),
        stretch=True,
        marks=("alloc_retries", "cache flushes", "flushing"),
        needs=_nearly_full,
    ),
    Cause("offload", 0.2, (1.0, 3.0), _offload, marks=("cpuadam",)),
    Cause("data", 0.02, (1.2, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0), stretch=True, marks=(SLOW_DATA,)),
    # whatever is not in this list: as probable for every factor, in logarithms
    Cause(UNLISTED, 0.25, tuple(1.1 * 300 ** (i / 39) for i in range(40)), stretch=True, alone=True),
)
# XLA lays out a program's memory before it runs, and its host launches no kernels
_NOT_COMPILED: Final = ("host", "thrash")
_BETWEEN: Final = ("fabric", "network")


@lru_cache(maxsize=len(Architecture))
def causes_on(architecture: Architecture) -> tuple[Cause, ...]:
    """The causes that a device can have."""
    found = CAUSES
    if architecture.is_compiled_for:
        found = tuple(cause for cause in found if cause.name not in _NOT_COMPILED)
    if architecture is not Architecture.TPU:
        return found
    # hosts of one slice are joined by its links
    return tuple(
        replace(c, needs=lambda seen: len(seen.problem.cluster.tiers) > 1) if c.name in _BETWEEN else c
        for c in found
    )
