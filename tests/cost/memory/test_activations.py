"""Saved activations of real blocks (torch 2.13 eager, bf16), in units of s b h bytes: does the model keep as many?

The measured figures are those of autograd's saved tensors, each storage counted once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.cut import LayerShape
from planner.cost.operations.attention import context_working
from planner.cost.operations.embedding_and_loss import head_activations
from planner.cost.operations.operation import Run
from planner.spec.attention import Attention, AttentionKind
from planner.spec.config import ContextKind
from planner.spec.layer import Activation, Layer, Mlp, NormKind
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.layer_code import WITHOUT_ACTIVATION, Aleph, Library
from planner.spec.stack.losses import AnyLoss, Chunked, Eager, Fused, Linear
from planner.spec.stack.time import Kernels
from tests.problems import dense_model, layer_activations

TOKENS = 8192.0
BF16 = RECIPES[Precision.BF16]
FUSED = Kernels()
EAGER_SWIGLU = Kernels(code=Library(fused=WITHOUT_ACTIVATION))


def shape(
    t: float = 1, sp: bool = False, e: float = 1, et: float = 1, seq: float = TOKENS, kv_heads: float = 8,
    tokens: float = TOKENS,
) -> LayerShape:  # fmt: skip
    def column(value: float) -> np.ndarray:
        return np.array([float(value)])

    return LayerShape(
        tokens=column(tokens), t=column(t), kv_split=column(min(t, kv_heads)),
        sequence_split=column(t if sp else 1), expert_tokens=column(tokens / t), e=column(e), et=column(et),
        c=column(1), seq_kv=column(seq),
    )  # fmt: skip


def parts_of(
    model: ModelSpec, kernels: Kernels, x: LayerShape | None = None, layer: int = 0
) -> dict[str, float]:
    """Bytes kept by part, in units of s b h."""
    x = x or shape()
    parts = layer_activations(model.layers[layer], model, x, kernels, BF16)
    return {name: float(value[0]) / (float(x.tokens[0]) * model.hidden) for name, value in parts.items()}


def gpt_block() -> ModelSpec:
    """h 2048, 16 heads, f 4h: at s 1024 the term 5 a s / h is 40."""
    attends = Attention(AttentionKind.MHA, 16, 16, 128, 128)
    layer = Layer(attends, Mlp(8192, False, True, Activation.GELU), None, norm_bias=True)
    return ModelSpec("gpt", "gpt2", 2048, 50304, (layer,), True, norm_kind=NormKind.LAYER)


@pytest.mark.parametrize(
    ("name", "kernels", "measured"),
    [
        ("llama-3-8b", EAGER_SWIGLU, 41.033),
        ("llama-3-8b", FUSED, 34.033),
        ("llama-3-8b", Kernels(code=Library(fused=())), 49.033),
        ("llama-2-7b", EAGER_SWIGLU, 37.533),
    ],
)
def test_llama_block(name: str, kernels: Kernels, measured: float) -> None:
    assert sum(parts_of(load_model(name), kernels).values()) == pytest.approx(measured, rel=2e-4)


def test_llama_block_is_the_formula_of_its_rows() -> None:
    # 8h + 4ad + 4kd + 6f + 4a + 8 bytes per token, fused SwiGLU
    h, f, a, k, d = 4096, 14336, 32, 8, 128
    per_token = 8 * h + 4 * a * d + 4 * k * d + 6 * f + 4 * a + 8
    assert sum(parts_of(load_model("llama-3-8b"), FUSED).values()) == pytest.approx(per_token / h, rel=1e-12)


@pytest.mark.parametrize(("attention", "measured"), [("eager", 74.004), ("flash", 34.035)])
def test_gpt_block_with_dropout(attention: str, measured: float) -> None:
    kernels = Kernels(attention=AttentionKernel(attention), dropout=True)
    x = shape(seq=1024, tokens=1024, kv_heads=16)
    assert sum(parts_of(gpt_block(), kernels, x).values()) == pytest.approx(measured, rel=2e-4)


def test_korthikanti_34sbh_plus_5as2b() -> None:
    # Korthikanti 2022, arXiv 2205.05198, equation 2 at t = 1; the norms' mean and rstd are the excess
    kernels = Kernels(attention=AttentionKernel.EAGER, dropout=True)
    for seq in (512.0, 1024.0, 2048.0):
        x = shape(seq=seq, tokens=seq, kv_heads=16)
        assert sum(parts_of(gpt_block(), kernels, x).values()) == pytest.approx(
            34 + 5 * 16 * seq / 2048, rel=3e-4
        )


def test_korthikanti_with_tensor_and_sequence_parallelism() -> None:
    # equations 2 and 4: (10 + 24/t) sbh + 5as^2b/t, and all of it over t with sequence parallelism
    kernels = Kernels(attention=AttentionKernel.EAGER, dropout=True)
    for t in (2, 4, 8):
        plain = shape(t=t, seq=1024, tokens=1024, kv_heads=16)
        split = shape(t=t, sp=True, seq=1024, tokens=1024, kv_heads=16)
        assert sum(parts_of(gpt_block(), kernels, plain).values()) == pytest.approx(
            10 + (24 + 40) / t, rel=2e-3
        )
        assert sum(parts_of(gpt_block(), kernels, split).values()) == pytest.approx((34 + 40) / t, rel=2e-3)


def test_tensor_parallelism_divides_all_but_stream_and_normed_inputs() -> None:
    # rows 1, 3, 9, 11 of the Llama table stay (8 sbh), the other 33.03 are divided
    llama = load_model("llama-3-8b")
    for t in (2, 4, 8):
        assert sum(parts_of(llama, EAGER_SWIGLU, shape(t=t)).values()) == pytest.approx(
            8.002 + 33.031 / t, rel=2e-4
        )


def test_sequence_parallelism_divides_the_stream_and_where_regathered_the_normed_inputs() -> None:
    llama, t = load_model("llama-3-8b"), 4
    gathered = Kernels(code=Aleph())
    shard = sum(parts_of(llama, EAGER_SWIGLU, shape(t=t, sp=True)).values())
    assert shard == pytest.approx(41.033 / t, rel=2e-4)
    whole = sum(parts_of(llama, gathered, shape(t=t, sp=True)).values())
    assert whole == pytest.approx(4.002 / t + 4 + 33.031 / t, rel=2e-4)


def test_key_value_heads_below_tp_are_copied() -> None:
    llama = load_model("llama-3-8b")
    at_8, at_16 = (parts_of(llama, FUSED, shape(t=t))["qkv"] for t in (8, 16))
    assert at_8 == pytest.approx((2 + 1) / 8)
    assert at_16 == pytest.approx(2 / 16 + 1 / 8)


def test_full_checkpoint_keeps_the_block_input_alone() -> None:
    for name in ("llama-3-8b", "mixtral-8x7b"):
        assert parts_of(load_model(name), FUSED)["input"] == pytest.approx(2.0)


def test_mla_attention_of_deepseek_v3() -> None:
    parts = parts_of(load_model("deepseek-v3"), FUSED)
    attention = parts["mla_streams"] + parts["mla_up_proj"] + parts["core_attn"] + parts["attention_out"]
    assert attention + 2.0 == pytest.approx(30.66, rel=5e-4)  # 2: the normed input
    # q 6.857, k 6.857, v 9.143: what recomputing the up-projections frees
    assert parts["mla_up_proj"] == pytest.approx(22.857, rel=1e-4)


@pytest.mark.parametrize(("name", "measured"), [("qwen3-30b-a3b", 58.40), ("mixtral-8x7b", 66.03)])
def test_moe_block(name: str, measured: float) -> None:
    parts = parts_of(load_model(name), EAGER_SWIGLU)
    block = parts["moe"] + parts["moe_act"] + 2.0  # 2: the router's normed input
    assert block == pytest.approx(measured, rel=1e-3)


def test_expert_parallelism_exchanges_tokens_and_removes_none() -> None:
    qwen = load_model("qwen3-30b-a3b")
    assert parts_of(qwen, FUSED, shape(e=8)) == parts_of(qwen, FUSED, shape(e=1))


def test_expert_tensor_parallelism_gathers_the_tokens_it_divides() -> None:
    # et ranks gather et times the rows, each with 1/et of the expert width: inner tensors stay, outer ones grow
    qwen = load_model("qwen3-30b-a3b")
    one, two = (parts_of(qwen, FUSED, shape(t=4, sp=True, et=et, kv_heads=4)) for et in (1, 2))
    assert two["moe_act"] == pytest.approx(one["moe_act"])
    assert two["moe"] - one["moe"] == pytest.approx(2 * 2 * 8 / 4)  # 2Kh in, 2Kh out, once more, over t


def test_shared_expert_is_a_dense_mlp() -> None:
    parts = parts_of(load_model("deepseek-v3"), EAGER_SWIGLU, layer=10)
    assert parts["shared_experts"] == pytest.approx(8 * 2048 / 7168)


@pytest.mark.parametrize(
    ("precision", "saved"),
    [
        (Precision.BF16, 2.0),
        (Precision.FP8, 1.0),
        (Precision.FP8_MX, 1 + 1 / 32),  # with a scale of a byte per 32 values
        (Precision.NVFP4, 1 / 2 + 1 / 16),  # half a byte, with a scale of a byte per 16
    ],
)
def test_linear_inputs_are_kept_as_products_read_them(precision: Precision, saved: float) -> None:
    llama = load_model("llama-3-8b")
    parts = layer_activations(llama.layers[0], llama, shape(), FUSED, RECIPES[precision])
    assert float(parts["layernorm"][0]) == pytest.approx(2 * saved * TOKENS * 4096)
    assert float(parts["input"][0]) == pytest.approx(2 * TOKENS * 4096)
    # gate and up in 16 bits, the input of down as it is read
    assert float(parts["mlp"][0]) == pytest.approx((2 * 2 + saved) * TOKENS * 14336)
    # attention's own output, and a copy of it where the projection reads another format
    assert float(parts["attention_out"][0]) == pytest.approx((2 + saved % 2) * TOKENS * 4096)


@pytest.mark.parametrize("t", [1, 4])
def test_eager_loss_keeps_4_and_peaks_at_12_bytes_per_logit(t: int) -> None:
    llama = load_model("llama-3-8b")
    vocabulary = np.array([128256.0])
    inputs = 4 * TOKENS * 4096 + 4 * TOKENS
    eager = Kernels(loss=Eager())
    head = head_activations(vocabulary, llama, shape(t=t), eager, BF16)
    assert float(head.inputs[0]) == inputs
    assert float(head.logits[0]) == 2 * TOKENS * 128256
    assert float(head.kept[0]) == pytest.approx(4 * TOKENS * 128256)
    assert float((head.kept + head.transient)[0]) == pytest.approx(12 * TOKENS * 128256)  # 12.6 GB at 8,192
    parallel = head_activations(vocabulary, llama, shape(t=t), FUSED, BF16)
    assert float((parallel.kept + parallel.transient)[0]) == pytest.approx(12 * TOKENS * 128256 / t)


def test_capped_logits_are_kept_once_more_unless_they_come_in_parts() -> None:
    """Gemma 4 of 2 layers, 512 wide, 64,000 tokens of vocabulary, 8,192 tokens of transformers 5.17 run dry: 7.752 GiB
    with a cap, 6.776 without one, a logit's 2 bytes apart."""
    model, vocabulary = load_model("gemma-2-9b"), np.array([256000.0])
    assert model.capped_logits
    free = replace(model, capped_logits=False)
    for loss in (Eager(), Fused(), Linear()):
        kernels = Kernels(loss=loss)
        capped, plain = (head_activations(vocabulary, one, shape(), kernels, BF16) for one in (model, free))
        more = 0.0 if isinstance(loss, Linear) else 2.0 * TOKENS * 256000
        assert float(capped.kept[0] - plain.kept[0]) == more


