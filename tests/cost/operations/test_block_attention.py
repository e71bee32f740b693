"""MiniMax Sparse Attention: pairs by brute force, time and memory by hand, how it divides, who runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.pairs import (
    chosen_pairs,
    indexer_backward_flops,
    indexer_flops,
    seen_pairs,
    taught_pairs,
)
from planner.cost.operations.sparse import Device, sight_of
from planner.cost.operations.sparse_blocks import core_time, kept_bytes, loss_time, score_time, working_bytes
from planner.cost.params import layer_parameters, model_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks.details import read_details
from planner.frameworks.megatron.architecture import check_release, model_options
from planner.solve.step_messages import step_messages
from planner.space.framework_rules import rules_for
from planner.space.legality import explain_config
from planner.spec.attention import Attention
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.indexer import IndexerLoss
from planner.spec.load_model import load_model
from planner.spec.machine.accelerator import Architecture
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack.kinds import SparseKernel
from tests.problems import costs, problem, work_of_attention

M3 = load_model("minimax-m3")
B200 = Device(SparseKernel.CUDNN, Architecture.BLACKWELL, 2250e12, 80e12, 8e12, 126 * 2**20)
SMALL: dict[str, Any] = {
    "model_type": "minimax_m3", "vocab_size": 1280, "hidden_size": 512, "num_hidden_layers": 4, "head_dim": 128,
    "intermediate_size": 256, "dense_intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4,
    "num_local_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1, 1, 1],
    "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1, 1]},
}  # fmt: skip


def read(**fields: Any) -> ModelSpec:
    return read_hf_config({**SMALL, **fields}, "config.json", "small")


def sparse_of(model: ModelSpec) -> Attention:
    return next(a for a in model.attentions if a.chooses_blocks)


class TestReading:
    def test_total_of_transformers(self) -> None:
        """5.23's MiniMaxM3VLForCausalLM of the published sizes on its meta device."""
        counted = model_parameters(M3)
        assert (counted.total, counted.by_kind["indexer"]) == (426_174_565_632, 224_147_712)

    def test_which_layers_choose(self) -> None:
        assert [y.attention is not None and y.attention.chooses_blocks for y in M3.layers] == [False] * 3 + [
            True
        ] * 57
        assert not read(sparse_attention_config=None).indexers
        assert not read(layer_types=["full_attention"] * 4).indexers
        assert read(layer_types=["minimax_m3_sparse"] * 4).layers[0].attention == sparse_of(read())

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("sparse_attention_freq", [1, 1]),
            ("sparse_disable_index_value", [1, 1, 0, 1]),
            ("sparse_init_block", 1),
            ("sparse_local_block", 0),
        ],
    )
    def test_what_it_does_not_understand(self, field: str, value: Any) -> None:
        section = SMALL["sparse_attention_config"] | {field: value}
        with pytest.raises(InputError, match=field):
            read(sparse_attention_config=section)

    def test_blocks_need_grouped_queries_of_their_own(self) -> None:
        a = sparse_of(read())
        assert a.indexer is not None
        for other in ({"window": 128}, {"indexer": replace(a.indexer, heads=3)}):
            with pytest.raises(InputError, match="indexer"):
                replace(a, **other)
        with pytest.raises(InputError, match="top_k"):
            replace(a, indexer=replace(a.indexer, top_k=100))


