"""Are logs of every framework and several releases read, and is anything else refused in words?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.calibrate.logs.lines import read_lines, read_log
from planner.calibrate.logs.memory_messages import out_of_memory
from planner.calibrate.logs.text import LONGEST_LINE
from planner.errors import FileInputError
from planner.units import GIB
from tests.calibrate import logs

STEPS = [
    (logs.MEGATRON_2023, "megatron", {"seconds": 4.31, "batch": 512.0}),
    (logs.MEGATRON_2026, "megatron", {"seconds": 4.31, "flops": 412.5, "batch": 512.0}),
    (logs.MEGATRON_ENERGY, "megatron", {"seconds": 4.31, "flops": 412.5, "batch": 512.0}),
    (logs.BIGSCIENCE, "megatron", {"seconds": 4.31, "flops": 149.02}),
    (logs.BRIDGE, "megatron-bridge", {"seconds": 4.31, "flops": 611.3}),
    (logs.NEMO_BAR, "nemo", {"seconds": 4.31}),
    (logs.NEMO2, "nemo", {"seconds": 4.31}),
    (logs.TITAN_2024, "torchtitan", {"tokens_per_device": 6480.0, "mfu": 0.4132}),
    (logs.TITAN_2026, "torchtitan", {"tokens_per_device": 6480.0, "flops": 388.12}),
    (logs.DEEPSPEED_2022, "deepspeed", {"samples": 61.35}),
    (logs.DEEPSPEED_2024, "deepspeed", {"samples": 61.35}),
    (logs.NANOTRON_2024, "nanotron", {"seconds": 4.31, "tokens_per_device": 6480.0}),
    (logs.NANOTRON_2025, "nanotron", {"seconds": 4.31, "tokens_per_device": 6480.0}),
    (logs.TRAINER, "transformers", {"seconds": 4.31}),
    (logs.TRAINER_END, "transformers", {"seconds": 1 / 61.35}),
    (logs.COMPOSER, "composer", {"seconds": 1 / 61.35}),
    (logs.MAXTEXT, "maxtext", {"seconds": 4.31, "tokens_per_device": 6480.0, "flops": 388.12}),
    (logs.MAXTEXT_RAMPUP, "maxtext", {"seconds": 4.31}),
]


def filled(line: str, step: int = 10) -> str:
    return line.format(step=step, ms=4310.0, s=4.31, k=4.31, tps=6480, rate=61.35)


@pytest.mark.parametrize(("line", "framework", "fields"), STEPS)
def test_a_step_of_every_format(line: str, framework: str, fields: dict[str, float]) -> None:
    facts = read_lines([filled(line)], "log")
    assert facts.framework == framework
    for name, value in fields.items():
        assert getattr(facts.steps[0], name) == pytest.approx(value), name
    if "{step" in line:
        assert facts.steps[0].step == 10


@pytest.mark.parametrize(
    "prefix", ["[rank7]: ", "[default3]:[rank3]: ", "12: ", "gpu-node-3: ", "\x1b[1m[rank0]:\x1b[0m "]
)
def test_prefixes_of_launchers(prefix: str) -> None:
    facts = read_lines([prefix + filled(logs.MEGATRON_2026)], "log")
    assert facts.steps[0].seconds == pytest.approx(4.31)


@pytest.mark.parametrize("line", [line for line, _, _ in STEPS])
@pytest.mark.parametrize("figure", ["nan", "inf", "-1.0", "-inf", "0", "1e400"])
def test_figures_that_are_none_give_no_step(line: str, figure: str) -> None:
    text = re.sub(r"\{(?:ms|s|k|tps|rate)[^}]*\}", figure, line).format(step=10)
    for step in read_lines([text], "log").steps:
        for value in (step.seconds, step.tokens_per_device, step.samples):
            assert value is None or 0 < value < 1e18
    assert not [step for step in read_lines([text], "log").steps if step.seconds and step.seconds > 1e9]


def test_steps_of_validation_are_no_training_steps() -> None:
    trained, validated = (
        logs.TITAN_2026.format(step=10, tps=6480),
        logs.TITAN_VALIDATE.format(step=10, tps=900),
    )
    steps = read_lines([trained, validated], "log").steps
    assert [step.tokens_per_device for step in steps] == [6480.0]


def test_interleaved_ranks_count_a_step_once() -> None:
    lines = [
        f"[rank{r}]: " + logs.MEGATRON_2026.format(step=s, ms=1000 + 10 * r)
        for s in range(5)
        for r in (0, 7, 3)
    ]
    facts = read_lines(lines, "log")
    assert len(facts.steps) == 5
    assert facts.ranks == (0, 3, 7)
    assert facts.steps[2].seconds == pytest.approx(1.03)


def test_wrapped_lines() -> None:
    first, second = filled(logs.MEGATRON_2023).split(" elapsed")
    facts = read_lines([first, " elapsed" + second, filled(logs.MEGATRON_2023, 11)], "log")
    assert [step.step for step in facts.steps] == [10, 11]


def test_rewritten_progress_bars() -> None:
    facts = read_lines(["\r".join(filled(logs.TRAINER, step) for step in range(1, 6))], "log")
    assert [step.step for step in facts.steps] == [1, 2, 3, 4, 5]


def test_memory_lines() -> None:
    lines = [
        logs.MEGATRON_MEMORY.format(rank=5),
        logs.NANOTRON_MEMORY,
        logs.SEE_MEMORY,
        filled(logs.TITAN_2026),
    ]
    memory = read_lines(lines, "log").memory
    assert [(m.rank, m.allocated, m.reserved) for m in memory] == [
        (5, 60 * GIB, 65 * GIB),
        (None, 40 * GIB, 45 * GIB),
        (None, 19.52 * GIB, 26 * GIB),
        (0, None, 42.03 * GIB),
    ]


def test_messages_without_memory_left() -> None:
    new = read_lines([logs.OOM_2025], "log").ooms[0]
    assert (new.rank, new.tried, new.total, new.allocated) == (3, 2.5 * GIB, 79.1 * GIB, 65 * GIB)
    assert (new.reserved, new.private) == (74.5 * GIB, 128 * 2**20)
    old = out_of_memory(logs.OOM_2022)
    assert old is not None
    assert old.unallocated == pytest.approx(0.92 * GIB)
    assert read_lines([logs.OOM_ROCM], "log").ooms[0].total == 191.98 * GIB
    shared = read_lines([logs.OOM_SHARED], "log").ooms[0]
    assert (shared.others, shared.in_use) == (20 * GIB, 77.59 * GIB)


def test_a_message_over_several_lines() -> None:
    words = logs.OOM_2025.removeprefix("[rank3]: ").split(". ")
    lines = ["[rank3]: " + part + "." for part in words] + ["[rank3]: Traceback (most recent call last):"]
    found = read_lines(lines, "log").ooms
    assert len(found) == 1
    assert found[0].unallocated == 9.5 * GIB


@pytest.mark.parametrize(
    "text", ["", "\n" * 50, "hello\nworld", "{" * 9000, "iteration 1/2 |\n" * 9, "é\udcff"]
)
def test_logs_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.log").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FileInputError, match="known format"):
        read_log(tmp_path / "x.log")


def test_binary_folders_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x00" * 100)
    for path, said in ((tmp_path / "x.bin", "text"), (tmp_path, "folder"), (tmp_path / "none", "exist")):
        with pytest.raises(FileInputError, match=said):
            read_log(path)


@pytest.mark.parametrize("line", [logs.MEGATRON_2026, logs.TITAN_2026, logs.NANOTRON_2025, logs.OOM_2025])
def test_truncated_anywhere(line: str) -> None:
    whole = filled(line) if "{step" in line else line
    for end in range(0, len(whole), 3):
        for step in read_lines([whole[:end]], "log").steps:
            assert step.seconds is None or step.seconds > 0


def test_hostile_lines_are_read(tmp_path: Path) -> None:
    hostile = [
        "iteration " * 20_000, "step: 1 " + " " * 200_000 + "x", "memory: " + "9" * 100_000,
        "Tried to allocate " + "1" * 5000 + " GiB out of memory", "s/it [" * 50_000, "tps: " + "9," * 100_000,
        "elapsed time per iteration (ms): " + "9" * 4000, "1/2 [" + "a" * LONGEST_LINE * 3 + "s/it",
    ]  # fmt: skip
    (tmp_path / "x.log").write_text("\n".join([*hostile, filled(logs.MEGATRON_2026)] * 3))
    facts = read_log(tmp_path / "x.log")  # a pattern that backtracks would take hours
    assert facts.steps[-1].seconds == pytest.approx(4.31) or len(facts.steps) >= 1


def test_a_long_log_is_read(tmp_path: Path) -> None:
    line = filled(logs.MEGATRON_2026)
    noise = "INFO: loading shard 00012 of the data set, checksum ok, 1,234 documents\n" * 20
    (tmp_path / "x.log").write_text((noise + line + "\n") * 5000)
    assert len(read_log(tmp_path / "x.log").steps) == 1


XLA = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
    "memory space {}. Used {} of {}. Exceeded {} capacity by {}."
)


def test_programs_that_xla_did_not_compile() -> None:
    lines = [XLA.format("hbm", "63.80G", "31.25G hbm", "hbm", "32.55G"), "", "Total hbm usage >= 65.05G:"]
    (found,) = read_lines(lines, "log").ooms
    assert found.program == pytest.approx(63.8 * GIB)
    assert found.total == pytest.approx(31.25 * GIB)
    assert found.tried == pytest.approx(32.55 * GIB)
    assert found.allocated is None
    assert out_of_memory(XLA.format("vmem", "32.42M", "16.00M vmem", "vmem", "16.42M")) is None  # of a kernel


@pytest.mark.parametrize("words", ["Out of memory while trying to allocate", "Out of memory allocating"])
def test_jax_on_gpus_says_what_it_tried(words: str) -> None:
    found = out_of_memory(f"XlaRuntimeError: RESOURCE_EXHAUSTED: {words} 17179869184 bytes.")
    assert found is not None
    assert found.tried == 16 * GIB
    assert found.program is None


OOM_CONTAINER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB "
    "of which {free} GiB is free. {processes} Of the allocated memory {allocated} GiB is allocated by PyTorch, and "
    "4.50 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("sizes", "free", "allocated", "own", "others"),
    [
        (
            (77.89,),
            1.21,
            70.12,
            77.89,
            None,
        ),  # more than the device holds, with what PyTorch reserved: it is the run
        ((50.0, 27.0), 2.11, 20.5, 27.0, 50.0),
        ((27.0, 50.0), 2.11, 20.5, 27.0, 50.0),
        ((50.0,), 2.11, 20.5, None, 50.0),  # both go in: it is another's
        ((30.0, 20.0), 2.11, 20.5, None, 50.0),
    ],
)
def test_in_a_container_the_run_is_the_process_that_makes_the_sum_too_large(
    sizes: tuple[float, ...], free: float, allocated: float, own: float | None, others: float | None
) -> None:
    processes = " ".join(
        f"Process {i} has {size:.2f} GiB memory in use." for i, size in enumerate(sizes, 123)
    )
    found = out_of_memory(OOM_CONTAINER.format(free=free, processes=processes, allocated=allocated))
    assert found is not None
    shown = [None if size is None else round(size / GIB, 2) for size in (found.in_use, found.others)]
    assert shown == [own, others]


def test_lines_that_ranks_wrote_over_one_another_are_none() -> None:
    """A figure that holds two points, in any place of any line, is no number and no error."""
    for line in (logs.TITAN_2026, logs.MEGATRON_MEMORY, logs.NANOTRON_MEMORY, logs.SEE_MEMORY, logs.OOM_2025):
        text = filled(line) if "{step" in line else line.format(rank=1)
        for match in re.finditer(r"\d+\.\d+", text):
            garbled = text[: match.end()] + match[0] + text[match.end() :]
            for seen in read_lines([garbled, garbled.replace(match[0], "1.2.3")], "log").memory:
                assert all(
                    value is None or value < 1e14 for value in (seen.allocated, seen.reserved, seen.device)
                )
