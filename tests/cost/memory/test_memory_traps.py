"""Mistakes that public estimators of memory made, each with the thread it comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.memory.moments import PHASES
from planner.cost.params import layer_parameters
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig, Recompute, Schedule
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from tests.problems import costs, dense_model, problem

GIB = 2.0**30


def terms(
    model: ModelSpec, machine: str, config: ParallelConfig, stack: str = "megatron-2026", seq_len: int = 4096
) -> tuple[dict[str, dict[str, np.ndarray]], float, str]:
    """Terms (by class of stages), the device's peak, its moment."""
    subject = problem(model, machine, seq_len=seq_len, global_batch=64, stack=stack)
    cost = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True)
    assert cost.detail is not None
    found = {m: {name: value[0] for name, value in parts.items()} for m, parts in cost.detail.memory.items()}
    return found, float(cost.device_memory[0]), PHASES[int(cost.phase[0])]


def test_experts_are_not_divided_by_tensor_parallelism() -> None:
    # Megatron-LM issues 4687, 4050, 2439: routed experts divided by tp; with etp 1 they are divided by ep alone
    model = load_model("qwen3-30b-a3b")
    config = ParallelConfig(tp=4, dp=2, sp=1, ep=2, etp=1, num_microbatches=32)
    experts = sum(layer_parameters(layer, model.hidden).expert for layer in model.layers) / 2
    weights = float(terms(model, "1x8 h100", config)[0]["backward"]["weights"][0])
    assert weights > 2 * experts
    assert weights < 2 * (experts + 3e9 / 4)


def test_expert_parallelism_removes_no_activations() -> None:
    # Megatron-LM issue 6782: ep exchanges tokens
    model = load_model("qwen3-30b-a3b")
    kept = [
        terms(model, "1x8 h100", ParallelConfig(dp=8, ep=ep, num_microbatches=8))[0]["backward"][
            "activations"
        ][0]
        for ep in (1, 8)
    ]
    assert kept[0] == kept[1]


def test_uneven_stages_are_summed_not_averaged() -> None:
    # Megatron-Bridge issue 5077: 31.8 % too little on layers [1, 2, 2, 3]
    model = dense_model(8, vocab=256000)  # a heavy head takes layers off the last stage
    subject = problem(model, "1x4 h100", global_batch=64)
    model_costs = costs(subject)
    detail = model_costs.evaluate(
        ConfigTable.of([ParallelConfig(pp=4, num_microbatches=64)]), keep_terms=True
    ).detail
    assert detail is not None
    layers = detail.classes.layers[0].sum(axis=1)
    alive = detail.classes.count[0] > 0
    assert len(set(layers[alive])) > 1
    block = layer_parameters(model.layers[0], model.hidden).total
    table = 256000 * model.hidden
    outer = detail.classes.first[0] * table + detail.classes.last[0] * (table + model.hidden)
    expected = 2.0 * (layers * block + outer)
    np.testing.assert_allclose(detail.memory["backward"]["weights"][0][alive], expected[alive])


def test_zero_3_has_a_floor_that_does_not_fall_with_the_ranks() -> None:
    # DeepSpeed issues 4527 (0.49 GB predicted, 14.7 to 21 seen) and 4093 (unchanged from 2 to 4 GPUs)
    model, full = load_model("llama-3-8b"), int(Recompute.FULL)

    def static(nodes: int) -> float:
        config = ParallelConfig(dp=8 * nodes, zero=3, recompute=full, recompute_layers=32)
        found, _, _ = terms(model, f"{nodes}x8 h100 400G-ib", config, "deepspeed-2025")
        names = ("weights", "gradients", "optimizer", "gathered_parameters", "reduction_buffers")
        return sum(float(found["optimizer"][name][0]) for name in names)

    # 1e9 live parameters in bf16 and two buckets of 5e8 elements stay
    assert static(8) > 2e9 + 2 * 1e9
    assert static(8) / static(4) > 0.7
    assert static(8) > 2 * 16 * 8.03e9 / 64


@pytest.mark.parametrize(("tokens", "least"), [(11_600, 10.8e9)])
def test_logits_of_a_wide_vocabulary(tokens: int, least: float) -> None:
    # slime issue 2253: 11.6k tokens x 248k x 4 B = 10.8 GB, one of several such tensors
    model = dense_model(4, vocab=248_320)
    seq_len = tokens // 128 * 128
    found, _, phase = terms(model, "1x1 h100", ParallelConfig(num_microbatches=64), "deepspeed-2025", seq_len)
    assert phase == "loss"
    assert float(found["loss"]["logits"][0]) > 2.5 * least


def test_fewer_key_value_heads_than_tensor_ranks_are_divided_too() -> None:
    # Megatron-Core keeps half a head's projection on a rank and gathers the product (its GPTModel, built with 4 heads
    # on 8 ranks); torchtitan issue 2577 refuses
    few, enough = (dense_model(4, heads=16, kv_heads=kv) for kv in (4, 8))

    def weights(model: ModelSpec) -> float:
        config = ParallelConfig(tp=8, sp=1, num_microbatches=64)
        return float(terms(model, "1x8 h100", config)[0]["backward"]["weights"][0])

    layers, heads, width, hidden = 4, 4, 2 * 128, 2048
    assert weights(enough) - weights(few) == 2 * layers * heads * width * hidden / 8


