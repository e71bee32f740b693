"""Launch files ask for the kernels that the plan's stack counts on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ask.request import cost_model
from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ContextKind, ParallelConfig, Recompute
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import KeptWidths
from planner.spec.stack.layer_code import WITHOUT_ACTIVATION, Library
from planner.spec.stack.losses import AnyLoss, Compiled, Fused, InPlace
from tests.frameworks.launches import golden_launch, launch, problem

MIXTURE = ParallelConfig(dp=128, ep=8, micro_batch=1, num_microbatches=2, zero=1)


def mixture(**changes: dict[str, object]) -> Launch:
    """A mixture of experts on Megatron's newest stack, its sections changed."""
    found = launch("qwen3-30b-a3b", MIXTURE, problem("qwen3-30b-a3b", "megatron-2026"))
    return replace(found, stack=changed(found.stack, **changes))


def changed(stack: Stack | None, **sections: dict[str, object]) -> Stack:
    assert stack is not None
    parts = {name: getattr(stack, name) for name in sections}
    read = {name: type(part).model_validate(sections[name]) for name, part in parts.items()}
    # fields that were given, read as a file's would be; the others stay
    wanted = {
        name: parts[name].model_copy(update={field: getattr(new, field) for field in sections[name]})
        for name, new in read.items()
    }
    return stack.model_copy(update=wanted)


def script(name: str, given: Launch, version: str | None = None) -> str:
    found = framework(name)
    return found.render(given, found.version(version))["launch.sh"]


@pytest.mark.parametrize(
    ("section", "values", "wanted"),
    [
        ("kernels", {"attention": "flash-2"}, ("--attention-backend flash",)),
        ("kernels", {"attention": "fused-softmax"}, ("--attention-backend unfused",)),
        ("kernels", {"code": Library(fused=WITHOUT_ACTIVATION)}, ("--no-bias-swiglu-fusion",)),
        ("kernels", {"rotates_texts": True}, ("--no-rope-fusion",)),
        ("communication", {"dispatcher": "deepep"}, ("--moe-token-dispatcher-type flex", "deepep")),
        ("communication", {"ep_overlap": 0.5}, ("--overlap-moe-expert-parallel-comm",)),
        ("engine", {"fused_weight_gradient": False}, ("--no-gradient-accumulation-fusion",)),
    ],
)
def test_megatron_follows_the_stack(section: str, values: dict[str, object], wanted: tuple[str, ...]) -> None:
    plain = script("megatron", mixture())
    text = script("megatron", mixture(**{section: values}))
    for words in wanted:
        assert words in text
        assert f"{words}\n" not in plain


def test_the_loss_of_transformer_engine_is_asked_of_releases_that_have_it() -> None:
    given = mixture(kernels={"loss": Fused()})
    text = script("megatron", given, "0.16.1")
    assert "--cross-entropy-loss-fusion" in text
    assert "--cross-entropy-fusion-impl te" in text
    for version in ("0.18.2", "main-2026-08"):
        with pytest.raises(UnsupportedError, match="for stability"):
            script("megatron", given, version)


@pytest.mark.parametrize("version", framework("megatron").versions)
@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_fused_dispatchers(version: str, dispatcher: str) -> None:
    given = mixture(communication={"dispatcher": dispatcher})
    text = script("megatron", given, version)
    assert "--moe-token-dispatcher-type flex" in text
    assert f"--moe-flex-dispatcher-backend {dispatcher}" in text
    fields = script("megatron-bridge", given)
    assert f"model.moe_flex_dispatcher_backend={dispatcher}" in fields
    alone = replace(given, config=replace(MIXTURE, ep=1, etp=1))
    assert "--moe-token-dispatcher-type alltoall" in script("megatron", alone, version)


def test_gradients_reduced_after_the_backward_pass() -> None:
    given = golden_launch("megatron")
    assert "--overlap-grad-reduce" in script("megatron", given)
    late = replace(given, stack=changed(given.stack, communication={"dp_overlap": 0.0}))
    assert "--overlap" not in script("megatron", late)


def test_megatron_bridge_follows_the_stack() -> None:
    plain = script("megatron-bridge", mixture())
    assert "model.cross_entropy_loss_fusion=false" in plain
    assert "model.moe_permute_fusion=true" in plain
    changes = {
        "kernels": {"loss": Fused(), "rotates_texts": True, "kept_widths": KeptWidths.SWIGLU},
        "communication": {"dispatcher": "deepep"},
    }
    text = script("megatron-bridge", mixture(**changes))
    for words in (
        "cross_entropy_loss_fusion=true",
        "cross_entropy_fusion_impl=te",
        "apply_rope_fusion=false",
        "activation_func_fp8_input_store=true",
        "dispatcher_backend=deepep",
    ):
        assert words in text


