"""Are files that trackers and Trainers write read by what stands in them, and are others refused by name?"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.calibrate.logs.lines import LogFacts, read_lines, read_log
from planner.errors import FileInputError

STEPS = range(10, 110, 10)


def read(tmp_path: Path, text: str) -> LogFacts:
    path = tmp_path / "x"
    path.write_text(text)
    return read_log(path)


def seconds_of(facts: LogFacts) -> list[float | None]:
    return [None if step.seconds is None else round(step.seconds, 6) for step in facts.steps]


def state(rows: list[dict[str, object]]) -> str:
    return json.dumps({"best_metric": None, "epoch": 1.0, "global_step": 100, "log_history": rows}, indent=2)


END = {"epoch": 1.0, "step": 1000, "total_flos": 1e18, "train_loss": 1.2, "train_runtime": 4310.0,
       "train_samples_per_second": 1.856, "train_steps_per_second": 0.232}  # fmt: skip


def test_the_end_of_a_trainer_is_an_average(tmp_path: Path) -> None:
    losses: list[dict[str, object]] = [
        {"epoch": 0.1, "loss": 2.0, "learning_rate": 1e-5, "step": n} for n in STEPS
    ]
    for text in (state([*losses, {"eval_loss": 1.0, "eval_runtime": 24.0, "step": 100}, END]), state([END])):
        facts = read(tmp_path, text)
        # its steps in its time, as 0.232 of them a second are less exact
        assert [(step.framework, step.step, step.seconds) for step in facts.steps] == [
            ("transformers", None, 4.31)
        ]
    results = {name: value for name, value in END.items() if name != "step"}
    for text in (json.dumps(results, indent=4), json.dumps({"eval_loss": 1.0, **results})):
        assert seconds_of(read(tmp_path, text)) == [round(1 / 0.232, 6)]


def test_a_trainer_that_states_its_time_at_each_logging(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"loss": 2.0, "num_input_tokens_seen": 100 * n, "train_runtime": 30 + 4.31 * n, "train_tokens_per_second": 20.0,
         "step": n} for n in STEPS
    ]  # fmt: skip
    facts = read(tmp_path, state([*rows, END]))
    assert seconds_of(facts) == [4.31] * 9
    assert [one.code for one in facts.findings] == ["times_by_clock"]


def test_lines_of_json(tmp_path: Path) -> None:
    def lines(row: Callable[[int], dict[str, object]]) -> LogFacts:
        return read(tmp_path, "".join(json.dumps(row(n)) + "\n" for n in STEPS))

    own = lines(lambda n: {"step": n, "loss": 1.0, "train/step_time_s": 4.31, "eval/step_time_s": 1.0})
    assert [(step.step, step.seconds) for step in own.steps] == [(n, 4.31) for n in STEPS]
    milli = lines(lambda n: {"iteration": n, "step_time_ms": 4310.0})
    assert seconds_of(milli) == [4.31] * 10
    tune = lines(lambda n: {"step": n, "loss": 1.0, "lr": 1e-5, "tokens_per_second_per_gpu": 6480.5})
    assert {(step.framework, step.tokens_per_device) for step in tune.steps} == {("torchtune", 6480.5)}
    model = lines(lambda n: {"step": n, "epoch": 0, "mem": 60.0, "tps": 51840.0, "tps_per_gpu": 12960.0})
    assert {(step.framework, step.tokens) for step in model.steps} == {("nemo-automodel", 51840.0)}
    assert len(model.memory) == 10


def llama_factory(n: int, each: float, loss: bool = True) -> str:
    past = int(7 + each * n)
    row = (
        {"current_steps": n, "total_steps": 1000, "loss": 1.0}
        if loss
        else {"current_steps": n, "eval_loss": 1.0}
    )
    time = f"{past // 3600}:{past % 3600 // 60:02d}:{past % 60:02d}"
    return json.dumps({**row, "lr": 1e-5, "elapsed_time": time, "remaining_time": "1:00:00"})


@pytest.mark.parametrize("each", [0.37, 4.0, 61.0])
def test_a_clock_of_whole_seconds(tmp_path: Path, each: float) -> None:
    rows = [
        line
        for n in range(5, 505, 5)
        for line in (llama_factory(n, each), llama_factory(n, each, loss=False))
    ]
    facts = read(tmp_path, "\n".join(rows))
    assert facts.framework == "llamafactory"
    assert sorted(step.seconds or 0.0 for step in facts.steps)[len(facts.steps) // 2] == pytest.approx(
        each, rel=0.04
    )


def test_tables_of_trackers(tmp_path: Path) -> None:
    board = "Wall time,Step,Value\n" + "".join(f"{1.7e9 + 4.31 * n:.4f},{n},2.5\n" for n in STEPS)
    assert seconds_of(read(tmp_path, board)) == pytest.approx([4.31] * 9)
    chart = '"Step","good-run - train/step_time","good-run - train/step_time__MIN","good-run - train/step_time__MAX"\n'
    chart += "".join(f'"{n}","4.31","4.31","4.31"\n' for n in STEPS)
    assert [(step.step, step.seconds) for step in read(tmp_path, chart).steps] == [(n, 4.31) for n in STEPS]
    titan = ",_step,_timestamp,throughput(tps),tflops,time_metrics/end_to_end(s),validation_metrics/throughput(tps)\n"
    titan += "".join(f"{n},{n},{1.7e9 + n},6480.0,388.1,4.31,900\n" for n in STEPS)
    first = read(tmp_path, titan).steps[0]
    assert (first.seconds, first.tokens_per_device, first.flops) == (4.31, 6480.0, 388.1)
    # rows of a tracker are not steps of the trainer
    trainer = "_step,_runtime,train/loss,train/global_step\n" + "".join(
        f"{i},{43.1 * i},1.0,{10 * i}\n" for i in range(1, 10)
    )
    assert seconds_of(read(tmp_path, trainer)) == pytest.approx([4.31] * 8)


def test_mlflow_s_table(tmp_path: Path) -> None:
    head = "run_id,key,value,step,timestamp\n"
    rates = head + "".join(
        f"a1,{k},{v},{n},{1700000000000 + n}\n" for n in STEPS for k, v in (("loss", 1), ("step_time", 4.31))
    )
    assert seconds_of(read(tmp_path, rates)) == [4.31] * 10
    clock = head + "".join(f"a1,loss,1.0,{n},{1700000000000 + 4310 * n}\n" for n in STEPS)
    assert seconds_of(read(tmp_path, clock)) == pytest.approx([4.31] * 9)
    with pytest.raises(FileInputError, match="one run"):
        read(tmp_path, clock + f"b2,loss,1.0,10,{1700000000000}\n")
    with pytest.raises(FileInputError, match="one run"):
        read(
            tmp_path,
            '"Step","a - train/step_time","b - train/step_time"\n"1","4.31","5.0"\n"2","4.31","5.0"\n',
        )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_packed_and_encoded(tmp_path: Path, encoding: str) -> None:
    text = "Wall time,Step,Value\r\n" + "".join(f"{1.7e9 + 4.31 * n},{n},2.5\r\n" for n in STEPS)
    (tmp_path / "x").write_bytes(gzip.compress(text.encode(encoding)))
    assert len(read_log(tmp_path / "x").steps) == 9


def test_a_container_s_runtime_wraps_lines(tmp_path: Path) -> None:
    lines = [f"iter {n}: loss 3.2345, time 4310.00ms, mfu 39.24%\n" for n in STEPS]
    facts = read(
        tmp_path,
        "".join(json.dumps({"log": line, "stream": "stdout", "time": "2026"}) + "\n" for line in lines),
    )
    assert seconds_of(facts) == [4.31] * 10


def test_text_that_begins_like_an_export_is_text(tmp_path: Path) -> None:
    lines = "".join(f"iter {n}: loss 3.2345, time 4310.00ms, mfu 39.24%\n" for n in STEPS)
    for start in (
        '{\n  "batch": 8\n}\n',
        '{"event": "start"}\n',
        "step, loss, time\n",
        "Step,Value\n",
        "[]\n",
        "{" * 99 + "\n",
    ):
        assert seconds_of(read(tmp_path, start + lines)) == [4.31] * 10, start


@pytest.mark.parametrize("seed", range(200))
def test_broken_exports_say_nothing_or_what_they_hold(seed: int) -> None:
    rng = random.Random(seed)
    table = "Wall time,Step,Value\n" + "".join(f"{1.7e9 + 4.31 * n},{n},2.5\n" for n in STEPS)
    rows = "".join(json.dumps({"step": n, "step_time": 4.31}) + "\n" for n in STEPS)
    text = list(rng.choice([table, rows, state([END])]))
    for _ in range(rng.randint(1, 40)):
        text[rng.randrange(len(text))] = rng.choice('{}[]",\n\0\x1b 9e-.naN')
    for step in read_lines("".join(text).splitlines(keepends=True), "log").steps:
        assert step.seconds is None or step.seconds > 0


OTHERS = {
    "PyTorch profiler": '{\n "schemaVersion": 1,\n "deviceProperties": [{"id": 0}],\n "traceEvents": [\n'
    '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12.5, "dur": 88.0}]}',
    "script of Slurm": "#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun train.py --batch 8\n",
    "nvidia-smi": "+----+\n| NVIDIA-SMI 570.00  Driver Version: 570.00 |\n| 0 N/A 40C P0 99W |\n",
    "list of packages": "Package    Version\n---------- -------\ntorch      2.9.0\ntransformers 5.0.0\n",
    "list of packages ": "torch==2.9.0\ntransformers==5.0.0\nnumpy==2.0.0\n",
    "nccl-tests": "#    size   count  type  redop  root  time  algbw\n 8388608 2097152 float sum -1 90 93\n",
    "Nsight Systems": " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n Time (%)  Name\n 41.0 gemm\n",
    "config.json": '{\n "architectures": ["AForCausalLM"],\n "model_type": "a",\n "num_hidden_layers": 32\n}\n',
    "configuration of DeepSpeed": '{"train_batch_size": 64, "zero_optimization": {"stage": 3}}\n',
    "inference": "INFO Engine 000: Avg prompt throughput: 9.7 tokens/s, Avg generation throughput: "
    "9.8 tokens/s, Running: 3 reqs, Waiting: 0 reqs\n",
    "traceback alone": 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nImportError: none\n',
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_training_log_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FileInputError, match=kind.strip()) as caught:
        read(tmp_path, OTHERS[kind])
    assert caught.value.hint


@pytest.mark.parametrize("kind", OTHERS)
def test_a_log_that_begins_with_it_is_read(tmp_path: Path, kind: str) -> None:
    lines = "".join(f"iter {n}: loss 3.2345, time 4310.00ms, mfu 39.24%\n" for n in STEPS)
    assert seconds_of(read(tmp_path, OTHERS[kind] + "\n" + lines)) == [4.31] * 10
