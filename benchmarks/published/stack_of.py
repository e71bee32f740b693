"""Which stack ran a published row?

A framework is free text ("NeMo 2.0/Megatron-Core"), its release stands there or in the name of the source. A
framework that has no stack of its own is answered with its nearest kin and says so. Left out: everything measured,
when releases were (`releases.py`) and what switches a row sets (`switches.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.published.releases import LATEST, TIME_OF_MACHINE, Needs, release_of
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import NO_SCATTER, SEPARATOR
from planner.spec.machine.accelerator import Architecture
from planner.spec.machine.compiled_devices import COMPILES
from planner.spec.stack.kinds import ContextExchange, Dispatcher

# Nearest kin doubles the error band: a stack that no row identified was up to 2x apart (research, "stacks").
KIN_BAND_FACTOR: Final = 2.0


@dataclass(frozen=True)
class StackChoice:
    """The stack of a row. `kin`: the framework it stands in for, empty if it is the stack itself. `eras`: where the
    release is a guess, its own era and those of its successors. `sharding`: how it shards where a row does not say,
    empty where that is the stack's to say."""

    name: str
    kin: str = ""
    assumed: tuple[str, ...] = ()
    eras: tuple[tuple[int, str], ...] = ()
    sharding: str = ""

    def running(self, needs: Needs) -> StackChoice:
        """The first of these stacks that is not older than the row's things and runs its degrees; the last that is not
        where none runs them."""
        why: dict[str, None] = {}
        for last, name in self.eras:
            runs = load_stack(name).communication
            older = [what for since, what in needs.since if since > last]
            older += [f"ep={needs.ep}"] * (needs.ep > 1 and runs.dispatcher is Dispatcher.NONE)
            older += [f"cp={needs.cp}"] * (needs.cp > 1 and runs.cp_exchange is ContextExchange.NONE)
            if not older:
                said = (f"{', '.join(why)}: a release that runs it, {name}",) * bool(why)
                return replace(self, name=name, assumed=(*self.assumed, *said))
            why |= dict.fromkeys(older)
        return self


@dataclass(frozen=True)
class _Family:
    """Frameworks matching `pattern` run on the stacks in `eras`: (last release as yyyymm, stack), in time order.

    `kin`: the text is a framework of its own, the stacks only its relatives. `sharding`: see `StackChoice`.
    """

    pattern: str
    eras: tuple[tuple[int, str], ...]
    kin: bool = False
    sharding: str = ""


_MEGATRON: Final = (
    # to 8aa4619 of 22 March 2021 its main has no scatter_gather_tensors_in_pipeline, which the merges behind that bring
    (202103, f"megatron-2021{SEPARATOR}{NO_SCATTER}"),
    (202112, "megatron-2021"),
    (202312, "megatron-2022"),
    (202503, "megatron-2024"),
    (202508, "megatron-2025"),
    (LATEST, "megatron-2026"),
)
# Forks and relatives that ran FlashAttention and overlapped gradients from their first release on (Pai-Megatron-Patch
# 2023-08, FlagScale 2023-11, Primus 2025).
_MEGATRON_SINCE_FLASH: Final = _MEGATRON[3:]
_TORCHTITAN: Final = ((202506, "torchtitan-2024"), (LATEST, "torchtitan-2026"))
_NANOTRON: Final = ((LATEST, "nanotron-2024"),)
_DEEPSPEED: Final = ((LATEST, "deepspeed-2025"),)
_FSDP1: Final = ((LATEST, "fsdp1-2023"),)
_MAXTEXT: Final = ((LATEST, "maxtext-2024"),)

