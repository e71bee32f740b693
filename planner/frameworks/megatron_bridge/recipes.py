"""Which pre-training recipes has Megatron-Bridge, and what do they set before a script overrides it?

Settings are transcribed by `benchmarks/bridge_recipes.py` from the recipes' source. Left out: recipes of models that
planner does not ship, fine-tuning, and fields that decide neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

RECIPE_FILE: Final = Path(__file__).with_suffix(".yaml")
# fields of a recipe's ConfigContainer that are read
READ: Final = frozenset(
    (
        "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size",
        "model.virtual_pipeline_model_parallel_size", "model.context_parallel_size",
        "model.expert_model_parallel_size", "model.expert_tensor_parallel_size", "model.sequence_parallel",
        "model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers",
        "model.recompute_modules", "model.pipeline_model_parallel_layout", "model.num_layers_in_first_pipeline_stage",
        "model.num_layers_in_last_pipeline_stage", "model.account_for_embedding_in_pipeline_split",
        "model.account_for_loss_in_pipeline_split", "model.seq_length", "model.cp_comm_type",
        "model.cross_entropy_loss_fusion", "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend",
        "model.cuda_graph_impl", "model.cuda_graph_modules", "model.cuda_graph_scope", "ddp.use_distributed_optimizer",
        "ddp.use_megatron_fsdp", "ddp.data_parallel_sharding_strategy", "ddp.fsdp_double_buffer",
        "train.global_batch_size", "train.micro_batch_size", "mixed_precision",
        "optimizer.use_precision_aware_optimizer", "optimizer.exp_avg_dtype", "model.mtp_num_layers",
        "model.moe_shared_expert_overlap", "comm_overlap.tp_comm_overlap",
    )
)  # fmt: skip
RECIPES: Final = {
    "llama-2-7b": "llama2_7b_pretrain_2gpu_h100_bf16_config",
    "llama-3.2-1b": "llama32_1b_pretrain_1gpu_h100_bf16_config",
    "llama-3.2-3b": "llama32_3b_pretrain_1gpu_h100_bf16_config",
    "llama-3-8b": "llama3_8b_pretrain_2gpu_h100_bf16_config",
    "llama-3-70b": "llama3_70b_pretrain_32gpu_h100_bf16_config",
    "llama-3.1-8b": "llama31_8b_pretrain_2gpu_h100_bf16_config",
    "llama-3.1-70b": "llama31_70b_pretrain_32gpu_h100_bf16_config",
    "llama-3.1-405b": "llama31_405b_pretrain_256gpu_h100_bf16_config",
    "gpt-oss-20b": "gpt_oss_20b_pretrain_16gpu_h100_bf16_config",
    "gpt-oss-120b": "gpt_oss_120b_pretrain_64gpu_h100_bf16_config",
    "deepseek-v2-lite": "deepseek_v2_lite_pretrain_8gpu_h100_bf16_config",
    "deepseek-v2": "deepseek_v2_pretrain_128gpu_h100_bf16_config",
    "deepseek-v3": "deepseek_v3_pretrain_1024gpu_h100_bf16_config",
    "kimi-k2": "kimi_k2_pretrain_512gpu_h100_bf16_config",
    "moonlight-16b-a3b": "moonlight_16b_pretrain_16gpu_h100_bf16_config",
    "glm-4.5": "glm45_355b_pretrain_128gpu_h100_bf16_config",
    "glm-4.5-air": "glm45_air_106b_pretrain_32gpu_h100_bf16_config",
    "qwen2.5-0.5b": "qwen25_500m_pretrain_1gpu_h100_bf16_config",
    "qwen2.5-1.5b": "qwen25_1p5b_pretrain_1gpu_h100_bf16_config",
    "qwen2.5-7b": "qwen25_7b_pretrain_2gpu_h100_bf16_config",
    "qwen2.5-14b": "qwen25_14b_pretrain_4gpu_h100_bf16_config",
    "qwen2.5-32b": "qwen25_32b_pretrain_16gpu_h100_bf16_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config",
    "qwen3-next-80b-a3b": "qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config",
    "qwen3.5-35b-a3b": "qwen35_text_35b_a3b_pretrain_8gpu_gb200_bf16_config",
}
# whose functions compute how layers are dealt to stages (_pipeline_model_parallel_layout_builder)
LAYOUTS_COMPUTED: Final = frozenset(("deepseek-v3", "kimi-k2", "moonlight-16b-a3b"))
# whose functions set up Muon (distributed_muon_with_cosine_annealing)
MUON_RECIPES: Final = frozenset(("kimi-k2",))
# whose comm_overlap is None, so that fields below it cannot be overridden
WITHOUT_OVERLAP: Final = frozenset(
    RECIPES[name]
    for name in (
        "llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "llama-3.1-8b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b",
        "qwen2.5-14b", "qwen2.5-32b", "qwen3-next-80b-a3b",
    )
)  # fmt: skip


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: Mapping[str, Any] = yaml.load(RECIPE_FILE.read_text(encoding="utf-8"), Loader=loader)
    return document


def recipe_named(recipe: str) -> str | None:
    """The catalog model whose recipe this is, by any of its names; None for another."""
    for name, known in RECIPES.items():
        if recipe == known or (recipe and recipe in _document()["recipes"][known]["names"]):
            return name
    return None


def recipe_settings(model: str | None) -> dict[str, Any]:
    """Dotted field -> value that a model's recipe sets; "computed" where its source does not say. For a recipe that is
    not known, what all have in common of sharding: the distributed optimizer."""
    common: dict[str, Any] = dict(_document()["common"])
    if model is None:
        return {name: value for name, value in common.items() if name.startswith("ddp.")}
    return common | dict(_document()["recipes"][RECIPES[model]]["settings"])
