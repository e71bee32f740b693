"""Which switches of its stack does the free text of a published row set?

A switch is asked for, denied or not named (`words.py`). What a row names and no stack models is said among what was
assumed. Left out: which stack ran the row (`stack_of.py`), CUDA graphs (`graphs.py`), what is kept on
the host (`offloads.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from benchmarks.published.words import Word
from planner.catalog.load_options import OPTIONS
from planner.catalog.stack_options import (
    EXPERTS_OVERLAPPED,
    GRADIENTS_16,
    GRADIENTS_32,
    LIGER,
    NO_COMPILE,
    PURE_BF16,
    TP_SERIAL,
    options_for,
)
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy, Dispatcher, Float8Scales, UpdateKernel
from planner.spec.stack.layer_code import WITHOUT_ACTIVATION
from planner.spec.stack.losses import Compiled, Fused

# FlashAttention-2 is about twice as fast as the first version (Dao 2023, arXiv 2307.08691, abstract).
FLASH1_SLOWDOWN: Final = 2.0
_SLOWEST: Final = 6.0  # times the table's time that a stack's kernel may take
# Async tensor parallelism made torchtitan's steps 5 to 9 % shorter (Llama 3 8B, tp 8; three pairs of published rows, on
# which it is judged, too); its communication with what recomputation repeats is a little under a third of them.
TP_OVERLAPPED: Final = 0.7

Update = dict[str, dict[str, Any]]  # section of a stack -> fields to replace
_Switch = Callable[[str, Stack], tuple[Update, str] | None]


def _fields_of(name: str, framework: str) -> Update:
    """What an option replaces in a framework's stacks."""
    found = next(option for option in OPTIONS if option.name == name and framework in option.frameworks)
    return {section: dict(fields) for section, fields in found.fields.items()}


def _aleph_kernels(text: str, stack: Stack) -> tuple[Update, str] | None:
    match = re.search(r"kernel=([\w.]+)(.*)", text)
    if match is None:
        return None
    name, rest = match[1].lower(), match[2].lower()
    parts = WITHOUT_ACTIVATION if "rms" in rest else ()
    kernels: dict[str, Any] = {"code": stack.kernels.code.model_copy(update={"fused": parts})}
    update: Update = {"kernels": kernels}
    if "torch" in name or "eager" in name:
        kernels["attention"] = AttentionKernel.EAGER
    elif "fused" in name:
        kernels["attention"] = AttentionKernel.FUSED_SOFTMAX
    else:
        kernels["attention"] = AttentionKernel.FLASH
        if re.search(r"v?1\.|attention1\b", name):
            update["compute"] = {"attention": min(_SLOWEST, stack.compute.attention * FLASH1_SLOWDOWN)}
    return update, f"attention kernel {kernels['attention']}, norms {'fused' if 'rms' in rest else 'eager'}"


def _no_flash(text: str, stack: Stack) -> tuple[Update, str] | None:
    """Attention without FlashAttention: Megatron's fused softmax; PyTorch's operations elsewhere, and where named."""
    eager = re.search(r"attn_impl[:=] ?torch|attn_implementation[:=] ?eager|eager attention", text)
    unfused = _FLASH.denied(text) or _UNFUSED.asked(text)
    if not eager and not unfused:
        return None
    softmax = stack.framework in _SOFTMAX_OF_ITS_OWN and not eager
    kernel = AttentionKernel.FUSED_SOFTMAX if softmax else AttentionKernel.EAGER
    return {"kernels": {"attention": kernel}}, f"attention kernel {kernel}"


def _no_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    serial = _serial_gradients(stack)
    if _OVERLAP.denied(text):
        update = {**serial, "tp_exposed": 1.0, "p2p_exposed": 1.0, "ep_exposed": 1.0, "ep_overlap": 0.0}
        return {"communication": update}, "no communication overlap"
    if _DP_OVERLAP.denied(text):
        return {"communication": serial}, "no data-parallel overlap"
    return None


def _serial_gradients(stack: Stack) -> dict[str, float]:
    """Fields with which nothing runs beside a reduction of gradients, or FSDP's gathers."""
    return {"dp_overlap": 0.0}


def _flash(text: str, stack: Stack) -> tuple[Update, str] | None:
    """FlashAttention where the stack's releases still had a softmax of their own."""
    before = stack.kernels.attention in (AttentionKernel.EAGER, AttentionKernel.FUSED_SOFTMAX)
    if not before or "kernel=" in text or not _FLASH.asked(text):
        return None
    return {"kernels": {"attention": AttentionKernel.FLASH}}, "flash attention"


