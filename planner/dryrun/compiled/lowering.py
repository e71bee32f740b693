"""How does torch.compile come by the program that it would run on a GPU, where there is none?

Dynamo, AOTAutograd with its partitioner, and Inductor run as they are. The graph of forward and backward that was
traced becomes one of CUDA before the partitioner sees it (`as_cuda.py`), Inductor finds a device to ask (`device.py`),
and the program that it writes is run on fake tensors in place of the device (`wrapper.py`). Left out: compilation of
the kernels themselves, and whatever is decided by timing them: products whose sizes are no multiples of 16 bytes are
padded, as they are where it was faster.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
import torch._functorch.config
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config
from torch._inductor.fx_passes import joint_graph, pad_mm
from torch._inductor.graph import GraphLowering

from planner.dryrun.compiled.as_cuda import CPU, CUDA, AsCuda, name_devices
from planner.dryrun.compiled.device import Generator, device_there
from planner.dryrun.compiled.wrapper import callable_of
from planner.dryrun.recorder import Recorder
from planner.errors import InputError, UnsupportedError

Change = Callable[[Callable[..., Any]], Callable[..., Any]]
_HINT: Final = "pip install triton"


@contextmanager
def lowered_for_cuda(recorder: Recorder, capability: tuple[int, int]) -> Iterator[None]:
    """Have `torch.compile` compile for such a device while it is entered, and its calls be written down.

    Raises `InputError` where Triton is missing, `UnsupportedError` for a PyTorch whose compiler is another.
    """
    if find_spec("triton") is None:
        raise InputError(
            "a dry run of a compiled step needs Triton, for which the compiler writes", "no triton", _HINT
        )
    as_cuda = AsCuda()
    places = _places(as_cuda, recorder, capability)
    if not all(hasattr(holder, name) for holder, name, _ in places):
        must = "a dry run of a compiled step knows the compiler of PyTorch 2.13"
        raise UnsupportedError(must, f"PyTorch {torch.__version__}", "install that one")
    atexit.unregister(
        gc.freeze
    )  # of the command line; Triton complains of what is left at the end of a process
    torch._dynamo.reset()
    with ExitStack() as stack:
        stack.callback(torch._dynamo.reset)
        stack.enter_context(
            torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False, compile_threads=1)
        )
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(patch.object(torch.cuda, "default_generators", (Generator(),)))
        for holder, name, changed in places:
            stack.enter_context(patch.object(holder, name, changed(getattr(holder, name))))
        yield


def _places(
    as_cuda: AsCuda, recorder: Recorder, capability: tuple[int, int]
) -> tuple[tuple[Any, str, Change], ...]:
    """Functions of the compiler, and what takes their place."""
    return (
        (compile_fx, "partition_fn", _partitioned(as_cuda, capability)),
        (compile_fx, "compile_fx_forward", _compiled(as_cuda, capability)),
        (compile_fx, "compile_fx_backward", _compiled(as_cuda, capability)),
        (compile_fx, "get_input_idxs_to_check", _no_addresses),
        (joint_graph, "constant_fold_uniform_value", _folded_on_host),
        (joint_graph, "lazy_init", _patterns_of_host),
        (pad_mm, "_should_pad", _padded),
        (GraphLowering, "compile_to_module", _run_dry(recorder)),
    )


def _partitioned(as_cuda: AsCuda, capability: tuple[int, int]) -> Change:
    """The partitioner, and the passes over the graph of both passes before it."""

    def changed(own: Callable[..., Any]) -> Callable[..., Any]:
        def partition(graph: Any, *args: Any, **kwargs: Any) -> Any:
            with device_there(capability):
                return own(as_cuda.graph(graph), *args, **kwargs)

        return partition

    return changed


def _compiled(as_cuda: AsCuda, capability: tuple[int, int]) -> Change:
    """The compiler of one pass."""

    def changed(own: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(graph: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with device_there(capability):
                return own(as_cuda.graph(graph), as_cuda.values(list(example_inputs)), *args, **kwargs)

        return compiled

    return changed


def _no_addresses(_: Callable[..., Any]) -> Callable[..., Any]:
    """Inputs whose alignment is checked when called: none, as what the allocator gives is aligned."""
    return lambda *_, **__: []


def _folded_on_host(own: Callable[..., Any]) -> Callable[..., Any]:
    """Folding of constants, which computes them: on the host, as there is no device."""

    def fold(graph: Any) -> None:
        name_devices(graph, CUDA, CPU)
        own(graph)
        name_devices(graph, CPU, CUDA)

    return fold


def _patterns_of_host(own: Callable[..., Any]) -> Callable[..., Any]:
    """Patterns that are replaced in graphs, which are traced once: on the host."""
    return lambda *_: own(CPU)


def _padded(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_, **__: True


def _run_dry(recorder: Recorder) -> Change:
    """The module of a lowered graph."""

    def changed(_: Callable[..., Any]) -> Callable[..., Any]:
        def module(lowering: Any) -> Any:
            text, _ = lowering.codegen()
            call = callable_of(text.value, lowering.constants, recorder)
            return SimpleNamespace(call=call, __file__=None)

        return module

    return changed
