"""The frameworks' own code reads what planner writes, and groups ranks as planner says.

Each runs in a process of its own, since they patch torch and cannot share one. Needs the extra `frameworks`; a
checkout of Megatron-LM named by MEGATRON_PATH adds its argument parser.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.launch_judges import words_of
from planner.errors import UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.spec.config import ParallelConfig
from tests.frameworks.launches import CONFIGS, golden_launch, problem, random_launches
from tests.frameworks.launches import launch as launch_of
from tests.frameworks.megatron_checkout import MAIN, beginning, written
from tests.frameworks.rank_groups import rank_groups

pytestmark = pytest.mark.slow


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def run(script: str, *words: str, **environment: str) -> str:
    """Output of a script in a process of its own; its errors fail the test."""
    command = [sys.executable, "-W", "ignore", "-c", script, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done.stdout


def write(
    name: str, release: str, folder: Path, count: int = 25, stack: str = ""
) -> list[tuple[Path, Launch]]:
    """Folders of rendered random launches, on a stack of the framework or its newest, and the golden one."""
    found = framework(name)
    launches = [golden_launch(name)]
    for model in ("llama-3.1-8b", "qwen3-30b-a3b"):
        launches += random_launches(found, model, count, seed=7, stack=stack)
    written: list[tuple[Path, Launch]] = []
    for number, launch in enumerate(launches):
        try:
            files = found.render(launch, release)
        except UnsupportedError:
            continue
        target = folder / str(number)
        target.mkdir()
        for file, text in files.items():
            (target / file).write_text(text)
        written.append((target, launch))
    assert written
    return written


@needs("deepspeed")
def test_deepspeed(tmp_path: Path) -> None:
    cases = write("deepspeed", "0.19.8", tmp_path)
    listed = json.dumps([[str(folder), launch.config.__dict__] for folder, launch in cases])
    (tmp_path / "cases.json").write_text(listed)
    script = """
import json, sys
import deepspeed.runtime.config as runtime
from deepspeed.launcher.runner import fetch_hostfile
runtime.dist.get_rank = lambda *a, **k: 0
runtime.dist.get_world_size = lambda *a, **k: 128
for folder, config in json.load(open(sys.argv[1])):
    class Stages:  # what PipelineModule brings
        def get_data_parallel_world_size(self):
            return config["dp"]
    class Ulysses:  # what train.py registers
        def get_sequence_parallel_world_size(self):
            return config["cp"]
    mpu = Stages() if config["pp"] > 1 else Ulysses() if config["cp"] > 1 else None
    read = runtime.DeepSpeedConfig(folder + "/ds_config.json", mpu=mpu)
    assert read.zero_config.stage == config["zero"]
    assert read.train_micro_batch_size_per_gpu == config["micro_batch"]
    assert read.gradient_accumulation_steps == config["num_microbatches"]
    assert read.tensor_parallel_config.autotp_size in (config["tp"], 0)
    assert sum(fetch_hostfile(folder + "/hostfile").values()) == 128
"""
    run(script, str(tmp_path / "cases.json"))


@needs("deepspeed")
def test_deepspeed_rank_groups() -> None:
    script = """
import json
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
grid = PipeModelDataParallelTopology(num_pp=2, num_mp=4, num_dp=3)
print(json.dumps({axis: grid.get_axis_comm_lists(axis) for axis in ("pipe", "data", "model")}))
"""
    lists = json.loads(run(script).splitlines()[-1])
    order, sizes = framework("deepspeed").dense_order, {"tp": 4, "dp": 3, "pp": 2}
    for axis, name in (("pp", "pipe"), ("dp", "data"), ("tp", "model")):
        assert sorted(lists[name]) == rank_groups(order, sizes, [axis])


@needs("accelerate")
def test_accelerate(tmp_path: Path) -> None:
    cases = write("accelerate", "1.15.0", tmp_path, 10)
    listed = json.dumps([[str(folder), launch.config.__dict__] for folder, launch in cases])
    (tmp_path / "cases.json").write_text(listed)
    script = """
