"""What must change in a user's launch files for another configuration? Lines of their own words, or settings by name.

A file's lines are told where the framework's export writes files of that kind and words: lines that the user's files
do not have are not taken out. What else changes is told as settings. Left out: which configuration is better
(`cli.check`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.frameworks.framework import Framework, Launch
    from planner.spec.config import ContextKind, ParallelConfig

_NOT_SETTINGS: Final = ("README.md", "kubernetes.yaml", "launch.sbatch")
# axis -> what it is called where it is told alone
_NAMES: Final = {
    "tp": "tensor parallelism", "cp": "context parallelism", "cp_kind": "exchange of context parallelism",
    "pp": "pipeline parallelism", "vpp": "virtual stages a rank", "schedule": "pipeline schedule",
    "dp": "data parallelism", "ep": "expert parallelism", "etp": "tensor parallelism of experts",
    "sp": "sequence parallelism", "zero": "ZeRO stage", "hsdp": "ranks that share a shard",
    "micro_batch": "micro-batch", "num_microbatches": "micro-batches a step (gradient accumulation)",
    "recompute": "recompute", "offload": "offload to the host", "cuda_graph_impl": "CUDA graphs",
}  # fmt: skip


def setting_changes(now: ParallelConfig, better: ParallelConfig, kinds: tuple[ContextKind, ...]) -> list[str]:
    """What differs between two configurations; `kinds`: exchanges of context parallelism, the one taken unasked
    first."""
    lines = []
    for axis, name in _NAMES.items():
        before, after = (_text_of(config, axis, kinds) for config in (now, better))
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    return lines


def _text_of(config: ParallelConfig, axis: str, kinds: tuple[ContextKind, ...]) -> str:
    """A value of an axis with what belongs to it, in words; "none" where it decides nothing."""
    from planner.spec.config import Recompute, graphs_text, layers_text, selective_text, value_text

    value: int = getattr(config, axis)
    if axis == "recompute" and value == Recompute.FULL:
        return f"full ({layers_text(config.recompute_layers)} a pipeline rank)"
    if axis == "recompute" and value == Recompute.SELECTIVE:
        return f"selective ({selective_text(config.recompute_modules)})"
    if axis == "cuda_graph_impl" and value:
        return graphs_text(config)
    if axis == "cp_kind":
        return (kinds[0] if not value else type(kinds[0])(value)).label if config.cp > 1 else "none"
    if axis == "schedule" and config.pp == 1:
        return "none"
    if axis == "hsdp" and not value:
        return "all"
    if axis == "sp":
        return "on" if value else "off"
    return value_text(axis, value)


def file_changes(
    files: Mapping[str, str], framework: Framework, version: str, mine: Launch, other: Launch
) -> tuple[list[str], bool]:
    """Changed lines by file between what the export writes of two launches, in the words of the user's `files`, and
    whether these are all changes. Raises `PlannerError` where one of the two cannot be written."""
    if framework.restated is not None:
        return _restated(files, framework.restated(files, mine), framework.restated(files, other))
    try:
        before, after = framework.render(mine, version), framework.render(other, version)
    except PlannerError as error:
        why = f"{error.must}; given: {error.given}" if error.given else error.must
        return [f"not shown in files: one of the two cannot be written for {framework.title}: {why}"], False
    lines: list[str] = []
    complete = True
    for name in after:
        if name in _NOT_SETTINGS:
            continue
        changed = _changed(name, before.get(name, ""), after[name])
        own = _own_of(name, changed, files)
        if not own:
            complete &= not changed
            continue
        if name.endswith(".sh"):
            shown, whole = _in_scripts(changed, own, framework, version)
            complete &= whole
        else:
            shown = _in_settings(changed, "\n".join(own.values()))
        if shown:
            lines.append(f"change in {_title(own)}:")
            lines += [f"  {line[0]} {line[1:].strip()}" for line in shown]
    return lines, complete


def _restated(
    files: Mapping[str, str], before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], bool]:
    """Changed lines of each file between the settings that state two launches in it, and whether these are all."""
    lines: list[str] = []
    for file, text in files.items():
        changed = {
            name: value
            for name, value in after.get(file, {}).items()
            if value != before.get(file, {}).get(name)
        }
        if changed and (shown := _by_section(changed, text, file)):
            lines += [f"change in {file.split('/')[-1]}:", *(f"  {line}" for line in shown)]
    return lines, before.get("") == after.get("")


def _by_section(changed: Mapping[str, Any], text: str, file: str) -> list[str]:
    """Settings by dotted name as lines taken out and put in, those of a section below its name; None: not stated."""
    from planner.frameworks.fields import flatten, load_settings

    own = flatten(load_settings(text, file))
    lines: list[str] = []
    sections = dict.fromkeys(name.rpartition(".")[0] for name in changed)
    for section in sections:
        inner: list[str] = []
        indent = "  " * (section.count(".") + 1) if section else ""
        for name, value in changed.items():
            within, _, key = name.rpartition(".")
            if within != section:
                continue
            short = key.removeprefix("fsdp_") if name not in own else key
            held = own.get(f"{section}.{short}" if section else key)
            if held == value or held == "auto":
                continue
            if held is not None:
                stated = _lines_with(short, text)
                whole = (
                    stated[0] if len(stated) == 1 and _key(stated[0]) == short else _line(short, held, file)
                )
                inner.append(f"- {indent}{whole}")
            if value is not None:
                inner.append(f"+ {indent}{_line(short if held is not None else key, value, file)}")
        if inner and section:
            lines += _headers(section, own, file)
        lines += inner
    return lines


def _headers(section: str, own: Mapping[str, Any], file: str) -> list[str]:
    """Names of a section and of those around it, put in where the file has none of them."""
    parts = section.split(".")
    found = []
    for depth, part in enumerate(parts):
        there = any(name.startswith(".".join(parts[: depth + 1]) + ".") for name in own)
        opened = f'"{part}": {{' if file.endswith(".json") else f"{part}:"
        found.append(f"{' ' if there else '+'} {'  ' * depth}{opened}")
    return found


def _line(key: str, value: Any, file: str) -> str:
    """A setting as a line of JSON or YAML."""
    plain = json.dumps(value)
    if file.endswith(".json"):
        return f'"{key}": {plain}'
    return f"{key}: {value if isinstance(value, str) else plain}"


def _own_of(name: str, changed: list[str], files: Mapping[str, str]) -> dict[str, str]:
    """The user's files in which what the export writes into `name` is stated, if they use the same words."""
    from planner.frameworks.shell.script import is_script

    if name.endswith(".sh"):
        return {file: text for file, text in files.items() if is_script(file) or _holds_arguments(file, text)}
    keys = {key for line in changed if (key := _key(line[1:]))}
    found = {}
    for file, text in files.items():
        kind = _ending(file) == _ending(name)
        if kind or (is_script(file) and any(_lines_with(key, text) for key in keys)):
            found[file] = text
    return found