def _flash_1(text: str, stack: Stack) -> tuple[Update, str] | None:
    """FlashAttention's first version, where a row names it."""
    if "kernel=" in text or not _FLASH_1.asked(text):
        return None
    slower = min(_SLOWEST, stack.compute.attention * FLASH1_SLOWDOWN)
    return {
        "kernels": {"attention": AttentionKernel.FLASH_2},
        "compute": {"attention": slower},
    }, "FlashAttention-1"


def _flash_2(text: str, stack: Stack) -> tuple[Update, str] | None:
    """FlashAttention-2 where the stack has the device's fastest: on Hopper and Blackwell another kernel."""
    if stack.kernels.attention is not AttentionKernel.FLASH or "kernel=" in text or not _FLASH_2.asked(text):
        return None
    return {"kernels": {"attention": AttentionKernel.FLASH_2}}, "FlashAttention-2"


def _flash_triton(text: str, stack: Stack) -> tuple[Update, str] | None:
    if not _FLASH_TRITON.asked(text):
        return None
    return {"kernels": {"attention": AttentionKernel.FLASH_TRITON}}, "FlashAttention in Triton"


def _tp_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    asked = _TP_OVERLAP.asked(text)
    if asked is False:
        said = "tensor-parallel communication not overlapped"
        return (_fields_of(TP_SERIAL, "megatron"), said) if stack.communication.tp_overlapped else None
    if stack.communication.tp_overlapped or not asked:
        return None
    exposed = TP_OVERLAPPED * stack.communication.tp_exposed
    return {"communication": {"tp_exposed": exposed}}, "tensor-parallel communication overlapped"


def _ep_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    asked = _EP_OVERLAP.asked(text)
    if asked:
        return _fields_of(EXPERTS_OVERLAPPED, "megatron"), "expert all-to-all overlapped"
    if asked is None or not stack.communication.ep_overlap:
        return None
    return {"communication": {"ep_overlap": 0.0}}, "expert all-to-all not overlapped"


def _dispatcher(text: str, stack: Stack) -> tuple[Update, str] | None:
    named = next((kind for word, kind in _DISPATCHERS if word.asked(text)), None)
    if named is not None:
        return {"communication": {"dispatcher": named}}, f"tokens dispatched once per node, by {named}"
    own = stack.communication.dispatcher
    own = Dispatcher.DEEPEP if own.is_deepep else own
    denied = any(word.denied(text) and own is kind for word, kind in _DISPATCHERS)
    if not denied:
        return None
    return {"communication": {"dispatcher": Dispatcher.ALL_TO_ALL}}, "tokens dispatched by all-to-all"


def _eager_torch(text: str, stack: Stack) -> tuple[Update, str] | None:
    """torchtitan without torch.compile runs norms, activations and weighing of experts as single operations."""
    compiled = _COMPILE.asked(text)
    if not stack.name.startswith("torchtitan") or compiled or (compiled is None and "fsdp" not in text):
        return None
    return _fields_of(NO_COMPILE, "torchtitan"), "no torch.compile"


def _low_precision_reduction(text: str, stack: Stack) -> tuple[Update, str] | None:
    """Composer's mixed precision PURE reduces gradients in 16 bits, DEFAULT in 32."""
    if "mixed_precision=pure" not in text:
        return None
    return {"engine": {"reduce_bytes": _HALF}}, "gradients reduced in 16 bits"


def _fused_loss(text: str, stack: Stack) -> tuple[Update, str] | None:
    if _LIGER.asked(text):
        # of the time of its stack where a row names no release: see the source of these options
        named = re.search(r"liger(?:[ _-]kernel)?[ _=-]*v?(\d+\.\d+\.\d+)", text)
        newer = stack.released >= "2025-08" if named is None else _numbers(named[1]) >= (0, 6, 2)
        return _fields_of(LIGER if newer else f"{LIGER}-0.6.1", "transformers"), _LIGER_SAID
    if re.search(r"whole logits|unfused (?:cross|loss)", text) or _FUSED_LOSS.denied(text):
        return {
            "kernels": {"loss": stack.kernels.with_loss(CrossEntropy.VOCAB_PARALLEL).loss}
        }, "the loss on whole logits"
    if not _FUSED_LOSS.asked(text):
        return None
    if re.search(r"cross[- ]entropy fusion \(?native", text):
        return {"kernels": {"loss": Compiled()}}, "cross-entropy compiled (native fusion)"
    return {"kernels": {"loss": Fused()}}, "fused cross-entropy"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _narrow_gradients(text: str, stack: Stack) -> tuple[Update, str] | None:
    """Gradients kept and reduced in 16 bits."""
    wide = stack.engine.sent_gradient > _HALF or stack.engine.gradient > _HALF
    if not wide or not (_NARROW_GRADIENTS.asked(text) or _WIDE_GRADIENTS.denied(text)):
        return None
    return _optional(GRADIENTS_16, stack, "gradients kept and reduced in 16 bits")


