"""Which engine has a stack, and what does it hold of a problem's states?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.contiguous import BufferedEngine, LastingEngine, Megatron2022Engine
from planner.cost.engines.deepspeed import DeepSpeedEngine
from planner.cost.engines.engine import Engine
from planner.cost.engines.fully_shard import FullyShardEngine
from planner.cost.engines.megatron_fsdp import MegatronFsdpEngine
from planner.cost.engines.nanotron import NanotronEngine
from planner.cost.engines.xla import XlaEngine
from planner.cost.memory.state_bytes import StateBytes
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.engines import (
    AllReduced,
    Contiguous,
    DeepSpeed,
    FlatShards,
    FullyShard,
    Megatron2022,
    MegatronFsdp,
    Nanotron,
    Profiled,
    States,
    Xla,
)

Array = NDArray[np.float64]

_ENGINES: Final[dict[type[States], type[Engine[Any]]]] = {
    Contiguous: BufferedEngine, Megatron2022: Megatron2022Engine, Profiled: BufferedEngine, AllReduced: BufferedEngine,
    Nanotron: NanotronEngine, Xla: XlaEngine, FlatShards: LastingEngine, FullyShard: FullyShardEngine,
    DeepSpeed: DeepSpeedEngine, MegatronFsdp: MegatronFsdpEngine,
}  # fmt: skip


def engine_of(stack: Stack) -> Engine[Any]:
    """The engine that holds the states of a stack."""
    return _ENGINES[type(stack.engine)](stack)


def states_of(problem: Problem, zero: Array, shards: Array, replicas: Array) -> StateBytes:
    """Bytes per parameter that a rank holds between steps (`Engine.state_bytes`); where lists of operations hold the
    copies of whole weights in low precision, those in fp32 are the weights [bytes/parameter]."""
    found = engine_of(problem.stack).state_bytes(zero, shards, replicas, problem.job)
    if not problem.casts_listed:
        return found
    sharded, master = problem.stack.engine.weights_sharded(zero), problem.stack.engine.master
    return replace(
        found,
        weights=np.where(sharded, found.weights, master),
        optimizer=np.where(sharded, found.optimizer, found.optimizer - master),
    )
