"""How is a process of MaxText started? One on every host; TPUs find one another, GPUs by a coordinator's address.

Left out: XLA's many flags, of which MaxText's own recipes set some by model and device (configs/tpu, configs/gpu).
"""

from __future__ import annotations

from typing import Final

from planner.frameworks.framework import Launch
from planner.frameworks.maxtext.names import CONFIG, PROGRAM, Hardware, device_type, slice_type
from planner.frameworks.maxtext.settings import slice_of
from planner.frameworks.maxtext.slices import is_usual
from planner.frameworks.scripts import HERE, job_name, started_on_nodes

IMAGE: Final = "ghcr.io/nvidia/jax:maxtext"
# of the device's memory what JAX takes at its start; 0.75 where nothing is said
_SHARE: Final = "0.95"


def launch_script(launch: Launch, hardware: Hardware) -> str:
    """A script that starts the process of one host; hosts of GPUs differ by NODE_RANK alone."""
    head = ["#!/usr/bin/env bash"]
    if hardware is Hardware.GPU:
        head += [
            "# Starts this node's process. Set NODE_RANK (0 .. NNODES-1) and MASTER_ADDR on every node.",
            "set -euo pipefail",
            "",
            f"export NNODES=${{NNODES:-{launch.nodes}}}",
            "export NODE_RANK=${NODE_RANK:-0}",
            "export JAX_COORDINATOR_IP=${MASTER_ADDR:-127.0.0.1}",
            "export JAX_COORDINATOR_PORT=${MASTER_PORT:-29500}",
            f"export XLA_PYTHON_CLIENT_MEM_FRACTION=${{XLA_PYTHON_CLIENT_MEM_FRACTION:-{_SHARE}}}",
            "export XLA_FLAGS=${XLA_FLAGS:---xla_gpu_enable_latency_hiding_scheduler=true}",
        ]
    else:
        head += ["# Starts this host's process: run it on every host of every slice.", "set -euo pipefail"]
    return "\n".join(
        [
            *head,
            "",
            "# where logs and checkpoints go: a folder, or a bucket (gs://...)",
            "OUTPUT=${OUTPUT:-./maxtext_output}",
            HERE,
            "",
            f'exec python3 -m {PROGRAM} "$HERE/{CONFIG}" base_output_directory="$OUTPUT" "$@"',
            "",
        ]
    )


def how_to_run(launch: Launch, hardware: Hardware) -> list[str]:
    """Lines for the README."""
    if hardware is Hardware.GPU:
        return [f"{started_on_nodes(launch)}, in MaxText's container ({IMAGE})."]
    chips, torus = slice_of(launch), launch.torus
    usual = torus is None or is_usual(torus, launch.accelerator, chips)
    count, shape = launch.devices // chips, torus.described if torus is not None else chips
    kind = device_type(launch.accelerator, chips, () if torus is None or usual else torus.shape)
    slices = f"{count} slice" + "s" * (count > 1)
    return [
        f"`OUTPUT=gs://... bash launch.sh` on every virtual machine of {slices} of {shape} chips, in an environment "
        "that has MaxText; with XPK:",
        "",
        f"    xpk workload create --workload {job_name(launch)} --num-slices {count} --device-type {kind} \\",
        '      --command "OUTPUT=gs://... bash launch.sh" ...',
        "",
        *_compiled(slice_type(launch.accelerator, chips) if usual else "", count),
    ]


def _compiled(topology: str, count: int) -> list[str]:
    """How the step is compiled elsewhere, for slices that have a name there."""
    if not topology:
        return ["`train_compile`, which compiles a step without a TPU, has no name for slices of this shape."]
    return [
        "Without a TPU the step is compiled, and its memory told, by:",
        "",
        f"    python3 -m {PROGRAM}_compile {CONFIG} compile_topology={topology} compile_topology_num_slices={count}",
    ]