def _ending(file: str) -> str:
    ending = file.rpartition(".")[2]
    return "yaml" if ending == "yml" else ending


def _title(own: Mapping[str, str]) -> str:
    """The user's file, or the script where there is one, whatever it calls."""
    from planner.frameworks.shell.script import is_script

    settings = [file for file in own if not is_script(file)]
    return settings[0].split("/")[-1] if len(settings) == len(own) == 1 else "the launch script"


def _changed(name: str, before: str, after: str) -> list[str]:
    """Lines that are taken out or put in, after their - or +."""
    comma = "," if name.endswith(".json") else ""  # which only says that another line follows
    old, new = (
        [line.rstrip(comma) if comma else line for line in text.splitlines()] for text in (before, after)
    )
    lines = [*difflib.unified_diff(old, new, n=0, lineterm="")][2:]  # after the two names
    return [line for line in lines if not line.startswith("@@") and not _frames(line[1:].strip())]


def _frames(line: str) -> bool:
    """Does a line of the exported script only hold others together, which the user's script does in its own way?"""
    return line == ")" or line.endswith("=(") or '"${' in line


def _in_settings(changed: list[str], own: str) -> list[str]:
    """The changed lines of a settings file by what the user's `own` text says."""
    shown = []
    for line in changed:
        key = _key(line[1:])
        stated = _lines_with(key, own) if key else []
        if any(re.search(rf'{re.escape(key)}"\s*:\s*"auto"', said) for said in stated):
            continue  # left to the program
        if line[0] == "-" and key and not stated:
            continue
        alone = line[0] == "-" and len(stated) == 1 and _key(stated[0]) == key
        shown.append(f"-{stated[0]}" if alone else line)
    added = {line[1:].strip() for line in shown if line[0] == "+"}
    same = added & {line[1:].strip() for line in shown if line[0] == "-" and _key(line[1:])}
    return [line for line in shown if line[1:].strip() not in same]


