"""Which adapters does a launch train beside frozen weights: their rank, the layers that have them, the frozen width?

Source: trl/trainer/model_config.py; LLaMA-Factory hparams/finetuning_args.py and model_args.py; FastChat
train/train_lora.py; LLaVA train/train.py; DeepSpeed-Chat dschat/utils/module/lora.py; peft examples/sft, and
utils/constants.py for targets where none are named; Megatron-Bridge peft/lora.py. Left out: scaling, dropout and
initialisation of adapters, which cost no step anything that is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from planner.frameworks.words import Words, first_word, is_on, number
from planner.spec.job import AdapterTargets

# words that switch adapters on; their ranks, the first that is given, and what the programs take where none is
_SWITCHES: Final = {
    "use_peft": 16, "use_peft_lora": 64, "use_lora": 16, "lora_enable": 64, "q_lora": 8,
}  # fmt: skip
_RANKS: Final = ("lora_r", "lora_rank", "lora_dim")
_TARGETS: Final = ("lora_target_modules", "lora_target", "lora_module_name")
_FACTORY_RANK: Final = 8
_IN_4: Final = ("load_in_4bit", "use_4bit_quantization", "q_lora", "qlora")
_IN_8: Final = ("load_in_8bit", "use_8bit_quantization")
_QKV: Final = frozenset((
    "q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "W_pack", "Wqkv", "wq", "wk", "wv",
    "linear_qkv", "linear_q", "linear_k", "linear_v", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
    "linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_q_down_proj", "linear_q_up_proj",
))  # fmt: skip
_ATTENTION_OUT: Final = frozenset(("o_proj", "out_proj", "dense", "wo", "linear_proj"))
_MLP: Final = frozenset((
    "gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "w1", "w2", "w3", "linear_fc1", "linear_fc2",
    "dense_h_to_4h", "dense_4h_to_h",
))  # fmt: skip
_ALL: Final = frozenset(("all", "all-linear", "linear"))


@dataclass(frozen=True)
class Adapters:
    """Adapters of a rank on the linear layers of `targets`, the model frozen in so many bits, as `Job` has them."""

    rank: int
    targets: AdapterTargets = AdapterTargets.ALL_LINEAR
    frozen_bits: int = 16


def adapters_of(words: Words) -> tuple[Adapters | None, list[str]]:
    """Those that the words of a program ask for, None where all weights are trained, and what was taken for granted."""
    kind = first_word(words, ("finetuning_type",)).lower()
    switches = [name for name in _SWITCHES if is_on(words, name)]
    stated = next((rank for name in _RANKS if (rank := number(words, name))), None)
    if kind in ("freeze", "oft"):
        return None, [f"--finetuning_type {kind}: all weights are counted as trained"]
    off = kind == "full" or any(name in words for name in _SWITCHES)
    if kind != "lora" and not switches and (stated is None or off):
        return None, []
    rank = stated or (_FACTORY_RANK if kind == "lora" else _SWITCHES[switches[0]])
    notes = [] if stated else [f"the adapters' rank is not stated: {rank}, the program's default"]
    if kind != "lora" and not switches:
        notes.append("a rank of adapters alone is taken to switch them on, which TRL does by --use_peft only")
    every = kind == "lora" or "lora_dim" in words or bool({"lora_enable", "use_peft_lora"} & set(switches))
    targets, said = targets_of(_names(words), AdapterTargets.ALL_LINEAR if every else AdapterTargets.QKV)
    if "lora_dim" in words and "only_optimize_lora" not in words:
        said.append("without --only_optimize_lora embeddings and norms are trained too, which is not counted")
    bits, width = _frozen_bits(words)
    beside = [name for name in ("use_dora", "lora_modules_to_save", "additional_target") if words.get(name)]
    notes += [
        f"--{name}: modelled as plain adapters" for name in beside if is_on(words, name) or name[:3] != "use"
    ]
    return Adapters(rank, targets, bits), [*notes, *said, *width]


def targets_of(
    names: Iterable[str], default: AdapterTargets = AdapterTargets.ALL_LINEAR
) -> tuple[AdapterTargets, list[str]]:
    """The layers of adapters that names of modules stand for, the nearest from above, and where that is more than they
    say; `default` where there are none."""
    plain = {name.split(".")[-1].strip("*") or name for name in names}
    if not plain:
        if default is AdapterTargets.QKV:
            return default, [
                "adapters are on no module by name: modelled on q, k and v, of which peft takes q and v"
            ]
        return default, []
    strange = plain - _QKV - _ATTENTION_OUT - _MLP - _ALL
    if strange:
        shown = ", ".join(sorted(strange))[:80]
        return AdapterTargets.ALL_LINEAR, [f"adapters on {shown}: modelled on every dense linear layer"]
    if plain & (_MLP | _ALL):
        some = not plain & _ALL and not (plain & _QKV and plain & _ATTENTION_OUT)
        return AdapterTargets.ALL_LINEAR, (
            [f"adapters on {', '.join(sorted(plain))}: modelled on every dense linear layer"] if some else []
        )
    if plain & _ATTENTION_OUT:
        return AdapterTargets.ATTENTION, []
    some = bool(plain & {"q_proj", "k_proj", "v_proj"}) and not plain >= {"q_proj", "k_proj", "v_proj"}
    return AdapterTargets.QKV, (
        [f"adapters on {', '.join(sorted(plain))}: modelled on q, k and v"] if some else []
    )


def _names(words: Words) -> list[str]:
    """Modules that are to have adapters, in whichever way a shell hands over a list."""
    found = next((words[name] for name in _TARGETS if words.get(name)), [])
    return [name for name in re.split(r"[\s,\[\]'\"]+", " ".join(found)) if name]


def _frozen_bits(words: Words) -> tuple[int, list[str]]:
    """Bits of a frozen weight, and a note where the program may keep more than is counted."""
    bits = next(
        (n for name in ("quantization_bit", "bits") if (n := number(words, name)) in (4, 8, 16)), None
    )
    if bits is None:
        narrow = 8 if any(is_on(words, name) for name in _IN_8) else None
        bits = 4 if any(is_on(words, name) for name in _IN_4) else narrow
    if bits is not None:
        return bits, []
    kind = first_word(words, ("torch_dtype", "dtype", "model_dtype")).lower()
    if kind in ("float32", "fp32"):
        return 32, []
    unstated = not (kind or words.get("finetuning_type") or is_on(words, "lora_enable"))
    note = "frozen weights are counted in 16 bits; TRL and FastChat keep them in 32 where no --dtype says otherwise"
    return 16, [note] if unstated else []
