"""Text of --set to values of axes."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.space.axes import check_restriction
from planner.space.restriction import parse_restriction, separate, split_layout
from planner.spec.config import ParallelConfig, value_text


@pytest.mark.parametrize(
    ("settings", "restrict"),
    [
        ([], {}),
        (["tp=8"], {"tp": (8,)}),
        (["pp=8,16", "dp=2"], {"pp": (8, 16), "dp": (2,)}),
        (["mbs=2"], {"micro_batch": (2,)}),
        (["micro-batch=1, 2,2"], {"micro_batch": (1, 2)}),
        (["recompute=none,selective,FULL"], {"recompute": (0, 1, 2)}),
        (["sp=0", "zero=3"], {"sp": (0,), "zero": (3,)}),
        (["sp=yes"], {"sp": (1,)}),
        (["sp=off,on"], {"sp": (0, 1)}),
        (["schedule=zbv,ZB_H1,vhalf,dualpipe-v"], {"schedule": (5, 3, 6, 9)}),
        (["recompute_modules=core_attn,moe_act+layernorm"], {"recompute_modules": (1, 6), "recompute": (1,)}),
        (
            ["recompute=none,selective", "recompute-modules=mlp"],
            {"recompute": (0, 1), "recompute_modules": (16,)},
        ),
    ],
)
def test_reads(settings: list[str], restrict: dict[str, tuple[int, ...]]) -> None:
    assert parse_restriction(settings) == restrict


@pytest.mark.parametrize(
    ("axis", "value"), [("recompute", 1), ("offload", 5), ("schedule", 3), ("schedule", 0), ("tp", 8)]
)
def test_what_is_said_can_be_set(axis: str, value: int) -> None:
    assert parse_restriction([f"{axis}={value_text(axis, value)}"]) == {axis: (value,)}


def test_modules_are_said_as_they_are_set() -> None:
    assert value_text("recompute_modules", 6) == "moe_act+layernorm"
    assert ParallelConfig(recompute=1, recompute_modules=6).describe().endswith("recompute:moe_act+layernorm")
    assert ParallelConfig(recompute=1, recompute_modules=1).describe().endswith("recompute:selective")
    assert ParallelConfig(recompute=1, recompute_modules=16).describe().endswith("recompute:mlp")


@pytest.mark.parametrize(
    "settings",
    [
        ["tp"], ["tp="], ["=8"], ["tp=-1"], ["tp=1.5"], ["tp=8,"], ["tp=eight"], ["tp=²"], ["tp=" + "9" * 50],
        ["tq=8"], ["tp=8", "tp=4"], ["mbs=1", "micro_batch=2"], ["recompute=some"], ["schedule=1"],
        ["recompute_modules=mpl"], ["recompute_modules=mlp+mlp"], ["recompute_modules=mlp", "recompute=full"],
    ],
)  # fmt: skip
def test_refuses(settings: list[str]) -> None:
    with pytest.raises(InputError):
        parse_restriction(settings)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("tp=2,pq=2", "axis of --set"),
        ("tp=2,tp=4", "tp of --set must be given once"),
        ("tp=2,pp=", "pp="),
        ("sp=2", "sp must be 0 or 1"),
        ("sp=perhaps", "sp must be 0 or 1"),
        ("tp=x", "tp must be a whole number from 1 to 1,048,576"),
        ("zero=x", "zero must be a whole number from 0 to 3"),
        ("schedule=sail-zb", "zb-v"),
    ],
)
def test_says_what_is_wrong(setting: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_restriction([setting])


def test_the_bounds_of_a_degree_are_the_same_wherever_it_is_refused() -> None:
    for setting in ("tp=x", "tp=0"):
        with pytest.raises(InputError, match="tp must be a whole number from 1 to 1,048,576"):
            check_restriction(parse_restriction([setting]))


def test_a_number_that_is_too_long_is_told_so() -> None:
    with pytest.raises(InputError, match="at most 9 digits"):
        parse_restriction(["tp=" + "9" * 11])


def test_an_unknown_axis_names_the_nearest() -> None:
    with pytest.raises(InputError, match="micro_batch"):
        parse_restriction(["microbatch=1"])


@pytest.mark.parametrize(
    "settings",
    [
        ["tp=8,16,pp=4", "sp=1"], ["tp=8,16 pp=4", "sp=1"], ["tp=8, 16, pp = 4, sp=1"], ["tp=8,16", "pp=4 sp=1"],
        [" tp=8,16\tpp=4,sp=1 "],
    ],
)  # fmt: skip
def test_several_settings_in_one_text_are_read_as_one_by_one(settings: list[str]) -> None:
    assert parse_restriction(settings) == {"tp": (8, 16), "pp": (4,), "sp": (1,)}
    layout = "Et*3|t*4|tttL"
    assert split_layout([*settings, f"layout={layout}"]) == (layout, separate(settings))
    assert split_layout([f"{settings[0]},layout=8,9,9,6", *settings[1:]])[0] == "8,9,9,6"
