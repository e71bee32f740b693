"""Frameworks and releases as published rows write them."""

from __future__ import annotations

import pytest

from planner.calibrate.published.stack_of import FLASH1_SLOWDOWN, apply_switches, release_of, stack_of
from planner.catalog.load_stacks import DEFAULT_STACK, load_stack, stack_names
from planner.spec.machine.accelerator import Architecture
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy, Dispatcher


@pytest.mark.parametrize(
    ("framework", "source", "expected"),
    [
        ("nanotron", "ultrascale_playbook", "nanotron-2024"),
        ("AA-Scaling", "aleph_alpha_layouts", "aa-scaling-2023"),
        ("Megatron-LM (2021)", "megatron_lm_a100_2021", "megatron-2021"),
        ("Megatron-LM (2022)", "korthikanti2022", "megatron-2022"),
        ("NeMo/Megatron-Core (NeMo 1.x yaml)", "dgxc_benchmarking_24.11", "megatron-2024"),
        ("NeMo 23.09", "", "megatron-2024"),  # Hopper's 8-bit products need Transformer Engine
        ("Megatron-Core r0.8.0", "", "megatron-2024"),
        ("Megatron-Bridge/Megatron-Core", "megatron_bridge_25.09", "megatron-2026"),
        ("Megatron-Bridge/Megatron-Core", "megatron_bridge_26.04.01", "megatron-2026"),
        ("Megatron-LM 23e00ed + TE 2.11", "simumax_b200", "megatron-2026"),
        ("llm-foundry/composer FSDP", "", "llm-foundry-2023"),
        ("torchtitan FSDP2", "torchtitan_202412", "torchtitan-2024"),
        ("torchtitan", "torchtitan_202607", "torchtitan-2026"),
        ("PaxML (JAX)", "", "maxtext-2024"),
        ("PyTorch FSDP1 (fms-fsdp)", "", "fsdp1-2023"),
        ("Megatron-DeepSpeed", "vtrain_single", "vtrain-2024"),
        ("Megatron-DeepSpeed", "vtrain_multi", "megatron-deepspeed-2022"),
    ],
)
def test_framework_has_its_stack(framework: str, source: str, expected: str) -> None:
    choice = stack_of(framework, source, Architecture.HOPPER, DEFAULT_STACK)
    assert (choice.name, choice.kin) == (expected, "")


@pytest.mark.parametrize(
    "framework",
    [
        "ATorch, DeepSpeed pipelines",
        "InternEvo",
        "OneFlow LiBai",
        "FSDP2 + transformers",
        "Primus",
        "something new",
        "",
    ],
)
def test_other_frameworks_name_their_kin(framework: str) -> None:
    choice = stack_of(framework, "source", Architecture.CDNA3, DEFAULT_STACK)
    assert choice.kin
    assert choice.name in stack_names()
    assert choice.assumed


def test_undated_megatron_is_of_the_time_of_its_machine() -> None:
    names = [
        stack_of("Megatron-LM", "x", a, DEFAULT_STACK).name
        for a in (Architecture.AMPERE, Architecture.BLACKWELL)
    ]
    assert names == ["megatron-2022", "megatron-2026"]
    assert stack_of("NeMo 23.05", "x", Architecture.AMPERE, DEFAULT_STACK).name == "megatron-2022"


@pytest.mark.parametrize(
    "framework", ["ATorch DS 3D", "DeepSpeed 3D of ATorch", "ATorch (Megatron-DeepSpeed)"]
)
def test_atorch_runs_layers_of_transformers_in_pipelines_of_deepspeed(framework: str) -> None:
    choice = stack_of(framework, "x", Architecture.AMPERE, DEFAULT_STACK)
    assert (choice.name, choice.kin) == ("deepspeed-2025", framework)


@pytest.mark.parametrize("framework", ["InternEvo", "FlagScale", "Pai-Megatron"])
def test_forks_that_had_flash_attention_from_the_start_are_no_older(framework: str) -> None:
    choice = stack_of(framework, "x", Architecture.AMPERE, DEFAULT_STACK)
    assert choice.name == "megatron-2024"
    assert load_stack(choice.name).kernels.attention is AttentionKernel.FLASH


def test_only_a_release_is_read_from_the_source() -> None:
    assert release_of("NeMo", "dgxc_benchmarking_25.05") == 202505
    assert release_of("NeMo", "any_other_name") is None


