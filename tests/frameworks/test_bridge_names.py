"""By which names Megatron-Bridge's recipes take overrides of their model: written by those, read by both, else said.

Source: NVIDIA-NeMo/Megatron-Bridge v0.6.0 and 067f987, recipes/llama/h100/llama3.py (to_megatron_provider,
get_model_config); NVIDIA/Megatron-LM 2a75ac1, training/models/gpt.py GPTModelConfig, which holds vocab_size and
seq_length itself and the degrees in its transformer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planner.ask.question import Question
from planner.cli.check import Judge, check_files
from planner.errors import FileInputError
from planner.frameworks import framework
from planner.frameworks.framework import Launch, ParsedConfig
from planner.frameworks.megatron_bridge.names import options_of, read_as, written_as
from planner.frameworks.megatron_bridge.recipes import (
    BENCHMARKS,
    BUILT,
    MORE_RECIPES,
    READ,
    RECIPES,
    RELEASES,
    recipe_of,
)
from planner.frameworks.options import option_table, table_classes
from planner.spec.config import CudaGraphs, ParallelConfig, Recompute, Schedule
from tests.frameworks.launches import launch, problem

BRIDGE = framework("megatron-bridge")
LLAMA, QWEN = (RECIPES[name] for name in ("llama-3-8b", "qwen3-30b-a3b"))
NESTED = "model.transformer."
DEGREES = "{0}tensor_model_parallel_size=4 {0}pipeline_model_parallel_size=2 {0}sequence_parallel=true"


def read(words: str, recipe: str = f"--recipe {LLAMA}") -> ParsedConfig:
    run = f"torchrun --nproc-per-node 8 scripts/training/run_recipe.py {recipe} --mode pretrain"
    return BRIDGE.parse({"run.sh": f"{run} train.global_batch_size=64 {words}"})


def drawn(model: str) -> Iterator[Launch]:
    """Launches with random degrees, recomputation and graphs, by name."""
    choose = random.Random(model).choice
    given = problem(model, "megatron-2026", precision=choose(["bf16", "fp8_cs"]))
    for _ in range(6):
        tp, cp, pp = choose([1, 2, 4]), choose([1, 2]), choose([1, 2, 4])
        vpp = choose([1, 2]) if pp > 1 and not given.model.mambas else 1
        recompute = choose([Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL])
        dp = 128 // (tp * cp * pp)
        config = ParallelConfig(
            tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, ep=choose([1, 4]) if given.model.is_moe else 1,
            micro_batch=1, num_microbatches=256 // dp, sp=int(tp > 1), zero=choose([0, 1]),
            schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B, recompute=recompute,
            recompute_layers=-(-given.model.num_layers // pp) if recompute is Recompute.FULL else 0,
            recompute_modules=1 if recompute is Recompute.SELECTIVE else 0,
            cuda_graph_impl=choose([CudaGraphs.NONE, CudaGraphs.TRANSFORMER_ENGINE]),
        )  # fmt: skip
        yield launch(model, config, given)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("model", RECIPES)
def test_what_is_written_for_a_release_is_read_as_the_same(model: str, version: str) -> None:
    for case in drawn(model):
        script = BRIDGE.render(case, version)["launch.sh"]
        found = BRIDGE.parse({"launch.sh": script})
        said = {axis: getattr(case.config, axis) for axis in found.axes if axis != "cp_kind"}
        assert said.items() <= found.axes.items(), case.config.describe()
        assert (found.seq_len, found.global_batch, found.precision) == (4096, 256, case.job.precision)
        assert found.layers in ((), case.chunks)
        assert not found.unknown
        assert found.version == found.releases[-1]
        assert found.releases == ((version,) if model.startswith("llama") else RELEASES)
        assert (f"{NESTED}tensor_model_parallel_size" in script) == (
            model.startswith("llama") and version == "0.7.0"
        )


def test_only_what_the_class_holds_itself_stays() -> None:
    recipe = recipe_of(LLAMA, "0.7.0")
    assert recipe.kind == BUILT
    names = {field: written_as(field, recipe, "0.7.0") for field in READ if field.startswith("model.")}
    assert {field for field, name in names.items() if name == field and name in options_of(recipe, "0.7.0")} == {
        "model.vocab_size", "model.seq_length",
    }  # fmt: skip
    assert {field for field, name in names.items() if name not in options_of(recipe, "0.7.0")} == {
        "model.hybrid_layer_pattern", "model.hybrid_override_pattern",
    }  # fmt: skip
    assert all(read_as(name) == field for field, name in names.items())
    for version in RELEASES:
        assert option_table("megatron-bridge", version).keys() >= READ
    assert [table_classes("megatron-bridge", version) for version in RELEASES] == [(), (BUILT,)]


@pytest.mark.parametrize("recipe", [*RECIPES.values(), *MORE_RECIPES, *BENCHMARKS])
def test_llamas_alone_are_of_the_class(recipe: str) -> None:
    """Under every name, of benchmarks and fine-tuning too, since they start from the others (perf_recipes/llama)."""
    llama = recipe.startswith("llama")
    for name in (recipe, recipe.replace("pretrain", "sft"), recipe.replace("_config", "_64k_config")):
        assert recipe_of(name, "0.7.0").kind == (BUILT if llama else "")
        assert recipe_of(name, "0.6.0").kind == ""


@pytest.mark.parametrize(
    "recipe", [f"--recipe {LLAMA}", "--model llama3_8b", "--recipe llama3_8b_sft_8gpu_h100_fp8cs_config"]
)
def test_either_form_is_read_by_its_release(recipe: str) -> None:
    older, newer = (read(DEGREES.format(prefix), recipe) for prefix in ("model.", NESTED))
    assert (older.releases, newer.releases) == (("0.6.0",), ("0.7.0",))
    assert older.axes == newer.axes
    assert (newer.axes["tp"], newer.axes["pp"], newer.axes["sp"]) == (4, 2, 1)
    assert not older.unknown
    assert not newer.unknown
    said = "0.7.0 does not start with these files: it refuses model.tensor_model_parallel_size (there "
    (note,) = [note for note in older.notes if "0.7.0" in note]
    assert note.startswith(f"{said}{NESTED}tensor_model_parallel_size), ")
    assert not [note for note in newer.notes if "0.7.0" in note]


@pytest.mark.parametrize(
    ("words", "recipe", "unknown"),
    [
        (f"{NESTED}pipeline_model_parallel_size=2 model.tensor_model_parallel_size=4", LLAMA,
         "model.tensor_model_parallel_size (nearest: model.transformer.tensor_model_parallel_size)"),
        (f"{NESTED}pipeline_model_parallel_size=2 -tp 4", LLAMA,
         "model.tensor_model_parallel_size (nearest: model.transformer.tensor_model_parallel_size)"),
        (f"{NESTED}tensor_model_parallel_size=4", QWEN,
         "model.transformer.tensor_model_parallel_size (nearest: model.tensor_model_parallel_size)"),
        (f"{NESTED}seq_length=4096 {NESTED}tensor_model_parallel_size=4", LLAMA,
         "model.transformer.seq_length (nearest: model.seq_length)"),
        (f"{NESTED}tensor_parallel=4 {NESTED}tensor_model_parallel_size=4", LLAMA,
         "model.transformer.tensor_parallel (nearest: "),
    ],
)  # fmt: skip
def test_a_name_of_the_other_class_is_unknown_and_the_right_one_is_said(
    words: str, recipe: str, unknown: str
) -> None:
    found = read(words, f"--recipe {recipe}")
    assert [name.startswith(unknown) for name in found.unknown] == [True]
    assert found.axes["tp"] == 4  # read all the same
    assert found.version == "0.7.0"


def test_without_a_recipe_either_form_may_be_right() -> None:
    for prefix in ("model.", NESTED):
        text = f"torchrun pretrain_mine.py {DEGREES.format(prefix)} {prefix}cp_comm_type=a2a"
        assert BRIDGE.recognizes("run.sh", text)
        found = BRIDGE.parse({"run.sh": text})
        assert not found.unknown
        assert (found.axes["tp"], found.axes["pp"]) == (4, 2)
    assert BRIDGE.parse({"run.sh": f"pretrain_mine.py {NESTED}hidden_sise=8"}).unknown


def test_errors_and_notes_use_the_names_of_the_file() -> None:
    for prefix in ("model.", NESTED):
        with pytest.raises(FileInputError) as raised:
            read(f"{prefix}tensor_model_parallel_size=four")
        assert f"{prefix}tensor_model_parallel_size" in str(raised.value)
        with pytest.raises(FileInputError, match=re.escape(f"{prefix}cuda_graph_impl")):
            read(f"{prefix}cuda_graph_impl=dreamt")
        assert [note for note in read(f"{prefix}hidden_size=8192").notes if "not read" in note] == []
        assert read(f"{prefix}hidden_size=8192").missing == f"what {prefix}hidden_size makes of llama-3-8b"
        assert [n for n in read(f"{prefix}moe_z=1 {prefix}bf16=false").notes if f"{prefix}moe_z" in n]


def test_recipes_are_those_of_the_release() -> None:
    """GLM's layers of the first and last stage are set since 0.7.0 alone."""
    recipe = "glm45_air_106b_pretrain_32gpu_h100_bf16_config"
    first, last = (f"model.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
    older, newer = (recipe_of(recipe, version).settings for version in RELEASES)
    assert (newer[first], newer[last]) == (11, 11)
    assert {first, last}.isdisjoint(older)
    assert {**older, first: 11, last: 11} == newer


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    monkeypatch.setattr(Judge, "best", lambda judge: None)  # what would be better is not asked
    return lambda script: check_files({"launch.sh": script}, Question("", "16x8 h100 400G-ib", 128))


def test_both_releases_cost_the_same(checked: Callable[[str], dict[str, Any]]) -> None:
    case = next(iter(drawn("llama-3.1-8b")))
    older, newer = (checked(BRIDGE.render(case, version)["launch.sh"]) for version in RELEASES)
    assert (older["version"], newer["version"]) == RELEASES
    assert older["legal"]
    assert newer["legal"]
    assert older["step_time_s"] == newer["step_time_s"]
