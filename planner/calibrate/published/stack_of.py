"""Which stack ran a published row, and which of its switches did the row set?

A framework is free text ("NeMo 2.0/Megatron-Core"), its release stands there or in the name of the source. A
framework that has no stack of its own is answered with its nearest kin and says so. Left out: everything measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import LIGER_KERNELS, TP_NOT_OVERLAPPED
from planner.spec.machine.accelerator import Architecture
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy, Dispatcher, Float8Scales

# Nearest kin doubles the error band: a stack that no row identified was up to 2x apart (research, "stacks").
KIN_BAND_FACTOR: Final = 2.0
# FlashAttention-2 is about twice as fast as the first version (Dao 2023, arXiv 2307.08691, abstract).
FLASH1_SLOWDOWN: Final = 2.0
# Async tensor parallelism made torchtitan's steps 5 to 9 % shorter (Llama 3 8B, tp 8; three pairs of published rows, on
# which it is judged, too); its communication with what recomputation repeats is a little under a third of them.
TP_OVERLAPPED: Final = 0.7
# One layer's exchange runs beside another's compute; what remains is its start and its end (start value).
EP_OVERLAP: Final = 0.8
# What FSDP1 moves beside a reduction in 16 bits [bytes per gradient]; see catalog/stacks/fsdp1-2023.yaml.
FSDP1_COPIES: Final = 8.0
LATEST: Final = 10**6


@dataclass(frozen=True)
class StackChoice:
    """The stack of a row. `kin`: the framework it stands in for, empty if it is the stack itself. `later`: its
    successors, where the release is a guess."""

    name: str
    kin: str = ""
    assumed: tuple[str, ...] = ()
    later: tuple[str, ...] = ()

    def running(self, ep: int) -> StackChoice:
        """The first of these stacks that runs so many expert-parallel ranks; itself where none does."""
        for name in (self.name, *self.later):
            if ep <= load_stack(name).limits.max_ep:
                said = (f"ep={ep}: a release that runs it, {name}",) * (name != self.name)
                return replace(self, name=name, assumed=(*self.assumed, *said))
        return self


@dataclass(frozen=True)
class _Family:
    """Frameworks matching `pattern` run on the stacks in `eras`: (last release as yyyymm, stack), in time order.

    `kin`: the text is a framework of its own, the stacks only its relatives.
    """

    pattern: str
    eras: tuple[tuple[int, str], ...]
    kin: bool = False


_MEGATRON: Final = (
    (202112, "megatron-2021"),
    (202312, "megatron-2022"),
    (202503, "megatron-2024"),
    (202508, "megatron-2025"),
    (LATEST, "megatron-2026"),
)
# Forks and relatives that ran FlashAttention and overlapped gradients from their first release on (InternLM's trainer
# 2023-07, Pai-Megatron-Patch 2023-08, FlagScale 2023-11, Primus 2025).
_MEGATRON_SINCE_FLASH: Final = _MEGATRON[2:]
_TORCHTITAN: Final = ((202506, "torchtitan-2024"), (LATEST, "torchtitan-2026"))
_NANOTRON: Final = ((LATEST, "nanotron-2024"),)
_DEEPSPEED: Final = ((LATEST, "deepspeed-2025"),)
_FSDP1: Final = ((LATEST, "fsdp1-2023"),)

# the first family whose pattern is found in the framework's text; order matters
_FAMILIES: Final = (
    _Family(r"nanotron", _NANOTRON),
    _Family(r"aa-scaling|aleph", ((LATEST, "aa-scaling-2023"),)),
    # ATorch's "DS 3D": transformers' layers in DeepSpeed's pipelines (intelligent-machine-learning/dlrover@a731530
    # atorch/examples/llama2/README.md)
    _Family(r"atorch.*(?:deepspeed|ds.?3d)|deepspeed.*atorch", _DEEPSPEED, kin=True),
    _Family(r"megatron-?deepspeed", ((LATEST, "megatron-deepspeed-2022"),)),
    _Family(r"gpt-neox", ((LATEST, "megatron-deepspeed-2022"),), kin=True),
    _Family(r"llm-foundry|composer|mosaic", ((LATEST, "llm-foundry-2023"),)),
    _Family(r"primus.*torchtitan|torchtitan.*primus", _TORCHTITAN, kin=True),
    _Family(r"torchtitan", _TORCHTITAN),
    _Family(r"maxtext|paxml|\bpax\b|\bjax\b", ((LATEST, "maxtext-2024"),)),
    _Family(r"hai-llm", ((LATEST, "hai-llm-2024"),)),
    _Family(r"primus|internevo|internlm|pai-megatron|flagscale", _MEGATRON_SINCE_FLASH, kin=True),
    _Family(r"megascale|colossal|oneflow|libai|mindspeed", _MEGATRON, kin=True),
    _Family(r"megatron|nemo", _MEGATRON),
    _Family(r"meta internal|4d\b", _TORCHTITAN, kin=True),
    _Family(r"fms-fsdp|fsdp ?1|fsdp v1", _FSDP1),
    _Family(r"deepspeed.*transformers|transformers.*deepspeed", _DEEPSPEED),
    _Family(r"transformers|accelerate|hugging|\btrl\b|axolotl|llama-?factory", _DEEPSPEED, kin=True),
    _Family(r"fsdp ?2|fully_shard|torchtune", _TORCHTITAN, kin=True),
    _Family(r"fairscale|metaseq|fsdp", _FSDP1, kin=True),
    _Family(r"deepspeed|zero", _DEEPSPEED),
)  # fmt: skip

# software that the source's name tells, not the framework's: vTrain's sums of profiles name what its layers were taken
# from; see catalog/stacks/vtrain-2024.yaml
_SOFTWARE: Final = ((r"^vtrain_single", "vtrain-2024"),)

# releases whose number is not a date: first matching pattern gives yyyymm
_RELEASES: Final = (
    (r"megatron-core r?0\.(?:[0-8])\b", 202408),
    (r"megatron-core r?0\.(?:9|10|11)\b", 202502),
    (r"megatron-core r?0\.1[23]\b", 202506),
    (r"megatron-core r?0\.14\b", 202510),
    (r"megatron-core r?0\.(?:1[5-9]|[2-9]\d)\b", 202604),
    (r"nemo 1\.|nemo 1\.x", 202411),
    (r"nemo 2\.", 202504),
    (r"\bdev\b|\bmain\b", LATEST),
    (r"\bte 2\.(?:[0-4])\b", 202506),
    (r"\bte 2\.", 202603),
    (r"megatron-bridge|\bbridge\b", LATEST),
)
# Transformer Engine, without which a Hopper runs no 8-bit product, and FlashAttention came into Megatron-LM in December
# 2022 (its 3499542 and d693034): from then on a Megatron on Hopper is no longer the one of 2022.
_TRANSFORMER_ENGINE: Final = 202301
_SINCE_ENGINE: Final = 202401
# An undated Megatron is of the time of its machine.
_TIME_OF_MACHINE: Final = {
    Architecture.VOLTA: 202006,
    Architecture.AMPERE: 202306,
    Architecture.HOPPER: 202412,
    Architecture.BLACKWELL: LATEST,
}


def release_of(framework: str, source: str) -> int | None:
    """Release date of the software as yyyymm, from the framework's text or the source's name; None if neither says."""
    text = framework.lower()
    if match := re.search(r"\((20[12]\d)\)", text):
        return int(match[1]) * 100 + 6
    for name in (text, source.lower()):
        if match := re.search(r"(?<![\d.])(2[2-9])\.(0[1-9]|1[0-2])(?!\d)", name):  # 24.07, 26.04.01
            return (2000 + int(match[1])) * 100 + int(match[2])
    for pattern, date in _RELEASES:
        if re.search(pattern, text):
            return date
    if match := re.search(r"_(20[12]\d)(0[1-9]|1[0-2])?(?:_|$)", source.lower()):  # torchtitan_202412
        return int(match[1]) * 100 + int(match[2] or 6)
    return None


def stack_of(framework: str, source: str, architecture: Architecture, default: str) -> StackChoice:
    """The stack that ran a row; `default` where the framework is unknown or not stated."""
    text = framework.strip().lower()
    for pattern, name in _SOFTWARE:
        if re.search(pattern, source.lower()):
            return StackChoice(name)
    if not text:
        return StackChoice(default, "an unnamed framework", (f"framework not stated: {default}",))
    for family in _FAMILIES:
        if not re.search(family.pattern, text):
            continue
        date = release_of(framework, source)
        assumed: list[str] = []
        later: tuple[str, ...] = ()
        if date is None and len(family.eras) > 1:
            date = _TIME_OF_MACHINE.get(architecture, LATEST)
            assumed.append(f"release not stated: of the time of {architecture} devices")
            later = tuple(stack for last, stack in family.eras if last > date)[1:]
        if (
            family.eras is _MEGATRON
            and architecture is Architecture.HOPPER
            and (date or 0) >= _TRANSFORMER_ENGINE
        ):
            date = max(date or 0, _SINCE_ENGINE)
        name = next(stack for last, stack in family.eras if (date or LATEST) <= last)
        kin = framework.strip() if family.kin else ""
        if kin:
            assumed.append(
                f"no stack for {kin!r}: closest measured stack {name}, error band x{KIN_BAND_FACTOR:g}"
            )
        return StackChoice(name, kin, tuple(assumed), later)
    said = f"unknown framework {framework.strip()!r}: {default}, error band x{KIN_BAND_FACTOR:g}"
    return StackChoice(default, framework.strip(), (said,))


Update = dict[str, dict[str, Any]]  # section of a stack -> fields to replace


def _aleph_kernels(text: str, stack: Stack) -> tuple[Update, str] | None:
    match = re.search(r"kernel=([\w.]+)(.*)", text)
    if match is None:
        return None
    name, rest = match[1].lower(), match[2].lower()
    kernels: dict[str, Any] = {"fused_norm": "rms" in rest}
    update: Update = {"kernels": kernels}
    if "torch" in name or "eager" in name:
        kernels["attention"] = AttentionKernel.EAGER
    elif "fused" in name:
        kernels["attention"] = AttentionKernel.FUSED_SOFTMAX
    else:
        kernels["attention"] = AttentionKernel.FLASH
        if re.search(r"v?1\.|attention1\b", name):
            update["compute"] = {"attention": min(6.0, stack.compute.attention * FLASH1_SLOWDOWN)}
    return update, f"attention kernel {kernels['attention']}, norms {'fused' if 'rms' in rest else 'eager'}"


def _no_flash(text: str, stack: Stack) -> tuple[Update, str] | None:
    eager = re.search(r"attn_impl[:=] ?torch|attn_implementation[:=] ?eager|eager attention", text)
    if not eager and not re.search(r"no flash|without flash|flash[ -]?attn=false", text):
        return None
    kernel = AttentionKernel.EAGER if eager or "torch" in text else AttentionKernel.FUSED_SOFTMAX
    return {"kernels": {"attention": kernel}}, f"attention kernel {kernel}"


def _no_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    if re.search(r"no comm(unication)? overlap", text):
        update = {"dp_overlap": 0.0, "tp_exposed": 1.0, "p2p_exposed": 1.0, "ep_exposed": 1.0}
        return {"communication": update}, "no communication overlap"
    if re.search(r"no dp overlap|no gradient bucketing", text):
        return {"communication": {"dp_overlap": 0.0}}, "no data-parallel overlap"
    return None


def _flash(text: str, stack: Stack) -> tuple[Update, str] | None:
    """FlashAttention where the stack's releases still had a softmax of their own."""
    before = stack.kernels.attention in (AttentionKernel.EAGER, AttentionKernel.FUSED_SOFTMAX)
    if not before or "kernel=" in text or not re.search(r"(?<!no )(?<!without )flash[ _-]?att", text):
        return None
    return {"kernels": {"attention": AttentionKernel.FLASH}}, "flash attention"


