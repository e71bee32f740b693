"""What is a cause of a slow step called, how is it looked for, and what cures it? In the words of a device's users.

Left out: which causes a device can have (`calibrate/diagnosis/causes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from planner.spec.machine.architecture import Architecture


class CauseWords(NamedTuple):
    """Of a cause: its title, the words of a severity, the next measurement, and what to change; empty: the usual."""

    title: str
    severity: str
    test: str
    cure: str


_USUAL: Final[Mapping[str, CauseWords]] = {
    "peak": CauseWords(
        "the reported MFU is counted against another peak or with other FLOPs",
        "reported {:.2g}x of what the step time says",
        "divide model FLOPs (planner model) by step time, devices and the dense peak: is that the figure "
        "reported?",
        "nothing is slow: sparse peaks (1,979 TFLOP/s of an H100) are twice the dense ones; compare tokens/s",
    ),
    "fabric": CauseWords(
        "the fabric reaches a part of its rate",
        "at {:.0%} of its bandwidth",
        "all_reduce_perf of nccl-tests on the same nodes; NCCL_DEBUG=INFO must say NET/IB or the fabric's plugin,"
        " not NET/Socket",
        "make NCCL use RDMA on all cards (NCCL_IB_HCA, plugin of the cloud, GPUDirect, one card per GPU)",
    ),
    "network": CauseWords(
        "messages between nodes wait (a pathological network)",
        "{:.0f}x the latency",
        "sendrecv_perf of nccl-tests between nodes at small sizes",
        "check routing, congestion control and firmware; try NCCL_ALGO and NCCL_PROTO",
    ),
    "nvlink": CauseWords(
        "links inside the node reach a part of their rate",
        "at {:.0%} of their bandwidth",
        "nvidia-smi topo -m, and all_reduce_perf -g 8 on one node",
        "enable peer access: NCCL_P2P_DISABLE unset, ACS off, fabric manager running",
    ),
    "overlap": CauseWords(
        "communication does not overlap with compute",
        "none is hidden",
        "a profile of one step: do collectives run beside kernels?",
        "--overlap-grad-reduce --overlap-param-gather, CUDA_DEVICE_MAX_CONNECTIONS as the framework says, "
        "prefetch",
    ),
    "host": CauseWords(
        "CPU-bound: kernel launches are too slow",
        "{:.2g}x the usual launch time",
        "launch cost of planner probe; a profile: gaps between kernels, one core at 100 %",
        "larger micro-batches, CUDA graphs, torch.compile, manual garbage collection, performance governor",
    ),
    "recompute": CauseWords(
        "full recomputation is on",
        "every layer runs its forward twice",
        "the launcher's arguments; peak memory far below the prediction",
        "recompute less: planner estimate --memory shows what fits",
    ),
    "dispatcher": CauseWords(
        "tokens reach experts the slow way (dispatcher or expert kernels)",
        "{:.2g}x the dispatch time",
        "the launcher's arguments: --moe-token-dispatcher-type, --moe-grouped-gemm",
        "--moe-token-dispatcher-type alltoall (or DeepEP), --moe-grouped-gemm, expert over tensor parallelism",
    ),
    "imbalance": CauseWords(
        "experts get unequal numbers of tokens",
        "the busiest rank has {:.1f}x the mean",
        "log tokens per expert; try a forced balance",
        "auxiliary loss or bias balancing, capacity factor; replicas of hot experts",
    ),
    "attention": CauseWords(
        "attention does not run as a fused kernel",
        "unfused",
        "attention forward and backward of planner probe; NVTE_FLASH_ATTN, attn_implementation",
        "flash or cuDNN attention; check head width, mask and dtype",
    ),
    "precision": CauseWords(
        "GEMMs run in fp32",
        "outside the tensor cores",
        "the launcher's arguments: is --bf16 there? (the log says which dtype parameters have)",
        "--bf16 (or autocast); torch.backends.cuda.matmul.allow_tf32 for fp32",
    ),
    "padding": CauseWords(
        "part of the tokens is padding",
        "{:.1f} tokens computed per useful one",
        "count useful tokens of some batches",
        "pack sequences; sort by length",
    ),
    "stragglers": CauseWords(
        "some nodes are slow, or steps wait for data",
        "every step waits {:.2f}x",
        "per-rank timers (--timing-log-level 2); the spread of step times",
        "drop the slow node (clocks, thermals, ECC), more loader workers",
    ),
    "thrash": CauseWords(
        "the allocator runs out of room and starts over",
        "steps take {:.1f}x",
        "torch.cuda.memory_stats: num_alloc_retries; reserved close to the capacity",
        "expandable_segments:True; a smaller micro-batch or more recomputation",
    ),
}
_AMD: Final = {
    "fabric": CauseWords(
        "",
        "",
        "all_reduce_perf of rccl-tests on the same nodes; NCCL_DEBUG=INFO, which RCCL reads, must say NET/IB or "
        "the fabric's plugin, not NET/Socket",
        "make RCCL use RDMA on all cards (NCCL_IB_HCA, plugin of the cloud, one card per GPU)",
    ),
    "network": CauseWords(
        "",
        "",
        "sendrecv_perf of rccl-tests between nodes at small sizes",
        "check routing, congestion control and firmware; try NCCL_ALGO and NCCL_PROTO",
    ),
    "nvlink": CauseWords(
        "",
        "",
        "rocm-smi --showtopo, and all_reduce_perf -g 8 of rccl-tests on one node",
        "enable peer access: NCCL_P2P_DISABLE unset, ACS off",
    ),
}
_GAUDI: Final = {
    "fabric": CauseWords(
        "",
        "",
        "hccl_demo on the same nodes",
        "check which ports HCCL uses and that all links are up",
    ),
    "network": CauseWords(
        "",
        "",
        "hccl_demo between nodes at small sizes",
        "check routing, congestion control and firmware",
    ),
    "nvlink": CauseWords(
        "",
        "",
        "hl-smi, and hccl_demo on one node",
        "check that all ports of the node are up",
    ),
}
_TPU: Final = {
    "peak": CauseWords(
        "",
        "",
        "divide model FLOPs (planner model) by step time, chips and the dense peak: is that the figure reported?",
        "nothing is slow: peaks of 8-bit integers are twice those of bf16; compare tokens/s",
    ),
    "fabric": CauseWords(
        "the network between slices reaches a part of its rate",
        "",
        "a profile of one step (profiler: xplane): collectives of the dcn_ axes; iperf3 between hosts of two "
        "slices",
        "let less cross slices: dcn_data_parallelism with fsdp inside a slice; larger messages; all cards of a "
        "host",
    ),
    "network": CauseWords(
        "messages between slices wait",
        "",
        "a profile of one step (profiler: xplane): collectives of the dcn_ axes on small tensors",
        "check the slices' region and zone, and hosts that lag",
    ),
    "nvlink": CauseWords(
        "links inside the slice reach a part of their rate",
        "",
        "a profile of one step (profiler: xplane): collectives of the ici_ axes",
        "axes on whole axes of the torus, without allow_split_physical_axes; another topology of the slice",
    ),
    "overlap": CauseWords(
        "",
        "",
        "a profile of one step (profiler: xplane): do collectives run beside computations?",
        "LIBTPU_INIT_ARGS as MaxText's recipes set them, such as --xla_tpu_enable_async_collective_fusion=true",
    ),
    "recompute": CauseWords(
        "",
        "",
        "remat_policy of the run; peak memory far below the prediction",
        "recompute less: planner estimate --memory shows what fits",
    ),
    "dispatcher": CauseWords(
        "",
        "",
        "sparse_matmul, megablox and capacity_factor of the run",
        "sparse_matmul: true with megablox: true; ici_expert_parallelism instead of ici_tensor_parallelism",
    ),
    "attention": CauseWords(
        "",
        "",
        "attention of the run: flash is the Splash kernel, dot_product keeps all scores",
        "attention: flash, with blocks (sa_block_q and its kin) that divide the sequence",
    ),
    "precision": CauseWords(
        "",
        "",
        "dtype and matmul_precision of the run",
        "dtype: bfloat16",
    ),
    "stragglers": CauseWords(
        "",
        "",
        "the spread of step times over hosts and steps",
        "replace the slow host, more workers for the data (grain_worker_count)",
    ),
}
_TRAINIUM: Final = {
    "fabric": CauseWords(
        "",
        "",
        "nccom-test on the same nodes",
        "check that EFA is used on all cards",
    ),
    "network": CauseWords(
        "",
        "",
        "nccom-test between nodes at small sizes",
        "check placement groups and EFA's version",
    ),
    "nvlink": CauseWords(
        "",
        "",
        "nccom-test on one node",
        "ranks in the order of the instance's torus",
    ),
    "overlap": CauseWords(
        "",
        "",
        "neuron-profile of one step: do collectives run beside computations?",
        "Neuron's own recipes",
    ),
}
_ELSEWHERE: Final[Mapping[Architecture, Mapping[str, CauseWords]]] = {
    **dict.fromkeys((Architecture.CDNA2, Architecture.CDNA3, Architecture.CDNA4), _AMD),
    Architecture.GAUDI: _GAUDI,
    Architecture.TPU: _TPU,
    Architecture.TRAINIUM: _TRAINIUM,
}


def cause_words(name: str, architecture: Architecture) -> CauseWords:
    """Of a cause on a device."""
    usual, own = _USUAL[name], _ELSEWHERE.get(architecture, {}).get(name)
    return usual if own is None else CauseWords(*(new or old for new, old in zip(own, usual, strict=True)))
