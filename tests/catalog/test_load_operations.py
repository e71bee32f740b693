"""Are captured lists read as they were written, and found for the models they are of?"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.ask.request import Request, resolve
from planner.catalog.load_operations import FOLDER, Tables, has_operations, operations_of
from planner.spec.config import Recompute
from planner.spec.listed import Lists, Values, layer_form, sizes_of
from planner.spec.load_model import load_model

STACK = "transformers-2026"
FILES = sorted(FOLDER.glob("*/*.json"))
MODELS = ("llama-3.1-8b", "qwen3-0.6b", "qwen2.5-7b", "gpt2-xl", "olmoe-1b-7b")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_file_is_written_as_it_was_read(file) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(file.read_text(encoding="utf-8"))
    tables = Tables.read(document)
    assert {key: document[key] for key in tables.written()} == tables.written()
    for found in document["forms"].values():
        for one in found["variants"]:
            assert tables.variant(tables.lists(one)) == {
                key: one[key] for key in ("before", "layers", "behind")
            }


@pytest.mark.parametrize("name", MODELS)
def test_lists_of_a_model_have_every_kind_of_its_layers(name: str) -> None:
    model = load_model(name)
    listed = operations_of(STACK, model, 4096)
    assert listed is not None
    found = listed.of(frozenset(), adapters=False, sharded=False) or pytest.fail(
        "plain training was captured"
    )
    plain, again = found[Recompute.NONE], found[Recompute.FULL]
    for lists in (plain, again):
        assert {layer_form(layer, 4096) for layer in model.layer_kinds} <= set(lists.layers)
        for layer in model.layer_kinds:
            assert kept(lists, layer_form(layer, 4096), sizes_of(model, layer, 1, 4096)) > 0
    # recomputation keeps a layer's input alone
    one = model.layer_kinds[0]
    sizes = sizes_of(model, one, 1, 4096)
    assert (
        kept(again, layer_form(one, 4096), sizes)
        == 2 * 4096 * model.hidden
        < kept(plain, layer_form(one, 4096), sizes)
    )


def kept(lists: Lists, layer: str, sizes) -> float:  # type: ignore[no-untyped-def]
    """Bytes that a layer's forward pass leaves behind."""
    values = Values(lists.expressions, sizes)
    return sum(values[one.size] * one.sign for one in lists.layers[layer].forward.changes)


def test_idle_options_change_nothing_and_unknown_ones_have_no_lists() -> None:
    listed = operations_of(STACK, load_model("qwen3-0.6b"), 4096)
    assert listed is not None
    plain, idle, unknown = (
        listed.of(frozenset(options), adapters=False, sharded=False)
        for options in ((), ("adamw-foreach",), ("compile",))
    )
    assert idle == plain is not None
    assert unknown is None


def test_sharded_weights_are_gathered_in_the_format_of_products() -> None:
    listed = operations_of(STACK, load_model("qwen3-0.6b"), 4096)
    assert listed is not None
    amp = frozenset({"amp"})
    whole, sharded = (listed.of(amp, adapters=False, sharded=way) for way in (False, True))
    assert whole is not None
    assert listed.casts(amp)
    assert not listed.casts(frozenset())
    assert sharded == listed.of(frozenset(), adapters=False, sharded=False)


@pytest.mark.parametrize(
    ("own", "listed"),
    [({}, True), ({"resid_pdrop": 0.0}, False), ({"activation_function": "gelu_pytorch_tanh"}, False)],
)
def test_a_users_file_that_chooses_other_kernels_has_no_lists(own, listed, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Dropout and the unfused activation that GPT-2 was captured with are its library's defaults."""
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257} | own
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = operations_of(STACK, load_model(str(tmp_path)), 1024)
    assert (found is not None) is listed


@pytest.mark.parametrize("section", ["text_config", "llm_config", "thinker_config"])
@pytest.mark.parametrize("held", [None, [], "gpt2", {"activation_function": "gelu_pytorch_tanh"}])
def test_a_section_beside_the_fields_is_read_as_the_model_is(section, held, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A text model's section that holds none says nothing."""
    config = {
        "model_type": "gpt2",
        "hidden_size": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        section: held,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert (operations_of(STACK, load_model(str(tmp_path)), 1024) is None) == isinstance(held, dict)


@pytest.mark.parametrize(("model", "experts"), [("gpt-oss-20b", False), ("qwen3-30b-a3b", True)])
def test_adapters_are_on_experts_where_peft_puts_them(model: str, experts: bool) -> None:
    request = Request(model, "1x1 h200", 1, seq_len=4096, global_batch="1", stack=STACK, lora_rank=16)
    adapted = resolve(request)[0]
    assert adapted.lists() is not None
    assert adapted.adapts("expert_fc1", expert=True) is experts
    assert adapted.adapts("qkv", expert=False)


def test_a_size_that_all_runs_of_a_form_had_bounds_its_lists() -> None:
    """OPT-350m's embedding, 512 wide."""
    model = load_model("opt-350m")
    assert operations_of(STACK, model, 1024) is not None
    assert operations_of(STACK, replace(model, embedding_width=640), 1024) is None


def test_stacks_whose_software_was_not_run_have_none() -> None:
    assert not has_operations("megatron-2026")
    assert operations_of("megatron-2026", load_model("qwen3-0.6b"), 4096) is None


def test_norms_that_multiply_in_fp32_are_no_copies_of_weights() -> None:
    """Gemma's do; weights count all the same."""
    request = Request("gemma-2-2b", "1x1 h200", 1, seq_len=4096, global_batch="1", stack=STACK)
    assert resolve(request)[0].lists() is not None
    assert not resolve(request)[0].casts_listed
    amp = replace(request, stack=f"{STACK}+amp")
    assert resolve(amp)[0].casts_listed
