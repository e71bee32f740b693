"""DeepSeek Sparse Attention: pairs, FLOPs, time and memory by hand and against timed kernels, and how it divides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost.flops import model_flops
from planner.cost.mfu import causal_half_flops_per_token
from planner.cost.operations.lists import layer_gemms
from planner.cost.operations.pairs import chosen_pairs, taught_pairs
from planner.cost.operations.sparse import (
    DENSE_KEPT,
    Device,
    Sight,
    core_flops,
    core_time,
    kept_parts,
    loss_time,
    score_time,
    sight_of,
    working_bytes,
)
from planner.cost.params import layer_parameters, model_parameters
from planner.solve.step_messages import step_messages
from planner.space.framework_rules import all_rules_for
from planner.space.legality import explain_config
from planner.spec.attention import Attention, AttentionKind
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ParallelConfig, Recompute
from planner.spec.indexer import Indexer, IndexerLoss
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.machine.accelerator import Architecture
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision
from planner.spec.stack.kinds import SparseKernel
from tests.problems import (
    cluster,
    costs,
    layer_activations,
    layer_of,
    problem,
    sparse_model,
    work_of_attention,
)

GLM = load_model("glm-5")
V32, V3 = load_model("deepseek-v3.2"), load_model("deepseek-v3")
H200 = Device(SparseKernel.CUDNN, Architecture.HOPPER, 989.4e12, 67e12, 4.8e12, 50 * 2**20)
GB200 = Device(SparseKernel.CUDNN, Architecture.BLACKWELL, 2500e12, 80e12, 8e12, 126 * 2**20)
SMALL = Attention(
    AttentionKind.MLA,
    4,
    4,
    24,
    16,
    q_lora_rank=12,
    kv_lora_rank=32,
    qk_rope_dim=8,
    indexer=Indexer(2, 16, 64),
)


def core_of(model: ModelSpec) -> Attention:
    return model.attentions[-1]


def seen(a: Attention, seq: float, t: float = 1.0, c: float = 1.0, packed: bool = False) -> Sight:
    assert a.indexer is not None
    return sight_of(a, 1.0, seq, t, c, packed)


def with_loss(model: ModelSpec, loss: IndexerLoss) -> ModelSpec:
    def other(layer: Layer) -> Layer:
        assert layer.attention is not None
        assert layer.attention.indexer is not None
        indexer = replace(layer.attention.indexer, loss=loss)
        return replace(layer, attention=replace(layer.attention, indexer=indexer))

    return replace(model, layers=tuple(map(other, model.layers)))


class TestCounts:
    def test_published_totals(self) -> None:
        # both publish the prediction module and balance biases, DeepSeek-V3.2 its copies of embedding and head too
        tables, biases = 2 * 129280 * 7168, 256
        found = model_parameters(load_model("deepseek-v3.2", with_mtp=True)).total
        assert found + tables + 59 * biases == 685_355_329_792
        found = model_parameters(load_model("glm-5", with_mtp=True)).total
        assert found + 76 * biases == 753_864_139_008

    def test_parameters_of_a_small_indexer(self) -> None:
        # queries 12 x 32, key 64 x 16 with a norm of scale and shift, weights 64 x 2: whole on every rank
        plain = layer_parameters(Layer(replace(SMALL, indexer=None), None, None, 1), 64)
        found = layer_parameters(Layer(SMALL, None, None, 1), 64)
        assert found.replicated - plain.replicated == 12 * 32 + 64 * 16 + 2 * 16 + 64 * 2
        assert found.column_row == plain.column_row

    def test_a_layer_that_shares_has_neither_weights_nor_products(self) -> None:
        shares = replace(SMALL, indexer=replace(SMALL.indexer or Indexer(1, 1, 1), shared=True))
        plain = replace(SMALL, indexer=None)
        both = (layer_gemms(Layer(a, None, None, 1), 64) for a in (shares, plain))
        assert [gemm.name for gemm in next(both)] == [gemm.name for gemm in next(both)]
        assert layer_parameters(Layer(shares, None, None, 1), 64) == layer_parameters(
            Layer(plain, None, None, 1), 64
        )

    @pytest.mark.parametrize(("top_k", "seq"), [(4, 10), (10, 4), (7, 7)])
    def test_pairs_are_those_counted_one_by_one(self, top_k: int, seq: int) -> None:
        assert chosen_pairs(top_k, seq) == sum(min(i, top_k) for i in range(1, seq + 1))

    def test_flops_of_a_step_by_hand(self) -> None:
        model, s = sparse_model(layers=2), 64
        a = core_of(model)
        found = model_flops(model, 3, s)
        assert found.forward_indexer == 2 * 3 * s * s * 2 * 32 * (64 + 1)
        pairs = s * 48 - 48 * 47 / 2
        assert work_of_attention(model, s) == 2 * 2 * pairs * a.heads * (576 + 512)

    @pytest.mark.parametrize("loss", list(IndexerLoss))
    def test_model_flops_are_megatron_bridges(self, loss: IndexerLoss) -> None:
        """Its count, term by term: Megatron-Bridge 067f987 training/utils/flop_utils.py, variant dsa."""
        layers, h, heads, q, r, rope, nope, v = 61, 7168, 128, 1536, 512, 64, 128, 128
        ih, d, k, s = 64, 128, 2048, 32768
        dense, sparse = (s + 1) / 2, k - k * (k - 1) / (2 * s)
        trains = loss is not IndexerLoss.NONE
        mla = q * (h + heads * (nope + rope)) + r * (h + heads * (nope + v)) + h * rope + heads * v * h
        core = 6 * sparse * heads * (2 * r + rope)
        projected = (4 if trains else 2) * (q * ih * d + h * d + h * ih)
        graded = sparse if loss is IndexerLoss.SPARSE else dense
        scores = 2 * dense * ih * (d + 1) + trains * 4 * graded * ih * (d + 1)
        teacher = trains * 2 * graded * heads * (r + rope)
        attention = layers * (6 * mla + core + projected + scores + teacher)
        rest = 6 * (3 * 3 * h * 18432 + 58 * 9 * 3 * h * 2048 + h * 129280)
        found = causal_half_flops_per_token(with_loss(V32, loss), float(s))
        assert found == pytest.approx(attention + rest, rel=1e-12)

    def test_taught_pairs(self) -> None:
        a, x = core_of(V32), Indexer(1, 1, 4)
        assert [taught_pairs(replace(a, indexer=replace(x, loss=loss)), 6) for loss in IndexerLoss] == [
            0,
            18,
            21,
        ]


class TestTime:
    @pytest.mark.parametrize(
        ("keys", "published"), [(2048, 3.984e-3), (8192, 15.874e-3), (16384, 34.945e-3), (32768, 100.843e-3)]
    )
    def test_backward_kernel_of_cudnn_on_h200(self, keys: int, published: float) -> None:
        """Every query sees 2,048 random keys: NVIDIA/cudnn-frontend@07b111f benchmark/dsa/results/glm53/h200."""
        a, pairs = core_of(GLM), 2048.0 * keys
        see = Sight(keys, keys, keys, keys, pairs, pairs, 0.0, 64.0, 1.0)
        assert core_time(a, see, H200)[1] == pytest.approx(published, rel=0.04)

    @pytest.mark.parametrize(("on", "published"), [(H200, 3.96e-3), (replace(GB200, peak=2250e12), 4.03e-3)])
    def test_forward_kernel_of_flashmla(self, on: Device, published: float) -> None:
        """8,192 queries of 64 heads to 2,048 keys: ai-dynamo/aiconfigurator@095f58a, H200 and B200."""
        pairs = 8192 * 2048.0
        see = Sight(8192, 8192, 8192, 8192, pairs, pairs, 0.0, 64.0, 1.0)
        assert core_time(core_of(GLM), see, on)[0] == pytest.approx(published, rel=0.04)

    def test_backward_kernel_on_gb200(self) -> None:
        pairs = 8192 * 2048.0
        see = Sight(8192, 8192, 8192, 8192, pairs, pairs, 0.0, 64.0, 1.0)
        assert core_time(core_of(GLM), see, GB200)[1] == pytest.approx(8.783e-3, rel=0.1)

    def test_work_is_counted_for_tiles_of_heads(self) -> None:
        a = core_of(V32)
        whole, eighth = core_time(a, seen(a, 4096.0), H200), core_time(a, seen(a, 4096.0, t=8.0), H200)
        half = core_time(a, seen(a, 4096.0, t=2.0), H200)
        assert half[0] == pytest.approx(whole[0] / 2)
        assert eighth[0] == pytest.approx(half[0])  # 16 heads of a tile of 64
        on = replace(H200, kernel=SparseKernel.TILELANG)
        assert core_time(a, seen(a, 4096.0, t=8.0), on)[0] == pytest.approx(whole[0] / 8)

    def test_flops_forward_and_backward(self) -> None:
        ahead, behind = core_flops(core_of(V32), 128, 10.0)
        assert (ahead, behind) == (2 * 128 * 1088 * 10, 2 * 128 * (3 * 576 + 2 * 512) * 10)

    def test_texts_over_several_ranks_are_scored_in_fp32_unless_packed(self) -> None:
        a = core_of(V32)
        x = a.indexer
        assert x is not None
        alone = score_time(a, x, seen(a, 32768.0), H200)
        packed = score_time(a, x, seen(a, 32768.0, c=8.0, packed=True), H200)
        divided = score_time(a, x, seen(a, 32768.0, c=8.0), H200)
        assert packed == pytest.approx(alone / 8)
        assert divided > 10 * packed
        tilelang = score_time(a, x, seen(a, 32768.0, c=8.0), replace(H200, kernel=SparseKernel.TILELANG))
        assert packed < tilelang < divided / 5

    def test_loss_over_all_pairs_costs_more_than_over_chosen_ones(self) -> None:
        a = core_of(V32)
        x = a.indexer
        assert x is not None
        spent = [
            float(loss_time(a, y, sight_of(replace(a, indexer=y), 1.0, 32768.0, 1.0, 1.0, False), H200))
            for y in (
                replace(x, loss=loss) for loss in (IndexerLoss.NONE, IndexerLoss.SPARSE, IndexerLoss.DENSE)
            )
        ]
        assert spent[0] == 0 < spent[1] < spent[2] / 5

    def test_sparse_attention_pays_at_long_sequences_alone(self) -> None:
        """Against DeepSeek-V3, the same model without it: more at 4k, where a query sees half its keys anyhow."""
        config = ParallelConfig(dp=16, ep=16)
        mixers = []
        for seq in (4096, 131072):
            for model in (V3, V32):
                cost = layer_of(problem(model, seq_len=seq, global_batch=16), config)
                found = sum(
                    part[name] for part in (cost.forward, cost.backward) for name in ("attention", "indexer")
                )
                mixers.append(float(found[0]))
        short, short_sparse, long, long_sparse = mixers
        assert 1.5 * short < short_sparse < 4 * short
        assert 0.2 * long < long_sparse < 0.6 * long

    def test_the_indexer_is_repeated_on_tensor_parallel_ranks_and_divided_over_context(self) -> None:
        subject = problem(sparse_model(), stack="megatron-2026+dsa-kernel-backend=tilelang", seq_len=32768)
        one, wide, long = layer_of(
            subject, ParallelConfig(dp=16), ParallelConfig(tp=8, dp=2, sp=1), ParallelConfig(cp=8, dp=2)
        ).forward["indexer"]
        assert wide == pytest.approx(one)
        assert long == pytest.approx(one / 8)

    def test_the_absorbed_projection_stays_in_16_bits(self) -> None:
        for model, wide in ((V32, True), (V3, False)):
            found = {gemm.name for gemm in layer_gemms(model.layers[0], model.hidden) if gemm.wide}
            assert ("kv_b" in found) == wide

    def test_models_without_an_indexer_have_none_of_it(self) -> None:
        cost = layer_of(problem(V3), ParallelConfig(dp=16, ep=16))
        assert not cost.forward["indexer"].any()
        assert not cost.backward["indexer"].any()

    def test_a_projection_whose_input_is_detached_has_no_input_gradient(self) -> None:
        found = {}
        for loss in (IndexerLoss.SPARSE, IndexerLoss.NONE):
            model = costs(problem(with_loss(sparse_model(), loss)))
            keys = ConfigTable.of([ParallelConfig(dp=16)])
            cost = model.layers.layer(model.kinds[0], keys)
            found[loss] = float(cost.forward["gemm"][0]), float(cost.backward["gemm"][0])
        (ahead, behind), (untaught_ahead, untaught) = found.values()
        assert ahead == untaught_ahead
        assert untaught < behind < untaught + ahead


class TestMemory:
    def test_what_cudnn_keeps_of_a_small_attention(self) -> None:
        # 100 tokens of 4 heads: queries of 24 and of 40 values, the key of 40; outputs of 32, statistics, 64 choices;
        # gradients of 2 index heads of 16, their weights and the index key
        parts = kept_parts(SMALL, seen(SMALL, 100.0), SparseKernel.CUDNN, 2.0, 0.0)
        assert parts["mla_up_proj"] == 100 * 2 * (4 * (24 + 40) + 40)
        assert parts["core_attn"] == 100 * (2 * 4 * 32 + 4 * 4 + 4 * 64 + 2 * (2 * 16 + 2 + 16))

    def test_pytorch_keeps_scores_of_all_pairs(self) -> None:
        see = seen(SMALL, 100.0)
        fused, dense = (
            kept_parts(SMALL, see, kernel, 2.0, 0.0)["core_attn"]
            for kernel in (SparseKernel.CUDNN, SparseKernel.NONE)
        )
        scores = (DENSE_KEPT * 4 + 4) * 100 * 100
        assert dense - fused == scores + 4 * 100 * 4 * 40 - 4 * 4 * 100
        longer = seen(SMALL, 200.0)
        grown = kept_parts(SMALL, longer, SparseKernel.NONE, 2.0, 0.0)["core_attn"]
        assert grown - 2 * dense == 2 * scores
        far = seen(SMALL, 4096.0)
        fused, dense = (
            working_bytes(SMALL, far, kernel, 2.0) for kernel in (SparseKernel.CUDNN, SparseKernel.NONE)
        )
        assert dense > 4 * fused

    def test_deepseek_at_4k_does_not_fit_with_pytorchs_scores(self) -> None:
        config = ParallelConfig(dp=64, ep=64, recompute=Recompute.NONE)
        kept = [
            float(layer_of(problem(V32, "8x8 h100 400G-ib", stack=stack), config).kept[0]) / 2**30
            for stack in ("megatron-2026", "megatron-2026+dsa-kernel-backend=none")
        ]
        assert kept[0] < 5
        assert kept[1] > 25  # 128 heads of 4,096 x 4,096 at 13 bytes are 26 GiB

    def test_recomputing_core_attention_frees_what_the_indexer_keeps(self) -> None:
        core = 1 << RECOMPUTE_MODULES.index("core_attn")
        subject = problem(sparse_model())
        plain = ParallelConfig(dp=16)
        again = replace(plain, recompute=Recompute.SELECTIVE, recompute_modules=core)
        cost = layer_of(subject, plain, again)
        model = costs(subject)
        x = model.layers.shape(ConfigTable.of([plain]), model.kinds[0])
        parts = layer_activations(
            model.kinds[0], subject.model, x, subject.stack.kernels, RECIPES[Precision.BF16]
        )
        assert cost.kept[0] - cost.kept[1] == pytest.approx(float(parts["core_attn"][0]))
        assert cost.again[1] == pytest.approx(cost.forward["attention"][0] + cost.forward["indexer"][0])

    def test_keys_of_all_ranks_are_kept(self) -> None:
        alone, over = (
            kept_parts(SMALL, seen(SMALL, 800.0, c=c), SparseKernel.CUDNN, 2.0, 0.0) for c in (1.0, 8.0)
        )
        key = 2 * 800 * 40
        assert over["mla_up_proj"] - key == pytest.approx((alone["mla_up_proj"] - key) / 8)


class TestExchanges:
    @staticmethod
    def sent(config: ParallelConfig) -> dict[str, float]:
        model = costs(problem(sparse_model(), machine=cluster("2x8 h100 400G-ib")))
        return {e.what: e.size for e in step_messages(model, config, 0) if e.axis in ("tp", "cp")}

    def test_context_parallelism_gathers_one_latent_key_and_the_indexers(self) -> None:
        found = self.sent(ParallelConfig(cp=8, dp=2, micro_batch=1, num_microbatches=32))
        assert found["latent_keys"] == 2 * 4096 * (576 + 64)
        assert "keys_and_values" not in found

    def test_tensor_parallelism_gathers_the_indexers_inputs_and_sums_its_targets(self) -> None:
        found = self.sent(ParallelConfig(tp=8, dp=2, sp=1, micro_batch=1, num_microbatches=32))
        assert found["inputs_of_indexers"] == 2 * 4096 * (2048 + 512)
        assert found["targets_of_indexers"] == 4 * 4096 * 48

    def test_one_rank_exchanges_nothing(self) -> None:
        assert self.sent(ParallelConfig(dp=16, micro_batch=1, num_microbatches=4)) == {}


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "config", "machine", "stack"),
        [
            ("indexer-sp", ParallelConfig(tp=2, dp=8), "2x8 h100 400G-ib", "megatron-2026"),
            ("indexer-cp", ParallelConfig(cp=2, dp=8, cp_kind=2), "2x8 h100 400G-ib", "megatron-2026"),
            ("indexer-graphs", ParallelConfig(dp=16, cuda_graph_impl=2), "2x8 h100 400G-ib", "megatron-2026"),
            ("indexer-device", ParallelConfig(dp=16), "2x8 a100-sxm-80g 200G-ib", "megatron-2026"),
            ("indexer-kernels", ParallelConfig(dp=16), "2x8 h100 400G-ib", "megatron-2025"),
            ("indexer-kernels", ParallelConfig(dp=16, zero=3), "2x8 h100 400G-ib", "fsdp1-2023"),
            ("indexer-kernels", ParallelConfig(dp=16, zero=3), "2x8 h100 400G-ib", "torchtitan-2026"),
        ],
    )
    def test_what_is_refused(self, rule: str, config: ParallelConfig, machine: str, stack: str) -> None:
        subject = problem(sparse_model(), machine, stack=stack)
        config = replace(config, micro_batch=1, num_microbatches=64 // config.dp, zero=config.zero or 1)
        broken = explain_config(config, subject, all_rules_for(subject.stack.framework))
        assert rule in {found.rule for found in broken}

    def test_what_is_not(self) -> None:
        config = ParallelConfig(tp=2, cp=2, dp=4, sp=1, zero=1, micro_batch=1, num_microbatches=16)
        for stack, machine in (
            ("megatron-2026", "2x8 h100 400G-ib"),
            ("megatron-2026+dsa-kernel-backend=none", "2x8 a100-sxm-80g 200G-ib"),
        ):
            subject = problem(sparse_model(), machine, stack=stack)
            assert not explain_config(config, subject, all_rules_for(subject.stack.framework))

    def test_heads_latent_width_and_precision(self) -> None:
        def broken(model: ModelSpec, precision: Precision = Precision.BF16, tp: int = 1) -> set[str]:
            subject = problem(model, precision=precision)
            config = ParallelConfig(
                tp=tp, dp=16 // tp, sp=int(tp > 1), zero=1, micro_batch=1, num_microbatches=4 * tp
            )
            return {found.rule for found in explain_config(config, subject, all_rules_for("megatron"))}

        assert "indexer-heads" in broken(sparse_model(heads=48))  # no tile of 64
        assert "indexer-heads" not in broken(sparse_model(heads=32))
        assert "indexer-heads" in broken(sparse_model(latent=256))
        assert "indexer-precision" in broken(sparse_model(), Precision.FP16)

    def test_sharing_layers_stay_on_one_stage(self) -> None:
        layers = sparse_model().layers
        own = layers[0].attention
        assert own is not None
        assert own.indexer is not None
        takes = replace(layers[0], attention=replace(own, indexer=replace(own.indexer, shared=True)))
        subject = problem(replace(sparse_model(), layers=(layers[0], takes) * 4))
        config = ParallelConfig(pp=2, dp=8, zero=1, micro_batch=1, num_microbatches=8)
        found = {broken.rule for broken in explain_config(config, subject, all_rules_for("megatron"))}
        assert "indexer-stages" in found

    def test_stacks_that_have_the_kernels(self) -> None:
        assert load_stack("megatron-fsdp-2026").kernels.sparse_attention is SparseKernel.CUDNN
        assert load_stack("deepspeed-2025").kernels.sparse_attention is None


def test_columns_equal_rows() -> None:
    a = core_of(V32)
    x = a.indexer
    assert x is not None
    t, c = np.array([1.0, 8.0, 2.0]), np.array([1.0, 1.0, 4.0])
    table = sight_of(a, np.ones(3), np.full(3, 8192.0), t, c, False)
    for row in range(3):
        one = sight_of(a, 1.0, 8192.0, float(t[row]), float(c[row]), False)
        assert core_time(a, table, H200)[1][row] == pytest.approx(core_time(a, one, H200)[1])
        assert score_time(SMALL, x, table, H200)[row] == pytest.approx(float(score_time(SMALL, x, one, H200)))