def test_torchtitan_compiles_where_the_stack_does() -> None:
    given = golden_launch("torchtitan")
    eager = replace(given, stack=problem("llama-3.1-8b", "torchtitan-2026-eager").stack)
    assert "--compile.enable" in script("torchtitan", given)
    assert "--compile.no_enable\n" in script("torchtitan", eager)
    found = framework("torchtitan")
    assert "[compile]\nenable = true" in found.render(given, "0.2.2")["config.toml"]
    assert "[compile]\nenable = false" in found.render(eager, "0.2.2")["config.toml"]


def test_torchtitan_takes_from_python_what_no_option_says() -> None:
    config = ParallelConfig(tp=8, dp=16, micro_batch=1, num_microbatches=16, sp=1, zero=3)
    large = launch("llama-3.1-405b", config, problem("llama-3.1-405b", "torchtitan-2026"))
    found = framework("torchtitan")
    files = found.render(large, "0.3.0")
    assert "Float8" not in files["planned_config.py"]
    assert "--config llama3_405b" not in files["launch.sh"]  # which converts to float8
    read = found.parse(files)
    assert read.model is not None
    assert (read.model.name, read.precision) == ("llama-3.1-405b", Precision.BF16)
    narrow = found.render(replace(large, job=replace(large.job, precision=Precision.FP8_CS)), "0.3.0")
    assert found.parse(narrow).precision is Precision.FP8_CS


def test_torchtitan_configurations_with_a_precision_of_their_own() -> None:
    words = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_405b"
    read = framework("torchtitan").parse({"run.sh": words})
    assert read.model is not None
    assert (read.model.name, read.precision) == ("llama-3.1-405b", Precision.FP8_CS)


def test_torchtitan_cuts_the_sequence_into_the_parts_of_its_loss() -> None:
    given = problem("llama-3.1-8b", "torchtitan-2026")
    config = ParallelConfig(cp=8, dp=16, micro_batch=1, num_microbatches=16, zero=3)
    rules = all_rules_for("torchtitan")
    assert not explain_config(config, given, rules)
    short = replace(given, job=replace(given.job, seq_len=2048 + 16))
    assert "loss-chunks" in [found.rule for found in explain_config(config, short, rules)]


def test_torchtitan_cuts_the_mask_into_whole_blocks() -> None:
    """FlexAttention's mask goes to the ranks of cp in blocks of 128; scaled dot-product attention has no mask."""
    config = ParallelConfig(cp=2, dp=64, micro_batch=1, num_microbatches=4, zero=3)
    rules = all_rules_for("torchtitan")
    for stack, broken in (("torchtitan-2026", True), ("torchtitan-2024", False)):
        given = problem("llama-3.1-8b", stack)
        for seq_len, whole in ((4096, True), (384, False), (4096 + 64, False)):
            shorter = replace(given, job=replace(given.job, seq_len=seq_len))
            found = [violation.rule for violation in explain_config(config, shorter, rules)]
            assert ("flex-cp" in found) == (broken and not whole), (stack, seq_len)
    given = problem("llama-3.1-8b", "torchtitan-2024")
    short = launch("llama-3.1-8b", config, replace(given, job=replace(given.job, seq_len=384)))
    with pytest.raises(UnsupportedError, match=r"multiple of 128\n  given: 384 over cp=2"):
        framework("torchtitan").render(short, "0.3.0")
    assert framework("torchtitan").render(short, "0.2.2")