# the first family whose pattern is found in the framework's text; order matters
_FAMILIES: Final = (
    # software of TPUs and Trainium that XLA compiles; NeuronX' forks of Megatron and NeMo are none of these
    _Family(
        r"neuron|\bnxdt?\b|axlearn|levanter|\bmarin\b|easydel|\bt5x\b|torch[-_ /]?xla|xla/?spmd",
        _MAXTEXT,
        kin=True,
    ),
    _Family(r"nanotron", _NANOTRON),
    _Family(r"aa-scaling|aleph", ((LATEST, "aa-scaling-2023"),)),
    # ATorch's "DS 3D": transformers' layers in DeepSpeed's pipelines (intelligent-machine-learning/dlrover@a731530
    # atorch/examples/llama2/README.md)
    _Family(r"atorch.*(?:deepspeed|ds.?3d)|deepspeed.*atorch", _DEEPSPEED, kin=True),
    _Family(r"megatron-?deepspeed", ((LATEST, "megatron-deepspeed-2022"),)),
    # forks of Megatron-LM with split backward passes (sail-sg/zero-bubble-pipeline-parallelism, 2023-11)
    _Family(r"zero[ _-]?bubble|sail-sg", _MEGATRON_SINCE_FLASH, kin=True),
    _Family(r"megatron[ -]?fsdp", ((LATEST, "megatron-fsdp-2026"),)),
    _Family(r"gpt-?neox", ((LATEST, "megatron-deepspeed-2022"),), kin=True),
    _Family(r"llm[ _-]?foundry|composer|mosaic", ((LATEST, "llm-foundry-2023"),)),
    _Family(r"primus.*torchtitan|torchtitan.*primus", _TORCHTITAN, kin=True),
    _Family(r"torchtitan", _TORCHTITAN),
    _Family(r"maxtext|paxml|\bpax\b|\bjax\b", _MAXTEXT),
    _Family(r"easylm|\bflax\b|\balpa\b|xla", _MAXTEXT, kin=True),
    _Family(r"hai-llm", ((LATEST, "hai-llm-2024"),)),
    # of 2023 an own trainer like Aleph Alpha's: eager layers around FlashAttention, ZeRO 1 that all-reduces gradients
    _Family(r"internevo|internlm", ((202404, "aa-scaling-2023"), *_MEGATRON_SINCE_FLASH), kin=True),
    _Family(r"primus|pai-megatron|flagscale|fast-?llm|galvatron", _MEGATRON_SINCE_FLASH, kin=True),
    # its Gemini wraps transformers' layers (hpcaitech/ColossalAI issue 4744, benchmark.py)
    _Family(r"colossal.*gemini|gemini.*colossal", _DEEPSPEED, kin=True),
    _Family(r"megascale|colossal|oneflow|libai|mindspeed|axonn|merak|bpipe", _MEGATRON, kin=True),
    _Family(r"megatron|nemo|\bmcore\b", _MEGATRON),
    _Family(r"meta internal|4d\b", _TORCHTITAN, kin=True),
    _Family(r"fms-fsdp|fsdp ?1|fsdp v1", _FSDP1),
    _Family(r"deepspeed.*transformers|transformers.*deepspeed", _DEEPSPEED),
    _Family(r"transformers|accelerate|hugging|\btrl\b|axolotl|llama-?factory", _DEEPSPEED, kin=True),
    _Family(r"fsdp ?2|fully_shard|torchtune|lingua|veomni|vescale", _TORCHTITAN, kin=True),
    _Family(r"fairscale|metaseq|fsdp", _FSDP1, kin=True),
    _Family(r"deepspeed|\bzero\b|\bzero-?[123]\b", _DEEPSPEED),
    _Family(r"bmtrain", _DEEPSPEED, kin=True),
    # CUDA of its own, as fused as Megatron's kernels, with cuDNN's attention and ZeRO 1
    _Family(r"llm\.c\b", _MEGATRON_SINCE_FLASH, kin=True),
    # loops of their own around PyTorch's layers, or as bare: replicas that all-reduce
    _Family(r"\bddp\b|nanogpt|mingpt|lit-?gpt|lightning", _FSDP1, kin=True, sharding="none"),
    _Family(r"olmo|torch", _FSDP1, kin=True),
)  # fmt: skip

# Of software that is not known only that it had FlashAttention, which devices from Ampere on run.
_UNKNOWN: Final = _Family("", (_MEGATRON[1], *_MEGATRON_SINCE_FLASH), kin=True)

# software that the source's name tells, not the framework's: vTrain's sums of profiles name what its layers were taken
# from; see catalog/stacks/vtrain-2024.yaml
_SOFTWARE: Final = ((r"^vtrain_single", "vtrain-2024"),)

# Transformer Engine, without which a Hopper runs no 8-bit product, and FlashAttention came into Megatron-LM in December
# 2022 (its 3499542 and d693034): from then on a Megatron on Hopper is no longer the one of 2022.
_TRANSFORMER_ENGINE: Final = 202301
_SINCE_ENGINE: Final = 202401


def stack_of(framework: str, source: str, architecture: Architecture) -> StackChoice:
    """The stack that ran a row; Megatron's of the time of its device where the framework is unknown or not stated.

    On a device that steps are compiled for a stack that launches kernels of GPUs is none: what is compiled stands in.
    """
    choice = _stack_of(framework, source, architecture)
    if not architecture.is_compiled_for or load_stack(choice.name).framework in COMPILES:
        return choice
    name, given = _MAXTEXT[0][1], framework.strip()
    what = (
        f"no stack of {given!r} is compiled for {architecture} devices" if given else "framework not stated"
    )
    said = f"{what}: closest measured stack {name}, error band x{KIN_BAND_FACTOR:g}"
    return StackChoice(name, given or "an unnamed framework", (said,))


def _stack_of(framework: str, source: str, architecture: Architecture) -> StackChoice:
    """The same whatever the device."""
    for pattern, name in _SOFTWARE:
        if re.search(pattern, source.lower()):
            return StackChoice(name)
    given = framework.strip()
    found = next((family for family in _FAMILIES if re.search(family.pattern, given.lower())), None)
    family = found if found is not None and given else _UNKNOWN
    date, assumed, eras = release_of(framework, source), list[str](), tuple[tuple[int, str], ...]()
    if date is None and len(family.eras) > 1:
        date = TIME_OF_MACHINE.get(architecture, LATEST)
        assumed.append(f"release not stated: of the time of {architecture} devices")
        eras = tuple(era for era in family.eras if date <= era[0])
    modern = architecture is Architecture.HOPPER and (date or 0) >= _TRANSFORMER_ENGINE
    if family.eras is _MEGATRON and modern:
        date = max(date or 0, _SINCE_ENGINE)
    name = next(stack for last, stack in family.eras if (date or LATEST) <= last)
    if not given:
        assumed.append(f"framework not stated: {name}")
    elif found is None:
        assumed.append(f"unknown framework {given!r}: {name}, error band x{KIN_BAND_FACTOR:g}")
    elif family.kin:
        assumed.append(
            f"no stack for {given!r}: closest measured stack {name}, error band x{KIN_BAND_FACTOR:g}"
        )
    kin = (given or "an unnamed framework") if family.kin else ""
    return StackChoice(name, kin, tuple(assumed), eras, family.sharding)
