"""Launch files ask for the kernels that the plan's stack counts on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.spec.config import ParallelConfig
from planner.spec.stack import Stack
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
        (
            "kernels",
            {"cross_entropy": "fused"},
            ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"),
        ),
        ("kernels", {"attention": "flash-2"}, ("--attention-backend flash",)),
        ("kernels", {"attention": "fused-softmax"}, ("--attention-backend unfused",)),
        ("kernels", {"fused_activation": False}, ("--no-bias-swiglu-fusion",)),
        ("communication", {"dispatcher": "deepep"}, ("--moe-token-dispatcher-type flex", "deepep")),
        ("communication", {"ep_overlap": 0.5}, ("--overlap-moe-expert-parallel-comm",)),
        ("states", {"fused_weight_gradient": False}, ("--no-gradient-accumulation-fusion",)),
    ],
)
def test_megatron_follows_the_stack(section: str, values: dict[str, object], wanted: tuple[str, ...]) -> None:
    plain = script("megatron", mixture())
    text = script("megatron", mixture(**{section: values}))
    for words in wanted:
        assert words in text
        assert f"{words}\n" not in plain


def test_deepep_by_release() -> None:
    given = mixture(communication={"dispatcher": "deepep"})
    assert "--moe-enable-deepep" in script("megatron", given, "0.16.1")
    assert "--moe-flex-dispatcher-backend deepep" in script("megatron", given, "main-2026-08")
    alone = replace(given, config=replace(MIXTURE, ep=1))
    assert "--moe-token-dispatcher-type alltoall" in script("megatron", alone)


def test_gradients_reduced_after_the_backward_pass() -> None:
    given = golden_launch("megatron")
    assert "--overlap-grad-reduce" in script("megatron", given)
    late = replace(given, stack=changed(given.stack, communication={"dp_overlap": 0.0}))
    assert "--overlap" not in script("megatron", late)


def test_megatron_bridge_follows_the_stack() -> None:
    plain = script("megatron-bridge", mixture())
    assert "model.cross_entropy_loss_fusion=false" in plain
    assert "model.moe_permute_fusion=true" in plain
    changes = {"kernels": {"cross_entropy": "fused"}, "communication": {"dispatcher": "deepep"}}
    text = script("megatron-bridge", mixture(**changes))
    for words in (
        "cross_entropy_loss_fusion=true",
        "cross_entropy_fusion_impl=te",
        "dispatcher_backend=deepep",
    ):
        assert words in text


def test_torchtitan_compiles_where_the_stack_does() -> None:
    given = golden_launch("torchtitan")
    eager = replace(given, stack=problem("llama-3.1-8b", "torchtitan-2026-eager").stack)
    assert "--compile.enable" in script("torchtitan", given)
    assert "--compile" not in script("torchtitan", eager)
    found = framework("torchtitan")
    assert "[compile]" in found.render(given, "0.2.2")["config.toml"]
    assert "[compile]" not in found.render(eager, "0.2.2")["config.toml"]


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_a_stack_of_another_framework_is_said(name: str) -> None:
    given = golden_launch(name)
    other = replace(given, stack=problem("llama-3.1-8b", "torchtitan-2026").stack)
    found = framework(name)
    assert "kernels of the plan's stack" in found.render(other, found.default_version)["README.md"]
    assert "kernels of the plan's stack" not in found.render(given, found.default_version)["README.md"]
