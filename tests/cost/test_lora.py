"""Adapters on a frozen model: no states for what is frozen, activations that stay, no weight gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.catalog.loader import load_kernel_rates
from planner.cost.table import CostDetail, CostTable
from planner.errors import InputError
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import AdapterTargets, Job
from planner.spec.load_model import load_model
from planner.spec.precision import Precision
from planner.spec.stack.engines import States
from planner.spec.stack.layer_code import Torch
from tests.problems import costs, dense_model, problem

SUBJECT = problem(dense_model(4), "1x1 h100", global_batch=4, stack="deepspeed-2025")
CONFIG = ConfigTable.of([ParallelConfig(num_microbatches=4)])
# q, k and v with a projection each, out, gate and up, down: in + out of each
WIDTHS = (3 * 2048 + 4096) + (2048 + 2048) + 2 * (2048 + 7168) + (7168 + 2048)


def detail(rank: int | None, bits: int = 16) -> tuple[CostDetail, float]:
    job = replace(SUBJECT.job, lora_rank=rank, frozen_bits=bits)
    cost = costs(replace(SUBJECT, job=job)).evaluate(CONFIG, keep_terms=True)
    assert cost.detail is not None
    return cost.detail, float(cost.step_time[0])


def test_states_belong_to_adapters_alone() -> None:
    parts = detail(16)[0].memory["after_init"]
    assert float(parts["gradients"][0, 0]) == 0
    assert float(parts["optimizer"][0, 0]) == 0
    # 2 weights, 2 gradients, 12 master and moments
    assert float(parts["adapters"][0, 0]) == 16 * 4 * 16 * WIDTHS


@pytest.mark.parametrize(("bits", "each"), [(32, 4.0), (16, 2.0), (8, 1.0), (4, 0.515875)])
def test_frozen_weights_by_bits_embeddings_and_head_in_16_or_more(bits: int, each: float) -> None:
    parts = detail(16, bits)[0].memory["after_init"]
    held = float(parts["weights"][0, 0] + parts["adapters"][0, 0]) - 16 * 4 * 16 * WIDTHS
    outer = 2 * 32000 * 2048 + 2048
    total = float(detail(None)[0].memory["after_init"]["weights"][0, 0]) / 2
    assert held == pytest.approx(each * (total - outer) + max(each, 2.0) * outer)


def test_activations_stay_and_a_third_of_the_products_goes() -> None:
    # peft issue 1514: the gap to full training closes at long context, since activations stay
    whole, lora = (detail(rank)[0] for rank in (None, 16))
    kept = [float(d.memory["backward"]["activations"][0, 0]) for d in (whole, lora)]
    assert kept[0] < kept[1] < 1.02 * kept[0]
    wide = replace(
        SUBJECT, model=dense_model(4, 8192, 64, 8, 28672)
    )  # where adapters' own kernels weigh little
    slow, fast = (
        float(costs(replace(wide, job=replace(wide.job, lora_rank=rank))).evaluate(CONFIG).step_time[0])
        for rank in (None, 16)
    )
    assert 0.6 < fast / slow < 0.85


def test_a_frozen_product_without_adapter_keeps_no_input() -> None:
    # DGXC 25.02 fine-tunes 8B in 33.0 GiB: adapters on q, k, v alone, 4.5 GiB less than with adapters everywhere
    everywhere, narrow = (
        costs(replace(SUBJECT, job=replace(SUBJECT.job, lora_rank=16, lora_targets=targets)))
        .evaluate(CONFIG, keep_terms=True)
        .detail
        for targets in (AdapterTargets.ALL_LINEAR, AdapterTargets.QKV)
    )
    assert everywhere is not None
    assert narrow is not None
    kept = [float(d.memory["backward"]["activations"][0, 0]) for d in (everywhere, narrow)]
    middles = 2 * 16 * 4  # out, gate, up, down: each adapter's narrow middle
    second_norm, fc2 = 2 * 2048, 2 * 7168
    tokens, layers = SUBJECT.job.seq_len, 4
    assert kept[0] - kept[1] == pytest.approx(tokens * layers * (second_norm + fc2 + middles))
    held = [float(d.memory["after_init"]["adapters"][0, 0]) for d in (everywhere, narrow)]
    assert held[1] == 16 * 4 * 16 * (3 * 2048 + 4096)
    assert held[0] > held[1]


def test_nothing_frozen_has_a_gradient() -> None:
    parts = detail(16)[0].memory
    assert float(parts["gradient_reduction"].get("reduction_buffers", np.zeros((1, 1)))[0, 0]) == 0
    assert float(parts["head_backward"]["head_gradient"][0, 0]) == 0


def test_rank_barely_matters() -> None:
    # gpu_poor issue 5
    small, large = (detail(rank)[0].by_class[0, 0] for rank in (8, 64))
    assert large / small < 1.1


def test_weights_frozen_in_32_bits_are_gathered_in_16() -> None:
    sharded = replace(
        SUBJECT, cluster=problem(dense_model(4), "1x8 h100").cluster, stack=load_stack("torchtitan-2026")
    )
    config = ConfigTable.of([ParallelConfig(dp=8, zero=3, num_microbatches=1)])
    wide, half = (
        costs(
            replace(sharded, job=replace(sharded.job, global_batch=8, lora_rank=16, frozen_bits=bits))
        ).evaluate(config, keep_terms=True)
        for bits in (32, 16)
    )
    assert wide.detail is not None
    assert half.detail is not None
    more = [d.memory["after_init"]["weights"][0, 0] for d in (wide.detail, half.detail)]
    assert more[0] == pytest.approx(2 * more[1])
    assert wide.detail.memory["after_init"].keys() == half.detail.memory["after_init"].keys()
    assert float(wide.step_time[0]) == pytest.approx(float(half.step_time[0]), rel=0.02)


@pytest.mark.parametrize(("rank", "bits"), [(0, 16), (16, 5), (None, 4)])
def test_impossible_adapters_are_refused(rank: int | None, bits: int) -> None:
    with pytest.raises(InputError):
        Job(4096, 4, lora_rank=rank, frozen_bits=bits)


QLORA = problem(dense_model(4), "1x8 h100", global_batch=8, stack="torchtitan-2026")


def sharded(bits: int, stack: str) -> CostTable:
    subject = replace(QLORA, stack=load_stack(stack), job=replace(QLORA.job, lora_rank=16, frozen_bits=bits))
    return costs(subject).evaluate(ConfigTable.of([ParallelConfig(dp=8, zero=3)]), keep_terms=True)


@pytest.mark.parametrize("stack", ["torchtitan-2026", "deepspeed-2025"])
def test_packed_weights_are_gathered_packed(stack: str) -> None:
    # torchao NF4Tensor.fsdp_pre_all_gather sends the packed bytes; embeddings and head stay in 16 bits
    wide, packed = (sharded(bits, stack).detail for bits in (16, 4))
    assert wide is not None
    assert packed is not None
    held = [float(d.memory["backward"]["gathered_parameters"][0, 0]) for d in (wide, packed)]
    outer = 2 * (2 * 32000 * 2048 + 2048)
    assert held[1] - outer == pytest.approx(0.515875 / 2 * (held[0] - outer), rel=1e-6)
    weights, adapters = (float(packed.memory["after_init"][name][0, 0]) for name in ("weights", "adapters"))
    layers = (held[0] - outer) if stack == "deepspeed-2025" else 2 * (held[0] - outer)
    assert weights == pytest.approx((0.515875 / 2 * layers + outer) / 8, rel=1e-3)
    assert adapters == pytest.approx(float(wide.memory["after_init"]["adapters"][0, 0]))


def test_packed_weights_travel_packed() -> None:
    subject = replace(QLORA, job=replace(QLORA.job, lora_rank=16, frozen_bits=4))
    config = ParallelConfig(dp=8, zero=3)
    (sent,) = (e for e in step_messages(costs(subject), config, 0) if e.what == "weights")
    wide = replace(subject, job=replace(subject.job, frozen_bits=16))
    (whole,) = (e for e in step_messages(costs(wide), config, 0) if e.what == "weights")
    head = 2 * 32000 * 2048
    outer = 2 * head + 2 * 2048
    units = subject.model.num_layers + 2  # a message each
    assert sent.forward == whole.forward == units
    stays = [(e.forward - e.backward) * e.size for e in (sent, whole)]
    assert stays == pytest.approx([head, head])
    layers = [e.forward * e.size - outer for e in (sent, whole)]
    assert layers[0] == pytest.approx(0.515875 / 2 * layers[1])
    assert layers[1] > outer


def test_adapters_of_llama_3_8b_are_as_many_as_peft_counts() -> None:
    # peft prints "trainable params: 20,971,520" for rank 8 on all linear layers of Llama-3-8B
    apart, fused = (
        problem(load_model("llama-3.1-8b"), "1x1 h100", global_batch=1, stack=stack)
        for stack in ("deepspeed-2025", "megatron-2026")
    )
    for subject, count in ((apart, 20_971_520), (fused, 20_971_520 - 8 * 32 * 3 * 4096)):
        subject = replace(subject, job=replace(subject.job, lora_rank=8))
        model = costs(subject)
        prepared = model.prepare(ConfigTable.of([ParallelConfig()]))
        assert float(prepared.shards.adapters[0, 0]) == count


def layer_times(bits: int = 16, rank: int | None = 16, **kernels: Torch) -> tuple[float, float, float]:
    """Forward, input-gradient and weight-gradient seconds of a layer's products, of host and device the longer."""
    stack = SUBJECT.stack.model_copy(
        update={
            "kernels": SUBJECT.stack.kernels.model_copy(update=kernels),
        }
    )
    job = replace(SUBJECT.job, lora_rank=rank, frozen_bits=bits)
    (layer,) = SUBJECT.model.layer_kinds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(States, "launch_softness", 50.0)
        cost = costs(replace(SUBJECT, job=job, stack=stack)).layers.layer(layer, CONFIG)
    weight = float(cost.weight_gradient[0])
    return float(cost.forward["gemm"][0]), float(cost.backward["gemm"][0]) - weight, weight


