"""TPUs and Trainium run what XLA compiles: no launches, no CUDA context, nothing that was fitted on GPUs."""

from __future__ import annotations

import pytest

from planner.answer.estimate import make_estimate, named_config
from planner.ask.request import Request, resolve
from planner.catalog.load_stacks import DEFAULT_STACK, default_stack, load_stack, stacks_to_plan
from planner.errors import UnsupportedError
from planner.report.words import texts
from planner.spec.config import Recompute
from planner.spec.load_model import load_model
from planner.spec.machine.compiled_devices import COMPILES
from planner.spec.machine.device_kernels import require_recipe, with_device_kernels
from planner.spec.machine.load_cluster import load_accelerator
from planner.spec.planfile import Plan
from planner.spec.precision import Dtype, Precision
from planner.spec.stack import Calibration

LLAMA = load_model("llama-3.1-8b")
MAXTEXT = load_stack("maxtext-2024")
V5P = load_accelerator("tpu-v5p")
# The largest error of MaxText's own 31 step times on TPUs (benchmarks/RESULTS.md, "TPUs, on which nothing is fitted").
FURTHEST = 0.22
# a large dense model on each device, in the layouts of MaxText's recipes
LARGE = [
    ("llama-3.1-70b", "tpu-v4", 512, {"tp": (4,)}),
    ("llama-3.1-8b", "tpu-v5e", 256, {"recompute": (Recompute.FULL,), "recompute_layers": (32,)}),
    ("llama-3.1-70b", "tpu-v5p", 256, {"tp": (4,)}),
    ("llama-3.1-70b", "tpu-v6e", 256, {"recompute": (Recompute.FULL,), "recompute_layers": (80,)}),
    ("llama-3.1-70b", "trainium2", 64, {"tp": (16,), "zero": (1,)}),
    ("llama-3.1-70b", "trn2-ultraserver", 128, {"tp": (16,), "zero": (1,)}),
]


def estimated(model: str, cluster: str, gpus: int, restrict: dict[str, tuple[int, ...]]) -> Plan:
    asked = {"zero": (3,), **restrict}
    request = Request(
        model, cluster, gpus, seq_len=4096, global_batch=str(4 * gpus), stack="maxtext-2024", set=asked
    )
    return make_estimate(request)


@pytest.mark.parametrize(("model", "cluster", "gpus", "restrict"), LARGE)
def test_a_large_dense_model_reaches_a_plausible_share_of_the_peak(
    model: str, cluster: str, gpus: int, restrict: dict[str, tuple[int, ...]]
) -> None:
    plan = estimated(model, cluster, gpus, restrict)
    (choice,) = plan.choices
    assert 0.3 < choice.mfu < 0.75
    assert plan.confidence.level == "L0"
    assert FURTHEST < 1 - 1 / (1 + plan.confidence.band) < 2 * FURTHEST
    assert any("one program" in line for line in texts(plan.assumptions))
    assert any("torus" in line for line in texts(plan.assumptions))
    assert not [line for line in texts(plan.not_modelled) if "CUDA" in line or "NCCL" in line]


def test_other_stacks_are_refused() -> None:
    for name in stacks_to_plan():
        if load_stack(name).framework not in COMPILES:
            with pytest.raises(UnsupportedError, match="maxtext-2024"):
                with_device_kernels(load_stack(name), LLAMA, V5P, Precision.BF16)
    with pytest.raises(UnsupportedError, match="launches kernels of GPUs"):
        resolve(
            Request("llama-3.1-8b", "tpu-v5p", 64, seq_len=4096, global_batch="64", stack="megatron-2026")
        )


@pytest.mark.parametrize(
    ("cluster", "stack"), [("tpu-v5p", "maxtext-2024"), ("trn2", "maxtext-2024"), ("gaudi3", DEFAULT_STACK)]
)
def test_unasked_the_stack_is_one_that_runs(cluster: str, stack: str) -> None:
    problem, assumed = resolve(Request("llama-3.1-8b", cluster, 64, seq_len=4096, global_batch="64"))
    assert problem.stack.name == stack == default_stack(problem.cluster.accelerator)
    assert f"stack {stack} (default)" in texts(assumed)


def test_maxtext_shards_weights_unasked() -> None:
    """Its files take the rest of the mesh for fsdp (ici_fsdp_parallelism -1)."""
    problem, _ = resolve(Request("llama-3.1-8b", "tpu-v5p", 64, seq_len=4096, global_batch="64"))
    assert named_config({}, problem)[0].zero == 3
    assert named_config({"zero": (1,)}, problem)[0].zero == 1
    odd, _ = resolve(Request("llama-3.1-8b", "tpu-v5p", 60, seq_len=4096, global_batch="960"))
    assert named_config({}, odd)[0].zero == 1  # 60 ranks do not divide the width
    gpus, _ = resolve(Request("llama-3.1-8b", "dgx-h100", 64, seq_len=4096, global_batch="64"))
    assert named_config({}, gpus)[0].zero == 1


def test_nothing_fitted_on_gpus_is_carried_over() -> None:
    found = with_device_kernels(MAXTEXT, LLAMA, V5P, Precision.BF16)
    assert not found.fitted
    assert (
        found.compute.gemm_factor(Dtype.BF16) == found.compute.attention == found.compute.memory_bound == 1.0
    )
    assert MAXTEXT.compute.gemm_factor(Dtype.BF16) != 1.0 != MAXTEXT.compute.attention
    gpu = load_accelerator("h100-sxm-80g")
    assert with_device_kernels(MAXTEXT, LLAMA, gpu, Precision.BF16) is MAXTEXT


def test_layers_are_not_launched_and_no_context_is_held() -> None:
    found = with_device_kernels(MAXTEXT, LLAMA, V5P, Precision.BF16)
    assert found.host.layer_floor == found.host.layer_floor_tp == 0.0 < MAXTEXT.host.layer_floor
    assert found.host.step_overhead == MAXTEXT.host.step_overhead
    assert found.overhead.context == 0.0 < MAXTEXT.overhead.context
    assert found.overhead.fragmentation == 0.0 < MAXTEXT.overhead.fragmentation


def test_what_was_calibrated_on_the_device_stays() -> None:
    own = MAXTEXT.model_copy(update={"calibration": Calibration(said="mine", level="L2")})
    found = with_device_kernels(own, LLAMA, V5P, Precision.BF16)
    assert (found.compute, found.communication, found.fitted) == (own.compute, own.communication, own.fitted)
    assert found.host.layer_floor == 0.0


def test_weights_are_sharded_in_a_slice_and_copied_to_others() -> None:
    found = with_device_kernels(MAXTEXT, LLAMA, V5P, Precision.BF16)
    assert found.limits.hybrid_sharding == (3,)
    assert MAXTEXT.limits.hybrid_sharding == ()


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p", "tpu-v6e", "trainium2"])
@pytest.mark.parametrize("precision", [Precision.FP8_MX, Precision.FP8_BLOCKWISE, Precision.NVFP4])
def test_scales_of_blocks_are_refused(name: str, precision: Precision) -> None:
    with pytest.raises(UnsupportedError):
        require_recipe(MAXTEXT, load_accelerator(name), precision)


def test_fp8_runs_where_the_device_has_it() -> None:
    for name in ("tpu-v6e", "trainium2"):
        require_recipe(MAXTEXT, load_accelerator(name), Precision.FP8_CS)
    for name in ("tpu-v4", "tpu-v5e", "tpu-v5p"):
        with pytest.raises(UnsupportedError, match="fp8"):
            require_recipe(MAXTEXT, load_accelerator(name), Precision.FP8_CS)
