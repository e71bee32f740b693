"""Is a step read exactly from every format, whatever stands before it, colours it or lies around it?

Lines are made up after the format strings of the sources that `formats.py` names, figures invented.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.calibrate.logs import formats
from planner.calibrate.logs.exports import EXPORTS
from planner.calibrate.logs.formats import LoggedStep
from planner.calibrate.logs.lines import LogFacts, read_lines
from planner.cli.diagnose import EPILOG
from planner.units import GIB

STEPS = range(20, 60)
# name: framework, the lines of a step of number {n}, fields expected
FORMATS: dict[str, tuple[str, str, dict[str, float]]] = {
    "megatron": (
        "megatron",
        " [2026-03-01 10:00:00] iteration {n:8d}/    1000 | consumed samples:     2560 | elapsed time per iteration "
        "(ms): 4310.0 | throughput per GPU (TFLOP/s/GPU): 388.12 | global batch size:   512 | lm loss: 9.81E+00 |",
        {"seconds": 4.31, "flops": 388.12},
    ),
    "torchtitan": (
        "torchtitan",
        "[titan] 2026-02-01 12:00:00,123 - root - INFO - step: {n}  loss:  8.1  memory: 42.03GiB(44.21%)  "
        "tps: 6,480  tflops: 388.12  mfu: 39.24%",
        {"tokens_per_device": 6480.0, "flops": 388.12, "mfu": 0.3924},
    ),
    "verl": (
        "verl",
        "step:{n} - actor/pg_loss:0.012 - perf/mfu/actor:0.3924 - perf/max_memory_allocated_gb:61.5 - "
        "perf/max_memory_reserved_gb:70.25 - timing_s/gen:31.5 - timing_s/update_actor:4.31 - "
        "timing_s/step:52.1 - perf/time_per_step:52.1 - perf/throughput:812.5",
        {"seconds": 4.31, "mfu": 0.3924},
    ),
    "verl-sft": ("verl", "step:{n} - train/loss:0.81 - train/lr(1e-3):0.01 - train/time(s):4.31", {"seconds": 4.31}),
    "ms-swift": (
        "ms-swift",
        "{{'loss': 1.2, 'learning_rate': 1e-05, 'global_step/max_steps': '{n}/400', 'elapsed_time': '{past}', "
        "'remaining_time': '27m 17s', 'memory(GiB)': 61.5, 'train_speed(s/it)': 4.31}}",
        {"seconds": 4.0},
    ),
    "ms-swift-3": (
        "ms-swift",
        "{{'loss': 1.2, 'memory(GiB)': 61.5, 'train_speed(iter/s)': 0.25, 'epoch': 0.2, 'global_step/max_steps': "
        "'{n}/400', 'percentage': '5.00%'}}",
        {"seconds": 4.0},
    ),
    "ms-swift-megatron": (
        "ms-swift",
        "{{'loss': 1.2, 'grad_norm': 0.4, 'iteration': '{n}/400', 'elapsed_time': '{past}', 'memory(GiB)': 61.5, "
        "'train_speed(s/it)': 4.31}}",
        {"seconds": 4.0},
    ),
    "torchtune": (
        "torchtune",
        "Step {n} | loss:1.23 tokens_per_second_per_gpu:6480.0 peak_memory_active:60.5 peak_memory_alloc:60.25 "
        "peak_memory_reserved:66.0 ",
        {"tokens_per_device": 6480.0},
    ),
    "automodel": (
        "nemo-automodel",
        "2026-08-01 10:00:00 | INFO | root | step {n} | epoch 0 | loss 1.2345 | grad_norm 0.4321 | lr 1.00e-05 | mem "
        "61.50 GiB | tps 51840.00(12960.00/gpu) | num_label_tokens 8192",
        {"tokens": 51840.0},
    ),
    "olmo-core": (
        "olmo-core",
        "2026-06-01 10:00:00\thost:0\tolmo_core.train:84\tINFO\t[step={n}/1000,epoch=1,eta=1:02:03]\n"
        "    throughput/device/TPS=6,480\n    throughput/device/TPS (actual avg)=5,210\n"
        "    gpu_memory/GPU reserved mem (GiB)=66.00\n    train/CE loss=2.345",
        {"tokens_per_device": 6480.0},
    ),
    "nanochat": (
        "nanochat",
        "step {n:05d}/01000 (2.00%) | loss: 3.2 | lrm: 1.00 | dt: 4310.00ms | tok/sec: 51,840 | bf16_mfu: 39.24 |"
        " total time: 1.20m | eta: 70.1m",
        {"seconds": 4.31, "tokens": 51840.0, "mfu": 0.3924},
    ),
    "nanogpt": ("nanogpt", "iter {n}: loss 3.2345, time 4310.00ms, mfu 39.24%", {"seconds": 4.31}),
    "llm.c": (
        "llm.c",
        "step {n:4d}/1000 | loss 3.234567 (+0.12z)| norm 0.4321 (-0.31z)| lr 6.00e-04 | 4310.00 ms | 39.2% bf16 MFU | "
        "51840 tok/s",
        {"seconds": 4.31, "mfu": 0.392},
    ),
    "llm.c-py": (
        "llm.c",
        "step {n:4d}/1000 | train loss 3.234567 | norm 0.4321 | lr 6.00e-04 | (4310.00 ms | 51840 tok/s)",
        {"seconds": 4.31},
    ),
    "llm.c-fp32": ("llm.c", "step {n:4d}/1000: train loss 3.234567 (4310.000000 ms, 51840 tok/s)", {"seconds": 4.31}),
    "litgpt": (
        "litgpt",
        "Epoch 1 | iter {n} step 5 | loss train: 1.524, val: n/a | iter time: 4310.00 ms (step) remaining time: 1:02",
        {"seconds": 4.31},
    ),
    "levanter": (
        "levanter",
        "2026-06-01T10:00:00 - 0 - tqdm_loggable - INFO :: Progress on:train {n}.0it/1.00kit rate:4.3s/it "
        "remaining:1:10:14 elapsed:01:26 postfix:loss=3.23",
        {"seconds": 4.3},
    ),
    "paddlenlp": (
        "paddlenlp",
        "[2026-06-01 10:00:00,123] [    INFO] - loss: 2.3, learning_rate: 1e-05, global_step: {n}, "
        "interval_runtime: 40.0, interval_samples_per_second: 3, interval_tokens_per_second_per_device: 6480, "
        "interval_steps_per_second: 0.25, progress_or_epoch: 0.02",
        {"seconds": 4.0},
    ),
    "internevo": (
        "internevo",
        "2026-06-01 10:00:00\tINFO pipeline.py:640 in record_current_batch_training_metrics -- tflops=388.12 step={n} "
        "loss=2.3 tgs (tokens/gpu/second)=6480.0 tgs/last_tgs_1=6481.0 tgs/tgs_all=6001.0 lr=1e-05 ",
        {"tokens_per_device": 6480.0, "flops": 388.12},
    ),
    "deepspeed": (
        "deepspeed",
        "[2026-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
        "RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec=61.35, MemAllocated=6.01GB, MaxMemAllocated=19.52GB",
        {"samples": 61.35},
    ),
    "deepspeed-pipeline": (
        "deepspeed", "steps: {n} loss: 2.3456 iter time (s): 4.310 samples/sec: 14.849", {"seconds": 4.31},
    ),
    "deepspeed-breakdown": (
        "deepspeed",
        "[2026-03-07 15:27:02,646] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 600.00 | "
        "bwd_microstep: 1400.00 | step_microstep: 310.00\n[2026-03-07 15:27:02,647] [INFO] [logging.py:96:log_dist] "
        "[Rank 0] time (ms) | fwd: 1200.00 | bwd: 2800.00 | bwd_inner: 2500.00 | bwd_allreduce: 300.00 | step: 310.00",
        {"seconds": 4.31},
    ),
    "fms-fsdp": (
        "fms-fsdp",
        "step: {n}\nloss: 2.3\nLR: 0.0001\ntokens seen: 1310720\ngradient norm: 0.4\nreserved memory: 70866960384\n"
        "allocated memory: 64424509440\ncurrent step time: 4.31\noverall step time: 5.02\ncurrent token per gpu per "
        "sec: 6480\noverall token per gpu per sec: 5563\noverall token per day: 3845000000",
        {"seconds": 4.31},
    ),
    "nemo-rl": (
        "nemo-rl",
        "========== Step {n}/1000 ==========\n\n"
        "⏱️  Timing:\n  • Total step time: 5.10s\n  • policy_training: 4.31s (84.5%)\n  • data_processing: 0.02s",
        {"seconds": 4.31},
    ),
    "composer": (
        "composer",
        "[batch={n}/4800]:\n\t Train time/batch: {n}\n\t Train throughput/batches_per_sec: 0.2500\n\t Train "
        "loss/train/total: 2.3",
        {"seconds": 4.0},
    ),
    "maxtext": (
        "maxtext",
        "completed step: {n}, seconds: 4.310, TFLOP/s/device: 388.120, Tokens/s/device: 6480.000, total_weights: 6965, "
        "loss: 9.693",
        {"seconds": 4.31, "tokens_per_device": 6480.0, "flops": 388.12},
    ),
    "nanotron": (
        "nanotron",
        "06/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|node]: iteration: {n} / 1000 | consumed_tokens: 12.6M | "
        "time_per_iteration_ms: 4.31K | tokens_per_sec: 415K | tokens_per_sec_per_gpu: 6.48K | lm_loss: 10.3",
        {"seconds": 4.31, "tokens_per_device": 6480.0},
    ),
    "automodel-jsonl-in-text": (
        "nemo-automodel",
        '{{"step": {n}, "epoch": 0, "loss": 1.2, "mem": 61.5, "tps": 51840.0, "tps_per_gpu": 12960.0, "mfu": 39.2}}',
        {"tokens": 51840.0},
    ),
}  # fmt: skip
NOISE = (
    "W0601 10:00:00.123000 140110 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable to 1",
    "node-1:123:456 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "/opt/lib/python3.12/site-packages/torch/utils/checkpoint.py:92: FutureWarning: step time of a lesser kind",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:08<00:00,  2.03s/it]",
    "{'eval_loss': 1.0, 'eval_runtime': 24.0, 'eval_samples_per_second': 3.1, 'eval_steps_per_second': 0.4}",
)
PREFIXES = (
    "[rank0]: ", "[default0]:", "[1,0]<stdout>: ", "0: ", "(TaskRunner pid=1234) ", "[pod/train-0/pytorch] ",
    "2026-06-01T10:00:00.123456789Z ", "node-1: ", "trainer-1  | ",
)  # fmt: skip


def launched(lines: list[str]) -> list[str]:
    return [f"[1,0]<stdout>: {line}" for line in lines]


def coloured(lines: list[str]) -> list[str]:
    return ["\x1b[1m" + re.sub(r"(?=\d)", "\x1b[32m", line, count=3) + "\x1b[0m\r" for line in lines]


def in_noise(lines: list[str]) -> list[str]:
    rng = random.Random(7)
    before = [rng.choice(NOISE) for _ in range(300)]
    return [
        *before,
        *(one for line in lines for one in (line, *rng.choices(NOISE, k=rng.randint(0, 1)))),
        *before,
    ]


VARIANTS: tuple[Callable[[list[str]], list[str]], ...] = (launched, coloured, in_noise)


def past(n: int) -> str:
    """Of a clock that starts 3,507 s before the first step, each step taking 4 s."""
    seconds = 3507 + 4 * n
    return (
        f"{seconds // 3600}h {seconds % 3600 // 60}m {seconds % 60}s"
        if seconds >= 3600
        else f"{seconds // 60}m {seconds % 60}s"
    )


def lines_of(name: str) -> list[str]:
    return [line for n in STEPS for line in FORMATS[name][1].format(n=n, past=past(n)).split("\n")]


def check(name: str, steps: tuple[LoggedStep, ...]) -> None:
    framework, _, fields = FORMATS[name]
    assert {step.framework for step in steps} == {framework}
    numbers = STEPS[1:] if "{past}" in FORMATS[name][1] else STEPS
    assert [step.step for step in steps] == (
        [None] * len(STEPS) if name == "deepspeed-breakdown" else list(numbers)
    )
    for step in steps:
        shown = {
            one: getattr(step, one)
            for one in ("seconds", "tokens_per_device", "tokens", "samples", "flops", "mfu")
        }
        assert {one: value for one, value in shown.items() if value is not None} == pytest.approx(fields)


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_exactly(name: str, change: Callable[[list[str]], list[str]]) -> None:
    check(name, read_lines(change(lines_of(name)), "log").steps)


@pytest.mark.parametrize("seed", range(30))
def test_prefixes_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(list(FORMATS))
    prefix = "".join(rng.sample(PREFIXES, rng.randint(1, 3)))
    check(name, read_lines([prefix + line for line in lines_of(name)], "log").steps)


def test_a_micro_batch_is_marked() -> None:
    assert {step.micro for step in read_lines(lines_of("litgpt"), "log").steps} == {True}


def test_steps_that_are_no_numbers() -> None:
    for number in ("41e9992", "1.2.3", "9" * 400, "1,,,2", "3.0"):
        line = f'{{"current_steps": {number}, "loss": 1.0, "elapsed_time": "0:01:00"}}'
        assert all((step.step or 0) < 10**12 for step in read_lines(["x", line, line], "log").steps)


def test_numbers_that_a_bar_shortens() -> None:
    line = "Progress on:train 1.23kit/5.00kit rate:4.3s/it remaining:1:10:14 elapsed:01:26 postfix:loss=3.23"
    assert read_lines([line], "log").steps[0].step == 1230


MEMORY = {
    "verl": (61.5, 70.25), "ms-swift": (None, 61.5), "torchtune": (60.25, 66.0), "automodel": (61.5, None),
    "automodel-jsonl-in-text": (61.5, None), "olmo-core": (None, 66.0), "fms-fsdp": (60.0, 66.0),
    "torchtitan": (None, 42.03), "deepspeed": (19.52, None),
}  # fmt: skip


def peaks(facts: LogFacts) -> tuple[float | None, float | None]:
    read = [
        [value for line in facts.memory if (value := getattr(line, one))] for one in ("allocated", "reserved")
    ]
    first, second = (max(values) / GIB if values else None for values in read)
    return first, second


@pytest.mark.parametrize("name", MEMORY)
def test_memory_beside_steps(name: str) -> None:
    assert peaks(read_lines(lines_of(name), "log")) == pytest.approx(MEMORY[name])


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': '1.2', 'memory/max_active (GiB)': '60.5', 'memory/max_allocated (GiB)': '60.25', "
        "'memory/device_reserved (GiB)': '66.0', 'tokens/train_per_sec_per_gpu': '6480', 'epoch': '0.2'}",
        "{'loss': 1.2, 'memory/max_mem_active(gib)': 60.5, 'memory/max_mem_allocated(gib)': 60.25, "
        "'memory/device_mem_reserved(gib)': 66.0, 'tokens_per_second_per_gpu': 6480.0, 'epoch': 0.2}",
    ],
)
def test_axolotl_of_two_generations(line: str) -> None:
    facts = read_lines([line] * 3, "log")
    assert peaks(facts) == pytest.approx((60.25, 66.0))
    assert [(step.framework, step.tokens_per_device) for step in facts.steps] == [("axolotl", 6480.0)] * 3


def test_a_trainer_s_block_of_metrics() -> None:
    block = (
        "***** train metrics *****\n  epoch                    =        1.0\n  train_runtime            = 0:07:11.00\n"
        "  train_samples_per_second =       1.86\n  train_steps_per_second   =       0.25"
    )
    steps = read_lines(block.split("\n"), "log").steps
    assert [(step.framework, step.step, step.seconds) for step in steps] == [("transformers", None, 4.0)]
    new = "{'train_runtime': '431', 'train_samples_per_second': '1.86', 'train_steps_per_second': '0.25', 'epoch': '1'}"
    assert read_lines([new], "log").steps[0].seconds == 4.0


@pytest.mark.parametrize(
    ("line", "said"), [("  • generation: 31.50s (60.1%)", True), ("  • Total step time: 5.10s", False)]
)
def test_only_rollouts_make_reinforcement_learning(line: str, said: bool) -> None:
    found = read_lines([*lines_of("nemo-rl"), line], "log").findings
    assert [one.code for one in found] == (["rollouts_left_out"] if said else [])


def test_help_and_docs_list_every_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "own_runs.md").read_text("utf-8")
    for text in (EPILOG, page):
        listed = re.sub(r"[\s`_-]", "", text).lower()
        for name in (*formats.FORMATS, *EXPORTS):
            assert re.sub(r"[\s_-]", "", name).lower() in listed, name


def test_every_framework_has_a_line_here() -> None:
    elsewhere = {"axolotl", "llamafactory", "megatron-bridge", "nemo", "transformers"}
    assert {framework for framework, _, _ in FORMATS.values()} | elsewhere == set(formats.FORMATS)