def _wide_gradients(text: str, stack: Stack) -> tuple[Update, str] | None:
    """Gradients reduced in 32 bits, where the stack's are in 16."""
    if stack.engine.sent_gradient > _HALF or not _WIDE_GRADIENTS.asked(text):
        return None
    said = "gradients reduced in 32 bits"
    if "reduce_bytes" not in type(stack.engine).model_fields:
        return _optional(GRADIENTS_32, stack, said)
    return {"engine": {"reduce_bytes": 4.0}}, said


def _pure_bf16(text: str, stack: Stack) -> tuple[Update, str] | None:
    return _optional(PURE_BF16, stack, "weights and moments in bf16 alone") if _PURE.asked(text) else None


def _optional(name: str, stack: Stack, what: str) -> tuple[Update, str]:
    """What an option of the stack sets; nothing, and it is said, where the stack has no such option."""
    option = next((option for option in options_for(stack) if option.name == name), None)
    if option is None:
        return {}, f"{what}: not used, {stack.name} has no such option"
    return {section: dict(fields) for section, fields in option.fields.items()}, what


def _dropout(text: str, stack: Stack) -> tuple[Update, str] | None:
    asked = _DROPOUT.asked(text)
    drops = bool(asked) and not re.search(_DROPOUT.pattern + r"[ =:]*0(?:\.0*)?(?![\d.])", text)
    if asked is None or drops == stack.kernels.dropout:
        return None
    return {"kernels": {"dropout": drops}}, "dropout" if drops else "no dropout"


def _capacity(text: str, stack: Stack) -> tuple[Update, str] | None:
    """Experts that receive so many times the rows of balanced routing: fewer are padded where the row says so, and by
    software that knows no other way (Megatron-Core pads with moe_pad_expert_input_to_capacity alone)."""
    stated = re.search(r"capacity[ _-]factor[ =:]*(\d{1,3}(?:\.\d+)?)", text)
    if stated is None or not (factor := float(stated[1])):
        return None
    said = f"experts' capacity factor {factor:g}"
    if factor < 1 or _PADDED.asked(text) or not stack.framework.startswith("megatron"):
        return {"kernels": {"expert_padding": factor}}, f"{said}, padded" if factor >= 1 else said
    return {}, f"{said}: balanced experts drop nothing"


def _late_overlap(text: str, stack: Stack) -> tuple[Update, str] | None:
    if not _DP_OVERLAP.asked(text) or stack.communication.dp_overlap:
        return None
    return {}, f"overlap of gradients: not used, {stack.name} has none"


def _plain(word: Word, update: Update, said: str) -> _Switch:
    """A switch that sets the same fields of any stack."""
    return lambda text, stack: (update, said) if word.asked(text) else None


