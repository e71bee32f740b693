"""Mamba-1: selective scans, alone (Mamba, Falcon Mamba) and between layers of attention and experts (Jamba)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.cost.flops import model_flops
from planner.cost.operations import selective_scan
from planner.cost.operations.state_space import cut_of
from planner.cost.params import model_parameters
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.hf import read_hf_config
from planner.spec.mixers import SelectiveScan
from planner.spec.model import ModelSpec
from tests.problems import costs, problem

SCAN = SelectiveScan(heads=512, head_dim=1, state=16, groups=1, conv=4, rank=16)
ONE = np.ones(1)


def read(model_type: str, **fields: Any) -> ModelSpec:
    return read_hf_config({"model_type": model_type, **fields}, "config.json", "m")


def test_parameters_by_hand() -> None:
    """Mamba-2.8B (Gu and Dao 2023, table 12: 64 layers, 2,560 wide): of a layer 2560 x 10240 in, 5120 x 2560 out, four
    taps and a bias of 5,120 channels, 5120 x (160 + 32), 160 x 5120 and a bias, decays 5120 x 16, a skip."""
    model = read("mamba", vocab_size=50280, hidden_size=2560, num_hidden_layers=64)
    mixer = 2560 * 10240 + 5120 * 2560 + 5120 * 5 + 5120 * 192 + 160 * 5120 + 5120 + 5120 * 17
    found = model_parameters(model)
    assert found.by_kind["selective_scan"] == 64 * mixer
    assert found.total == 64 * (mixer + 2560) + 50280 * 2560 + 2560


def test_jamba_has_attention_in_one_layer_of_eight_and_experts_in_every_second() -> None:
    layers = read("jamba").layers
    assert [i for i, layer in enumerate(layers) if layer.attention is not None] == [4, 12, 20, 28]
    assert all((layer.moe is not None) == (i % 2 == 1) for i, layer in enumerate(layers))
    scans = {layer.state_space for layer in layers} - {None}
    assert [scan.normed for scan in scans if isinstance(scan, SelectiveScan)] == [True]
    found = model_parameters(read("jamba"))
    assert (round(found.total / 1e9, 1), round(found.active / 1e9, 1)) == (
        51.6,
        12.1,
    )  # Jamba: 52B, 12B active


def test_flops_and_bytes_by_hand() -> None:
    """Of a channel and token 8 of 4 taps, 7 of each of 16 states, 4; kept 3 values, 16 + 32 coefficients, B and C once
    more, and of every 2,048th token 16 states twice in fp32."""
    assert selective_scan.flops(SCAN, 1) == 512 * (8 + 7 * 16 + 4)
    cut = cut_of(SCAN, ONE, ONE, ONE)
    kept = selective_scan.kept_parts(SCAN, cut, 2.0, 2.0)
    assert float(kept["state_space"][0]) == 2 * 3 * 512 + 2 * (48 + 32) + 512 * 16 * 8 / 2048
    ahead, back = selective_scan.seconds(SCAN, cut, 2.0, 0.0 * ONE, ONE, 3.35e12, 1e15)
    assert float(back[0] / ahead[0]) == pytest.approx((5 + 9 * 1.8) / (2 + 5 * 1.8))


def test_a_layer_is_costed() -> None:
    model = read("falcon_mamba", hidden_size=256, num_hidden_layers=4, vocab_size=512)
    subject = problem(model, "1x8 h100", stack="deepspeed-2025")
    rows = [
        costs(subject).evaluate(ConfigTable.of([ParallelConfig(dp=8, zero=2, micro_batch=b)])) for b in (1, 2)
    ]
    assert rows[0].step_time[0] > 0
    assert rows[0].peak_memory[0] < rows[1].peak_memory[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba"])
def test_products_equal_the_library(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    fields = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 12, dtype=torch.long), use_cache=False)
    found = counter.get_flop_counts()["Global"]
    products = sum(flops for op, flops in found.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    assert model_flops(read(model_type, **fields), 2, 12).forward_linear == products
