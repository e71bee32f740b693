"""What does a training software keep in memory outside the model, and what do its logs show of it?

Left out: activations, which its kernels decide (`spec/stack/time.py`), and states (`spec/stack/engines.py`).
"""

from __future__ import annotations

from pydantic import Field

from planner.spec.stack.section import Bytes, Section


class Overhead(Section):
    """Memory outside the model: what the device's tools show beside the allocator [bytes], [1]."""

    context: Bytes = Field(
        0.75 * 2**30,
        ge=0,
        description="with cuBLAS loaded; from memory but for transformers-2026, under which (torch 2.11) one H100 was "
        "seen to hold 0.749 GiB",
    )
    workspace: Bytes = Field(
        0.25 * 2**30,
        ge=0,
        description="of products; a start value but for nanotron-2024 (fitted on peaks) and transformers-2026 (0.0625 "
        "GiB, read off torch's code)",
    )
    fragmentation: float = Field(
        0.03, ge=0, le=0.5, description="share of dynamic memory the allocator wastes"
    )
    logs_reserved: bool = Field(False, description="the stack logs reserved, not allocated, memory")
    error: float = Field(
        0.09,
        ge=0,
        le=0.5,
        description="measured memory error: half the width of 'borderline'; without peaks of several models half of 85 "
        "outside the data were off by as much (benchmarks/fit_memory.py)",
    )
