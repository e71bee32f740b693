"""Single operations of transformers' layers: by hand, against what PyTorch dispatches, and through the product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.catalog.stack_options import LIGER, with_options
from planner.cost.cut import LayerShape
from planner.cost.device.graphs import WHOLE_LAUNCHES
from planner.cost.operations import experts
from planner.cost.operations.embedding_and_loss import loss_bytes
from planner.cost.operations.lists import layer_operations
from planner.cost.operations.norms import norm_bytes
from planner.cost.operations.operation import Operation, Run
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.job import Job
from planner.spec.layer import NormKind
from planner.spec.load_model import load_model
from planner.spec.precision import RECIPES, Precision
from planner.spec.stack.layer_code import Modelling, Torch
from planner.spec.stack.time import Kernels
from tests.problems import costs, dense_model, moe_model, operations, problem

SINGLE = Kernels(code=Modelling())
ONE = LayerShape(
    **dict.fromkeys(
        ("tokens", "t", "kv_split", "sequence_split", "expert_tokens", "e", "et", "c", "seq_kv"), np.ones(1)
    )
)


def moved(
    ops: tuple[Operation, ...], x: LayerShape
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Bytes of every operation that moves any, forward and backward."""
    found: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for op in ops:
        if op.moved and op.moved_back:
            ahead, back = found.get(op.name, (0.0 * x.t, 0.0 * x.t))
            found[op.name] = ahead + op.moved(x), back + op.moved_back(x)
    return found


def counted(
    name: str = "llama-2-7b", trained: bool = True, precision: Precision = Precision.BF16
) -> tuple[float, float]:
    """Bytes of a layer, forward and backward, over those of its stream: passes."""
    model = load_model(name)
    layer = model.layers[0]
    job = None if trained else Job(seq_len=1, global_batch=1, lora_rank=8)
    run = Run.of_model(model, SINGLE, RECIPES[precision], job=job)
    ahead, back = (
        sum(float(m[i][0]) for m in moved(layer_operations(layer, run), ONE).values()) for i in (0, 1)
    )
    unit = run.act * model.hidden
    return ahead / unit, back / unit


def test_a_norm_by_hand() -> None:
    # casts 6 + 6, square 8, mean 4, times the root 8, times the weight 4
    assert norm_bytes(NormKind.RMS, 2.0, True) == (36.0, 92.0)
    # a frozen weight has no gradient: product (read, read, write) and sum (read) of 2 bytes
    assert norm_bytes(NormKind.RMS, 2.0, False) == (36.0, 84.0)
    # in fp32 nothing is cast, and the weight's passes are 4 bytes wide
    assert norm_bytes(NormKind.RMS, 4.0, True) == (28.0, 92.0)
    assert norm_bytes(NormKind.LAYER, 2.0, True) == (4.0, 10.0)
    # Gemma's weights are multiplied in fp32: two passes forward, and two and four backward, are 2 bytes wider
    assert norm_bytes(NormKind.RMS, 2.0, True, wide=True) == (40.0, 104.0)
    assert norm_bytes(NormKind.RMS, 4.0, True, wide=True) == norm_bytes(NormKind.RMS, 4.0, True)


def test_a_layer_by_hand() -> None:
    f = 11008 / 4096
    # norms 18 and 46 passes, rotation of q and k 10 and 17, two sums, and three more of gradients, activation 5 and 9
    assert counted() == pytest.approx((36 + 20 + 6 + 5 * f, 92 + 34 + 15 + 9 * f))
    # a quarter of the keys
    f = 14336 / 4096
    assert counted("llama-3-8b") == pytest.approx((36 + 12.5 + 6 + 5 * f, 92 + 17 * 1.25 + 15 + 9 * f))
    assert counted(trained=False)[1] == pytest.approx(counted()[1] - 8)


def test_a_gate_that_is_cut_by_hand() -> None:
    """Mean 1, deviation 1, difference 2, ReLU 2 more passes forward, 18 backward; what is left is kept beside."""
    model = load_model("llama-2-7b")
    layer = model.layers[0]
    assert layer.mlp is not None
    run = Run.of_model(model, SINGLE, RECIPES[Precision.BF16])
    ffn = 2.0 * layer.mlp.ffn
    plain, cut = (layer_operations(replace(layer, mlp=replace(layer.mlp, cut=c)), run) for c in (False, True))
    more = [sum(m[i][0] for m in moved(cut, ONE).values()) for i in (0, 1)]
    less = [sum(m[i][0] for m in moved(plain, ONE).values()) for i in (0, 1)]
    assert (more[0] - less[0], more[1] - less[1]) == (6 * ffn, 18 * ffn)
    kept = [sum(op.kept["mlp"](ONE)[0] for op in ops if "mlp" in op.kept) for ops in (plain, cut)]
    assert kept[1] - kept[0] == ffn


def test_a_loss_by_hand() -> None:
    # cast 6, logarithm 8, zeros 4, back through the softmax 12, cast 6
    assert loss_bytes(2.0) == 36.0
    assert loss_bytes(4.0) == 24.0
    # a quotient, a tanh and a product: 2 passes each, backward 2, 3 and 2
    assert loss_bytes(2.0, capped=True) == 36.0 + 26.0