@pytest.mark.parametrize(("model", "cp", "asked"), [
    ("gpt-oss-20b", 2, True), ("gpt-oss-20b", 1, False), ("qwen3-30b-a3b", 2, False),
])  # fmt: skip
def test_torchtitan_takes_flex_attention_with_context_parallelism(model: str, cp: int, asked: bool) -> None:
    """gpt-oss ships with variable-length attention, which 0.3.0 refuses with cp."""
    config = ParallelConfig(cp=cp, dp=128 // cp, ep=2, micro_batch=1, num_microbatches=2 * cp, zero=3)
    files = framework("torchtitan").render(launch(model, config, problem(model, "torchtitan-2026")), "0.3.0")
    assert ('attn_backend="flex"' in files.get("planned_config.py", "")) == asked
    assert ("FlexAttention is asked for" in files["README.md"]) == asked


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_a_stack_of_another_framework_is_said(name: str) -> None:
    given = golden_launch(name)
    other = replace(given, stack=problem("llama-3.1-8b", "torchtitan-2026").stack)
    found = framework(name)
    assert "kernels of the plan's stack" in found.render(other, found.default_version)["README.md"]
    assert "kernels of the plan's stack" not in found.render(given, found.default_version)["README.md"]


@pytest.mark.parametrize(
    ("options", "alone"),
    [("", True), ("--tp-comm-overlap", False), ("--num-experts 8", False), ("--fp4-format e2m1", False)],
)
def test_files_that_do_not_ask_for_overlap_are_costed_without(options: str, alone: bool) -> None:
    """Where recipes ask for it: dense models with sequence parallelism, not in 4 bits."""
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 "
        f"--seq-length 2048 --tensor-model-parallel-size 4 --sequence-parallel --bf16 {options}"
    )
    read = framework("megatron").parse({"launch.sh": text}).stack_options
    assert ("no-tp-comm-overlap" in read) is alone


@pytest.mark.parametrize(
    ("stack", "model", "kind", "legal"),
    [
        ("megatron-2025", "llama-3.1-8b", ContextKind.P2P, True),
        ("megatron-2025", "llama-3.1-8b", ContextKind.A2A, False),
        ("megatron-2026+te-2.17", "llama-3.1-8b", ContextKind.A2A, True),
        ("megatron-2026+te-2.17", "llama-3.1-8b", ContextKind.ALL_GATHER, False),
        ("megatron-2026+te-2.17", "gemma-3-27b", ContextKind.P2P, False),  # its windows are gathered
        ("megatron-2026+te-2.17", "deepseek-v3.2", ContextKind.P2P, True),  # Megatron-Core gathers
        ("megatron-2026", "llama-3.1-8b", ContextKind.ALL_GATHER, True),
    ],
)
def test_packed_texts_are_exchanged_as_transformer_engine_can(
    stack: str, model: str, kind: ContextKind, legal: bool
) -> None:
    given = problem(model, stack)
    config = ParallelConfig(cp=2, dp=64, cp_kind=kind, micro_batch=1, num_microbatches=4)
    packs = replace(given, job=replace(given.job, mean_length=512, packed=True))
    rules = all_rules_for("megatron")
    assert ("cp-packed" in {broken.rule for broken in explain_config(config, packs, rules)}) is not legal
    assert "cp-packed" not in {broken.rule for broken in explain_config(config, given, rules)}


@pytest.mark.parametrize(("stack", "legal"), [("megatron-2024", True), ("megatron-2026", False)])
def test_mixtures_divided_without_sequence_parallelism_raise_at_their_first_step(
    stack: str, legal: bool
) -> None:
    given, config = problem("qwen3-30b-a3b", stack), ParallelConfig(tp=2, dp=64)
    for sp, fine in ((0, legal), (1, True)):
        found = explain_config(replace(config, sp=sp), given, all_rules_for("megatron"))
        assert ("moe-sp" not in {broken.rule for broken in found}) is fine


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("", None),
        ("--cross-entropy-loss-fusion", Compiled()),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", InPlace()),
    ],
)
def test_which_fused_loss_megatron_is_asked_for(options: str, kept: AnyLoss | None) -> None:
    found = framework("megatron")
    text = script("megatron", golden_launch("megatron"))
    line = next(line for line in text.splitlines() if "--micro-batch-size" in line)
    asked = text.replace(line, f"  {options} \\\n{line}" if options else line)
    assert found.parse({"launch.sh": asked}).loss == kept


def test_losses_of_megatron_by_bytes_a_logit() -> None:
    """Unfused in place 6, compiled 10, one kernel 4, and 2 where its gradient takes the place of the logits."""
    subject = problem("llama-3.1-8b", "megatron-2026", gpus=8)
    config = ConfigTable.of([ParallelConfig(dp=8, zero=1, recompute=Recompute.FULL, recompute_layers=32)])
    logits = subject.job.seq_len * subject.model.vocab
    for loss, each in (
        (subject.stack.kernels.loss, 6.0),
        (Compiled(), 10.0),
        (Fused(), 4.0),
        (InPlace(), 2.0),
    ):
        stack = changed(subject.stack, kernels={"loss": loss})
        cost = cost_model(replace(subject, stack=stack)).evaluate(config, keep_terms=True)
        assert cost.detail is not None
        held = float(cost.detail.memory["loss"]["logits"][0, 0])
        assert held / logits == pytest.approx(each, abs=0.2)
