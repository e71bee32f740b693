"""What does PyTorch's compiler ask a GPU about itself, and what does it answer? A stand-in for the device.

Inductor reads how many multiprocessors there are, to split long reductions, and how many threads and registers each
has, to choose the kind of a reduction. Sources: CUDA C++ Programming Guide, table "Technical Specifications per Compute
Capability" (threads and registers); white papers of NVIDIA's A100, H100, L40, B200 and RTX PRO 6000 (multiprocessors).
Left out: what autotuning on the device would choose, which `mode="default"` does for the shape of blocks alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
import torch._dynamo.device_interface as interfaces
import torch.utils._triton
from torch._inductor.runtime.hints import DeviceProperties

# multiprocessors of the largest device of a compute capability that training uses; a neighbour's for others
_MULTIPROCESSORS: Final = {(8, 0): 108, (8, 6): 84, (8, 9): 142, (9, 0): 132, (10, 0): 148, (12, 0): 188}
_THREADS: Final = {(8, 6): 1536, (8, 9): 1536, (12, 0): 1536}  # of a multiprocessor, else 2048
_REGISTERS: Final = 65536
_WARP: Final = 32
_BLOCK: Final = 1024
_GUARDS: Final = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA: Final = 1  # of c10/core/DeviceType.h
_META: Final = 14


def properties(capability: tuple[int, int]) -> Any:
    """What `torch.cuda.get_device_properties` says of a device of such a compute capability."""
    near = min(_MULTIPROCESSORS, key=lambda one: abs(10 * (one[0] - capability[0]) + one[1] - capability[1]))
    return SimpleNamespace(
        name="", major=capability[0], minor=capability[1], multi_processor_count=_MULTIPROCESSORS[near],
        max_threads_per_multi_processor=_THREADS.get(near, 2048), regs_per_multiprocessor=_REGISTERS,
        max_threads_per_block=_BLOCK, warp_size=_WARP, gcnArchName="",
    )  # fmt: skip


class Generator(torch.Generator):  # type: ignore[misc]  # torch is not checked
    """Random numbers of such a device, to be the one of `torch.cuda.default_generators`; none are ever drawn."""

    @property
    def device(self) -> Any:
        return torch.device("cuda", 0)

    def clone_state(self) -> Generator:
        return Generator()


@contextmanager
def device_there(capability: tuple[int, int]) -> Iterator[None]:
    """Have PyTorch's compiler find such a device while it is entered; nothing can be run on it."""
    about = properties(capability)
    interface = _interface(about)
    interfaces.get_interface_for_device("cpu")  # which registers all there are
    asked = (DeviceProperties.create, torch.utils._triton.has_triton)  # once, and remembered
    for cached in asked:
        cached.cache_clear()
    with ExitStack() as stack:
        stack.enter_context(_guarded())
        for cached in asked:
            stack.callback(cached.cache_clear)
        stack.enter_context(
            patch.dict(interfaces.device_interfaces, {"cuda": interface, "cuda:0": interface})
        )
        stack.enter_context(
            patch.multiple(
                torch.cuda, get_device_properties=_given(about), current_device=_given(0), device_count=_given(1),
                get_device_capability=_given(capability), _exchange_device=_given(0), _maybe_exchange_device=_given(0),
            )
        )  # fmt: skip
        stack.enter_context(patch.object(torch.utils._triton, "triton_hash_with_backend", _given("")))
        yield


@contextmanager
def _guarded() -> Iterator[None]:
    """Have operations on fake tensors of CUDA find a guard of their device, which does nothing: that of meta tensors.

    A build with CUDA but no device is given such a one by `FakeTensorMode` itself (`ensureCUDADeviceGuardSet`); a build
    without CUDA has an empty place there. Source: c10/core/impl/DeviceGuardImplInterface.h.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))  # of Linux, as Triton
    guards = (ctypes.c_void_p * (_META + 1)).in_dll(library, _GUARDS)
    empty = guards[_CUDA] is None
    if empty:
        guards[_CUDA] = guards[_META]
    try:
        yield
    finally:
        if empty:
            guards[_CUDA] = None


def _interface(about: Any) -> Any:
    """PyTorch's description of CUDA, with answers that need no device."""
    worker = SimpleNamespace(
        set_device=_given(None), current_device=_given(0), get_device_properties=_given(about)
    )
    answers = {
        "current_device": 0, "device_count": 1, "synchronize": None, "get_device_properties": about,
        "is_bf16_supported": True, "is_available": True, "is_triton_capable": True,
        "get_compute_capability": 10 * about.major + about.minor, "raise_if_triton_unavailable": None,
    }  # fmt: skip
    named = {name: staticmethod(_given(answer)) for name, answer in answers.items()}
    return type("DryCuda", (interfaces.CudaInterface,), {**named, "Worker": worker})


def _given(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
