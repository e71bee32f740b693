"""What are the terms of a step, of memory and of lost time called where people read them?

Left out: their keys, which plan files and JSON hold and which stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# only those whose key is not the field's word; all others are their key with spaces
_TITLES: Final[Mapping[str, str]] = {
    "memory_bound": "memory-bound ops",
    "host_bound": "CPU launch overhead",
    "host_transfer": "CPU offload",
    "narrow_weight_copies": "low-precision weight copies",
    "outside_allocator": "outside PyTorch allocator",
    "repeated_work": "recomputed work",
    "stops": "interruptions",
    "allocated_by_pytorch": "allocated by PyTorch",
    "reserved_by_pytorch": "reserved by PyTorch",
    "in_pools_of_cuda_graphs": "in pools of CUDA graphs",
    # groups of ranks
    "dp_cp": "dp x cp",
    "edp": "expert dp",
    # what messages carry
    "queries_keys_values": "queries, keys, values",
    "keys_and_values_gradients": "keys and values, gradients",
    "latent_keys_gradients": "latent keys, gradients",
    "inputs_gathered_again": "inputs re-gathered in backward (overlapped)",
    "gradients_across_hsdp_replicas": "gradients across HSDP replicas",
}


def term_name(key: str) -> str:
    """A term's key as words."""
    return _TITLES.get(key, key.replace("_", " "))
