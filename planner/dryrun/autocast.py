"""How does autocast treat operations on CUDA, where tensors are fake ones of a CPU?

`torch.autocast("cpu")` casts products as CUDA's does; what CUDA runs in fp32 and a CPU does not, and the reverse, is
registered here for as long as it is needed. Source: pytorch/pytorch aten/src/ATen/autocast_mode.h (the lists of
operations and their policies), docs/source/amp.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_FP32: Final = (
    "acos", "asin", "cosh", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "group_norm", "layer_norm", "log",
    "log10", "log1p", "log2", "logsumexp", "norm.Scalar", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
    "reciprocal", "renorm", "rms_norm", "rsqrt", "sinh", "softplus", "tan",
)  # fmt: skip
_FP32_RESULT: Final = (
    "cumprod", "cumsum", "linalg_vector_norm", "log_softmax.int", "softmax.int", "sum", "sum.dim_IntList",
)  # fmt: skip
_PROMOTED: Final = ("addcdiv", "addcmul", "atan2", "cross", "dot", "scatter_add", "vdot")
_LOWER: Final = ("addmv", "addr", "chain_matmul", "convolution", "linalg_multi_dot", "mv")
_AS_THEY_ARE: Final = ("cat", "cross_entropy_loss", "polar", "stack", "view_as_complex")  # on CUDA
_KEY: Final = "AutocastCPU"
_HALVES: Final = (torch.bfloat16, torch.float16)


@contextmanager
def cuda_policies() -> Iterator[None]:
    """Have autocast of a CPU treat operations as that of CUDA while it is entered."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for names, policy in (
            (_FP32, _in_fp32), (_FP32_RESULT, _with_fp32_result), (_PROMOTED, _promoted), (_LOWER, _lowered),
            (_AS_THEY_ARE, _as_it_is),
        ):  # fmt: skip
            for name in names:
                library.impl(name, policy(_operation(name)), _KEY)
        yield
    finally:
        library._destroy()


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _cast(value: Any, dtype: Any) -> Any:
    """A tensor of 16 or 32 bits as `dtype`; lists item by item; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in (*_HALVES, torch.float32) else value
    return [_cast(one, dtype) for one in value] if isinstance(value, (list, tuple)) else value


def _in_fp32(func: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return func(*(_cast(one, torch.float32) for one in args), **kwargs)

    return run


def _with_fp32_result(func: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            if args[0].is_floating_point() and kwargs.get("dtype") is None and not _says_dtype(func, args):
                kwargs = {**kwargs, "dtype": torch.float32}
            return func(*args, **kwargs)

    return run


def _says_dtype(func: Any, args: tuple[Any, ...]) -> bool:
    """Is a number format among the arguments given by place?"""
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
    return named.get("dtype") is not None


def _promoted(func: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            wide = any(isinstance(one, torch.Tensor) and one.dtype == torch.float32 for one in args)
            return func(*(_cast(one, torch.float32) if wide else one for one in args), **kwargs)

    return run


def _lowered(func: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        with _without_autocast():
            return func(*(_cast(one, dtype) for one in args), **kwargs)

    return run


def _as_it_is(func: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return func(*args, **kwargs)

    return run
