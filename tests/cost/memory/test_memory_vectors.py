"""Real FSDP2 and tensor-parallel steps (torch 2.13, fake tensors): does the model reach the same memory?

Every case of memory_vectors.csv is a planner configuration on a stack that says what the options mean.
further_peaks.csv has more, measured as those are with torch 2.13: steps on fake tensors (FakeTensorMode), bytes that
FSDPMemTracker (MemTracker without sharding) counts on rank 0, the peak of the second step. `finding` names the moment
that such a case is about.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchmarks.published_data import published, published_cases
from planner.catalog.load_stacks import load_stack
from planner.cost.model import CostModel
from planner.cost.operations.embedding_and_loss import head_activations
from planner.spec.attention import Attention, AttentionKind
from planner.spec.config import ConfigTable, ParallelConfig, Recompute
from planner.spec.job import Optimizer
from planner.spec.layer import Activation, Layer, Mlp
from planner.spec.model import ModelSpec
from planner.spec.stack import Limits, Stack
from planner.spec.stack.engines import FullyShard
from planner.spec.stack.layer_code import Library, Part
from planner.spec.stack.losses import Eager
from planner.spec.stack.memory import Overhead
from planner.spec.stack.time import Kernels
from tests.problems import costs, layer_activations, problem

csv.field_size_limit(sys.maxsize)

ONE_UNIT = "--wrap-root-only"  # which is not modelled (FullyShard); dry runs reach these peaks
PUBLISHED = published_cases("oracles/memory_vectors.csv")
CASES = [case for case in PUBLISHED if ONE_UNIT not in case["case"]]
with (Path(__file__).parent / "further_peaks.csv").open(newline="") as further:
    MEASURED = list(csv.DictReader(further))
FURTHER_CASES = [case for case in MEASURED if ONE_UNIT not in case["case"]]
each_case = pytest.mark.parametrize("case", CASES, ids=[c["case"].replace("--", "") for c in CASES])


def options(text: str) -> dict[str, str]:
    """--layers 4 --sp as {"layers": "4", "sp": "1"}, with the defaults of the cases."""
    found = {"dp": "1", "tp": "1", "zero": "0", "ac": "none", "precision": "bf16", "norm": "fused"}
    found |= {"swiglu": "eager", "loss": "fp32", "foreach": "0"}
    words = text.split()
    for i, word in enumerate(words):
        if word.startswith("--"):
            last = i + 1 == len(words) or words[i + 1].startswith("--")
            found[word[2:]] = "1" if last else words[i + 1]
    return found


class _Gathers(Library):
    """Layers of PyTorch, whose linear layers keep what they have gathered."""

    keeps_gathered: ClassVar[bool] = True


def stack_of(o: dict[str, str]) -> Stack:
    """All in bf16, states too; mixed: fp32 shards or masters, bf16 compute, fp32 reduction of shards."""
    mixed, zero = o["precision"] == "mixed", int(o["zero"])
    sharded = zero >= 2
    engine = FullyShard(
        gradient=4.0 if mixed and sharded else 2.0,
        master=4.0 if mixed else (2.0 if zero == 1 else 0.0),
        # replicated bf16 gradients are cast to the format of the master weights
        optimizer_transient=(4.0 if mixed else 2.0 * zero) * (not sharded)
        + (4.0 if mixed else 2.0) * int(o["foreach"]),
        step_tensors=3.0 * (1 - int(o["foreach"])),
    )
    fused = {Part.NORM: o["norm"] != "hf", Part.ACTIVATION: o["swiglu"] == "fused"}
    kernels = Kernels(
        code=_Gathers(fused=tuple(part for part, one in fused.items() if one)),
        loss=Eager(logit_bytes=4.0 if o["loss"] == "fp32" else 2.0),
    )
    none = Overhead(context="0 GiB", workspace="0 GiB", fragmentation=0.0)
    limits = Limits(zero=(0, 1, 2, 3))
    return load_stack("torchtitan-2026").model_copy(
        update={"engine": engine, "kernels": kernels, "overhead": none, "limits": limits}
    )


def subject(case: dict[str, str]) -> tuple[CostModel, ParallelConfig]:
    o = options(case["case"])
    n = {
        name: int(o[name])
        for name in ("layers", "hidden", "ffn", "heads", "kv", "vocab", "seq", "mbs", "tp", "dp")
    }
    if o["zero"] == "0":  # replicas that nothing sums: without DDP and its buckets
        n["dp"] = 1
    head_dim = int(o.get("head-dim", n["hidden"] // n["heads"]))
    attends = Attention(AttentionKind.GQA, n["heads"], n["kv"], head_dim, head_dim)
    layer = Layer(attends, Mlp(n["ffn"], True, False, Activation.SILU), None)
    model = ModelSpec(
        "vectors", "llama", n["hidden"], n["vocab"], (layer,) * n["layers"], False, max_position=n["seq"]
    )
    full = o["ac"] == "full"
    config = ParallelConfig(
        tp=n["tp"], dp=n["dp"], micro_batch=n["mbs"], sp=int("sp" in o), zero=int(o["zero"]),
        recompute=Recompute.FULL if full else Recompute.NONE, recompute_layers=n["layers"] if full else 0,
    )  # fmt: skip
    devices = n["tp"] * n["dp"]
    machine = f"1x{devices} h100" if devices <= 8 else f"{devices // 8}x8 h100 400G-ib"
    # all in bf16: both moments too
    optimizer = Optimizer.ADAMW if o["precision"] == "mixed" else Optimizer.ADAMW_BF16
    return costs(
        problem(
            model,
            machine,
            seq_len=n["seq"],
            global_batch=n["mbs"] * n["dp"],
            optimizer=optimizer,
            stack=stack_of(o),
        )
    ), config


@each_case
def test_activations_after_the_forward_pass(case: dict[str, str]) -> None:
    model, config = subject(case)
    keys, spec = ConfigTable.of([config]), model.problem.model
    kernels, recipe = model.problem.stack.kernels, model.layers.recipe
    x = model.layers.shape(keys, spec.layers[0])
    parts = layer_activations(spec.layers[0], spec, x, kernels, recipe)
    layer = parts["input"] if config.recompute else sum(parts.values())
    head = head_activations(np.array([float(spec.vocab)]), spec, x, kernels, recipe)
    kept = float((layer * spec.num_layers + head.inputs + head.logits)[0])
    measured = float(case["act_after_model"])
    if config.sp:
        assert kept == pytest.approx(
            measured, rel=3e-4
        )  # the norm of these cases keeps statistics of all tokens
    else:
        assert kept == pytest.approx(measured, abs=24 * spec.num_layers)  # state of the random generator


@each_case
def test_peak_of_the_second_step(case: dict[str, str]) -> None:
    model, config = subject(case)
    peak = float(model.evaluate(ConfigTable.of([config])).peak_memory[0])
    assert peak == pytest.approx(float(case["peak_total"]), rel=0.01)


@pytest.mark.parametrize("case", FURTHER_CASES, ids=[c["case"].replace("--", "") for c in FURTHER_CASES])
def test_peaks_by_the_moment_that_binds(case: dict[str, str]) -> None:
    model, config = subject(case)
    peak = float(model.evaluate(ConfigTable.of([config])).peak_memory[0])
    assert peak == pytest.approx(float(case["peak"]), rel=0.01)


@each_case
def test_what_is_left_after_the_step(case: dict[str, str]) -> None:
    model, config = subject(case)
    detail = model.evaluate(ConfigTable.of([config]), keep_terms=True).detail
    assert detail is not None
    left = sum(float(v[0, 0]) for v in detail.memory["after_init"].values())
    assert left <= float(case["end_total"]) * 1.01


def test_all_cases_are_there() -> None:
    assert published("oracles").is_dir()
    assert (len(CASES), len(FURTHER_CASES)) == (27, 32)
    assert (len(PUBLISHED), len(MEASURED)) == (30, 42), "but for models in one unit"
