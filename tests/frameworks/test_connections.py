"""Hardware queues of launch scripts: CUDA_DEVICE_MAX_CONNECTIONS where Megatron-LM asserts it, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.ask.question import Question
from planner.cli.check import check_files
from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.megatron.connections import CONNECTIONS
from planner.frameworks.shell.environment import value_of
from tests.frameworks.launches import golden_launch, launch, problem
from tests.frameworks.megatron_checkout import beginning

HOPPER, BLACKWELL = '"2x8 h100 400G-ib"', "2x8 b200 400G-ib"
TRAIN = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --bf16 --swiglu "
    "--micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer --hidden-dropout 0 --attention-dropout 0 "
)
TP = "--tensor-model-parallel-size 2 --sequence-parallel "
EXPERTS = (
    "--num-experts 8 --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--overlap-moe-expert-parallel-comm "
)


def said(script: str, cluster: str = HOPPER) -> dict[str, Any]:
    return check_files({"run.sh": script}, Question("", cluster.strip('"')))


def told(answer: dict[str, Any]) -> list[str]:
    return [note for note in answer["notes"] if CONNECTIONS in note]


@pytest.mark.parametrize("degrees", [TP, "--context-parallel-size 2 "])
@pytest.mark.parametrize("value", ["8", "32"])
def test_refused_before_blackwell(degrees: str, value: str) -> None:
    wrong = said(f"export {CONNECTIONS}={value}\n{TRAIN}{degrees}")
    assert not wrong["legal"]
    broken = {v["rule"]: v for v in wrong["violations"]}
    assert set(broken) == {"cuda-connections"}
    assert f"it is {value}" in broken["cuda-connections"]["reason"]
    assert wrong["verdict"] == "fits"  # what it would cost is said all the same
    for right in (f"export {CONNECTIONS}=1\n{TRAIN}", f"{CONNECTIONS}=1 {TRAIN}"):
        answer = said(right + degrees)
        assert answer["legal"]
        assert not told(answer)


def test_what_the_files_do_not_set() -> None:
    """A shell may have it: said, not refused. Without degrees nothing needs it."""
    answer = said(TRAIN + TP)
    assert answer["legal"]
    assert len(told(answer)) == 1
    assert "refuses to start" in told(answer)[0]
    assert not told(said(TRAIN))
    assert not told(said(f"docker exec -e {CONNECTIONS} training true\n{TRAIN}{TP}"))


def test_blackwell_needs_none() -> None:
    several = said(f"export {CONNECTIONS}=32\n{TRAIN}{TP}", BLACKWELL)
    assert several["legal"]
    assert not told(several)
    assert not told(said(TRAIN + TP, BLACKWELL))
    one = said(f"export {CONNECTIONS}=1\n{TRAIN}{TP}", BLACKWELL)
    assert one["legal"]
    assert "Blackwell does not need" in told(one)[0]


def test_experts_overlapped_exempt() -> None:
    """Megatron-LM warns there, since both want another value."""
    for value, words in (("1", "with several queues"), ("32", "with 1 alone")):
        answer = said(f"export {CONNECTIONS}={value}\n{TRAIN}{EXPERTS}{TP}")
        assert not [v for v in answer["violations"] if v["rule"] == "cuda-connections"]
        assert words in told(answer)[0]
    alone = said(f"export {CONNECTIONS}=32\n{TRAIN}{EXPERTS}")
    assert not told(alone)


def test_fsdp_must_not_have_one() -> None:
    plain = TRAIN.replace("--use-distributed-optimizer ", "")
    for option in ("--use-megatron-fsdp --ckpt-format fsdp_dtensor", "--use-torch-fsdp2"):
        with pytest.raises(InputError, match=CONNECTIONS):
            said(f"{CONNECTIONS}=1 {plain}{option}")
    answer = said(f"export {CONNECTIONS}=8\n{plain}{TP}--use-megatron-fsdp --ckpt-format fsdp_dtensor")
    assert answer["legal"]
    assert "lets FSDP overlap" in told(answer)[0]


def test_bridge_asserts_less() -> None:
    """Its recipes set variables that the shell does not, and only FSDP is refused."""
    files = framework("megatron-bridge").render(golden_launch("megatron-bridge"), "0.7.0")
    script, cluster = files["launch.sh"], "16x8 h100 400G-ib"
    set_to_1 = f"export {CONNECTIONS}=1"
    assert set_to_1 in script
    assert not told(said(script, cluster))
    assert not told(said(script.replace(set_to_1, ""), cluster))
    answer = said(script.replace(set_to_1, f"export {CONNECTIONS}=8"), cluster)
    assert answer["legal"]
    assert "with 1 alone" in told(answer)[0]
    with pytest.raises(InputError, match=CONNECTIONS):
        framework("megatron-bridge").parse({"run.sh": script + "\n ddp.use_megatron_fsdp=true"})


def test_written_where_experts_overlap() -> None:
    given = problem("qwen3-30b-a3b", "megatron-2026+overlap-moe-expert-parallel-comm")
    config = replace(golden_launch("megatron").config, tp=1, sp=0, dp=32, num_microbatches=8, ep=8)
    made = launch("qwen3-30b-a3b", config, given)
    assert f"{CONNECTIONS}=32\n" in framework("megatron").render(made, "0.18.2")["launch.sh"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("# export NAME=1", ""),
        ("unset NAME", ""),
        ("export NAME=1\nexport NAME=8", "8"),
        ("NAME=${N:-4}", "4"),
        ("NAME=4 python train.py", "4"),
        ("docker run -e NAME=2 image python train.py", "2"),
        ("srun --export=ALL,NAME=1,OTHER=3 python train.py", "1"),
        ("env NAME=1 python train.py", "1"),
        ("NAME=$COUNT", None),
        ("python -c 'os.environ[\"NAME\"]'", None),
        ("if nvidia-smi | grep -q B200; then\nexport NAME=32\nelse\nexport NAME=1\nfi", None),
        ("TP=2\nif [ $TP = 2 ]; then\nexport NAME=1\nelse\nexport NAME=32\nfi", "1"),
    ],
)
def test_values_of_variables(text: str, value: str | None) -> None:
    assert value_of("NAME", text) == value


@pytest.mark.slow
@pytest.mark.checkout
@pytest.mark.skipif(
    "MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout of Megatron-LM"
)
@pytest.mark.parametrize(("capability", "cluster"), [((9, 0), HOPPER), ((10, 0), BLACKWELL)])
def test_refused_as_megatron_refuses(capability: tuple[int, int], cluster: str, tmp_path: Path) -> None:
    cases = [
        (value, degrees + more)
        for value in ("1", "8", "")
        for degrees in ("", TP, "--context-parallel-size 2 ")
        for more in ("", EXPERTS)
    ]
    script = (
        beginning(capability)
        + f"""
