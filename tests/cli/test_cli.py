"""The command line: exit codes, what goes to stdout and stderr, and that bad input is told and not thrown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner import cli
from planner.catalog.load_stacks import DEFAULT_STACK
from planner.space.axes import RESTRICTABLE
from planner.spec.config import ParallelConfig
from planner.spec.findings import Finding
from planner.spec.job import Optimizer
from planner.spec.load_plan import load_plan, save_plan
from planner.spec.planfile import Plan, Verdict
from planner.spec.planned_config import PlannedConfig
from planner.spec.precision import Precision

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Outcome:
    """What a call of the command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def planner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Calls the command in this process."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["planner", *arguments])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as raised:
            cli.main()
        captured = capsys.readouterr()
        code = raised.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], list[Any]]:
    """Makes the two planning verbs answer with a given plan; returns the requests they got."""

    def answer(plan: Plan) -> list[Any]:
        requests: list[Any] = []

        def make(request: Any) -> Plan:
            requests.append(request)
            return plan

        monkeypatch.setattr("planner.answer.plan.make_plan", make)
        monkeypatch.setattr("planner.answer.estimate.make_estimate", make)
        return requests

    return answer


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Calls the command in a process of its own."""
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, **options)


@pytest.fixture
def empty(example_plan: Plan, tmp_path: Path) -> Path:
    """The file of a plan in which nothing fits."""
    none = {
        "verdict": Verdict.NOTHING_FITS,
        "choices": (),
        "headline": (Finding(code="text", text="none of 9 fits"),),
    }
    save_plan(example_plan.model_copy(update=none), tmp_path / "empty.json")
    return tmp_path / "empty.json"


# --- options that would change nothing


@pytest.mark.parametrize(
    "words",
    [
        "clusters --gpus 64",
        "model --seq-len 4096",
        "model --batch 2",
        "model --mtp",
        "schedule --schedule 1f1b --pp 4 --microbatches 8 --moe-overlap",
        "schedule --schedule zb-auto --pp 4 --microbatches 8 --moe-overlap",
        "schedule --schedule 1f1b --pp 4 --microbatches 8 --group-size 8",
        "schedule --schedule v-half --pp 4 --microbatches 8 --group-size 8",
        "schedule --schedule 1f1b --pp 4 --microbatches 8 --memory-limit 4",
    ],
)
def test_an_option_without_its_subject_is_refused(words: str, planner: Callable[..., Outcome]) -> None:
    done = planner(*words.split())
    assert (done.code, done.out) == (2, "")
    assert "needs a" in done.err or "belongs to" in done.err


def test_options_with_their_subject_are_taken(planner: Callable[..., Outcome]) -> None:
    interleaved = ["schedule", "--schedule", "interleaved", "--pp", "4", "--microbatches", "8", "--json"]
    plain, overlapped = (json.loads(planner(*interleaved, *more).out) for more in ((), ("--moe-overlap",)))
    assert max(overlapped["peak_in_flight"]) > max(plain["peak_in_flight"])
    one, two = (
        json.loads(planner("model", "llama-3.1-8b", *more, "--json").out) for more in ((), ("--batch", "2"))
    )
    assert two["flops_forward_linear"] == 2 * one["flops_forward_linear"]


# --- verbs that read a plan in which nothing fits


@pytest.mark.parametrize("verb", ["estimate", "explain"])
def test_of_a_plan_without_a_configuration_its_reasons_are_printed(
    verb: str, empty: Path, planner: Callable[..., Outcome]
) -> None:
    text, facts = planner(verb, str(empty)), planner(verb, str(empty), "--json")
    assert (text.code, facts.code) == (1, 1)
    assert "none of 9 fits" in text.out
    assert json.loads(facts.out) == json.loads(empty.read_text())


@pytest.mark.parametrize("verb", ["export", "trace"])
def test_of_a_plan_without_a_configuration_nothing_is_written(
    verb: str, empty: Path, tmp_path: Path, planner: Callable[..., Outcome]
) -> None:
    more = ("--to", "megatron") if verb == "export" else ()
    done = planner(verb, str(empty), "-o", str(tmp_path / "out"), *more)
    assert (done.code, done.out) == (1, "")
    assert "none of 9 fits" in done.err
    assert not (tmp_path / "out").exists()


# --- help


@pytest.mark.parametrize("verb", ["plan", "estimate", "model", "clusters", "stacks"])
def test_help_ends_with_an_example(planner: Callable[..., Outcome], verb: str) -> None:
    outcome = planner(verb, "--help")
    assert outcome.code == 0
    example = outcome.out.rstrip().partition("Example:\n")[2]
    assert example.strip().startswith(f"planner {verb} ")
    assert max(map(len, example.splitlines())) <= 80


def test_help_lists_what_a_choice_is_among(planner: Callable[..., Outcome]) -> None:
    said = " ".join(planner("plan", "--help").out.replace("-\n", "-").split())
    for kinds in (RESTRICTABLE, map(str, Precision), map(str, Optimizer)):
        for name in kinds:
            assert re.search(rf"[ :]{re.escape(name)}[ ,.]", said), name


def test_every_command_is_listed_whole(planner: Callable[..., Outcome]) -> None:
    listed = planner("--help").out.partition("Commands:")[2].strip().splitlines()
    assert len(listed) > 15
    for line in listed:
        assert line.rstrip().endswith("."), line
        assert "..." not in line, line


def test_help_names_the_stack_taken_unasked(planner: Callable[..., Outcome]) -> None:
    assert f"(default: {DEFAULT_STACK})" in " ".join(planner("plan", "--help").out.split())


def test_version(planner: Callable[..., Outcome]) -> None:
    assert planner("--version").out.startswith("planner ")


# --- delivery of a plan


def test_a_found_plan_exits_0_and_is_printed(
    planner: Callable[..., Outcome], answering: Callable[[Plan], list[Any]], example_plan: Plan
) -> None:
    requests = answering(example_plan)
    outcome = planner(
        "plan", "m", "c", "--gpus", "64", "--seq-len", "4096", "--global-batch", "16Mtok", "--tokens", "15.6T",
        "--set", "tp=8", "--set", "recompute=none,full", "--headroom", "10%", "--top", "3", "--mtp",
        "--precision", "fp8", "--optimizer", "muon", "--stack", "s",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert str(example_plan) in outcome.out
    (request,) = requests
    assert (request.model, request.cluster, request.gpus, request.seq_len) == ("m", "c", 64, 4096)
    assert (request.global_batch, request.tokens, request.headroom) == ("16Mtok", 15.6e12, 0.1)
    assert request.restrict == {"tp": (8,), "recompute": (0, 2)}
    assert (request.top, request.mtp, request.objective) == (3, True, "step_time")
    assert (request.precision, request.optimizer, request.stack) == ("fp8", "muon", "s")


@pytest.mark.parametrize("verb", ["plan", "estimate"])
def test_json_is_one_document_and_nothing_else(
    planner: Callable[..., Outcome],
    answering: Callable[[Plan], list[Any]],
    example_plan: Plan,
    tmp_path: Path,
    verb: str,
) -> None:
    answering(example_plan)
    path = tmp_path / "plan.json"
    outcome = planner(verb, "llama-3.1-8b", "1x8 h100", "--json", "-o", str(path))
    assert outcome.code == 0
    assert Plan.model_validate(json.loads(outcome.out)) == example_plan
    assert load_plan(path) == example_plan
    assert str(path) in outcome.err


@pytest.mark.parametrize(
    "verdict", [Verdict.NOTHING_FITS, Verdict.NOTHING_LEGAL, Verdict.DOES_NOT_FIT, Verdict.ILLEGAL]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_found_exits_1(
    planner: Callable[..., Outcome],
    answering: Callable[[Plan], list[Any]],
    example_plan: Plan,
    verdict: Verdict,
    as_json: bool,
) -> None:
    update = {
        "verdict": verdict,
        "choices": (),
        "nearest_config": PlannedConfig.of(ParallelConfig(tp=4)),
    }
    answering(example_plan.model_copy(update=update))
    outcome = planner("plan", "m", "c", *(["--json"] if as_json else []))
    assert outcome.code == 1
    assert outcome.err == ""
    if as_json:
        assert json.loads(outcome.out)["verdict"] == verdict
    else:
        assert "tp4 " in outcome.out


@pytest.mark.parametrize("name", ["", "none/plan.json"])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    planner: Callable[..., Outcome],
    answering: Callable[[Plan], list[Any]],
    example_plan: Plan,
    tmp_path: Path,
    name: str,
) -> None:
    requests = answering(example_plan)
    outcome = planner("plan", "m", "c", "-o", str(tmp_path / name))
    assert (outcome.code, outcome.out, requests) == (2, "", [])
    assert str(tmp_path) in outcome.err


def test_markup_in_a_message_is_printed_as_it_is(planner: Callable[..., Outcome]) -> None:
    outcome = planner("model", "[red]nosuch[/red]\x1b[2J")
    assert outcome.code == 2
    assert "[red]nosuch[/red]" in outcome.err
    assert "\x1b[2J" not in outcome.err


def test_a_message_is_at_most_a_screen(planner: Callable[..., Outcome]) -> None:
    outcome = planner("stacks", "\n".join(["x" * 5000] * 100))
    assert outcome.code == 2
    assert len(outcome.err) < 20_000
    assert outcome.err.count("\n") <= 24


# --- malformed input: exit 2, told on stderr, no traceback


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "MODEL"),
        (["plan", "llama-3.1-8b"], "CLUSTER"),
        (["frobnicate"], "frobnicate"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--frob"], "--frob"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "many"], "--gpus"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "0"], "from 1 to"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "-8"], "from 1 to"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "12"], "8 or 16"),
        (["plan", "llama-3.1-8b", "dgx-h100"], "--gpus"),
        (["plan", "llama-3.1-8b", "dgx-h1000", "--gpus", "8"], "dgx-h100"),
        (["plan", "llama-3.1-8c", "dgx-h100", "--gpus", "8"], "llama-3.1-8b"),
        (["plan", "./none/config.json", "dgx-h100", "--gpus", "8"], "none/config.json"),
        (["plan", "llama-3.1-8b", "none.yaml"], "none.yaml"),
        (["plan", "llama-3.1-8b", "2x8 h100 400-ib"], "400"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--seq-len", "0"], "seq"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--seq-len", "-4096"], "seq"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "0"], "batch"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "-8"], "batch"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "16Mtoken"], "16Mtoken"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "1.5"], "1.5"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tokens", "lots"], "lots"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tokens", "-1T"], "tokens"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--precision", "bf17"], "bf16"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--optimizer", "adamx"], "adamw"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--stack", "megatron-1999"], "megatron-2"),
        (
            ["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--stack", ""],
            "unknown stack",
        ),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--objective", "joy"], "step_time"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--headroom", "5"], "5%"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--headroom", "100%"], "headroom"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--headroom", "nan%"], "headroom"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--top", "0"], "top"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--set", "tq=8"], "tq"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--set", "tp=0"], "tp"),
        (["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--set", "zero=4"], "zero"),
        (["estimate", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--set", "tp=1,2"], "one value"),
        (["estimate", "llama-3.1-8b", "1x8 h100", "--lora-targets", "qkv"], "--lora-rank"),
        (["estimate", "llama-3.1-8b", "1x8 h100", "--stage", "1"], "--memory"),
        (["estimate", "llama-3.1-8b", "1x8 h100", "--packed"], "--mean-len "),
        (["plan", "llama-3.1-8b", "1x8 h100", "--tokens", "1e300"], "at most 1e+18"),
        (["diagnose", "llama-3.1-8b", "1x8 h100", "--set", "tp=2", "--tflops", "5000"], "at least"),
        (["diagnose", "llama-3.1-8b", "1x8 h100", "--set", "tp=2", "--measured", "1 ms"], "at least"),
        (["diagnose", "llama-3.1-8b", "1x8 h100", "--measured", "3"], "--measured must be a step time"),
        (["diagnose", "llama-3.1-8b", "1x8 h100", "--measured", "60 s", "--mfu", "x"], "--mfu must be"),
        (["calibrate", "llama-3.1-8b", "1x8 h100", "--run", "60 s", "--name", ""], "--name must have"),
        (["diagnose", "llama-3.1-8b", "1x8 h100", "--run", "3 s:foo=3"], "axis of --run"),
        (["model", "nosuch"], "nosuch"),
        (["model", "gpt2", "--seq-len", "0"], "seq-len"),
        (["model", "gpt2", "--batch", "-1"], "batch"),
        (["clusters", "nosuch"], "nosuch"),
        (["stacks", "nosuch"], "nosuch"),
        (["stacks", "--rules"], "needs a stack"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_malformed_input(
    planner: Callable[..., Outcome], arguments: list[str], words: str, as_json: bool
) -> None:
    outcome = planner(*arguments, *(["--json"] if as_json and len(arguments) > 1 else []))
    assert outcome.code == 2
    assert outcome.out == ""
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert len(outcome.err.splitlines()) < 25


CLUSTER = """
name: mine
accelerator: h100-sxm-80g
nodes: 2
node:
  accelerators: 8
  nics: 8
  nic_bandwidth: {bandwidth}
  scale_up: {{kind: nvlink, domain: 8}}
