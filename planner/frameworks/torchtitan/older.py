"""Which settings did torchtitan's TOML files name otherwise before 0.2.2? Such files are read as they meant.

Source: pytorch/torchtitan, torchtitan/config_manager.py (later config/job_config.py) before and behind the commits
beside the names. Left out: names whose values mean something else now (pipeline_parallel_microbatches): they stay
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_DEGREES: Final = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree")
_PIPELINE: Final = ("pipeline_parallel_degree", "pipeline_parallel_schedule", "context_parallel_degree")
_FLOAT8: Final = "quantize.linear.float8"
_CONVERTS: Final = "float8.enable_float8_linear"
RENAMED: Final = {
    "training.batch_size": "training.local_batch_size",  # 8570415 of 2025-06-05
    # 785c34c of 2025-03-18
    **{f"training.{name}": f"parallelism.{name}" for name in (*_DEGREES, "disable_loss_parallel")},
    **{f"experimental.{name}": f"parallelism.{name}" for name in _PIPELINE},
    "training.compile": "compile.enable",  # 08b8b24 of 2025-08-20
    **{  # 8a2686c of 2025-09-30
        f"float8.{name}": f"{_FLOAT8}.{name}"
        for name in (
            "enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp", "recipe_name", "emulate",
            "filter_fqns",
        )
    },
}  # fmt: skip


# of flame, a trainer made of torchtitan of early 2025 (fla-org/flame config_manager.py), which has no global batch
ACCUMULATION: Final = "training.gradient_accumulation_steps"
_BEFORE: Final = ("model.name", "model.flavor", "model.config", ACCUMULATION)


def is_older(words: Mapping[str, Any]) -> bool:
    """Are options of a command line those of 0.2.2 or before, which has models by name, not of 0.3.0?"""
    new = "module" in words or "config" in words
    return not new and any(name in RENAMED or name in _BEFORE or name == _CONVERTS for name in words)


def with_new_names(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings by the names of 0.2.2, and a note on those that it does not take by the names they have."""
    older = [name for name in settings if name in RENAMED or name in (_CONVERTS, ACCUMULATION)]
    if not older:
        return dict(settings), ()
    said = {RENAMED[name]: value for name, value in settings.items() if name in RENAMED}
    said |= {name: value for name, value in settings.items() if name not in older or name == ACCUMULATION}
    if str(settings.get(_CONVERTS, "")).lower() == "true":
        said["model.converters"] = f"{said.get('model.converters', '')} float8"
    listed = ", ".join(older)
    return said, (
        f"names of releases before 0.2.2, which takes them no longer, read as they meant: {listed}",
    )
