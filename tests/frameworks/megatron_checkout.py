"""A checkout of Megatron-LM, named by MEGATRON_PATH: its own parser reads what planner wrote, without a device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from benchmarks.launch_judges import words_of
from planner.frameworks import framework
from planner.frameworks.framework import Launch

MAIN: Final = "main-2026-08"
of_main = pytest.mark.skipif(
    "MEGATRON_PATH" not in os.environ or os.environ.get("MEGATRON_RELEASE") != MAIN,
    reason=f"MEGATRON_PATH names no checkout of Megatron-LM {MAIN}",
)


def beginning(capability: tuple[int, int] = (9, 0), gib: int = 80) -> str:
    """The first lines of a script that imports Megatron-LM where no device is."""
    major, minor = capability
    return f"""
import json, os, sys, typing
import typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, os.environ["MEGATRON_PATH"])
import torch
device = dict(major={major}, minor={minor}, total_memory={gib} << 30)
torch.cuda.get_device_capability = lambda *a, **k: ({major}, {minor})
torch.cuda.get_device_properties = lambda *a, **k: type("Device", (), device)()
"""


def written(
    folder: Path, told: Launch, release: str, program: str = "pretrain_gpt.py"
) -> tuple[list[str], dict[str, str]]:
    """Words and environment of the training program in the launch files, which are put into a new folder."""
    folder.mkdir()
    for file, text in framework("megatron").render(told, release).items():
        (folder / file).write_text(text)
    return words_of(folder, program)
