"""Number formats and optimizers as curators write them."""

from __future__ import annotations

import pytest

from benchmarks.published.formats import optimizer_in, precision_in
from benchmarks.published.runs import RunReader
from planner.errors import UnsupportedError
from planner.spec.job import OPTIMIZERS, Optimizer
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.precision import Precision
from planner.spec.stack.kinds import Float8Scales
from tests.benchmarks.rows import MODELS, ROW


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("bf16-mixed", Precision.BF16),
        ("bf16 mixed precision", Precision.BF16),
        ("BFloat16", Precision.BF16),
        ("bf16 (fp32 master)", Precision.BF16),
        ("bf16 (no fp8)", Precision.BF16),
        ("mixed fp16", Precision.FP16),
        ("tf32", Precision.FP32),
        ("float8", Precision.FP8),
        ("fp8 (delayed)", Precision.FP8),
        ("fp8_e4m3", Precision.FP8),
        ("FP8 hybrid", Precision.FP8),
        ("bf16/fp8", Precision.FP8),
        ("fp8_rowwise", Precision.FP8_CS),
        ("fp8 current scaling", Precision.FP8_CS),
        ("float8 tensorwise", Precision.FP8_CS),
        ("MXFP8", Precision.FP8_MX),
        ("fp8-mx", Precision.FP8_MX),
        ("fp8 blockwise", Precision.FP8_BLOCKWISE),
        ("fp8_subchannel", Precision.FP8_BLOCKWISE),
        ("NVFP4 (first layers bf16)", Precision.NVFP4),
    ],
)
def test_precisions_in_other_words(text: str, recipe: Precision) -> None:
    assert precision_in(text, load_accelerator("b200"), []) is recipe


@pytest.mark.parametrize("text", ["int8", "e", "posit16", "16.5"])
def test_unknown_precisions_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="precision"):
        precision_in(text, load_accelerator("b200"), [])


def test_a_remark_on_the_precision_is_said() -> None:
    assumed: list[str] = []
    chip = load_accelerator("h100_sxm_80g")
    precision_in("bf16", chip, assumed)
    precision_in("BF16", chip, assumed)
    assert assumed == []
    precision_in("bf16 (fp32 master)", chip, assumed)
    precision_in("mixed", chip, assumed)
    assert assumed == ["precision 'bf16 (fp32 master)': bf16", "precision 'mixed' names no format: bf16"]


def test_bf16_on_volta_is_fp16_and_said() -> None:
    run = RunReader(MODELS).read({**ROW, "gpu": "v100_32g", "precision": "bf16", "framework": "Megatron-LM"})
    assert run.problem.job.precision is Precision.FP16
    assert any("does not multiply in bf16: fp16" in said for said in run.assumed)


def test_scales_per_row_are_the_stacks_own() -> None:
    row = {**ROW, "framework": "torchtitan", "precision": "fp8_rowwise", "dp_sharding": "zero3"}
    assert RunReader(MODELS).read(row).problem.stack.kernels.float8_scales is Float8Scales.ROW


@pytest.mark.parametrize(
    ("text", "optimizer", "said"),
    [
        ("FusedAdam", Optimizer.ADAMW, ""),
        ("schedule-free adamw", Optimizer.ADAMW, ""),
        ("NAdam", Optimizer.ADAMW, ""),
        ("bnb adamw8bit", Optimizer.ADAMW_8BIT, ""),
        ("8-bit Adam", Optimizer.ADAMW_8BIT, ""),
        ("AdEMAMix", Optimizer.ADEMAMIX, ""),
        ("MuonClip", Optimizer.MUON, ""),
        ("SGD momentum", Optimizer.SGD_MOMENTUM, ""),
        ("adam (fp8 moments)", Optimizer.ADAMW, "not modelled"),
        ("DeepSpeedCPUAdam", Optimizer.ADAMW, "not modelled"),
        ("paged_adamw_32bit", Optimizer.ADAMW, ""),
        ("LAMB", Optimizer.ADAMW, "as many moments"),
        ("Sophia", Optimizer.ADAMW, "as many moments"),
        ("Lion", Optimizer.SGD_MOMENTUM, "as many moments"),
        ("adan", Optimizer.ADEMAMIX, "as many moments"),
        ("SOAP", Optimizer.ADAMW, "nearest"),
        ("Shampoo", Optimizer.ADAMW, "nearest"),
        ("lion8bit", Optimizer.ADAMW_8BIT, "nearest"),
        ("ademamix 8bit", Optimizer.ADAMW_8BIT, "nearest"),
        ("", Optimizer.ADAMW, "not stated"),
        ("none", Optimizer.ADAMW, "not stated"),
        ("n/a", Optimizer.ADAMW, "not stated"),
    ],
)
def test_optimizers_by_their_states(text: str, optimizer: Optimizer, said: str) -> None:
    assumed: list[str] = []
    assert optimizer_in(text, assumed) is optimizer
    assert [said in what for what in assumed] == [True] * bool(said)


def test_unknown_optimizers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="optimizer"):
        optimizer_in("magic", [])


def test_a_third_moment_is_kept_and_moved() -> None:
    """AdEMAMix: Adam's two moments and a slow average, 4 bytes each, read and written."""
    adam, more = OPTIMIZERS[Optimizer.ADAMW], OPTIMIZERS[Optimizer.ADEMAMIX]
    assert (more.moment_bytes - adam.moment_bytes, more.step_bytes - adam.step_bytes) == (4.0, 8.0)