from megatron.training.arguments import parse_args, validate_args
found = []
for value, words in json.load(open(sys.argv[1])):
    os.environ.pop("{CONNECTIONS}", None)
    os.environ.update(({{"{CONNECTIONS}": value}} if value else {{}}), WORLD_SIZE="16", RANK="0")
    sys.argv = ["pretrain_gpt.py", *words.split(), "--mock-data", "--tokenizer-type", "NullTokenizer"]
    args = parse_args()
    args.moe_grouped_gemm = False
    try:
        validate_args(args)
        found.append("")
    except AssertionError as error:
        found.append(str(error))
print(json.dumps(found))
"""
    )
    more = " --train-iters 10 --lr 1e-4"
    listed = [[value, TRAIN.partition("pretrain_gpt.py ")[2] + words + more] for value, words in cases]
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(map(bool, found)) == (4 if capability == (9, 0) else 0)
    for (value, words), refusal in zip(cases, found, strict=True):
        assert not refusal or CONNECTIONS in refusal
        answer = said((f"export {CONNECTIONS}={value}\n" if value else "") + TRAIN + words, cluster)
        broken = any(v["rule"] == "cuda-connections" for v in answer["violations"])
        unset = any("refuses to start" in note for note in told(answer))
        assert (broken or unset) == bool(refusal), (value, words)
