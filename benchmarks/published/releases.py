"""When was the software of a published row released, or, where the row does not say, before when cannot it have been?

What a row trains, and how, is no older than its release: no run of Qwen3 is of 2022. Left out: which stack that makes
(`stack_of.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from benchmarks.published.cells import Row, count_in
from benchmarks.published.degrees import Degrees
from benchmarks.published.offloads import OPTIMIZER
from benchmarks.published.words import Word
from planner.spec.machine.accelerator import Architecture
from planner.spec.model import ModelSpec

LATEST: Final = 10**6
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CORE: Final = r"(?:megatron-core|mcore|\bcore)[ _-]?[rv]?"
# releases whose number is not a date: first matching pattern gives yyyymm
_RELEASES: Final = (
    (_CORE + r"0\.(?:[0-8])\b", 202408),
    (_CORE + r"0\.(?:9|10|11)\b", 202502),
    (_CORE + r"0\.1[23]\b", 202506),
    (_CORE + r"0\.14\b", 202510),
    (_CORE + r"0\.(?:1[5-9]|[2-9]\d)\b", 202604),
    # from memory but for v2.0 of January and v2.5, v2.6 of August 2021
    (r"megatron(?:-lm)?[ _-]v?2\.[0-2]\b", 202103),
    (r"megatron(?:-lm)?[ _-]v?2\.[3-6]\b", 202112),
    (r"megatron(?:-lm)?[ _-]v?3\.0\b", 202212),
    (r"nemo 1\.|nemo 1\.x", 202411),
    (r"nemo 2\.", 202504),
    (r"\bdev\b|\bmain\b", LATEST),
    (r"\bte 2\.(?:[0-4])\b", 202506),
    (r"\bte 2\.", 202603),
    (r"megatron-bridge|\bbridge\b", LATEST),
)
# Undated software is of the time of its machine: of when most published runs on it were made.
TIME_OF_MACHINE: Final = {
    Architecture.VOLTA: 202006,
    Architecture.TURING: 202210,
    Architecture.AMPERE: 202306,
    Architecture.ADA: 202412,
    Architecture.HOPPER: 202412,
    Architecture.CDNA2: 202401,
    Architecture.BLACKWELL: LATEST,
}
# Families by the paper that brought them (arXiv, whose numbers begin with year and month) or their month (yymm); the
# first pattern that is found in a model's key holds.
_FAMILIES: Final = (
    (r"llama[-_ ]?4", "2504"),
    (r"llama[-_. ]?3|nemotron[-_ ]?(?:super|ultra|nano)", "2404"),
    (r"code[-_ ]?llama|llama[-_ ]?2", "2307.09288"),
    (r"mixtral", "2401.04088"),
    (r"mistral", "2310.06825"),
    (r"qwen[-_ ]?3", "2505.09388"),
    (r"qwen[-_ ]?2[._]?5", "2412.15115"),
    (r"qwen[-_ ]?(?:2|1[._]?5)", "2402"),
    (r"qwen", "2309.16609"),
    (r"deepseek[-_ ]?v?4", "2604"),
    (r"deepseek[-_ ]?v?3", "2412.19437"),
    (r"deepseek[-_ ]?v?2", "2405.04434"),
    (r"deepseek", "2401.02954"),
    (r"kimi|\bk2\b", "2507.20534"),
    (r"moonlight", "2502.16982"),
    (r"gemma[-_ ]?[34]", "2503.19786"),
    (r"gemma", "2403.08295"),
    (r"nemotron[-_ ]?(?:h|3)", "2504.03624"),
    (r"nemotron", "2402.16819"),
    (r"olmoe", "2409.02060"),
    (r"olmo", "2402.00838"),
    (r"gpt[-_ ]?oss", "2508.10925"),
    (r"grok", "2403"),
    (r"dbrx", "2403"),
    (r"phi[-_ ]?[34]", "2404.14219"),
    (r"internlm[-_ ]?[23]", "2403.17297"),
    (r"apertus", "2509.14233"),
    (r"glm[-_ ]?[45]", "2508.06471"),
    (r"minimax", "2501.08313"),
    (r"command[-_ ]?r", "2403"),
    (r"starcoder[-_ ]?2", "2402.19173"),
    (r"jamba|zamba|mamba", "2312.00752"),
)
# Schedules by their papers: zero bubble, controllable memory (V-shaped), DualPipe.
_SCHEDULES: Final = (
    (r"^v[-_ ]?(?:half|min|zb)|^zb[-_ ]?v", "2405.15362"),
    (r"^zb|zero[-_ ]?bubble", "2401.10241"),
    (r"dual[-_ ]?pipe", "2412.19437"),
)
# Optimizers: Muon of large models by its paper; moments below 32 bits as DeepSeek-V3 kept them.
_OPTIMIZERS: Final = (
    (r"muon", "2502.16982"),
    (r"adam.*(?:bf16|precision[-_ ]aware)", "2412.19437"),
)
# What texts name, by the stack of Megatron whose releases have it: see `since` of catalog/stack_options.py.
_THINGS: Final = (
    (
        Word(r"overlap[-_ ](?:grad|param)|tp[-_ ]comm\w*[-_ ]overlap|context[-_ ]parallel"),
        "2401",
        "its overlaps",
    ),
    (Word(r"megatron[-_ ]fsdp|deep-?ep|a2a[-_ ]overlap|overlap[-_ ]moe"), "2502", "its exchange of experts"),
    (Word(r"hybrid-?ep"), "2511", "HybridEP"),
    (OPTIMIZER, "2504", "an optimizer in CPU memory"),
    (Word(r"(?<!optimizer )(?<!optimizer[_-])cuda[ _-]?graph"), "2403", "CUDA graphs"),
)
# Megatron-LM's own softmax kernels take 16384 keys at most (megatron/model/fused_softmax.py, is_kernel_available).
_SOFTMAX_KEYS: Final = 16384
_LARGE_VOCABULARY: Final = 100_000
_GROUPED: Final = 202404  # Llama 3, the first with grouped queries and a large vocabulary
_LATENT: Final = 202405  # DeepSeek-V2
_INDEXED: Final = 202509  # DeepSeek-V3.2-Exp
_FLASH: Final = 202401  # of the stacks of Megatron, the first that has FlashAttention anyway


@dataclass(frozen=True)
class Needs:
    """What a release must run: expert- and context-parallel ranks, and things that came with a month (yyyymm, what)."""

    ep: int = 1
    cp: int = 1
    since: tuple[tuple[int, str], ...] = ()


def release_of(framework: str, source: str) -> int | None:
    """Release date of the software as yyyymm, from the framework's text or the source's name; None if neither says."""
    text = framework.lower()
    if match := re.search(r"\((20[12]\d)\)", text):
        return int(match[1]) * 100 + 6
    if match := re.search(r"(?<!\d)(20[12]\d)[-./ ]?(0[1-9]|1[0-2])(?!\d)", text):  # 2022-12, 202212
        return int(match[1]) * 100 + int(match[2])
    if match := re.search(rf"\b({'|'.join(_MONTHS)})[a-z]*\.? (20[12]\d)\b", text):
        return int(match[2]) * 100 + _MONTHS.index(match[1]) + 1
    for name in (text, source.lower()):
        if match := re.search(r"(?<![\d.])(2[2-9])\.(0[1-9]|1[0-2])(?!\d)", name):  # 24.07, 26.04.01
            return (2000 + int(match[1])) * 100 + int(match[2])
    for pattern, date in _RELEASES:
        if re.search(pattern, text):
            return date
    if match := re.search(r"_(20[12]\d)(0[1-9]|1[0-2])?(?:_|$)", source.lower()):  # torchtitan_202412
        return int(match[1]) * 100 + int(match[2] or 6)
    return None


def needs_of(cells: Row, model: ModelSpec, degrees: Degrees) -> Needs:
    """What the software of a row must run with those degrees."""
    since = (*_since_model(cells, model), *_since_settings(cells, degrees.pp > 1))
    return Needs(degrees.ep if model.is_moe else 1, degrees.cp, since)


def _since_model(cells: Row, model: ModelSpec) -> list[tuple[int, str]]:
    found = _first(_FAMILIES, cells["model"].lower(), f"model {cells['model']}")
    grouped = any(1 < a.kv_heads < a.heads for a in model.attentions)
    if grouped and model.vocab > _LARGE_VOCABULARY:
        found.append((_GROUPED, f"grouped queries with a vocabulary of {model.vocab}"))
    if model.has_latent_attention:
        found.append((_LATENT, "latent attention"))
    if model.indexers:
        found.append((_INDEXED, "sparse attention"))
    return found


def _since_settings(cells: Row, pipelined: bool) -> list[tuple[int, str]]:
    found = (
        _first(_SCHEDULES, cells["schedule"].lower(), f"schedule {cells['schedule']}") if pipelined else []
    )
    found += _first(_OPTIMIZERS, cells["optimizer"].lower(), f"optimizer {cells['optimizer']}")
    found += [(_month(since), what) for word, since, what in _THINGS if word.asked(cells["extras"])]
    length = count_in(cells, "seq_len") or 1
    if length > _SOFTMAX_KEYS:
        found.append((_FLASH, f"sequences of {length}"))
    return found


def _first(table: tuple[tuple[str, str], ...], text: str, what: str) -> list[tuple[int, str]]:
    """The first entry of a table whose pattern is in `text`, with its month."""
    return [(_month(since), what) for pattern, since in table if re.search(pattern, text)][:1]


def _month(text: str) -> int:
    """yyyymm of an arXiv number or a month."""
    return 200000 + int(text[:4])
