"""What does Megatron-LM itself refuse when it starts, of what its arguments say together?

Left out: what is refused of one subject alone, beside what reads it: 8-bit parameters and FSDP (`states.py`), CUDA
graphs (`graphs.py`), Muon (`muon.py`), sparse attention (`sparse.py`); and degrees, which are rules (`rules.py`).
"""

from __future__ import annotations

from planner.catalog.stack_options import EXPERTS_OVERLAPPED
from planner.errors import InputError, nearest_names
from planner.frameworks.megatron.given import Arguments
from planner.frameworks.megatron.sparse import UNFUSED_ROTATION
from planner.frameworks.options import option_table

# releases that compute the loss in Transformer Engine: 168cb15 of June 2026 took it out, core_v0.18.2 has that too
WITH_ENGINES_LOSS = ("0.16.1",)


def accept(a: Arguments, version: str) -> None:
    """Refuse what Megatron-LM itself refuses when it starts. Raises `InputError` with its reason.

    Source: megatron/training/arguments.py validate_args (A), core/transformer/transformer_config.py __post_init__ (T).
    """
    table = option_table("megatron", version)
    for name, words in a.values.items():
        if not words and name in table and not table[name].accepts(()):
            must = f"{name} must have a value: argparse says expected one argument"
            raise InputError(must, "none", "write the value after it")
    if a.has("--fp16") and a.has("--bf16"):  # A: assert not args.bf16
        raise InputError("--fp16 and --bf16 exclude each other", "both", "leave one of them out")
    kind = a.word("--recompute-granularity", "")
    method = a.word("--recompute-method", "")
    if kind == "full" and method not in ("block", "uniform"):  # T
        must = '--recompute-granularity full: --recompute-method must be "block" or "uniform"'
        raise InputError(must, method or "none", "add --recompute-method uniform --recompute-num-layers 1")
    if kind == "full" and not a.has("--recompute-num-layers"):  # T
        must = "--recompute-granularity full: --recompute-num-layers must be from 1 to the layers of a stage"
        raise InputError(must, "none", "add --recompute-num-layers 1")
    if kind == "full" and a.has("--moe-layer-recompute"):  # T
        must = "--moe-layer-recompute must not be used with --recompute-granularity full"
        raise InputError(must, "both", "leave one of them out")
    if kind == "selective" and method:  # A
        must = "--recompute-method is not supported for --recompute-granularity selective"
        raise InputError(must, method, "leave it out")
    if a.has("--overlap-param-gather"):  # A
        distributed = a.has("--use-distributed-optimizer") or a.has("--use-megatron-fsdp")
        if not distributed and a.word("--optimizer", "adam") != "dist_muon":
            must = "--overlap-param-gather needs the distributed optimizer, Megatron-FSDP or dist_muon"
            raise InputError(must, "none of them", "add --use-distributed-optimizer")
        if not a.has("--overlap-grad-reduce"):
            must = "--overlap-param-gather must be used with --overlap-grad-reduce"
            raise InputError(must, "without", "add --overlap-grad-reduce")
    _accept_optimizer(a)
    _accept_rotation(a)
    _accept_overlaps(a)
    _accept_exchanges(a)


def accept_words(a: Arguments, version: str) -> None:
    """Refuse words that its options do not take, as argparse does; a program of one's own may have more. Raises
    `InputError`."""
    table = option_table("megatron", version)
    for name, words in a.values.items():
        choices = table[name].choices if name in table else ()
        if unknown := [word for word in words if choices and word not in choices and "$" not in word]:
            must, nearest = (
                f"{name} must be one of {', '.join(choices)}",
                nearest_names(unknown[0], choices, 1)[0],
            )
            raise InputError(must, unknown[0][:80], f"write {name} {nearest}")


def _accept_optimizer(a: Arguments) -> None:
    if a.has("--optimizer-cpu-offload") and not a.has("--use-precision-aware-optimizer"):  # A
        must = "--optimizer-cpu-offload must be used with --use-precision-aware-optimizer"
        raise InputError(must, "without", "add --use-precision-aware-optimizer")


def _accept_rotation(a: Arguments) -> None:
    yarn = a.word("--rope-type", "yarn") == "yarn"  # T: MLATransformerConfig.rope_type
    if a.has("--multi-latent-attention") and not yarn and not a.has(UNFUSED_ROTATION):  # T
        must = "apply_rope_fusion for MLA only works with YARN RoPE"
        raise InputError(must, f"--rope-type {a.word('--rope-type', '')}", f"add {UNFUSED_ROTATION}")


def _accept_overlaps(a: Arguments) -> None:
    # without tensor parallelism validate_args turns --sequence-parallel off
    divided = a.positive("--tensor-model-parallel-size", 1) > 1
    if a.has("--tp-comm-overlap") and not (divided and a.has("--sequence-parallel")):  # A
        must = "--tp-comm-overlap must be used with --sequence-parallel and tensor parallelism"
        raise InputError(must, "without", "add them or leave --tp-comm-overlap out")
    _accept_shared_experts(a)
    if not a.has(f"--{EXPERTS_OVERLAPPED}"):
        return
    if a.has("--moe-shared-expert-overlap"):  # T
        must = f"--moe-shared-expert-overlap must not be used with --{EXPERTS_OVERLAPPED}"
        raise InputError(must, "both", "leave one of them out")
    if a.word("--moe-token-dispatcher-type", "allgather") not in ("alltoall", "flex"):  # T
        must = f"--{EXPERTS_OVERLAPPED} is supported with the dispatchers alltoall and flex"
        raise InputError(must, "allgather, the default", "add --moe-token-dispatcher-type alltoall")


def _accept_shared_experts(a: Arguments) -> None:
    if not (a.has("--moe-shared-expert-overlap") and a.has("--moe-shared-expert-intermediate-size")):
        return
    dispatcher = a.word("--moe-token-dispatcher-type", "allgather")
    if dispatcher not in ("alltoall", "flex"):  # T
        must = "--moe-shared-expert-overlap only works with the dispatchers alltoall and flex"
        raise InputError(must, dispatcher, "add --moe-token-dispatcher-type alltoall")
    if "shared_experts" in a.values.get("--recompute-modules", []):  # T
        must = "--moe-shared-expert-overlap must not be used where shared_experts are recomputed"
        raise InputError(must, "both", "leave one of them out")


def _accept_exchanges(a: Arguments) -> None:
    kinds, layers = a.values.get("--cp-comm-type", []), a.count("--num-layers", 0)
    if len(kinds) > 1 and layers and len(kinds) != layers:  # T
        must = f"--cp-comm-type must name one way, or one for each of {layers} layers"
        raise InputError(must, f"{len(kinds)}: {' '.join(kinds)[:80]}", "name one")
    if len(set(kinds)) > 1:  # Megatron-LM runs it, planner costs one way
        must = "--cp-comm-type must name one way that planner models, for all layers"
        raise InputError(must, " ".join(kinds)[:80], "name one")
    deep = a.word("--moe-token-dispatcher-type", "") == "flex" and (
        a.word("--moe-flex-dispatcher-backend", "deepep") == "deepep"
    )
    if deep and a.has("--moe-pad-expert-input-to-capacity"):  # T
        must = "the flex dispatcher with DeepEP does not support --moe-pad-expert-input-to-capacity"
        raise InputError(must, "both", "leave one of them out")