def _flash_2(text: str, stack: Stack) -> tuple[Update, str] | None:
    """FlashAttention-2 where the stack has the device's fastest: on Hopper and Blackwell another kernel."""
    named = re.search(r"flash[ _-]?att(?:entio)?n[ _-]?2|\bfa2\b", text)
    if stack.kernels.attention is not AttentionKernel.FLASH or "kernel=" in text or not named:
        return None
    return {"kernels": {"attention": AttentionKernel.FLASH_2}}, "FlashAttention-2"


def _tp_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    if re.search(r"no tp[ _-]comm|tp[ _-]comm[ _-]overlap[:=] ?false", text):
        said = "tensor-parallel communication not overlapped"
        update = {section: dict(fields) for section, fields in TP_NOT_OVERLAPPED.items()}
        return (update, said) if stack.communication.tp_overlapped else None
    if stack.communication.tp_overlapped or not re.search(r"async tp|tp[ _-]comm[ _-]overlap", text):
        return None
    exposed = TP_OVERLAPPED * stack.communication.tp_exposed
    return {"communication": {"tp_exposed": exposed}}, "tensor-parallel communication overlapped"


def _ep_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    if not re.search(r"moe_a2a_overlap=true|ep overlap on|ep overlap,|overlap-moe-expert", text):
        return None
    return {"communication": {"ep_overlap": EP_OVERLAP}}, "expert all-to-all overlapped"


