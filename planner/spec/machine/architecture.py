"""Which hardware generation is a device of, and in which words do its users speak of it?

Left out: what one of them can do (`accelerator.py`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class DeviceWords(NamedTuple):
    """What users call one device (an s makes it many), the tool that shows its memory, the library that its collectives
    run in, and what the driver holds for a process."""

    noun: str
    monitor: str
    collectives: str
    context: str = "driver context"


class Architecture(StrEnum):
    """A hardware generation: what decides which kernels and formats exist."""

    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA2 = "cdna2"
    CDNA3 = "cdna3"
    CDNA4 = "cdna4"
    TPU = "tpu"
    GAUDI = "gaudi"
    TRAINIUM = "trainium"
    CPU = "cpu"

    @property
    def is_nvidia(self) -> bool:
        """Whether its libraries are cuBLAS and NCCL."""
        return self in (self.VOLTA, self.TURING, self.AMPERE, self.ADA, self.HOPPER, self.BLACKWELL)

    @property
    def is_compiled_for(self) -> bool:
        """Whether a step is one program of XLA's, which the host starts once."""
        return self in (self.TPU, self.TRAINIUM)

    @property
    def words(self) -> DeviceWords:
        """How its users speak of it."""
        return _WORDS.get(self, _NVIDIA)


GPU: Final = "GPU"
ANY_DEVICE: Final = "device"  # of several kinds
_NVIDIA: Final = DeviceWords(GPU, "nvidia-smi", "NCCL", "cuda context")
_AMD: Final = DeviceWords(GPU, "rocm-smi", "RCCL", "hip context")
_WORDS: Final = {
    Architecture.CDNA2: _AMD,
    Architecture.CDNA3: _AMD,
    Architecture.CDNA4: _AMD,
    Architecture.TPU: DeviceWords("chip", "tpu-info", "XLA"),
    Architecture.TRAINIUM: DeviceWords("chip", "neuron-top", "Neuron's runtime"),
    Architecture.GAUDI: DeviceWords("HPU", "hl-smi", "HCCL"),
    Architecture.CPU: DeviceWords(ANY_DEVICE, "top", "oneCCL"),  # a device is a node of them
}
