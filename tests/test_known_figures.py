"""Figures that everybody quotes, from the product's own functions: does it reproduce them?"""

from __future__ import annotations

import numpy as np
import pytest

import planner
from planner.campaign.batch import Stage, staged_run
from planner.campaign.duration import device_hours
from planner.catalog.load_stacks import load_stack
from planner.cost.cut import LayerShape
from planner.cost.engines.of_stack import engine_of
from planner.cost.memory.state_bytes import StateBytes
from planner.cost.network.collectives import CollectiveKind, moved_bytes
from planner.cost.params import model_parameters
from planner.spec.attention import Attention, AttentionKind
from planner.spec.job import Job, Optimizer
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.stack import Stack
from planner.spec.stack.engines import Contiguous
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.time import Kernels
from tests.problems import layer_activations

GB = 1e9
H100_HOUR = 2.0  # dollars


def states_of(stack: Stack, zero: int, shards: float, optimizer: Optimizer = Optimizer.ADAMW) -> StateBytes:
    """Bytes per parameter with bf16 weights."""
    job = Job(4096, 1024, Precision.BF16, optimizer)
    number = np.array([float(shards)])
    return engine_of(stack).state_bytes(np.array([float(zero)]), number, number, job)


def with_gradients(bytes_each: float, master: float = 4.0) -> Stack:
    """Megatron's parts with gradients of that size."""
    return load_stack("megatron-2026").model_copy(
        update={"engine": Contiguous(gradient=bytes_each, master=master)}
    )


@pytest.mark.parametrize(
    ("parameters", "total"),
    [(1e9, 16), (7e9, 112), (70e9, 1120), (405e9, 6480)],
    ids=["1B", "7B", "70B", "405B"],
)
def test_sixteen_bytes_per_parameter(parameters: float, total: float) -> None:
    # ZeRO, arXiv 1910.02054, section 3.1: bf16 weights 2, bf16 gradients 2, fp32 master 4, moments 4 + 4
    states = states_of(with_gradients(2.0), zero=0, shards=1)
    assert float(states.total[0]) == 16
    assert parameters * float(states.total[0]) / GB == pytest.approx(total)


def test_megatron_costs_18_bytes_or_6_and_12_over_dp() -> None:
    # Megatron-LM megatron/training/theoretical_memory_usage.py: fp32 gradients
    megatron = load_stack("megatron-2026")
    assert float(states_of(megatron, 0, 8).total[0]) == 18
    for dp in (2, 8, 64):
        assert float(states_of(megatron, 1, dp).total[0]) == pytest.approx(6 + 12 / dp)


def test_zero_stages_of_the_paper() -> None:
    # arXiv 1910.02054, figure 1: 7.5B parameters on 64 devices, 120, 31.4, 16.6, 1.9 GB
    stack = with_gradients(2.0)
    gigabytes = [7.5 * float(states_of(stack, zero, 64).total[0]) for zero in range(4)]
    assert gigabytes == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_fsdp2_keeps_no_low_precision_shard() -> None:
    assert float(states_of(load_stack("torchtitan-2026"), 3, 64).total[0]) * 64 == pytest.approx(16)


def test_405b_with_8_bit_adam() -> None:
    # weights 2, gradients 2 and two moments of 1 byte without a master copy: 405e9 x 6 = 2.4 TB
    states = states_of(with_gradients(2.0, master=0.0), 0, 1, Optimizer.ADAMW_8BIT)
    assert 405e9 * float(states.total[0]) / 1e12 == pytest.approx(2.43, rel=0.01)


def test_llama_3_1_405b_takes_3_8e25_flop() -> None:
    # 6 N D (Kaplan 2020, arXiv 2001.08361); the paper says 3.8e25 (arXiv 2407.21783, section 1)
    parameters = model_parameters(load_model("llama-3.1-405b")).total
    assert parameters == 405_853_388_800
    assert 6 * parameters * 15.6e12 == pytest.approx(3.8e25, rel=0.002)