def test_flash1_doubles_attention_and_rms_kernel_fuses_norms() -> None:
    stack = load_stack("aa-scaling-2023")
    first, _ = apply_switches(stack, "kernel=flash_attentionv1.0.8")
    second, said = apply_switches(stack, "kernel=flash_attention2 + RMS kernel")
    assert first.compute.attention == FLASH1_SLOWDOWN * second.compute.attention
    assert second.kernels.fused_norm
    assert not first.kernels.fused_norm
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
    assert serial.kernels.cross_entropy is CrossEntropy.FUSED


def test_liger_fuses_more_than_the_loss() -> None:
    stack = load_stack("deepspeed-2025")
    kernels = apply_switches(stack, "liger")[0].kernels
    assert (kernels.fused_norm, kernels.fused_rotary, kernels.fused_activation) == (True, True, True)
    assert kernels.cross_entropy is CrossEntropy.CHUNKED
    assert not stack.kernels.fused_rotary


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
    _, said = apply_switches(load_stack("megatron-2026"), "cpu_offload=true")
    assert any("offload" in text for text in said)


def test_a_guessed_release_is_one_that_runs_the_experts() -> None:
    """torchtitan of 2024 deals no experts, its successor does; a release that is stated stands."""
    guessed = stack_of("torchtitan", "a paper", Architecture.HOPPER, "megatron-2026")
    assert (guessed.name, guessed.later) == ("torchtitan-2024", ("torchtitan-2026",))
    assert guessed.running(1) == guessed
    assert guessed.running(8).name == "torchtitan-2026"
    assert any("ep=8" in said for said in guessed.running(8).assumed)
    stated = stack_of("torchtitan", "torchtitan_202412", Architecture.HOPPER, "megatron-2026")
    assert stated.running(8).name == "torchtitan-2024"
    assert stack_of("NeMo", "a paper", Architecture.VOLTA, "megatron-2026").later[0] == "megatron-2022"


def test_scales_by_rows_gather_in_16_bits() -> None:
    stack = load_stack("torchtitan-2024")
    assert stack.communication.tp_gathers_float8
    rows, said = apply_switches(stack, "vanilla TP; compile; float8 rowwise")
    assert not rows.communication.tp_gathers_float8
    assert said == ("fp8 scales per row",)


@pytest.mark.parametrize("framework", ["MaxText", "MaxText (JAX)", "PaxML (JAX)"])
def test_software_that_is_compiled_is_itself_on_tpus(framework: str) -> None:
    choice = stack_of(framework, "", Architecture.TPU, DEFAULT_STACK)
    assert (choice.name, choice.kin) == ("maxtext-2024", "")


@pytest.mark.parametrize(
    ("framework", "architecture"),
    [
        ("Levanter", Architecture.TPU),
        ("Marin / Levanter", Architecture.TPU),
        ("EasyDeL", Architecture.TPU),
        ("t5x", Architecture.TPU),
        ("AXLearn (JAX)", Architecture.TRAINIUM),
        ("NeuronX Distributed Training", Architecture.TRAINIUM),
        ("neuronx-nemo-megatron", Architecture.TRAINIUM),
        ("NxDT", Architecture.TRAINIUM),
        ("optimum-neuron", Architecture.TRAINIUM),
        ("PyTorch/XLA FSDP", Architecture.TPU),
        ("transformers + torch_xla SPMD", Architecture.TPU),
        ("torchtitan", Architecture.TPU),  # its stack launches kernels of GPUs
        ("Megatron-LM", Architecture.TRAINIUM),
        ("something else", Architecture.TPU),
        ("", Architecture.TPU),
    ],
)
def test_other_software_of_compiled_devices_has_a_kin(framework: str, architecture: Architecture) -> None:
    choice = stack_of(framework, "", architecture, DEFAULT_STACK)
    assert (choice.name, choice.kin) == ("maxtext-2024", framework or "an unnamed framework")
    assert any("nearest kin maxtext-2024" in text for text in choice.assumed)


def test_frameworks_of_gpus_keep_their_stacks() -> None:
    for framework in ("torchtitan", "Megatron-LM", "something else", ""):
        assert stack_of(framework, "", Architecture.HOPPER, DEFAULT_STACK).name != "maxtext-2024"