WEIGHTS = (2048 * 4096) + 2048 * 2048 + 3 * 2048 * 7168  # of a layer's products


def test_frozen_4_bit_weights_are_dequantised_before_every_product() -> None:
    # bitsandbytes' kernel on 132 units of an H100: 3.5e11 weights a second, in forward and again in backward
    wide, packed = layer_times(16), layer_times(4)
    expected = WEIGHTS / (2.65e9 * 132)
    assert packed[0] - wide[0] == pytest.approx(expected, rel=1e-6)
    assert packed[1] - wide[1] == pytest.approx(expected, rel=1e-6)
    assert packed[2] == pytest.approx(wide[2], rel=1e-6)
    bytes_a_weight = 0.5 + 17 / 64 + 2
    assert expected > bytes_a_weight * WEIGHTS / 3.35e12  # bound by instructions, not by memory


def test_dequantising_by_single_operations_moves_33_bytes_a_weight() -> None:
    wide, packed = layer_times(16), layer_times(4, code=Torch(fused=()))
    rates = load_kernel_rates("h100-sxm-80g")
    assert packed[0] - wide[0] == pytest.approx(33 * WEIGHTS / (3.35e12 * rates.memory_efficiency), rel=1e-2)


def test_adapters_read_and_write_what_their_kernels_do() -> None:
    # forward per output: written by the product, scaled (2), added (3); per input of each layer: read once
    bare, beside = layer_times(rank=None), layer_times()
    rates = load_kernel_rates("h100-sxm-80g")
    tokens, outputs, inputs = SUBJECT.job.seq_len, 4096 + 2048 + 2 * 7168 + 2048, 6 * 2048 + 7168
    least = 2 * tokens / (3.35e12 * rates.memory_efficiency)
    assert least * (6 * outputs + inputs) < beside[0] - bare[0] < 1.5 * least * (6 * outputs + inputs)
    # backward: gradient scaled (2) and read by two products, the input's written, added (3) and read
    back = beside[1] + beside[2] - bare[1]
    assert least * (4 * outputs + 5 * inputs) < back < 1.5 * least * (4 * outputs + 5 * inputs)
    assert beside[2] > 0


