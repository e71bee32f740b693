"""What an eager layer of torchtitan launches: its own code, dispatched on the CPU under torch's fake process group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.operations.experts import CLAMPED_KEPT, WEIGHING_BYTES

# operations of a layer, forward and backward; under tensor parallelism
DENSE, PARALLEL = (29, 34), (37, 42)
ATTENTION_BACKWARD = 2  # kernels more of the one operation, on a GPU
LAUNCH = 13.9e-6  # of deepspeed-2025

# Prints operations of a layer, those of four layers less those of two: of the second pass. Attention is one operation,
# as is a norm, which the CPU takes apart.
COUNT = """
import torch
import torchtitan.tools.utils as tools
tools.device_type, tools.device_module = "cpu", torch.cpu
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torchtitan.config import CompileConfig
from torchtitan.distributed import ParallelDims, utils
from torchtitan.models.common import attention
from torchtitan.models.llama3.config_registry import llama3_debugmodel, model_registry

NOT_LAUNCHED = set(
    "view _unsafe_view t transpose unsqueeze squeeze slice select expand detach alias permute split as_strided unbind "
    "chunk split_with_sizes view_as_complex view_as_real _reshape_alias reshape empty empty_like empty_strided "
    "new_empty new_empty_strided lift_fresh record_stream resize_ set_ _conj resolve_conj is_same_size wait_tensor "
    "_wrap_tensor_autograd _record_function_enter_new _record_function_exit".split()
)

@torch.library.custom_op("count::norm", mutates_args=())
def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)

@torch.library.custom_op("count::norm_back", mutates_args=())
def norm_back(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(w)

norm.register_autograd(
    lambda ctx, g: norm_back(g, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

def rms_norm(x, shape, weight=None, eps=None):
    if not hasattr(x, "to_local"):
        return norm(x, weight)
    return type(x).from_local(norm(x.to_local(), weight.to_local()), x.device_mesh, x.placements, run_check=False)

def attend(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, **_):
    q, k, v = (each.transpose(1, 2) for each in (q_BLNH, k_BLNH, v_BLNH))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

F.rms_norm, attention.FlexAttention.forward = rms_norm, attend

class Counted(TorchDispatchMode):
    launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.launches += func.__name__.split(".")[0] not in NOT_LAUNCHED
        return func(*args, **(kwargs or {}))

def counted(layers, tp):
    config = llama3_debugmodel()
    config.model_spec = model_registry("debugmodel")
    config.model_spec.model.layers = config.model_spec.model.layers[:layers]
    config.training.seq_len = 64
    degrees = config.parallelism
    degrees.tensor_parallel_degree, degrees.data_parallel_shard_degree = tp, 8 // tp
    degrees.spmd_backend = "partial_dtensor"
    utils.set_spmd_backend(degrees.spmd_backend)
    dims = ParallelDims.from_config(degrees, 8)
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    model = config.model_spec.parallelize_fn(
        model, parallel_dims=dims, training=config.training, parallelism=degrees,
        compile_config=CompileConfig(enable=False), ac_config=None, dump_folder="",
    )
    model.to_empty(device="cpu")
    model.init_states(buffer_device=torch.device("cpu"))
    tokens, positions = torch.randint(0, 2048, (2, 64)), torch.arange(64).expand(2, 64).contiguous()
    for _ in range(2):
        ahead, back = Counted(), Counted()
        with ahead:
            out = model(tokens, positions=positions)
        loss = (out.to_local() if hasattr(out, "to_local") else out).float().sum()
        with back:
            loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
    return ahead.launches, back.launches

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
for tp in (1, 2):
    print(*((b - a) // 2 for a, b in zip(counted(2, tp), counted(4, tp))))
"""


def test_floors_are_what_is_counted() -> None:
    host = load_stack("torchtitan-2026-eager").host
    assert host.layer_floor == pytest.approx((sum(DENSE) + ATTENTION_BACKWARD) * LAUNCH, rel=0.01)
    assert host.layer_floor_tp == pytest.approx((sum(PARALLEL) + ATTENTION_BACKWARD) * LAUNCH, rel=0.01)


@pytest.mark.slow
def test_what_torchtitan_dispatches() -> None:
    pytest.importorskip("torchtitan")
    ran = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    found = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()[-2:]]
    assert found == [DENSE, PARALLEL]


# Prints values that torchtitan's gate of gpt-oss keeps for its backward pass, per value of its output, its input's
# storage left out and its output counted, which the product behind it keeps; and the bytes of a value alive at once in
# the backward pass of outputs weighed in fp32.
KEPT = """
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary
from torchtitan.models.gpt_oss.moe import swiglu

h = torch.randn(64, 512, dtype=torch.bfloat16, requires_grad=True) + 0.0
kept = {h.untyped_storage().data_ptr(): 0}

def keep(tensor):
    kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.numel())
    return tensor

with saved_tensors_hooks(keep, lambda tensor: tensor):
    out = swiglu(h)
kept[out.untyped_storage().data_ptr()] = out.numel()
print(sum(kept.values()) / out.numel())

class Alive(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.storages, self.most = WeakIdKeyDictionary(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self.storages[storage] = storage.nbytes()
        self.most = max(self.most, sum(self.storages.values()))
        return out

outputs = torch.randn(64, 512, dtype=torch.bfloat16, requires_grad=True)
scores = torch.rand(64, requires_grad=True)
weighed = (outputs.to(torch.float32) * scores.reshape(-1, 1)).to(outputs.dtype)
gradient = torch.ones_like(weighed)
with Alive() as alive:
    torch.autograd.backward([weighed], [gradient])
print(alive.most / outputs.numel())
"""


@pytest.mark.slow
def test_what_gates_and_weights_of_experts_hold() -> None:
    pytest.importorskip("torchtitan")
    ran = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    kept, alive = map(float, ran.stdout.split()[-2:])
    assert kept == CLAMPED_KEPT + 1
    assert alive == pytest.approx(WEIGHING_BYTES, abs=0.05)
