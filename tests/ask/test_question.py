"""Is every option that is declared offered, and read alike, wherever a question is asked?"""

from __future__ import annotations

import inspect
import json
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

import planner
from benchmarks.docs_output import DOCS, with_options
from planner.ask.load_sweep import KEYS, load_sweep
from planner.ask.option import Option, as_written, options_of
from planner.ask.question import (
    ComparisonQuestion,
    DryrunQuestion,
    EstimateQuestion,
    Options,
    Question,
    Request,
    SizeQuestion,
)  # fmt: skip
from planner.catalog.load_overlay import save_overlay
from planner.cli.program import command_line
from planner.cli.serve import FIELDS, asked
from planner.errors import PlannerError
from planner.spec.overlay import Overlay

OF_ALL = options_of(Options)  # of every question
OF_VERB: dict[str, type] = {  # verb -> the kind of question that it takes
    "plan": Request, "estimate": EstimateQuestion, "compare": ComparisonQuestion, "size": SizeQuestion,
    "check": EstimateQuestion, "diagnose": Question, "calibrate": Question, "dryrun": DryrunQuestion,
}  # fmt: skip
WORDS = {  # of readers: what is said to them
    "whole": "4", "number": "512", "_length": "8k", "_mean_length": "512", "_batch": "64seq", "_share": "10%",
    "_capacity": "4 GiB", "_tokens": "1T", "_switch": "yes", "_pair": "1,1", "_settings": "tp=8,schedule=1f1b",
    "_left_out": "deepep", "_assumed": "pue=1.2", "_step_tokens": "8Mtok", "_batch_stages": "4Mtok:252M",
}  # fmt: skip
NAMED = {"model": "gpt2", "cluster": "1x8 h100", "stack": "megatron-2026", "expert_loads": "zipf:0.6",
         "precision": "fp16", "optimizer": "sgd", "lora_targets": "qkv"}  # fmt: skip


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    ours = Overlay(name="ours", date="2026", level="L3", made_from=("a run",), accelerator="h100-sxm-80g")
    save_overlay(ours, path := tmp_path_factory.mktemp("ours") / "ours.yaml")
    return str(path)


def said_of(one: Option[Any, Any], file: str) -> str:
    """Something to say of an option that is not the usual."""
    kind = one.reader.read.__qualname__.split(".")[0]
    return file if one.reader.is_file else NAMED.get(one.name) or WORDS[kind]


def question(one: Option[Any, Any], file: str) -> dict[str, Any]:
    return {"model": "gpt2", "cluster": "1x8 h100", one.name: said_of(one, file)}


every_option = pytest.mark.parametrize("one", options_of(Question).values(), ids=options_of(Question))


@pytest.mark.parametrize("verb", OF_VERB)
def test_verbs_offer_every_option_of_their_question(verb: str) -> None:
    group: Any = typer.main.get_command(command_line(verb))
    command = group.commands[verb]
    taken = {word for parameter in command.params for word in (*parameter.opts, parameter.name)}
    for name, one in options_of(OF_VERB[verb]).items():
        assert one.words in taken or name in taken, f"{verb} {one.words}"
    assert OF_ALL.keys() <= options_of(OF_VERB[verb]).keys()


@pytest.mark.parametrize("verb", ["plan", "estimate", "compare", "size"])
def test_python_takes_every_option_with_its_type(verb: str) -> None:
    parameters = inspect.signature(getattr(planner, verb)).parameters
    assert parameters.keys() == options_of(OF_VERB[verb]).keys()
    for name, one in parameters.items():
        assert one.annotation not in (inspect.Parameter.empty, Any, str(one.annotation)), name
        assert f"{name}:" in (getattr(planner, verb).__doc__ or "")


@every_option
def test_a_sweep_takes_it(one: Option[Any, Any], calibration: str, tmp_path: Path) -> None:
    assert one.name in KEYS
    lines = [f"{key}: {json.dumps(value)}" for key, value in question(one, calibration).items()]
    (tmp_path / "sweep.yaml").write_text("\n".join(lines))
    (request,) = load_sweep(tmp_path / "sweep.yaml").requests()
    assert getattr(request, one.name) == getattr(Question(**question(one, calibration)), one.name)
    assert getattr(request, one.name) != one.default


@every_option
def test_the_page_takes_it(one: Option[Any, Any], calibration: str) -> None:
    if one.reader.is_file:  # which the page never reads
        assert one.name not in FIELDS
        assert (
            getattr(asked(question(one, calibration) | {one.name: ""}, calibration), one.name) == calibration
        )
        return
    assert one.name in FIELDS
    told = asked(question(one, calibration))
    assert getattr(told, one.name) == getattr(Question(**question(one, calibration)), one.name)


def test_the_form_has_every_field() -> None:
    pytest.importorskip("jinja2")
    from planner.cli.serve import form_page

    page = form_page()
    assert all(f'name="{name}"' in page for name in FIELDS)
    assert len(set(FIELDS.values())) == len(FIELDS)


@every_option
def test_a_plan_file_holds_it(one: Option[Any, Any], calibration: str) -> None:
    told = Question(**question(one, calibration))
    held = json.loads(json.dumps(as_written(told)))
    assert held.keys() == {"model", "cluster", one.name}
    assert Question(**held) == told
    assert pickle.loads(pickle.dumps(told)) == told


@every_option
def test_no_reader_takes_what_is_none(one: Option[Any, Any]) -> None:
    with pytest.raises(PlannerError) as refused:
        Question(**{"model": "gpt2", "cluster": "1x8 h100", one.name: object()})
    assert one.words in refused.value.must or one.name in refused.value.must


def test_the_docs_list_every_option() -> None:
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    assert with_options(page) == page, "run python -m benchmarks.docs_output docs/options.md"
    kinds = (Request, ComparisonQuestion, SizeQuestion)
    assert all(f"| `{one.words}` |" in page for kind in kinds for one in options_of(kind).values())


def test_every_field_is_an_option_or_how_far_a_search_goes() -> None:
    own = {field.name for field in fields(Request)} - options_of(Request).keys()
    assert own == {"front", "thorough", "seek_batch", "options"}


def test_a_question_never_changes() -> None:
    told = Question("gpt2", "1x8 h100", seq_len="8k")
    with pytest.raises(AttributeError, match="never changes"):
        told.seq_len = 4096
    assert replace(told, seq_len=4096).seq_len == 4096
    assert (told.seq_len, told.headroom, told.set.axes) == (8192, 0.05, {})
    assert told != replace(told, seq_len=4096)
    assert told == replace(told)


@pytest.mark.parametrize(
    ("axis", "values"),
    [("recompute", "none, full"), ("recompute_modules", "core_attn, mlp"), ("offload", "none, optimizer"),
     ("schedule", "1f1b, gpipe"), ("cp_kind", "p2p, a2a"), ("cuda_graph_impl", "none, local"),
     ("cuda_graph_modules", "attn, mlp"), ("tp", "1, 2")],
)  # fmt: skip
def test_errors_name_values_as_they_are_set(axis: str, values: str) -> None:
    with pytest.raises(PlannerError) as refused:
        planner.estimate("gpt2", "1x8 h100", set={axis: values.split(", ")})
    assert refused.value.given == values