def test_adapters_add_launches() -> None:
    # 7 linear layers with 4 launches forward and 6 backward beside a layer's own
    small = replace(SUBJECT, job=replace(SUBJECT.job, seq_len=32))
    (layer,) = SUBJECT.model.layer_kinds
    host = [
        float(costs(replace(small, job=replace(small.job, lora_rank=rank, frozen_bits=bits))).layers
              .layer(layer, CONFIG).host[0])
        for rank, bits in ((None, 16), (16, 16), (16, 4))
    ]  # fmt: skip
    assert host[1] - host[0] == pytest.approx(7 * 10 * 13.9e-6)
    assert host[2] - host[0] == pytest.approx(7 * (10 + 6) * 13.9e-6)


def test_one_dequantised_weight_is_alive_at_a_time() -> None:
    (layer,) = SUBJECT.model.layer_kinds
    working = [
        float(costs(replace(SUBJECT, job=replace(SUBJECT.job, lora_rank=16, frozen_bits=bits))).layers
              .layer(layer, CONFIG).working[0])
        for bits in (16, 4)
    ]  # fmt: skip
    assert working[1] - working[0] == 2 * 2048 * 7168


@pytest.mark.parametrize(("option", "peak"), [("+activation-func-fp8-input-store", 168.8), ("", 203.0)])
def test_swiglus_input_in_8_bits(option: str, peak: float) -> None:
    """Llama 2 70B with adapters on attention, fp8, 8,192 tokens a B200: 168.827 GiB with it; 134.083, 99.574 and 82.321
    without on 2, 4 and 8 context-parallel ranks, which is 138 a rank and 65 beside (MLPerf training v5.0
    llama2_70b_lora, NVIDIA, Dell and others, max_memory_usage)."""
    job = Job(8192, 8, Precision.FP8, lora_rank=16, frozen_bits=8, lora_targets=AdapterTargets.ATTENTION)
    subject = replace(problem(load_model("llama-2-70b"), "1x8 b200", stack=f"megatron-2025{option}"), job=job)
    cost = costs(subject).evaluate(ConfigTable.of([ParallelConfig(dp=8, zero=1)]))
    assert float(cost.peak_memory[0]) / 2**30 == pytest.approx(peak, rel=0.08)


def test_what_is_not_quantised_is_in_fp32_and_the_stream_with_it() -> None:
    # peft's prepare_model_for_kbit_training; a table of one library has both: 8 x 4,096 tokens of 32 layers 4,096 wide
    # keep 8.0 GiB more with it, 34.46 and 26.46 (fms-acceleration scripts/benchmarks/refs/a100_80gb.csv, lines 60, 80)
    found = []
    for bits in (4, 16):
        for option in ("", "+no-prepare-model-for-kbit-training"):
            subject = problem(dense_model(4), "1x1 h100", global_batch=4, stack=f"transformers-2026{option}")
            job = replace(subject.job, lora_rank=16, frozen_bits=bits)
            table = ConfigTable.of([ParallelConfig(num_microbatches=4, recompute=2, recompute_layers=4)])
            parts = costs(replace(subject, job=job)).evaluate(table, keep_terms=True).detail
            assert parts is not None
            found.append({name: float(part[0, 0]) for name, part in parts.memory["backward"].items()})
    quantised, plain, *whole = found
    assert quantised["activations"] == 2 * plain["activations"]
    assert quantised["weights"] - plain["weights"] == pytest.approx(2 * (2 * 32000 * 2048 + 2048))
    assert whole[0] == whole[1]
