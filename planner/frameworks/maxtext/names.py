"""What does MaxText call models, devices, number formats and what it keeps of a layer?

Source: AI-Hypercomputer/maxtext at e591f30 (configs/models, configs/types.py, layers/decoders.py get_remat_policy).
Left out: models with encoders, and decoder blocks whose layers differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from planner.frameworks.rulebook import recompute_bits
from planner.spec.config import Recompute
from planner.spec.job import Optimizer
from planner.spec.machine.accelerator import Architecture
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision

TITLE: Final = "MaxText"
VERSION: Final = "0.2.4-e591f30"
CONFIG: Final = "config.yml"
PROGRAM: Final = "maxtext.trainers.pre_train.train"

_NAMES: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# catalog name -> that of configs/models, whose dimensions are the same but for groups of experts, which those leave
# out, and for `VOCABULARY`
MODELS: Final[Mapping[str, str]] = _NAMES["models"]
# whose layers differ in turn: scanned, six of them are one block, whose activations are recomputed together
IN_BLOCKS: Final = ("gemma3-4b", "gemma3-12b", "gemma3-27b")
# of its name, which a file over configs/base.yml does not change: without the rows of Google's weights for images
VOCABULARY: Final = dict.fromkeys(IN_BLOCKS, 262_144) | {"mixtral-8x22b": 32_768}
# its models that are the catalog's but for a vocabulary or windows, which it leaves out: read by name, not written so
WITHOUT_WINDOWS: Final = ("mistral-7b",)
_READ_ALONE: Final = {name: name for name in ("mixtral-8x22b", *WITHOUT_WINDOWS)}
CATALOG: Final = {
    **{name: ours for ours, name in MODELS.items()},
    **_READ_ALONE,
    "llama3.3-70b": "llama-3.1-70b",
}


class Hardware(StrEnum):
    """Which devices a process drives (`hardware`)."""

    TPU = "tpu"
    GPU = "gpu"


class SliceNames(NamedTuple):
    """What begins the type of a slice in MaxText (utils/accelerator_to_spec_map.py) and in XPK (AI-Hypercomputer/xpk
    at 367c838 core/system_characteristics.py), and the TensorCores of a chip, which types of v4, v5p and v7 count."""

    compiled: str
    xpk: str
    cores: int


SLICES: Final = {
    "tpu-v4": SliceNames("v4", "v4", 2), "tpu-v5e": SliceNames("v5e", "v5litepod", 1),
    "tpu-v5p": SliceNames("v5p", "v5p", 2), "tpu-v6e": SliceNames("v6e", "v6e", 1),
    "tpu-v7": SliceNames("tpu7x", "tpu7x", 2),
}  # fmt: skip
# what it does not run on
ELSEWHERE: Final = (Architecture.TRAINIUM, Architecture.GAUDI, Architecture.CPU)
NOT_RUN: Final = tuple(str(architecture) for architecture in ELSEWHERE)  # begin names of such accelerators


def slice_type(accelerator: str, devices: int) -> str:
    """A slice of so many chips, of the usual shape, as `compile_topology` names it."""
    names = SLICES[accelerator]
    return f"{names.compiled}-{names.cores * devices}"


def device_type(accelerator: str, devices: int, shape: tuple[int, ...]) -> str:
    """The same as XPK names it; `shape`: where that is not the usual one of so many chips."""
    names = SLICES[accelerator]
    axes = "x".join(str(length) for length in sorted(shape))
    return f"{names.xpk}-{axes or names.cores * devices}"


# of float8, Transformer Engine's and XLA's own by delayed scaling (layers/quantizations.py)
QUANTIZATION: Final[Mapping[Precision, str]] = {
    Precision.FP8: "fp8", Precision.FP8_CS: "te_fp8_currentscaling", Precision.FP8_MX: "te_mxfp8",
    Precision.NVFP4: "te_nvfp4",
}  # fmt: skip
QUANTIZED: Final[Mapping[str, Precision]] = {
    **{name: precision for precision, name in QUANTIZATION.items()},
    "fp8_gpu": Precision.FP8, "nanoo_fp8": Precision.FP8, "fp8_nanoo": Precision.FP8,
    "te_fp8_delayedscaling": Precision.FP8, "te_nvfp4_no_rht": Precision.NVFP4,
}  # fmt: skip
# whose scales of the past no micro-batch of an accumulated step may use (configs/types.py)
NOT_ACCUMULATED: Final = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")
OPTIMIZERS: Final = {
    "adamw": Optimizer.ADAMW, "adam_pax": Optimizer.ADAMW, "sgd": Optimizer.SGD, "muon": Optimizer.MUON,
}  # fmt: skip
MUON_BLOCKS: Final = ("llama2", "qwen3", "deepseek", "gemma3")  # of those written here (configs/types.py)

_HEADS: Final = frozenset(("query_proj", "key_proj", "value_proj"))
_SPLIT: Final = frozenset(("mlpwi_0", "mlpwi_1"))
_EXPERTS: Final = frozenset(("moe_mlpwi_0", "moe_mlpwi_1"))
# remat_policy -> what it keeps of a layer beside its input; all else is done again, "full" all of it
KEPT: Final[Mapping[str, frozenset[str]]] = {
    policy: frozenset(tensors) for policy, tensors in _NAMES["kept"].items()
}
OFFLOADING: Final = ("qkv_proj_offloaded", "minimal_offloaded")  # which keep on the host
EXACT: Final = (
    "full", "save_dot_except_mlp", "save_dot_with_context_except_mlp", "minimal", "minimal_with_context",
    "minimal_flash",
)  # fmt: skip
# tensors that remat_policy custom places one by one, and that which no policy makes again
PLACEABLE: Final[Sequence[str]] = _NAMES["placeable"]
LAYER_INPUT: Final = "decoder_layer_input"

CORE: Final = recompute_bits("core_attn")
NORMS: Final = recompute_bits("layernorm")


@dataclass(frozen=True)
class Repeated:
    """Bit masks of what policies do again of a model's layers: all of them its norms and the activation of experts,
    some the attention core, some all MLPs and experts, which stand or fall together. Planner has no list with the
    activation of a dense MLP."""

    small: int
    mlps: int

    @classmethod
    def of(cls, model: ModelSpec | None) -> Repeated:
        """Of a dense model where none is known."""
        blocks = model.blocks if model is not None else ()
        dense = not blocks or any(layer.mlp for layer in blocks)
        moe = any(layer.moe for layer in blocks)
        mlps = recompute_bits(*["mlp"] * dense, *["moe"] * moe)  # shared experts are within
        return cls(NORMS | (recompute_bits("moe_act") if moe else 0), NORMS | mlps)

    @property
    def lists(self) -> dict[int, str]:
        """Modules -> the policy that does these again."""
        return {
            self.small: "minimal_with_context",
            CORE | self.small: "minimal",
            self.mlps: "save_dot_with_context_except_mlp",
            CORE | self.mlps: "save_dot_except_mlp",
        }

    def policy(self, recompute: Recompute, modules: int) -> str | None:
        """The remat_policy of a configuration; None where there is none, as of one that keeps all."""
        return "full" if recompute is Recompute.FULL else self.lists.get(modules)

    def without(self, kept: frozenset[str]) -> tuple[Recompute, int]:
        """What is done again where so much is kept, as planner counts it: queries, keys and values stand or fall
        together, and without them all of the layer."""
        if not (kept >= _HEADS or "qkv_proj" in kept):
            return Recompute.FULL, 0
        whole = kept >= _SPLIT or "mlpwi" in kept or kept >= _EXPERTS
        return Recompute.SELECTIVE, (0 if "context" in kept else CORE) | (self.small if whole else self.mlps)
