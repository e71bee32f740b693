"""How long does a host take to issue the operations of a program of PyTorch?

A plain record: `catalog/load_host.py` reads it. Left out: hosts of other software, whose modules do more than launch
(`spec/stack/time.py`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class HostRates:
    """Seconds of the host's one thread.

    `call`: of a call of the model, or of its backward pass, before the first operation; `operation`, `view`, `module`:
    of issuing an operation from Python, of making a view, of calling a module; `backward_operation`, `backward_view`:
    the same where PyTorch's engine issues them; `kernel`: of each kernel of an operation beyond its first; `listed`: of
    each tensor in the lists that an optimizer's operation takes; `read`: from the end of an operation on the device
    until the host has its result.
    """

    call: float
    operation: float
    view: float
    module: float
    backward_operation: float
    backward_view: float
    kernel: float
    listed: float
    read: float

    def slower(self, factor: float) -> HostRates:
        """A host that takes `factor` times as long [1]."""
        return HostRates(**{name: factor * seconds for name, seconds in asdict(self).items()})
