"""Lightning attention and short convolutions: by hand, against what PyTorch dispatches, and through the product."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.flops import model_flops
from planner.cost.operations import lightning_attention, short_convolution
from planner.cost.operations.delta_net import EAGER_DECAY
from planner.cost.operations.state_space import cut_of, reached_bandwidth
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import FileInputError, UnsupportedError
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.mixers import LightningAttention, ShortConvolution
from planner.spec.model import ModelSpec
from tests.problems import costs, dense_model, launches, problem

TEXT = LightningAttention(64, 128, 128, 64)  # of MiniMax-Text-01
SMALL = LightningAttention(4, 32, 32, 4, chunk=16)
LFM = ShortConvolution(1, 2048, 1, 1)


def mixed(net: LightningAttention | ShortConvolution) -> ModelSpec:
    """The small dense model with such a mixer in half of its layers."""
    spec = dense_model(4)
    first = replace(spec.layers[0], attention=None, state_space=net)
    return replace(spec, layers=(first, *spec.layers[1:3], first))


def seconds(
    stack: str, net: LightningAttention | ShortConvolution, seq_len: int
) -> tuple[float, float, float]:
    """Forward and backward memory-bound seconds, and the host's, of the first layer."""
    given = problem(mixed(net), "1x1 h100", seq_len=seq_len, global_batch=1, stack=stack)
    found = costs(given).layers.layer(given.model.layer_kinds[0], ConfigTable.of([ParallelConfig()]))
    return tuple(
        float(x[0]) for x in (found.forward["memory_bound"], found.backward["memory_bound"], found.host)
    )


class TestLightning:
    def test_published_size(self) -> None:
        found = model_parameters(load_model("minimax-text-01"))
        assert found.by_kind["lightning_attention"] == 70 * (6144 * 5 * 8192 + 8192)
        assert found.total / 1e9 == pytest.approx(456, abs=0.5)
        ends = found.by_kind["embedding"] + found.by_kind["head"]
        assert (found.active - ends) / 1e9 == pytest.approx(45.9, abs=0.1)

    def test_work_of_a_block_product_by_product(self) -> None:
        q, d = 256, 128
        block = 2 * (q * d * q + q * q * d + q * d * d + d * q * d)  # Q K^T, with V, with the state, K^T V
        assert lightning_attention.flops(TEXT, 1) * q == 64 * block
        assert model_flops(
            load_model("minimax-text-01"), 1, 8192
        ).forward_scan == 70 * 8192 * lightning_attention.flops(TEXT, 1)

    def test_traffic_of_single_operations_by_hand(self) -> None:
        cut = cut_of(SMALL, 256.0, 1.0, 1.0)
        i, scores, states = 128, 4 * 16, 128 * 32 / 16
        ahead, back = lightning_attention.traffic(SMALL, cut, 2.0, 0.0, 256.0, fused=False)
        assert ahead == 256 * (2 * (30 * i + 5 * scores + 7 * states) + 36 * i)
        # sixteen blocks, whose gradients are laid into the whole sequence one by one
        assert back == 256 * (2 * ((50 + 12 * 16) * i + 7 * scores + 9 * states) + 92 * i)

    def test_the_backward_pass_grows_with_the_square_where_nothing_is_compiled(self) -> None:
        short, long = (seconds("deepspeed-2025", TEXT, n) for n in (8192, 32768))
        assert long[0] == pytest.approx(4 * short[0], rel=0.01)
        assert long[1] > 10 * short[1]
        compiled = [seconds("fsdp1-2023", TEXT, n) for n in (8192, 32768)]
        assert compiled[1][1] == pytest.approx(4 * compiled[0][1], rel=0.01)

    def test_every_block_is_launched(self) -> None:
        layer = Layer(None, None, None, 1, state_space=TEXT)
        assert launches(layer, 8192, True) == pytest.approx((13 * 32 + 25) / 38)
        assert launches(layer, 8192, False) == pytest.approx((9 * 32 + 8) / 12)
        short, long = (seconds("deepspeed-2025", TEXT, n)[2] for n in (4096, 8192))
        assert long - short == pytest.approx(
            13 * 16 / 38 * 1.6e-3
        )  # the stack's floor is of 38 forward launches

    def test_what_is_kept(self) -> None:
        cut = cut_of(TEXT, 1.0, 1.0, 1.0)
        both = 2 * (64 * 256 + 64 * 128 * 128 / 256)
        fused, single = (
            lightning_attention.kept_parts(TEXT, cut, 2.0, 2.0, fused) for fused in (True, False)
        )
        assert fused["state_space"] == 2 * 8 * 8192 + both
        assert single["state_space"] == (2 * 11 + 6) * 8192 + both
        assert fused["state_out"] == 2 * 8192
        assert lightning_attention.working_bytes(TEXT, cut, 2.0) == 20 * 8192

    def test_published_files_are_read_in_their_own_spelling(self) -> None:
        fields = {"num_hidden_layers": 8, "head_dim": 128, "num_local_experts": 4}
        for family in ("minimax_text_01", "minimax_m1"):
            spec = read_hf_config(
                {"model_type": family, **fields, "attn_type_list": [0] * 7 + [1], "shared_intermediate_size": 0},
                "config.json", "small",
            )  # fmt: skip
            assert [layer.attention is not None for layer in spec.layers] == [False] * 7 + [True]
        with pytest.raises(UnsupportedError, match="shared_intermediate_size"):
            read_hf_config({"model_type": "minimax", "shared_intermediate_size": 64}, "config.json", "small")
        with pytest.raises(FileInputError, match="one type per layer"):
            read_hf_config({"model_type": "minimax", **fields, "attn_type_list": [1]}, "config.json", "small")


