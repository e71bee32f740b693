"""What do its files and their settings call things? DeepSpeed 0.19.8."""

from __future__ import annotations

from typing import Final

TITLE: Final = "DeepSpeed"
VERSION: Final = "0.19.8"
CONFIG, HOSTFILE, PIPELINE = "ds_config.json", "hostfile", "pipeline.json"
PURE_SETTINGS: Final = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
