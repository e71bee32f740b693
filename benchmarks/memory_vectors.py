"""How far are dry runs from the bytes that PyTorch's own memory tracker counts of real steps on fake tensors?

    python -m benchmarks.memory_vectors VECTORS.csv ... [--write]

Each case's Llama runs twice on planner's recorder. Compared are bytes of live storages, as the tracker counts them,
without what kernels ask for inside and without the allocator's rounding: activations behind the model and behind the
loss, and the peak of the second step. Needs PyTorch.
"""

from __future__ import annotations

import csv
import gc
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.results_file import judging, tell
from benchmarks.vector_llama import (
    Case,
    Llama,
    Masters,
    angles_of,
    case_of,
    shard,
    split_over_tensor_ranks,
)
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.on_cuda import cuda_branches
from planner.dryrun.processes import mesh_of, process_of
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.values import Values

csv.field_size_limit(sys.maxsize)
CAPABILITY: Final = (9, 0)
EXACT: Final = 1e-5  # of a peak: counters of steps, which the tracker takes for the device's
REPLICAS, SPLIT = "replicas", "split"


@dataclass
class Counted:
    """Live bytes of the second step, above those before it where they are of activations."""

    after_model: int
    after_loss: int
    peak: int
    end: int


@dataclass
class _Marks:
    """Numbers of events: the steps' beginnings, and where a step's model and loss are done."""

    begin: list[int] = field(default_factory=list)
    model: list[int] = field(default_factory=list)
    loss: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)


def counted(case: Case) -> Counted:
    """Two steps of a case, and what is counted of the second."""
    recorder, marks = Recorder(Values(0), CAPABILITY), _Marks()
    with ExitStack() as stack:
        stack.enter_context(cuda_branches(CAPABILITY))
        stack.enter_context(process_of(0, case.dp * case.tp, recorder))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder)
        model = _model(case, recorder)
        _steps(case, model, recorder, marks)
        del model
        gc.collect()
    live = live_bytes(recorder.recording, {Holds.WORKSPACE})
    kept = live_bytes(recorder.recording, {Holds.WORKSPACE, Holds.GATHERED})
    held = kept[marks.begin[1] - 1]
    return Counted(
        after_model=int(kept[marks.model[1] - 1] - held),
        after_loss=int(kept[marks.loss[1] - 1] - held),
        peak=int(live[marks.begin[1] : marks.end[1]].max()),
        end=int(live[marks.end[1] - 1]),
    )


def live_bytes(recording: Recording, without: Collection[Holds]) -> Any:
    """By event, what live tensors hold, without those of some kinds [bytes]."""
    what, blocks = recording.trace.what, recording.trace.blocks
    sizes = np.zeros(recording.trace.num_blocks, np.int64)
    made = what >= 0
    sizes[blocks[made]] = what[made]
    sizes[[block for block, kind in recording.kinds.items() if kind in without]] = 0
    signs = np.where(made, 1, np.where(what == Kind.FREE, -1, 0))
    return np.cumsum(signs * sizes[np.where(signs == 0, 0, blocks)])


def _model(case: Case, recorder: Recorder) -> Any:
    """The rank's part of the model."""
    torch.set_default_dtype(torch.float32 if case.mixed and case.zero >= 2 else torch.bfloat16)
    try:
        with recorder.beside():
            model = Llama(case)
            mesh = mesh_of({REPLICAS: case.dp, SPLIT: case.tp})
            if case.tp > 1:
                split_over_tensor_ranks(model, mesh[SPLIT], case)
            if case.zero >= 2:
                shard(model, mesh[REPLICAS], case)
    finally:
        torch.set_default_dtype(torch.float32)
    recorder.hold(list(model.parameters()), Holds.WEIGHTS)
    return model


def _steps(case: Case, model: Any, recorder: Recorder, marks: _Marks) -> None:
    trace = recorder.recording.trace
    parameters = list(model.parameters())
    own = case.zero == 1 or (case.zero == 0 and case.mixed)
    optimizer = (
        Masters(case, parameters, case.dp if case.zero == 1 else 1)
        if own
        else torch.optim.AdamW(parameters, foreach=case.foreach)
    )
    tokens, labels = (torch.randint(0, case.vocab, (case.mbs, case.seq)) for _ in range(2))
    with recorder.beside():
        angles = angles_of(case)
    recorder.hold([tokens, labels, *angles], Holds.INPUT)
    for _ in range(2):
        marks.begin.append(len(trace))
        logits = model(tokens, angles)
        marks.model.append(len(trace))
        if case.loss == "fp32":
            logits = logits.float()  # those in 16 bits are given back before the loss asks for more
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        del logits
        marks.loss.append(len(trace))
        loss.backward()
        del loss
        optimizer.step()
        model.zero_grad(set_to_none=True)
        marks.end.append(len(trace))


@dataclass(frozen=True)
class Compared:
    """A case as run dry and as the tracker counted it [bytes].

    `activations`: behind the model and behind the loss, empty where the tracker's are not known.
    """

    case: str
    activations: tuple[tuple[int, int], ...]
    peak: tuple[int, int]
    seconds: float

    @property
    def error(self) -> float:
        """Of the peak [1]."""
        told, known = self.peak
        return told / known - 1


def compared(row: Mapping[str, str]) -> Compared:
    """A row of a table."""
    began = time.process_time()
    found = counted(case_of(row["case"]))
    pairs = (("act_after_model", found.after_model), ("act_after_loss", found.after_loss))
    return Compared(
        case=row["case"].strip(),
        activations=tuple((told, int(row[name])) for name, told in pairs if row.get(name)),
        peak=(found.peak, int(row.get("peak_total") or row["peak"])),
        seconds=time.process_time() - began,
    )


def section(found: Sequence[Compared]) -> str:
    """Errors, and every case."""
    behind = [pair for one in found for pair in one.activations]
    alike = sum(told == known for told, known in behind)
    worst = max(abs(one.error) for one in found)
    exact = sum(abs(one.error) < EXACT for one in found)
    lines = [
        f"{alike} of {len(behind)} amounts of activations are equal to the byte. Peaks of {len(found)} cases: "
        f"{exact} within {EXACT:.3%}, the worst off by {worst:.3%}.",
        "", "| case | activations behind the model, told less counted [bytes] | behind the loss | peak |",
        "|---|---:|---:|---:|",
    ]  # fmt: skip
    for one in found:
        parts = [f"{told - known:+,}" for told, known in one.activations] or ["", ""]
        lines.append(f"| {one.case.replace('--', '')} | {' | '.join(parts)} | {one.error:+.3%} |")
    seconds = [one.seconds for one in found]
    return "\n".join(
        [*lines, "", f"{np.median(seconds):.1f} CPU s a case in the median, {max(seconds):.1f} at most."]
    )


def main() -> None:
    """Judge the cases of tables."""
    parser = judging("memory_vectors", __doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    given = parser.parse_args()
    found = []
    for table in given.tables:
        with table.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                found.append(compared(row))
                print(f"{found[-1].error:+.3%} {found[-1].case}", file=sys.stderr, flush=True)
    tell(given, "memory-vectors", section(found), found)


if __name__ == "__main__":
    main()
