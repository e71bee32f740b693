"""Small problems for tests of the space, the cost and the search: models, clusters, stacks, random rows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ask.request import cost_model
from planner.catalog.load_stacks import load_stack
from planner.cost.cut import LayerShape
from planner.cost.device.graphs import dense_launches
from planner.cost.flops import layer_counts
from planner.cost.layer_cost import LayerCost
from planner.cost.layer_memory import kept_by_part
from planner.cost.model import CostModel
from planner.cost.operations.lists import layer_operations
from planner.cost.operations.operation import Operation, Run
from planner.cost.operations.pairs import seen_pairs
from planner.space.axes import RESTRICTABLE
from planner.space.enumerate import enumerate_configs
from planner.space.rules import RULES
from planner.spec.attention import Attention, AttentionKind, QkNorm
from planner.spec.config import ConfigTable, ParallelConfig, Recompute
from planner.spec.indexer import Indexer
from planner.spec.job import Job, Optimizer
from planner.spec.layer import Activation, Layer, Mlp, Moe
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.mixers import DeltaNet, StateSpace
from planner.spec.model import ModelSpec
from planner.spec.precision import RECIPES, Precision, PrecisionRecipe
from planner.spec.rule import Problem
from planner.spec.stack import Stack
from planner.spec.stack.layer_code import Library, Modelling
from planner.spec.stack.time import Kernels


def attention(heads: int = 16, kv_heads: int = 8, head_dim: int = 128) -> Attention:
    kind = AttentionKind.MHA if heads == kv_heads else AttentionKind.GQA
    return Attention(kind, heads, kv_heads, head_dim, head_dim)


def dense_model(
    layers: int = 8, hidden: int = 2048, heads: int = 16, kv_heads: int = 8, ffn: int = 7168,
    vocab: int = 32000, tied: bool = False,
) -> ModelSpec:  # fmt: skip
    """A Llama-like model."""
    layer = Layer(attention(heads, kv_heads, hidden // heads), Mlp(ffn, True, False, Activation.SILU), None)
    return ModelSpec("small-dense", "llama", hidden, vocab, (layer,) * layers, tied, max_position=131072)


def moe_model(
    layers: int = 8, leading_dense: int = 1, hidden: int = 2048, heads: int = 16, kv_heads: int = 8,
    experts: int = 16, top_k: int = 4, expert_ffn: int = 1024, shared_ffn: int = 1024, vocab: int = 32000,
) -> ModelSpec:  # fmt: skip
    """A mixture of experts whose first layers are dense."""
    attends = attention(heads, kv_heads, hidden // heads)
    dense = Layer(attends, Mlp(4 * hidden, True, False, Activation.SILU), None)
    sparse = Layer(attends, None, Moe(experts, top_k, expert_ffn, True, False, shared_ffn, False, False))
    blocks = (dense,) * leading_dense + (sparse,) * (layers - leading_dense)
    return ModelSpec("small-moe", "qwen3_moe", hidden, vocab, blocks, False, max_position=131072)


def hybrid_model(
    pattern: str = "MEM*EM-M", hidden: int = 2048, heads: int = 64, groups: int = 8
) -> ModelSpec:
    """Blocks of one part each: M Mamba-2, * attention, - an MLP, E experts."""
    kinds = {
        "M": Layer(None, None, None, 1, state_space=StateSpace(heads, 64, 128, groups, chunk=128)),
        "*": Layer(attention(16, 8, hidden // 16), None, None, 1),
        "-": Layer(None, Mlp(4 * hidden, False, False, Activation.RELU2), None, 1),
        "E": Layer(
            None, None, Moe(16, 4, 1024, False, False, 1024, False, False, activation=Activation.RELU2), 1
        ),
    }
    layers = tuple(kinds[letter] for letter in pattern)
    return ModelSpec("small-hybrid", "nemotron_h", hidden, 32000, layers, False, max_position=131072)


def delta_model(layers: int = 8, every: int = 4, hidden: int = 2048, keys: int = 16) -> ModelSpec:
    """Gated delta nets as in Qwen3-Next and, in one of `every` layers, attention whose output is gated."""
    gated = replace(attention(16, 4, hidden // 16), output_gate=True, qk_norm=QkNorm.HEAD)
    mlp = Mlp(4 * hidden, True, False, Activation.SILU)
    net = Layer(None, mlp, None, state_space=DeltaNet(2 * keys, 128, 128, keys))
    blocks = tuple(net if (i + 1) % every else Layer(gated, mlp, None) for i in range(layers))
    return ModelSpec("small-delta", "qwen3_5_text", hidden, 32000, blocks, False, max_position=131072)


def sparse_model(layers: int = 8, hidden: int = 2048, heads: int = 16, latent: int = 512) -> ModelSpec:
    """Latent attention behind an indexer as in DeepSeek-V3.2, before dense MLPs."""
    attends = Attention(
        AttentionKind.MLA, heads, heads, 192, 128, q_lora_rank=512, kv_lora_rank=latent, qk_rope_dim=64,
        indexer=Indexer(32, 64, 48),
    )  # fmt: skip
    layer = Layer(attends, Mlp(4 * hidden, True, False, Activation.SILU), None)
    return ModelSpec(
        "small-sparse", "deepseek_v32", hidden, 32000, (layer,) * layers, False, max_position=131072
    )


@lru_cache(maxsize=64)
def work_of_attention(model: ModelSpec, seq: float) -> float:
    """Forward FLOPs of attention to the keys that queries of one sequence see."""
    work = 0.0
    for layer, count in layer_counts(model):
        if (a := layer.attention) is not None:
            widths = a.latent_dim + a.latent_value if a.sparse else a.head_dim + a.v_head_dim
            work += count * 2 * a.heads * widths * seen_pairs(a, seq)
    return work


def cluster(text: str = "2x8 h100 400G-ib") -> Cluster:
    return load_cluster(text)


def problem(
    model: ModelSpec | None = None, machine: str | Cluster = "2x8 h100 400G-ib", *, seq_len: int = 4096,
    global_batch: int = 64, precision: Precision = Precision.BF16, optimizer: Optimizer = Optimizer.ADAMW,
    stack: str | Stack = "megatron-2026", bf16_layers: tuple[int, int] = (0, 0),
) -> Problem:  # fmt: skip
    """A problem of a model (default: the small dense one) on a cluster or a shorthand."""
    return Problem(
        model or dense_model(),
        cluster(machine) if isinstance(machine, str) else machine,
        Job(seq_len, global_batch, precision, optimizer, bf16_layers=bf16_layers),
        load_stack(stack) if isinstance(stack, str) else stack,
    )


def costs(subject: Problem) -> CostModel:
    """The cost model of a problem with the shipped rates."""
    return cost_model(subject)


def with_section(subject: Problem, section: str, **fields: Any) -> Problem:
    """The problem with other constants in one section of its stack."""
    changed = getattr(subject.stack, section).model_copy(update=fields)
    return replace(subject, stack=subject.stack.model_copy(update={section: changed}))


def seconds_of(subject: Problem, name: str, zero: int, **axes: int) -> float:
    """The term `name` of eight ranks' step with four micro-batches, but for what `axes` say [s]."""
    config = ParallelConfig(**{"dp": 8, "zero": zero, "num_microbatches": 4, **axes})
    detail = costs(subject).evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    return float(detail.time[name][0])


