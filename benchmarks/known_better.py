"""What was found to be faster than answers of commit 15a9d0f9 that said they were proven, or that nothing was said of?

Questions of users, each with one configuration that `planner estimate` calls legal and that fits; an answer that is
slower than that beyond its gap is beaten. Left out: what is searched for anew (`brute_force.py`, `hill_climb.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.ask.request import Request

_EXPERTS: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
}
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "seven-layers": {
        **_EXPERTS,
        "num_hidden_layers": 7,
        "vocab_size": 32_000,
        "num_experts": 12,
        "num_experts_per_tok": 2,
    },
    "eight-layers": {
        **_EXPERTS,
        "num_hidden_layers": 8,
        "vocab_size": 151_936,
        "num_experts": 16,
        "num_experts_per_tok": 4,
    },
}


@dataclass(frozen=True)
class Case:
    """A question. `model`: of the catalog, or one of `CONFIGS`."""

    model: str
    cluster: str
    gpus: int
    seq_len: int
    batch: int
    stack: str = "megatron-2026"
    settings: tuple[str, ...] = ()
    headroom: float = 0.05

    @property
    def name(self) -> str:
        """What tells it from others."""
        return f"{self.model} on {self.gpus}"

    def request(self, folder: Path) -> Request:
        """As `planner.plan` takes it; a model that is none of the catalog is written into `folder`."""
        model = self.model
        if model in CONFIGS:
            model = str(folder / f"{model}.json")
            Path(model).write_text(json.dumps(CONFIGS[self.model]), encoding="utf-8")
        return Request(
            model, self.cluster, self.gpus, seq_len=self.seq_len, global_batch=str(self.batch), stack=self.stack,
            set=self.settings, headroom=self.headroom, seek_batch=False, front=False,
        )  # fmt: skip

    def named(self, folder: Path, settings: tuple[str, ...]) -> Request:
        """One configuration, as `planner.estimate` takes it."""
        return replace(self.request(folder), set=settings)


@dataclass(frozen=True)
class Known:
    """A question and what is faster than the answer that commit 15a9d0f9 gave: `better`, as `--set` names it. `held`:
    axes that an answer may say the program holds, which then is no beating."""

    name: str
    case: Case
    better: tuple[str, ...]
    held: tuple[str, ...] = ()


_NODE: Final = "1x8 rtx4090 100G-ib"
_CUT: Final = ("tp=2", "pp=4", "micro_batch=4")
KNOWN: Final = (
    Known("empty ends", Case("llama-3.2-1b", _NODE, 8, 4096, 64, settings=("pp=8",)),
          ("pp=8", "layout=0,4,3,2,2,2,3,0")),
    Known("empty ends, context", Case("llama-3.2-1b", "dgx-h100", 32, 4096, 128, settings=("pp=8", "vpp=1")),
          ("pp=8", "cp=2", "cp_kind=all-gather", "layout=0,3,3,3,2,2,3,0")),
    Known("empty ends, gemma-2-2b", Case("gemma-2-2b", "dgx-h100", 16, 4096, 64, settings=("pp=8", "vpp=1")),
          ("pp=8", "cp=2", "cp_kind=all-gather", "sp=0", "zero=1", "layout=0,2,4,4,4,6,6,0")),
    Known("empty ends, gemma-3-4b", Case("gemma-3-4b", "dgx-h100", 32, 4096, 128, settings=("pp=8", "vpp=1")),
          ("pp=8", "cp=2", "cp_kind=all-gather", "sp=0", "zero=1", "layout=0,3,5,7,7,6,6,0")),
    Known("empty ends, gemma-3-1b", Case("gemma-3-1b", "dgx-h100", 16, 4096, 64, settings=("pp=8", "vpp=1")),
          ("pp=8", "sp=0", "zero=1", "layout=0,0,2,4,4,5,11,0")),
    Known("empty ends, gemma-3-1b, one node", Case("gemma-3-1b", _NODE, 8, 4096, 64, settings=("pp=8",)),
          ("pp=8", "sp=0", "zero=0", "layout=0,4,4,4,4,5,5,0")),
    Known("uneven chunks", Case("seven-layers", _NODE, 8, 1024, 96, "megatron-2025", headroom=0.5),
          ("pp=2", "vpp=2", "micro_batch=4", "layout=1,3,3,0")),
    Known("alternating", Case("gemma-3-27b", "dgx-h100", 64, 8192, 256, settings=("pp=2,4,8",)),
          ("tp=2", "pp=4", "vpp=4", "cp=2", "cp_kind=a2a", "layout=2,4,3,5,5,4,4,4,4,5,5,4,5,4,4,0")),
    Known("the head alone", Case("eight-layers", "2x8 h100 400G-ib", 16, 4096, 64, settings=(*_CUT, "vpp=1")),
          (*_CUT, "layout=3,3,2,0")),
    Known("the head alone, twice", Case("eight-layers", "2x8 h100 400G-ib", 16, 4096, 128, settings=(*_CUT, "vpp=1")),
          (*_CUT, "layout=3,3,2,0")),
    Known("a folded pipeline", Case("llama-3.1-8b", "1x8 h100 400G-ib", 8, 4096, 64, "torchtitan-2026-eager",
                                    ("schedule=zb-v", "pp=2")),
          ("schedule=zb-v", "pp=2", "zero=2", "layout=9,10,8,5")),
    Known("pipelines of DeepSpeed", Case("llama-3.2-3b", "1x8 rtx4090 25G-eth", 8, 2048, 64, "deepspeed-2025"),
          ("pp=4", "zero=1"), ("pp",)),
    Known("an optimizer on the host", Case("llama-3.1-8b", _NODE, 8, 8192, 512),
          ("tp=2", "pp=2", "vpp=6", "cp=2", "sp=1", "zero=1", "recompute_modules=layernorm", "offload=optimizer"),
          ("offload",)),
)  # fmt: skip
