"""How long does the host take to launch the kernels of a layer, one by one?

One value per distinct key, for one kind of layer. Left out: the optimizer's launches (`StackHost.tensor_update`, costed
by tensor) and the host's work of a step. What CUDA graphs take off it is in `device/graphs.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import adapter_launches
from planner.cost.device.graphs import Capture, HostFloor, dense_launches, mixer_launches, relaunched
from planner.cost.engines.zero3_gathers import module_settings, modules_of
from planner.cost.network.context import context_kinds
from planner.cost.operations.experts import LOOPED_LAUNCHES
from planner.cost.operations.operation import Operation
from planner.cost.pipeline.step import FORWARD_SHARE
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable, ContextKind
from planner.spec.layer import Layer
from planner.spec.machine.accelerator import HostProcessor
from planner.spec.precision import Precision
from planner.spec.rule import Problem
from planner.spec.stack.kinds import ContextExchange

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Host time of routing, permuting and dispatching by a fused dispatcher against NCCL's all-to-all: the same mixture of
# experts on two H100 nodes took 14.9 ms a layer with the one, permuting unfused, and 9.5 ms with the other
# (Megatron-Bridge skills, 26.04); an upper bound of what the dispatcher alone saves.
FUSED_DISPATCH_LAUNCHES = 0.7
# Launches for every expert of a rank where grouped products are launched one by one (Transformer Engine's grouped
# linear): 3 products of 2 matrices; in 8 and 4 bits inputs and output gradients of both are quantised, and scales per
# block of either operand of every product were rearranged one by one. From 2.7 on one kernel does that for all experts
# (TransformerEngine#2019), which leaves 10; but PyTorch's own work for every expert is not counted either
# (TransformerEngine#1499), and counted so, mixtures of experts of megatron-2026 on groups left out were off by 8.8 % in
# the median where 22 gave 7.8.
EXPERT_LAUNCHES = {
    Precision.FP32: 6.0, Precision.FP16: 6.0, Precision.BF16: 6.0, Precision.FP8: 10.0, Precision.FP8_CS: 10.0,
}  # fmt: skip
BLOCK_SCALED_LAUNCHES = 22.0
# Share of a layer's forward launches that recomputing a module repeats, counted on a fused layer of 12: norm, qkv,
# rotary of q and k, attention, projection, add, norm, fc1, activation, fc2, add; with experts about as many again
# for routing, permutation and grouped products. Not a share of time, which faster links would change.
RELAUNCHED = {
    "core_attn": 1 / 12, "layernorm": 2 / 12, "mla_up_proj": 3 / 12, "mlp": 3 / 12, "moe_act": 1 / 12,
    "moe": 8 / 12, "shared_experts": 3 / 12,
    "op": 8 / 12,  # both norms, rotary of q and k, projection, add, the second half of fc1, activation
}  # fmt: skip

# Launches that an eager softmax adds to those of a layer with a softmax kernel, about 16 a pass: a cast to fp32,
# scaling, a cast of the mask, masking, a cast back (microsoft/Megatron-DeepSpeed, megatron/model/fused_softmax.py).
EAGER_SOFTMAX_LAUNCHES = 5 / 16

# Seconds of the host for one operation of PyTorch, where it is one more than a layer has: the start value of
# deepspeed-2025; a linear layer takes a Xeon 8480C 13.5 us (TransformerEngine issue 2053). A layer's own take longer,
# for modules of Transformer Engine and Megatron do more than launch: that is what floors of stacks are for.
LAUNCH = 13.9e-6

# Launches of rotating q and k of one text by single operations, forward and backward. Forward: cosine and sine, each
# scaled and cast, two products, half of a text negated and joined, sum, join, copy (Megatron-LM adfb8ec
# core/models/common/embeddings/rope_utils.py _apply_rotary_pos_emb_thd; e4ba3a3 of 2026-08 does all texts at once);
# backward those that PyTorch 2.13 dispatches for them. Left out: bytes that they move, and that the host waits for the
# texts' lengths.
ROTATION_LAUNCHES = 2 * (13 + 11)

_CORE_ATTENTION = 1 << RECOMPUTE_MODULES.index("core_attn")

# Launches of one more step of ring attention, forward and backward: the exchange, two copies of halves, attention, two
# corrections; backward one more (the classes and functions of TransformerEngine 2.x, context_parallel.py).
RING_LAUNCHES = (6, 7)


# Operations of Transformer Engine 2.11 to 2.17 for each half of a rank's share of a packed text, where indices that put
# it in order are made: ends of the half, which the device computes, two reads of them by the host, the indices;
# eight, two and one of a tensor that was gathered by heads, four, two and one of one that is dealt
# (NVIDIA/TransformerEngine@7010118~1 context_parallel.py reorder_seq_chunks_after_a2a_before_attn_thd and
# reorder_seq_chunks_before_a2a_after_attn_thd, counted under PyTorch 2.13). Forward queries, keys and values are
# gathered and the output is dealt, backward one is gathered and three are dealt.
GATHERED_TEXT, DEALT_TEXT = 8 + 2 + 1, 4 + 2 + 1
ORDER_OPERATIONS = (3 * GATHERED_TEXT + DEALT_TEXT, GATHERED_TEXT + 3 * DEALT_TEXT)
# Seconds of one, on a number in the device's memory: 7.4, 7.6 and 7.4 us by what Qwen3-8B (cp 2), GPT-OSS 20B (cp 2,
# recomputing all) and 120B (cp 4) took beyond their launches in packs of 32,768 tokens, texts of 380
# (NVIDIA-NeMo/Megatron-Bridge@067f987 examples/model_verification_cards, sft_long_context).
ORDER_OPERATION = 7.5e-6

# Seconds that hooks of ZeRO 3 add to a pass for every linear layer whose weights they gather, and for a layer's other
# modules together: DeepSpeed 0.19.8 under PyTorch 2.13 and Python 3.11, timed on a processor alone
# (benchmarks/deepspeed_hooks.py, EPYC): 0.28 ms a pass for one rank, 0.26 and 0.38 for eight whose messages are left
# out (several modules a gather, one); a layer of Qwen2 took 2.55 ms forward and 2.7 backward for its 7.
MODULE_HOOKS = 0.3e-3
LAYER_HOOKS = 0.65e-3


def has_hooks(problem: Problem) -> bool:
    """Does ZeRO 3 of this stack take the host's time in every module?"""
    return module_settings(problem.stack) is not None