@pytest.mark.parametrize(("t", "peak"), [(1, 12), (2, 16), (8, 16)])
def test_torch_peaks_at_16_bytes_per_logit_where_tp_ranks_split_them(t: int, peak: int) -> None:
    # 4 each: log-probabilities, gradient at the labels, exponents, their sum (torch loss.py); torchtitan#1690: 32B on
    # tp 8 took 43.4, 70.8 and 63.3 GiB, 38.5, 61.4 and 53.8 with 12 bytes, 43.1, 70.7 and 63.1 with 16
    kernels, llama = load_stack("torchtitan-2024").kernels, dense_model(4)
    vocabulary = np.array([32000.0])
    head = head_activations(vocabulary, llama, shape(t=t), kernels, BF16)
    logits = float(head.logits[0]) / 2
    assert float((head.kept + head.transient)[0]) == peak * logits


@pytest.mark.parametrize(("loss", "bytes_per_logit"), [(Fused(), 4), (Eager(logit_bytes=2.0), 6)])
def test_low_precision_loss(loss: AnyLoss, bytes_per_logit: int) -> None:
    # eager on bf16 logits: 6 (measured); fused: the logits and their gradient
    llama, vocabulary = load_model("llama-3-8b"), np.array([128256.0])
    kernels = Kernels(loss=loss)
    head = head_activations(vocabulary, llama, shape(), kernels, BF16)
    assert float((head.kept + head.transient)[0]) == pytest.approx(bytes_per_logit * TOKENS * 128256)


