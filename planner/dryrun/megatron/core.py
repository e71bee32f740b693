"""Megatron-Core, loaded so that what it has torch.compile fuse is one kernel each (`kernels.one_kernel`).

Other modules take the package from here, as functions are decorated when it is loaded. Raises `ImportError` for another
release than the one whose kernels have stand-ins, and where the package was loaded before.
"""

from __future__ import annotations

import sys
import warnings
from unittest.mock import patch

import torch

from planner.dryrun.megatron.kernels import one_kernel
from planner.dryrun.megatron.recipe import RELEASE

if "megatron.core" in sys.modules:
    raise ImportError("megatron.core was loaded before, with functions that torch.compile fuses")
with warnings.catch_warnings(), patch.object(torch, "compile", one_kernel):
    warnings.simplefilter("ignore")  # of packages that have no CPU version
    import megatron.core
    import megatron.core.optimizer as optimizers
    from megatron.core import activations, distributed, parallel_state
    from megatron.core.distributed import param_and_grad_buffer
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.models.common.language_module import language_module
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.optimizer import clip_grads, distrib_optimizer, optimizer
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.tensor_parallel import layers, random
    from megatron.core.transformer import multi_latent_attention, transformer_config
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.moe import experts, moe_utils, token_dispatcher

if megatron.core.__version__ != RELEASE:
    raise ImportError(f"megatron-core {RELEASE} is needed, {megatron.core.__version__} is installed")

__all__ = [
    "Float16Module",
    "GPTModel",
    "activations",
    "clip_grads",
    "distrib_optimizer",
    "distributed",
    "experts",
    "gpt_layer_specs",
    "language_module",
    "layers",
    "moe_utils",
    "multi_latent_attention",
    "optimizer",
    "optimizers",
    "parallel_state",
    "param_and_grad_buffer",
    "random",
    "rope_utils",
    "schedules",
    "token_dispatcher",
    "transformer_config",
]
