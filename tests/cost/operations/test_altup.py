"""Gemma 3n: streams that predict one another, a residual of low rank, gates that are cut, keys that layers share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.flops import model_flops
from planner.cost.layer_memory import kept_by_part
from planner.cost.operations.lists import layer_operations
from planner.cost.operations.operation import Run
from planner.cost.params import model_parameters
from planner.errors import FileInputError
from planner.spec.hf import read_hf_config
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.residual import AltUp
from tests.cost.operations.test_single_operations import ONE, PRODUCTS, VIEWS, moved

E2B = {
    "num_hidden_layers": 30, "intermediate_size": [8192] * 30, "num_kv_shared_layers": 10,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
}  # fmt: skip
SMALL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 64, "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 64, "laurel_rank": 32, "num_kv_shared_layers": 0, "layer_types": ["full_attention"],
}  # fmt: skip
TOKENS = 256


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({"model_type": "gemma3n_text", **fields}, "config.json", "m")


def test_parameters_by_hand() -> None:
    """Of a layer 64 x 2 x 2048 of low rank, a router 4 x 2048, coefficients 16 x 4 and 4 x 4, two norms and a scale;
    outside 3 x 2048^2 made of the embedding, and as many brought back."""
    found = model_parameters(read(**E2B))
    layer = 2 * 64 * 2048 + 4 * 2048 + 4 * 16 + 4 * 4 + 3 * 2048
    assert found.by_kind["residual_streams"] == 30 * layer + 3 * 2048**2
    tables = 262400 * 2048 + 30 * 256 * (262144 + 2048) + 3 * 2048**2
    assert found.by_kind["embedding"] == tables
    assert found.total == 4_435_182_688
    assert model_parameters(read()).total == 6_835_235_568  # E4B's text model, the library's defaults


def test_layers_share_keys_and_cut_gates_as_the_file_says() -> None:
    model = read(**E2B)
    attentions = [layer.attention for layer in model.layers]
    assert [a is not None and a.borrows_kv for a in attentions] == [False] * 20 + [True] * 10
    assert [i for i, a in enumerate(attentions) if a is not None and a.lends_kv] == [18, 19]
    assert [layer.mlp is not None and layer.mlp.cut for layer in model.layers] == [True] * 10 + [False] * 20
    assert (model.residual, model.streams, model.passed_streams) == (AltUp(4, 64), 4, 4.0)
    assert model.capped_logits


@pytest.mark.parametrize(
    ("field", "value"), [("activation_sparsity_pattern", [0.95]), ("intermediate_size", [8192, 8192])]
)
def test_lists_of_another_length_are_refused(field: str, value: list[float]) -> None:
    with pytest.raises(FileInputError, match=field):
        read(**{field: value})


def test_few_layers_must_say_how_many_share() -> None:
    with pytest.raises(FileInputError, match="num_kv_shared_layers"):
        read(num_hidden_layers=5)
    assert read(num_hidden_layers=5, num_kv_shared_layers=0).num_layers == 5


def test_wrapped_files_are_read() -> None:
    inside = {"model_type": "gemma3n_text", **E2B}
    wrapped = read_hf_config({"model_type": "gemma3n", "text_config": inside}, "config.json", "m")
    assert model_parameters(wrapped).total == model_parameters(read(**E2B)).total


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "cut"), [(2, 0.0), (4, 0.0), (4, 0.95)])
def test_what_pytorch_dispatches_and_saves(streams: int, cut: float) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("transformers.models.gemma3n.modeling_gemma3n")
    from torch.utils._python_dispatch import TorchDispatchMode

    def touched(tensor: Any) -> int:
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        return int(np.prod([n for n, stride in sizes if stride])) * int(tensor.element_size())

    class Counted(TorchDispatchMode):  # type: ignore[misc]
        bytes = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.split("::")[1]
            if (
                name in VIEWS or name in PRODUCTS[:2] or "attention" in name
            ):  # the product of streams is counted
                return out
            leaves = torch.utils._pytree.tree_leaves
            tensors = [x for x in leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            self.bytes += sum(map(touched, tensors))
            if name in ("slice_backward", "select_backward"):  # zeros, then a part written into them
                self.bytes += touched(tensors[0])
            return out

    fields = {**SMALL, "altup_num_inputs": streams, "activation_sparsity_pattern": [cut]}
    config = library.Gemma3nTextConfig(**fields)
    config._attn_implementation = "sdpa"
    whole = library.Gemma3nTextModel(config).to(torch.bfloat16).train()
    layer, saved, held = whole.layers[0], {}, []
    stream = torch.randn(streams, 1, TOKENS, 512, dtype=torch.bfloat16).requires_grad_() * 1
    side = torch.randn(1, TOKENS, 64, dtype=torch.bfloat16).requires_grad_() * 1
    rotary = tuple(x.detach() for x in whole.rotary_emb(stream, torch.arange(TOKENS)[None], "full_attention"))
    fixed = {x.untyped_storage().data_ptr() for x in (*layer.parameters(), *rotary)}

    def pack(tensor: Any) -> Any:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), Counted() as ahead:
        out = layer(stream, rotary, side, shared_kv_states={}, attention_mask=None)
    with Counted() as back:
        torch.autograd.grad(out, [stream, side, *layer.parameters()], torch.ones_like(out), allow_unused=True)
    model = read(**fields)
    run = Run.of_model(model, load_stack("transformers-2026").kernels, RECIPES[Precision.BF16])
    ops = layer_operations(model.layers[0], run)
    planned = [sum(float(m[i][0]) for m in moved(ops, ONE).values()) * TOKENS for i in (0, 1)]
    assert planned == pytest.approx([ahead.bytes, back.bytes], rel=0.005)
    kept = sum(float(v[0]) for v in kept_by_part(ops, ONE).values()) * TOKENS
    assert kept == pytest.approx(sum(n for at, n in saved.items() if at not in fixed), rel=0.015)


@pytest.mark.slow
def test_flops_equal_the_library() -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("transformers.models.gemma3n.modeling_gemma3n")
    from torch.utils.flop_counter import FlopCounterMode

    fields = {
        **SMALL,
        "num_hidden_layers": 10,
        "layer_types": None,
        "num_kv_shared_layers": 5,
        "sliding_window": 16,
    }
    config = library.Gemma3nTextConfig(**fields)
    config._attn_implementation = "eager"
    model = library.Gemma3nForCausalLM(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 64, dtype=torch.long), use_cache=False)
    planned = model_flops(read(**fields), 2, 64)
    rest = counter.get_total_flops() - (planned.forward_linear + planned.forward_attention)
    assert rest in (0, 2 * 2 * 64 * 64)  # products of two sets of frequencies and positions, before 5.23
