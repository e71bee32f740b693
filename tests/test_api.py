"""Does a program get the answers of the command line, with types, tables and errors that say what to do?"""

from __future__ import annotations

import inspect
import os
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import planner
from planner.answer.compare import Comparison
from planner.answer.estimate import make_estimate
from planner.answer.plan import make_plan
from planner.answer.size import Sizing
from planner.ask.option import options_of
from planner.ask.question import DryrunQuestion, Options, SearchQuestion
from planner.ask.request import Request
from planner.dialect import as_keyword, only
from planner.errors import InputError
from planner.report.words import worded
from planner.space.axes import RESTRICTABLE
from planner.spec.planfile import Plan, Verdict
from planner.spec.rows import COLUMNS

PYTHON = only(options_of(SearchQuestion), as_keyword)
SMALL = {"seq_len": 2048, "global_batch": 64, "tokens": "10B"}


def same(one: Plan, other: Plan) -> bool:
    return one.choices == other.choices and one.assumptions == other.assumptions


def test_plan_is_the_verbs() -> None:
    found = planner.plan(
        "llama-3.2-1b", "dgx-h100", gpus=16, set={"pp": 1, "tp": [1, 2]}, assume={"pue": 1.2}, **SMALL
    )
    asked = Request("llama-3.2-1b", "dgx-h100", 16, seq_len=2048, global_batch="64", tokens=1e10,
                    set={"pp": (1,), "tp": (1, 2)}, assume=("pue=1.2",))  # fmt: skip
    assert isinstance(found, Plan)
    assert same(found, worded(make_plan(asked), PYTHON))


def test_estimate_names_one_configuration() -> None:
    found = planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, set={"tp": 2}, **SMALL)
    asked = Request(
        "llama-3.2-1b", "dgx-h100", 8, seq_len=2048, global_batch="64", tokens=1e10, set={"tp": (2,)}
    )
    assert same(found, worded(make_estimate(asked), PYTHON))
    assert planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, set={"tp": 3}).verdict is Verdict.ILLEGAL


def test_estimate_takes_a_split_as_the_verb_does() -> None:
    pins = {"tp": 1, "pp": 2}
    own = planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, set={**pins, "layout": [9, 7]}, **SMALL)
    assert own.choices[0].layers_per_stage == (9, 7)
    named = {**pins, "layout": "Et*9|t*7L"}
    assert same(own, planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, set=named, **SMALL))
    free = planner.plan("llama-3.2-1b", "dgx-h100", gpus=8, set={**pins, "vpp": 1}, without="all", **SMALL)
    best = free.choices[0]
    axes = {
        axis: getattr(best.config, axis) for axis in ("tp", "cp", "pp", "vpp", "micro_batch", "zero", "sp")
    }
    named = {**axes, "layout": best.layout}
    again = planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, set=named, stack=best.stack, **SMALL)
    assert best.layout
    assert again.choices[0].step_time == pytest.approx(best.step_time)
    with pytest.raises(InputError, match="planner estimate"):
        planner.plan("llama-3.2-1b", "dgx-h100", gpus=8, set=named, **SMALL)


def test_compare_and_size_are_typed_and_tables() -> None:
    pandas = pytest.importorskip("pandas")
    compared = planner.compare("llama-3.2-1b", ["dgx-h100", "rtx4090"], gpus=8, **SMALL)
    assert isinstance(compared, Comparison)
    table = compared.to_dataframe()
    assert list(table["cluster"]) == [standing.cluster for standing in compared.standings]
    sized = planner.size("llama-3.2-1b", "dgx-h100", min=True, max_gpus=16, **SMALL)
    assert isinstance(sized, Sizing)
    assert list(sized.to_dataframe()["gpus"]) == [point.gpus for point in sized.tried]
    plan = planner.plan("llama-3.2-1b", "dgx-h100", gpus=8, top=3, **SMALL)
    rows = plan.to_dataframe()
    assert set(RESTRICTABLE) <= set(rows.columns)  # a row of it says which configuration it is
    assert isinstance(rows, pandas.DataFrame)
    assert list(rows.columns) == list(COLUMNS)
    assert list(rows["step_time_s"]) == [choice.step_time for choice in plan.choices]
    nothing = planner.plan("llama-3.1-405b", "1x8 h100").to_dataframe()
    assert len(nothing) == 1
    assert nothing["reason"][0]


