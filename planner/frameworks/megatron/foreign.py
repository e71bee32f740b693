"""Which scripts look like Megatron-LM's GPT but train something else, or ask for what is not costed?

What changes the model is refused, what changes time or memory alone is said. Source: megatron/training/arguments.py and
the pretrain_*.py of main 2026-08; Megatron-DeepSpeed's megatron/arguments.py. Left out: arguments of no consequence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Final

from planner.errors import InputError
from planner.frameworks.megatron.hybrid import PATTERNS
from planner.frameworks.options import not_costed

_TRAINS: Final = re.compile(r"(?:^|/)(?:(?:pre|post)?train|finetune|sft)\w*\.py$")
_PROGRAM: Final = re.compile(r"(?:^|/)pretrain_(bert|t5|ict|retro|vlm|mamba|hybrid|vision_\w+)\.py$")
# programs that take its arguments and train nothing: its tools/, examples/inference, examples/export, post_training
_NO_TRAINING: Final = re.compile(
    r"(?:^|/)(?:tasks/main|(?:generate|analyze|evaluate|create_|convert|quantize)\w*|\w*(?:text_generation|inference)\w*|"
    r"preprocess_data|export|prune|mmlu)\.py$"
)
_OWN: Final = frozenset(("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py", "train_rl.py"))
# arguments of Megatron-DeepSpeed that Megatron-LM never had
_DEEPSPEED: Final = (
    "--deepspeed", "--deepspeed_config", "--zero-stage", "--deepspeed-activation-checkpointing",
    "--no-pipeline-parallel", "--ds-sequence-parallel-size",
)  # fmt: skip
# argument -> the model that it makes of a GPT
_MODELS: Final = {
    "--encoder-num-layers": "an encoder", "--decoder-num-layers": "an encoder and a decoder",
    "--hybrid-attention-ratio": "a hybrid without --hybrid-layer-pattern",
    "--hybrid-mlp-ratio": "a hybrid without --hybrid-layer-pattern",
    "--enable-mhc-connections": "hyper-connections", "--language-model-type": "an encoder beside it",
    "--vision-model-type": "an encoder beside it", "--model-provider": "a model put together by its own program",
}  # fmt: skip


def require_gpt(words: Iterable[str], names: Collection[str]) -> None:
    """Raise `InputError` for another program's script, `words` of its commands and `names` of its arguments."""
    must = "the program must be Megatron-LM's GPT, or its hybrids with --hybrid-layer-pattern: planner reads no other"
    hybrid, words = any(name in names for name in PATTERNS), tuple(_with_modules(words))
    trains = any(_TRAINS.search(word) for word in words)  # others beside it prepare its data
    for word in words:
        if (found := _PROGRAM.search(word)) and not (hybrid and found[1] in ("mamba", "hybrid")):
            raise InputError(
                must, found[0].strip("/"), "describe the model by a config.json, if it is a decoder"
            )
        if (found := _NO_TRAINING.search(word)) and not trains:
            raise InputError(
                must, f"{found[0].strip('/')}, which trains nothing", "give the script that trains"
            )
    foreign = [name for name in _DEEPSPEED if name in names]
    if foreign:
        raise InputError(
            "the program must be Megatron-LM: these are arguments of Megatron-DeepSpeed, whose scripts planner does "
            "not read",
            ", ".join(foreign),
            "name the degrees to planner estimate with a DeepSpeed stack, or leave them out",
        )
    for name, what in _MODELS.items():
        if name in names:
            raise InputError(
                must, f"{name}: {what}", "describe the model by a config.json, if planner knows it"
            )


def _with_modules(words: Iterable[str]) -> Iterator[str]:
    """The words, and modules that python or torchrun run as the files they are."""
    for before, word in pairwise(("", *words)):
        yield f"{word.replace('.', '/')}.py" if before == "-m" else word


def program_of_ones_own(words: Iterable[str]) -> str | None:
    """A program that the script runs in place of Megatron-LM's, whose options may be more; None where it runs one of
    Megatron-LM's, or names none."""
    programs = [word.split("/")[-1] for word in words if word.endswith(".py")]
    return programs[-1] if programs and not _OWN.intersection(programs) else None


def notes_on(names: Collection[str], sourced: Iterable[str], given: Collection[str]) -> list[str]:
    """What of the arguments `names` is not costed, and which files that a script takes in were not `given`."""
    said = [f"{name}: {what}" for name, what in not_costed("megatron").items() if name in names]
    plain = {file.split("/")[-1] for file in given}
    wanted = dict.fromkeys(path.split("/")[-1].strip("\"'") for path in sourced)
    missing = [file for file in wanted if file.endswith((".sh", ".bash")) and file not in plain]
    if missing:
        said.append(f"not given, so that nothing they set counts: {', '.join(missing)}")
    return said