import json, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
for folder, config in json.load(open(sys.argv[1])):
    words = ["--config_file", folder + "/accelerate.yaml", "--machine_rank", "0", "--main_process_ip", "127.0.0.1",
             "--main_process_port", "29500", folder + "/train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert args.num_processes == 128
    if config["zero"] >= 2:
        named = {k: int(getattr(args, f"parallelism_config_{k}")) for k in
                 ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")}
        assert ParallelismConfig(**named).total_size == 128
        assert named["tp_size"] == config["tp"]
"""
    run(script, str(tmp_path / "cases.json"))


@pytest.mark.checkout
@pytest.mark.skipif(
    "MEGATRON_PATH" not in os.environ, reason="no checkout of Megatron-LM named by MEGATRON_PATH"
)
@needs("megatron")
def test_megatron_takes_recipes_of_8_and_4_bits(tmp_path: Path) -> None:
    """What each keeps in bf16 and gathers narrow is what Megatron-LM's own configuration says."""
    release = os.environ.get("MEGATRON_RELEASE", framework("megatron").default_version)
    listed = []
    for precision, ends in (("fp8_cs", (1, 2)), ("fp8_mx", (0, 4)), ("fp8", (0, 0)), ("nvfp4", (0, 4))):
        given = problem("llama-3.1-8b", "megatron-2026", precision=precision, cluster="16x8 b200 400G-ib")
        given = replace(given, job=replace(given.job, bf16_layers=ends))
        told = launch_of("llama-3.1-8b", CONFIGS["megatron"], given)
        words, environment = written(tmp_path / precision, told, release)
        wide = [layer.wide for layer in replace(given).model.layers]
        listed.append([words, environment, precision, ends, wide])
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    script = (
        beginning((10, 0), 180)
        + """
import megatron.training.arguments as arguments
arguments.is_te_min_version = lambda *a, **k: True  # Transformer Engine needs a GPU
from megatron.core.fp8_utils import is_first_last_bf16_layer
for words, environment, precision, ends, wide in json.load(open(sys.argv[1])):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment, WORLD_SIZE="128", RANK="0")
    sys.argv = ["pretrain_gpt.py", *words]
    args = arguments.parse_args()
    arguments.validate_args(args)
    args.apply_rope_fusion = False
    config = arguments.core_transformer_config_from_args(args)
    assert bool(config.fp4_param) == (precision == "nvfp4")
    assert bool(config.fp8_param) == (precision != "nvfp4")
    assert config.first_last_layers_bf16 == any(ends)
    if any(ends):
        assert [config.num_layers_at_start_in_bf16, config.num_layers_at_end_in_bf16] == ends
    assert [is_first_last_bf16_layer(config, layer) for layer in range(config.num_layers)] == wide
print("read")
"""
    )
    assert run(script, str(tmp_path / "cases.json")).split()[-1] == "read"


@pytest.mark.checkout
@pytest.mark.skipif(
    os.environ.get("MEGATRON_RELEASE") != "main-2026-08", reason="no checkout of main named by MEGATRON_PATH"
)
@needs("megatron")
def test_megatron_main_takes_yarn(tmp_path: Path) -> None:
    """What its model reads of the rotation is what gpt-oss's own configuration says."""
    config = ParallelConfig(pp=2, ep=8, dp=64, micro_batch=1, num_microbatches=4, zero=1)
    given = launch_of("gpt-oss-20b", config, problem("gpt-oss-20b", "megatron-2026"))
    words, environment = written(tmp_path / "yarn", given, MAIN)
    script = (
        beginning()
        + """
import megatron.training.arguments as arguments
arguments.is_te_min_version = lambda *a, **k: True  # Transformer Engine needs a GPU
words, environment = json.loads(sys.argv[1])
os.environ.update(environment, WORLD_SIZE="128", RANK="0")
sys.argv = ["pretrain_gpt.py", *words]
args = arguments.parse_args()
arguments.validate_args(args)
assert not args.apply_rope_fusion
args.moe_permute_fusion = False  # Transformer Engine's
config = arguments.core_transformer_config_from_args(args)
names = ("rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
         "mscale_all_dim", "correction_range_round_to_int")
print(json.dumps([args.position_embedding_type, *(getattr(config, "yarn_" + name) for name in names)]))
"""
    )
    read = json.loads(run(script, json.dumps([words, environment])).splitlines()[-1])
    assert read == ["yarn", 32.0, 4096, 32.0, 1.0, 1.0, 0.0, False]


@needs("megatron")
def test_megatron_rank_groups() -> None:
    script = """
import json, sys
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from megatron.core import parallel_state as state
found = {}
for world, tp, cp, pp, ep, etp in json.loads(sys.argv[1]):
    groups = {}
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        state.initialize_model_parallel(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, context_parallel_size=cp,
            expert_model_parallel_size=ep, expert_tensor_parallel_size=etp, create_gloo_process_groups=False)
        for name, group in (("tp", state.get_tensor_model_parallel_group()), ("cp", state.get_context_parallel_group()),
                            ("dp", state.get_data_parallel_group()), ("pp", state.get_pipeline_model_parallel_group()),
                            ("ep", state.get_expert_model_parallel_group()),
                            ("etp", state.get_expert_tensor_parallel_group()),
                            ("edp", state.get_expert_data_parallel_group())):
            groups.setdefault(name, set()).add(tuple(sorted(dist.get_process_group_ranks(group))))
        state.destroy_model_parallel()
        dist.destroy_process_group()
    found[f"{world},{tp},{cp},{pp},{ep},{etp}"] = {name: sorted(map(list, g)) for name, g in groups.items()}
print("GROUPS" + json.dumps(found))
"""
    cases = [[16, 2, 2, 2, 4, 1], [32, 4, 1, 2, 8, 1], [64, 2, 2, 4, 4, 2]]
    out = run(script, json.dumps(cases))
    found = json.loads(
        next(line for line in out.splitlines() if line.startswith("GROUPS")).removeprefix("GROUPS")
    )
    megatron = framework("megatron")
    for world, tp, cp, pp, ep, etp in cases:
        sizes = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp}
        sizes |= {"dp": world // (tp * cp * pp), "edp": world // (ep * etp * pp)}
        groups = found[f"{world},{tp},{cp},{pp},{ep},{etp}"]
        for axis in ("tp", "cp", "dp", "pp"):
            assert groups[axis] == rank_groups(megatron.dense_order, sizes, [axis])
        for axis in ("ep", "etp", "edp"):
            assert groups[axis] == rank_groups(megatron.expert_order, sizes, [axis])


@needs("torch", "triton", "six", "einops")
@pytest.mark.checkout
@pytest.mark.skipif(
    "MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout of Megatron-LM"
)
@pytest.mark.parametrize(
    "stack",
    ["", "megatron-fsdp-2026", "megatron-fsdp-2026+fsdp-double-buffer+megatron-fsdp-main-grads-dtype=fp32"],
)
def test_megatron_arguments(tmp_path: Path, stack: str) -> None:
    release = os.environ.get("MEGATRON_RELEASE", framework("megatron").default_version)
    listed = []
    for folder, launch in write("megatron", release, tmp_path, stack=stack):
        words, environment = words_of(folder, "pretrain_gpt.py")
        listed.append([words, environment, launch.config.__dict__, launch.model.num_layers])
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    script = (
        beginning()
        + """
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
for words, environment, config, layers in json.load(open(sys.argv[1])):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment, WORLD_SIZE="128", RANK="0")
    sys.argv = ["pretrain_gpt.py", *words]
    args = parse_args()
    validate_args(args)
    assert args.data_parallel_size == config["dp"]
    assert (args.virtual_pipeline_model_parallel_size or 1) == config["vpp"]
    args.apply_rope_fusion = args.moe_permute_fusion = False  # kernels of Transformer Engine, which needs a GPU
    assert core_transformer_config_from_args(args).num_layers == layers
"""
    )
    run(script, str(tmp_path / "cases.json"))