def test_llama_3_1_405b_at_400_tflops_on_16000_gpus() -> None:
    # 3.8e25 / (16,000 x 400e12) = 68.6 days. The often quoted "61 days" do not follow from these figures: they
    # would need 450 TFLOPS or 18,000 devices.
    tokens_per_step, devices = 16e6, 16000
    step_time = 6 * 405e9 * tokens_per_step / (devices * 400e12)
    whole = staged_run([Stage(15.6e12, tokens_per_step, step_time)], None)
    hours = device_hours(whole.seconds, devices)
    assert whole.seconds / 86400 == pytest.approx(68.6, abs=0.1)
    assert hours == pytest.approx(26.3e6, rel=0.003)
    assert hours * H100_HOUR == pytest.approx(52.7e6, rel=0.003)


@pytest.mark.parametrize("ranks", [2, 8, 72, 1024])
def test_a_ring_all_reduce_moves_2_n_minus_1_over_n(ranks: int) -> None:
    assert moved_bytes(CollectiveKind.ALL_REDUCE, 1e9, ranks) == pytest.approx(2e9 * (ranks - 1) / ranks)
    both = moved_bytes(CollectiveKind.REDUCE_SCATTER, 1e9, ranks) + moved_bytes(
        CollectiveKind.ALL_GATHER, 1e9, ranks
    )
    assert both == pytest.approx(moved_bytes(CollectiveKind.ALL_REDUCE, 1e9, ranks))


def test_korthikanti_activations_of_gpt_3() -> None:
    # arXiv 2205.05198, equation 2 and table 3: 175B, a 96, s 2048, h 12288, t 8; 5as/h = 80
    attends = Attention(AttentionKind.MHA, 96, 96, 128, 128)
    layer = Layer(attends, Mlp(4 * 12288, False, True, Activation.GELU), None, norm_bias=True)
    model = ModelSpec("gpt-3", "gpt2", 12288, 51200, (layer,), True, norm_kind=NormKind.LAYER)
    kernels = Kernels(attention=AttentionKernel.EAGER, dropout=True)

    def kept(t: float, sequence: bool) -> float:
        def column(value: float) -> np.ndarray:
            return np.array([float(value)])

        shape = LayerShape(
            tokens=column(2048), t=column(t), kv_split=column(t), sequence_split=column(t if sequence else 1),
            expert_tokens=column(2048 / t), e=column(1), et=column(1), c=column(1), seq_kv=column(2048),
        )  # fmt: skip
        parts = layer_activations(layer, model, shape, kernels, RECIPES[Precision.BF16])
        return float(sum(parts.values())[0]) / (2048 * 12288)

    assert kept(1, False) == pytest.approx(34 + 80, rel=1e-3)
    assert kept(8, False) == pytest.approx(10 + (24 + 80) / 8, rel=1e-3)
    assert kept(8, True) == pytest.approx((34 + 80) / 8, rel=1e-3)


def test_mfu_counts_half_the_square_of_causal_attention() -> None:
    # Megatron-LM core_v0.12.0 num_floating_point_operations, written out for Llama 3.1 8B at 8,192 tokens:
    # 3 x 2 x (layers x (4096 x (4096 x 2 + 1024 x 2) + 3 x 4096 x 14336 + 8192 / 2 x 2 x 4096) + 4096 x 128256)
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 8192 / 2 * 2 * 4096
    per_token = 3 * 2 * (32 * layer + 4096 * 128256)
    choice = planner.estimate("llama-3.1-8b", "dgx-h100", gpus=8, seq_len=8192, set={"tp": 8}).choices[0]
    assert choice.flops_per_device == pytest.approx(choice.tokens_per_second_per_device * per_token)


@pytest.mark.parametrize("model", ["mistral-7b", "phi-3-mini", "gpt-oss-20b", "llama-3.1-8b"])
def test_no_context_is_so_long_that_mfu_exceeds_the_peak(model: str) -> None:
    # with the full square and no windows Mistral would show ten times the peak
    long = planner.estimate(model, "dgx-h100", gpus=8, seq_len=2**20, global_batch=8).choices[0]
    assert 0.1 < long.mfu < 1
    assert min(long.time.values()) >= 0