def test_of_a_family_of_stacks_the_newest_is_taken_and_named() -> None:
    found = planner.plan("llama-3.2-1b", "dgx-h100", gpus=8, stack="torchtitan", top=1, **SMALL)
    assert found.subject.stack.name == "torchtitan-2026"


def test_mistakes_say_what_to_do() -> None:
    with pytest.raises(InputError, match="seq_len"):
        planner.plan("llama-3.2-1b", "dgx-h100", sequence=4096)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="dgx-h100"):
        planner.compare("llama-3.2-1b", 8)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="days and budget"):
        planner.size("llama-3.2-1b", "dgx-h100", days=3, budget=4, tokens=1e9)
    with pytest.raises(InputError, match="tokens"):
        planner.plan("llama-3.2-1b", "dgx-h100", tokens=-1)


def test_types_are_checked_and_paths_are_names(tmp_path: Path) -> None:
    """A wrong type is a mistake like others, not a traceback of the inside."""
    for wrong, words in (
        ({"seq_len": "long"}, "seq_len must be a whole number"),
        ({"seq_len": True}, "seq_len must be a whole number"),
        ({"headroom": "some"}, "headroom must be a share"),
        ({"mtp": 1}, "mtp must be True or False"),
        ({"stack": 2026}, "stack must be a name or a path"),
    ):
        with pytest.raises(InputError, match=words):
            planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, **wrong)  # type: ignore[arg-type]
    for model, cluster in ((None, "dgx-h100"), ({"layers": 2}, "dgx-h100"), ("llama-3.2-1b", 8)):
        with pytest.raises(InputError, match="must be a name or a path"):
            planner.estimate(model, cluster, gpus=8)  # type: ignore[arg-type]
    file = tmp_path / "ours.yaml"
    file.write_text("layers: 8\nhidden: 1024\nffn: 4096\nheads: 8\nvocab: 32000\n")
    assert planner.estimate(file, "dgx-h100", gpus=8, **SMALL).choices


def test_the_surface_is_what_is_exported() -> None:
    script = (
        "import planner\nassert dir(planner) == sorted(planner.__all__)\n"
        "assert not hasattr(planner, 'nonsense') and not hasattr(planner, 'import_module')\n"
        "from planner import *\nassert issubclass(InputError, PlannerError)\n"
        "import planner.answer.plan, planner.answer.compare\nassert planner.plan is plan and callable(plan)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_signatures_name_every_keyword() -> None:
    shared = {*options_of(Options)}
    for function, own in (
        (planner.plan, {"gpus", "top", "objective", "time_limit", "effort", "borderline", "dryrun", "alloc_conf"}),
        (planner.estimate, {"gpus", "dryrun", "alloc_conf"}),
        (planner.dry_run, {*options_of(DryrunQuestion)} - shared - {"model", "cluster"}),
        (planner.compare, {"gpus", "objective"}), (planner.size, {"days", "budget", "min", "max_gpus", "spare_nodes"}),
    ):  # fmt: skip
        found = inspect.signature(function).parameters
        keywords = {*found} - {"model", "cluster", "clusters"}
        assert keywords == own | shared
        assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found.values())
        help_text = pydoc.render_doc(function)
        assert all(name in help_text for name in keywords)
        assert "16Mtok" in help_text  # what keywords mean


def test_answers_survive_pickling() -> None:
    found = planner.plan("llama-3.2-1b", "1x8 h100", top=1, **SMALL)
    assert pickle.loads(pickle.dumps(found)) == found
    sized = planner.size("llama-3.2-1b", "dgx-h100", min=True, max_gpus=8, **SMALL)
    assert pickle.loads(pickle.dumps(sized)) == sized
    compared = planner.compare("llama-3.2-1b", ["dgx-h100"], gpus=8, **SMALL)
    assert pickle.loads(pickle.dumps(compared)) == compared


