"""Fused dispatchers of tokens: options of Megatron's stacks, where they run, what they bring, how files ask for one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.catalog.load_stacks import load_stack
from planner.cli import app
from planner.errors import UnknownNameError
from planner.frameworks import framework
from planner.spec.stack.kinds import Dispatcher

MODEL = ["qwen3-30b-a3b", "--seq-len", "4096", "--global-batch", "256"]
NAMED = ["--set", "micro_batch=1"]


def answered(*words: str) -> dict[str, object]:
    """The answer, of a configuration that is illegal or does not fit, too."""
    result = CliRunner().invoke(app, [words[0], *MODEL[:1], *words[1:], *MODEL[1:], "--json"])
    assert result.exit_code in (0, 1), result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def broken(cluster: str, stack: str, *pins: str) -> set[str]:
    sets = [word for pin in ("micro_batch=1", *pins) for word in ("--set", pin)]
    found = answered("estimate", cluster, "--stack", stack, *sets)
    return {violation["rule"] for violation in found["violations"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["deepep", "hybridep"])
def test_the_option_sets_the_dispatcher(name: str) -> None:
    stack = load_stack(f"megatron-2026+{name}")
    assert stack.communication.dispatcher is Dispatcher(name)
    assert load_stack("megatron-2026").communication.dispatcher is Dispatcher.ALL_TO_ALL
    assert load_stack(f"megatron-fsdp-2026+{name}").communication.dispatcher is Dispatcher(name)


@pytest.mark.parametrize(
    "name", ["megatron-2024+deepep", "megatron-2025+hybridep", "torchtitan-2026+hybridep"]
)
def test_stacks_older_than_a_dispatcher_do_not_take_it(name: str) -> None:
    with pytest.raises(UnknownNameError, match="option of stack"):
        load_stack(name)


@pytest.mark.parametrize(
    ("cluster", "option", "pins", "rule"),
    [
        ("4x8 h100 400G-ib", "deepep", ["ep=32"], ""),
        ("4x8 h100 400G-ib", "hybridep", ["ep=32"], ""),
        ("4x8 a100-sxm-80g 200G-roce", "deepep", ["ep=16"], ""),
        ("4x8 h100 400G-efa", "deepep", ["ep=16"], "dispatcher-network"),
        ("4x8 h100 400G-efa", "deepep", ["ep=8"], ""),
        ("4x8 h100 400G-eth", "hybridep", ["ep=16"], "dispatcher-network"),
        ("1x8 l40s", "deepep", ["ep=8"], "dispatcher-devices"),
        ("1x8 rtx4090", "hybridep", ["ep=8"], "dispatcher-devices"),
        ("1x8 mi300x", "deepep", ["ep=8"], ""),
        ("4x8 mi355x 400G-roce", "deepep", ["ep=32"], ""),
        ("1x8 mi300x", "hybridep", ["ep=8"], "dispatcher-devices"),
        ("1x8 mi250x", "deepep", ["ep=8"], "dispatcher-devices"),
        ("4x8 mi300x 400G-ib", "deepep", ["ep=1"], ""),
        ("4x8 h100 400G-ib", "deepep", ["ep=8", "tp=2", "etp=2"], ""),
        ("4x8 h100 400G-ib", "deepep", ["ep=2", "tp=8", "etp=8", "sp=1"], "dispatcher-choices"),
        ("4x8 h100 400G-ib", "hybridep", ["ep=2", "tp=8", "etp=8", "sp=1"], ""),
        ("8x4 h100 400G-ib", "deepep", ["ep=8"], "dispatcher-groups"),
        ("8x4 h100 400G-ib", "deepep", ["ep=4"], ""),
        ("8x4 h100 400G-ib", "hybridep", ["ep=8"], ""),
    ],
)
def test_where_dispatchers_run(cluster: str, option: str, pins: list[str], rule: str) -> None:
    pins = [*pins, "sp=1"] if "tp=2" in pins else pins
    found = broken(cluster, f"megatron-2026+{option}", *pins)
    assert found == ({rule} if rule else set())
    assert not broken(cluster, "megatron-2026", *pins)


@pytest.mark.parametrize(
    ("device", "ep", "refused"),
    [("h100", 192, True), ("h100", 48, False), ("mi300x", 48, True), ("mi300x", 64, False)],
)
def test_groups_that_deepep_has_no_settings_for(device: str, ep: int, refused: bool) -> None:
    """Primus-Turbo's port has none for 48 and 96 ranks."""
    nodes = 2 * ep // 8
    sets = ["--set", "pp=2", "--set", "micro_batch=1", "--set", f"ep={ep}", "--stack", "megatron-2026+deepep"]
    sizes = ["--seq-len", "4096", "--global-batch", str(16 * nodes)]
    words = ["estimate", "deepseek-v3", f"{nodes}x8 {device} 400G-ib", *sizes, *sets, "--json"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert ("dispatcher-groups" in {v["rule"] for v in found["violations"]}) is refused


def test_deepep_on_amd_devices_is_said_to_be_primus_turbos_and_not_promised() -> None:
    found = answered("estimate", "1x8 mi300x", *NAMED, "--set", "ep=8", "--stack", "megatron-2026+deepep")
    assert any("Primus-Turbo's" in said["text"] for said in found["assumptions"])  # type: ignore[attr-defined]
    plain = answered("estimate", "1x8 mi300x", *NAMED, "--set", "ep=8")
    assert "deepep" not in str(plain["smallest_change"])
    assert "Primus" not in json.dumps(plain["assumptions"])


@pytest.mark.parametrize(("name", "rules"), [("deepep", {"dispatcher-devices"}), ("hybridep", set())])
def test_only_hybridep_reaches_beyond_a_node_over_nvlink(name: str, rules: set[str]) -> None:
    words = ["gb200-nvl72", "--gpus", "16", "--stack", f"megatron-2026+{name}", *NAMED, "--set", "ep=8"]
    found = answered("estimate", *words)
    assert {violation["rule"] for violation in found["violations"]} == rules  # type: ignore[attr-defined]


def step(found: dict[str, object]) -> float:
    return float(found["choices"][0]["step_time"])  # type: ignore[index]


WIDE = [
    *NAMED,
    *(
        word
        for pin in ("ep=16", "tp=1", "pp=1", "cp=1", "recompute=none", "zero=1")
        for word in ("--set", pin)
    ),
]


def test_an_estimate_says_what_the_best_dispatcher_would_bring() -> None:
    words = ["estimate", "4x8 h100 400G-ib", *WIDE]
    plain, fused = answered(*words), answered(*words, "--stack", "megatron-2026+hybridep")
    said = str(plain["smallest_change"])
    assert "--stack megatron-2026+hybridep" in said
    assert "+deepep" not in said  # one of them is taken, the faster
    told = float(said.split("all-to-all would cut the step time by ")[1].split("%")[0]) / 100
    assert told == pytest.approx(1 - step(fused) / step(plain), abs=0.006)
    assert "tokens dispatched" not in str(fused["smallest_change"])


def test_a_plan_turns_it_on_and_says_what_it_is_worth() -> None:
    words = ["plan", "4x8 h100 400G-ib", *WIDE]
    found = answered(*words)
    on = {one["name"]: one for one in found["search"]["turned_on"]}  # type: ignore[index]
    (name,) = {"deepep", "hybridep"} & set(on)
    without = answered(*words, "--without", name)
    assert step(without) == pytest.approx(on[name]["without_step_time"], rel=1e-3)
    assert step(found) <= step(without)
    assert name not in str(without["subject"]["stack"]["name"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("cluster", "pins"),
    [("4x8 h100 400G-efa", ["ep=16"]), ("4x8 h100 400G-ib", ["ep=1"]), ("1x8 l40s", ["ep=8"])],
)
def test_nothing_is_said_where_none_runs(cluster: str, pins: list[str]) -> None:
    sets = [word for pin in ("micro_batch=1", *pins) for word in ("--set", pin)]
    helps = str(answered("estimate", cluster, *sets)["smallest_change"])
    assert "deepep" not in helps
    assert "hybridep" not in helps


def test_a_dense_model_has_nothing_to_dispatch() -> None:
    words = [
        "estimate",
        "llama-3.1-8b",
        "1x8 h100",
        "--set",
        "tp=2",
        "--stack",
        "megatron-2026+deepep",
        "--json",
    ]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert found["verdict"] == "found"
    assert "+deepep changes nothing of a dense model" in str(found["assumptions"])


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("name", ["deepep", "hybridep"])
def test_launch_files_ask_for_it_and_check_reads_it(tmp_path: Path, to: str, name: str) -> None:
    plan, launch = tmp_path / "plan.json", tmp_path / "launch"
    stack = f"megatron-2026+{name}"
    answered("estimate", "4x8 h100 400G-ib", *NAMED, "--set", "ep=16", "--stack", stack, "-o", str(plan))
    run = CliRunner().invoke
    assert run(app, ["export", str(plan), "--to", to, "-o", str(launch)]).exit_code == 0
    parsed = framework(to).parse({"launch.sh": (launch / "launch.sh").read_text()})
    assert parsed.dispatcher is Dispatcher(name)
    words = ["check", str(launch), "--cluster", "4x8 h100 400G-ib", "--model", MODEL[0], "--json"]
    checked = json.loads(run(app, words).stdout)
    assert "measured without" not in json.dumps(checked)
    assert f"stack {stack}" in json.dumps(checked)


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
def test_launch_files_say_what_puts_deepep_in_on_amd_devices(tmp_path: Path, to: str) -> None:
    plan, launch = tmp_path / "plan.json", tmp_path / "launch"
    words = ["1x8 mi300x", *NAMED, "--set", "ep=8", "--stack", "megatron-2026+deepep", "-o", str(plan)]
    answered("estimate", *words)
    assert CliRunner().invoke(app, ["export", str(plan), "--to", to, "-o", str(launch)]).exit_code == 0
    assert "use_turbo_deepep" in (launch / "README.md").read_text()
