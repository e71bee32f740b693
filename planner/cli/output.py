"""How does a verb's answer leave the process? Documents and JSON on stdout, errors and progress on stderr, exit codes.

Left out: what is asked (`cli`, `cli.options`) and what an answer says (`report/`).
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from planner.dialect import in_words
from planner.errors import InputError, PlannerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.ask.option import Asked
    from planner.cli.campaign import Answer
    from planner.spec.planfile import Plan

INTERRUPTED, BROKEN_PIPE = 130, 141  # what a shell reports for a process ended by SIGINT, SIGPIPE
SIGNALLED = 128  # and the number of the signal: what it reports for any other
_ENDING = ("SIGTERM", "SIGHUP")
_LONGEST_LINE, _MOST_LINES = 600, 20  # of an error message: one screen, whatever a file holds


class Terminated(BaseException):
    """The process was told to end: what was begun is cleaned up, then it does."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _ending_cleanly() -> Iterator[None]:
    """Have the first signal to end raise `Terminated`, so that processes are stopped and what was kept stays whole; a
    second one ends at once."""
    held = []

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():  # handlers can be set nowhere else
        numbers = [number for name in _ENDING if (number := getattr(signal, name, None)) is not None]
        held = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # not of nohup
    for number in held:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, signal.SIG_DFL)


def answers(verb: Callable[..., int]) -> Callable[..., None]:
    """Turn a verb's result, or its error, into the exit code of the process."""

    @functools.wraps(verb)
    def run(*args: Any, **options: Any) -> None:
        try:
            with _ending_cleanly():
                code = verb(*args, **options)
                sys.stdout.flush()
        except Terminated as ending:
            code = SIGNALLED + ending.number
        except PlannerError as error:
            complain(str(error))
            code = error.exit_code
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to flush at exit
            code = BROKEN_PIPE
        except OSError as error:  # a full disk behind stdout, say
            code = unwritable(error)
        raise SystemExit(code)

    return run


def unwritable(error: OSError) -> int:
    """Say that stdout takes no answer, and with which exit code that ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to flush at exit
    complain(f"the answer must be writable\n  given: {error.strerror or error}")
    return InputError.exit_code


def complain(message: str) -> None:
    """An error on stderr, at most a screen of it."""
    from planner.report.text import prose, terminal

    lines = [_shortened(line) for line in message.splitlines()]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "..."]
    terminal(stderr=True).print(prose("error: ", "bold red") + prose("\n".join(lines)), soft_wrap=True)


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "..."


def say(document: RenderableType, whole_lines: bool = False) -> None:
    """Print a document to stdout; `whole_lines`: what does not wrap stays whole where it is wider than the terminal."""
    from planner.report.text import render, terminal

    sys.stdout.write(render(document, terminal(), crop=not whole_lines))


def say_json(facts: object) -> None:
    """Print one JSON document to stdout."""
    sys.stdout.write(_document(facts))


def _document(facts: object) -> str:
    return in_words(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def tell(answer: Answer, as_json: bool, output: Path | None = None) -> int:
    """Print an answer as a document or as facts, write its facts where asked, and say with the exit code whether
    something was found."""
    if output is not None:
        from planner.spec.save import save_bytes

        save_bytes(_document(answer.facts).encode(), output)
        sys.stderr.write(f"answer written to {output}\n")
    say_json(answer.facts) if as_json else say(answer.document)
    return 0 if answer.found else 1


def check_output(output: Path | None, *read: Asked | Plan | Path | str | None) -> None:
    """Refuse a target that cannot be written, or that a command reads, before any work is done.

    `read`: questions and plans, of which every file that they name counts, and files. Raises `FileInputError`.
    """
    if output is None:
        return
    from planner.ask.files import files_at, files_named
    from planner.ask.option import Asked
    from planner.spec.save import check_target

    files: list[Path] = []
    for one in read:
        if one is None or isinstance(one, Path | str):
            files += files_at(one)
        elif isinstance(one, Asked):
            files += files_named(one)
        else:
            from planner.ask.planned import planned_question

            files += files_named(planned_question(one))
    check_target(output, *dict.fromkeys(files))


def progress(what: str) -> AbstractContextManager[object]:
    """A spinner on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from planner.report.text import terminal

    return terminal(stderr=True).status(what)


def updates(spinner: object) -> Callable[[str], object]:
    """What changes the text of a spinner; nothing where there is none."""
    update: Callable[[str], object] = getattr(spinner, "update", lambda text: None)
    return update