def test_a_loop_over_experts_by_hand() -> None:
    moe = load_model("mixtral-8x7b").layers[0].moe
    assert moe is not None
    # 16 tokens of 4 values, 2 experts each: 32 rows, of 8 experts with 6 values a row
    small, x = (
        replace(moe, expert_ffn=6),
        replace(ONE, tokens=np.full(1, 16.0), expert_tokens=np.full(1, 16.0)),
    )
    found = moved(experts.operations(small, Run(4, SINGLE)), x)
    assert found["moe_permute"] == (2 * 7 * 32 * 4, 2 * (12 * 32 * 4 + 6 * 8 * 64))
    assert found["moe_act"] == (2 * 5 * 32 * 6, 2 * 9 * 32 * 6)


def test_every_expert_of_a_loop_is_launched() -> None:
    subject = problem(moe_model(), "1x1 h100", global_batch=1, stack="deepspeed-2025")
    layer = next(kind for kind in subject.model.layer_kinds if kind.moe is not None)
    assert layer.moe is not None
    host = float(costs(subject).layers.layer(layer, ConfigTable.of([ParallelConfig()])).host[0])
    assert host == pytest.approx(1.6e-3 + 30 * 13.9e-6 * layer.moe.experts)


def test_a_stack_of_single_operations_moves_more_than_one_of_fused_kernels() -> None:
    layer, config = dense_model(2).layers[0], ConfigTable.of([ParallelConfig()])
    seconds = {}
    for stack in ("fsdp1-2023", "fsdp1-2023+no-compile"):
        given = problem(dense_model(2), "1x1 h100", global_batch=1, stack=stack)
        found = costs(given).layers.layer(layer, config)
        seconds[stack] = (float(found.forward["memory_bound"][0]), float(found.backward["memory_bound"][0]))
    fused, single = seconds.values()
    assert fused[1] == pytest.approx(2 * fused[0])
    assert single[0] > 2 * fused[0]
    assert single[1] > 2 * single[0]


def test_fused_kernels_beside_single_operations_move_what_fused_ones_do() -> None:
    given = problem(dense_model(2), "1x1 h100", global_batch=1, stack="deepspeed-2025")
    liger = replace(given, stack=with_options(given.stack, [LIGER]))
    kernels = liger.stack.kernels
    plain = replace(
        given,
        stack=liger.stack.model_copy(update={"kernels": kernels.model_copy(update={"code": Torch()})}),
    )
    found = []
    for subject in (given, liger, plain):
        passes = costs(subject).layers.passes
        layer = subject.model.layers[0]
        shape = costs(subject).layers.shape(ConfigTable.of([ParallelConfig()]), layer)
        found.append(passes.memory_bound(operations(subject, layer)[1], shape)[0])
    for name in ("layernorm", "qkv", "mlp_act"):
        assert found[1][name] == found[2][name] < found[0][name], name
    assert found[1]["residual"] == found[0]["residual"]


VIEWS = (
    "view", "_unsafe_view", "t", "transpose", "unsqueeze", "slice", "select", "expand", "detach", "alias", "permute",
    "split", "as_strided", "_reshape_alias",
)  # fmt: skip
PRODUCTS = ("mm", "addmm", "bmm")


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_what_pytorch_dispatches(kv_heads: int) -> None:
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from torch.utils._python_dispatch import TorchDispatchMode

    tokens, h, f, heads = 256, 512, 1376, 8

    def touched(tensor: Any) -> int:
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        return int(np.prod([n for n, stride in sizes if stride])) * int(tensor.element_size())

    class Counted(TorchDispatchMode):  # type: ignore[misc]
        bytes, launches = 0, 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.split("::")[1]
            if name in VIEWS:
                return out
            self.launches += 1
            if name in PRODUCTS or "attention" in name:
                self.launches += 2 * (
                    "backward" in name
                )  # of attention, one operation here, three kernels there
                return out
            leaves = torch.utils._pytree.tree_leaves
            tensors = [x for x in leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            self.bytes += sum(map(touched, tensors))
            if name == "slice_backward":  # zeros, then a half written into them
                self.launches += 1
                self.bytes += touched(tensors[0])
            return out

    config = llama.LlamaConfig(
        hidden_size=h, intermediate_size=f, num_attention_heads=heads, num_key_value_heads=kv_heads,
        num_hidden_layers=1, vocab_size=8, attn_implementation="sdpa",
    )  # fmt: skip
    whole = llama.LlamaModel(config).to(torch.bfloat16)
    start = torch.randn(1, tokens, h, dtype=torch.bfloat16)
    rotary = tuple(x.detach() for x in whole.rotary_emb(start, torch.arange(tokens)[None]))
    stream = start.requires_grad_() * 1
    with Counted() as ahead:
        out = whole.layers[0](stream, attention_mask=None, position_embeddings=rotary)
    out = out[0] if isinstance(out, tuple) else out
    gradient = torch.ones_like(out)
    with Counted() as back:
        torch.autograd.grad(out, [stream, *whole.layers[0].parameters()], gradient)
    q, kv = 1.0, kv_heads / heads
    unit = 2.0 * tokens * h
    assert ahead.bytes / unit == pytest.approx(36 + 10 * (q + kv) + 6 + 5 * f / h, rel=0.02)
    assert back.bytes / unit == pytest.approx(92 + 17 * (q + kv) + 15 + 9 * f / h, rel=0.02)
    assert (ahead.launches, back.launches) == (WHOLE_LAUNCHES[True], 77)
