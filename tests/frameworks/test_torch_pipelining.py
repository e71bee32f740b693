"""What torch's pipelines do with fully sharded weights and gradients: four ranks on the CPU, two stages of two.

The cost counts on it: `cost/memory/fully_shard.py`, `cost/stage_memory.py`, `cost/pipeline/step.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from tests.frameworks.test_own_parsers import needs
from tests.problems import costs, dense_model, problem

MICRO_BATCHES, LAYERS, WIDTH = 6, 4, 64
SCRIPT = """
import json, sys, torch, torch.distributed as dist, torch.nn as nn
import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
batches, layers, width = map(int, sys.argv[1:])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
place = mesh.get_local_rank("pp")
counts = {}

def counted(name):
    inner = getattr(groups, name)
    def call(*a, **k):
        counts[name] = counts.get(name, 0) + 1
        return inner(*a, **k)
    setattr(groups, name, call)

counted("foreach_all_gather"), counted("foreach_reduce")

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

for always in (False, True):
    model = Stage()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=always)
    stage = PipelineStage(model, place, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, batches, loss_fn=lambda out, of: ((out.float() - of.float()) ** 2).mean())
    states = fully_shard.state(model)._state_ctx.all_states
    seen = []

    def look(inner):
        def call(*a, **k):
            result = inner(*a, **k)
            params = [p for state in states for g in state._fsdp_param_groups for p in g.fsdp_params]
            weights = sum(p._unsharded_param.untyped_storage().nbytes() for p in params
                          if hasattr(p, "_unsharded_param"))
            gradients = sum(p.unsharded_accumulated_grad.nbytes for p in params
                            if p.unsharded_accumulated_grad is not None)
            seen.append((inner.__name__.split("_")[0], weights, gradients))
            return result
        return call

    stage.forward_one_chunk, stage.backward_one_chunk = look(stage.forward_one_chunk), look(stage.backward_one_chunk)
    data = torch.randn(batches * 2, width)
    for _ in range(2):
        seen.clear(), counts.clear()
        schedule.step(data) if place == 0 else schedule.step(target=data, losses=[])
    if mesh.get_local_rank("dp") == 0:
        buffers = [info.buffer for kind in (stage.args_recv_info, stage.grad_recv_info) for of in kind.values()
                   for info in of if getattr(info, "buffer", None) is not None]
        # one write a line: ranks share the pipe, and print writes the end of a line apart
        sys.stdout.write(json.dumps([place, always, seen, counts, len(buffers)]) + "\\n")
        sys.stdout.flush()
    dist.barrier()
"""


@pytest.mark.slow
@needs("torch")
def test_weights_and_gradients_wait_whole_for_the_last_micro_batch(tmp_path: Path) -> None:
    script = tmp_path / "stages.py"
    script.write_text(SCRIPT)
    words = [script, *(str(n) for n in (MICRO_BATCHES, LAYERS, WIDTH))]
    launch = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
    ]
    done = subprocess.run([*launch, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 4
    whole = LAYERS * WIDTH * WIDTH
    model = costs(problem(dense_model(2 * LAYERS), "1x8 h100", stack="torchtitan-2026"))
    model = model.with_split((LAYERS, LAYERS))
    units = LAYERS + 1  # a message each of planner's stages, beside their layers the embedding or the head
    for place, always, seen, counts, buffers in found:
        backward = next(i for i, (kind, _, _) in enumerate(seen) if kind == "backward")
        assert all(gradients == 4 * whole * (i >= backward) for i, (_, _, gradients) in enumerate(seen))
        # what is gathered for a forward pass alone is freed after it with "always"
        freed = {"forward": not always, "backward": True}
        assert [weights for _, weights, _ in seen] == [2 * whole * freed[kind] for kind, _, _ in seen]
        config = ParallelConfig(pp=2, dp=4, zero=3 if always else 2, num_microbatches=MICRO_BATCHES)
        scatter, gather = (e for e in step_messages(model, config, place) if e.axis == "dp")
        # the head is gathered once: it stays so; an embedding as often as a layer
        shards = model.prepare(ConfigTable.of([config])).shards
        stays = float(shards.head[0, place] / shards.dense[0, place]) if always else 0.0
        of_layers = pytest.approx((gather.forward + gather.backward / (1 - stays)) / units * LAYERS)
        assert counts == {"foreach_reduce": scatter.calls / units * LAYERS, "foreach_all_gather": of_layers}
        assert buffers == MICRO_BATCHES  # the first stage receives gradients alone, the last activations