def legal_table(subject: Problem) -> ConfigTable:
    """Every legal configuration of a problem."""
    return enumerate_configs(subject, RULES).table()


def random_rows(table: ConfigTable, count: int, seed: int) -> ConfigTable:
    """Some rows of a table, without repetition, in random order."""
    rows: NDArray[np.intp] = np.random.default_rng(seed).permutation(len(table))[:count]
    return table.take(rows)


def layer_of(subject: Problem, *configs: ParallelConfig, kind: int = -1) -> LayerCost:
    """Costs of one kind of layer under these configurations."""
    model = costs(subject)
    return model.layers.layer(model.kinds[kind], ConfigTable.of(configs))


def pins_of(config: ParallelConfig) -> dict[str, tuple[int, ...]]:
    """Every axis of a configuration, but what follows from the others."""
    unsaid = {
        "recompute_layers": config.recompute != Recompute.FULL,
        "recompute_modules": config.recompute != Recompute.SELECTIVE,
        "cp_kind": config.cp == 1,
    }
    return {axis: (getattr(config, axis),) for axis in RESTRICTABLE if not unsaid.get(axis)}


def operations(
    subject: Problem, layer: Layer, precision: Precision = Precision.BF16
) -> tuple[Run, tuple[Operation, ...]]:
    """How a problem's stack runs a layer in a recipe, and its list of operations."""
    run = Run.of(subject, RECIPES[precision])
    return run, layer_operations(layer, run)


def layer_activations(
    layer: Layer, model: ModelSpec, x: LayerShape, kernels: Kernels, recipe: PrecisionRecipe
) -> dict[str, NDArray[np.float64]]:
    """Bytes a layer of a model keeps for its backward pass, by part."""
    return kept_by_part(layer_operations(layer, Run.of_model(model, kernels, recipe)), x)


def launches(layer: Layer, seq: float, single: bool) -> float:
    """`dense_launches` of a layer over sequences of `seq` tokens."""
    run = Run(2048, Kernels(code=Modelling() if single else Library()), seq=seq)
    return dense_launches(layer_operations(layer, run), single)
