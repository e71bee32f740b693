"""What do the frameworks' own parsers, meshes and models say of launches that planner wrote?

    from benchmarks.launch_judges import can_judge, judge, JUDGES, GROUPS, RANKS

A judge is a script run in a process of its own, since frameworks patch torch and cannot share one. It gets the launches
as JSON and answers with values, or an error. Left out: what planner says (`launch_acceptance.py`), and kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.launch_cases import Case
from planner.spec.config import AXES

_PACKAGES: Final = {"deepspeed": "deepspeed", "torchtitan": "torchtitan", "accelerate": "accelerate"}
_CAPABILITY: Final = {"a100": 8, "b200": 10, "gb200": 10, "b300": 10, "gb300": 10}
_PRELUDE: Final = """
import json, os, sys, traceback, warnings
warnings.simplefilter("ignore")
def run(judge):
    source, target = sys.argv[1:3]
    cases, answers = json.load(open(source)), []
    for case in cases:
        try:
            answers.append({"values": judge(case)})
        except SystemExit as error:
            answers.append({"error": "exit " + str(error)})
        except BaseException as error:
            answers.append({"error": type(error).__name__ + ": " + str(error)[:400]})
    json.dump(answers, open(target, "w"))
"""
JUDGES: Final = {
    "deepspeed": """
import deepspeed.runtime.config as runtime
from deepspeed.launcher.runner import fetch_hostfile
runtime.dist.get_rank = lambda *a, **k: 0
def judge(case):
    c = case["config"]
    class Stages:  # what PipelineModule brings
        def get_data_parallel_world_size(self):
            return c["dp"]
    class Ulysses:  # what train.py registers
        def get_sequence_parallel_world_size(self):
            return c["cp"]
    runtime.dist.get_world_size = lambda *a, **k: case["devices"]
    mpu = Stages() if c["pp"] > 1 else Ulysses() if c["cp"] > 1 else None
    read = runtime.DeepSpeedConfig(case["folder"] + "/ds_config.json", mpu=mpu)
    return {"zero": read.zero_config.stage, "micro_batch": read.train_micro_batch_size_per_gpu,
            "num_microbatches": read.gradient_accumulation_steps,
            "tp": read.tensor_parallel_config.autotp_size or 1,
            "devices": sum(fetch_hostfile(case["folder"] + "/hostfile").values())}
run(judge)
""",
    "torchtitan": """
import inspect
from torchtitan.components.quantization import float8
float8.has_cuda_capability = lambda *a: True  # products in 8 bits need a GPU, reading that they are asked for does not
from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims
def judge(case):
    sys.path.insert(0, case["folder"])
    sys.modules.pop("planned_config", None)
    read = ConfigManager().parse_args(case["words"])
    sys.path.remove(case["folder"])
    p = read.parallelism
    sizes = dict(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
                 cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
                 ep=p.expert_parallel_degree, etp=getattr(p, "expert_tensor_parallel_degree", 1),
                 world_size=case["devices"])
    known = inspect.signature(ParallelDims).parameters
    dims = ParallelDims(**{name: size for name, size in sizes.items() if name in known})
    assert read.training.seq_len % dims.seq_len_divisor == 0, "seq_len % seq_len_divisor"
    return {"tp": p.tensor_parallel_degree, "pp": p.pipeline_parallel_degree, "cp": p.context_parallel_degree,
            "ep": p.expert_parallel_degree,
            "dp": p.data_parallel_replicate_degree * p.data_parallel_shard_degree, "devices": dims.world_size,
            "seq_len": read.training.seq_len, "global_batch": read.training.global_batch_size}
