"""Which causes of a slow step are there on devices other than NVIDIA's, and with which tools are they looked for?

The causes are those of `causes.py`, without those that a device cannot have: XLA lays out a program's memory before it
runs, and its host launches no kernels. Left out: causes that only other devices have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

from planner.calibrate.correction.estimate import Observation
from planner.calibrate.diagnosis.causes import CAUSES, Cause
from planner.spec.machine.architecture import Architecture


class _Words(NamedTuple):
    """The next measurement and the cure; a title where the usual one does not fit."""

    test: str
    cure: str
    title: str = ""


_AMD: Final = {
    "fabric": _Words(
        "all_reduce_perf of rccl-tests on the same nodes; NCCL_DEBUG=INFO, which RCCL reads, must say NET/IB or the "
        "fabric's plugin, not NET/Socket",
        "make RCCL use RDMA on all cards (NCCL_IB_HCA, plugin of the cloud, one card per GPU)",
    ),
    "network": _Words(
        "sendrecv_perf of rccl-tests between nodes at small sizes",
        "check routing, congestion control and firmware; try NCCL_ALGO and NCCL_PROTO",
    ),
    "nvlink": _Words(
        "rocm-smi --showtopo, and all_reduce_perf -g 8 of rccl-tests on one node",
        "enable peer access: NCCL_P2P_DISABLE unset, ACS off",
    ),
}
_GAUDI: Final = {
    "fabric": _Words("hccl_demo on the same nodes", "check which ports HCCL uses and that all links are up"),
    "network": _Words(
        "hccl_demo between nodes at small sizes", "check routing, congestion control and firmware"
    ),
    "nvlink": _Words("hl-smi, and hccl_demo on one node", "check that all ports of the node are up"),
}
_PROFILE: Final = "a profile of one step (profiler: xplane)"
_TPU: Final = {
    "peak": _Words(
        "divide model FLOPs (planner model) by step time, chips and the dense peak: is that the figure reported?",
        "nothing is slow: peaks of 8-bit integers are twice those of bf16; compare tokens/s",
    ),
    "fabric": _Words(
        f"{_PROFILE}: collectives of the dcn_ axes; iperf3 between hosts of two slices",
        "let less cross slices: dcn_data_parallelism with fsdp inside a slice; larger messages; all cards of a host",
        "the network between slices reaches a part of its rate",
    ),
    "network": _Words(
        f"{_PROFILE}: collectives of the dcn_ axes on small tensors",
        "check the slices' region and zone, and hosts that lag",
        "messages between slices wait",
    ),
    "nvlink": _Words(
        f"{_PROFILE}: collectives of the ici_ axes",
        "axes on whole axes of the torus, without allow_split_physical_axes; another topology of the slice",
        "links inside the slice reach a part of their rate",
    ),
    "overlap": _Words(
        f"{_PROFILE}: do collectives run beside computations?",
        "LIBTPU_INIT_ARGS as MaxText's recipes set them, such as --xla_tpu_enable_async_collective_fusion=true",
    ),
    "recompute": _Words(
        "remat_policy of the run; peak memory far below the prediction",
        "recompute less: planner estimate --memory shows what fits",
    ),
    "dispatcher": _Words(
        "sparse_matmul, megablox and capacity_factor of the run",
        "sparse_matmul: true with megablox: true; ici_expert_parallelism instead of ici_tensor_parallelism",
    ),
    "attention": _Words(
        "attention of the run: flash is the Splash kernel, dot_product keeps all scores",
        "attention: flash, with blocks (sa_block_q and its kin) that divide the sequence",
    ),
    "precision": _Words("dtype and matmul_precision of the run", "dtype: bfloat16"),
    "stragglers": _Words(
        "the spread of step times over hosts and steps",
        "replace the slow host, more workers for the data (grain_worker_count)",
    ),
}
_TRAINIUM: Final = {
    "fabric": _Words("nccom-test on the same nodes", "check that EFA is used on all cards"),
    "network": _Words("nccom-test between nodes at small sizes", "check placement groups and EFA's version"),
    "nvlink": _Words("nccom-test on one node", "ranks in the order of the instance's torus"),
    "overlap": _Words(
        "neuron-profile of one step: do collectives run beside computations?", "Neuron's own recipes"
    ),
}
_ELSEWHERE: Final[Mapping[Architecture, Mapping[str, _Words]]] = {
    **dict.fromkeys((Architecture.CDNA2, Architecture.CDNA3, Architecture.CDNA4), _AMD),
    Architecture.GAUDI: _GAUDI,
    Architecture.TPU: _TPU,
    Architecture.TRAINIUM: _TRAINIUM,
}
_NOT_COMPILED: Final = ("host", "thrash")
_BETWEEN: Final = ("fabric", "network")


def _several_domains(seen: Observation) -> bool:
    return len(seen.problem.cluster.tiers) > 1


@lru_cache(maxsize=len(Architecture))
def causes_on(architecture: Architecture) -> tuple[Cause, ...]:
    """The causes that a device can have, in the words of its users."""
    found = []
    for cause in CAUSES:
        if architecture.is_compiled_for and cause.name in _NOT_COMPILED:
            continue
        words = _ELSEWHERE.get(architecture, {}).get(cause.name)
        if words is not None:
            cause = replace(cause, test=words.test, cure=words.cure, title=words.title or cause.title)
        # hosts of one slice are joined by its links
        if architecture is Architecture.TPU and cause.name in _BETWEEN:
            cause = replace(cause, needs=_several_domains)
        found.append(cause)
    return tuple(found)
