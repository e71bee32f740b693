"""Scripts that grow without bound, or nest without end, are refused and not followed."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.frameworks.shell.branches import truth
from planner.frameworks.shell.here_documents import without_documents
from planner.frameworks.shell.script import Script

COMMAND = "torchrun pretrain_gpt.py --num-layers 32 "
TENFOLD = "\n".join(f'{b}="' + f"${a} " * 10 + '"' for a, b in zip("ABCDEFG", "BCDEFGH", strict=True))


@pytest.mark.parametrize(
    "text",
    [
        f"A=xxxxxxxxxx\n{TENFOLD}\n{COMMAND} $H",
        f"C=$D\nD=$C$C$C$C\nD=$C$D$C$D\n{COMMAND} $D",
        'set -- a b c\n' + 'set -- "$@" "$@" "$@" "$@"\n' * 30 + COMMAND,
        "A=" + "x" * 100_000 + f"\n{COMMAND}" + " $A" * 30_000,
        "A=" + "x" * 100_000 + "\nA+=$A\nA+=$A\n" + COMMAND,
        "A=" + "x" * 90_000 + "\n" + "B=$A\n" * 30,
        COMMAND + "$(" * 150_000,
        COMMAND + '"' + "x " * 150_000,
        "if [ 1 = 1 ]; then\n" * 300 + COMMAND,
        "if [ 1 = 1 ]; then " + "then " * 5_000 + COMMAND,
    ],
)  # fmt: skip
def test_a_script_that_builds_too_much_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must"):
        Script().follow(text)


def test_a_long_remark_and_many_statements_are_none_of_that() -> None:
    script = Script().follow("# " + "x " * 200_000 + "\n" + "A=1\n" * 20_000 + COMMAND + "$A")
    assert script.words[-3:] == ["--num-layers", "32", "1"]
    assert script.variables["A"] == "1"


def test_a_condition_of_endless_words_is_not_known() -> None:
    assert truth("[[ " + " || ".join(["a = b"] * 2_000) + " ]]") is None
    assert truth("! " * 5_000 + "[ a = a ]") is None


def test_where_documents_end() -> None:
    text = "cat <<A\none\n A\nA \ncat <<-B\n\ttwo\n\tB\ncat <<C\nnever\n"
    plain, documents = without_documents(text)
    assert [document.body for document in documents] == ["one\n A\n", "two\n"]
    assert "<<C\nnever" in plain


def test_names_that_read_fills() -> None:
    script = Script().follow("IFS=, read -r A  B <<< '1,2,3'\nread" + " a" * 40_000 + " x! <<< y\n")
    assert (script.variables["A"], script.variables["B"]) == ("1", "2,3")
