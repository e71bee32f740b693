"""Switches that texts of published rows set, deny or leave out."""

from __future__ import annotations

import pytest

from benchmarks.published.switches import FLASH1_SLOWDOWN, apply_switches
from planner.catalog.load_stacks import load_stack
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy, Dispatcher
from planner.spec.stack.layer_code import Part


def test_flash1_doubles_attention_and_rms_kernel_fuses_norms() -> None:
    stack = load_stack("aa-scaling-2023")
    first, _ = apply_switches(stack, "kernel=flash_attentionv1.0.8")
    second, said = apply_switches(stack, "kernel=flash_attention2 + RMS kernel")
    assert first.compute.attention == FLASH1_SLOWDOWN * second.compute.attention
    assert second.kernels.code.fused_norm
    assert not first.kernels.code.fused_norm
    assert said
    eager, _ = apply_switches(stack, "kernel=torch")
    assert eager.kernels.attention is AttentionKernel.EAGER


def test_switches_of_recipes() -> None:
    stack = load_stack("megatron-2026")
    hidden, _ = apply_switches(stack, "moe_a2a_overlap=True")
    assert hidden.communication.ep_overlap > stack.communication.ep_overlap
    fused, _ = apply_switches(stack, "moe_flex_dispatcher_backend=hybridep")
    assert fused.communication.dispatcher is Dispatcher.HYBRIDEP
    assert apply_switches(stack, "cutedsl_fused_grouped_mlp=True")[0].kernels.fused_experts
    assert (
        apply_switches(stack, "cuda_graph_impl=full_iteration")[0] is stack
    )  # the configuration's, not the stack's
    serial, _ = apply_switches(stack, "no comm overlap (tp, p2p, dp); TE cross-entropy fusion")
    assert serial.communication.dp_overlap == 0
    assert serial.kernels.loss.kind is CrossEntropy.FUSED


def test_liger_fuses_more_than_the_loss() -> None:
    stack = load_stack("deepspeed-2025")
    kernels = apply_switches(stack, "liger")[0].kernels
    assert set(kernels.code.fused) == set(Part)
    assert kernels.loss.kind is CrossEntropy.LINEAR
    assert not stack.kernels.code.fused


@pytest.mark.parametrize(
    ("text", "older"),
    [
        ("liger", True),
        ("liger 0.6.1", True),
        ("liger-kernel v0.6.2", False),
        ("use liger_kernel==0.8.1", False),
    ],
)
def test_ligers_release_is_the_rows_or_that_of_the_stacks_time(text: str, older: bool) -> None:
    """Stacks of 2025-06 and before are of the time before 0.6.2."""
    kernels = apply_switches(load_stack("deepspeed-2025"), text)[0].kernels
    assert kernels.loss.adds_in_product is older


def test_tensor_parallel_overlap_is_what_the_row_says_of_it() -> None:
    recipes = load_stack("megatron-2024")  # its runs had it
    assert apply_switches(recipes, "tp-comm-overlap, overlap-grad-reduce")[0] is recipes
    alone, said = apply_switches(recipes, "ub_tp_comm_overlap=false")
    assert (alone.communication.tp_exposed, alone.communication.tp_overlapped) == (1.0, False)
    assert said == ("tensor-parallel communication not overlapped",)
    vanilla = load_stack("torchtitan-2024")
    hidden, _ = apply_switches(vanilla, "async TP")
    assert hidden.communication.tp_exposed < vanilla.communication.tp_exposed


def test_flash_attention_that_a_row_names_replaces_softmax_kernels() -> None:
    before = load_stack("megatron-deepspeed-2022")
    assert apply_switches(before, "use-flash-attn-v2")[0].kernels.attention is AttentionKernel.FLASH
    for text in ("no flash-attn", "without flash attention", "fused softmax"):
        assert apply_switches(before, text)[0].kernels.attention is AttentionKernel.FUSED_SOFTMAX
    for text in ("eager attention", "attn_implementation=eager", "attn_impl: torch"):
        assert (
            apply_switches(load_stack("deepspeed-2025"), text)[0].kernels.attention is AttentionKernel.EAGER
        )


def test_what_is_not_modelled_is_said() -> None:
    _, said = apply_switches(load_stack("megatron-2026"), "parallel transformer block, no sliding window")
    assert said == ("the parallel block of the row is not modelled",)


