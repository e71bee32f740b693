"""How does PEFT put adapters on a model? Its own functions; for quantised layers as its layers of bitsandbytes do.

Source: peft 0.21 tuners/lora/bnb.py (`Linear4bit.forward`, `Linear8bitLt.forward`), utils/other.py
(`prepare_model_for_kbit_training`). Left out: adapters other than LoRA and DoRA.
"""

from __future__ import annotations

import re
from typing import Any, Final

import peft
import torch
from peft.tuners.lora import Linear as Adapted
from transformers.pytorch_utils import Conv1D

from planner.dialect import option
from planner.dryrun.transformers.quantized import Linear4, Linear8
from planner.dryrun.transformers.recipe import Adapters
from planner.errors import UnsupportedError
from planner.spec.job import AdapterTargets

_ATTENTION: Final = re.compile("attention|attn", re.IGNORECASE)  # of the name of a class
_OUTPUT: Final = re.compile("(o|out|c)_proj|dense|out_lin|wo")  # what attention's result goes through


def prepare_quantized(model: Any) -> None:
    """Freeze a model and hold all that is not quantised in fp32, as PEFT prepares one; checkpointing apart."""
    peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def with_adapters(adapters: Adapters, model: Any) -> Any:
    """The model with adapters. Raises `UnsupportedError` where its attention is not known by names."""
    if isinstance(adapters.targets, tuple):
        targets: Any = list(adapters.targets)
    elif adapters.targets is AdapterTargets.ALL_LINEAR:
        targets = str(adapters.targets)
    else:
        targets = _of_attention(model, adapters.targets is AdapterTargets.ATTENTION)
    config = peft.LoraConfig(
        r=adapters.rank, lora_alpha=16, target_modules=targets, lora_dropout=adapters.dropout, use_dora=adapters.dora,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    config._register_custom_module({Linear4: _Adapted4, Linear8: _Adapted8})
    return peft.get_peft_model(model, config)


def _of_attention(model: Any, with_output: bool) -> list[str]:
    """Names of the linear layers of a model's attention, also where one holds queries, keys and values together; those
    of an indexer are none."""
    inside = [name for name, module in model.named_modules() if _ATTENTION.search(type(module).__name__)]
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
        and any(name.startswith(f"{one}.") for one in inside)
        and "indexer" not in name
    ]
    outputs = [name for name in layers if _OUTPUT.fullmatch(name.rpartition(".")[2])]
    if not layers or (not with_output and not outputs):
        must = f"adapters on attention need layers that {type(model).__name__} names as others do"
        raise UnsupportedError(must, ", ".join(layers[:4]) or "none", option("lora_targets", "all-linear"))
    return layers if with_output else [name for name in layers if name not in outputs]


class _Adapted8(Adapted):  # type: ignore[misc]  # peft is not checked
    """An adapter beside 8 bits: its result is cast, where no autocast is on, before the two are added."""

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """The base layer's result and the adapter's; the base layer's alone where adapters are taken off."""
        if self.disable_adapters:
            return self.base_layer(x)
        result, casts = self._base(x), not torch.is_autocast_enabled("cpu")
        (name,) = self.active_adapters
        into = self.lora_A[name]
        x = self._cast_input_dtype(x, into.weight.dtype) if casts else x
        if name in self.lora_variant:
            more = self.lora_variant[name].forward(self, active_adapter=name, x=x, result=result)
            return more.to(result.dtype) if casts else more
        more = self.lora_B[name](into(self.lora_dropout[name](x))) * self.scaling[name]
        return result + (more.to(result.dtype) if casts else more)

    def _base(self, x: Any) -> Any:
        return self.base_layer(x)


class _Adapted4(_Adapted8):
    """An adapter beside 4 bits, which copies the base layer's result first."""

    def _base(self, x: Any) -> Any:
        return self.base_layer(x).clone()
