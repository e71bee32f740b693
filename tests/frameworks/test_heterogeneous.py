"""Llama-Nemotrons whose layers differ: the file of their layers, what it cannot state, and Megatron-LM's own reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.heterogeneous import FILE, HETEROGENEOUS_RULES, OPTION
from planner.spec.attention import AttentionKind
from planner.spec.config import ParallelConfig, Schedule
from planner.spec.model import ModelSpec
from tests.frameworks.launches import launch, problem
from tests.frameworks.megatron_checkout import MAIN, beginning, of_main, written
from tests.frameworks.test_own_parsers import needs, run

NAMES = ("llama-3.3-nemotron-super-49b", "llama-3.1-nemotron-ultra-253b")
STAGED = ParallelConfig(tp=8, pp=4, dp=4, micro_batch=1, num_microbatches=64, sp=1, zero=1,
                        schedule=Schedule.ONE_F_ONE_B)  # fmt: skip


def staged(name: str, layers: tuple[int, ...] = ()) -> Launch:
    return launch(name, STAGED, problem(name, "megatron-2026"), layers)


def blocks_of(model: ModelSpec) -> list[list[int | None]]:
    """Key/value heads and width of the MLP of every layer, None where it has none."""
    return [
        [layer.attention.kv_heads if layer.attention else None, layer.mlp.ffn if layer.mlp else None]
        for layer in model.layers
    ]


def test_the_file_lists_every_layer() -> None:
    told = staged(NAMES[1], (21, 20, 20, 20))
    files = framework("megatron").render(told, framework("megatron").default_version)
    said = json.loads(files[FILE])
    stated = [
        [
            None if block["attention"]["no_op"] else 128 // block["attention"]["n_heads_in_group"],
            None if block["ffn"]["no_op"] else block["ffn"]["ffn_hidden_size"],
        ]
        for block in said["block_configs"]
    ]
    assert stated == blocks_of(told.model)
    assert (said["num_hidden_layers"], said["rope_scaling"], said["rope_theta"]) == (
        81,
        {"factor": 16.0},
        500000.0,
    )
    assert f'{OPTION} "$HERE/{FILE}"' in files["launch.sh"]
    assert "--use-rotary-position-embeddings" in files["launch.sh"]
    assert FILE in files["kubernetes.yaml"]
    assert "renumbered" in files["README.md"]


def test_what_the_file_cannot_state_is_refused() -> None:
    told = staged(NAMES[0])
    first = told.model.layers[0]
    assert first.attention is not None
    other = replace(first, attention=replace(first.attention, kv_heads=64, kind=AttentionKind.MHA))
    model = replace(told.model, layers=(other, *told.model.layers[1:]))
    plain = replace(told, details=replace(told.details, rope_scaling=None))
    for case, said in ((replace(told, model=model), "key/value heads"), (plain, "positions other")):
        with pytest.raises(UnsupportedError, match=said):
            framework("megatron").render(case, framework("megatron").default_version)


def test_virtual_stages_are_ruled_out() -> None:
    columns = {"vpp": np.array([1, 2])}
    legal = [
        HETEROGENEOUS_RULES[0].legal(columns, problem(name, "megatron-2026"))  # type: ignore[arg-type]
        for name in (NAMES[0], "llama-3.1-8b")
    ]
    assert [list(np.broadcast_to(mask, 2)) for mask in legal] == [[True, False], [True, True]]


@needs("torch", "triton", "six", "einops")
@pytest.mark.slow
@pytest.mark.checkout
@of_main
def test_megatrons_own_reader_takes_it(tmp_path: Path) -> None:
    """Its check of the arguments, and the configuration that it derives for every layer."""
    listed = []
    for number, told in enumerate([staged(NAMES[0]), staged(NAMES[1], (21, 20, 20, 20))]):
        words, environment = written(tmp_path / str(number), told, MAIN)
        listed.append([words, environment, blocks_of(told.model)])
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    source = (
        beginning()
        + """
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
for words, environment, blocks in json.load(open(sys.argv[1])):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment, WORLD_SIZE="128", RANK="0")
    sys.argv = ["pretrain_gpt.py", *words]
    args = parse_args()
    validate_args(args)
    args.apply_rope_fusion = False  # a kernel of Transformer Engine, which needs a GPU
    made = core_transformer_config_from_args(args)
    read = []
    for number, block in enumerate(made.per_block_parameters, 1):
        one = made.get_config_for_layer(number)
        read.append([None if block.attention.no_op else one.num_query_groups,
                     None if block.mlp.no_op else one.ffn_hidden_size])
    assert read == blocks
print("read")
"""
    )
    assert run(source, str(tmp_path / "cases.json")).split()[-1] == "read"