def _key(line: str) -> str:
    """The name of the setting in a line of JSON, YAML or TOML; empty where there is none."""
    found = re.match(r'\s*["\']?([\w.-]+)["\']?\s*[:=]', line)
    return found[1] if found else ""


def _lines_with(key: str, text: str) -> list[str]:
    """Lines that state a setting, without what follows it there: a comma, a comment."""
    lines = re.findall(rf'^.*(?<![\w.-]){re.escape(key)}["\']?\s*[:=].*$', text, re.MULTILINE)
    return [re.sub(r"\s+#.*$|,\s*$", "", line).strip() for line in lines]


def _in_scripts(
    changed: list[str], own: Mapping[str, str], framework: Framework, version: str
) -> tuple[list[str], bool]:
    """The changed lines of a script in the words of the user's `own`, and whether all have such: options of planner's
    own programs have none in others."""
    from planner.frameworks.megatron.model_args import is_model_args
    from planner.frameworks.megatron.primus import with_primus_names
    from planner.frameworks.options import option_table
    from planner.frameworks.trainer import with_trainer_names
    from planner.frameworks.trainer_yaml import is_trainer_yaml

    text = "\n".join(own.values())
    table = option_table(framework.name, version)
    has = frozenset(re.split(r"[=:]", word)[0] for word in re.sub("[\"']", " ", text).split())
    said = {with_primus_names(with_trainer_names(line, text), text): line for line in changed}
    as_options = any(is_model_args(file, words) for file, words in own.items())
    as_words = any(is_trainer_yaml(file, words) for file, words in own.items())
    shown, whole = list[str](), True
    for line in _in_script(list(said), framework, has | {f"--{word}" for word in has if as_words}):
        name, _, value = line[1:].strip().partition(" ")
        plain = name.split("=")[0]
        strange = said.get(line) == line and name.startswith("--") and plain not in (*table, *has)
        if strange or name.startswith('"'):  # or a whole command of planner's own
            whole = False
        elif name.startswith("--") and (as_options or as_words):
            shown.append(f"{line[0]}{name if as_options else name[2:]}: {value or 'true'}")
        elif line[0] == "-" and name.endswith(":"):  # a key of Primus, whose line is the file's own
            shown += [f"-{stated}" for stated in _lines_with(name[:-1], text)]
        else:
            shown.append(line)
    return shown, whole


def _holds_arguments(file: str, text: str) -> bool:
    """Does a YAML stand for the arguments of a script?"""
    from planner.frameworks.megatron.model_args import is_model_args
    from planner.frameworks.megatron.primus import is_primus
    from planner.frameworks.trainer_yaml import is_trainer_yaml

    return any(check(file, text) for check in (is_model_args, is_primus, is_trainer_yaml))


def _in_script(changed: list[str], framework: Framework, has: frozenset[str]) -> list[str]:
    """The changed lines of a script whose options it may state under other names, or leave at their defaults."""
    added = {line[1:].split()[0] for line in changed if line[0] == "+"}
    kept = [
        line
        for line in changed
        if line[0] != "-" or not line[1:].strip().startswith("--") or line[1:].split()[0] in has
    ]
    named = {line[1:].split()[0] for line in kept if line[0] == "-"}
    anew = added & {*framework.split_options, "--pipeline-model-parallel-size"}
    stale = [name for name in framework.split_options if anew and name in has and name not in named | added]
    return [*kept, *(f"- {name}" for name in stale)]
