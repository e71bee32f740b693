"""FSDP2 with torchao's float8 all-gather, and Accelerate's fp8 backends: written, read, refused as they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.ask.question import Question
from planner.ask.request import Request, resolve
from planner.cli.files import problem_of
from planner.dialect import in_words
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Files
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.config import ParallelConfig
from planner.spec.precision import Precision
from tests.frameworks.launches import CONFIGS, launch, problem
from tests.frameworks.test_own_parsers import needs, run

OPTION = "+enable-fsdp-float8-all-gather"
ALONE = ParallelConfig(dp=128, micro_batch=1, num_microbatches=2, sp=0, zero=3)
TITAN = """
[model]
name = "llama3"
flavor = "8B"
converters = ["quantize.linear.float8"]
[parallelism]
data_parallel_shard_degree = 8
[quantize.linear.float8]
"""


def titan(stack: str, version: str = "0.2.2", precision: str = "fp8_cs", **changes: int) -> Files:
    given = problem("llama-3.1-8b", stack, precision=precision)
    config = replace(CONFIGS["torchtitan"], **changes)
    return framework("torchtitan").render(launch("llama-3.1-8b", config, given), version)


def test_torchtitan_writes_and_reads_it() -> None:
    files = titan("torchtitan-2024" + OPTION)
    text = files["config.toml"]
    assert "enable_fsdp_float8_all_gather = true" in text
    assert "precompute_float8_dynamic_scale_for_fsdp = true" in text
    assert "recipe_name" not in text  # Float8LinearConverter asserts so
    assert framework("torchtitan").parse(files).param_gather is True
    plain = titan("torchtitan-2024")
    assert 'recipe_name = "tensorwise"' in plain["config.toml"]
    assert framework("torchtitan").parse(plain).param_gather is False


def test_torchtitan_writes_it_where_there_are_shards_to_cast() -> None:
    alone = replace(ALONE, zero=0)
    for config, written in ((alone, False), (replace(alone, zero=2), True)):
        given = problem("llama-3.1-8b", "torchtitan-2024" + OPTION, precision="fp8_cs")
        files = framework("torchtitan").render(launch("llama-3.1-8b", config, given), "0.2.2")
        assert ("enable_fsdp_float8_all_gather" in files["config.toml"]) is written
    with pytest.raises(UnsupportedError, match="one scale a tensor"):
        titan("torchtitan-2024" + OPTION, "0.3.0")


@pytest.mark.parametrize(("precision", "lacks"), [("fp8", "delayed scaling"), ("fp8_blockwise", "blocks")])
def test_torchtitan_refuses_recipes_that_torchao_does_not_have(precision: str, lacks: str) -> None:
    """In a request, in a plan of another stack to be exported, and as a rule of configurations."""
    asked = Request("llama-3.1-8b", "2x8 h100", None, precision=precision, stack="torchtitan-2026")
    for refused in (lambda: resolve(asked), lambda: titan("megatron-2026", precision=precision)):
        with pytest.raises(UnsupportedError) as error:
            refused()
        assert lacks in str(error.value)
        assert "choose --precision fp8_cs" in str(error.value)
    served = problem("llama-3.1-8b", "torchtitan-2026")
    given = replace(served, job=replace(served.job, precision=Precision(precision)))
    (broken,) = explain_config(CONFIGS["torchtitan"], given, all_rules_for("torchtitan"))
    assert (broken.rule, in_words(broken.hint)) == ("float8-recipe", "choose --precision fp8_cs")
    assert lacks in broken.reason
    for other in ("fp8_cs", "fp8_mx", "bf16"):
        given = problem("llama-3.1-8b", "torchtitan-2026", precision=other)
        assert not explain_config(CONFIGS["torchtitan"], given, all_rules_for("torchtitan"))


def test_torchtitan_refuses_it_beside_a_recipe() -> None:
    words = TITAN + "enable_fsdp_float8_all_gather = true\n"
    parsed = framework("torchtitan").parse({"config.toml": words})
    assert parsed.param_gather is True
    assert any("precompute_float8" in note for note in parsed.notes)
    with pytest.raises(InputError, match="recipe_name"):
        framework("torchtitan").parse({"config.toml": words + 'recipe_name = "rowwise"\n'})
    rows = framework("torchtitan").parse({"config.toml": TITAN + 'recipe_name = "rowwise"\n'})
    assert (rows.param_gather, rows.stack_options, rows.notes) == (
        False,
        ("no-compile", "recipe-name=rowwise"),
        (),
    )
    wide = framework("torchtitan").parse({"config.toml": TITAN + 'recipe_name = "rowwise_with_gw_hp"\n'})
    assert wide.stack_options == rows.stack_options
    assert "bf16" in wide.notes[0]
    alone = words.replace("data_parallel_shard_degree = 8", "data_parallel_shard_degree = 1")
    assert framework("torchtitan").parse({"config.toml": alone}).param_gather is False


ACCELERATE = """
distributed_type: FSDP
mixed_precision: fp8
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_cpu_ram_efficient_loading: {one_rank}
fp8_config: {fp8}
"""


def accelerated(fp8: str, one_rank: str = "false") -> str:
    return ACCELERATE.format(fp8=fp8, one_rank=one_rank)


@pytest.mark.parametrize(
    ("fp8", "one_rank", "precision", "gathers", "said"),
    [
        ("{backend: TE}", "true", Precision.FP8, None, ""),
        ("{fp8_backend: AO}", "false", Precision.FP8_CS, True, ""),
        ("{backend: AO, enable_fsdp_float8_all_gather: false}", "false", Precision.FP8_CS, False, ""),
        ("{}", "false", Precision.FP8_CS, True, "taken as torchao"),
        ("{}", "true", Precision.FP8, None, "taken as Transformer Engine"),
    ],
)
def test_accelerate_recipes_by_backend(
    fp8: str, one_rank: str, precision: Precision, gathers: bool | None, said: str
) -> None:
    parsed = framework("accelerate").parse({"accelerate.yaml": accelerated(fp8, one_rank)})
    assert (parsed.precision, parsed.param_gather) == (precision, gathers)
    rule = [note for note in parsed.notes if "no fp8 backend is named" in note]
    assert [said in note for note in rule] == ([True] if said else [])


@pytest.mark.parametrize(
    ("fp8", "one_rank", "must"),
    [
        ("{backend: te}", "false", "in capitals"),
        ("{backend: MSAMP}", "false", "AO"),
        ("{backend: AO}", "true", "cpu_ram_efficient_loading"),
    ],
)
def test_accelerate_refuses(fp8: str, one_rank: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        framework("accelerate").parse({"accelerate.yaml": accelerated(fp8, one_rank)})


@pytest.mark.parametrize(
    ("precision", "stack", "gathers"),
    [("fp8", "fsdp1-2023", None), ("fp8_cs", "fsdp1-2023", False), ("fp8_cs", "fsdp1-2023" + OPTION, True)],
)
def test_accelerate_names_its_backend(precision: str, stack: str, gathers: bool | None) -> None:
    given = problem("llama-3.1-8b", stack, precision=precision)
    files = framework("accelerate").render(launch("llama-3.1-8b", CONFIGS["accelerate"], given), "1.15.0")
    parsed = framework("accelerate").parse({"accelerate.yaml": files["accelerate.yaml"]})
    assert (parsed.precision, parsed.param_gather) == (Precision(precision), gathers)
    assert not [note for note in parsed.notes if "backend" in note]


@pytest.mark.slow
@needs("accelerate", "torchao")
@pytest.mark.parametrize("option", ["", OPTION])
def test_accelerate_itself_reads_the_recipe(option: str, tmp_path: Path) -> None:
    given = problem("llama-3.1-8b", "fsdp1-2023" + option, precision="fp8_cs")
    files = framework("accelerate").render(launch("llama-3.1-8b", CONFIGS["accelerate"], given), "1.15.0")
    (tmp_path / "accelerate.yaml").write_text(files["accelerate.yaml"])
    script = """
