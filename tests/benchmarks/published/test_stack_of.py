"""Frameworks and releases as published rows write them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.published.degrees import Degrees
from benchmarks.published.releases import Needs, needs_of, release_of
from benchmarks.published.stack_of import stack_of
from planner.catalog.load_stacks import load_stack, stack_names
from planner.spec.machine.accelerator import Architecture
from planner.spec.model import ModelSpec
from planner.spec.stack.kinds import AttentionKernel
from tests.problems import dense_model, moe_model


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
    choice = stack_of(framework, source, Architecture.HOPPER)
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
    choice = stack_of(framework, "source", Architecture.CDNA3)
    assert choice.kin
    assert choice.name in stack_names()
    assert choice.assumed


def test_undated_megatron_is_of_the_time_of_its_machine() -> None:
    names = [stack_of("Megatron-LM", "x", a).name for a in (Architecture.AMPERE, Architecture.BLACKWELL)]
    assert names == ["megatron-2022", "megatron-2026"]
    assert stack_of("NeMo 23.05", "x", Architecture.AMPERE).name == "megatron-2022"


@pytest.mark.parametrize(
    "framework", ["ATorch DS 3D", "DeepSpeed 3D of ATorch", "ATorch (Megatron-DeepSpeed)"]
)
def test_atorch_runs_layers_of_transformers_in_pipelines_of_deepspeed(framework: str) -> None:
    choice = stack_of(framework, "x", Architecture.AMPERE)
    assert (choice.name, choice.kin) == ("deepspeed-2025", framework)


def test_internevo_of_2023_is_an_own_trainer_later_a_megatron() -> None:
    ampere = stack_of("InternEvo", "x", Architecture.AMPERE)
    assert (ampere.name, ampere.kin) == ("aa-scaling-2023", "InternEvo")
    assert ampere.running(Needs(ep=8)).name == "megatron-2024"  # the stack of 2023 deals no experts
    assert stack_of("InternEvo", "x", Architecture.HOPPER).name == "megatron-2024"


def test_megatron_before_april_2021_sends_whole_hidden_states_to_the_next_stage() -> None:
    volta = stack_of("Megatron-LM", "x", Architecture.VOLTA)
    assert not load_stack(volta.name).engine.scatters_shares
    assert load_stack(stack_of("Megatron-LM (2021)", "x", Architecture.VOLTA).name).engine.scatters_shares


@pytest.mark.parametrize("framework", ["FlagScale", "Pai-Megatron"])
def test_forks_that_had_flash_attention_from_the_start_are_no_older(framework: str) -> None:
    choice = stack_of(framework, "x", Architecture.AMPERE)
    assert choice.name == "megatron-2024"
    assert load_stack(choice.name).kernels.attention is AttentionKernel.FLASH


def test_only_a_release_is_read_from_the_source() -> None:
    assert release_of("NeMo", "dgxc_benchmarking_25.05") == 202505
    assert release_of("NeMo", "any_other_name") is None


def test_a_guessed_release_is_one_that_runs_the_degrees() -> None:
    """torchtitan of 2024 deals no experts, its successor does; a release that is stated stands."""
    guessed = stack_of("torchtitan", "a paper", Architecture.HOPPER)
    assert (guessed.name, [name for _, name in guessed.eras][1:]) == ("torchtitan-2024", ["torchtitan-2026"])
    assert guessed.running(Needs()) == guessed
    assert guessed.running(Needs(ep=8)).name == "torchtitan-2026"
    assert any("ep=8" in said for said in guessed.running(Needs(ep=8)).assumed)
    stated = stack_of("torchtitan", "torchtitan_202412", Architecture.HOPPER)
    assert stated.running(Needs(ep=8)).name == "torchtitan-2024"
    undated = stack_of("NeMo", "a paper", Architecture.VOLTA)
    assert undated.running(Needs(cp=2)).name == "megatron-2024"


CELLS = {
    "model": "gpt", "seq_len": "4096", "ep": "", "cp": "", "pp": "4", "schedule": "1f1b", "optimizer": "adam",
    "extras": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "model", "name"),
    [
        ({}, dense_model(), "megatron-2022"),
        ({"model": "llama2_7b"}, dense_model(), "megatron-2022"),
        ({"model": "llama3_8b"}, dense_model(), "megatron-2024"),
        ({"model": "some_model"}, replace(dense_model(), vocab=128256), "megatron-2024"),
        ({"model": "Qwen3-8B"}, dense_model(), "megatron-2025"),
        ({"model": "mixtral_8x7b"}, moe_model(), "megatron-2024"),
        ({"cp": "4"}, dense_model(), "megatron-2024"),
        ({"ep": "4"}, moe_model(), "megatron-2024"),
        ({"ep": "4"}, dense_model(), "megatron-2022"),
        ({"schedule": "zb-h1"}, dense_model(), "megatron-2024"),
        ({"schedule": "zbv"}, dense_model(), "megatron-2024"),
        ({"schedule": "v-half"}, dense_model(), "megatron-2024"),
        ({"schedule": "zbv", "pp": "1"}, dense_model(), "megatron-2022"),
        ({"optimizer": "muon"}, dense_model(), "megatron-2024"),
        ({"optimizer": "adam_bf16"}, dense_model(), "megatron-2024"),
        ({"seq_len": "32768"}, dense_model(), "megatron-2024"),
        ({"extras": "overlap-grad-reduce"}, dense_model(), "megatron-2024"),
        ({"extras": "no CUDA graphs"}, dense_model(), "megatron-2022"),
        ({"extras": "CPU optimizer offload"}, dense_model(), "megatron-2025"),
        ({"extras": "HybridEP"}, dense_model(), "megatron-2026"),
    ],
)
def test_an_undated_release_is_no_older_than_what_it_runs(
    changed: dict[str, str], model: ModelSpec, name: str
) -> None:
    choice = stack_of("Megatron-LM", "a paper", Architecture.AMPERE)
    cells = {**CELLS, **changed}
    tp, cp, pp, ep = (int(cells.get(axis) or 1) for axis in ("tp", "cp", "pp", "ep"))
    needs = needs_of(cells, model, Degrees(tp, cp, pp, ep, 1))
    chosen = choice.running(needs)
    assert chosen.name == name
    assert bool(set(chosen.assumed) - set(choice.assumed)) is (name != choice.name)
    dated = stack_of("Megatron-LM (2022)", "a paper", Architecture.AMPERE)
    assert dated.running(needs) == dated


@pytest.mark.parametrize(
    ("framework", "architecture", "name"),
    [
        ("sail-sg zero-bubble", Architecture.AMPERE, "megatron-2024"),
        ("zero-bubble-pipeline-parallelism", Architecture.AMPERE, "megatron-2024"),
        ("Megatron-LM (zero bubble fork)", Architecture.HOPPER, "megatron-2024"),
        ("LLM Foundry", Architecture.HOPPER, "llm-foundry-2023"),
        ("Levanter", Architecture.AMPERE, "maxtext-2024"),
        ("Levanter (JAX)", Architecture.AMPERE, "maxtext-2024"),
        ("PyTorch DDP", Architecture.VOLTA, "fsdp1-2023"),
        ("PyTorch", Architecture.AMPERE, "fsdp1-2023"),
        ("nanoGPT", Architecture.AMPERE, "fsdp1-2023"),
        ("llm.c", Architecture.AMPERE, "megatron-2024"),
        ("AxoNN", Architecture.VOLTA, "megatron-2021+no-scatter-gather-tensors-in-pipeline"),
        ("AxoNN", Architecture.CDNA2, "megatron-2024"),
        ("MCore 0.14", Architecture.HOPPER, "megatron-2026"),
        ("MCore", Architecture.AMPERE, "megatron-2022"),
        ("Megatron-FSDP", Architecture.HOPPER, "megatron-fsdp-2026"),
        ("DeepSpeed ZeRO-3", Architecture.AMPERE, "deepspeed-2025"),
        ("VeOmni", Architecture.HOPPER, "torchtitan-2024"),
        ("something new", Architecture.VOLTA, "megatron-2021"),
        ("something new", Architecture.AMPERE, "megatron-2024"),
        ("something new", Architecture.HOPPER, "megatron-2024"),
        ("", Architecture.VOLTA, "megatron-2021"),
        ("", Architecture.BLACKWELL, "megatron-2026"),
    ],
)
def test_kin_by_what_a_framework_is_and_the_age_of_its_device(
    framework: str, architecture: Architecture, name: str
) -> None:
    assert stack_of(framework, "a paper", architecture).name == name


@pytest.mark.parametrize("framework", ["MaxText", "MaxText (JAX)", "PaxML (JAX)"])
def test_software_that_is_compiled_is_itself_on_tpus(framework: str) -> None:
    choice = stack_of(framework, "", Architecture.TPU)
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
    choice = stack_of(framework, "", architecture)
    assert (choice.name, choice.kin) == ("maxtext-2024", framework or "an unnamed framework")
    assert any("closest measured stack maxtext-2024" in text for text in choice.assumed)


def test_frameworks_of_gpus_keep_their_stacks() -> None:
    for framework in ("torchtitan", "Megatron-LM", "something else", ""):
        assert stack_of(framework, "", Architecture.HOPPER).name != "maxtext-2024"


@pytest.mark.parametrize(
    ("framework", "release"),
    [
        ("Megatron-LM 2022-12 (BigCode)", 202212), ("Megatron-LM 2022.12", 202212), ("Megatron-LM 202212", 202212),
        ("Megatron-LM (Dec 2022)", 202212), ("Megatron-LM, March 2021", 202103), ("Megatron-LM v2.2", 202103),
        ("Megatron-LM v2.6", 202112), ("Megatron-LM v3.0", 202212), ("Megatron-LM core_r0.5.0", 202408),
        ("torchtitan 2024-12", 202412), ("Megatron-LM (2022)", 202206), ("NeMo 24.07", 202407),
        ("Megatron-LM 23e00ed", None), ("Megatron-LM on 2048 GPUs", None),
    ],
)  # fmt: skip
def test_releases_written_as_dates(framework: str, release: int | None) -> None:
    assert release_of(framework, "a paper") == release


def test_gemini_wraps_layers_of_transformers() -> None:
    assert stack_of("ColossalAI (Gemini)", "x", Architecture.AMPERE).name == "deepspeed-2025"
    assert stack_of("ColossalAI", "x", Architecture.HOPPER).name == "megatron-2024"