@pytest.mark.parametrize(
    ("kernel", "seq", "width"),
    [
        (AttentionKernel.EAGER, 1024, 4),
        (AttentionKernel.FUSED_SOFTMAX, 1024, 2),
        (AttentionKernel.FLASH, 1024, 0),
        (AttentionKernel.EAGER, 16384, 0),  # large enough to hold logits
    ],
)
def test_blocks_of_scores_lie_idle_at_the_loss(kernel: AttentionKernel, seq: int, width: int) -> None:
    llama, vocabulary, x = load_model("llama-3-8b"), np.array([128256.0]), shape(t=2, seq=seq)
    kernels = Kernels(loss=Eager(), attention=kernel, code=Aleph())
    head = head_activations(vocabulary, llama, x, kernels, BF16)
    idle = float((head.kept + head.transient)[0]) - 12 * TOKENS * 128256
    assert idle == 3 * width * TOKENS * seq * 32 / 2


def test_chunked_loss_divides_the_logits_by_its_chunks() -> None:
    # LongVA issue 19: 43 GB fall to 8 with the loss in chunks
    llama, vocabulary = load_model("llama-3-8b"), np.array([128256.0])
    kernels = Kernels(loss=Chunked(number=8))
    head = head_activations(vocabulary, llama, shape(), kernels, BF16)
    assert float(head.transient[0]) == pytest.approx(12 * TOKENS * 128256 / 8)
    assert float(head.kept[0]) == pytest.approx(2 * TOKENS * 4096)


@pytest.mark.parametrize(
    ("kind", "pairs", "queries"),
    [(ContextKind.P2P, 5, 1), (ContextKind.ALL_GATHER, 9, 1), (ContextKind.A2A, 3, 3)],
)
def test_context_parallel_buffers_by_hand(kind: ContextKind, pairs: int, queries: int) -> None:
    # Llama 3.1 8B on 4 ranks: keys and values are 2 x 8 x 128 values of 2 bytes a token, queries and output 2 x 4096
    model, x = load_model("llama-3.1-8b"), shape(tokens=2048)
    x = dataclasses.replace(x, c=np.array([4.0]), context=np.array([int(kind)], dtype=np.int32))
    found = context_working(model.attentions[0], Run(model.hidden), x)
    assert float(found[0]) == 2048 * (pairs * 2 * 2048 + queries * 2 * 2 * 4096)
