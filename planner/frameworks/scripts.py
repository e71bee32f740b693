"""How is a launch started? A torchrun script, a Slurm batch script, a Kubernetes manifest and a README.

Every value that reaches a shell is quoted, every manifest is dumped by a YAML writer. Left out: the
framework's own arguments, which it hands over as words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from planner.frameworks.framework import Files, Launch
from planner.spec.job import Job
from planner.units import format_capacity, format_time

Words = Sequence[tuple[str, ...]]
_SAFE_NAME = re.compile(r"[^a-z0-9]+")
LAUNCH, SBATCH, MANIFEST, README = "launch.sh", "launch.sbatch", "kubernetes.yaml", "README.md"
IMAGE = "nvcr.io/nvidia/pytorch:25.09-py3"  # of frameworks without one of their own
HERE = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'  # the script's folder


def safe_name(text: str) -> str:
    """Text as a name that Slurm, Kubernetes and file systems take: lower-case letters, digits, hyphens, 40 in all."""
    return _SAFE_NAME.sub("-", text.lower()).strip("-")[:40].strip("-") or "model"


def job_name(launch: Launch) -> str:
    """Name of the job in queues."""
    return f"train-{safe_name(launch.model.name)}-{launch.devices}"


def _word(text: str) -> str:
    """A word of an array; with a comma in quotes, since ShellCheck takes a bare one for a separator (SC2054)."""
    quoted = shlex.quote(text)
    return f"'{text}'" if "," in text and quoted == text else quoted


def started_on_nodes(launch: Launch, checkout: str = "") -> str:
    """How the launch script is started; `checkout`: the variable of the program's folder, if it needs one."""
    where = f"{checkout}=... " if checkout else ""
    return f"`{where}NODE_RANK=0 MASTER_ADDR=host0 bash {LAUNCH}` on every one of {launch.nodes} nodes"


def shell_array(name: str, words: Words) -> str:
    """A bash array, one option with its values a line."""
    lines = [" ".join(_word(word) for word in option) for option in words]
    return "\n".join([f"{name}_ARGS=(", *(f"  {line}" for line in lines), ")"])


def launch_script(
    launch: Launch,
    environment: Mapping[str, str],
    groups: Mapping[str, Words],
    program: str,
    prelude: str = "",
) -> str:
    """A script that starts the processes of one node with torchrun; nodes differ by NODE_RANK alone.

    `program`: the words after torchrun's own, as shell text. `prelude`: shell text before it.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    arrays = [shell_array(name, words) for name, words in groups.items() if words]
    names = " ".join(f'"${{{name}_ARGS[@]}}"' for name, words in groups.items() if words)
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            "# Starts this node's processes. Set NODE_RANK (0 .. NNODES-1) and MASTER_ADDR on every node.",
            "set -euo pipefail",
            "",
            f"NNODES=${{NNODES:-{launch.nodes}}}",
            f"GPUS_PER_NODE=${{GPUS_PER_NODE:-{launch.devices_per_host}}}",
            "NODE_RANK=${NODE_RANK:-0}",
            "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}",
            "MASTER_PORT=${MASTER_PORT:-29500}",
            "",
            *exports,
            *([prelude] if prelude else []),
            "",
            *arrays,
            "",
            'exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \\',
            '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
            f'  {program} {names} "$@"' if names else f'  {program} "$@"',
            "",
        ]
    )


def sbatch_script(launch: Launch) -> str:
    """A Slurm batch script that runs the launch script once a node."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --job-name={job_name(launch)}",
            f"#SBATCH --nodes={launch.nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={launch.devices_per_host}",
            "#SBATCH --exclusive",
            "#SBATCH --output=%x-%j.log",
            "set -euo pipefail",
            "",
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_ADDR",
            "export MASTER_PORT=${MASTER_PORT:-29500}",
            "# SLURM_SUBMIT_DIR is the folder sbatch was called in: call it in the folder of this file.",
            "srun --kill-on-bad-exit=1 bash -c \\",
            f'  \'NODE_RANK="$SLURM_NODEID" exec bash "$SLURM_SUBMIT_DIR/{LAUNCH}"\'',
            "",
        ]
    )


