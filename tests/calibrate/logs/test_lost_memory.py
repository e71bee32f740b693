"""Is memory that ran out outside the allocator recognised, and is a host's told from a device's?"""

from __future__ import annotations

import pytest

from planner.ask.request import Request
from planner.calibrate.diagnosis.explain_memory import MemoryStory, explain
from planner.calibrate.logs.lines import read_lines
from planner.calibrate.own_runs import configured
from planner.report.words import texts
from tests.calibrate import logs

BASE = Request(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, seq_len=8192, global_batch="64")
NCCL = "node-1:12:34 [3] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'"
KERNEL = (
    "[12345.678] Out of memory: Killed process 4242 (python) total-vm:900000000kB, anon-rss:503316480kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1000kB oom_score_adj:0"
)
SIGNAL = "E0601 10:00:00 torch/distributed/elastic/multiprocessing/api.py] failed (exitcode: -9) local_rank: 3 (pid: 9)"
LINES = [
    (NCCL, "NCCL"),
    ("old:12:34 [3] NCCL WARN Cuda failure 'out of memory'", "NCCL"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN"),
    ("RuntimeError: CUDA error: out of memory", "the CUDA driver"),
    ("RuntimeError: HIP error: out of memory", "the HIP driver"),
    (KERNEL, "host"),
    ("Memory cgroup out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:8kB", "host"),
    ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job,task=python,pid=7,uid=0", "host"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some step tasks have been OOM Killed.", "host"),
    ("    Reason:       OOMKilled", "host"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried "
     "to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)", "host"),
    (SIGNAL, "signal"),
    ("  exitcode  : -9 (pid: 4242)", "signal"),
    ("[ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9", "signal"),
    ("subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.", "signal"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "of"), LINES)
def test_who_ran_out(line: str, of: str) -> None:
    noise = ["INFO loading shard 12 of the data set"] * 20
    (found,) = read_lines([*noise, f"[rank3]: {line}", *noise], "log").lost
    assert (found.of, found.rank) == (of, 3)


@pytest.mark.parametrize(
    "line",
    [logs.OOM_2025, logs.OOM_2022, "exitcode: 1", "killed the zombie worker", "return code = -15", "epoch 137",
     "NCCL WARN Cuda failure 1 'invalid argument'", "lr: 1e-9 -9", "oom_score_adj is 0"],
)  # fmt: skip
def test_what_is_none(line: str) -> None:
    assert not read_lines([line], "log").lost


def story_of(*lines: str) -> MemoryStory:
    facts = read_lines(lines, "x.log")
    problem, config, _ = configured(BASE, "x.log:tp=2", facts)
    return explain(facts, problem, config)


def test_a_library_without_room() -> None:
    story = story_of(NCCL, SIGNAL)
    assert story.reasons[0].code == "no_room_outside"
    assert story.first_aid is not None
    assert story.first_aid.values["share"] == pytest.approx(1 - (story.outside + 2 * 2**30) / story.capacity)
    assert not story.elsewhere


def test_the_host_without_memory() -> None:
    story = story_of(SIGNAL, KERNEL)
    assert [one.code for one in story.reasons] == ["host_ran_out"]
    assert texts(story.reasons)[0].endswith("that held or asked for 480 GiB")
    assert story.elsewhere
    assert not story.moves
    assert [one.code for one in story_of(SIGNAL).reasons] == ["ended_by_signal"]


def test_the_allocator_s_own_message_comes_first() -> None:
    story = story_of(logs.OOM_2025, SIGNAL)
    assert {one.code for one in story.reasons}.isdisjoint({"ended_by_signal", "host_ran_out"})
