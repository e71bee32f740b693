"""Which settings do a user's files state: the YAML file, the command line over it, and variables (M_NAME) beside both?

A command line is `python3 -m maxtext.trainers.pre_train.train CONFIG.yml name=value ...`, and of older releases
MaxText.train. Left out: what the settings mean (`parse.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from planner.errors import InputError
from planner.frameworks.fields import flatten, load_settings
from planner.frameworks.maxtext.names import VERSION
from planner.frameworks.options import option_table
from planner.frameworks.shell.script import Script, commands_of, is_script

SHIPPED: Final = ("base.yml",)
_ENDINGS: Final = (".yml", ".yaml")
_DEEPEST: Final = 4  # files that start from one another
_VARIABLE: Final = "M_"
_OTHER: Final = (
    "post_train",
    "train_rl",
    "train_sft",
    "train_dpo",
    "train_distill",
    "decode",
    "grpo",
    "maxengine",
)


@dataclass(frozen=True)
class Given:
    """Settings by dotted name, the file that is named in errors, and notes."""

    values: dict[str, Any]
    file: str
    notes: tuple[str, ...]


def given_in(files: Mapping[str, str]) -> Given:
    """What the files state together. Raises `FileInputError` or `InputError`."""
    yamls = {name: text for name, text in files.items() if name.endswith(_ENDINGS)}
    scripts = [text for name, text in files.items() if is_script(name) and not name.endswith(".py")]
    script = Script().follow("\n".join(scripts)) if scripts else Script()
    commands = [command for command in commands_of(script.words) if _is_own(command)]
    other = next((word for command in commands for word in command if _trains_otherwise(word)), "")
    if other:
        must = "planner reads pre-training (maxtext.trainers.pre_train.train)"
        raise InputError(must, other[:80], "name the model and its degrees to planner estimate")
    words = commands[-1] if commands else []
    said = [word.lstrip("+") for word in words if "=" in word and not word.startswith("-")]
    line = {name: _value(text) for name, _, text in (word.partition("=") for word in said)}
    table = option_table("maxtext", VERSION)
    variables = {
        name[len(_VARIABLE) :].lower(): _value(text)
        for name, text in script.variables.items()
        if name.startswith(_VARIABLE) and name[len(_VARIABLE) :].lower() in table
    }
    named = next((word for word in words if word.endswith(_ENDINGS) and "=" not in word), "")
    base, file = _base(named, yamls, next(iter(files)))
    notes = [f"{len(commands)} commands: the last is read"] if len(commands) > 1 else []
    return Given({**base, **variables, **line}, file, tuple(notes))


def _is_own(command: list[str]) -> bool:
    """Does a command run MaxText, or set axes of its mesh?"""
    own = any(part in word for word in command for part in ("maxtext.", "maxtext/", "MaxText.", "MaxText/"))
    settings = sum("=" in word and not word.startswith("-") for word in command)
    return settings > 0 and (own or any("_parallelism=" in word for word in command))


def _trains_otherwise(word: str) -> bool:
    own = word.startswith(("maxtext.", "MaxText.", "src/maxtext/", "MaxText/"))
    return own and any(part in word for part in _OTHER)


def _value(text: str) -> Any:
    """A word as the command line's reader takes it: a number, a truth, a list, else the word."""
    plain = text.strip().strip("'\"") if text[:1] in "'\"" else text
    try:
        return yaml.safe_load(plain) if "$" not in plain else plain
    except yaml.YAMLError:
        return plain


def _base(named: str, yamls: Mapping[str, str], first: str) -> tuple[dict[str, Any], str]:
    """Settings of the file that a command names, or of the only one that is given."""
    short = named.split("/")[-1]
    found = next((name for name in yamls if name.split("/")[-1] == short), "") if named else ""
    if named and not found and short not in SHIPPED:
        must = "the YAML file that the command names must be given too"
        raise InputError(must, named[:80], "name it beside the script")
    if not named and len(yamls) > 1:
        found = _outermost(yamls)
    elif not named and yamls:
        found = next(iter(yamls))
    return (_whole(found, yamls, 0), found) if found else ({}, first)


def _outermost(yamls: Mapping[str, str]) -> str:
    """The file that no other one starts from. Raises `InputError`."""
    documents = {name: load_settings(text, name) for name, text in yamls.items()}
    starts = {str(document.get("base_config", "")).split("/")[-1] for document in documents.values()}
    left = [name for name in documents if name.split("/")[-1] not in starts]
    if len(left) != 1:
        raise InputError(
            "one YAML file of MaxText must be given, or the script that names one", ", ".join(left)[:200]
        )
    return left[0]


def _whole(name: str, yamls: Mapping[str, str], depth: int) -> dict[str, Any]:
    """A file's settings over those that it starts from."""
    document = load_settings(yamls[name], name)
    start = str(document.get("base_config", "")).split("/")[-1]
    if not start or start in SHIPPED:
        return flatten(document)
    below = next((other for other in yamls if other.split("/")[-1] == start and other != name), "")
    if not below or depth >= _DEEPEST:
        must = "the YAML file that this one starts from (base_config) must be given too"
        raise InputError(must, start[:80], "name it beside it")
    return {**_whole(below, yamls, depth + 1), **flatten(document)}
