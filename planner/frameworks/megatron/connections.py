"""Do a launch's hardware queues suit its collectives: CUDA_DEVICE_MAX_CONNECTIONS, on these devices?

Before Blackwell tensor and context parallelism hide their messages only where one queue keeps the order in which
kernels are launched; FSDP and expert all-to-all beside compute need several. Sources: Megatron-LM d98e8a6
megatron/training/arguments.py validate_args, which is the same in core_v0.16.1 and core_v0.18.2; Megatron-Bridge
067f987 src/megatron/bridge/training/config.py and scripts/performance/utils/overrides.py. Left out: what a wrong value
costs, which no published run shows.
"""

from __future__ import annotations

from typing import Final

from planner.catalog.stack_options import EXPERTS_OVERLAPPED
from planner.errors import InputError
from planner.frameworks.framework import ParsedConfig
from planner.spec.config import ParallelConfig
from planner.spec.machine.accelerator import Architecture
from planner.spec.rule import Problem, Violation

CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
# what Megatron-Bridge's recipes set where several streams run beside one another
SEVERAL: Final = "32"
Said = tuple[tuple[Violation, ...], tuple[str, ...]]


def require_several(what: str, connections: str | None) -> None:
    """Raise `InputError` where FSDP, set by `what`, has one queue."""
    if connections == "1":
        raise InputError(f"{what} requires {CONNECTIONS} > 1 or unset", "1", "unset it")


def asserted(parsed: ParsedConfig, config: ParallelConfig, problem: Problem) -> Said:
    """What Megatron-LM's start refuses of the queues, and notes on what a value costs."""
    if not _one_queue(parsed, config, problem):
        return (), _costs(parsed, config, problem)
    why = f"tensor or context parallelism before Blackwell; tp={config.tp} cp={config.cp}"
    if parsed.connections == "":
        return (), (
            f"Megatron-LM refuses to start unless {CONNECTIONS} is 1 with {why}: the files don't set it, so the "
            f"environment that starts them must (export {CONNECTIONS}=1)",
        )
    if parsed.connections in (None, "1"):
        return (), ()
    reason = f"{CONNECTIONS} must be 1 with {why}; it is {parsed.connections[:20]}"
    return (Violation("cuda-connections", reason, f"export {CONNECTIONS}=1"),), ()


def recommended(parsed: ParsedConfig, config: ParallelConfig, problem: Problem) -> Said:
    """The same of Megatron-Bridge, which asserts nothing of it but that FSDP has several, and whose recipes may set
    what the files do not."""
    if not _one_queue(parsed, config, problem):
        return (), _costs(parsed, config, problem)
    if parsed.connections in (None, "", "1"):
        return (), ()
    return (), (
        f"{CONNECTIONS} is {parsed.connections[:20]}: before Blackwell messages of tp and cp hide under compute with 1 "
        "alone, which is modelled",
    )


def _sharded(parsed: ParsedConfig, problem: Problem) -> bool:
    """Is it Megatron-FSDP, or PyTorch's FSDP2?"""
    return problem.stack.engine.units_apart or parsed.axes.get("zero", 0) >= 2


def _one_queue(parsed: ParsedConfig, config: ParallelConfig, problem: Problem) -> bool:
    exempt = _sharded(parsed, problem) or EXPERTS_OVERLAPPED in parsed.stack_options
    older = problem.cluster.accelerator.architecture is not Architecture.BLACKWELL
    return older and not exempt and (config.tp > 1 or config.cp > 1)


def _costs(parsed: ParsedConfig, config: ParallelConfig, problem: Problem) -> tuple[str, ...]:
    """What the value keeps from being hidden, where it is taken all the same."""
    value, divided = parsed.connections, config.tp > 1 or config.cp > 1
    if not value:
        return ()
    beside = EXPERTS_OVERLAPPED in parsed.stack_options
    if problem.cluster.accelerator.architecture is Architecture.BLACKWELL:
        if value != "1" or not (divided or beside):
            return ()
        return (
            f"{CONNECTIONS} is 1, which Blackwell does not need: one queue makes streams wait for one another, "
            f"Megatron-Bridge's recipes set {SEVERAL} there; overlap is modelled as with several",
        )
    if beside and value == "1":
        return (
            f"{CONNECTIONS} is 1: before Blackwell expert all-to-all hides under compute with several queues, as it "
            f"is modelled; {SEVERAL} lets it, at the cost of what tp and cp hide",
        )
    if (beside or _sharded(parsed, problem)) and divided and value != "1":
        what = "FSDP" if _sharded(parsed, problem) else "expert all-to-all"
        return (
            f"{CONNECTIONS} is {value[:20]}, which lets {what} overlap: before Blackwell messages of tp and cp hide "
            "under compute with 1 alone, as they are modelled",
        )
    return ()