class TestShortConvolution:
    def test_published_size(self) -> None:
        found = model_parameters(load_model("lfm2-1.2b"))
        assert found.by_kind["short_convolution"] == 10 * (4 * 2048**2 + 3 * 2048)
        assert found.by_kind["mlp"] == 16 * 3 * 2048 * 8192  # two thirds of 12,288
        assert found.total / 1e9 == pytest.approx(1.17, abs=0.005)

    def test_biases(self) -> None:
        biased = replace(LFM, conv_bias=True, bias=True)
        plain, more = (
            layer_parameters(Layer(None, None, None, 1, state_space=s), 2048) for s in (LFM, biased)
        )
        assert more.total - plain.total == 3 * 2048 + 2048 + 2048

    def test_time_and_memory_by_hand(self) -> None:
        cut = cut_of(LFM, 1.0, 1.0, 1.0)
        rate = reached_bandwidth(3.35e12)
        for fused, several, back in ((True, 1, 15), (False, 0, 21), (False, 1, 27)):
            found = short_convolution.seconds(LFM, cut, 2.0, several, 4096.0, 3.35e12, 989e12, fused)
            assert found == pytest.approx((2 * 8 * 2048 / rate, 2 * back * 2048 / rate))
        assert short_convolution.kept_parts(LFM, cut, 2.0, 2.0) == {
            "state_space": 10 * 2048,
            "state_out": 2 * 2048,
        }
        assert short_convolution.flops(LFM, 1) == 2 * 3 * 2048

    def test_a_layer_costs_less_than_attention_over_long_sequences(self) -> None:
        given = problem(mixed(LFM), "1x1 h100", seq_len=32768, global_batch=1, stack="fsdp1-2023")
        model = costs(given)
        keys = ConfigTable.of([ParallelConfig()])
        net, whole = (model.layers.layer(kind, keys) for kind in given.model.layer_kinds)
        assert float(net.time[0]) < 0.7 * float(whole.time[0])
        assert float(net.forward["attention"][0]) == 0.0

    def test_layers_of_lfm3(self) -> None:
        spec = read_hf_config({"model_type": "lfm3", "num_hidden_layers": 8}, "config.json", "small")
        assert "".join("C" if layer.state_space else "A" for layer in spec.layers) == "CCACAC" + "AC"
        assert [a.window for a in spec.attentions] == [None, 256]
        assert all(a.head_gate for a in spec.attentions)
        assert {layer.norms for layer in spec.layers} == {4}

    def test_experts_need_stated_types(self) -> None:
        with pytest.raises(FileInputError, match="layer_types"):
            read_hf_config({"model_type": "lfm2_moe"}, "config.json", "small")


