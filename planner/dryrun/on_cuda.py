"""Which way do PyTorch's own functions go on CUDA, where tensors are fake ones of a CPU?

Some ask for the device: softmax in fp32 of 16 bits is one kernel on CUDA, as are root-mean-square norms, dropout keeps
a mask of bytes, attention takes the first of its kernels that can. Sources: pytorch/pytorch aten/src/ATen/native/
SoftMax.cpp (`softmax`), native_functions.yaml (`_fused_rms_norm`), Dropout.cpp (`is_fused_kernel_acceptable`),
transformers/cuda/sdp_utils.cpp (`can_use_flash_attention`, `can_use_mem_efficient_attention`),
transformers/attention.cpp (`pad_bias`), GroupedMMUtils.h and cuda/GroupedBlas.cpp (`_grouped_mm_cuda`: grouped products
of fp32 and fp16, which CUDA runs group by group, and PyTorch's table of shapes lacks). Left out: attention by cuDNN,
whose results are as large as those of the flash kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor

aten: Final = torch.ops.aten
_LOG_SOFTMAX: Final = aten._log_softmax.default
_HALVES: Final = (torch.bfloat16, torch.float16)
_WIDEST_HEAD: Final = 256  # of the flash kernel
_FLASH_FROM: Final = (8, 0)  # the first compute capability that has it
_ALIGNED: Final = 16  # of a mask's last dimension
_ROW: Final = 16  # bytes that rows of a grouped product are a multiple of
_FUSED: Final = {
    "_fused_rms_norm": torch._decomp.decompositions._fused_rms_norm,
    "_fused_rms_norm_backward": torch._decomp.decompositions._fused_rms_norm_backward,
}


@contextmanager
def cuda_branches(capability: tuple[int, int]) -> Iterator[None]:
    """Have functions of PyTorch go the way of CUDA, on a device of this compute capability, while it is entered."""
    library = torch.library.Library("aten", "IMPL")
    functional, plain = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention
    apply = torch.nn.Module._apply
    foreach_types = torch.utils._foreach_utils._foreach_supported_types
    decomposed = decomposition_table.pop(_LOG_SOFTMAX)  # which makes fp32 of fp16 alone
    try:
        foreach_types.append(FakeTensor)  # gradients are clipped by kernels over lists
        for name, func in (
            ("softmax.int", _softmax),
            ("log_softmax.int", _log_softmax),
            ("dropout", _dropout),
        ):
            library.impl(name, func, "AutogradCPU")
        library.impl("_grouped_mm", _grouped_product, "Meta")
        library.impl("_log_softmax", _log_softmax_shape, "Meta")
        for (
            operation,
            func,
        ) in _FUSED.items():  # to be there is all that PyTorch asks of them to run them whole
            library.impl(operation, func, "CPU")
        attention = _attention(flash=capability >= _FLASH_FROM)
        functional.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention = attention
        torch.nn.Module._apply = _apply
        yield
    finally:
        functional.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention = plain
        torch.nn.Module._apply = apply
        foreach_types.remove(FakeTensor)
        decomposition_table[_LOG_SOFTMAX] = decomposed
        library._destroy()


def _softmax(tensor: Any, dim: int, dtype: Any = None) -> Any:
    if dtype == torch.float32 and tensor.dtype in _HALVES and not _traced():
        return aten._softmax(tensor, dim, True)
    return aten._softmax(tensor if dtype is None else tensor.to(dtype), dim, False)


def _log_softmax(tensor: Any, dim: int, dtype: Any = None) -> Any:
    if dtype == torch.float32 and tensor.dtype in _HALVES and not _traced():
        return aten._log_softmax(tensor, dim, True)
    return aten._log_softmax(tensor if dtype is None else tensor.to(dtype), dim, False)


def _log_softmax_shape(tensor: Any, dim: int, in_fp32: bool) -> Any:
    dtype = torch.float32 if in_fp32 else tensor.dtype
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _traced() -> bool:
    """Does torch.compile trace? It takes softmax apart, and casts are part of a fused kernel."""
    return torch._guards.TracingContext.try_get() is not None


def _dropout(tensor: Any, share: float, train: bool) -> Any:
    if not share or not train or not tensor.numel():
        return tensor
    return aten.native_dropout(tensor, share, train)[0]


def _grouped_product(left: Any, right: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Products of groups of rows (with `right` of three dimensions), of columns, or of a batch; rows padded."""
    flat, plain = left.dim() == 2, right.dim() == 2
    if flat and plain:
        size = [offs.shape[0], left.shape[0], right.shape[1]]
    elif flat or plain:
        size = [left.shape[0 if flat else 1], right.shape[-1]]
    else:
        size = [left.shape[0], left.shape[1], right.shape[-1]]
    dtype = out_dtype or left.dtype
    aligned = _ROW // dtype.itemsize
    row = -(-size[-1] // aligned) * aligned
    strides = [row, 1] if len(size) == 2 else [size[1] * row, row, 1]
    return left.new_empty_strided(size, strides, dtype=dtype)


def _attention(flash: bool) -> Callable[..., Any]:
    """PyTorch's attention, on a device that has the flash kernel or not."""

    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (one.to(dtype) for one in (query, key, value))
        if flash and query.dim() == 4 and _runs_flash(query, key, value, attn_mask):
            kernel = aten._scaled_dot_product_flash_attention
            return kernel(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if query.dim() == 4 and key.shape[1] == query.shape[1]:
            needed = torch.is_grad_enabled() and query.requires_grad
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, _aligned(attn_mask, query, key), needed, dropout_p, is_causal, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]

    return attend


def _runs_flash(query: Any, key: Any, value: Any, mask: Any) -> bool:
    width = query.shape[-1]
    alike = key.shape[-1] == width == value.shape[-1]
    return mask is None and alike and query.dtype in _HALVES and width <= _WIDEST_HEAD and width % 8 == 0


def _aligned(mask: Any, query: Any, key: Any) -> Any:
    """The mask as the memory-efficient kernel takes it: added to scores, its rows padded to a multiple of 16."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    rest = -mask.shape[-1] % _ALIGNED
    if rest:
        mask = torch.nn.functional.pad(mask, (0, rest))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _apply(module: Any, change: Any, recurse: bool = True) -> Any:
    """`Module._apply` that puts changed tensors in place of others, which it does not do with fake ones."""
    for child in module.children() if recurse else ():
        child._apply(change)
    for held in (module._parameters, module._buffers):
        for name, tensor in list(held.items()):
            if tensor is None:
                continue
            with torch.no_grad():
                changed = change(tensor)
            if changed is not tensor and isinstance(tensor, torch.nn.Parameter):
                held[name] = torch.nn.Parameter(changed, tensor.requires_grad)
            elif changed is not tensor:
                held[name] = changed
    return module
