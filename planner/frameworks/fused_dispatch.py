"""Where do fused dispatchers of tokens to experts run: on which devices, over which networks, in which groups?

DeepEP as Megatron-Core calls it (its first interface, `deep_ep.Buffer`), its port to AMD devices in Primus-Turbo, which
Primus puts in Megatron-Core's place for it, and HybridEP. The rules hold for a stack that names one; a group of one
rank exchanges nothing, and launch files leave the dispatcher out. Left out: what it costs, and ports of DeepEP to other
networks (EFA among them).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.dialect import option
from planner.spec.config import Mask
from planner.spec.machine.accelerator import Architecture, LinkKind
from planner.spec.rule import Columns, Problem, Rule
from planner.spec.stack.kinds import Dispatcher

NVLINK_PEERS: Final = 8  # deepseek-ai/DeepEP csrc/kernels/configs.cuh NUM_MAX_NVL_PEERS
# deep_ep/buffer.py Buffer.get_dispatch_config: the groups that it has settings for
GROUPS: Final = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
CHOICES: Final = (
    32  # a warp's lanes hold them (DeepEP csrc/kernels/intranode.cu, internode.cu: num_topk <= 32)
)
# AMD-AGI/Primus-Turbo a6a16cd primus_turbo/pytorch/deep_ep/buffer.py, csrc/kernels/deep_ep/launch.cuh
AMD_GROUPS: Final = (2, 4, 8, 16, 24, 32, 64, 128, 144, 160)
_ARCHITECTURES: Final = (Architecture.AMPERE, Architecture.HOPPER, Architecture.BLACKWELL)
# gfx942 in its README, gfx950 in its build and in Primus fd1eeab examples/megatron/configs/MI355X (use_turbo_deepep)
_AMD: Final = (Architecture.CDNA3, Architecture.CDNA4)
_RDMA: Final = (LinkKind.INFINIBAND, LinkKind.ROCE)


def _group(columns: Columns) -> NDArray[np.int64]:
    """Ranks that exchange tokens, an expert's shards among them (Megatron-Core moe/token_dispatcher.py tp_ep_group)."""
    return columns["ep"].astype(np.int64) * columns["etp"]


def _asked(problem: Problem, *dispatchers: Dispatcher) -> bool:
    return problem.model.is_moe and problem.stack.communication.dispatcher in dispatchers


def _devices(columns: Columns, problem: Problem) -> Mask:
    alone, cluster, inside = _group(columns) == 1, problem.cluster, problem.cluster.tiers[0]
    architecture = cluster.accelerator.architecture
    runs = architecture in _ARCHITECTURES and (inside.size == 1 or inside.kind is LinkKind.NVLINK)
    if _asked(problem, Dispatcher.DEEPEP):
        runs |= architecture in _AMD and (inside.size == 1 or inside.kind is LinkKind.XGMI)
        runs &= inside.size <= NVLINK_PEERS
    return alone | (runs or not _asked(problem, Dispatcher.DEEPEP, Dispatcher.HYBRIDEP))


def _network(columns: Columns, problem: Problem) -> Mask:
    within = _group(columns) <= problem.cluster.tiers[0].size
    asked = _asked(problem, Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)
    return within | (problem.cluster.fabric in _RDMA or not asked)


def _sizes(problem: Problem) -> tuple[int, ...]:
    return AMD_GROUPS if problem.cluster.accelerator.architecture in _AMD else GROUPS


def _groups(columns: Columns, problem: Problem) -> Mask:
    """Beyond a node every eight ranks must share NVLink, or XGMI."""
    group, domain = _group(columns), problem.cluster.tiers[0].size
    runs = np.isin(group, (1, *_sizes(problem)), kind="table") & (
        (group <= domain) | (domain % NVLINK_PEERS == 0)
    )
    return runs | (not _asked(problem, Dispatcher.DEEPEP))


def _choices(columns: Columns, problem: Problem) -> Mask:
    """A choice of an expert is one of each of its shards (Megatron-Core: router_topk = tp_size * moe_router_topk)."""
    most = max((layer.moe.top_k for layer in problem.model.layer_kinds if layer.moe is not None), default=0)
    fits = np.asarray(columns["etp"].astype(np.int64) * most <= CHOICES)
    return fits | (_group(columns) == 1) | (not _asked(problem, Dispatcher.DEEPEP))


def static_experts(columns: Columns, problem: Problem) -> Mask:
    """Do experts receive their rows in a buffer of one size, which needs a group and HybridEP?

    Megatron-LM d98e8a6 core/transformer/transformer_config.py, moe_expert_rank_capacity_factor; NCCL-EP takes it too,
    which planner does not cost.
    """
    asked = problem.stack.kernels.received_rows > 0 and _asked(problem, Dispatcher.HYBRIDEP)
    return np.asarray((_group(columns) > 1) & asked)


def _capacity(columns: Columns, problem: Problem) -> Mask:
    given = problem.model.is_moe and problem.stack.kernels.received_rows > 0
    return np.asarray((_group(columns) == 1) | (not given) | static_experts(columns, problem))


def padded_experts(problem: Problem) -> bool:
    """Does every expert get as many rows as its capacity, dropped beyond and padded up to, by NCCL's all-to-all?

    Megatron-LM d98e8a6 core/transformer/moe/token_dispatcher.py MoEAlltoAllTokenDispatcher.preprocess, drop_and_pad.
    """
    return problem.stack.kernels.expert_padding > 0 and _asked(problem, Dispatcher.ALL_TO_ALL)