def _dispatcher(text: str, stack: Stack) -> tuple[Update, str] | None:
    if not re.search(r"hybrid-?ep|deep-?ep", text):
        return None
    hybrid = re.search(r"hybrid-?ep", text)
    dispatcher = Dispatcher.HYBRIDEP if hybrid else Dispatcher.DEEPEP
    return {"communication": {"dispatcher": dispatcher}}, f"tokens dispatched once per node, by {dispatcher}"


def _eager_torch(text: str, stack: Stack) -> tuple[Update, str] | None:
    """torchtitan without torch.compile runs norms and activations as single operations."""
    if not stack.name.startswith("torchtitan") or "compile" in text or "fsdp" not in text:
        return None
    return {"kernels": {"fused_norm": False, "fused_activation": False}}, "no torch.compile"


def _rowwise(text: str, stack: Stack) -> tuple[Update, str] | None:
    """torchao's recipe_name rowwise, with which torchtitan gathers inputs in 16 bits (820504e docs/float8.md)."""
    if not re.search(r"row-?wise", text):
        return None
    rows: Update = {
        "kernels": {"float8_scales": Float8Scales.ROW},
        "communication": {"tp_gathers_float8": False},
    }
    return rows, "fp8 scales per row"


def _low_precision_reduction(text: str, stack: Stack) -> tuple[Update, str] | None:
    """Composer's mixed precision PURE reduces gradients in 16 bits, DEFAULT in 32, which takes casts (catalog/stacks,
    fsdp1-2023 and llm-foundry-2023)."""
    if "mixed_precision=pure" not in text:
        return None
    copied = min(stack.communication.reduction_copies, FSDP1_COPIES)
    update = {"gradient_bytes": 2.0, "reduction_copies": copied}
    return {"communication": update}, "gradients reduced in 16 bits"


