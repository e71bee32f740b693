"""In which number formats does a model have its weights once a checkpoint is loaded into it?

A class may make weights of its own in another format than it is asked for; `from_pretrained` casts them as it loads
them, but for those that the class keeps in fp32. Source: huggingface/transformers src/transformers/modeling_utils.py
(`_keep_in_fp32_modules`, which holds for fp16, and `_keep_in_fp32_modules_strict`, which holds for bf16 as well). Left
out: quantized weights.
"""

from __future__ import annotations

import re
from typing import Any

import torch


def cast_as_loaded(model: Any, held: Any) -> None:
    """Have every weight in the format that it is loaded in, where the model is asked to be `held` in a format."""
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or () if held != torch.float32 else ())
    if held == torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    kept_names = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in sorted(kept)) or "(?!)")
    for prefix, module in model.named_modules():
        for name, weight in list(module._parameters.items()):
            if weight is None or not weight.is_floating_point():
                continue
            dtype = torch.float32 if kept_names.search(f"{prefix}.{name}") else held
            if weight.dtype != dtype:
                with torch.no_grad():
                    module._parameters[name] = torch.nn.Parameter(weight.to(dtype), weight.requires_grad)
