"""Which variables of a launch's environment slow every step, because they are meant for finding faults?

Sources: PyTorch 2.13 docs/source/cuda_environment_variables.md, torch.distributed's documentation (Debugging); NCCL
2.28's environment variables. Left out: what each costs, but for CUDA_LAUNCH_BLOCKING, with which 88 published runs took
1.15 to 2.1 times as long as predicted (OpenLLM-France/Lucie-Training, chronicles/parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.frameworks.shell.environment import value_of

_OFF: Final = frozenset({"", "0", "off", "false", "no"})


@dataclass(frozen=True)
class _Switch:
    """`does`: what the variable makes the program do; `values`: those that do so, empty: all but off."""

    name: str
    does: str
    values: frozenset[str] = frozenset()

    def set_by(self, value: str) -> bool:
        """Does this value do so?"""
        return value.lower() in self.values if self.values else value.lower() not in _OFF


_SWITCHES: Final = (
    _Switch("CUDA_LAUNCH_BLOCKING", "the host waits for every kernel, so that nothing overlaps"),
    _Switch(
        "TORCH_DISTRIBUTED_DEBUG", "every collective is compared between ranks first", frozenset({"detail"})
    ),
    _Switch(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "every tensor is allocated by the driver, which waits for the device",
    ),
    _Switch("NCCL_P2P_DISABLE", "devices of a node exchange through host memory"),
    _Switch("NCCL_IB_DISABLE", "nodes exchange over TCP"),
)


def debugging_notes(files: Mapping[str, str]) -> list[str]:
    """A note for each such variable that the files set."""
    text = "\n".join(files.values())
    notes = []
    for switch in _SWITCHES:
        value = value_of(switch.name, text) if switch.name in text else ""
        if value and switch.set_by(value):
            notes.append(
                f"{switch.name} is {value[:20]}: {switch.does}; a step takes longer than is modelled, unset it"
            )
    return notes
