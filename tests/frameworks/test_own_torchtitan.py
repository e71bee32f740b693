"""torchtitan's own code reads what planner writes: the values of a plan, and nothing that its configurations bring.

Runs in a process of its own, since it patches torch. Needs the extra `frameworks`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.launch_judges import words_of
from planner.cost.operations.lists import layer_gemms
from planner.cost.selective import kept_shares
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.frameworks.torchtitan.names import MODELS
from planner.spec.config import CudaGraphs, ParallelConfig
from planner.spec.load_model import load_model
from planner.spec.precision import RECIPES, Precision
from tests import problems
from tests.frameworks.launches import launch, problem
from tests.frameworks.test_own_parsers import run, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan not installed"),
]

READ = """
import json, os, sys
import torchtitan.components.quantization.float8 as float8
float8.has_cuda_capability = lambda *a: True
from torchtitan.config import ConfigManager
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.distributed.parallel_dims import ParallelDims
from torchtitan.models.common.linear import Linear
def read(folder, words):
    sys.path.insert(0, folder)
    sys.modules.pop("planned_config", None)
    found = ConfigManager().parse_args(words)
    sys.path.remove(folder)
    return found
def narrow(found):
    return any("Float8" in type(c).__qualname__ for _, c, _, _ in found.model_spec.model.traverse(Linear.Config))
"""


def release() -> str:
    try:
        return version("torchtitan")
    except PackageNotFoundError:
        return ""


@pytest.mark.skipif(release() not in ("0.2.2", "0.3.0"), reason="another release of torchtitan")
def test_values(tmp_path: Path) -> None:
    cases = write("torchtitan", release(), tmp_path)
    listed = [
        [str(folder), words_of(folder, "torchtitan.train")[0], launch.config.__dict__]
        for folder, launch in cases
    ]
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    script = (
        READ
        + """
import inspect
for folder, words, config in json.load(open(sys.argv[1])):
    found = read(folder, words)
    p = found.parallelism
    sizes = dict(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
                 cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
                 ep=p.expert_parallel_degree, etp=getattr(p, "expert_tensor_parallel_degree", 1), world_size=128)
    known = inspect.signature(ParallelDims).parameters
    dims = ParallelDims(**{name: size for name, size in sizes.items() if name in known})
    assert found.training.seq_len % dims.seq_len_divisor == 0
    assert (p.tensor_parallel_degree, p.pipeline_parallel_degree) == (config["tp"], config["pp"])
    assert p.data_parallel_replicate_degree * p.data_parallel_shard_degree == config["dp"]
"""
    )
    run(script, str(tmp_path / "cases.json"))


def plain(name: str) -> Launch:
    config = ParallelConfig(dp=128, micro_batch=1, num_microbatches=2, zero=3)
    return launch(name, config, problem(name, "torchtitan-2026"))


@pytest.mark.skipif(release() != "0.3.0", reason="names of 0.3.0")
def test_every_model_runs_as_planned(tmp_path: Path) -> None:
    """No shipped configuration's own float8, compilation, profiler or recomputation is left in force."""
    eager = problem("llama-3.1-405b", "torchtitan-2026-eager").stack
    older = problem("llama-3.1-8b", "torchtitan-2024").stack
    given = [plain(name) for name in MODELS]
    given.append(replace(plain("llama-3.1-405b"), stack=eager))
    given.append(replace(plain("llama-3.1-8b"), stack=older))
    captured = plain("llama-3.1-8b")
    graphs = int(CudaGraphs.FULL_ITERATION)
    given.append(replace(captured, config=replace(captured.config, cuda_graph_impl=graphs)))
    fp8 = plain("llama-3.1-405b")
    given.append(replace(fp8, job=replace(fp8.job, precision=Precision.FP8_CS)))
    listed = []
    for number, one in enumerate(given):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, text in framework("torchtitan").render(one, "0.3.0").items():
            (folder / file).write_text(text)
        assert one.stack is not None
        wanted = {
            "compiled": one.stack.kernels.code.fused_norm,
            "chunked": one.stack.kernels.loss.kind == "chunked",
            "narrow": one.job.precision is Precision.FP8_CS,
            "graphs": bool(one.config.cuda_graph_impl),
            "vocab": one.model.vocab,
            "layers": one.model.num_layers,
            "hidden": one.model.hidden,
        }
        listed.append([str(folder), words_of(folder, "torchtitan.train")[0], wanted])
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    script = (
        READ
        + """
for folder, words, wanted in json.load(open(sys.argv[1])):
    found = read(folder, words)
    model = found.model_spec.model
    assert found.compile.enable == wanted["compiled"], words
    assert not wanted["compiled"] or found.compile.components == ["model", "loss"], found.compile
    assert not found.compile.enable_async_tensor_parallel
    assert isinstance(found.loss, ChunkedLossWrapper.Config) == wanted["chunked"]
    if wanted["chunked"]:
        assert found.loss.num_chunks == 8
    inner = found.loss.loss_fn if wanted["chunked"] else found.loss
    assert inner.global_vocab_size == wanted["vocab"], (inner, wanted)
    assert narrow(found) == wanted["narrow"], words
    assert found.activation_checkpoint is None, found.activation_checkpoint
    assert found.optimizer.implementation == "fused"
    assert found.parallelism.enable_sequence_parallel
    assert found.training.dtype == "float32" and found.training.mixed_precision_param == "bfloat16"
    assert not (found.profiler.enable_profiling or found.validator.enable or found.checkpoint.enable)
    assert not found.training.enable_cpu_offload
    assert found.training.disable_cuda_graphs == (not wanted["graphs"])
    assert (len(model.layers), model.dim) == (wanted["layers"], wanted["hidden"]), words
"""
    )
    run(script, str(tmp_path / "cases.json"))