def _padded(columns: Columns, problem: Problem, dispatcher: Dispatcher) -> Mask:
    """Are no experts padded to one capacity that this dispatcher sends to?"""
    fused = problem.stack.kernels.expert_padding > 0 and _asked(problem, dispatcher)
    return np.asarray((_group(columns) == 1) | (not fused))


def _holds_shards(columns: Columns, problem: Problem) -> Mask:
    """Every shard of an expert receives all of its rows, in a buffer that is no larger for it."""
    most = max(problem.stack.kernels.received_rows, 1.0)
    return (columns["etp"] <= most) | ~static_experts(columns, problem)


_UNPADDED: Final = "set moe_token_dispatcher_type=alltoall, or leave moe_pad_expert_input_to_capacity out"
DISPATCH_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "dispatcher-devices", ("ep", "etp"), _devices,
        "{dispatcher} needs A100, H100, B200 or later devices joined by NVLink, DeepEP at most 8 of them or of "
        "MI300X, MI325X, MI355X joined by XGMI; {inside} {device} are joined by {kind}",
        f"leave the dispatcher out of {option('stack')}, or take the other one (hybridep in racks, deepep on MI300X)",
        "Megatron-Bridge 183c5c0 training/flex_dispatcher_backend.py; DeepEP README; Megatron-LM TransformerConfig "
        "(only hybridep beyond a node's NVLink); AMD-AGI/Primus-Turbo a6a16cd primus_turbo/pytorch/deep_ep",
        lambda p: {
            "dispatcher": p.stack.communication.dispatcher, "device": p.cluster.accelerator.name,
            "inside": p.cluster.tiers[0].size, "kind": p.cluster.tiers[0].kind,
        },
    ),
    Rule(
        "dispatcher-network", ("ep", "etp"), _network,
        "{dispatcher} sends between nodes over InfiniBand or RoCE, the cluster has {fabric}",
        f"keep ep x etp within a node, or leave the dispatcher out of {option('stack')}", "DeepEP README, Requirements",
        lambda p: {"dispatcher": p.stack.communication.dispatcher, "fabric": p.cluster.fabric}, told=("ep", "etp"),
    ),
    Rule(
        "expert-capacity", ("ep", "etp"), _capacity,
        "a buffer of one size for what a rank's experts receive is HybridEP's; the dispatcher is {dispatcher}",
        f"add +hybridep to {option('stack')} (moe_flex_dispatcher_backend=hybridep)",
        "Megatron-LM core/transformer/transformer_config.py moe_expert_rank_capacity_factor",
        lambda p: {"dispatcher": p.stack.communication.dispatcher},
    ),
    Rule(
        "expert-padding", ("ep", "etp"), lambda c, p: _padded(c, p, Dispatcher.DEEPEP),
        "Megatron-LM refuses DeepEP with experts padded to one capacity", _UNPADDED,
        "Megatron-LM d98e8a6 core/transformer/transformer_config.py __post_init__",
    ),
    Rule(
        "hybridep-padding", ("ep", "etp"), lambda c, p: _padded(c, p, Dispatcher.HYBRIDEP),
        "planner models experts padded to one capacity with NCCL's all-to-all alone, not with HybridEP", _UNPADDED,
        "Megatron-Bridge 067f987 examples/models/nemotron/nemotron_3/super/slurm_pretrain.sh trains so",
        unmodelled=True,
    ),
    Rule(
        "dispatcher-groups", ("ep", "etp"), _groups,
        "DeepEP's groups, ep x etp, have {sizes} ranks, beyond a node with every 8 joined by NVLink or XGMI",
        "choose another ep",
        "DeepEP deep_ep/buffer.py Buffer.get_dispatch_config, csrc/kernels/configs.cuh; of AMD devices "
        "AMD-AGI/Primus-Turbo a6a16cd primus_turbo/pytorch/deep_ep/buffer.py",
        lambda p: {"sizes": ", ".join(map(str, _sizes(p)))}, told=("ep", "etp"),
    ),
    Rule(
        "expert-capacity-etp", ("ep", "etp"), _holds_shards,
        "every shard of an expert receives all of its rows, so that a buffer of {capacity:g} times a rank's own would "
        "drop tokens", "choose a smaller etp, or a moe_expert_rank_capacity_factor above it",
        "Megatron-LM d98e8a6 core/transformer/moe/token_dispatcher.py _HybridEPManager.setup_metadata",
        lambda p: {"capacity": p.stack.kernels.received_rows}, told=("etp",),
    ),
    Rule(
        "dispatcher-choices", ("ep", "etp"), _choices,
        "DeepEP sends a token to at most 32 experts, every shard of one counted; {top_k} a token, etp={etp}",
        "choose a smaller etp", "DeepEP csrc/kernels/intranode.cu, internode.cu; Megatron-LM d98e8a6 "
        "core/transformer/moe/token_dispatcher.py MoEFlexTokenDispatcher",
        lambda p: {
            "top_k": max((k.moe.top_k for k in p.model.layer_kinds if k.moe is not None), default=0),
        },
    ),
)  # fmt: skip
