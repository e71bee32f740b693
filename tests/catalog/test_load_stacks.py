"""Stack files: all readable, all with a source, bad ones refused with their field."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request, resolve
from planner.catalog.load_stacks import (
    DEFAULT_STACK,
    EXTENDED_BAND,
    is_shipped,
    load_stack,
    read_stack,
    require_release,
    stack_families,
    stack_names,
    stack_to_plan,
    stacks_to_plan,
)
from planner.errors import FileInputError, InputError, PlannerError, UnknownNameError, UnsupportedError
from planner.report.words import texts
from planner.spec.machine.load_cluster import accelerator_names
from planner.spec.precision import Precision
from planner.spec.stack import UNLIKE_BAND
from planner.spec.stack.engines import MegatronFsdp
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.section import Section


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_is_complete(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert stack.source
    assert not stack.kin or stack.kin in stack_names()
    assert {*stack.devices, *stack.compute.accelerator} <= set(accelerator_names())


def test_default_is_the_newest_megatron() -> None:
    assert max(name for name in stack_names() if name[:10] == "megatron-2") == DEFAULT_STACK


def test_sums_of_profiles_are_no_software_to_plan_for(tmp_path: Path) -> None:
    sums = set(stack_names()) - set(stacks_to_plan())
    assert sums == {"vtrain-2024"}
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\ndescription: d\nreleased: r\nsource: s\nextends: vtrain-2024\n")
    for name in (*sums, str(mine)):
        with pytest.raises(InputError, match="recomputes nothing"):
            stack_to_plan(name)
    assert stack_to_plan(DEFAULT_STACK) is load_stack(DEFAULT_STACK)


def test_names_are_forgiving_and_unknown_ones_are_listed() -> None:
    assert load_stack("Megatron_2026") is load_stack("Megatron_2026")
    with pytest.raises(UnknownNameError, match=r"nanotron-2024.* newest is meant: .*nanotron, nemo"):
        load_stack("nanotrn")


def test_of_a_family_the_newest_is_meant() -> None:
    """By name without its year, by framework, or by what runs on it; of two of 2026-08 the first by name."""
    assert stack_families() == {
        "aa-scaling": "aa-scaling-2023", "deepspeed": "deepspeed-2025", "fsdp1": "fsdp1-2023",
        "hai-llm": "hai-llm-2024", "llm-foundry": "llm-foundry-2023", "maxtext": "maxtext-2024",
        "megatron": DEFAULT_STACK, "megatron-deepspeed": "megatron-deepspeed-2022",
        "megatron-fsdp": "megatron-fsdp-2026", "nanotron": "nanotron-2024", "torchtitan": "torchtitan-2026",
        "fsdp": "fsdp1-2023", "accelerate": "fsdp1-2023", "composer": "fsdp1-2023",
        "megatron-bridge": DEFAULT_STACK, "nemo": DEFAULT_STACK, "transformers": "transformers-2026",
    }  # fmt: skip
    assert not {*stack_families()} & {*stack_names()}
    assert {*stack_families().values()} <= {*stacks_to_plan()}
    for family, name in stack_families().items():
        assert load_stack(family.title().replace("-", "_")) == load_stack(name)
        assert not is_shipped(family)
    assert load_stack("megatron+deepep") == load_stack(f"{DEFAULT_STACK}+deepep")
    request = Request("llama-3.1-8b", "1x8 h100", stack="torchtitan")
    assert resolve(request)[0] == resolve(replace(request, stack="torchtitan-2026"))[0]


def test_a_file_may_extend_the_newest_of_a_family(tmp_path: Path) -> None:
    file = tmp_path / "megatron.yaml"  # a file, by its ending
    file.write_text("name: mine\ndescription: d\nreleased: r\nsource: s\nextends: megatron\n")
    assert load_stack(str(file)).kin == DEFAULT_STACK
    file.write_text(file.read_text().replace("extends: megatron", "extends: megatrn"))
    with pytest.raises(FileInputError, match="megatrn"):
        read_stack(file)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("host: {layer_floor: 3}", "host.layer_floor"),
        ("host: {typo: 3 ms}", "host.typo"),
        ("band: -1", "band"),
        ("engine: {kind: fully_shard, bucket_elements: 5e8}", r"engine\.fully_shard\.bucket_elements"),
        ("engine: {gradient: 2}", "contiguous, .*fully_shard"),
        ("engine: {kind: [fully_shard]}", "contiguous, .*fully_shard"),
        ("kernels: {loss: {kind: {}}}", "its kind must be one of"),
        ("kernels: {expert_buffers: [-2, -30]}", r"kernels\.expert_buffers"),
        ("kernels: {expert_buffers: [1.2, 1.5]}", "no more rows"),
        ("limits: {zero: [4]}", r"limits\.zero"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\ndescription: d\nframework: f\nreleased: r\nsource: s\n{text}\n")
    with pytest.raises(FileInputError, match=field):
        read_stack(file)


@pytest.mark.parametrize("name", [DEFAULT_STACK, "torchtitan-2026-eager"])
def test_odd_lists_of_a_file_are_refused_or_estimated(name: str, tmp_path: Path) -> None:
    file, stack = tmp_path / "mine.yaml", load_stack(name)
    head = f"name: mine\ndescription: d\nreleased: r\nsource: s\nextends: {name}\n"
    sections = [("", stack), *((part, value) for part, value in stack if isinstance(value, Section))]
    lists = [
        f"{part}: {{{field}: %s}}\n" if part else f"{field}: %s\n"
        for part, section in sections
        for field, value in section
        if isinstance(value, tuple) or field == "expert_buffers"
    ]
    asked = Request("llama-3.2-1b", "1x8 h100", 8, seq_len=2048, global_batch="16", stack=str(file))
    for text, odd in product(lists, ("[]", "[0, 0]", "[-2, -30]")):
        file.write_text(head + text % odd)
        load_stack.cache_clear()
        with suppress(PlannerError):
            make_estimate(asked)


def test_a_file_states_what_differs_from_the_stack_it_extends(tmp_path: Path) -> None:
    file, base = tmp_path / "mine.yaml", load_stack(DEFAULT_STACK)
    head = "name: mine\ndescription: d\nreleased: r\nsource: s\n"
    file.write_text(f"{head}extends: {base.name}\ncompute:\n  attention: 3.0\n")
    stack = read_stack(file)
    assert stack.compute == base.compute.model_copy(update={"attention": 3.0})
    assert (stack.host, stack.framework, stack.kin) == (base.host, base.framework, base.name)
    assert stack.band == pytest.approx(EXTENDED_BAND * base.band)
    assert (stack.fitted, stack.fitted_on, stack.devices) == ((), "", ())
    for name in ("none", "megatron-fsdp-2026"):
        file.write_text(f"{head}extends: {name}\n")
        with pytest.raises(FileInputError, match="extends"):
            read_stack(file)


def test_an_engine_of_another_kind_takes_nothing_of_the_one_it_replaces(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    head = f"name: mine\ndescription: d\nreleased: r\nsource: s\nextends: {DEFAULT_STACK}\n"
    file.write_text(f"{head}engine: {{kind: megatron_fsdp}}\n")
    assert read_stack(file).engine == MegatronFsdp()
    file.write_text(f"{head}engine: {{gradient: 2.0}}\n")
    assert read_stack(file).engine == load_stack(DEFAULT_STACK).engine.model_copy(update={"gradient": 2.0})


def test_unreadable_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text in ("[1, 2", "- a", "\x00"):
        file.write_text(text)
        with pytest.raises(FileInputError):
            read_stack(file)
    with pytest.raises(FileInputError):
        load_stack(str(tmp_path / "none.yaml"))


def test_bands_grow_with_devices_and_for_mixtures() -> None:
    stack = load_stack(DEFAULT_STACK).model_copy(update={"band": 0.1, "band_moe": None, "band_widening": 0.5})
    assert stack.band_at(64, moe=False) == pytest.approx(0.1)
    assert stack.band_at(256, moe=False) == pytest.approx(0.2)
    assert stack.band_at(64, moe=True) == pytest.approx(0.1 * UNLIKE_BAND)
    measured = stack.model_copy(update={"band_moe": 0.05})
    assert measured.band_at(64, moe=True) == pytest.approx(0.1)  # never narrower


def test_options_follow_the_name() -> None:
    stack = load_stack("Megatron 2026+no-fp8-param-gather")
    assert stack.name == "megatron-2026+no-fp8-param-gather"
    assert stack.engine.fp8_param_gather == ()
    assert load_stack(stack.name) == stack
    for unknown in ("megatron-2026+fsdp", "torchtitan-2026+fp8-param-gather", "megatron-2026+"):
        with pytest.raises(UnknownNameError, match="option of stack"):
            load_stack(unknown)


def test_kernels_and_overlap_of_a_release_are_options() -> None:
    assert load_stack("megatron-2022+use-flash-attn").kernels.attention is AttentionKernel.FLASH
    assert load_stack("deepspeed-2025+flash-attention-3").kernels.attention is AttentionKernel.FLASH
    with pytest.raises(InputError, match="must not be named together"):
        load_stack("deepspeed-2025+flash-attention-3+sdpa-mask")
    serial = load_stack("megatron-2026+no-tp-comm-overlap+no-overlap-grad-reduce").communication
    assert (serial.tp_exposed, serial.tp_overlapped, serial.dp_overlap) == (1.0, False, 0.0)
    for older in ("megatron-2021", "megatron-2022", "megatron-deepspeed-2022"):
        whole = load_stack(f"{older}+no-scatter-gather-tensors-in-pipeline").engine
        assert load_stack(older).engine == whole.model_copy(update={"p2p_scatters": True})
    for idle in ("megatron-2024+use-flash-attn", "megatron-2022+no-tp-comm-overlap"):
        with pytest.raises(UnknownNameError, match="option of stack"):
            load_stack(idle)


def test_options_that_contradict_each_other_are_refused() -> None:
    assert load_stack("megatron-2026+deepep+deepep") == load_stack("megatron-2026+deepep")
    for both in ("megatron-2026+deepep+hybridep", "megatron-2026+fp8-param-gather+no-fp8-param-gather"):
        with pytest.raises(InputError, match="must not be named together"):
            load_stack(both)


def test_options_that_change_nothing_under_a_recipe_are_told() -> None:
    named = Request("llama-3.1-8b", "1x8 b200", stack="megatron-2026+fp4-param-gather+no-fp8-param-gather")
    idle = {
        precision: [
            said
            for said in texts(resolve(replace(named, precision=precision))[1])
            if "changes nothing" in said
        ]
        for precision in ("bf16", "fp8_cs", "nvfp4")
    }
    assert idle == {
        "bf16": [
            "+no-fp8-param-gather changes nothing under bf16",
            "+fp4-param-gather changes nothing under bf16",
        ],
        "fp8_cs": ["+fp4-param-gather changes nothing under fp8_cs"],
        "nvfp4": ["+no-fp8-param-gather changes nothing under nvfp4"],
    }


@pytest.mark.parametrize(
    ("stack", "has", "lacks", "newest"),
    [
        ("megatron-2026", "bf16 fp8 fp8_cs fp8_mx fp8_blockwise nvfp4", "", ""),
        ("megatron-2025", "bf16 fp8 fp8_cs fp8_mx fp8_blockwise", "nvfp4", "megatron-2026"),
        (
            "megatron-2024+fp8-param-gather",
            "bf16 fp16 fp8",
            "fp8_cs fp8_mx fp8_blockwise nvfp4",
            "megatron-2026",
        ),
        ("megatron-2022", "bf16 fp16", "fp8 fp8_mx nvfp4", "megatron-2026"),
        ("megatron-2021", "bf16 fp16", "fp8 fp8_mx nvfp4", "megatron-2026"),
        ("megatron-deepspeed-2022", "bf16 fp16", "fp8 fp8_mx nvfp4", DEFAULT_STACK),
        ("torchtitan-2024", "bf16 fp8_cs", "fp8_mx nvfp4", "torchtitan-2026"),
        ("llm-foundry-2023", "bf16 fp8", "fp8_mx nvfp4", DEFAULT_STACK),
        ("hai-llm-2024", "bf16 fp8 fp8_blockwise", "fp8_mx nvfp4", DEFAULT_STACK),
    ],
)
def test_a_release_has_the_recipes_of_its_time(stack: str, has: str, lacks: str, newest: str) -> None:
    """Megatron-Core's CHANGELOG.md: --fp8-recipe came with 0.12, in 2025; before, delayed scaling alone."""
    for name in has.split():
        require_release(load_stack(stack), Precision(name))
    for name in lacks.split():
        with pytest.raises(UnsupportedError, match=rf"must have the recipe {name}\n") as refused:
            require_release(load_stack(stack), Precision(name))
        assert f"--stack {newest}," in str(refused.value)


def test_a_plan_on_an_older_release_is_refused_in_newer_recipes() -> None:
    asked = Request("llama-3.1-8b", "1x8 b200", seq_len=4096, global_batch="64", stack="megatron-2024")
    resolve(replace(asked, precision="fp8"))
    with pytest.raises(UnsupportedError, match="software of 2024-11"):
        resolve(replace(asked, precision="nvfp4"))
