"""In which words is a device spoken of?"""

from __future__ import annotations

import pytest

from planner.spec.machine.load_cluster import accelerator_names, load_accelerator, noun_of


@pytest.mark.parametrize(
    ("name", "noun", "monitor", "collectives"),
    [
        ("h100-sxm-80g", "GPU", "nvidia-smi", "NCCL"),
        ("rtx4090", "GPU", "nvidia-smi", "NCCL"),
        ("mi250x", "GPU", "rocm-smi", "RCCL"),
        ("mi355x", "GPU", "rocm-smi", "RCCL"),
        ("tpu-v4", "chip", "tpu-info", "XLA"),
        ("tpu-v6e", "chip", "tpu-info", "XLA"),
        ("trainium2", "chip", "neuron-top", "Neuron's runtime"),
        ("gaudi3", "HPU", "hl-smi", "HCCL"),
    ],
)
def test_words_of_a_device(name: str, noun: str, monitor: str, collectives: str) -> None:
    chip = load_accelerator(name)
    words = chip.architecture.words
    assert (chip.noun, words.monitor, words.collectives) == (noun, monitor, collectives)


def test_only_gpus_are_gpus() -> None:
    for name in accelerator_names():
        chip = load_accelerator(name)
        assert (chip.noun == "GPU") == (chip.vendor in ("NVIDIA", "AMD")), name


def test_devices_of_several_kinds() -> None:
    assert noun_of(["tpu-v5e", "tpu-v5p"]) == "chip"
    assert noun_of(["h100-sxm-80g", "mi300x"]) == "GPU"
    assert noun_of(["h100-sxm-80g", "tpu-v5p"]) == "device"
    assert noun_of([""]) == noun_of([]) == "GPU"  # files from before they named it