run(judge)
""",
    "accelerate": """
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
def judge(case):
    words = ["--config_file", case["folder"] + "/accelerate.yaml", "--machine_rank", "0", "--main_process_ip",
             "127.0.0.1", "--main_process_port", "29500", case["folder"] + "/train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    values = {"devices": args.num_processes}
    if case["config"]["zero"] >= 2:
        named = {k: int(getattr(args, f"parallelism_config_{k}")) for k in
                 ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")}
        total = ParallelismConfig(**named).total_size
        assert total == case["devices"], f"{total} of {case['devices']} devices"
        values |= {"tp": named["tp_size"], "cp": named["cp_size"],
                   "dp": named["dp_replicate_size"] * named["dp_shard_size"]}
    return values
run(judge)
""",
    "megatron": """
import typing
import typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, os.environ["MEGATRON_PATH"])
import torch
major = 9
torch.cuda.get_device_capability = lambda *a, **k: (major, 0)
torch.cuda.get_device_properties = lambda *a, **k: type("D", (), dict(major=major, minor=0, total_memory=80 << 30))()
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
from megatron.core.parallel_state import RankGenerator
from megatron.core.transformer import transformer_config as configured
configured._validate_dsa_kernel_backend_dependencies = lambda backend: None  # kernels that need a GPU
from megatron.core import utils
utils._te_version = utils.PkgVersion("2.16.0")  # Transformer Engine, which does not load without one either
def judge(case):
    global major
    major = case["capability"]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["env"], WORLD_SIZE=str(case["devices"]), RANK="0")
    sys.argv = ["pretrain_gpt.py", *case["words"]]
    args = parse_args()
    validate_args(args)
    if args.multi_latent_attention and args.apply_rope_fusion and args.rope_type != "yarn":
        raise ValueError("apply_rope_fusion for MLA only works with YARN RoPE.")  # as with its kernels
    args.apply_rope_fusion = args.moe_permute_fusion = False  # kernels of Transformer Engine, which needs a GPU
    read = core_transformer_config_from_args(args)
    return {"dp": args.data_parallel_size, "vpp": args.virtual_pipeline_model_parallel_size or 1,
            "tp": args.tensor_model_parallel_size, "pp": args.pipeline_model_parallel_size,
            "cp": args.context_parallel_size, "ep": args.expert_model_parallel_size,
            "sp": int(args.sequence_parallel), "micro_batch": args.micro_batch_size,
            "global_batch": args.global_batch_size, "layers": read.num_layers, "seq_len": args.seq_length}
