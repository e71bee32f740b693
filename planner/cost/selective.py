"""What does checkpointing by operations keep of a layer, and what of its products does it do again?

torchtitan's policy ("op"): of the products in order of execution every second one is done again; the outputs of the
others, of attention, of reduce-scatters and of what experts are sent are kept, and all else is done again. One value
per distinct key. Read in torchtitan models/llama3/parallelize_llama.py (0.1, _custom_policy) and
distributed/activation_checkpoint.py (0.3.0, SelectiveAC). Left out: the experts chosen, a few bytes a token; what
is `rank` wide of adapters.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.cost.adapters import linear_layers
from planner.cost.cut import LayerShape
from planner.cost.operations.operation import Gemm, Operation, Run
from planner.spec.config import RECOMPUTE_MODULES, ConfigTable
from planner.spec.layer import Layer
from planner.spec.precision import PrecisionRecipe
from planner.spec.rule import Problem
from planner.spec.stack.kinds import FusedLinear

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

OPERATIONS = 1 << RECOMPUTE_MODULES.index("op")
# Of the two gathers and two reductions of a tensor-parallel layer's forward pass the gathers are done again.
GATHERED_AGAIN = 0.5
# Of a layer's passes over the residual stream the last one, behind which nothing is needed again, is not repeated.
LAST_RESIDUAL = 0.5
BYTES_OF_FLOAT8 = 1.0


def by_operations(keys: ConfigTable) -> Mask:
    """Which keys checkpoint by operations?"""
    return np.asarray(keys["recompute_modules"] & OPERATIONS > 0)


def kept_shares(
    problem: Problem, recipe: PrecisionRecipe, gemms: Iterable[Gemm], wide: bool
) -> dict[str, float]:
    """Share of the output of each product that is kept, by name [1]. `wide`: of a layer in 16 bits whatever the recipe.

    Linear layers are counted one by one: q, k and v unless the model fuses them, gate and up. Neither routers nor
    experts, whose product is no `mm`, are counted or kept. In 8 bits a product is `mm` still: the policy, a dispatch
    mode, sees torchao's tensors before they turn it into `_scaled_mm` (0.18 float8/float8_linear.py,
    prototype/moe_training/mxfp8_linear.py). That of NVFP4 is a kernel of its own, which no list names
    (torchtitan components/quantization/nvfp4.py nvfp4_mm_triton). An adapter's two products behind those of its layer
    change neither whose turn it is nor what is kept of the layer (torchtitan components/lora.py).
    """
    shares: dict[str, float] = {}
    counted, own_kernel = 0, recipe.operand_bytes < BYTES_OF_FLOAT8
    for gemm in gemms:
        if gemm.expert or gemm.name == "router" or (own_kernel and not gemm.wide and not wide):
            shares[gemm.name] = 0.0
            continue
        qkv = gemm.kv_out_features > 0 and problem.stack.kernels.fused_linear is FusedLinear.QKV
        widths = gemm.outputs(qkv or linear_layers(gemm, problem.stack) == 1)
        kept = [width for place, width in enumerate(widths, counted) if place % 2 == 0]
        counted += len(widths)
        shares[gemm.name] = sum(kept) / sum(widths)
    return shares


def kept_bytes(
    problem: Problem, run: Run, layer: Layer, ops: Iterable[Operation], x: LayerShape, parts: dict[str, Array]
) -> Array:
    """Bytes that a layer checkpointed by operations holds from its forward to its backward pass.

    `parts`: what it keeps without. A compiled model drops what no backward operation reads: the output of a block's
    last product, which the residual stream takes up. Llama-2-7B, bf16, per token: 15.4 h, compiled 13.4 h.
    """
    zero, act, compiled = np.zeros(len(x.t)), run.act, run.kernels.code.fused_activation
    gemms = [op.product for op in ops if op.product is not None]
    shares = kept_shares(problem, run.recipe, gemms, layer.wide)
    kept = parts["input"] + parts.get("core_attn", zero) + parts.get("attention_out", zero)
    for gemm in gemms:
        if compiled and gemm.name in ("mlp_fc2", "shared_fc2"):
            continue
        adapted = problem.job.lora_rank is not None and problem.job.adapts(gemm.name)
        kept = kept + (1.0 + adapted) * shares[gemm.name] * act * x.tokens * gemm.local(x)[1]
    # reduce-scatters behind attention and behind the block, the latter dropped as its product is
    blocks = int(layer.mixes) + int(not compiled and (layer.mlp is not None))
    kept = kept + np.where(x.sequence_split > 1, blocks * act * run.stream(x), 0.0)
    if layer.moe is not None:
        sent = act * x.routed_tokens * layer.moe.mean_k * x.et * layer.moe.width(problem.model.hidden)
        kept = kept + np.where(x.e > 1, (1.0 if compiled else 2.0) * sent, 0.0)
    return np.asarray(np.minimum(kept, sum(parts.values(), zero)))


def repeated_time(
    shares: dict[str, float], gemms: dict[str, Array], memory: dict[str, Array], scan: Array, tensor: Array
) -> Array:
    """Forward seconds done again: products that are not kept, passes bound by memory, scans, gathers of the stream.

    `gemms`, `memory`: forward seconds by name; `tensor`: exposed ones of tensor parallelism.
    """
    products = sum(((1.0 - shares[name]) * seconds for name, seconds in gemms.items()), np.zeros(len(scan)))
    passes = sum(memory.values(), np.zeros(len(scan))) - LAST_RESIDUAL * memory.get("residual", 0.0)
    return np.asarray(products + passes + scan + GATHERED_AGAIN * tensor)
