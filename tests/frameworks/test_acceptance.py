"""Exports of random triples: read back as planned, taken by the frameworks' own code, by shells and by Kubernetes.

A sample of what `benchmarks/launch_acceptance.py` runs in full. Needs the extra `frameworks`.
"""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
import yaml

from benchmarks.launch_acceptance import Tally as Tallied
from benchmarks.launch_acceptance import can_judge, run, write_cases
from benchmarks.launch_cases import STACKS, Case, illegal_launch, legal_launches, triples
from planner.errors import UnsupportedError
from planner.frameworks import framework

pytestmark = pytest.mark.slow

# Kubeflow training-operator, manifests/base/crds/kubeflow.org_pytorchjobs.yaml and pkg/apis .../common_types.go
JOB_FIELDS = {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"}
REPLICA_FIELDS = {"replicas", "restartPolicy", "template"}
RESTARTS = {"Always", "OnFailure", "Never", "ExitCode"}


def cases(name: str, count: int) -> list[Case]:
    found: list[Case] = []
    for triple in islice(triples(seed=11), count):
        try:
            found += legal_launches(triple, name, 1, seed=11)
        except UnsupportedError:
            continue
    return found


@pytest.mark.parametrize("name", STACKS)
def test_random_launches_are_accepted(name: str) -> None:
    if name in ("deepspeed", "torchtitan", "accelerate") and not can_judge(name):
        pytest.skip(f"{name} not installed")
    (tally,) = run([name], count=5, legal=2, illegal=0, seed=23, plain=True)
    assert tally.triples == 5
    assert tally.written >= 15
    assert tally.clean, tally.facts()
    assert not tally.not_expressible, "the search proposes only what can be written"
    if name in ("deepspeed", "torchtitan"):
        assert tally.ranks == 10
    assert not tally.not_built
    if name == "megatron":
        assert tally.groups or find_spec("megatron") is None


@pytest.mark.parametrize("name", STACKS)
def test_varied_launches_are_read_back_at_their_cost(name: str) -> None:
    """Precisions, optimizers, options of stacks and axes held fixed."""
    (tally,) = run([name], count=5, legal=1, illegal=0, seed=31)
    assert tally.written >= 8
    assert tally.wrongly_read_back == tally.refused == tally.wrong_values == []


@pytest.mark.parametrize("name", STACKS)
def test_illegal_launches_are_refused_somewhere(name: str) -> None:
    """What planner refuses, the export or the framework's own code refuses too, but for rules of the running step."""
    at_run_time = {
        "zero-supported",
        "fsdp-vpp",
        "interleaving-remainder",
        "moe-sp",
        "sp-tp",
        "nearly-equal-chunks",
    }
    # torch's schedules and torchtitan's parallelize refuse the first two; one rank has nothing to shard, the same run
    at_run_time |= {"microbatches-pp", "replicated-alone", "zero-replicas"}
    at_run_time |= {"heads-tp", "kv-heads-tp", "cp-supported"}  # files that do not name the model cannot know
    (tally,) = run([name], count=12, legal=0, illegal=24, seed=29)
    assert tally.illegal >= 8
    for broken in tally.disagreements:
        assert set(broken.split()) & at_run_time, tally.disagreements


@pytest.mark.parametrize("name", STACKS)
def test_scripts_and_manifests(name: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None or find_spec("kubernetes_validate") is None:
        pytest.skip("shellcheck or kubernetes-validate not installed")
    kubernetes = import_module("kubernetes_validate")
    release = kubernetes.latest_version()
    written = write_cases(Tallied(name), framework(name).default_version, cases(name, 16), tmp_path)
    assert written
    scripts = [str(w.folder / file) for w in written for file in ("launch.sh", "launch.sbatch")]
    for script in scripts:
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    done = subprocess.run(
        ["shellcheck", "-s", "bash", "-S", "warning", *scripts],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for w in written:
        config_map, job = yaml.safe_load_all((w.folder / "kubernetes.yaml").read_text())
        kubernetes.validate(config_map, release, strict=True)
        assert set(job["spec"]) <= JOB_FIELDS
        for part in job["spec"]["pytorchReplicaSpecs"].values():
            assert set(part) <= REPLICA_FIELDS
            assert part["restartPolicy"] in RESTARTS
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": job["metadata"], **part["template"]}
            kubernetes.validate(pod, release, strict=True)


def test_illegal_cases_are_illegal() -> None:
    """The sample of illegal configurations breaks rules, and not only those of the batch or the devices."""
    found = [illegal_launch(triple, "megatron", 3) for triple in islice(triples(seed=3), 6)]
    assert sum(case is not None for case in found) >= 5
    assert len({rule for case in found if case for rule in case.broken}) >= 3
