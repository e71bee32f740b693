"""At which rates does a device multiply and move bytes, in the formats of a job?

Left out: what is multiplied and moved (`products.py`, `mixing.py`, `passes.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.device.kernels import Roofline, memory_bound_time
from planner.errors import UnsupportedError
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.device_kernels import emulates_blocks
from planner.spec.machine.rates import KernelRates
from planner.spec.precision import RECIPES, Dtype, Precision
from planner.spec.rule import Problem

Array = NDArray[np.float64]


HALF = (Dtype.FP16, Dtype.BF16)


class DeviceRates:
    """Binds a problem to its kernel rates: tables, peaks [FLOP/s], bandwidth [B/s], the factor of its device [1]."""

    def __init__(self, problem: Problem, kernels: KernelRates) -> None:
        self.problem, self.kernels = problem, kernels
        self.recipe = RECIPES[problem.job.precision]
        device = problem.cluster.accelerator
        self.gemm_key: Dtype | Precision = problem.job.precision
        emulated = emulates_blocks(problem.stack, device, problem.job.precision)
        if emulated or self.gemm_key not in kernels.gemm:
            self.gemm_key = self.table_key(self.recipe.gemm)
        self.gemm_peak = device.peak_flops(self.recipe.gemm)
        self.wide_peak = device.peak_flops(self.wide_dtype())
        self.attention_peak = self.wide_peak / self._products_of_attention()
        self.bandwidth = device.memory_bandwidth
        self.device_factor = problem.stack.compute.accelerator.get(device.name, 1.0)

    def wide_dtype(self) -> Dtype:
        """The format of what is not in the recipe's: the 16-bit one that the accelerator multiplies in; of an fp32 job
        the recipe's own, as nothing of it is in 16 bits."""
        if self.recipe.other is Dtype.FP32:
            return self.recipe.gemm
        peaks = dict(self.problem.cluster.accelerator.peak)
        return Dtype.BF16 if peaks.get(Dtype.BF16) else Dtype.FP16

    def _products_of_attention(self) -> float:
        """Products that fused attention computes for one of its own [1].

        FlashAttention and cuDNN's have no fp32 (pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/
        sdp_utils.cpp), so that PyTorch takes its memory-efficient kernel. Where there is TF32 that one splits each
        product into three of it whatever `allow_tf32` says (pytorch/pytorch@1f1047b .../cuda/mem_eff_attention/
        gemm_kernel_utils.h, `OpMultiplyAddFastF32`; 3xTF32: NVIDIA/cutlass discussion 385); before, it works in FP32.
        Transformer Engine's has unfused products in fp32 (`spec/machine/device_kernels.py`).
        """
        device = self.problem.cluster.accelerator
        splits = device.architecture.is_nvidia and Dtype.TF32 in dict(device.peak)
        return 3.0 if splits and self.recipe.other is Dtype.FP32 else 1.0

    def roofline(self, peak: float) -> Roofline:
        """What bounds kernels of this dense peak."""
        return Roofline(peak, self.bandwidth, self.kernels)

    def moving(self, moved: Array) -> Array:
        """Seconds of a kernel that only moves so many bytes [s]."""
        return np.asarray(memory_bound_time(moved, self.bandwidth, self.kernels))

    def table_key(self, wanted: Dtype) -> Dtype:
        """The format whose table stands for `wanted`: 16- and 32-bit formats reach like fractions of their peaks."""
        wide = (Dtype.BF16, Dtype.FP16, Dtype.TF32, Dtype.FP32)
        for kin in (wanted, *(wide if wanted in wide else ())):
            if kin in self.kernels.gemm:
                return kin
        raise UnsupportedError(
            f"GEMM rates are needed for {wanted}",
            f"none for {self.problem.cluster.accelerator.name}",
            "use bf16",
        )

    def meets_rows(self) -> bool:
        """Do 16-bit products reach cuBLAS with rows as long as the model makes them?"""
        plain = not self.problem.stack.engine.pads_products
        return plain and self.problem.cluster.accelerator.architecture.is_nvidia

    @property
    def fuses_experts(self) -> bool:
        """Do grouped products apply the experts' gated activation and quantise what they write? In MXFP8 on Blackwell
        (TransformerEngine#2769, in 2.15)."""
        job, accelerator = self.problem.job, self.problem.cluster.accelerator
        narrow = job.precision is Precision.FP8_MX and accelerator.architecture is Architecture.BLACKWELL
        return self.problem.stack.kernels.fused_experts and narrow and self.problem.model.fusable_experts
