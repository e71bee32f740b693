"""Does a model's own step, run on fake tensors, ask for what it asks a GPU for? Needs PyTorch and transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.captured.operation import Operation, Phase
from planner.dryrun.recording import Holds
from planner.dryrun.transformers.recipe import Adapters, Checkpointing, Recipe, Update, Weights
from planner.errors import InputError, UnsupportedError
from tests.dryrun.steps import HOPPER, PARAMETERS, PLAIN, TINY, TOKENS, held, memory, names, recorded

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers")


def test_states_are_those_of_the_parameters() -> None:
    found = memory(PLAIN)
    assert held(found, Holds.OPTIMIZER_STATES) == pytest.approx(2 * 2 * PARAMETERS, abs=4096)
    # and the rotary embedding's frequencies, which are there twice
    assert held(found, Holds.WEIGHTS) == pytest.approx(2 * PARAMETERS, abs=4096)
    wide = memory(replace(PLAIN, weights=Weights.AMP_BF16))
    assert held(wide, Holds.OPTIMIZER_STATES) == pytest.approx(2 * 4 * PARAMETERS, abs=4096)


def test_products_have_a_workspace_for_each_pass() -> None:
    assert held(memory(PLAIN), Holds.WORKSPACE) == 2 * 32 * 2**20


def test_the_loss_holds_logits_as_the_model_makes_them() -> None:
    """At its peak: logits in bf16, and three copies in fp32 (log-softmax, and two gradients)."""
    found = memory(PLAIN)
    logits = TOKENS * 1000
    assert found.operation == "aten._log_softmax_backward_data.default"
    assert held(found, Holds.TEMPORARY) >= 2 * 4 * logits


def test_attention_is_the_flash_kernel_and_holds_no_mask() -> None:
    ran = names(PLAIN)
    assert ran.count("aten._scaled_dot_product_flash_attention.default") == 2 * 2
    square = [one for one in recorded(PLAIN).operations for shape, _ in one.given if shape[-2:] == (512, 512)]
    assert not square


def test_before_ampere_no_flash_kernel_runs() -> None:
    """Where queries share keys no other fused kernel does either: scores are written out."""
    from planner.dryrun.transformers.step import record_step

    volta = record_step(replace(PLAIN, weights=Weights.FP16), (7, 0))
    assert not any("flash" in one.name or "efficient" in one.name for one in volta.operations)
    assert any(shape[-2:] == (512, 512) for one in volta.operations for shape, _ in one.given)
    apart = TINY | {"num_key_value_heads": 4}
    own = record_step(replace(PLAIN, config=apart, weights=Weights.FP16), (7, 0))
    assert any("efficient_attention" in one.name for one in own.operations)


def test_eager_attention_writes_scores_out() -> None:
    eager = recorded(replace(PLAIN, attention="eager"))
    scores = [one for one in eager.operations if ((2, 4, 512, 512), "float32") in one.given]
    assert {one.name for one in scores} >= {"aten._softmax.default"}
    softmax = next(one for one in scores if one.name == "aten._softmax.default")
    assert softmax.taken == (((2, 4, 512, 512), "bfloat16"),)  # in one kernel, without a copy in fp32


def test_checkpointing_runs_layers_again_and_holds_their_inputs() -> None:
    plain, again = memory(PLAIN), memory(replace(PLAIN, checkpointing=Checkpointing.NON_REENTRANT))
    assert again.operations > plain.operations
    assert held(again, Holds.ACTIVATIONS) < held(plain, Holds.ACTIVATIONS)
    ran = names(replace(PLAIN, checkpointing=Checkpointing.NON_REENTRANT))
    assert ran.count("aten._scaled_dot_product_flash_attention.default") == 2 * 2 * 2


@pytest.mark.parametrize("way", [Checkpointing.NON_REENTRANT, Checkpointing.REENTRANT])
def test_both_ways_of_checkpointing_run(way: Checkpointing) -> None:
    assert memory(replace(PLAIN, checkpointing=way)).allocated_peak > 0


def test_autocast_runs_norms_as_cuda_does() -> None:
    """Powers and roots in fp32, products in bf16, also of the weights, which are cast once a pass."""
    found = recorded(replace(PLAIN, weights=Weights.AMP_BF16))
    products = [one for one in found.operations if one.name == "aten.mm.default"]
    assert {dtype for one in products for _, dtype in one.given} == {"bfloat16"}
    roots = [one for one in found.operations if one.name == "aten.rsqrt.default"]
    assert roots
    assert {dtype for one in roots for _, dtype in one.given} == {"float32"}


def test_autocast_and_functions_are_as_before_afterwards() -> None:
    import torch

    plain = torch.nn.functional.scaled_dot_product_attention
    recorded(replace(PLAIN, weights=Weights.AMP_BF16))
    assert torch.nn.functional.scaled_dot_product_attention is plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.exp(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert torch.softmax(torch.ones(2, dtype=torch.bfloat16), 0, dtype=torch.float32).dtype == torch.float32
    assert not isinstance(torch.ones(2), torch._subclasses.fake_tensor.FakeTensor)


def test_dropout_keeps_a_mask_of_bytes() -> None:
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 128,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 512,
        "vocab_size": 500,
    }
    found = recorded(Recipe(gpt2, "gpt2", 1, 256))
    dropped = [one for one in found.operations if one.name == "aten.native_dropout.default"]
    assert dropped
    assert dropped[0].given[1][1] == "bool"


def test_update_by_foreach_kernels_has_temporaries() -> None:
    fused = memory(replace(PLAIN, update=Update.ADAMW_FUSED))
    foreach = memory(replace(PLAIN, update=Update.ADAMW_FOREACH))
    assert foreach.operations > fused.operations


def test_operations_say_what_their_time_depends_on() -> None:
    found = recorded(PLAIN)
    step = [one for one in found.operations if one.first >= found.second_step]
    ahead, back, update = ([one for one in step if one.phase is phase] for phase in list(Phase)[1:])

    def turned(operations: list[Operation]) -> set[tuple[bool, ...]]:
        return {one.flags for one in operations if one.name == "aten.mm.default"}

    assert turned(ahead) == {(False, True)}  # weights lie as they are stored
    assert turned(back) == {(False, False), (True, False)}
    (causal,) = {one.flags for one in ahead if "attention" in one.name}
    assert causal == (True,)
    multiplied = [one for one in ahead if one.name == "aten.mul.Tensor" and len(one.taken) == 2]
    assert {one.alike for one in multiplied} == {
        True,
        False,
    }  # the gate by the rest, and weights of norms by rows
    assert sum(one.host.views for one in ahead) > 2 * 20
    assert sum(one.host.modules for one in ahead) > 2 * 10
    assert not any(one.host.by_autograd for one in ahead)
    assert sum(one.host.by_autograd for one in back) > 0.9 * len(back)
    tensors = 2 * 9 + 3
    # gradients are clipped by kernels over lists, as on CUDA
    listed = {one.name: (len(one.taken), len(one.given)) for one in update if len(one.taken) > 1}
    assert listed["aten._foreach_norm.Scalar"] == (tensors, tensors)
    assert listed["aten._foreach_mul_.Tensor"] == (tensors + 1, tensors)
    assert listed["aten._fused_adamw_.default"] == (5 * tensors, tensors)


def test_layers_run_again_are_issued_by_their_modules() -> None:
    found = recorded(replace(PLAIN, checkpointing=Checkpointing.NON_REENTRANT))
    again = [one for one in found.operations if one.phase is Phase.BACKWARD and not one.host.by_autograd]
    assert sum(one.name == "aten.silu.default" for one in again) >= 2
    assert sum(one.host.modules for one in again) > 2 * 10


def test_micro_batches_after_the_first_find_gradients() -> None:
    one, two = memory(PLAIN), memory(replace(PLAIN, num_microbatches=4))
    assert two.allocated_peak - one.allocated_peak == pytest.approx(2 * PARAMETERS, rel=0.02)


def test_adapters_alone_have_states() -> None:
    pytest.importorskip("peft")
    found = memory(replace(PLAIN, adapters=Adapters(8, ("q_proj", "v_proj"))))
    assert held(found, Holds.OPTIMIZER_STATES) < 2**20


@pytest.mark.parametrize("experts", ["grouped_mm", "eager"])
def test_experts_get_even_shares_of_the_tokens(experts: str) -> None:
    mixture = TINY | {
        "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "head_dim": 64,
    }  # fmt: skip
    found = recorded(Recipe(mixture, "mixture", 2, 512, experts=experts))
    products = [one for one in found.operations if "grouped_mm" in one.name]
    if experts == "grouped_mm":
        assert products
        assert products[0].taken[0][0][0] == TOKENS * 2
    else:
        products = [one for one in found.operations if one.name == "aten.mm.default"]
        assert TOKENS * 2 // 8 in {one.given[0][0][0] for one in products if one.module.endswith("experts")}


def test_grouped_products_of_fp32_weights_run_as_cuda_runs_them() -> None:
    """Autocast leaves them alone, so that they are products of fp32, a group after the other."""
    mixture = TINY | {
        "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 66,
        "head_dim": 64,
    }  # fmt: skip
    found = recorded(Recipe(mixture, "mixture", 2, 512, weights=Weights.AMP_BF16))
    products = [one for one in found.operations if one.name == "aten._grouped_mm.default"]
    assert {dtype for one in products for _, dtype in one.given} == {"float32"}


def test_masks_are_looked_up_where_their_values_are_known() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from planner.dryrun.recorder import Recorder
    from planner.dryrun.values import Values

    recorder = Recorder(Values(0), HOPPER)
    with FakeTensorMode(), recorder:
        rows = torch.ones(8, 4, requires_grad=True)
        picked = rows[torch.arange(8) > 4]
        picked.sum().backward()
        assert picked.shape == (3, 4)
        with pytest.raises(UnsupportedError, match="how many places of a mask are set"):
            rows[torch.rand(8) > 0.5]
        assert torch.isfinite(torch.rand(8)).all()  # what should hold of data is taken to hold
    names = [one.name for one in recorder.recording.operations]
    assert names.index("aten.nonzero.default") < names.index("aten.index.Tensor")


def test_weights_have_no_values() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from planner.dryrun.recorder import Recorder
    from planner.dryrun.values import Values

    recorder = Recorder(Values(0), HOPPER)
    with FakeTensorMode(), recorder:
        weight = torch.nn.Parameter(torch.ones(4))
        recorder.hold([weight], Holds.WEIGHTS)
        with pytest.raises(UnsupportedError, match="float32 that the program reads"):
            weight.sum().item()
        assert torch.ones(4).sum().item() == 4


@pytest.mark.parametrize(
    ("held", "formats"),
    [
        ("bfloat16", ["bfloat16", "float32", "bfloat16", "bfloat16"]),
        ("float16", ["float16", "float32", "float16", "float32"]),
        ("float32", ["float32"] * 4),
    ],
)
def test_weights_have_the_format_that_they_are_loaded_in(held: str, formats: list[str]) -> None:
    import torch

    from planner.dryrun.transformers.loaded import cast_as_loaded

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    model._keep_in_fp32_modules, model._keep_in_fp32_modules_strict = ["1.bias"], ["0.b*s"]
    cast_as_loaded(model, getattr(torch, held))
    assert [str(one.dtype) for one in model.parameters()] == [f"torch.{name}" for name in formats]


def test_tokens_have_no_meaning_of_their_own() -> None:
    transformers = pytest.importorskip("transformers")
    from planner.dryrun.transformers.model import plain_token

    config = transformers.LlamaConfig(pad_token_id=0, bos_token_id=1, eos_token_id=[2, 4])
    assert plain_token(config) == 3


def test_a_configuration_is_left_as_it_is_given() -> None:
    inside = {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"}, "decoder": {}}
    given = {"model_type": "musicgen"} | inside
    with pytest.raises(UnsupportedError, match="can build"):
        recorded(Recipe(given, "music", 1, 16))
    assert given["text_encoder"] == {"model_type": "t5"}
    with pytest.raises((InputError, UnsupportedError), match=r"must know the configuration|can build"):
        recorded(Recipe({"model_type": "musicgen"}, "music", 1, 16))


def test_a_configuration_that_the_library_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="no-such-model"):
        recorded(Recipe({"model_type": "no-such-model"}, "unknown", 1, 16))


def test_what_cannot_be_run_says_why() -> None:
    with pytest.raises(UnsupportedError, match="Error"):
        recorded(replace(PLAIN, adapters=Adapters(8, ("no_such_module",))))


def test_the_same_step_asks_for_the_same_again() -> None:
    first, again = memory(PLAIN), memory(PLAIN)
    assert (first.allocated_peak, first.reserved_peak, first.operations) == (
        again.allocated_peak, again.reserved_peak, again.operations,
    )  # fmt: skip
