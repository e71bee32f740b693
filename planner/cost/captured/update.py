"""How long do clipping of gradients and AdamW's update take, in the kernels of PyTorch that work on lists of tensors?

Gradients are read for their norm and scaled in place (torch/nn/utils/clip_grad.py); a fused update reads weights,
gradients and moments and writes all but gradients (torch/optim/adam.py, `_fused_adam`), one by foreach kernels goes
over them in `UNFUSED_PASSES` (`_multi_tensor_adam`). Left out: other optimizers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.cost.captured.kernels import Device
from planner.cost.device.moved import Access, Moved

Array = NDArray[np.float64]

NORM_PASSES: Final = 1.0
SCALE_PASSES: Final = 2.0
FUSED_PASSES: Final = 7.0
# Weights decayed (2 passes), first moments (3), second ones decayed (2) and added to (3), their roots (2), divided (2)
# and moved from zero (2), weights (4).
UNFUSED_PASSES: Final = 20.0


def update_seconds(parameters: Array, width: int, fused: bool, device: Device) -> Array:
    """Of so many trained parameters on a device, weights, gradients and moments in `width` bytes each (n,) [s]."""
    distinct, inverse = np.unique(parameters, return_inverse=True)
    listed = NORM_PASSES + SCALE_PASSES + (0.0 if fused else UNFUSED_PASSES)
    parts = [(listed, Access.LISTS), (FUSED_PASSES if fused else 0.0, Access.FUSED)]
    seconds = [
        device.moving(
            Moved(passes * width * size, 0.0, 1, access, width) for passes, access in parts if passes
        )
        for size in distinct.tolist()
    ]
    return np.array(seconds)[inverse]