_FLASH: Final = Word(r"flash[ _-]?att|\bfa-?[123]?\b|\bfused[ _-]sdpa")
_VERSIONED: Final = r"flash[ _-]?att(?:entio)?n[ _-]?v?"
_FLASH_1: Final = Word(_VERSIONED + r"1(?![\d])|\bfa-?1\b")
_FLASH_2: Final = Word(_VERSIONED + r"2|\bfa-?2\b")
_UNFUSED: Final = Word(r"unfused att|attention[_-]backend[:= ]+unfused")
_PURE: Final = Word(r"pure[ _-]bf16|full[ _-]bf16|bf16[ _-]master|\bno (?:fp32 )?master weights")
_NARROW_GRADIENTS: Final = Word(r"bf16[ _-]grad|grad\w*[ _-](?:reduc\w+[ _-])?in[ _-]bf16")
_WIDE_GRADIENTS: Final = Word(
    r"grad[ _-]reduce[ _-]in[ _-]fp32|reduce_dtype[=: ]*(?:torch[.])?(?:fp|float)32|mixed_precision=default|"
    r"(?:fp|float)32[ _-]grad\w*[ _-]reduc|grad\w*[ _-](?:reduc\w+[ _-])in[ _-](?:fp|float)32"
)
_DROPOUT: Final = Word(r"(?<![a-z_])(?:hidden[ _-])?dropout\b")
_PADDED: Final = Word(r"\bpad")
_HALF: Final = 2.0  # bytes
_SOFTMAX_OF_ITS_OWN: Final = ("megatron", "megatron-deepspeed")
# any overlap, not that of one kind of communication
_OVERLAP: Final = Word(
    r"(?:(?<=no )|(?<=without )|(?<=w/o )|(?<![\w)+/-] )(?<![\w.-]))"
    r"(?:(?:comm\w*|comp\w*)(?:[ /-](?:and )?(?:comm\w*|comp\w*))?[ -])?overlap(?:ping)?(?![\w-]| of )"
)
_DP_OVERLAP: Final = Word(
    r"\bdp[ _-](?:comm[ _-])?overlap|overlap[ _-](?:of[ ](?:the[ ])?)?grad|gradient bucketing|"
    r"\bgrad\w*[ _-](?:reduc\w+[ _-])?overlap"
)
_TP_OVERLAP: Final = Word(
    r"async[ _-]tp\b|userbuffers?\b|(?<![a-z])tp[ _-](?:comm\w*[ _-])?overlap|(?<=no )tp[ _-]comm"
)
_EP_OVERLAP: Final = Word(
    r"(?<![a-z])(?<!shared[ _-])(?:ep|moe|expert(?:[ _-]parallel)?)[ _-](?:comm[ _-])?(?:a2a[ _-]|all-?to-?all[ _-])?"
    r"overlap|(?:a2a|all-?to-?all)[ _-]overlap|overlap[ _-]moe[ _-]expert|overlap of (?:the )?(?:experts?|moe|ep)\b"
)
_DISPATCHERS: Final = (
    (Word(r"hybrid-?ep"), Dispatcher.HYBRIDEP),
    (Word(r"deep-?ep"), Dispatcher.DEEPEP),
)
_COMPILE: Final = Word(r"(?<!un)compil")
_LIGER: Final = Word(r"liger")
_LIGER_SAID: Final = "Liger's norms, rotation, activation and loss"
_FLASH_TRITON: Final = Word(
    r"triton[ _-](?:flash[ _-]?)?att|(?:att(?:entio)?n|\bfa)[ _-]?2?[ _-]{0,2}\(?triton"
)
_FUSED_LOSS: Final = Word(r"cross[- ]entropy fusion|(?<!un)fused cross")
# torchao's recipe_name rowwise, with which torchtitan gathers inputs in 16 bits (820504e docs/float8.md)
_ROWS: Final[Update] = {"kernels": {"float8_scales": Float8Scales.ROW}}
_SWITCHES: Final[tuple[_Switch, ...]] = (
    _aleph_kernels, _no_flash, _flash, _flash_1, _flash_2, _flash_triton, _no_overlap, _tp_overlap, _ep_overlap,
    _dispatcher, _eager_torch,
    _plain(Word(r"row-?wise"), _ROWS, "fp8 scales per row"),
    _low_precision_reduction,
    _plain(
        Word(r"cutedsl_fused_grouped_mlp"), {"kernels": {"fused_experts": True}},
        "experts' activation fused with their products in fp8_mx",
    ),
    _fused_loss,
    _plain(
        Word(r"optimizer[ _-]cuda[ _-]graph"), {"engine": {"update": UpdateKernel.CAPTURED}},
        "the update replayed as a CUDA graph",
    ),
    _pure_bf16, _narrow_gradients, _wide_gradients, _dropout, _capacity, _late_overlap,
)  # fmt: skip
LAYERS_OFFLOADED: Final = re.compile(r"cpu_offloading_num_layers=(\d{1,4})", re.IGNORECASE)
NO_PREDICTION: Final = "multi-token prediction of the row is not modelled"
_NOT_MODELLED: Final = (
    (Word(r"sliding window"), "sliding-window attention of the row is not modelled"),
    (Word(r"parallel transformer block"), "the parallel block of the row is not modelled"),
    (Word(r"fp8_dot_product_attention"), "attention in fp8 is timed as bf16"),
    (Word(r"\bmtp\b"), NO_PREDICTION),
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
    said += [what for word, what in _NOT_MODELLED if word.asked(lower)]
    return (stack.model_copy(update=changed) if changed else stack), tuple(said)
