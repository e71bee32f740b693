"""What DeepSpeed's engine moves around reductions and updates: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.cost import host as host_time
from planner.cost.host import HostModel
from planner.cost.params import model_parameters
from planner.errors import UnknownNameError
from planner.solve.step_messages import step_messages
from planner.spec.config import ConfigTable, ParallelConfig
from planner.spec.load_model import load_model
from planner.spec.stack.engines import DeepSpeed, States
from tests.problems import costs, dense_model, operations, problem, seconds_of, with_section

SUBJECT = problem(dense_model(4), "1x8 a100", global_batch=32, stack="deepspeed-2025")
PARAMETERS = float(model_parameters(SUBJECT.model).total)
RATE = 2039e9 * 0.85  # of the device's memory


@pytest.mark.parametrize(("zero", "reductions", "gathers"), [(1, 1, 0), (2, 4, 0), (3, 4, 4)])
def test_copies_beside_collectives(
    zero: int, reductions: int, gathers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = seconds_of(SUBJECT, "dp_comm", zero)
    monkeypatch.setattr(DeepSpeed, "reduction_copies", 0.0)
    monkeypatch.setattr(DeepSpeed, "gather_copies", 0.0)
    more = whole - seconds_of(SUBJECT, "dp_comm", zero)
    # three copies of 2 bytes, read and written, in every reduction; one in every gather, of which a model of fewer
    # than stage3_max_reuse_distance parameters has none for its backward pass
    assert more == pytest.approx((12 * reductions + 4 * gathers) * PARAMETERS / RATE, rel=1e-3)


def test_a_rank_alone_copies_nothing() -> None:
    assert seconds_of(SUBJECT, "dp_comm", 2, num_microbatches=32, dp=1) == 0.0


def test_an_update_moves_norms_casts_and_scaled_gradients_too() -> None:
    assert seconds_of(SUBJECT, "optimizer", 2) == pytest.approx((30 + 40) * PARAMETERS / 8 / RATE, rel=1e-3)


def sent(zero: int) -> dict[str, tuple[str, float]]:
    config = ParallelConfig(dp=8, zero=zero, num_microbatches=4)
    return {e.what: (e.kind.value, e.calls) for e in step_messages(costs(SUBJECT), config, 0)}


def test_zero_1_and_2_all_reduce_gradients_and_gather_weights_once() -> None:
    assert sent(0)["gradients"][0] == sent(1)["gradients"][0] == sent(2)["gradients"][0]
    assert (sent(1)["gradients"][1], sent(2)["gradients"][1], sent(3)["gradients"][1]) == (1, 4, 4)
    assert sent(3)["gradients"][0] != sent(2)["gradients"][0]
    assert (sent(1)["weights"][1], sent(2)["weights"][1]) == (1, 1)


def test_all_reduced_gradients_take_longer_than_scattered_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = with_section(SUBJECT, "communication", dp_overlap=0.0)
    monkeypatch.setattr(DeepSpeed, "reduction_copies", 0.0)
    whole = [seconds_of(subject, "dp_comm", zero) for zero in (2, 3)]
    monkeypatch.setattr(DeepSpeed, "reduces_whole", States.reduces_whole)
    scattered = [seconds_of(subject, "dp_comm", zero) for zero in (2, 3)]
    assert whole[0] > 1.5 * scattered[0]
    assert whole[1] == scattered[1]


@pytest.mark.parametrize("zero", [0, 1])
def test_a_pipeline_reduces_behind_its_last_micro_batch(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hiding = with_section(SUBJECT, "engine", ddp=True)
    none = with_section(hiding, "communication", dp_overlap=0.0)
    deep = {"pp": 2, "dp": 4, "num_microbatches": 8}
    behind, flat = seconds_of(hiding, "dp_comm", zero, **deep), seconds_of(hiding, "dp_comm", zero)
    monkeypatch.setattr(DeepSpeed, "beside_compute", States.beside_compute)
    hidden, whole = (seconds_of(subject, "dp_comm", zero, **deep) for subject in (hiding, none))
    assert behind == pytest.approx(whole)
    assert behind > 1.3 * hidden
    assert flat == seconds_of(hiding, "dp_comm", zero)


def test_a_pipeline_has_one_bucket_of_gradients() -> None:
    table = ConfigTable.of([ParallelConfig(dp=8, zero=1), ParallelConfig(dp=4, pp=2, zero=1)])
    assert SUBJECT.stack.engine.beside_compute(table["pp"], table["zero"]).tolist() == [True, False]


def attention(stack: str, model: str) -> tuple[float, float, float]:
    subject = problem(load_model(model), "1x1 a100", global_batch=1, stack=stack)
    cost = costs(subject).layers.layer(subject.model.layers[0], ConfigTable.of([ParallelConfig()]))
    return tuple(float(x[0]) for x in (cost.forward["attention"], cost.backward["attention"], cost.kept))  # type: ignore[return-value]


def test_a_mask_costs_the_whole_square_at_half_the_speed() -> None:
    flash, masked = (attention(f"deepspeed-2025{o}", "llama-2-7b") for o in ("", "+sdpa-mask"))
    assert masked[:2] == pytest.approx(tuple(4 * seconds for seconds in flash[:2]), rel=0.1)
    assert masked[2] == flash[2]


def test_a_mask_has_keys_and_values_copied_for_every_query_head() -> None:
    flash, masked = (attention(f"deepspeed-2025{o}", "llama-3-8b") for o in ("", "+sdpa-mask"))
    # 4,096 tokens of 24 more heads of 128, keys and values, 2 bytes
    assert masked[2] - flash[2] == pytest.approx(2 * 4096 * 24 * 128 * 2)
    assert masked[0] > 3.5 * flash[0] + 2 * 4096 * 2 * 128 * (32 + 8) / RATE


@pytest.mark.parametrize("option", ["no-compile", "sdpa-mask"])
def test_options_are_of_transformers_stacks(option: str) -> None:
    kernels = load_stack(f"fsdp1-2023+{option}").kernels
    assert kernels.code.single == (option == "no-compile")
    assert kernels.attention.tiled
    with pytest.raises(UnknownNameError):
        load_stack(f"llm-foundry-2023+{option}")
    assert np.isfinite(load_stack(f"fsdp1-2023+{option}").host.layer_floor)


def test_hooks_take_the_host_time_for_every_module_that_stage_3_gathers() -> None:
    layer, host = SUBJECT.model.layer_kinds[0], HostModel(SUBJECT)
    keys = ConfigTable.of([ParallelConfig(dp=8, zero=zero, num_microbatches=4) for zero in (2, 3)])
    ahead, behind, _ = host.launches(
        layer,
        host.floor(layer, operations(SUBJECT, layer)[1], keys, np.zeros(2, bool)),
        None,
        keys,
        np.ones(2),
    )
    hooks = 7 * 0.3e-3 + 0.65e-3  # q, k, v and projection, gate, up and down
    assert [*np.diff(ahead), *np.diff(behind)] == pytest.approx([hooks, hooks])


def test_stage_3_waits_for_the_host_where_texts_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    short = problem(dense_model(4), "1x8 a100", seq_len=256, global_batch=32, stack="deepspeed-2025")
    config = ParallelConfig(dp=8, zero=3, num_microbatches=4)
    with_hooks = costs(short).evaluate(ConfigTable.of([config])).step_time[0]
    monkeypatch.setattr(host_time, "MODULE_HOOKS", 0.0)
    monkeypatch.setattr(host_time, "LAYER_HOOKS", 0.0)
    without = costs(short).evaluate(ConfigTable.of([config])).step_time[0]
    # 4 layers of 4 micro-batches, forward and backward, at most; most of it, since their kernels take less
    assert 0.7 < (with_hooks - without) / (4 * 4 * 2 * (7 * 0.3e-3 + 0.65e-3)) <= 1.0