USER = """
from pathlib import Path
import planner

best = planner.plan("llama-3.1-8b", "dgx-h100", gpus=64, seq_len=8192, set={"tp": [1, 2]})
seconds: float = best.choices[0].step_time
reveal_type(planner.size("llama-3.1-8b", "dgx-h100", days=3, tokens="1T").answer)
planner.plan("llama-3.1-8b", "dgx-h100", gpus="64")
planner.plan("llama-3.1-8b", "dgx-h100", seq_length=8192)
wrong: str = best.choices[0].step_time
planner.estimate(Path("config.json"), "dgx-h100", seq_len="8k", headroom="5%", without=["deepep"], assume={"pue": 1.2})
planner.compare("llama-3.1-8b", ["dgx-h100", Path("ours.yaml")], gpus=[8, 16], set="tp=8 pp=4", min_free="4GiB")
planner.size("llama-3.1-8b", "dgx-h100", budget="5M", global_batch=512, bf16_layers=(1, 1))
planner.estimate("llama-3.1-8b", "dgx-h100", mtp="yes")
planner.compare("llama-3.1-8b", ["dgx-h100"], top=3)
planner.plan("llama-3.1-8b", "dgx-h100", thorough=False)
"""


@pytest.mark.slow
def test_a_type_checker_sees_real_types(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"], cwd=tmp_path, capture_output=True, text=True,
        timeout=600, env={**os.environ, "MYPYPATH": str(Path(planner.__file__).parents[1])},
    ).stdout  # fmt: skip
    lines = {int(line.split(":")[1]): line for line in told.splitlines() if line.startswith("user.py:")}
    assert sorted(lines) == [7, 8, 9, 10, 14, 15, 16], told
    assert "Point" in lines[7]
    assert (Path(planner.__file__).parent / "py.typed").is_file()


def test_importing_planner_loads_nothing_heavy() -> None:
    script = "import planner, sys; assert not {'numpy', 'pydantic', 'pandas'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda: planner.plan("gpt2-xl", "dgx-h100", gpus=8, top="x"), "top must be"),
        (lambda: planner.plan("gpt2-xl", "dgx-h100", gpus=8, time_limit="x"), "time_limit must be"),
        (lambda: planner.plan("gpt2-xl", "dgx-h100", gpus=8, set=2), "set must be a mapping"),
        (lambda: planner.plan("gpt2-xl", "dgx-h100", gpus=8, tokens=[1]), "tokens must be a number or text"),
        (lambda: planner.plan("gpt2-xl", "dgx-h100", gpus=8, headroom=5), "write 0.05 for 5%"),
        (lambda: planner.compare("gpt2-xl", None, gpus=8), "clusters must be a list"),
        (lambda: planner.size("gpt2-xl", "dgx-h100", tokens="1T", days=[7]), "days must be a number"),
    ],
)
def test_values_of_another_type_are_named(asked: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        asked()


def test_a_share_is_a_number_or_a_percentage_here_and_on_the_command_line() -> None:
    from planner.ask.readers import SHARE

    for text, share in (("10%", 0.1), ("0.1", 0.1), ("0%", 0.0)):
        assert SHARE.read(text, "--headroom") == pytest.approx(share)
    told = planner.estimate("llama-3.2-1b", "dgx-h100", gpus=8, headroom="10%", **SMALL)
    assert told.headroom == pytest.approx(0.1)


def test_a_size_needs_a_goal_and_is_short_in_print() -> None:
    with pytest.raises(planner.InputError, match="exactly one of days, budget and min"):
        planner.size("llama-3.2-1b", "dgx-h100", max_gpus=16, **SMALL)
    sized = planner.size("llama-3.2-1b", "dgx-h100", min=True, max_gpus=16, **SMALL)
    assert repr(sized).startswith("<Sizing for min: 8 GPUs of ")
