"""Output of link tests, topology and hosts, made up after the tools' format strings; times follow a simple law."""

from __future__ import annotations

from collections.abc import Callable

HEAD = (
    "# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703\n"
    "# Collective test starting: {program}\n"
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0\n#\n# Using devices\n"
)
OLD_HEAD = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 \n"
    "#\n# Using devices\n"
)
COLUMNS = (
    "#\n#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
    "#wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)\n"
)
FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}


def table(
    op: str, hosts: int, local: int, seconds: Callable[[float], float], device: str = "NVIDIA H100 80GB HBM3",
    old: bool = False,
) -> str:  # fmt: skip
    """The output of one test of `op` on `hosts` nodes of `local` devices."""
    lines = [OLD_HEAD if old else HEAD.format(program=f"{op}_perf")]
    for rank in range(hosts * local):
        where = "[0x1b]" if old else "[0000:1b:00]"
        group = "" if old else "Group  0 "
        lines.append(
            f"#  Rank {rank:2d} {group}Pid {1000 + rank:6d} on node{rank // local:03d} device {rank % local:2d} "
            f"{where} {device}\n"
        )
    lines.append(COLUMNS)
    ranks = hosts * local
    for power in range(3, 34, 2):
        size = 2.0**power
        time = seconds(size)
        algorithm = size / time / 1e9
        bus = algorithm * (1.0 if op == "sendrecv" else FACTOR[op] * (ranks - 1) / ranks)
        redop = "sum" if op in ("all_reduce", "reduce_scatter") else "none"
        row = f"{time * 1e6:8.2f} {algorithm:7.2f} {bus:7.2f}      0"
        lines.append(f"{int(size):12d}  {int(size) // 4:12d}     float  {redop:>6}      -1 {row} {row}\n")
    lines.append("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100.0 \n#\n")
    return "".join(lines)


TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tNODE\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tNODE\t0-51\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\t52-103\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tNODE\t52-103\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS
NIC1\tNODE\tNODE\tPIX\tNODE\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""

ROCM_TOPOLOGY = """\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           15
GPU1   15           0            15
GPU2   15           15           0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         XGMI
GPU1   XGMI         0            XGMI
GPU2   XGMI         XGMI         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
================================== End of ROCm SMI Log ===================================
"""
