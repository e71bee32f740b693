"""DeepSeek-V4: parameters as the library has them, pairs by brute force, several residual streams, who runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.cost.flops import model_flops
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.operation import gemm_flops
from planner.cost.operations.pairs import compressed_pairs, scored_pairs, seen_pairs, taught_pairs
from planner.cost.operations.sparse import core_flops, sight_of
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks.details import Details
from planner.frameworks.megatron.architecture import check_release, model_options
from planner.solve.step_messages import step_messages
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.attention import Attention
from planner.spec.config import ConfigTable, ParallelConfig, Recompute
from planner.spec.hf import read_hf_config
from planner.spec.indexer import Compression
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from tests.problems import costs, problem, work_of_attention

SMALL: dict[str, Any] = {
    "model_type": "deepseek_v4", "vocab_size": 1280, "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 64, "moe_intermediate_size": 128, "q_lora_rank": 64, "o_groups": 4, "o_lora_rank": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "compress_ratios": [0, 128, 4, 4, 0],
}  # fmt: skip


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({**SMALL, **fields}, "config.json", "small")


def attention_of(rate: int) -> Attention:
    """Small: rates of 4 (chosen, 3 at most), 3 (all) or 0, beside a window of 2."""
    chooses = read().attentions[-1]
    assert chooses.indexer is not None
    base = replace(chooses, window=2)
    if rate == 4:
        return replace(base, indexer=replace(chooses.indexer, top_k=3))
    return replace(base, indexer=None, compression=Compression(rate))


class TestParameters:
    @pytest.mark.parametrize(
        ("name", "total", "active"),
        [
            ("deepseek-v4-flash", 284_332_230_231, 13_799_622_231),
            ("deepseek-v4-pro", 1_572_997_179_491, 49_779_058_787),
        ],
    )
    def test_totals_of_transformers(self, name: str, total: int, active: int) -> None:
        counted = model_parameters(load_model(name))
        assert (counted.total, counted.active) == (total, active)

    def test_which_layers_compress(self) -> None:
        def rates(model: ModelSpec) -> list[int]:
            return [
                y.attention.compression.rate for y in model.layers if y.attention and y.attention.compression
            ]

        assert rates(read()) == [0, 128, 4, 4]  # the fifth is of the prediction module
        assert rates(read(compress_ratios=None)) == [128, 128, 128, 4]
        assert rates(read(compress_ratios=None, compress_rate_csa=8)) == [128, 128, 128, 8]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("hc_mult", 1),
            ("compress_ratios", [0, 64, 4, 4]),
            ("compress_ratios", [0, 4]),
            ("n_shared_experts", 2),
            ("num_key_value_heads", 4),
            ("o_groups", 5),
            ("layer_types", ["full_attention"] * 4),
            ("mlp_layer_types", ["dense"] * 4),
        ],
    )
    def test_what_it_does_not_understand(self, field: str, value: Any) -> None:
        with pytest.raises(InputError, match="num_attention_heads" if field == "o_groups" else field):
            read(**{field: value})


class TestWork:
    @pytest.mark.parametrize("seq", [1, 3, 4, 11, 12, 13, 64])
    @pytest.mark.parametrize("rate", [0, 3, 4])
    def test_pairs_by_brute_force(self, rate: int, seq: int) -> None:
        a = attention_of(rate)
        ended = [(i // rate if rate else 0) for i in range(1, seq + 1)]
        kept = [min(n, 3) for n in ended] if a.indexer is not None else ended
        window = sum(min(i, 2) for i in range(1, seq + 1))
        assert compressed_pairs(a, seq) == sum(ended)
        assert seen_pairs(a, seq) == window + sum(kept)
        assert taught_pairs(a, seq) == (sum(kept) if a.indexer is not None else 0)

    def test_columns_equal_rows(self) -> None:
        a, lengths = attention_of(4), np.array([5.0, 64.0])
        assert list(scored_pairs(a, lengths)) == [scored_pairs(a, 5), scored_pairs(a, 64)]
        assert list(seen_pairs(a, lengths)) == [seen_pairs(a, 5), seen_pairs(a, 64)]

    def test_products_hold_every_matrix(self) -> None:
        """Weights of products are all parameters of a layer but norms, biases, sinks and scales."""
        for layer in read().layers:
            a, hidden = layer.attention, 256
            assert a is not None
            assert a.compression is not None
            inside = 64 + a.head_dim + a.heads + a.head_dim * (a.compression.rate > 0)
            biases = a.compression.series * a.compression.rate * a.head_dim
            indexed = 128 * (2 * a.compression.rate + 1) if a.indexer else 0
            streams = 2 * (24 + 3)
            weights = sum(g.in_features * g.out_features * g.groups for g in layer_gemms(layer, hidden))
            small = 2 * hidden + inside + biases + indexed + streams
            assert weights + small == layer_parameters(layer, hidden).total

    def test_work_grows_slower_than_the_square(self) -> None:
        flash = load_model("deepseek-v4-flash")
        short, long = (work_of_attention(flash, s) / s for s in (8192, 1_048_576))
        assert long / short < 10  # the square: 128

    def test_core_reads_one_key_that_is_the_value(self) -> None:
        a = attention_of(0)
        see = sight_of(a, 1.0, 8.0, 1.0, 1.0, False)
        forward, backward = core_flops(a, 1.0, see.chosen)
        assert forward == 2 * 15 * (512 + 512)  # a window of 2 over 8 tokens: 15 pairs
        assert backward == 2.5 * forward


class TestStreams:
    def test_stages_pass_all_streams(self) -> None:
        four, two = problem(read()), problem(read(hc_mult=2))
        sent = [
            next(e.size for e in step_messages(costs(p), ParallelConfig(dp=8, pp=2), 0) if e.axis == "pp")
            for p in (four, two)
        ]
        assert sent[0] == 2 * sent[1]

    def test_products_that_weigh_them(self) -> None:
        gemms = [g for g in layer_gemms(read().layers[0], 256) if g.name == "streams"]
        assert [gemm_flops(g, 1) for g in gemms] == [2 * 4 * 256 * 24] * 2


class TestPrediction:
    """A prediction module: a layer that sees the window alone, two projections, three norms and its sum of streams."""

    def with_module(self, **fields: Any) -> ModelSpec:
        config = {**SMALL, "num_nextn_predict_layers": 1, **fields}
        return read_hf_config(config, "config.json", "small", with_mtp=True)

    @pytest.mark.parametrize("ratios", [[0, 128, 4, 4, 0], [128, 128, 4, 4, 0], [128, 128, 4, 4]])
    def test_parameters(self, ratios: list[int]) -> None:
        model = self.with_module(compress_ratios=ratios)
        assert [layer.attention.compression for layer in model.mtp_block if layer.attention] == [
            Compression(0)
        ]
        longer = read(num_hidden_layers=5, compress_ratios=[*ratios[:4], 0])
        of_layer = model_parameters(longer).total - model_parameters(read(compress_ratios=ratios)).total
        module = of_layer + 2 * 256**2 + 3 * 256 + 4 * (4 * 256 + 1) + 1
        assert model_parameters(model).by_kind["mtp"] == module
        assert model.num_layers == 4

    def test_every_stream_is_projected(self) -> None:
        more = model_flops(self.with_module(), 1, 1).forward_linear - model_flops(read(), 1, 1).forward_linear
        longer = model_flops(read(num_hidden_layers=5), 1, 1).forward_linear
        layer = longer - model_flops(read(), 1, 1).forward_linear
        assert more - layer == 2 * 256 * (
            5 * 256 + 4 * 4 + 1280
        )  # embedding and streams; their sum; the head

    @pytest.mark.parametrize("first", [0, 128])
    def test_the_last_stage_has_it_also_where_no_layer_is_like_it(self, first: int) -> None:
        ratios = [first, 128, 4, 4, 0]
        staged, whole = (
            ParallelConfig(dp=16 // pp, pp=pp, ep=8, zero=1, num_microbatches=4) for pp in (2, 1)
        )
        models = (self.with_module(compress_ratios=ratios), read(compress_ratios=ratios))
        subjects = [problem(model, "2x8 h100 400G-ib", stack="megatron-2026") for model in models]
        more, less = (costs(s).evaluate(ConfigTable.of([staged, whole])) for s in subjects)
        assert (more.step_time > less.step_time).all()
        assert more.peak_memory[1] > less.peak_memory[1]


class TestWhoRunsIt:
    def broken(self, config: ParallelConfig, stack: str = "megatron-2026", **more: Any) -> set[str]:
        subject = problem(read(), "1x8 h100", stack=stack, **more)
        return {b.rule for b in explain_config(config, subject, rules_for(subject.stack))}

    def test_megatron_divides_experts_and_stages_alone(self) -> None:
        assert not self.broken(ParallelConfig(dp=8, ep=8, zero=1))
        assert "compressed-keys-whole" in self.broken(ParallelConfig(dp=4, tp=2, sp=1))
        assert "compressed-keys-whole" in self.broken(ParallelConfig(dp=4, cp=2))

    def test_megatron_recomputes_no_whole_layers(self) -> None:
        full = ParallelConfig(dp=8, recompute=int(Recompute.FULL), recompute_layers=4)
        assert "streams-recompute" in self.broken(full)

    def test_others_have_no_kernels(self) -> None:
        assert "indexer-kernels" in self.broken(ParallelConfig(dp=8), "deepspeed-2025")

    def test_sixteen_bits(self) -> None:
        assert "indexer-precision" in self.broken(ParallelConfig(dp=8), precision=Precision.FP16)

    @pytest.mark.parametrize("version", ["0.18.2", "main-2026-08"])
    def test_no_file_can_launch_it(self, version: str) -> None:
        check_release(read(), version)  # what is said is not that another release would do
        with pytest.raises(UnsupportedError, match="deepseek_v4 computes"):
            model_options(read(), Details(), 4096, 128, version)
