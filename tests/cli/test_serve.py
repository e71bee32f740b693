"""Does the served page answer questions, refuse files and foreign names, and look right in a browser?"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.answer.plan import make_plan
from planner.ask.request import Request
from planner.catalog.load_overlay import save_overlay
from planner.catalog.load_stacks import DEFAULT_STACK
from planner.cli.serve import FIELDS, ON_PAGE, answer, asked, is_loopback
from planner.errors import InputError, PlannerError
from planner.report.facts import precise_time
from planner.report.words import worded
from planner.spec.overlay import Overlay
from tests.browser import marks, opened

ASKED = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": "16", "seq_len": "2,048", "global_batch": "64",
         "tokens": "10B", "set": "pp=2 tp=1"}  # fmt: skip


def test_the_question_in_an_address_is_the_verbs() -> None:
    wanted = Request(
        "llama-3.2-1b",
        "dgx-h100",
        16,
        seq_len=2048,
        global_batch="64",
        tokens=1e10,
        set={"pp": (2,), "tp": (1,)},
    )
    assert asked(ASKED) == wanted
    assert answer(ASKED).choices == worded(make_plan(wanted), ON_PAGE).choices


def test_a_calibration_holds_for_its_stack_and_device_alone(tmp_path: Path) -> None:
    theirs = Overlay(
        name="ours", date="2026", level="L3", made_from=("a run",), stack=DEFAULT_STACK, accelerator="h100-sxm-80g",
        multiply={"compute.gemm": 1.5},
    )  # fmt: skip
    save_overlay(theirs, tmp_path / "ours.yaml")
    plain, calibrated = answer(ASKED), answer(ASKED, str(tmp_path / "ours.yaml"))
    assert calibrated.choices[0].step_time > 1.1 * plain.choices[0].step_time
    assert calibrated.confidence.level == "L3"
    with pytest.raises(InputError, match="holds for"):
        answer({**ASKED, "cluster": "dgx-b200"}, str(tmp_path / "ours.yaml"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "../../etc/passwd"),
        ("model", "/etc/passwd"),
        ("model", "~/model"),
        ("model", "."),
        ("model", ""),
        ("model", "FILE"),
        ("cluster", "FILE"),
        ("cluster", "../cluster_specs/dgx-h100.yaml"),
        ("cluster", ".."),
        ("stack", "FILE"),
        ("stack", "../stacks/megatron-2026"),
        ("gpus", "-8"),
        ("gpus", "1e3"),
        ("gpus", "٣"),
        ("set", "tp=8;pp=1"),
        ("tokens", "many"),
        ("model", "x" * 201),
        ("model", "llama\n-3.2-1b"),
    ],
)
def test_files_and_nonsense_are_refused(
    field: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.yaml"
    file.write_text("name: secret\n")
    monkeypatch.chdir(tmp_path)
    for text in {value.replace("FILE", str(file)), value.replace("FILE", file.name)}:
        with pytest.raises(PlannerError) as refused:
            asked(ASKED | {field: text})
        assert "secret\n" not in str(refused.value)


def test_a_family_of_stacks_may_be_asked_for() -> None:
    assert answer({**ASKED, "stack": "torchtitan"}).subject.stack.name == "torchtitan-2026"


def test_a_number_out_of_bounds_is_told_both_bounds() -> None:
    with pytest.raises(PlannerError, match="gpus must be a whole number from 1 to 1,000,000,000"):
        asked(ASKED | {"gpus": "8000000000"})


def client() -> Any:
    testclient = pytest.importorskip("starlette.testclient")
    pytest.importorskip("vl_convert")
    from planner.cli.serve import web_app

    return testclient.TestClient(web_app(), base_url="http://127.0.0.1:8765")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_every_answer_is_guarded() -> None:
    web = client()
    page = web.get("/")
    assert page.status_code == 200
    assert all(f'name="{field}"' in page.text for field in FIELDS)
    assert "'unsafe-eval'" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    sources = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert all(source.startswith(("/", "#", "data:")) for source in sources)
    assert all(web.get(source).status_code == 200 for source in sources if source.startswith("/"))
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/page_files/page.css",
        "/.git/config",
        "/serve.html.j2",
    ):
        assert web.get(path).status_code == 404
    assert web.get("/", headers={"host": "evil.example"}).status_code == 400
    assert web.post("/api/plan").status_code == 405


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_answers_and_problems() -> None:
    web = client()
    found = web.get("/api/plan", params=ASKED).json()
    assert answer(ASKED).choices[0].config.text in found["page"]
    assert {"waterfall", "memory"} <= set(found["charts"])
    assert 'class="timeline"' in web.get("/api/pipeline", params=ASKED).json()["drawing"]
    plan = web.get("/plan.json", params=ASKED)
    assert plan.json()["verdict"] == "found"
    assert "attachment" in plan.headers["content-disposition"]
    problem = web.get("/api/plan", params=ASKED | {"model": "<script>alert(1)</script>"}).json()["problem"]
    assert problem["must"] == "unknown model '<script>alert(1)</script>'"
    assert web.get("/plan.json", params={}).status_code == 400


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_hints_are_in_the_words_of_the_form() -> None:
    sizeless = {key: value for key, value in ASKED.items() if key != "gpus"}
    assert client().get("/api/plan", params=sizeless).json()["problem"]["hint"] == "add GPUs: 8"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "127.1", "localhost", "LOCALHOST", "::1", "[::1]"]
)
def test_addresses_of_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "evil.example", "localhost.evil.example", "a@localhost"]
)
def test_addresses_that_others_reach(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_who_may_ask() -> None:
    """Whoever calls it by an address of this machine, and no page of another site."""
    web = client()
    for host in ("[::1]:8765", "127.0.0.1:8765", "LocalHost:8765"):
        assert web.get("/", headers={"host": host}).status_code == 200
    own = {"host": "127.0.0.1:8765"}
    for foreign in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        assert web.get("/api/plan", params={}, headers=own | foreign).status_code == 403
    for own_page in ({"origin": "http://127.0.0.1:8765"}, {"sec-fetch-site": "same-origin"}, {}):
        assert web.get("/plan.json", params={}, headers=own | own_page).status_code == 400


def test_no_address_is_refused() -> None:
    from planner.cli.serve import _listen

    with pytest.raises(InputError, match="address"):
        _listen("", 0)


def test_a_port_in_use_is_an_error() -> None:
    from planner.cli.serve import _listen

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="free"):
            _listen("127.0.0.1", taken.getsockname()[1])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "planner", "serve", "--port", "0"]
    served = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "80"})
    assert served.stderr is not None
    first = served.stderr.readline()
    found = re.search(r"http://\S+", first)
    assert found, first
    yield found[0]
    served.terminate()
    served.stderr.close()
    served.wait(30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_changing_a_field_changes_the_plan(address: str) -> None:
    with opened(f"{address}/?model=llama-3.2-1b&cluster=dgx-h100&gpus=16&seq_len=2048", address) as page:
        first = answer(
            {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": "16", "seq_len": "2048", "tokens": "15T"}
        )
        assert page.inner_text(".lead code") == first.choices[0].config.text
        page.fill("[name=gpus]", "32")
        page.wait_for_selector("html[data-answered*='gpus=32']", timeout=60_000)
        second = answer(
            {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": "32", "seq_len": "2048", "tokens": "15T"}
        )
        assert page.inner_text(".lead code") == second.choices[0].config.text
        assert f"step: {precise_time(second.choices[0].step_time)}, 100.0 %" in " ".join(
            marks(page, "waterfall")
        )
        assert "gpus=32" in page.url
        page.fill("[name=model]", "<img src=x onerror=alert(1)>")
        page.wait_for_selector("#problem:not([hidden])", timeout=60_000)
        assert "<img" in page.inner_text("#problem")
        assert page.eval_on_selector_all("#problem img", "all => all.length") == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_address_holds_the_whole_question(address: str) -> None:
    asked = "model=llama-3.2-1b&cluster=dgx-h100&gpus=16&seq_len=2048"
    with opened(f"{address}/?{asked}&stack=megatron-2026%2Bdeepep", address) as page:
        assert page.input_value("[name=stack]") == "megatron-2026+deepep"
        assert "+deepep" in page.inner_text(".subject")
    with opened(f"{address}/?{asked}&precision=int3&length=1", address) as page:
        assert "int3" in page.inner_text("#problem")
    with opened(f"{address}/?{asked}", address) as page:
        page.fill("[name=tokens]", "")
        page.wait_for_selector("html[data-answered$='tokens=']", timeout=60_000)
        copied = page.url
    with opened(copied, address) as page:
        assert page.input_value("[name=tokens]") == ""
        assert "tokens in all" not in page.inner_text(".subject")
