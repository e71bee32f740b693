"""One complete row and the models it can name."""

from __future__ import annotations

from typing import Any

MODELS: dict[str, Any] = {
    "small": {
        "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab": 128256,
        "tied_embeddings": False, "gated_mlp": True, "attention": "gqa", "source": "a test",
    },
    "unknown": {"params_total_b": 100},
    "moe": {
        "layers": 4, "hidden": 1024, "ffn": 4096, "heads": 16, "kv_heads": 16, "head_dim": 64, "vocab": 32000,
        "tied_embeddings": False, "gated_mlp": True, "attention": "mha",
        "moe": {"experts": 8, "top_k": 2, "expert_ffn": 4096, "shared_ffn": 0, "first_dense_layers": 0, "moe_every": 1},
    },
}  # fmt: skip
ROW = {
    "source": "bench_24.11", "model": "small", "gpu": "h100_sxm_80g", "gpus": "64", "gpus_per_node": "8",
    "nvlink_domain": "8", "internode": "IB 8x400G", "seq_len": "8192.0", "global_batch": "128.0", "micro_batch": "1.0",
    "tp": "4.0", "cp": "1.0", "pp": "2.0", "vpp": "1.0", "ep": "1.0", "dp": "8.0", "dp_sharding": "zero1",
    "sequence_parallel": "True", "recompute": "none", "schedule": "1f1b", "precision": "bf16", "optimizer": "adam",
    "framework": "NeMo/Megatron-Core",
}  # fmt: skip