def gathered_by_hooks(keys: ConfigTable, problem: Problem) -> NDArray[np.int32]:
    """Which keys' modules are gathered and freed by hooks [0 or 1]."""
    return (has_hooks(problem) & (keys["zero"] >= 3)).astype(np.int32)


class HostModel:
    """Binds a problem; the host's seconds for a table of distinct keys."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def slowdown(self) -> float:
        """Time of a launch by the cluster's hosts over that by the stack's x86 ones [1]."""
        grace = self.problem.cluster.accelerator.host is HostProcessor.GRACE
        return self.problem.stack.host.grace if grace else 1.0

    @property
    def launch(self) -> float:
        """Seconds of one operation more."""
        return self.slowdown * LAUNCH

    def floor(
        self, layer: Layer, ops: tuple[Operation, ...], keys: ConfigTable, eager_softmax: Mask
    ) -> HostFloor:
        """Seconds the host needs to launch a layer's forward and backward kernels one by one, adapters' among them;
        `eager_softmax`: which keys have no kernel for it."""
        job, stack = self.problem.job, self.problem.stack
        floor = self._plain_floor(layer, ops, keys)
        eager = np.asarray(1.0 + EAGER_SOFTMAX_LAUNCHES * eager_softmax, dtype=np.float64)
        more = adapter_launches((op.product for op in ops if op.product), job, stack) + self._rotations(
            layer, keys
        )
        return replace(floor, dense=eager * floor.dense + self.launch * more)

    def _rotations(self, layer: Layer, keys: ConfigTable) -> Array:
        """Launches of rotating packed texts one by one [1]."""
        job, rotates = self.problem.job, self.problem.stack.kernels.rotates_texts
        if not (rotates and job.packed and layer.attention is not None):
            return np.zeros(len(keys))
        texts = keys["micro_batch"] * job.seq_len / job.attended_length
        return np.asarray(ROTATION_LAUNCHES * texts)

    def _plain_floor(self, layer: Layer, ops: tuple[Operation, ...], keys: ConfigTable) -> HostFloor:
        """The same with a softmax kernel and without adapters."""
        host, cluster = self.problem.stack.host, self.problem.cluster
        t = keys["tp"].astype(float)
        crossing = (keys["pp"] > 1) & (cluster.num_devices > cluster.tiers[0].size) & (t > 1)
        across = self.problem.stack.engine.floors_across_nodes[1] * host.layer_floor_tp
        pipeline = np.where(crossing, across * np.maximum(t - 1, 0.0) ** 0.92, 0.0)
        # a rank alone in its group has nothing to send and keeps NCCL's dispatcher (megatron/arguments.py)
        several = keys["ep"] * keys["etp"] > 1
        fused = several & self.problem.stack.communication.dispatcher.fused
        single = self.problem.stack.kernels.code.single
        worth, mixer = dense_launches(ops, single), mixer_launches(ops, single)
        dense, none, slower = self.dense(t) * worth, np.zeros(len(t)), self.slowdown
        pipeline = slower * pipeline
        if layer.moe is None:
            return HostFloor(dense, none, none, pipeline, worth, mixer)
        routing = slower * host.moe_layer_floor * np.where(fused, FUSED_DISPATCH_LAUNCHES, 1.0)
        precision = Precision.BF16 if layer.wide else self.problem.job.precision
        launches = EXPERT_LAUNCHES.get(precision, BLOCK_SCALED_LAUNCHES)
        if single:
            launches = float(LOOPED_LAUNCHES)
        experts = slower * host.expert_launch * launches * layer.moe.experts / keys["ep"]
        return HostFloor(dense, none + routing, experts, pipeline, worth, mixer)

    def dense(self, t: Array) -> Array:
        """The same of a dense layer without a pipeline."""
        host, across = self.problem.stack.host, self.problem.stack.engine.floors_across_nodes[0]
        beyond = np.maximum(np.log2(t / self.problem.cluster.tiers[0].size), 0.0)
        one = np.where(t > 1, host.layer_floor_tp, host.layer_floor) + beyond * across * host.layer_floor_tp
        return self.slowdown * one

    def launches(
        self, layer: Layer, floor: HostFloor, capture: Capture | None, keys: ConfigTable, c: Array
    ) -> tuple[Array, Array, Array]:
        """Seconds of the host's launches ahead, behind, and of what recomputed modules repeat behind.

        Each pass takes the longer of device and host; a third of the launches are forward ones. A ring's steps launch
        attention again, not routing or experts, and are in attention's graph.
        """
        kinds = context_kinds(self.problem, keys["cp_kind"])
        ring = (kinds == ContextKind.P2P) & (layer.attention is not None)
        steps = np.where(ring, c - 1, 0.0)
        plain = FORWARD_SHARE * floor.total + self.launch * RING_LAUNCHES[0] * steps
        routed = float(layer.moe is not None)
        worth = (1.0 + routed) / (floor.launches + routed)  # of an attention layer over those of this one
        repeated = np.minimum(relaunched(keys, capture, RELAUNCHED) * worth, 1.0) * plain
        if capture is not None:
            steps = np.where((capture.module["attn"] > 0) | capture.whole, 0.0, steps)
        forward, backward = floor.captured(capture)
        ahead = FORWARD_SHARE * forward + self.launch * RING_LAUNCHES[0] * steps
        behind = (1 - FORWARD_SHARE) * backward + self.launch * RING_LAUNCHES[1] * steps
        gathered, dealt = self._orders(layer, keys, kinds, c)
        again = np.where(keys["recompute_modules"] & _CORE_ATTENTION > 0, gathered, 0.0)
        hooks = self._hooks(layer, keys)  # of recomputed layers once more, with what is launched ahead
        return ahead + gathered + hooks, behind + dealt + hooks, repeated + again

    def _hooks(self, layer: Layer, keys: ConfigTable) -> Array:
        """Seconds of a pass that hooks of ZeRO 3 take, module by module, those of a loop over experts one by one."""
        if not has_hooks(self.problem):
            return np.zeros(len(keys))
        modules = modules_of(layer, self.problem, keys["tp"].astype(float))
        experts = sum(one.repeats for one in modules if one.expert) / keys["ep"]
        number = sum(one.repeats for one in modules if not one.expert) + experts
        hooks = self.slowdown * (MODULE_HOOKS * number + LAYER_HOOKS)
        return np.asarray(hooks * gathered_by_hooks(keys, self.problem))

    def _orders(
        self, layer: Layer, keys: ConfigTable, kinds: NDArray[np.int32], c: Array
    ) -> tuple[Array, Array]:
        """Seconds of putting packed texts in order one by one around an all-to-all, forward and backward."""
        job, exchange = self.problem.job, self.problem.stack.communication.cp_exchange
        if not (exchange is ContextExchange.RING_2_17 and job.packed and layer.attention is not None):
            return np.zeros(len(keys)), np.zeros(len(keys))
        texts = keys["micro_batch"] * job.seq_len / job.attended_length
        halves = np.where((kinds == ContextKind.A2A) & (c > 1), 2 * c * texts, 0.0)
        one = self.slowdown * ORDER_OPERATION * halves
        return ORDER_OPERATIONS[0] * one, ORDER_OPERATIONS[1] * one