run(judge)
""",
}
GROUPS: Final = """
from megatron.core.parallel_state import RankGenerator
def judge(case):
    c, world = case["config"], case["devices"]
    dense = RankGenerator(tp=c["tp"], ep=1, dp=c["dp"], pp=c["pp"], cp=c["cp"], order="tp-cp-ep-dp-pp")
    found = {name: dense.get_ranks(axes) for name, axes in
             (("tp", "tp"), ("cp", "cp"), ("dp", "dp"), ("dp_cp", "dp-cp"), ("pp", "pp"))}
    if case["experts"]:
        edp = world // (c["etp"] * c["ep"] * c["pp"])
        grid = RankGenerator(tp=c["etp"], ep=c["ep"], dp=edp, pp=c["pp"], cp=1, order="tp-cp-ep-dp-pp")
        found |= {name: grid.get_ranks(axes) for name, axes in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"))}
    return {name: sorted(sorted(group) for group in groups) for name, groups in found.items()}
run(judge)
"""
# a rank's model on the meta device and the groups it is in, of a process group that sends nothing
_FAKE: Final = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
def start(case):
    dist.init_process_group("fake", store=FakeStore(), rank=case["rank"], world_size=case["devices"])
def numbers(modules):
    return sum((p.to_local() if hasattr(p, "to_local") else p).numel() for m in modules for p in m.parameters())
def judge(case):
    try:
        return build(case)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
"""
RANKS: Final = {
    "torchtitan": """
import logging
logging.disable(logging.WARNING)
from torchtitan.components.quantization import float8
float8.has_cuda_capability = lambda *a: True
from torchtitan.config import ConfigManager
from torchtitan.distributed import parallel_dims, pipeline_parallel, utils
parallel_dims.device_type = "cpu"
"""
    + _FAKE
    + """
def build(case):
    sys.path.insert(0, case["folder"])
    sys.modules.pop("planned_config", None)
    read = ConfigManager().parse_args(case["words"])
    sys.path.remove(case["folder"])
    start(case)
    p, spec = read.parallelism, read.model_spec
    dims = parallel_dims.ParallelDims.from_config(p, case["devices"])
    dims.build_mesh()
    utils.set_spmd_backend(p.spmd_backend)
    spec.model.update_from_config(config=read)
    with torch.device("meta"):
        parts = [spec.model.build()]
    if p.pipeline_parallel_degree > 1:
        stages, layers, first, last = pipeline_parallel._get_pipeline_metadata(dims, p, spec.model)
        names = p.module_fqns_per_model_part
        names = names or pipeline_parallel._generate_llm_fqn_per_model_part(stages, layers, first, last)
        mine = pipeline_parallel._get_pp_rank_to_stage_indices_mapping(
            dims.get_mesh("pp").get_local_rank(), p.pipeline_parallel_degree, p.pipeline_parallel_schedule, len(names))
        parts = [pipeline_parallel._split_module(parts[0], names[stage]) for stage in mine]
    # FSDP divides what is left evenly and is not needed to count it; torch 2.13's takes no types of spmd_types
    shards = vars(sys.modules[spec.parallelize_fn.__module__])
    shards.update({name: lambda *a, **k: None for name in shards if name.startswith("apply_fsdp")})
    read.compile.enable = False
    tied = getattr(spec.model, "enable_weight_tying", False)
    parts = [spec.parallelize_fn(part, parallel_dims=dims, training=read.training, parallelism=p,
                                 compile_config=read.compile, ac_config=None, dump_folder="") for part in parts]
    if tied:  # as init_states does before the first step
        parts[0].tok_embeddings.weight = parts[0].lm_head.weight
    groups = {axis: sorted(dims.get_mesh(axis).mesh.flatten().tolist()) for axis in ("tp", "cp", "pp", "ep")
              if case["config"][axis] > 1 and (axis != "ep" or case["experts"])}
    return {"parameters": numbers(parts), "groups": groups}
run(judge)
""",
    "megatron": """
import typing, typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, os.environ["MEGATRON_PATH"])
"""
    + _FAKE
    + """
major = 9
torch.cuda.get_device_capability = lambda *a, **k: (major, 0)
torch.cuda.get_device_properties = lambda *a, **k: type("D", (), dict(major=major, minor=0, total_memory=80 << 30))()
torch.cuda.Stream = type("Stream", (), {"__init__": lambda self, *a, **k: None})
torch.cuda.current_device = lambda: "meta"
torch.Tensor.cuda = lambda self, *a, **k: self
pageable = torch.tensor
torch.tensor = lambda *a, pin_memory=False, **k: pageable(*a, **k)  # pinned memory needs a driver
from megatron.core import utils
utils._te_version = utils.PkgVersion("2.16.0")
from megatron.core import parallel_state as state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import get_gpt_heterogeneous_layer_spec
from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding
from megatron.core.transformer import torch_norm
from megatron.core.transformer.enums import InferenceCudaGraphScope
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
kinds = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}
# Megatron's own norm of torch refuses sequence parallelism, which leaves its parameters as they are
def norm(cls, config, hidden_size, eps=0.0, **named):
    return kinds[config.normalization](hidden_size)
torch_norm.WrappedTorchNorm.__new__ = norm
# its attention of torch knows neither latent attention's widths nor context parallelism; its parameters are the sinks
class Attention(torch.nn.Module):
    def __init__(self, config, *given, **named):
        super().__init__()
        if config.softmax_type == "learnable":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads))
DotProductAttention.__new__ = lambda cls, *given, **named: Attention(named.get("config") or given[0])
def build(case):
    global major
    major = case["capability"]
    for name in [name for name in os.environ if name.startswith("NVTE_")]:  # of the case before
        del os.environ[name]
    os.environ.update(case["env"], WORLD_SIZE=str(case["devices"]), RANK=str(case["rank"]))
    sys.argv = ["pretrain_gpt.py", *case["words"]]
    args = parse_args()
    validate_args(args)
    if args.multi_latent_attention and args.apply_rope_fusion and args.rope_type != "yarn":
        raise ValueError("apply_rope_fusion for MLA only works with YARN RoPE.")  # as with its kernels
    args.apply_rope_fusion = args.moe_permute_fusion = args.gradient_accumulation_fusion = False
    args.use_cpu_initialization, args.perform_initialization = True, False
    args.cuda_graph_impl, args.cuda_graph_modules = "none", []  # captured by what the step runs
    args.inference_cuda_graph_scope = InferenceCudaGraphScope.none
    config = core_transformer_config_from_args(args)
    start(case)
    state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size, expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size, create_gloo_process_groups=False,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances)
    try:
        vocabulary = args.padded_vocab_size or vocab_size_with_padding(args.vocab_size, args, False)
        parts, stages = [], args.virtual_pipeline_model_parallel_size
        for stage in range(stages or 1):
            own = stage if stages else None
            ends = [is_end(ignore_virtual=False, vp_stage=own) for is_end in
                    (state.is_pipeline_first_stage, state.is_pipeline_last_stage)]
            if args.heterogeneous_layers_config_path is not None:
                spec = get_gpt_heterogeneous_layer_spec(config, vp_stage=own)
            else:
                spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False,
                                                  normalization=args.normalization, vp_stage=own)
            with torch.device("meta"):
                parts.append(GPTModel(
                    config, spec, vocabulary, args.max_position_embeddings, pre_process=ends[0], post_process=ends[1],
                    share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                    position_embedding_type=args.position_embedding_type, vp_stage=own))
        found = {"tp": state.get_tensor_model_parallel_group(), "cp": state.get_context_parallel_group(),
                 "dp": state.get_data_parallel_group(), "pp": state.get_pipeline_model_parallel_group()}
        if case["experts"]:
            found |= {"ep": state.get_expert_model_parallel_group(), "edp": state.get_expert_data_parallel_group(),
                      "etp": state.get_expert_tensor_parallel_group()}
        groups = {axis: sorted(dist.get_process_group_ranks(group)) for axis, group in found.items()}
        # Transformer Engine's layers keep MLA's down-projections whole on every rank, Megatron's own divide them
        whole = [m for part in parts for name, m in part.named_modules()
                 if name.endswith(("linear_q_down_proj", "linear_kv_down_proj"))]
        more = (args.tensor_model_parallel_size - 1) * numbers(whole)
        return {"parameters": numbers(parts) + more, "groups": groups}
    finally:
        state.destroy_model_parallel()
run(judge)
""",
    "deepspeed": """
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
def judge(case):
    c, groups = case["config"], {}
    if c["cp"] == 1:
        grid = PipeModelDataParallelTopology(num_pp=c["pp"], num_mp=c["tp"], num_dp=c["dp"])
        for axis, name in (("pp", "pipe"), ("dp", "data"), ("tp", "model")):
            lists = grid.get_axis_comm_lists(name)
            groups |= {axis: sorted(ranks) for ranks in lists if case["rank"] in ranks}
    return {"groups": groups}
run(judge)
""",
}


@dataclass(frozen=True)
class Written:
    """A rendered launch in its folder. `rank`: one of its processes, drawn at random."""

    case: Case
    folder: Path
    rank: int = 0


STUB: Final = """#!/usr/bin/env python3
import json, os, sys
json.dump({"argv": sys.argv[1:], "env": {k: v for k, v in os.environ.items() if k.startswith("CUDA")}},
          open(os.environ["STUB_OUT"], "w"))
"""


def words_of(folder: Path, programs: str | tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """What launch.sh hands to its program, one of `programs`, and the environment it sets, from bash itself."""
    stub = folder / "bin" / "torchrun"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(STUB)
    stub.chmod(0o755)
    out = folder / "words.json"
    path = f"{stub.parent}:{os.environ['PATH']}"
    subprocess.run(["bash", str(folder / "launch.sh")], check=True, env={"PATH": path, "STUB_OUT": str(out)})
    said = json.loads(out.read_text())
    words = said["argv"]
    return words[next(i for i, word in enumerate(words) if word.endswith(programs)) + 1 :], said["env"]


_PROGRAMS: Final = {
    "torchtitan": ("torchtitan.train",),
    "megatron": ("pretrain_gpt.py", "pretrain_hybrid.py"),
}


def judge(name: str, script: str, written: Sequence[Written], work: Path) -> list[dict[str, Any]]:
    """What the framework's own code says of each launch: its values, or an error."""
    if not written:
        return []
    listed = []
    for w in written:
        words, env = (
            words_of(w.folder, _PROGRAMS[name]) if name in _PROGRAMS and script != GROUPS else ([], {})
        )
        launch = w.case.launch
        listed.append(
            {
                "folder": str(w.folder), "rank": w.rank, "words": words, "env": env, "devices": launch.devices,
                "config": {axis: getattr(launch.config, axis) for axis in AXES}, "experts": launch.model.is_moe,
                "capability": _CAPABILITY.get(launch.accelerator.split("-")[0], 9),
            }
        )  # fmt: skip
    cases, answers = work / "cases.json", work / "answers.json"
    cases.write_text(json.dumps(listed))
    command = [sys.executable, "-W", "ignore", "-c", _PRELUDE + script, str(cases), str(answers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: list[dict[str, Any]] = json.loads(answers.read_text())
    return found


def can_judge(name: str) -> bool:
    """Is the framework's own code here?"""
    if name == "megatron":
        return "MEGATRON_PATH" in os.environ
    return name in _PACKAGES and find_spec(_PACKAGES[name]) is not None