def test_scales_by_rows_gather_in_16_bits() -> None:
    stack = load_stack("torchtitan-2024")
    assert stack.kernels.tp_gathers_float8
    rows, said = apply_switches(stack, "vanilla TP; compile; float8 rowwise")
    assert not rows.kernels.tp_gathers_float8
    assert said == ("fp8 scales per row",)


@pytest.mark.parametrize(
    "text",
    ["use_flash_attn=False", "flash attention off", "flash-attn disabled", "w/o flash attention", "no FlashAttention-2",
     "FlashAttention: no", "not using flash attention", "no FA", "unfused attention"],
)  # fmt: skip
def test_attention_that_is_denied_its_kernel_keeps_its_scores(text: str) -> None:
    kernels = apply_switches(load_stack("megatron-2024"), text)[0].kernels
    assert kernels.attention is AttentionKernel.FUSED_SOFTMAX
    assert apply_switches(load_stack("fsdp1-2023"), text)[0].kernels.attention is AttentionKernel.EAGER


@pytest.mark.parametrize("text", ["no DeepEP", "DeepEP off", "DeepEP=False", "without HybridEP or DeepEP"])
def test_a_dispatcher_that_is_denied_is_none(text: str) -> None:
    assert (
        apply_switches(load_stack("megatron-2026"), text)[0].communication.dispatcher is Dispatcher.ALL_TO_ALL
    )
    assert (
        apply_switches(load_stack("hai-llm-2024"), text)[0].communication.dispatcher is Dispatcher.ALL_TO_ALL
    )


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("no overlap-moe-expert-parallel-comm", False),
        ("EP overlap off", False),
        ("no shared expert overlap", False),
        ("shared_expert_overlap=True", False),
        ("no overlap of the expert exchange", False),
        ("no shared expert overlap; moe_a2a_overlap=True", True),
        ("overlap of the experts' exchange", True),
        ("moe_a2a_overlap=False", False),
        ("EP overlap", True),
        ("EP A2A overlap, no CUDA graphs", True),
        ("1F1B A2A overlap", True),
        ("1F1B all-to-all overlap", True),
        ("overlap-moe-expert-parallel-comm", True),
        ("EP overlap on (search run)", True),
    ],
)
def test_overlap_of_the_experts_exchange(text: str, hidden: bool) -> None:
    assert bool(apply_switches(load_stack("megatron-2026"), text)[0].communication.ep_overlap) is hidden


@pytest.mark.parametrize(
    "text", ["FSDP, no torch.compile", "torch.compile=False", "FSDP", "FSDP; not compiled"]
)
def test_torchtitan_that_is_not_compiled(text: str) -> None:
    assert not apply_switches(load_stack("torchtitan-2024"), text)[0].kernels.code.fused_norm
    assert apply_switches(load_stack("torchtitan-2024"), "FSDP + torch.compile")[0].kernels.code.fused_norm


@pytest.mark.parametrize(
    "text",
    [
        "no overlap",
        "without overlap",
        "no comm overlap",
        "communication overlap: off",
        "no comm/compute overlap",
    ],
)
def test_nothing_overlaps(text: str) -> None:
    comm = apply_switches(load_stack("megatron-2026"), text)[0].communication
    assert (comm.dp_overlap, comm.tp_exposed, comm.p2p_exposed, comm.ep_exposed) == (0.0, 1.0, 1.0, 1.0)
    assert apply_switches(load_stack("fsdp1-2023"), text)[0].communication.dp_overlap == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "no overlap of gradients",
        "overlap_grad_reduce=False",
        "no overlap-grad-reduce",
        "no dp overlap",
        "DP overlap off",
    ],
)
def test_gradients_reduced_with_nothing_beside(text: str) -> None:
    before = load_stack("megatron-2026").communication
    after = apply_switches(load_stack("megatron-2026"), text)[0].communication
    assert (after.dp_overlap, after.tp_exposed) == (0.0, before.tp_exposed)
    assert apply_switches(load_stack("deepspeed-2025"), text)[0].communication.dp_overlap == 0.0


def test_the_overlap_of_one_exchange_is_no_other() -> None:
    stack = load_stack("megatron-2026")
    for text in (
        "no overlap of the expert exchange",
        "no shared expert overlap",
        "EP overlap off",
        "CP overlap: none",
        "overlap-grad-reduce, overlap-param-gather",
    ):
        assert apply_switches(stack, text)[0].communication.dp_overlap == stack.communication.dp_overlap


