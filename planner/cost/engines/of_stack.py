"""Which engine has a stack?"""

from __future__ import annotations

from typing import Any, Final

from planner.cost.engines.contiguous import ContiguousEngine, XlaEngine
from planner.cost.engines.deepspeed import DeepSpeedEngine
from planner.cost.engines.engine import Engine
from planner.cost.engines.fully_shard import FullyShardEngine
from planner.cost.engines.megatron_fsdp import MegatronFsdpEngine
from planner.cost.engines.nanotron import NanotronEngine
from planner.spec.stack import Stack
from planner.spec.stack.engines import (
    Contiguous,
    DeepSpeed,
    FullyShard,
    MegatronFsdp,
    Nanotron,
    States,
    Xla,
)

_ENGINES: Final[dict[type[States], type[Engine[Any]]]] = {
    Contiguous: ContiguousEngine, Nanotron: NanotronEngine, Xla: XlaEngine, FullyShard: FullyShardEngine,
    DeepSpeed: DeepSpeedEngine, MegatronFsdp: MegatronFsdpEngine,
}  # fmt: skip


def engine_of(stack: Stack) -> Engine[Any]:
    """The engine that holds the states of a stack."""
    return _ENGINES[type(stack.engine)](stack)