import os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.dataclasses import AORecipeKwargs, FP8BackendType
from accelerate.utils.launch import setup_fp8_env
words = ["--config_file", sys.argv[1], "--machine_rank", "0", "--main_process_ip", "127.0.0.1", "train.py"]
args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
os.environ.update({name: str(value) for name, value in setup_fp8_env(args, {}).items()})
backend = FP8BackendType(os.environ["ACCELERATE_FP8_BACKEND"])
print(backend.value, AORecipeKwargs().config.enable_fsdp_float8_all_gather, args.fsdp_cpu_ram_efficient_loading)
try:
    FP8BackendType("ao")
except ValueError:
    print("capitals")
"""
    said = run(script, str(tmp_path / "accelerate.yaml")).split()
    assert said == ["AO", str(bool(option)), "False", "capitals"]


@pytest.mark.slow
@needs("torchao")
def test_torchao_gathers_a_byte_a_value() -> None:
    script = """
import torch
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_training_tensor import LinearMMConfig
from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
shard = torch.randn(64, 32)
weight = WeightWithDynamicFloat8CastTensor(shard, LinearMMConfig(), torch.float8_e4m3fn, torch.tensor(1.0))
(sent,), (scale,) = weight.fsdp_pre_all_gather(None)
print(sent.numel() * sent.itemsize / shard.numel(), scale.numel())
rows = Float8LinearConfig.from_recipe_name("rowwise")
try:
    Float8LinearConfig(cast_config_weight=rows.cast_config_weight, enable_fsdp_float8_all_gather=True)