def test_narrower_states_where_the_stack_has_the_option() -> None:
    pure, said = apply_switches(load_stack("torchtitan-2026"), "pure bf16")
    assert pure.engine.pure_bf16
    assert said == ("weights and moments in bf16 alone",)
    same, said = apply_switches(load_stack("megatron-2026"), "pure bf16")
    assert same is load_stack("megatron-2026")
    assert "not used" in said[0]
    for text in ("bf16 grads", "gradients reduced in bf16", "grad_reduce_in_fp32=False"):
        narrow = apply_switches(load_stack("megatron-2026"), text)[0]
        assert (narrow.engine.gradient, narrow.engine.sent_gradient) == (2.0, 2.0)
    assert apply_switches(load_stack("megatron-2026"), "grad_reduce_in_fp32=True")[1] == ()
    assert "not used" in apply_switches(load_stack("megatron-2022"), "bf16 grads")[1][0]


@pytest.mark.parametrize(
    ("text", "drops"),
    [("dropout 0.1", True), ("hidden_dropout=0.1", True), ("dropout=0.0", False), ("no dropout", False),
     ("dropout 0", False), ("lora_dropout=0.1", None), ("attention_dropout=0.1", None)],
)  # fmt: skip
def test_dropout_of_a_row(text: str, drops: bool | None) -> None:
    for name in ("megatron-2022", "megatron-2026"):
        before = load_stack(name)
        after = apply_switches(before, text)[0].kernels.dropout
        assert after is (before.kernels.dropout if drops is None else drops)


@pytest.mark.parametrize(
    ("text", "stack", "padding"),
    [
        ("capacity factor 1.25, padded", "megatron-2026", 1.25),
        ("capacity factor 1.25", "megatron-2026", 0.0),
        ("capacity_factor=1.25", "deepspeed-2025", 1.25),
        ("capacity factor 0.75", "megatron-2026", 0.75),
        ("dropless", "deepspeed-2025", 0.0),
    ],
)
def test_capacity_of_experts(text: str, stack: str, padding: float) -> None:
    found, said = apply_switches(load_stack(stack), text)
    assert found.kernels.expert_padding == padding
    assert bool(said) is ("capacity" in text)


@pytest.mark.parametrize("text", ["FlashAttention-1", "flash_attn v1", "FA1"])
def test_the_first_flash_attention_is_half_as_fast(text: str) -> None:
    for name in ("megatron-2022", "megatron-2026"):
        before = load_stack(name)
        after = apply_switches(before, text)[0]
        assert after.kernels.attention is AttentionKernel.FLASH_2
        assert after.compute.attention == before.compute.attention * FLASH1_SLOWDOWN


def test_flash_attention_2_in_other_words() -> None:
    for text in ("flash_attn v2", "FlashAttention v2", "FA-2"):
        kernels = apply_switches(load_stack("megatron-2026"), text)[0].kernels
        assert kernels.attention is AttentionKernel.FLASH_2


def test_overlap_that_a_release_has_not_is_said() -> None:
    assert "not used" in apply_switches(load_stack("megatron-2022"), "overlap-grad-reduce")[1][0]
    assert apply_switches(load_stack("megatron-2026"), "overlap-grad-reduce")[1] == ()


@pytest.mark.parametrize("words", ["flash attention (Triton)", "triton attention", "use-flash-attn-triton"])
def test_flash_attention_in_triton_is_a_kernel_of_its_own(words: str) -> None:
    stack = apply_switches(load_stack("megatron-deepspeed-2022"), words)[0]
    assert stack.kernels.attention is AttentionKernel.FLASH_TRITON


@pytest.mark.parametrize(
    "words",
    [
        "reduce_dtype=torch.float32",
        "fp32 gradient reduction",
        "mixed_precision=default",
        "grad reduce in fp32",
    ],
)
def test_gradients_that_a_row_reduces_in_32_bits(words: str) -> None:
    loop = load_stack("fsdp1-2023")
    assert apply_switches(loop, words)[0].engine.sent_gradient == 4.0
    assert apply_switches(load_stack("llm-foundry-2023"), words)[0] == load_stack("llm-foundry-2023")
    wide = apply_switches(load_stack("megatron-2024"), words)[0]
    assert (wide.engine.sent_gradient, wide.engine.gradient) == (4.0, 4.0)
    assert apply_switches(loop, "gradients accumulate in fp32")[0] is loop
