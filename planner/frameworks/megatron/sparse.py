"""How is DeepSeek Sparse Attention written in Megatron-LM's arguments and read from them?

--experimental-attention-variant dsa beside latent attention, in every layer. Source: Megatron-LM
core/transformer/transformer_config.py, core/transformer/experimental_attention_variant/dsa.py, core/models/gpt/
experimental_attention_variant_module_specs.py, training/arguments.py, main of 2026-08. Releases before it compute the
scores of all heads and pairs and know no kernels for it: they are refused. Left out: sparse layers in a
--hybrid-layer-pattern, indexers that do not rectify their scores.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from planner.catalog.stack_options import DSA_KERNELS
from planner.errors import InputError, UnsupportedError
from planner.frameworks.megatron.given import Arguments, Option
from planner.frameworks.refuse import unstated
from planner.spec.hf.families import facts_of
from planner.spec.indexer import Indexer, IndexerLoss
from planner.spec.model import ModelSpec
from planner.spec.stack.kinds import SparseKernel

VARIANT: Final = "--experimental-attention-variant"
NAME: Final = "dsa"
RELEASES: Final = frozenset({"main-2026-08"})
BACKEND: Final = "--dsa-kernel-backend"
UNFUSED_ROTATION: Final = "--no-rope-fusion"
# What Megatron-Bridge 067f987 models/glm_moe_dsa/glm5_bridge.py sets for training on.
LOSS_COEFFICIENT: Final = "0.001"
# Of the indexer's key norm, whatever the others have (transformers 5.23 modeling_deepseek_v32.py, glm5_bridge.py).
KEY_NORM_EPS: Final = "1e-06"
# whose indexer rotates neighbours, without a Hadamard matrix (transformers 5.23 modular_glm_moe_dsa.py, glm5_bridge.py)
GLM: Final = "glm_moe_dsa"
_refuse: Final = partial(
    unstated, f"Megatron-LM's {VARIANT} {NAME}", "choose another model: no other framework trains with it"
)


def check_sparse(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for sparse attention that the arguments cannot state."""
    if model.chooses_blocks:
        must = "Megatron-LM's arguments must be able to state attention to chosen blocks of keys"
        whole = 'write "layer_types": ["full_attention", ...] for every layer, as Megatron-Bridge trains it'
        raise UnsupportedError(must, f"{model.name}: pull request 5336 of it is not merged", whole)
    kinds = {(x.heads, x.head_dim, x.top_k, x.loss) for x in model.indexers}
    if len(model.indexers) < len(model.attentions) or len(kinds) > 1:
        raise _refuse("sparse attention in some of the layers, or indexers that differ", model.name)
    if any(a.qkv_bias or a.out_bias for a in model.attentions):
        raise _refuse("biases beside sparse attention", model.name)
    if sharing(model) is None:
        raise _refuse("layers that share what others choose by no regular frequency", model.name)


def check_sparse_release(model: ModelSpec, version: str) -> None:
    """Raise `UnsupportedError` for a release without kernels for sparse attention; no release has DeepSeek-V4's or
    MiniMax-M3's, nor what else some of these families compute."""
    known = not (model.compresses_keys or model.chooses_blocks or facts_of(model.family).traits)
    if model.indexers and known and version not in RELEASES:
        raise UnsupportedError(
            f"Megatron-LM {version} must have kernels for DeepSeek Sparse Attention, which {model.name} has",
            "it computes the scores of all heads and pairs",
            f"choose --framework-version {max(RELEASES)}",
        )


def chooses(layers: int, every: int, offset: int) -> list[bool]:
    """Which layers have an indexer of their own (dsa.py is_dsa_skip_topk_layer)."""
    return [max(layer - max(offset, 1), 0) % every == 0 for layer in range(1, layers + 1)]


def sharing(model: ModelSpec) -> tuple[int, int] | None:
    """Frequency and offset with which layers choose keys themselves; None where there are none that say so."""
    own = [
        a is not None and a.indexer is not None and not a.indexer.shared
        for a in (y.attention for y in model.layers)
    ]
    if all(own):
        return 1, 0
    count = len(own)
    # an offset is the last of the first layers that all choose, counted from 1
    first = own.index(False)
    gaps = [every for every in range(2, count + 2) if chooses(count, every, first) == own]
    return (gaps[0], first) if gaps else None


def sparse_options(model: ModelSpec, kernel: SparseKernel) -> list[Option]:
    """Dimensions of the indexer, its loss, which layers share, and the kernels."""
    x, shared = model.indexers[0], sharing(model)
    assert shared is not None
    options: list[Option] = [
        (VARIANT, NAME),
        ("--dsa-indexer-n-heads", str(x.heads)),
        ("--dsa-indexer-head-dim", str(x.head_dim)),
        ("--dsa-indexer-topk", str(x.top_k)),
        ("--dsa-indexer-k-norm-epsilon", KEY_NORM_EPS),
        (BACKEND, kernel),
        (UNFUSED_ROTATION,),
    ]
    if shared[0] > 1:
        every, offset = shared
        options += [("--dsa-indexer-topk-freq", str(every)), ("--dsa-indexer-skip-topk-offset", str(offset))]
    if x.loss is not IndexerLoss.NONE:
        options.append(("--dsa-indexer-loss-coeff", LOSS_COEFFICIENT))
    if x.loss is IndexerLoss.SPARSE:
        options.append(("--dsa-indexer-use-sparse-loss",))
    if model.family == GLM:
        options += [("--dsa-indexer-rope-interleaved",), ("--no-dsa-indexer-rotate-activation",)]
    return options


