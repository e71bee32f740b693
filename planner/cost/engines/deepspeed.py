"""What do ranks under DeepSpeed's ZeRO hold, and what does its update move? Buckets and parameters up to a number.

Left out: in how many messages weights are gathered (`engines/zero3_gathers.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.engines.contiguous import LastingEngine
from planner.cost.memory.moments import MemoryInputs
from planner.spec.job import Optimizer
from planner.spec.stack.engines import DeepSpeed

Array = NDArray[np.float64]

# stage_1_and_2.py step: norm in fp64 (read 2, write 8, read 8), gradients flattened (2 + 2) and cast (2 + 4), scaled
# (4 + 4), masters read once more to be cast (4) [bytes/parameter]
STEP_EXTRA: Final = 40.0
# fp32 gradients out, fp32 weights in (async_inplace_copy_grad_to_fp32_buffer_from_gpu, step)
HOST_COPIES: Final = 8.0
HOST_EXTRA: Final = 8.0  # unscale_and_clip_grads on the host


class DeepSpeedEngine(LastingEngine[DeepSpeed]):
    """ZeRO 0 to 3 (DeepSpeed 0.17 to 0.19)."""

    def gradients_follow(
        self, optimizer: NDArray[np.bool_], parameters: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """offload_optimizer takes the gradients along, as its bucket is copied out when it is full."""
        return optimizer

    def buffers(self, x: MemoryInputs) -> dict[str, Array]:
        """What ZeRO-3 keeps gathered and the buckets of all stages: neither falls with the number of ranks [bytes].

        Gathered: min(P, max(live, unit + prefetch)) parameters, since they are released only beyond
        stage3_max_live_parameters; those below stage3_param_persistence_threshold (by default 1e5 elements: norms,
        under 0.01 % of a model) stay gathered and are left out. Weights frozen in fewer bits count packed, in elements
        of 16 bits (bnb_4bit_quant_storage). Two buckets of gradients, one filled while the other is reduced; one in
        stages 1 and 2 without overlap_comm (stage_1_and_2.py setup_buckets), which pipelines never have.
        """
        states, local, zero = self.states, x.dense + x.expert, x.zero[:, None]
        packing = 1.0 if x.narrow_gathered is None else x.narrow_gathered / x.weight_bytes
        live = np.maximum(states.live_parameters, packing * x.unit[:, None] + states.prefetch_elements)
        gathered = np.minimum(packing * (local - x.outer) + x.outer, live)
        bucket = np.minimum(states.bucket_elements, local) * np.where(
            (zero < 3) & ~x.reduces_aside[:, None], 1.0, 2.0
        )
        return {
            "gathered_parameters": np.where(zero >= 3, x.weight_bytes * gathered, 0.0),
            "reduction_buffers": np.where(zero >= 1, x.trained * states.gradient * bucket, 0.0),
        }

    def update_traffic(self, optimizer: Optimizer) -> float:
        return self.states.step_bytes(optimizer) + STEP_EXTRA

    def host_traffic(self, optimizer: Optimizer) -> float:
        return self.states.step_bytes(optimizer) + HOST_EXTRA

    def copied_to_host(self, weight_bytes: float) -> float:
        return HOST_COPIES