@pytest.mark.parametrize("name", ["minimax-text-01", "lfm2-1.2b"])
def test_only_programs_of_transformers_run_them(name: str) -> None:
    for stack, legal in (("megatron-2026", False), ("torchtitan-2026", False), ("deepspeed-2025", True)):
        subject = problem(load_model(name), stack=load_stack(stack))
        found = {b.rule: b for b in explain_config(ParallelConfig(dp=16), subject, rules_for(subject.stack))}
        assert ("state-space-layers" not in found) is legal
        if not legal:
            assert subject.model.mixer_titles[0] in found["state-space-layers"].reason


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [1, 2])
def test_what_pytorch_dispatches(sequences: int) -> None:
    torch = pytest.importorskip("torch")
    minimax = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    lfm2 = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    from torch.utils._python_dispatch import TorchDispatchMode

    from tests.cost.operations.test_single_operations import VIEWS

    class Counted(TorchDispatchMode):  # type: ignore[misc]
        bytes, launches = 0, 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out, name = func(*args, **(kwargs or {})), func._schema.name.split("::")[1]
            if name in VIEWS or name == "mm":
                return out
            leaves = torch.utils._pytree.tree_leaves((args, kwargs, out))
            touched = [
                math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride)
                * x.element_size()
                for x in leaves
                if isinstance(x, torch.Tensor)
            ]
            if name == "slice_backward":  # zeros, then the slice written into them
                touched.append(touched[0] if layer is not convolution else -sum(touched))
            self.bytes, self.launches = self.bytes + sum(touched), self.launches + 1
            return out

    half, tokens = torch.bfloat16, 256
    settings = minimax.MiniMaxConfig(
        hidden_size=64, num_attention_heads=4, head_dim=32, num_hidden_layers=2, block_size=16, vocab_size=8,
        layer_types=["linear_attention"] * 2,
    )  # fmt: skip
    blocks = minimax.MiniMaxLightningAttention(settings, 0).to(half)
    gate = kimi.KimiLinearForgetGate(
        kimi.KimiLinearConfig(hidden_size=64, linear_head_dim=32, linear_num_heads=4, num_hidden_layers=1)
    ).to(half)
    convolution = lfm2.Lfm2ShortConv(
        lfm2.Lfm2Config(hidden_size=128, num_hidden_layers=1, num_attention_heads=4, layer_types=["conv"]), 0
    ).to(half)
    counted = {}
    for layer, width, more in ((blocks, 64, (None, None)), (gate, 64, ()), (convolution, 128, ())):
        stream = torch.randn(sequences, tokens, width, dtype=half, requires_grad=True)
        with Counted() as ahead:
            out = layer(stream, *more)
        out = out[0] if isinstance(out, tuple) else out
        start = torch.ones_like(out)
        with Counted() as back:
            out.backward(start)
        counted[layer] = np.array([ahead.bytes, back.bytes]) / (sequences * tokens), ahead.launches
    cut = cut_of(SMALL, 1.0, 1.0, 1.0)
    several = float(sequences > 1)
    expected = lightning_attention.traffic(SMALL, cut, 2.0, several, float(tokens), fused=False)
    assert counted[blocks][0] == pytest.approx(expected, rel=0.02)
    if (
        sequences == 1
    ):  # its own norm is counted there as the layer's and a sum; three products are not counted here
        assert counted[blocks][1] + 12 == pytest.approx(
            lightning_attention.launches(SMALL, float(tokens), True), rel=0.05
        )
    assert counted[gate][0] == pytest.approx(128 * np.array([EAGER_DECAY[0] - 8, EAGER_DECAY[1]]), rel=0.02)
    ahead, back = short_convolution.PASSES[False]
    passes = np.array([ahead, back + several * short_convolution.ORDER])
    assert counted[convolution][0] == pytest.approx(128 * 2 * passes, rel=0.02)
