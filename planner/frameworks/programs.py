"""What trains where a framework is a library and not a program? Small scripts on made-up tokens.

They exist so that a launch runs and its time and memory can be compared with the plan before there is a data loader.
Left out: data, checkpoints, evaluation.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from planner.errors import UnsupportedError
from planner.spec.hf.families import facts_of
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel
from planner.spec.stack.losses import Eager, Linear

PROGRAM: Final = "train.py"
MODEL_CONFIG: Final = "config.json"

# attention of transformers by what the plan's stack runs; without a stack it chooses itself
_ATTENTION: Final = {
    AttentionKernel.FLASH_2: "flash_attention_2",
    AttentionKernel.FLASH_TRITON: "flash_attention_2",
    AttentionKernel.MEMORY_EFFICIENT: "sdpa",
    AttentionKernel.FUSED_SOFTMAX: "sdpa",
    AttentionKernel.EAGER: "eager",
}
# releases of FlashAttention after the second, by the devices they were written for (Dao-AILab/flash-attention, README)
_FLASH_RELEASES: Final = {
    ("h100", "h200", "h800", "h20", "gh200"): "flash_attention_3",
    ("b200", "b300", "gb200", "gb300"): "flash_attention_4",
}
NEWER_FLASH: Final = frozenset(_FLASH_RELEASES.values())


def program_text(framework: str) -> str:
    """The program of a framework that is a library."""
    return (files("planner.frameworks") / f"train_{framework}.py.txt").read_text(encoding="utf-8")


def check_program(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for a model that the program cannot build from its configuration."""
    if not facts_of(model.family).in_library:
        raise UnsupportedError(
            "transformers, which the program runs, must have a causal language model of the family",
            f"{model.family}, of which 5.24 has none",
            "plan another model, or write the program that runs its own code",
        )


def release_notes(model: ModelSpec) -> list[str]:
    """Which release of transformers the program must find, where not every one of the newest two will do."""
    if since := facts_of(model.family).since:
        return [f"transformers {since} or later: those before have no model of the family {model.family}"]
    if model.family == "bailing_hybrid" and any(a.q_lora_rank for a in model.attentions):
        return ["transformers 5.24 or later: those before know no q_lora_rank of bailing_hybrid"]
    return []


def attention_of(stack: Stack, accelerator: str) -> str:
    """attn_implementation of transformers that runs the stack's attention, the device's fastest where it names none."""
    kernel = stack.kernels.attention
    if kernel is not AttentionKernel.FLASH:
        return _ATTENTION[kernel]
    newer = (name for parts, name in _FLASH_RELEASES.items() if accelerator.lower().startswith(parts))
    return next(newer, _ATTENTION[AttentionKernel.FLASH_2])


def kernel_words(stack: Stack | None, accelerator: str) -> list[tuple[str, ...]]:
    """Options of the programs that ask for the kernels a stack counts on."""
    if stack is None:
        return []
    compiled = [("--compile",)] if stack.kernels.code.compiled else []
    return [("--attention", attention_of(stack, accelerator)), *compiled]


def kernel_notes(stack: Stack | None, model: ModelSpec, accelerator: str) -> list[str]:
    """What the programs need for that, or do not bring."""
    said = []
    for mixer in {type(state): state for state in model.state_spaces}.values():
        if mixer.packages:
            names = " and ".join(mixer.packages)
            said.append(f"{names}: kernels of {mixer.title}, without which transformers is far slower")
        else:
            said.append(
                f"a kernel of {mixer.title}: transformers has none, and without --compile is far slower still"
            )
    if stack is None:
        return [
            *said,
            "kernels of the plan's stack, which is another framework's: those transformers chooses are used",
        ]
    if stack.kernels.attention.is_flash:
        said.append(f"{attention_of(stack, accelerator)}: its package must be installed")
    if stack.kernels.attention is AttentionKernel.MEMORY_EFFICIENT:
        said.append(
            "an attention mask: without one, as of these tokens, sdpa takes a faster kernel than planned"
        )
    if isinstance(stack.kernels.loss, Linear):
        said.append(
            "Liger's kernels: train.py does not put them in; call liger_kernel.transformers' apply_liger_kernel"
        )
    if not isinstance(stack.kernels.loss, Eager):
        said.append("the loss of the plan's stack: transformers computes it on whole logits")
    return said
