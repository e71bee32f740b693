"""What do Primus's presets for Megatron-LM set? Writes `planner/frameworks/megatron/primus.yaml`.

    python -m benchmarks.primus_presets CHECKOUT COMMIT

Every preset is written out with what it extends. Left out: settings that planner does not read, and those at the
defaults that Megatron-LM's arguments have where nothing states them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from planner.frameworks.megatron import primus_notes
from planner.frameworks.megatron.primus import PRESET_FILE, options_of
from planner.frameworks.options import option_table, table_releases

FOLDERS: Final = {"modules": ("pre_trainer", "sft_trainer"), "models": ()}
OWN: Final = Path(primus_notes.__file__)
READERS: Final = (
    *("parse", "parse_model", "states", "sparse", "delta", "hybrid", "graphs", "foreign"),
    "heterogeneous",
)
# Megatron-LM's own defaults (megatron/training/arguments.py) of what is read
_PLAIN: Final[dict[str, Any]] = {
    "attention_dropout": 0.1, "context_parallel_size": 1, "cp_comm_type": "p2p", "exp_avg_dtype": "fp32",
    "exp_avg_sq_dtype": "fp32", "expert_model_parallel_size": 1, "fp8_recipe": "delayed", "hidden_dropout": 0.1,
    "kv_lora_rank": 32, "main_grads_dtype": "fp32", "main_params_dtype": "fp32", "model_type": "gpt",
    "moe_layer_freq": 1, "moe_router_topk": 2, "moe_token_dispatcher_type": "allgather", "normalization": "LayerNorm",
    "num_distributed_optimizer_instances": 1, "num_layers_at_end_in_bf16": 1, "num_layers_at_start_in_bf16": 1,
    "optimizer": "adam", "optimizer_offload_fraction": 1.0, "pipeline_model_parallel_size": 1,
    "position_embedding_type": "learned_absolute", "qk_head_dim": 128, "qk_pos_emb_head_dim": 64,
    "sgd_momentum": 0.9, "tensor_model_parallel_size": 1, "transformer_impl": "transformer_engine",
    "v_head_dim": 128, "make_vocab_size_divisible_by": 128, "cuda_graph_scope": "full", "pp_algorithm": None,
    "data_parallel_sharding_strategy": "no_shard", "data_parallel_replicate_degree": 1, "torch_compile": None,
    "attention_backend": "auto", "fp4_recipe": "nvfp4", "ckpt_format": "torch_dist",
}  # fmt: skip
_NEVER: Final = ("cuda_graph_scope", "torch_compile", "pp_algorithm", "conv_L_cache")


def preset(path: Path) -> dict[str, Any]:
    """A preset with what it extends, the last of each setting counting."""
    document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    found: dict[str, Any] = {}
    extended = document.pop("extends", [])
    for name in [extended] if isinstance(extended, str) else extended:
        found |= preset(path.parent / name)
    return found | document


def is_read(name: str, value: Any, words: str, own: str) -> bool:
    """Is it a setting that changes what planner reads?"""
    if name in _NEVER or (value in (None, False, 0, []) and name != "add_bias_linear"):
        return name in ("hidden_dropout", "attention_dropout") and value == 0
    if name in _PLAIN and _PLAIN[name] == value:
        return False
    return f'"{name}"' in own or any(f'"{option[0]}"' in words for option in options_of({name: value}))


def main() -> None:
    checkout, commit = Path(sys.argv[1]) / "primus" / "configs", sys.argv[2]
    own = OWN.read_text(encoding="utf-8")
    words = "\n".join(OWN.with_name(f"{name}.py").read_text(encoding="utf-8") for name in READERS)
    written: dict[str, Any] = {"source": f"AMD-AGI/Primus {commit}, primus/configs"}
    names: set[str] = set()
    for kind, wanted in FOLDERS.items():
        written[kind] = {}
        for path in sorted((checkout / kind / "megatron").glob("*.yaml")):
            if path.stem.endswith("_base") or (wanted and path.stem not in wanted):
                continue
            settings = preset(path)
            names |= settings.keys()
            if kind == "modules" or settings.get("num_layers"):
                written[kind][path.stem] = {
                    name: value
                    for name, value in sorted(settings.items())
                    if is_read(name, value, words, own)
                }
    known = {
        option[2:].replace("-", "_") for option in option_table("megatron", table_releases("megatron")[-1])
    }
    written["names"] = sorted(names - known)
    text = yaml.safe_dump(written, sort_keys=False, width=118, default_flow_style=None)
    PRESET_FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