class TestWork:
    @pytest.mark.parametrize("seq", [1, 3, 4, 5, 11, 12, 13, 40, 43])
    def test_pairs_by_brute_force(self, seq: int) -> None:
        """Three blocks of 4: a query's own up to itself, and two of those before."""
        expected = sum(i % 4 + 1 + 4 * min(i // 4, 2) for i in range(seq))
        assert chosen_pairs(12, seq, 4) == expected

    def test_columns_equal_rows(self) -> None:
        assert list(chosen_pairs(12, np.array([11.0, 43.0]), 4)) == [
            chosen_pairs(12, 11, 4),
            chosen_pairs(12, 43, 4),
        ]

    def test_up_to_the_chosen_blocks_it_is_dense(self) -> None:
        a = sparse_of(M3)
        assert seen_pairs(a, 2048) == 2048 * 2049 / 2
        assert seen_pairs(a, 2049) < 2049 * 2050 / 2

    def test_flops_as_the_kernels_count_them(self) -> None:
        """2 (d + d) a and, of the loss, 2 d a + 4 d_i h_i a pair: scores made again are not counted."""
        a = sparse_of(M3)
        pairs = seen_pairs(a, 8192)
        assert indexer_flops(a, 10) == 2 * 128 * 4 * 10
        projections = 2 * 8192 * 6144 * 5 * 128
        assert (
            indexer_backward_flops(a, projections, 8192) == projections + (2 * 128 * 64 + 4 * 128 * 4) * pairs
        )
        assert taught_pairs(a, 8192) == pairs

    def test_products_hold_every_matrix(self) -> None:
        for layer in read().layers:
            weights = sum(
                g.in_features * (g.out_features + g.kv_out_features) * g.groups
                for g in layer_gemms(layer, 512)
            )
            choosing = layer.attention is not None and layer.attention.chooses_blocks
            norms = 2 * 512 + 2 * 128 + 2 * 128 * choosing
            assert weights + norms == layer_parameters(layer, 512).total

    def test_work_grows_slower_than_the_square(self) -> None:
        short, long = (work_of_attention(M3, s) / s for s in (8192, 1_048_576))
        assert long / short < 20  # 3 of 60 layers see everything; the square: 128


class TestTime:
    def test_the_timed_module(self) -> None:
        """4.57 ms for one sequence of 16,384 tokens, 9.08 of 32,768, its projections at 0.7 of the peak (B200)."""
        a = sparse_of(M3)
        assert a.indexer is not None
        for seq, timed in ((16384, 4.57e-3), (32768, 9.08e-3)):
            see = sight_of(a, 1.0, float(seq), 1.0, 1.0, False)
            products = 2 * seq * 6144 * (2 * 8192 + 2 * 512 + 5 * 128) / (0.7 * B200.peak)
            whole = products + core_time(a, see, B200)[0] + score_time(a, a.indexer, see, B200)
            assert whole == pytest.approx(timed, rel=0.1)

    def test_backward_takes_longer(self) -> None:
        a = sparse_of(M3)
        assert a.indexer is not None
        see = sight_of(a, 1.0, 16384.0, 1.0, 1.0, False)
        ahead, behind = core_time(a, see, B200)
        assert 2.5 * ahead < behind < 6 * ahead
        assert 0 < loss_time(a, a.indexer, see, B200) < behind
        untrained = replace(a.indexer, loss=IndexerLoss.NONE)
        still = sight_of(replace(a, indexer=untrained), 1.0, 16384.0, 1.0, 1.0, False)
        assert loss_time(a, untrained, still, B200) == 0

    def test_ranks_choose_for_their_own_heads(self) -> None:
        a = sparse_of(M3)
        assert a.indexer is not None
        one, four = (sight_of(a, 1.0, 16384.0, t, 1.0, False) for t in (1.0, 4.0))
        assert score_time(a, a.indexer, one, B200) == 4 * score_time(a, a.indexer, four, B200)

    def test_pytorch_works_on_the_square(self) -> None:
        a, torch = sparse_of(M3), replace(B200, kernel=SparseKernel.NONE)
        assert a.indexer is not None
        short, long = (sight_of(a, 1.0, s, 1.0, 1.0, False) for s in (4096.0, 8192.0))
        assert core_time(a, long, torch)[0] == 4 * core_time(a, short, torch)[0]
        assert score_time(a, a.indexer, long, torch) > score_time(a, a.indexer, long, B200)


class TestMemory:
    def test_kept_by_hand(self) -> None:
        """16 blocks of 4 groups, chosen and listed the other way round; statistics of 64 + 4 heads."""
        see = sight_of(sparse_of(M3), 1.0, 4096.0, 1.0, 1.0, False)
        inputs, core = kept_bytes(sparse_of(M3), see, SparseKernel.CUDNN, 2.0, 1.0)
        assert inputs == 2 * 2 * 4096 * 5 * 128
        assert core == 4096 * (4 * 68 + 2 * 4 * 4 * 16)

    def test_context_ranks_keep_gathered_keys(self) -> None:
        a = sparse_of(M3)
        one, two = (sight_of(a, 1.0, 4096.0, 1.0, c, False) for c in (1.0, 2.0))
        whole, half = (kept_bytes(a, see, SparseKernel.CUDNN, 2.0, 1.0)[0] for see in (one, two))
        assert half == whole / 2 + 2 * 2048 * (4 * 256 + 128)
        assert working_bytes(a, two, SparseKernel.CUDNN, 2.0, 1.0) < working_bytes(
            a, one, SparseKernel.CUDNN, 2.0, 1.0
        )

    def test_pytorch_keeps_scores(self) -> None:
        a = sparse_of(M3)
        see = sight_of(a, 1.0, 4096.0, 1.0, 1.0, False)
        dense = kept_bytes(a, see, SparseKernel.NONE, 2.0, 1.0)[1]
        assert dense - kept_bytes(a, see, SparseKernel.CUDNN, 2.0, 1.0)[1] == 13 * 64 * 4096**2


class TestWhoRunsIt:
    def broken(self, config: ParallelConfig, stack: str = "megatron-2026", **more: Any) -> set[str]:
        subject = problem(more.pop("model", read()), "1x8 b200", stack=stack, **more)
        return {b.rule for b in explain_config(config, subject, rules_for(subject.stack))}

    def test_heads_of_the_indexer_divide(self) -> None:
        assert not self.broken(ParallelConfig(dp=2, tp=4, sp=1, ep=2, zero=1))
        assert "indexer-blocks" in self.broken(ParallelConfig(dp=1, tp=8, sp=1))

    def test_kernels_are_of_one_width(self) -> None:
        wider = read(sparse_attention_config={**SMALL["sparse_attention_config"], "sparse_block_size": 64})
        assert "indexer-blocks" in self.broken(ParallelConfig(dp=8), model=wider)
        torch = "megatron-2026+dsa-kernel-backend=none"
        assert "indexer-blocks" not in self.broken(ParallelConfig(dp=8), torch, model=wider)

    def test_others_have_no_kernels(self) -> None:
        assert "indexer-kernels" in self.broken(ParallelConfig(dp=8), "deepspeed-2025")
        dense = read(layer_types=["full_attention"] * 4)
        assert "indexer-kernels" not in self.broken(ParallelConfig(dp=8), "deepspeed-2025", model=dense)

    def test_sixteen_bits(self) -> None:
        assert "indexer-precision" in self.broken(ParallelConfig(dp=8), precision=Precision.FP16)

    def test_context_parallelism_gathers_keys_and_values(self) -> None:
        model = costs(problem(read(), "1x8 b200", stack="megatron-2026"))
        sent = [e for e in step_messages(model, ParallelConfig(dp=4, cp=2), 0) if e.axis == "cp"]
        assert {e.what for e in sent} >= {"keys_and_values"}

    @pytest.mark.parametrize("version", ["0.18.2", "main-2026-08"])
    def test_no_file_can_launch_it(self, version: str) -> None:
        check_release(M3, version)
        with pytest.raises(UnsupportedError, match="full_attention"):
            model_options(M3, read_details(M3), 4096, 128, version)

    def test_dense_as_megatron_bridge_trains_it(self) -> None:
        """models/minimax_m3/minimax_m3_bridge.py: quick GELU clamped at 7 and shifted, norms around 1, half rotated."""
        dense = replace(M3, layers=tuple(
            replace(y, attention=replace(y.attention, indexer=None)) for y in M3.layers if y.attention
        ))  # fmt: skip
        options = [" ".join(o) for o in model_options(dense, read_details(M3), 4096, 128, "main-2026-08")]
        for option in (
            "--quick-geglu", "--glu-linear-offset 1.0", "--activation-func-clamp-value 7.0", "--apply-layernorm-1p",
            "--rotary-percent 0.5", "--qk-layernorm", "--num-query-groups 4", "--ffn-hidden-size 12288",
            "--moe-ffn-hidden-size 3072", "--moe-shared-expert-intermediate-size 3072",
            "--moe-router-score-function sigmoid", "--moe-router-topk-scaling-factor 2.0",
            "--moe-layer-freq ([0]*3+[1]*57)",
        ):  # fmt: skip
            assert option in options


def test_a_step_is_costed() -> None:
    """Longer sequences take longer by less than their square, and the indexer has a term of its own."""
    rows = [
        costs(problem(read(), "1x8 b200", stack="megatron-2026", seq_len=s)).evaluate(
            ConfigTable.of([ParallelConfig(dp=8, ep=8, zero=1, num_microbatches=1)])
        )
        for s in (8192, 16384)
    ]
    assert rows[0].step_time[0] < rows[1].step_time[0] < 4 * rows[0].step_time[0]