fabric: {{kind: infiniband}}
"""


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", "{", "JSON"),
        ("config.json", "[1, 2]", "object"),
        ("config.json", "", "config.json"),
        ("config.json", '{"model_type": "mamba-9"}', "mamba-9"),
        ("config.json", '{"hidden_size": 8}', "model_type"),
        ("config.json", '{"model_type": "llama", "hidden_size": -8}', "hidden_size"),
        ("cluster.yaml", "a: [", "YAML"),
        ("cluster.yaml", "- 1", "mapping"),
        ("cluster.yaml", "name: mine", "accelerator"),
        ("cluster.yaml", CLUSTER.format(bandwidth=400), "nic_bandwidth"),
        ("cluster.yaml", CLUSTER.format(bandwidth="400 parsec"), "nic_bandwidth"),
        ("cluster.yaml", CLUSTER.format(bandwidth="-400 Gbit/s"), "nic_bandwidth"),
        ("cluster.yaml", CLUSTER.format(bandwidth="400 Gbit/s") + "colour: red\n", "colour"),
        ("cluster.yaml", CLUSTER.format(bandwidth="400 Gbit/s").replace("h100-sxm-80g", "h101"), "h101"),
    ],
)
def test_bad_files_are_named_with_the_key(
    planner: Callable[..., Outcome], tmp_path: Path, file: str, content: str, words: str
) -> None:
    path = tmp_path / file
    path.write_text(content)
    is_model = file.endswith(".json")
    subject = [str(path), "dgx-h100", "--gpus", "8"] if is_model else ["llama-3.1-8b", str(path)]
    outcome = planner("plan", *subject)
    assert (outcome.code, outcome.out) == (2, "")
    assert str(path) in outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_a_folder_without_config_is_refused(planner: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = planner("model", str(tmp_path))
    assert outcome.code == 2
    assert "config.json" in outcome.err


# --- real answers


def test_a_batch_that_does_not_divide_exits_1_with_rule_and_nearest(planner: Callable[..., Outcome]) -> None:
    outcome = planner(
        "estimate", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "9",
        "--set", "tp=1", "--set", "dp=8",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (1, "")
    for words in ("batch-dp", "dp must divide the global batch", "hint:", "Nearest legal"):
        assert words in outcome.out


def test_a_tp_that_does_not_divide_heads_exits_1_with_rule_and_nearest(
    planner: Callable[..., Outcome],
) -> None:
    arguments = ("estimate", "llama-3.1-8b", "dgx-h100", "--gpus", "24", "--set", "tp=3")
    outcome = planner(*arguments)
    assert (outcome.code, outcome.err) == (1, "")
    for words in ("heads-tp", "tp must divide the attention heads, 32; tp=3", "Nearest legal"):
        assert words in outcome.out
    document = json.loads(planner(*arguments, "--json").out)
    assert document["verdict"] == "illegal"
    assert document["violations"][0]["rule"] == "heads-tp"
    assert document["nearest"] or document["nearest_config"]


def test_a_plan_that_nothing_fits_exits_1(planner: Callable[..., Outcome]) -> None:
    outcome = planner("plan", "llama-3.1-405b", "dgx-h100", "--gpus", "8", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["verdict"] == "nothing_fits"


def test_a_small_plan_from_end_to_end(planner: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    outcome = planner(
        "plan", "llama-3.1-8b", "2x8 h100 400G-ib", "--seq-len", "4096", "--global-batch", "128",
        "--tokens", "1T", "--top", "3", "-o", str(path),
    )  # fmt: skip
    assert outcome.code == 0
    for words in (
        "tokens/s/GPU",
        "MFU",
        "days",
        "GPU-hours",
        "candidates",
        "Not modelled",
        "Confidence",
        "unverified",
    ):
        assert words in outcome.out
    plan = load_plan(path)
    assert plan.found
    assert 1 <= len(plan.choices) <= 3
    assert [c.step_time for c in plan.choices] == sorted(c.step_time for c in plan.choices)
    assert plan.choices[0].run is not None


def test_model_counts_exactly(planner: Callable[..., Outcome]) -> None:
    facts = json.loads(planner("model", "meta-llama/Llama-3.1-8B", "--seq-len", "8192", "--json").out)
    assert facts["params_total"] == facts["params_active"] == 8_030_261_248
    linear, attention = facts["flops_forward_linear"], facts["flops_forward_attention"]
    assert attention == 32 * 4 * 8192**2 * 4096
    assert linear == 2 * 8192 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)
    assert facts["flops_backward"] == 2 * (linear + attention)


def test_listings(planner: Callable[..., Outcome]) -> None:
    for verb, name in (
        ("model", "llama-3.1-405b"),
        ("clusters", "h100-sxm-roce"),
        ("stacks", "megatron-2026"),
    ):
        listed = planner(verb)
        assert (listed.code, listed.err) == (0, "")
        assert name in listed.out
        assert max(map(len, listed.out.splitlines())) <= 100
        everything = json.loads(planner(verb, "--json").out)
        assert name in [entry["name"] for entry in next(iter(everything.values()))]
        alone = planner(verb, name)
        assert alone.code == 0
        assert name in alone.out
        assert json.loads(planner(verb, name, "--json").out)["name"] == name


def test_rules_that_a_search_counts_are_told(planner: Callable[..., Outcome]) -> None:
    told = planner("stacks", "torchtitan-2026", "--rules").out.splitlines()
    rules = json.loads(planner("stacks", "torchtitan-2026", "--rules", "--json").out)["rules"]
    assert set(rules) <= set(told)
    assert rules["heads-tp"]["must"] == "tp must divide the attention heads, <heads>"
    plan = planner("plan", "llama-3.1-8b", "2x8 h100 400G-ib", "--stack", "torchtitan-2026", "--json")
    counted = {one["rule"] for one in json.loads(plan.out)["search"]["removed"]}
    assert counted
    assert counted <= set(rules)


def test_clusters_tell_sources_and_unverified_numbers(planner: Callable[..., Outcome]) -> None:
    text = planner("clusters", "dgx-h100").out
    assert "SuperPOD" in text
    assert "node.host_memory" in text
    assert "450 GB/s" in text
    assert "8 between nodes; informational, not used by the model" in text
    assert "rails" not in planner("clusters", "h100-sxm-roce").out


# --- the process


def test_a_broken_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m planner model --json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_an_interrupt_is_quiet() -> None:
    code = (
        "import signal, sys, time, planner.cli as cli, planner.report.listings as listings\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job of a script inherits that it is ignored
        "def slow(): print('ready', file=sys.stderr, flush=True); time.sleep(30)\n"
        "listings.catalog_facts = slow\n"
        "sys.argv = ['planner', 'model']; cli.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_an_interrupt_while_importing_is_quiet() -> None:
    code = (
        "import sys, planner.__main__ as entry\n"
        "class Stop:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'planner.cli.check': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "entry.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    scripts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    assert scripts == {"planner": "planner.__main__:main"}


def test_a_terminal_without_unicode_is_no_failure() -> None:
    done = run("stacks", "megatron-2026", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_failure(closed: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    words = f"plan llama-3.2-1b dgx-h100 --gpus 8 --top 1 --set tp=1 -o {plan}"
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m planner {words} {closed}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert json.loads(plan.read_text())["verdict"] == "found"


@pytest.mark.parametrize("verb", ["trace", "report"])
def test_no_verb_writes_over_what_it_reads(
    planner: Callable[..., Outcome], example_plan: Plan, tmp_path: Path, verb: str
) -> None:
    file = tmp_path / "plan.json"
    save_plan(example_plan, file)
    before = file.read_bytes()
    refused = planner(verb, str(file), "-o", str(file))
    assert (refused.code, "another file" in refused.err) == (2, True)
    assert file.read_bytes() == before


def test_two_outputs_of_a_verb_are_two_files(planner: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("a\nb\n")
    one = str(tmp_path / "ours.yaml")
    given = ["--run", "27 s:tp=2", "--nodes", str(tmp_path / "nodes"), "-o", one, "--cluster-file", one]
    refused = planner("calibrate", "llama-3-8b", "dgx-h100", "--gpus", "16", *given)
    assert (refused.code, "another file" in refused.err) == (2, True)


@pytest.mark.parametrize("given", ["8G", "8.5", "many", "0x10"])
def test_a_number_that_is_none_is_shown(planner: Callable[..., Outcome], given: str) -> None:
    refused = planner("plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--seq-len", given)
    assert refused.code == 2
    assert f"--seq-len must be a whole number, such as 4096 or 8k\n  given: '{given}'" in refused.err


# --- numbers that are none, and files of planner's own in the wrong place


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan llama-3.1-8b dgx-h100 --gpus 8 --lora-rank 100000000000", "from 1 to 65,536"),
        ("schedule --schedule interleaved --pp 4 --microbatches 8 --group-size 0", "--group-size must be 1"),
        ("diagnose llama-3-8b dgx-h100 --gpus 8 --tflops 1e-12", "--tflops must be from 0.001"),
    ],
)
def test_a_number_out_of_bounds_is_refused(words: str, said: str, planner: Callable[..., Outcome]) -> None:
    done = planner(*words.split())
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize("gpus", ["0", "-8"])
def test_no_devices_are_not_those_of_the_plan(
    gpus: str, empty: Path, planner: Callable[..., Outcome]
) -> None:
    done = planner("estimate", str(empty), "--gpus", gpus)
    assert (done.code, done.out) == (2, "")
    assert "--gpus must be a whole number from 1" in done.err


def test_a_plan_given_as_a_model_is_known_as_one(empty: Path, planner: Callable[..., Outcome]) -> None:
    done = planner("estimate", str(empty), "dgx-h100", "--gpus", "8")
    assert done.code == 2
    assert "planner estimate PLAN.json --cluster" in " ".join(done.err.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", ["--help", "--version", "clusters"])
def test_a_full_disk_behind_stdout_is_told(words: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "planner", words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: the answer must be writable")


SCRIPT = (
    "torchrun pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 32 --ffn-hidden-size 8192 "
    "--vocab-size 32000 --swiglu --bf16 --micro-batch-size 1 --disable-bias-linear --position-embedding-type rope"
)


def test_check_takes_what_files_do_not_say_of_a_job(planner: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    asked = ("check", str(tmp_path / "run.sh"), "--cluster", "dgx-h100", "--gpus", "8", "--seq-len", "8k")

    def told(*more: str) -> dict[str, Any]:
        return dict(json.loads(planner(*asked, "--global-batch", "64", *more, "--json").out))

    plain = told()
    assert told("--lora-rank", "16")["peak_memory_bytes"] < plain["peak_memory_bytes"]
    assert told("--mean-len", "512", "--packed")["step_time_s"] < plain["step_time_s"]
    assert told("--headroom", "50%")["memory_limit_bytes"] == pytest.approx(
        plain["memory_limit_bytes"] * 0.5 / 0.95
    )
    assert told("--tokens", "100B")["days"] == pytest.approx(
        plain["step_time_s"] * 1e11 / (64 * 8192) / 86400, rel=0.1
    )
    precise = told("--precision", "fp8")  # which the files say otherwise
    assert precise["step_time_s"] == plain["step_time_s"]
    assert "the files state precision bf16, --precision says fp8: the files count" in precise["notes"]
    better = told("--set", "tp=4")["better"]
    assert better is None or better["config"].startswith("tp4")


def test_diagnose_and_calibrate_take_every_option(planner: Callable[..., Outcome], tmp_path: Path) -> None:
    job = ("llama-3.2-1b", "1x8 h100", "--seq-len", "4096", "--global-batch", "64", "--set", "tp=2")
    full = planner("diagnose", *job, "--measured", "2 s").out
    assert planner("diagnose", *job, "--measured", "2 s", "--lora-rank", "16").out != full
    given = ("--lora-rank", "16", "--lora-targets", "qkv", "--mean-len", "1000", "--packed")
    made = planner("calibrate", *job, *given, "--run", "0.5 s:tp=1", "-o", str(tmp_path / "ours.yaml"))
    assert made.code == 0, made.err
    refused = planner("diagnose", *job, "--measured", "2 s", "--without", "deepep")
    assert (refused.code, "leaves something out of a search" in refused.err) == (2, True)


def test_check_reads_lengths_and_batches_as_a_plan_does(
    planner: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    asked = ("check", str(tmp_path / "run.sh"), "--cluster", "dgx-h100", "--gpus", "8", "--json")
    found = [
        json.loads(planner(*asked, "--seq-len", length, "--global-batch", batch).out)["step_time_s"]
        for length, batch in (("2048", "256"), ("2k", "256seq"), ("2048", "524288tok"))
    ]
    assert found[0] == found[1] == found[2]
    for batch, said in (("4M", "write 4Mtok or 4Mseq"), ("4Mtok", "add --seq-len 8k")):
        refused = planner(*asked, "--global-batch", batch)
        assert refused.code == 2
        assert said in refused.err


def test_assumptions_are_read_as_in_a_question(planner: Callable[..., Outcome]) -> None:
    together = planner("assumptions", "--assume", "pue=1.2; price=3 $/h", "--json")
    apart = planner("assumptions", "--assume", "pue=1.2", "--assume", "price=3 $/h", "--json")
    assert together.code == 0, together.err
    assert together.out == apart.out != planner("assumptions", "--json").out