def notes(model: ModelSpec, kernel: SparseKernel | None) -> list[str]:
    """What a launch of sparse attention needs beside Megatron-LM, and what it decides for the user."""
    if not model.indexers:
        return []
    needed = {
        SparseKernel.CUDNN: "FlashMLA and cuDNN Frontend (nvidia-cudnn-frontend[cutedsl]) must be installed",
        SparseKernel.TILELANG: "tilelang must be installed",
    }
    said = [f"sparse attention: {needed[kernel]}"] if kernel in needed else []
    if model.family != GLM:
        said.append(
            "fast-hadamard-transform must be installed, with which the indexer mixes queries and keys"
        )
    if any(x.trained for x in model.indexers):
        said.append(
            f"the indexer learns from the keys that it chose, its loss times {LOSS_COEFFICIENT}: set "
            "--dsa-indexer-loss-coeff as your recipe has it, 0 or none to train it no further"
        )
    return said


def is_sparse(a: Arguments) -> bool:
    return a.word(VARIANT, "") == NAME


def accept_sparse(a: Arguments) -> None:
    """Refuse what Megatron-LM refuses of sparse attention when it starts. Raises `InputError`.

    Source: core/transformer/transformer_config.py __post_init__, absorbed_mla.py AbsorbedMLASelfAttention.
    """
    if not is_sparse(a):
        return
    given = f"{VARIANT} {NAME}"
    if not a.has("--multi-latent-attention"):
        raise InputError(f"{given} must come with latent attention", "none", "add --multi-latent-attention")
    for name in ("--dsa-indexer-n-heads", "--dsa-indexer-head-dim", "--dsa-indexer-topk"):
        if not a.has(name):
            raise InputError(f"{given} must come with {name}", "none", "add it: Megatron-LM has no default")
    if not a.has("--disable-bias-linear"):
        raise InputError(f"{given} requires add_bias_linear=False", "biases", "add --disable-bias-linear")
    rotated = a.word("--position-embedding-type", "learned_absolute") == "rope"
    if rotated and not a.has(UNFUSED_ROTATION):
        raise InputError(
            "RoPE fusion is not supported for DSAttention", "its default", f"add {UNFUSED_ROTATION}"
        )
    tp, cp = (a.positive(f"--{kind}-parallel-size", 1) for kind in ("tensor-model", "context"))
    if tp > 1 and not a.has("--sequence-parallel"):
        must = "AbsorbedMLA requires sequence_parallel when tensor_model_parallel_size > 1"
        raise InputError(must, f"tp {tp} without", "add --sequence-parallel")
    kind = a.word("--cp-comm-type", "p2p")
    if cp > 1 and kind.replace("_", "").lower() != "allgather":
        must = "DSAttention context parallelism currently supports cp_comm_type=allgather only"
        raise InputError(must, kind, "write --cp-comm-type all_gather")
    if a.has("--no-dsa-indexer-scoring-relu") or a.has("--disable-dsa-indexer-scoring-relu"):
        must = "planner models indexers that rectify their scores"
        raise InputError(must, "none of them", "leave the option out")


def indexer_in(a: Arguments, shared: bool) -> Indexer | None:
    """The indexer that the arguments state; None without one. Raises `InputError`."""
    if not is_sparse(a):
        return None
    trained = a.number("--dsa-indexer-loss-coeff", 0.0) > 0
    sparse = a.has("--dsa-indexer-use-sparse-loss")
    loss = IndexerLoss.NONE if not trained else IndexerLoss.SPARSE if sparse else IndexerLoss.DENSE
    sizes = (a.positive(f"--dsa-indexer-{name}", 1) for name in ("n-heads", "head-dim", "topk"))
    heads, head_dim, top_k = sizes
    return Indexer(heads, head_dim, top_k, shared, loss)


def sharing_in(a: Arguments, layers: int) -> list[bool]:
    """Which layers take what an earlier one chose."""
    if not is_sparse(a):
        return [False] * layers
    every, offset = a.positive("--dsa-indexer-topk-freq", 1), a.count("--dsa-indexer-skip-topk-offset", 0)
    return [not own for own in chooses(layers, every, offset)]


def kernel_options(a: Arguments) -> tuple[str, ...]:
    """The option of a stack that names the arguments' kernels; they default to PyTorch's. Raises `InputError`."""
    if not is_sparse(a):
        return ()
    kernel = a.word(BACKEND, SparseKernel.NONE)
    if kernel not in list(SparseKernel):
        raise InputError(f"{BACKEND} must be one of {', '.join(SparseKernel)}", kernel, "write one of these")
    return (DSA_KERNELS[SparseKernel(kernel)],) if kernel in DSA_KERNELS else ()
