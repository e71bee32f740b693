"""How did a published row shard what its data-parallel ranks keep: as which ZeRO stage, in groups of how many ranks?

Texts are searched for words, so that a remark beside them does no harm; what is more than a name is said to be read so.
Left out: what a stage is under each stack (`sharded_stacks.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from benchmarks.published.cells import Row, affirmed, same_words, spaced, stated
from benchmarks.published.sharded_stacks import owns_tensors
from planner.errors import UnsupportedError
from planner.spec.stack import Stack

_FULL: Final = 3
_NUMBER: Final = re.compile(r"\bzero ?(?:dp )?(?:optimization )?(?:stage )?([0-3])\b")
_BARE_NUMBER: Final = re.compile(r"\b(?:stage ?)?([0-3])(?: 0)?$")  # "3.0" too; of the column alone
# words that name a stage in any text, the first found: torch's, Megatron's and Megatron-FSDP's
_STAGES: Final = (
    (r"shard grad op|optim grads(?! params)", 2),
    (r"full(?:y)? ?shard|\bfsdp ?[12]?\b|torch fsdp ?2|optim grads params", _FULL),
    (r"dist(?:ributed)? ?optim|optimizer states?\b|\boptim\b", 1),
)
_REPLICATED: Final = r"no shard|\bddp\b"
_UNSHARDED: Final = r"\b(?:no|without) (?:the )?dist\w* ?optim|dist\w* ?optim\w* (?:false|off|no)\b"
_NONE: Final = ("none", "no", "false", "off", "replicated")
# software that shards parameters unless told otherwise, where its stack can do less, too
_FULL_BY_DEFAULT: Final = r"maxtext|levanter"
# of `fully_shard`, whose stage 2 is its stage 3 with weights that are gathered once a step
_STAYS_GATHERED: Final = r"\breshard after forward (?:never|false|off|no)\b|\b(?:no|without|not) reshard"
_HYBRID: Final = r"\bhsdp|\bhybrid ?shard|^hybrid"
_PAIR: Final = re.compile(r"\bhsdp (\d+) ?x ?(\d+)\b")  # replicas x ranks of a shard
_NODES: Final = re.compile(r"\b(?:hsdp|shard\w*)(?: [a-z]+)? (\d+) nodes?\b")
_RANKS: Final = re.compile(r"\b(?:hsdp|shard(?:ing|ed|s)?(?: degree| group| size| over| of){0,3}) (\d+)\b")
_COPIES: Final = re.compile(
    r"\breplicat\w*(?: degree| group| size| over| of){0,2} (\d+)\b|\bdistributed optimizer instances (\d+)\b"
)
# groups of ranks in which optimizer states are sharded, beside the stage: "zero1=8", "zero1 group size 8", "hybrid
# ZeRO", "optimizer states sharded within 8 GPUs" or "within a node"
_UNITS: Final = r"(?:(\d+)[- ]?(?:gpus?|gcds?|ranks?|devices?|(nodes?))\b|(node)\b)"
_GROUPS: Final = (
    re.compile(
        r"\bzero[-_ ]?1[_ ]?(?: *(?:parallel|shard\w*|groups?|size|degree|over|within|in|of|[=:(]))+ *"
        r"(?:(\d+)\b[- ]?(nodes?\b)?|(node)\b)"
    ),
    re.compile(
        r"\b(?:zero[-_ ]?1|hybrid[-_ ]?zero|optimi[sz]er(?: states?)?|shard(?:ed|s|ing)?|partitioned)(?: [a-z]+){0,3} "
        r"(?:within|inside|over|across|among|in groups of) (?:an? |each |every |one |groups of )?" + _UNITS
    ),
    re.compile(r"\bhybrid[-_ ]?zero(?:[-_ ]?1)?\W{0,3}(?:(\d+)\b( nodes?)?|())"),
)
_NAMES: Final = ("none", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "hsdp")


@dataclass(frozen=True)
class Ranks:
    """Over what a row can shard: data-parallel and context-parallel ranks, tensor-parallel ones beside each, and the
    devices of a scale-up domain and of a node."""

    dp: int
    cp: int
    tp: int
    domain: int
    node: int

    @property
    def replicas(self) -> int:
        return self.dp * self.cp


def sharding_in(cells: Row, stack: Stack, ranks: Ranks, assumed: list[str]) -> tuple[int, int]:
    """ZeRO stage and ranks that share one shard (0: all)."""
    text = cells["dp_sharding"]
    zero, hybrid = _column(text, assumed) if stated(text) else _elsewhere(cells, stack, assumed)
    if ranks.replicas == 1:
        return 0, 0
    if zero == _FULL and re.search(_STAYS_GATHERED, spaced(f"{text}; {cells['extras']}")):
        assumed.append("weights that stay gathered after the forward pass: ZeRO stage 2")
        zero = 2
    if not hybrid:
        return zero, _narrower(f"{text}; {cells['extras']}", zero, cells, stack, ranks, assumed)
    if owns_tensors(cells["framework"]) and stage_in(text) is None:
        zero = 1
    return zero, _group(f"{text}; {cells['extras']}", ranks, assumed)


def stage_in(text: str) -> int | None:
    """The ZeRO stage that words of a text name; None where none does."""
    if re.search(_UNSHARDED, spaced(text)):
        return 0
    words = spaced(affirmed(text))
    if number := _NUMBER.search(words):
        return int(number[1])
    return next((stage for pattern, stage in _STAGES if re.search(pattern, words)), None)


def _column(text: str, assumed: list[str]) -> tuple[int, bool]:
    words = spaced(text)
    hybrid = re.search(_HYBRID, words) is not None
    stage = stage_in(text)
    if stage is None and hybrid:
        stage = _FULL
    if stage is None and (words.split(" ")[0] in _NONE or re.search(_REPLICATED, words)):
        stage = 0
    if stage is None and (number := _BARE_NUMBER.fullmatch(words)):
        stage = int(number[1])
    if stage is None:
        raise UnsupportedError("dp_sharding must be known", repr(text), "one of " + ", ".join(_NAMES))
    if not any(same_words(text, name) for name in _NAMES):
        assumed.append(f"dp_sharding {text!r}: {'hybrid, ' * hybrid}ZeRO stage {stage}")
    return stage, hybrid


def _elsewhere(cells: Row, stack: Stack, assumed: list[str]) -> tuple[int, bool]:
    """What framework and extras say where the column does not; else what the stack does."""
    framework, extras = cells["framework"], cells["extras"]
    hybrid = re.search(_HYBRID, spaced(affirmed(f"{framework} {extras}"))) is not None
    named = next((stage for text in (extras, framework) if (stage := stage_in(text)) is not None), None)
    if named is None and hybrid:
        named = _FULL
    if named is None and re.search(_REPLICATED, spaced(framework)):
        named = 0
    if named is None and re.search(_FULL_BY_DEFAULT, framework.lower()):
        named = _FULL
    if named is not None:
        assumed.append(
            f"dp_sharding not stated: {'hybrid, ' * hybrid}ZeRO stage {named} of its framework or extras"
        )
        return named, hybrid
    zero = int(next(z for z in (1, 3, 2, 0) if z in stack.limits.zero))
    assumed.append(f"dp_sharding not stated: ZeRO stage {zero}")
    return zero, False


def _narrower(text: str, zero: int, cells: Row, stack: Stack, ranks: Ranks, assumed: list[str]) -> int:
    """Ranks of the groups in which a text says that optimizer states are sharded; 0 where they are all."""
    words = affirmed(text)
    found = next((match for pattern in _GROUPS if (match := pattern.search(words))), None)
    if not zero or (found is None and not _COPIES.search(spaced(words))):
        return 0
    if found is None:
        told = _stated_group(spaced(words), ranks) or 0
    else:
        count, nodes = int(found[1] or 0), bool(found[2] or found[3])
        told = max(1, (count or 1) * ranks.node // ranks.tp) if nodes or not count else count
    if told <= 1 or told >= ranks.replicas or ranks.replicas % told:
        return 0
    if zero not in stack.limits.hybrid_sharding and not owns_tensors(cells["framework"]):
        assumed.append(f"not modelled: shards of {told} ranks, which {stack.name} has not; over all")
        return 0
    assumed.append(f"one shard per {told} ranks, as stated")
    return told


def _group(text: str, ranks: Ranks, assumed: list[str]) -> int:
    """Ranks that share one shard: as stated, where that divides all; else those of a scale-up domain."""
    told = _stated_group(spaced(text), ranks)
    if told is not None and 0 < told <= ranks.replicas and ranks.replicas % told == 0:
        assumed.append(f"hsdp: one shard per {told} ranks")
        return told
    if told is not None:
        assumed.append(f"hsdp: shards of {told} ranks do not divide {ranks.replicas}")
    most = min(max(1, ranks.domain // ranks.tp), ranks.replicas)
    shard = max(size for size in range(1, most + 1) if ranks.replicas % size == 0)
    assumed.append(f"hsdp: one shard per NVLink domain, {shard} ranks")
    return shard


def _stated_group(words: str, ranks: Ranks) -> int | None:
    if pair := _PAIR.search(words):
        copies, size = int(pair[1]), int(pair[2])
    elif nodes := _NODES.search(words):
        return max(1, int(nodes[1]) * ranks.node // ranks.tp)
    else:
        shard, copied = _RANKS.search(words), _COPIES.search(words)
        copies = int(copied[1] or copied[2]) if copied else 0
        size = int(shard[1]) if shard else 0
    if not size:
        return ranks.replicas // copies if copies and ranks.replicas % copies == 0 else None
    # torchtitan's degree of sharding leaves out the context-parallel ranks, over which it shards too
    return size * ranks.cp if copies and copies * size * ranks.cp == ranks.replicas else size