def _fused_experts(text: str, stack: Stack) -> tuple[Update, str] | None:
    if "cutedsl_fused_grouped_mlp=true" not in text:
        return None
    return {"kernels": {"fused_experts": True}}, "experts' activation fused with their GEMMs in fp8_mx"


def _update_graph(text: str, stack: Stack) -> tuple[Update, str] | None:
    if not re.search(r"optimizer[ _-]cuda[ _-]graph(?![:=] ?false)", text):
        return None
    return {"host": {"update_captured": True}}, "the update replayed as a CUDA graph"


def _fused_loss(text: str, stack: Stack) -> tuple[Update, str] | None:
    if "liger" in text:
        return {"kernels": dict(LIGER_KERNELS)}, "Liger's norms, rotation, activation and loss"
    if re.search(r"whole logits|unfused (?:cross|loss)", text):
        return {"kernels": {"cross_entropy": CrossEntropy.VOCAB_PARALLEL}}, "the loss on whole logits"
    if not re.search(r"cross[- ]entropy fusion|(?<!un)fused cross", text):
        return None
    return {"kernels": {"cross_entropy": CrossEntropy.FUSED}}, "fused cross-entropy"


_SWITCHES: Final[tuple[Callable[[str, Stack], tuple[Update, str] | None], ...]] = (
    _aleph_kernels, _no_flash, _flash, _flash_2, _no_overlap, _tp_overlap, _ep_overlap, _dispatcher, _eager_torch,
    _rowwise, _low_precision_reduction, _fused_experts, _fused_loss, _update_graph,
)  # fmt: skip
# Models whose recipes in Megatron-Bridge keep the optimizer's moments in bf16 (use_precision_aware_optimizer with
# exp_avg_dtype bf16 in src/megatron/bridge/recipes, August 2026).
BF16_MOMENTS: Final = re.compile(
    r"moonlight|deepseek[-_]?v[34]|glm[-_]?5|olmoe|minimax[-_]?m3", re.IGNORECASE
)
LAYERS_OFFLOADED: Final = re.compile(r"cpu_offloading_num_layers=(\d{1,4})", re.IGNORECASE)
OFFLOAD: Final = re.compile(r"cpu_offload=true|activation offload", re.IGNORECASE)
NO_PREDICTION: Final = "multi-token prediction of the row is not modelled"
_NOT_MODELLED: Final = (
    (OFFLOAD.pattern, "CPU offload is not modelled: what does not fit without it is borderline"),
    (r"sliding window", "sliding-window attention of the row is not modelled"),
    (r"parallel transformer block", "the parallel block of the row is not modelled"),
    (r"fp8_dot_product_attention=true", "attention in fp8 is timed as bf16"),
    (r"\bmtp\b", NO_PREDICTION),
)


def apply_switches(stack: Stack, text: str) -> tuple[Stack, tuple[str, ...]]:
    """The stack with the switches that free text sets, and what was read from it or could not be modelled."""
    lower, said = text.lower(), []
    changed: dict[str, Any] = {}
    for switch in _SWITCHES:
        found = switch(lower, stack)
        if found is None:
            continue
        update, what = found
        for section, fields in update.items():
            before = changed.get(section, getattr(stack, section))
            changed[section] = before.model_copy(update=fields)
        said.append(what)
    said += [what for pattern, what in _NOT_MODELLED if re.search(pattern, lower)]
    return (stack.model_copy(update=changed) if changed else stack), tuple(said)