def test_qwen_7b_zero_2_on_eight_40_gb_devices_is_no_safe_fit() -> None:
    # LLaMA-Factory issue 4133: 2P + 14P/N = 26.9 GiB looks like enough; buckets, the fp32 gradients and logits are not
    base = load_model("llama-2-7b")
    qwen = replace(base, name="qwen1.5-7b", vocab=151_936)
    config = ParallelConfig(
        dp=8, zero=2, micro_batch=2, recompute=int(Recompute.FULL), recompute_layers=32, num_microbatches=4
    )
    _, peak, phase = terms(qwen, "1x8 a100-sxm-40g", config, "deepspeed-2025")
    assert phase == "loss"
    assert peak > 39.4 * GIB


@pytest.mark.parametrize(("offload", "low", "high"), [(0, 24, 30), (1, 12, 15), (3, 11, 14)])
def test_llama_3_8b_on_24_gb_devices_needs_offload(offload: int, low: float, high: float) -> None:
    # full fine-tuning with ZeRO-3 on 8 devices of 24 GB: no; with offload about 13 GB
    config = ParallelConfig(
        dp=8, zero=3, recompute=int(Recompute.FULL), recompute_layers=32, num_microbatches=8, offload=offload
    )
    _, peak, _ = terms(load_model("llama-3-8b"), "1x8 rtx-4090", config, "deepspeed-2025")
    assert low < peak / GIB < high


def test_deepspeed_zero_2_is_not_its_old_formula() -> None:
    # DeepSpeed pull request 5099: 2P + 18P/N at the update, not 4P + 16P/N
    model = load_model("llama-2-7b")
    config = ParallelConfig(dp=8, zero=2, num_microbatches=8)
    found = terms(model, "1x8 h100", config, "deepspeed-2025")[0]["optimizer"]
    parameters = float(found["weights"][0]) / 2
    names = ("weights", "gradients", "optimizer", "optimizer_temporaries")
    assert sum(float(found[name][0]) for name in names) == pytest.approx((2 + 18 / 8) * parameters)


def test_selective_recomputation_saves_70_percent_at_gpt_3_size() -> None:
    # Korthikanti 2022, arXiv 2205.05198, section 5; next to nothing with flash attention (Megatron-LM issue 1225)
    model = load_model("gpt-3-175b")
    saved = {}
    for stack in ("megatron-2022", "megatron-2026"):
        kept = []
        for modules in (0, 1):
            config = ParallelConfig(
                tp=8, sp=1, pp=8, recompute=int(modules > 0), recompute_modules=modules, num_microbatches=64
            )
            found = terms(model, "8x8 a100-sxm-80g 200G-ib", config, stack, 2048)[0]
            kept.append(float(found["backward"]["activations"].max()))
        saved[stack] = 1 - kept[1] / kept[0]
    assert saved["megatron-2022"] == pytest.approx(0.70, abs=0.01)
    assert saved["megatron-2026"] < 0.02


def test_each_prediction_module_keeps_logits_of_its_own() -> None:
    # Megatron-LM issue 5318, DeepSeek-V3: the last stage carries the multi-token-prediction module and its loss
    found = []
    for mtp in (False, True):
        model = load_model("deepseek-v3", with_mtp=mtp)
        config = ParallelConfig(pp=16, dp=4, ep=4, zero=1, num_microbatches=16)
        parts = terms(model, "8x8 h100 400G-ib", config)[0]["loss"]
        found.append(float(parts["logits"].max()))
    tokens, vocabulary = 4096, 129_280
    inputs = 4 * tokens * 7168 + 4 * tokens
    inputs += 2 * 4 * tokens * 7168  # of the module's norms, and of its projection
    assert found[1] - found[0] == pytest.approx(inputs + 4 * tokens * vocabulary)


def test_deepseek_v3_as_published_fits_80_gb() -> None:
    """arXiv 2412.19437: pp 16, ep 64 without tensor parallelism on H800 of 80 GB, with moments in bf16, norms and
    up-projections recomputed, and SwiGLU's inputs in 8 bits (sections 3.2 and 3.3)."""
    from planner.ask.request import Request, cost_model, resolve

    bits = sum(
        1 << i for i, name in enumerate(RECOMPUTE_MODULES) if name in ("layernorm", "mla_up_proj", "moe_act")
    )
    config = ParallelConfig(
        pp=16, ep=64, dp=128, zero=1, num_microbatches=120, schedule=Schedule.DUALPIPE,
        recompute=Recompute.SELECTIVE, recompute_modules=bits,
    )  # fmt: skip
    request = Request(
        "deepseek-v3", "deepseek-h800", 2048, seq_len=4096, global_batch="15360", precision="fp8",
        optimizer="adamw-bf16", stack="hai-llm-2024", mtp=True,
    )  # fmt: skip
    model = cost_model(resolve(request)[0])
    needed = float(model.evaluate(ConfigTable.of([config])).device_memory[0])
    assert 0.7 < needed / model.problem.cluster.accelerator.memory < 0.95
