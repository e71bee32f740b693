"""Do uneven expert loads reach time and memory, and are bad ones refused in words?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.answer.estimate import make_estimate
from planner.ask.request import Request, resolve
from planner.errors import InputError
from planner.spec.job import Job

NAMED = {"tp": (1,), "pp": (2,), "ep": (8,), "micro_batch": (1,)}


def request(**changes: object) -> Request:
    return Request("Qwen/Qwen3-30B-A3B", "2x8 h100 400G-ib", seq_len=4096, set=NAMED, **changes)  # type: ignore[arg-type]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_busiest_rank_sets_time_and_memory() -> None:
    even, uneven, replicated = (
        make_estimate(request(**more)).choices[0]
        for more in (
            {},
            {"expert_loads": "zipf:1.2"},
            {"expert_loads": "zipf:1.2", "expert_replicas": 256},
        )
    )
    assert uneven.step_time > 1.02 * even.step_time
    assert uneven.memory.terms["activations"] > 1.05 * even.memory.terms["activations"]
    assert uneven.memory.terms["weights"] == even.memory.terms["weights"]
    assert replicated.step_time < uneven.step_time
    assert replicated.memory.terms["weights"] > 1.3 * even.memory.terms["weights"]


def test_equal_loads_change_nothing(tmp_path: Path) -> None:
    loads = write(tmp_path / "loads.txt", "3 " * 128)
    assert make_estimate(request(expert_loads=loads)).choices[0].step_time == pytest.approx(
        make_estimate(request()).choices[0].step_time
    )


def test_the_factor_depends_on_the_degree() -> None:
    job = resolve(request(expert_loads="zipf:0.6"))[0].job
    factor = job.imbalance(np.array([1.0, 8.0, 128.0]))
    assert factor[0] == 1
    assert 1 <= factor[1] < 1.01 < 2 < factor[2]
    assert Job(4096, 8, expert_imbalance=1.3).imbalance(np.array([1.0, 2.0])).tolist() == [1.0, 1.3]


@pytest.mark.parametrize("text", ["1 2 3", "[1, x]", "", "nan " * 128, "-1 " * 128, "0 " * 128])
def test_a_file_that_holds_no_loads_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="loads"):
        resolve(request(expert_loads=write(tmp_path / "loads.csv", text)))


@pytest.mark.parametrize(
    "more",
    [{"expert_loads": "zipf:x"}, {"expert_loads": "absent.csv"}, {"expert_replicas": 256},
     {"expert_loads": "zipf:1", "expert_replicas": 64}],
)  # fmt: skip
def test_bad_options_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(InputError):
        resolve(request(**more))
    with pytest.raises(InputError, match="busiest"):
        Job(4096, 8, expert_imbalance=0.5)


@pytest.mark.parametrize("replicas", [0, 3, 127, 8 * 128 + 1, 10**12])
def test_too_few_or_too_many_replicas_are_named_as_given(replicas: int) -> None:
    with pytest.raises(InputError, match=r"from 128, one of every expert, to 1,024") as refused:
        resolve(request(expert_loads="zipf:1.2", expert_replicas=replicas))
    assert refused.value.given == str(replicas)