def kubernetes_manifest(launch: Launch, files: Mapping[str, str], image: str) -> str:
    """A ConfigMap with the files and a Kubeflow PyTorchJob that runs the launch script in every pod."""
    name = job_name(launch)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-files"},
        "data": dict(files),
    }
    replicas = {"Master": _replica(launch, name, image, 1)}
    if launch.nodes > 1:
        replicas["Worker"] = _replica(launch, name, image, launch.nodes - 1)
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    return yaml.dump_all([config_map, job], Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, which is how people read scripts."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _replica(launch: Launch, name: str, image: str, count: int) -> dict[str, Any]:
    # The operator sets RANK to the pod's number and MASTER_ADDR, MASTER_PORT; torchrun wants the former as node rank.
    start = f'NODE_RANK="$RANK" exec bash /launch/{LAUNCH}'
    container = {
        "name": "pytorch",
        "image": image,
        "command": ["bash", "-c", start],
        "resources": {"limits": {"nvidia.com/gpu": launch.devices_per_host}},
        "volumeMounts": [
            {"name": "launch", "mountPath": "/launch"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    volumes = [
        {"name": "launch", "configMap": {"name": f"{name}-files"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    pod = {"spec": {"containers": [container], "volumes": volumes}}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": pod}


def readme(
    launch: Launch,
    title: str,
    version: str,
    source: str,
    run: Sequence[str],
    unexpressed: Sequence[str],
    queued: bool = True,
) -> str:
    """What the files are, what they were checked against, and what to expect of the first log lines.

    `queued`: are there files for Slurm and Kubernetes?
    """
    lines = [
        f"# {safe_text(launch.model.name)} on {launch.devices} x {safe_text(launch.accelerator)} with {title}",
        "",
        f"Configuration: {launch.config.describe(launch.exchange)}",
        "",
        f"Written for {title} {version}; every option was checked against its table ({source}).",
        "",
        "## Start",
        "",
        *run,
        "",
    ]
    if queued:
        lines += [
            f"Under Slurm: `sbatch {SBATCH}`. Under Kubernetes with the training operator: "
            f"`kubectl apply -f {MANIFEST}` (set the image first).",
            "",
        ]
    if launch.expected is not None:
        e = launch.expected
        rate = f"{e.tokens_per_second_per_device:,.0f} tokens/s per device"
        lines += [
            "## What to expect",
            "",
            f"- step time {format_time(e.step_time)} ({format_time(e.step_time_low)} to "
            f"{format_time(e.step_time_high)}), {rate}",
            f"- peak memory {format_capacity(e.peak_memory)} of {format_capacity(e.memory_limit)} usable on the "
            f"device that needs most; this stack's log line shows about {format_capacity(e.logged_memory)}",
            *(
                ["- **it does not fit**: expect it to run out of memory"]
                if e.peak_memory > e.memory_limit
                else []
            ),
            *([f"- {e.dryrun}"] if e.dryrun else []),
            *([_of_stack(e.stack)] if e.stack else []),
            "- compare after ten steps: the first ones compile, allocate and connect",
            "",
        ]
    lines += ["## What these files do not express", ""]
    lines += [f"- {line}" for line in (*unexpressed, *_unlike_job(launch.job))]
    return "\n".join([*lines, ""])


def _unlike_job(job: Job) -> list[str]:
    """What the prediction takes of the data, which no launch file states."""
    said = []
    if job.packed:
        said.append(
            f"packing: the figures above are for documents of {job.attended_length:g} tokens put end to end into "
            f"{job.seq_len:,}, each attending to itself; made-up sequences attend over all their tokens, so a step "
            "takes longer until your data loader packs"
        )
    elif job.mean_length is not None:
        said.append(
            f"lengths: the figures above are for sequences of {job.mean_length:g} tokens on average, padded to the "
            f"longest of their micro-batch; made-up sequences are {job.seq_len:,} tokens each, so a step takes "
            "longer until your data loader pads so"
        )
    if job.early_batches:
        stages = zip(job.early_batches, (end for _, end in job.batch_schedule), strict=True)
        early = ", ".join(f"{batch:,} sequences up to {end:.4g} tokens" for batch, end in stages)
        said.append(
            f"the batch schedule: every step has {job.global_batch:,} sequences; the plan starts with {early}"
        )
    uneven = job.expert_imbalance
    if uneven != 1.0 and uneven != ():
        said.append(
            "expert loads: the figures above are for experts that get tokens unevenly, as the plan says; these files "
            "place each once, by index, and how uneven they are your data decides"
        )
    return said


def _of_stack(name: str) -> str:
    return f"- both are of the plan's stack, {safe_text(name)}; `planner check` predicts these files as they run here"


def safe_text(text: str) -> str:
    """Text on one line without characters that markdown or a terminal acts on."""
    return re.sub(r"[^\w .:/+@-]", "?", text)[:120]


def launch_files(
    launch: Launch, environment: Mapping[str, str], groups: Mapping[str, Words], program: str, image: str,
    extra: Mapping[str, str] | None = None, prelude: str = "",
) -> Files:  # fmt: skip
    """The launch script with the scripts and manifest that start it; `extra`: files it reads."""
    files = {LAUNCH: launch_script(launch, environment, groups, program, prelude), **(extra or {})}
    manifest = kubernetes_manifest(launch, files, image)
    return {**files, SBATCH: sbatch_script(launch), MANIFEST: manifest}
