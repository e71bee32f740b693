"""Do models of all kinds run dry, and keep for the backward pass what they keep when they run with values?"""

from __future__ import annotations

import pytest

from benchmarks.dry_run_classes import FEW, Ran, section, tried, without_dropout
from benchmarks.tiny_configs import tiny_fields

RUN = (
    "bert", "deepseek_v3", "dbrx", "gemma3", "gpt2", "longcat_flash", "mamba2", "qwen3_next", "reformer",
)  # fmt: skip


@pytest.fixture
def _library() -> None:
    for name in ("torch", "transformers"):
        pytest.importorskip(name)


@pytest.mark.slow
@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("kind", RUN)
def test_kinds_keep_what_they_keep_with_values(kind: str) -> None:
    found = tried(kind)
    assert (found.refused, found.refused_with_values) == ("", "")
    assert found.kept == pytest.approx(found.kept_with_values, abs=FEW)


@pytest.mark.slow
@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(
    ("kind", "why"),
    [("git", "not given pixel_values"), ("blt", "how many places of a mask"), ("musicgen", "Error")],
)
def test_what_does_not_run_on_tokens_alone_is_refused_by_name(kind: str, why: str) -> None:
    assert why in tried(kind).refused


@pytest.mark.slow
@pytest.mark.usefixtures("_library")
def test_tiny_fields_have_no_dropout_inside_either() -> None:
    fields = tiny_fields("emu3")
    assert "attention_dropout" not in fields["text_config"]
    assert without_dropout(fields)["text_config"]["attention_dropout"] == 0.0


def test_a_section_tells_what_is_refused_and_what_keeps_other_bytes() -> None:
    found = {
        "alike": Ran("", "", 100, 100),
        "images": Ran("not given pixel_values", "ValueError"),
        "near": Ran("", "", 100, 104),
        "other": Ran("", "", 10_000, 20_000),
        "unrun": Ran("a number that the program reads", ""),
    }
    text = section(found, "5")
    assert text.startswith(
        "3 of 5 causal model types of transformers 5 run (60%), under autocast alone: none."
    )
    assert "| images | not given pixel_values | does not run |" in text
    assert "| unrun | a number that the program reads | runs |" in text
    assert (
        "3 also run with values: 1 keep equally many bytes for the backward pass, 1 differ by 4 bytes or le"
        in text
    )
    assert "| other | 10,000 | 20,000 |" in text
    assert "| near |" not in text
