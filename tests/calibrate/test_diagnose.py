"""Is the cause of a slow run named: causes injected one by one, and the threads where people found them?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.injected_causes import both_named, cases, first_named
from planner.ask.request import Request
from planner.calibrate.diagnosis.diagnose import diagnose
from planner.calibrate.diagnosis.hypotheses import Evidence, model_flops
from planner.calibrate.logs.arguments import marks_of
from planner.calibrate.own_runs import observe
from planner.calibrate.predict import predicted_cost
from planner.cli import app
from planner.report.words.causes import cause_words
from planner.units import GIB
from tests.calibrate import logs

RUNNER = CliRunner()


def top(evidence: list[Evidence], marks: frozenset[str] = frozenset()) -> str:
    first = diagnose(evidence, marks).findings[0]
    return first.cause.name if first.cause is not None else "nothing"


def test_injected_causes_are_ranked_first() -> None:
    assert first_named(3, 8) == 8


@pytest.mark.slow
def test_injected_causes_are_ranked_first_in_tens_of_cases() -> None:
    assert first_named(0, 50) >= 45


@pytest.mark.slow
def test_both_of_two_injected_causes_lead() -> None:
    assert both_named(0, 8) >= 6


def test_sizes_are_those_of_the_cause() -> None:
    _, evidence = next(iter(cases(1, 1)))
    found = diagnose(evidence)
    assert sum(f.probability for f in found.findings) == pytest.approx(1 + found.two)
    assert all(f.share == pytest.approx(f.seconds / found.measured) for f in found.findings)
    assert [f.probability for f in found.findings] == sorted(
        (f.probability for f in found.findings), reverse=True
    )


def test_nothing_is_wrong_with_a_run_as_predicted() -> None:
    base = Request(model="llama-3-8b", cluster="dgx-h100", gpus=16, seq_len=8192, global_batch="128")
    seen = observe(base, "1 s:tp=2")[0]
    usual = predicted_cost(seen.problem, seen.config).seconds
    for factor in (0.97, 1.0, 1.04):
        assert top([Evidence(replace(seen, seconds=factor * usual))]) == "nothing"
    assert diagnose([Evidence(seen)]).beyond == 0


def test_a_run_that_could_not_have_run_as_described_is_told() -> None:
    words = [
        "diagnose",
        "llama-3-8b",
        "dgx-h100",
        "--gpus",
        "16",
        "--global-batch",
        "128",
        "--measured",
        "8 s",
    ]
    said = [RUNNER.invoke(app, [*words, "--set", f"tp={tp}", "--set", "pp=1"]).output for tp in (1, 2)]
    assert ["and yet it ran" in " ".join(text.split()) for text in said] == [True, False]


def thread(model: str, cluster: str, seq_len: int, batch: int, stack: str) -> Request:
    return Request(model=model, cluster=cluster, seq_len=seq_len, global_batch=str(batch), stack=stack)


def test_four_nodes_as_fast_as_one() -> None:
    """torchtitan issue 708: 1,786 tokens/s per H100 on 32, 10.46 % MFU; the fabric was not used as it should."""
    base = thread("llama-3-8b", "4x8 h100 400G-ib", 8192, 32, "torchtitan-2024")
    axes = "tp=1,zero=3,recompute=selective"
    four = observe(base, f"{8192 / 1786} s:{axes}")[0]
    one = observe(base, f"{8192 / 7000} s:{axes},gpus=8,global_batch=8")[0]
    # unfused attention would take as long, but its square of 8,192 tokens does not fit
    assert top([Evidence(four, mfu=0.1046)]) == "fabric"
    assert top([Evidence(four, mfu=0.1046), Evidence(one)]) == "fabric"


def test_mixtral_at_130_tflops() -> None:
    """Megatron-LM issue 756: 16 H100 at 130 TFLOP/s; another dispatcher and grouped GEMM took it to 230."""
    base = thread("mixtral-8x7b", "2x8 h100 400G-ib", 2048, 128, "megatron-2024")
    seen = observe(base, "1 s:tp=2,ep=8")[0]
    slow = Evidence(replace(seen, seconds=model_flops(seen) / 130e12))
    assert top([slow]) == "dispatcher"
    dump = ["  moe_grouped_gemm ................................ False",
            "  moe_token_dispatcher_type ....................... allgather"]  # fmt: skip
    assert top([slow], marks_of(dump)) == "dispatcher"


def test_70b_at_20_tflops() -> None:
    """Megatron-LM issue 1000: the log says that parameters are torch.float32, and an A100 does 19.5 TFLOP/s in fp32."""
    base = thread("llama-3-70b", "2x8 a100 200G-ib", 8192, 128, "megatron-2024")
    seen = observe(base, "1 s:tp=8,pp=2")[0]
    slow = Evidence(replace(seen, seconds=model_flops(seen) / 20e12))
    marks = marks_of(["using torch.float32 for parameters ..."])
    assert top([slow], marks) == "precision"
    assert top([slow]) == "precision"


def test_a_sparse_peak_costs_no_time() -> None:
    """fms-fsdp issue 89 and others: an MFU against 1,979 TFLOP/s is half of what it is against 989."""
    base = Request(model="llama-3-8b", cluster="dgx-h100", gpus=16, seq_len=4096, global_batch="128")
    seen = observe(base, "3.65 s:tp=2")[0]
    found = diagnose([Evidence(seen, mfu=0.5 * model_flops(seen) / seen.seconds / 989.4e12)])
    assert found.findings[0].cause is not None
    assert found.findings[0].cause.name == "peak"
    assert found.findings[0].seconds == 0


def test_words_of_a_log_count() -> None:
    assert marks_of(["node1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>"]) == {"net/socket"}
    line = "using world size: 16, data-parallel size: 1, context-parallel size: 1 tensor-model-parallel size: 8, "
    assert marks_of([line + "pipeline-model-parallel size: 2 "]) >= {"world=16", "tp=8", "pp=2"}


JOB = ["diagnose", "llama-3-70b", "dgx-h100", "--gpus", "16", "--global-batch", "64", "--seq-len", "8192"]


def test_out_of_memory_is_explained(tmp_path: Path) -> None:
    (tmp_path / "oom.log").write_text(logs.OOM_2025)
    told = RUNNER.invoke(app, [*JOB, "--run", f"{tmp_path / 'oom.log'}:tp=8", "--json"])
    assert told.exit_code == 0, told.output
    facts = json.loads(told.stdout)
    assert "as predicted" in facts["reasons"][0]["text"]
    assert any(reason["code"] == "fragmentation" for reason in facts["reasons"])
    assert "expandable_segments" in facts["first_aid"]["text"]
    assert facts["reported"]["allocated_by_pytorch"] == 65 * GIB
    shown = RUNNER.invoke(app, [*JOB, "--run", f"{tmp_path / 'oom.log'}:tp=8"])
    assert "Predicted" in shown.output
    assert "Reported" in shown.output


def test_fragmentation_and_a_move_that_fits(tmp_path: Path) -> None:
    job = ["diagnose", "llama-3-8b", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--seq-len", "7936"]
    (tmp_path / "oom.log").write_text(logs.OOM_2025)
    facts = json.loads(
        RUNNER.invoke(app, [*job, "--run", f"{tmp_path / 'oom.log'}:tp=2,micro_batch=2", "--json"]).stdout
    )
    assert facts["reasons"][0]["code"] == "fragmentation"
    assert facts["cheapest_move"]["saved"] > 0


def test_a_batch_that_no_run_deals_is_refused() -> None:
    words = ["diagnose", "llama-3-8b", "4x8 h100 400G-ib", "--run"]
    refused = RUNNER.invoke(app, [*words, "7900 ms:tp=2,global_batch=7"])
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert "dp 16 x micro_batch 1 = 16 does not divide the global batch, 7 sequences" in said
    assert RUNNER.invoke(app, [*words, "7900 ms:tp=2,micro_batch=3,global_batch=32"]).exit_code == 2
    assert RUNNER.invoke(app, [*words, "7900 ms:tp=2,micro_batch=2,global_batch=32"]).exit_code == 0


def test_an_axis_of_set_that_every_run_overrules_is_refused(tmp_path: Path) -> None:
    (tmp_path / "oom.log").write_text(logs.OOM_2025)
    log = f"{tmp_path / 'oom.log'}:tp=2"
    refused = RUNNER.invoke(app, [*JOB, "--run", log, "--set", "tp=4"])
    assert refused.exit_code == 2
    assert "--set tp=4 and tp=2" in " ".join(refused.stderr.split())
    assert RUNNER.invoke(app, [*JOB, "--run", log, "--set", "tp=2"]).exit_code == 0
    assert RUNNER.invoke(app, [*JOB, "--run", log, "--set", "pp=2"]).exit_code == 0
    assert RUNNER.invoke(app, [*JOB, "--run", log, "--measured", "90 s", "--set", "tp=4"]).exit_code == 0


def test_the_tensor_that_was_asked_for_is_named(tmp_path: Path) -> None:
    logits = 4.0 * 8192 * 128256 / GIB
    message = logs.OOM_2025.replace("2.50 GiB", f"{logits:.2f} GiB").replace("9.50 GiB", "0.50 GiB")
    (tmp_path / "oom.log").write_text(message)
    job = ["diagnose", "llama-3-8b", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--seq-len", "8192"]
    facts = json.loads(RUNNER.invoke(app, [*job, "--run", f"{tmp_path / 'oom.log'}:tp=1", "--json"]).stdout)
    assert any("32-bit logits" in reason["text"] for reason in facts["reasons"])


def test_the_verb_reads_logs_of_two_runs(tmp_path: Path) -> None:
    for name, rate in (("four.log", 1786), ("one.log", 6900)):
        lines = [logs.TITAN_2024.format(step=10 * s, tps=rate) for s in range(1, 6)]
        (tmp_path / name).write_text("\n".join(lines).replace("mfu: 41.32%", ""))
    axes = "tp=1,zero=3,recompute=selective"
    arguments = [
        "diagnose", "llama-3-8b", "4x8 h100 400G-ib", "--seq-len", "8192",
        "--run", f"{tmp_path / 'four.log'}:{axes},global_batch=32",
        "--run", f"{tmp_path / 'one.log'}:{axes},gpus=8,global_batch=8",
    ]  # fmt: skip
    facts = json.loads(RUNNER.invoke(app, [*arguments, "--json"]).stdout)
    assert facts["causes"][0]["cause"] == "fabric"
    assert facts["pays_most"] == "fabric"
    shown = RUNNER.invoke(app, arguments)
    assert "Measure next" in shown.output


def test_a_run_far_slower_than_a_wide_prediction_is_not_called_as_fast() -> None:
    """Of DeepSpeed the error is so wide that 19 % leave nothing the likeliest cause, at less than even odds."""
    job = [
        "diagnose", "llama-3-8b", "dgx-h100", "--gpus", "16", "--global-batch", "128", "--stack", "deepspeed-2025",
        "--set", "zero=3",
    ]  # fmt: skip
    usual = json.loads(RUNNER.invoke(app, [*job, "--measured", "9 s", "--json"]).stdout)["predicted_s"]
    shown = {
        by: RUNNER.invoke(app, [*job, "--measured", f"{by * usual:.3f} s"]).stdout for by in (1.02, 1.19)
    }
    assert shown[1.02].startswith("the run is as fast as predicted (2% slower")
    assert "Measure next" not in shown[1.02]
    assert shown[1.19].startswith(
        "19% slower than predicted: perhaps the error of the prediction alone, else"
    )
    assert "Measure next" in shown[1.19]


def test_tflops_are_counted_as_the_stacks_own_log_does() -> None:
    """Megatron-LM logs half the square of causal attention from core_v0.12.0 on, the whole of it before."""
    seconds = []
    for stack in ("megatron-2024", "megatron-2026"):
        base = thread("llama-3-8b", "2x8 h100 400G-ib", 8192, 128, stack)
        seen = observe(base, "1 s:tp=2")[0]
        told = RUNNER.invoke(
            app,
            ["diagnose", "llama-3-8b", "2x8 h100 400G-ib", "--seq-len", "8192", "--global-batch", "128",
             "--stack", stack, "--set", "tp=2", "--tflops", "300", "--json"],
        )  # fmt: skip
        assert told.exit_code == 0, told.output
        seconds.append(json.loads(told.stdout)["measured_s"])
        assert seconds[-1] == pytest.approx(model_flops(seen) / 300e12)
    assert seconds[1] < 0.95 * seconds[0]


def test_a_share_of_the_peak_alone_is_no_measurement() -> None:
    told = RUNNER.invoke(app, [*JOB, "--mfu", "20%"])
    assert told.exit_code == 2
    assert "--mfu alone" in told.output


@pytest.mark.parametrize(
    "arguments",
    [[], ["--tflops", "-3"], ["--measured", "fast"], ["--run", "none.log"], ["--measured", "4 s", "--mfu", "x"],
     ["--measured", "20 s", "--mfu", "0%"], ["--measured", "20 s", "--tflops", "-5"],
     ["--measured", "20 s", "--tflops", "200", "--mfu", "20%"],
     ["--measured", "4 s", "--set", "ep=3"]],
)  # fmt: skip
def test_bad_input_is_a_message(arguments: list[str]) -> None:
    told = RUNNER.invoke(app, [*JOB, *arguments])
    assert told.exit_code == 2
    assert "Traceback" not in told.output


@pytest.mark.parametrize(
    ("mfu", "contradicts"), [("30%", False), ("15%", False), ("7%", True), ("80%", True)]
)
def test_a_reported_share_of_the_peak_that_no_way_of_counting_explains_is_named(
    mfu: str, contradicts: bool
) -> None:
    told = RUNNER.invoke(
        app, [*JOB, "--tflops", "250", "--set", "tp=8", "--set", "recompute=full", "--mfu", mfu]
    )
    assert told.exit_code == 0, told.output
    assert told.output.startswith("the inputs contradict each other") == contradicts


def test_what_contradicts_comes_before_causes_and_is_left_out_of_them() -> None:
    asked = [*JOB, "--set", "tp=8", "--set", "recompute=full", "--measured", "80 s"]
    alone, with_mfu = (
        json.loads(RUNNER.invoke(app, [*asked, *more, "--json"]).stdout) for more in ([], ["--mfu", "2%"])
    )
    assert alone["contradictions"] == []
    (said,) = with_mfu["contradictions"]
    assert said["mfu_given"] == pytest.approx(0.02)
    assert said["step_time_of_mfu_s"] == pytest.approx(80 * said["mfu_of_step_time"] / 0.02)
    assert with_mfu["causes"] == alone["causes"]
    text = RUNNER.invoke(app, [*asked, "--mfu", "2%"]).output
    assert text.index("Check first") < text.index("by the step time alone") < text.index("What would explain")


def test_a_slow_run_is_not_explained_by_how_its_rate_is_counted() -> None:
    job = ["diagnose", "llama-3-8b", "dgx-h100", "--gpus", "32", "--global-batch", "512"]
    told = RUNNER.invoke(app, [*job, "--measured", "20 s", "--mfu", "20%"])
    assert "slower than predicted" in told.output.splitlines()[0]
    assert "slower than predicted: the reported MFU" not in told.output
    assert "of what the step time says" in told.output


FAST = [
    "diagnose",
    "llama-3.1-8b",
    "dgx-h100",
    "--gpus",
    "64",
    "--set",
    "tp=4",
    "--set",
    "pp=2",
    "--global-batch",
    "512",
]
FAST_MOE = [
    "diagnose", "qwen3-30b-a3b", "dgx-h100", "--gpus", "32", "--seq-len", "4096", "--global-batch", "256",
    "--set", "tp=2", "--set", "ep=8", "--set", "recompute=full",
]  # fmt: skip


@pytest.mark.parametrize(("words", "seconds"), [(FAST, "4 s"), (FAST_MOE, "6 s")])
def test_a_run_faster_than_the_band_is_not_as_described(words: list[str], seconds: str) -> None:
    facts = json.loads(RUNNER.invoke(app, [*words, "--measured", seconds, "--json"]).stdout)
    assert facts["predicted_s"] > (1 + facts["band"]) * facts["measured_s"]
    assert facts["faster_than_band"]
    assert [cause["cause"] for cause in facts["causes"]] == ["not_as_described"]
    text = " ".join(RUNNER.invoke(app, [*words, "--measured", seconds]).stdout.split())
    assert text.startswith(
        f"{facts['predicted_s'] / facts['measured_s']:.3g} times as fast as predicted, more than"
    )
    assert "check batch, sequence length, axes, model, units and convention" in text
    assert "as fast as predicted (" not in text
    assert "Measure next" not in text


def test_what_takes_time_makes_no_run_faster() -> None:
    """Within the band too; the band is that of `planner estimate`, so that both verbs say the same."""
    usual = json.loads(RUNNER.invoke(app, ["estimate", *FAST[1:], "--json"]).stdout)["choices"][0]
    band = usual["step_time"] / usual["step_time_low"] - 1
    for by in (1.02, 0.98 * (1 + band), 1.02 * (1 + band)):
        seconds = f"{usual['step_time'] / by:.4f} s"
        facts = json.loads(RUNNER.invoke(app, [*FAST, "--measured", seconds, "--json"]).stdout)
        assert facts["band"] == pytest.approx(band, rel=1e-3)
        assert facts["faster_than_band"] == (by > 1 + band)
        assert len(facts["causes"]) == 1
    shown = " ".join(RUNNER.invoke(app, [*FAST, "--measured", seconds]).stdout.split())
    assert "of one run in ten it is more than" in shown


def test_a_fast_run_whose_reported_share_is_another_peaks_is_told_so() -> None:
    """That costs no time, so that it may be beside anything."""
    facts = json.loads(RUNNER.invoke(app, [*FAST, "--measured", "4 s", "--mfu", "42%", "--json"]).stdout)
    assert {cause["cause"] for cause in facts["causes"]} == {"peak", "not_as_described"}
    text = " ".join(RUNNER.invoke(app, [*FAST, "--measured", "4 s", "--mfu", "42%"]).stdout.split())
    assert "else check batch" in text


def test_a_near_tie_names_both() -> None:
    from planner.report.diagnosis import diagnosis_document
    from planner.report.text import render, terminal

    base = Request(model="llama-3-8b", cluster="dgx-h100", gpus=16, seq_len=8192, global_batch="128")
    seen = observe(base, "20 s:tp=2")[0]
    found = diagnose([Evidence(seen)])
    real = [finding for finding in found.findings if finding.cause is not None]
    for shares, said in (
        ((0.37, 0.36), "probably either"),
        ((0.37, 0.2), "probably"),
        ((0.48, 0.47), "either"),
    ):
        two = tuple(replace(f, probability=p) for f, p in zip(real[:2], shares, strict=True))
        text = " ".join(render(diagnosis_document(replace(found, findings=two), []), terminal()).split())
        chip = found.job.problem.cluster.accelerator.architecture
        first, second = (cause_words(f.cause.name, chip).title for f in two if f.cause is not None)
        assert f"slower than predicted: {said} {first}" in text
        assert (f"; or {second}" in text) == ("either" in said)


@pytest.mark.parametrize(
    ("count", "said"),
    [("half", ""), ("full", "which the step time is with causal attention counted in full"),
     (1.25, "FLOPs are counted otherwise there")],
)  # fmt: skip
def test_a_logs_rate_that_is_not_its_step_times_is_remarked_on(
    count: str | float, said: str, tmp_path: Path
) -> None:
    from planner.cost.mfu import MfuConvention

    base = Request(model="llama-3-8b", cluster="dgx-h100", gpus=16, seq_len=8192, global_batch="128")
    seen = observe(base, "9 s:tp=2")[0]
    full, half = (
        model_flops(seen, kind) / 9 for kind in (MfuConvention.FULL_SQUARE, MfuConvention.CAUSAL_HALF)
    )
    rate = {"half": half, "full": full}.get(str(count)) or float(count) * full
    lines = [
        f" iteration {i}/ 500 | consumed samples: {128 * i} | elapsed time per iteration (ms): 9000.0 | throughput "
        f"per GPU (TFLOP/s/GPU): {rate / 1e12:.1f} | learning rate: 1E-05 | global batch size: 128 | lm loss: 1.1E+01 |"
        for i in range(1, 31)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines))
    words = ["diagnose", "llama-3-8b", "dgx-h100", "--gpus", "16", "--global-batch", "128"]
    told = RUNNER.invoke(app, [*words, "--run", f"{tmp_path / 'train.log'}:tp=2"])
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    assert ("TFLOP/s per device are reported" in text) == bool(said)
    assert said in text
