"""Which options do the verbs share? Those of a question as it declares them, and those of an answer.

Of a verb with a parameter `asked` the command line has every option of that kind of question (`takes_question`). Left
out: what the verbs do with them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from planner.ask.option import Option, options_of
from planner.ask.question import Question
from planner.dialect import in_words
from planner.errors import InputError

FASTEST: Final = "0"
ChoiceOption = Annotated[
    str,
    typer.Option(
        "--choice",
        metavar="INDEX",
        help="Index of the configuration: 0 is #1 of the plan's table; or: recommended.",
    ),
]
PlanArgument = Annotated[
    Path, typer.Argument(metavar="PLAN.json", help="A plan written with planner plan -o.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="The plan's cluster, where its name alone does not say it: YAML, shorthand."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the plan to this file.")
]
AnswerOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the answer to this JSON file.")
]


@dataclass(frozen=True)
class Shown:
    """How a verb shows an option of its question otherwise. `argument`: by its place among the words, which is the
    usual for what a question cannot do without; `required`: must be given; `text`: its help there."""

    argument: bool | None = None
    required: bool | None = None
    text: str = ""
    metavar: str = ""


def completion(one: Option[Any, Any]) -> Callable[[str], list[str]] | None:
    """What a shell may complete the beginning of an option's value to."""
    names = one.names
    if names is None:
        return None
    return lambda incomplete: [str(name) for name in names() if str(name).startswith(incomplete)]


@cache
def shown_by(one: Option[Any, Any], shown: Shown | None = None) -> tuple[Any, Any]:
    """The type of an option for typer, and its default: text, of which the option's own reader makes a value."""
    how = shown or Shown()
    argument = one.required and not one.reader.many if how.argument is None else how.argument
    required = argument if how.required is None else how.required
    said: dict[str, Any] = {"help": in_words(how.text or one.help), "autocompletion": completion(one)}
    if one.reader.flag:
        return Annotated[bool, typer.Option(one.words, help=said["help"])], False
    said["metavar"] = how.metavar or one.metavar
    if argument:
        return Annotated[str, typer.Argument(**said)], inspect.Parameter.empty if required else ""
    if one.reader.many:
        return Annotated[list[str] | None, typer.Option(one.words, **said)], None
    usual = None if one.default in (None, (), "") else str(one.written(one.default))
    return Annotated[
        str | None, typer.Option(one.words, **said)
    ], inspect.Parameter.empty if required else usual


def takes_question(verb: Callable[..., int]) -> Callable[..., int]:
    """Give a verb the options of its parameter `asked` in its place, if it has one.

    The parameter's annotation says which kind of question, and, as a mapping beside it, how the verb shows some of its
    options otherwise.
    """
    parameters = inspect.signature(verb, eval_str=True).parameters
    if "asked" not in parameters:
        return verb
    kind, *more = get_args(parameters["asked"].annotation) or (parameters["asked"].annotation,)
    options, shown = options_of(kind), more[0] if more else {}
    given: list[inspect.Parameter] = []
    for parameter in parameters.values():
        if parameter.name != "asked":
            given.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for name, one in options.items():
            type_, default = shown_by(one, shown.get(name))
            given.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)
            )

    @functools.wraps(verb)
    def run(**values: Any) -> int:
        said = {name: values.pop(name) for name in options}
        given = {name: value for name, value in said.items() if value not in (None, [])}
        left_open = {name: one.default for name, one in options.items() if one.required}
        return verb(asked=kind(**left_open | given), **values)

    run.__signature__ = inspect.Signature(given, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in given} | {"return": int}
    return run


def alone(name: str) -> Any:
    """An option of a question, for a verb that takes it without one."""
    one = options_of(Question)[name]

    def read(text: str) -> Any:
        try:
            return one.reader.read(text, one.name)
        except InputError as error:
            raise typer.BadParameter(in_words(f"{error.must}, given {error.given}")) from None

    plain = one.reader.flag or one.reader.many or one.reader.is_file
    more: dict[str, Any] = {} if plain else {"parser": read}
    return typer.Option(
        one.words, metavar=None if one.reader.flag else one.metavar, help=in_words(one.help), **more
    )


AssumeOption = Annotated[list[str] | None, alone("assume")]
CalibrationOption = Annotated[Path | None, alone("calibration")]
GpusOption = Annotated[int | None, alone("gpus")]
SeqLenOption = Annotated[int | None, alone("seq_len")]
MtpOption = Annotated[bool, alone("mtp")]