except AssertionError:
    print("refused")
"""
    assert run(script).split() == ["1.0", "1", "refused"]


@pytest.mark.parametrize(
    ("stack", "version", "recipe", "said"),
    [
        ("torchtitan-2024", "0.2.2", "tensorwise", False),
        ("torchtitan-2024", "0.3.0", "rowwise", True),  # which has no other
        ("torchtitan-2024+recipe-name=rowwise", "0.2.2", "rowwise", False),
        ("torchtitan-2026", "0.2.2", "rowwise", False),
        ("torchtitan-2026", "0.3.0", "rowwise", False),
        ("torchtitan-2026+recipe-name=tensorwise", "0.2.2", "tensorwise", False),
        ("torchtitan-2026" + OPTION, "0.2.2", "tensorwise", False),
    ],
)
def test_the_scales_that_a_plan_counts_on_are_written_and_read(
    stack: str, version: str, recipe: str, said: bool
) -> None:
    files = titan(stack, version)
    parsed = framework("torchtitan").parse({n: t for n, t in files.items() if n != "README.md"})
    assert parsed.precision is Precision.FP8_CS
    assert parsed.stack_options == (f"recipe-name={recipe}",)
    assert parsed.param_gather is (None if version == "0.3.0" else OPTION in stack and recipe == "tensorwise")
    assert ("0.3.0 scales by rows" in files["README.md"]) is said


@pytest.mark.parametrize(("recipe", "changes"), [("rowwise", True), ("tensorwise", False)])
def test_files_are_costed_with_their_scales(recipe: str, changes: bool) -> None:
    """On the stack of a release with TOML files, whose scales are those of tensors, compiled where they ask for it."""
    words = {"config.toml": TITAN + f'recipe_name = "{recipe}"\n'}
    titan = framework("torchtitan")
    found, _ = problem_of(titan.parse(words), titan, Question("", "1x8 h100", 8))
    assert found.stack.name == "torchtitan-2024+no-compile" + changes * f"+recipe-name={recipe}"
    assert not found.stack.kernels.code.fused_norm
    words["config.toml"] += "[compile]\nenable = true\n"
    compiled, _ = problem_of(titan.parse(words), titan, Question("", "1x8 h100", 8))
    assert compiled.stack.name == "torchtitan-2024" + changes * f"+recipe-name={recipe}"
    assert found.stack.kernels.float8_scales == {"rowwise": "row", "tensorwise": "tensor"}[recipe]