POLICY = """
import importlib, json, sys
import torch
import torchtitan.distributed.activation_checkpoint as checkpoint
from torch.utils.checkpoint import CheckpointPolicy
kept, real = [], checkpoint.create_selective_checkpoint_contexts
def noting(policy):
    def noted(ctx, func, *args, **kwargs):
        said = policy(ctx, func, *args, **kwargs)
        if func is torch.ops.aten.mm.default and not ctx.is_recompute:
            kept.append((args[1].shape[1], said is CheckpointPolicy.MUST_SAVE))
        return said
    return real(noted)
checkpoint.create_selective_checkpoint_contexts = noting
module = importlib.import_module("torchtitan.models." + sys.argv[1])
model = module.model_registry(sys.argv[2]).model.build()
for layer in model.layers.values():
    layer.attention.inner_attention.forward = lambda q, k, v, *a, **b: v.repeat_interleave(q.shape[2] // v.shape[2], 2)
checkpoint.SelectiveAC(checkpoint.SelectiveAC.Config()).apply(model)
model(torch.zeros(1, 128, dtype=torch.long))
print(json.dumps(kept))
"""


@pytest.mark.skipif(release() != "0.3.0", reason="another release of torchtitan")
@pytest.mark.parametrize(
    ("family", "config", "name", "products"),
    [
        ("llama3", "debugmodel", "llama-3.1-8b", ("qkv", "attention_out", "mlp_fc1", "mlp_fc1", "mlp_fc2")),
        ("qwen3", "debugmodel_moe", "qwen3-30b-a3b", ("qkv", "attention_out", "router")),
        ("deepseek_v3", "debugmodel", "deepseek-v2-lite",
         ("q", "kv_a", "kv_b", "attention_out", "router", "shared_fc1", "shared_fc1", "shared_fc2")),
    ],
)  # fmt: skip
def test_its_policy_keeps_the_products_that_planner_counts(
    family: str, config: str, name: str, products: tuple[str, ...]
) -> None:
    """Of the last layer of a small model of its own, forward."""
    said = json.loads(run(POLICY, family, config).splitlines()[-1])[-len(products) :]
    total: dict[str, float] = {}
    saved: dict[str, float] = {}
    for product, (width, kept) in zip(products, said, strict=True):
        total[product] = total.get(product, 0.0) + width
        saved[product] = saved.get(product, 0.0) + width * kept
    subject = problems.problem(load_model(name), stack="torchtitan-2026")
    gemms = layer_gemms(subject.model.layers[-1], subject.model.hidden)
    shares = kept_shares(subject, RECIPES[Precision.BF16], gemms, False)
    assert {product: shares[product] for product in total} == {p: saved[p] / total[p] for p in total}
