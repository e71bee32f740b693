"""Which states do bitsandbytes' AdamW and AdEMAMix hold, and what does an update ask for?

The package runs on a device alone, so that this holds the same tensors in the same order, and a kernel stands for an
update, which asks for nothing. Source: bitsandbytes 0.50 optim/optimizer.py (`Optimizer2State.init_state`,
`update_step`), optim/ademamix.py (`AdEMAMix.init_state`); transformers 5.17 trainer.py (`create_optimizer`), which has
embeddings in 32 bits. Left out: paged states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from planner.dryrun.transformers.stand_in import stand_in

SMALLEST: Final = 4096  # elements of what has states of 8 bits
BLOCK: Final = 256  # values that share a scale
CODES: Final = 256

_update_32 = stand_in(
    "bitsandbytes_update_32bit(Tensor(a!) weight, Tensor gradient, Tensor(b!) fast, Tensor(c!) square) -> ()"
)
_update_8 = stand_in(
    "bitsandbytes_update_8bit(Tensor(a!) weight, Tensor gradient, Tensor(b!) fast, Tensor(c!) square, "
    "Tensor signed, Tensor unsigned, Tensor(d!) fast_scales, Tensor(e!) square_scales) -> ()"
)


class BlockwiseAdam(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not checked
    """Two moments in `bits`; `slow`: AdEMAMix's average of gradients beside the fast one. `wide`: what has 32 bits all
    the same."""

    def __init__(
        self, trained: Iterable[Any], bits: int, slow: bool = False, wide: Iterable[Any] = ()
    ) -> None:
        super().__init__(trained, {})
        self._bits, self._averages = bits, (2,) if slow else ()
        self._wide = {id(one) for one in wide}
        self._codes: tuple[Any, Any] | None = None

    def step(self, closure: Any = None) -> None:
        """Update what has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(weight, self.state[weight])

    def _update(self, weight: Any, state: dict[str, Any]) -> None:
        if not state:
            self._begin(weight, state)
        held = (weight, weight.grad.contiguous(), state["state1"], state["state2"])
        if "qmap1" in state:
            _update_8(*held, *(state[name] for name in ("qmap1", "qmap2", "absmax1", "absmax2")))
        else:
            _update_32(*held)

    def _begin(self, weight: Any, state: dict[str, Any]) -> None:
        narrow = self._bits == 8 and weight.numel() >= SMALLEST and id(weight) not in self._wide
        dtype = torch.uint8 if narrow else torch.float32
        state["state1"] = torch.zeros((*self._averages, *weight.shape), dtype=dtype)
        state["state2"] = torch.zeros_like(weight, dtype=dtype)
        if narrow:
            if self._codes is None:
                self._codes = torch.zeros(CODES), torch.zeros(CODES)
            state["qmap1"], state["qmap2"] = self._codes
            blocks = -(-weight.numel() // BLOCK)
            state["absmax1"] = torch.zeros((*self._averages, blocks))
            state["absmax2"] = torch.zeros(blocks)
