"""How is Muon written in Megatron-LM's arguments, read from them, and where does it not run?

Source: NVIDIA/Megatron-LM@d98e8a6 megatron/training/arguments.py validate_args (A), core/optimizer/__init__.py (O),
core/optimizer/layer_wise_optimizer.py (L). Left out: other optimizers of the emerging_optimizers package.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from planner.dialect import option
from planner.errors import InputError, UnsupportedError
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.given import Arguments, Option
from planner.spec.config import OFFLOAD_OPTIMIZER, Mask
from planner.spec.job import NEWTON_SCHULZ_STEPS, Optimizer
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.rule import Columns, Problem, Rule

MUON: Final = ("muon", "dist_muon")
TP_MODE: Final = "duplicated"
_REDUCES_ALL: Final = "0.16.1"  # its layer-wise optimizer keeps and all-reduces all gradients


def muon_options(launch: Launch, version: str) -> list[Option]:
    """The optimizer's own; --use-distributed-optimizer deals matrices to ranks. Raises `UnsupportedError`."""
    if version == _REDUCES_ALL and launch.config.zero:
        must = "gradients of matrices assigned to ranks must be reduce-scattered, as they are from 0.18 on"
        raise UnsupportedError(must, version, "choose --framework-version 0.18.2")
    return [
        ("--optimizer", MUON[0]),
        ("--muon-tp-mode", TP_MODE),
        ("--muon-num-ns-steps", str(NEWTON_SCHULZ_STEPS)),
    ]


def accept_muon(a: Arguments) -> None:
    """Refuse optimizers that planner does not know, what (A) and (O) refuse of Muon, and what planner costs otherwise.
    Raises `InputError`."""
    name = a.word("--optimizer", "adam")
    if name not in ("adam", "sgd", *MUON) and "$" not in name:
        must = "--optimizer must be one that planner models: adam, sgd, muon or dist_muon"
        raise InputError(must, name, "change --optimizer")
    if name not in MUON:
        return
    if a.has("--fp16"):  # O
        raise InputError("Muon must not be used with --fp16", "--fp16", "write --bf16")
    for other in ("--use-torch-fsdp2", "--use-megatron-fsdp"):  # A
        if a.has(other):
            raise InputError(f"Muon must not be used with {other}", name, "use --use-distributed-optimizer")
    shards = a.positive("--num-distributed-optimizer-instances", 1)
    if shards > 1:  # L
        must = "--num-distributed-optimizer-instances must be 1 with Muon"
        raise InputError(must, str(shards), "leave it out")
    steps = a.positive("--muon-num-ns-steps", NEWTON_SCHULZ_STEPS)
    if steps != NEWTON_SCHULZ_STEPS:
        must = f"--muon-num-ns-steps must be {NEWTON_SCHULZ_STEPS}: planner costs no other number"
        raise InputError(must, str(steps), "leave it out")
    mode = a.word("--muon-tp-mode", TP_MODE)
    if mode != TP_MODE and a.positive("--tensor-model-parallel-size", 1) > 1:
        must = f"--muon-tp-mode must be {TP_MODE}, as main has it by default: planner costs no other"
        raise InputError(must, mode, f"write --muon-tp-mode {TP_MODE}")
    for other in ("--muon-no-split-qkv", "--muon-use-syrk", "--no-use-layer-wise-param-layout"):
        if a.has(other):
            raise InputError("Muon must be one that planner costs", other, "leave it out")


def has_expert_biases(model: ModelSpec) -> bool:
    return any(layer.moe and layer.moe.expert_bias for layer in model.blocks)


def _runs(columns: Columns, problem: Problem) -> Mask:
    """Whole replicas, or matrices dealt to all of them, states on the device."""
    alike = (
        (columns["hsdp"] == 0) | (columns["hsdp"] >= columns["dp"] * columns["cp"]) | (columns["zero"] == 0)
    )
    runs = (columns["zero"] <= 1) & alike & ((columns["offload"] & OFFLOAD_OPTIMIZER) == 0)
    runs &= (columns["zero"] == 0) | (not has_expert_biases(problem.model))
    here = problem.stack.engine.deals_matrices and problem.job.precision is not Precision.FP16
    return np.asarray((runs & here) | (problem.job.optimizer is not Optimizer.MUON))


MUON_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "muon-states", ("zero", "hsdp", "dp", "cp", "offload"), _runs,
        "Muon runs with zero=0, or with zero=1 over all replicas and no biases of experts, without fp16, Megatron-FSDP "
        "and an optimizer in CPU memory",
        f"set zero=1 and leave hsdp and offload out, or plan with {option('optimizer', 'adamw')}",
        "Megatron-LM d98e8a6 training/arguments.py validate_args, core/optimizer/__init__.py "
        "_get_megatron_emerging_optimizer, layer_wise_optimizer.py", told=("zero", "hsdp", "offload"),
    ),
)  # fmt: skip
