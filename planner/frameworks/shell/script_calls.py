"""With which arguments does one of the given scripts call another?

A script whose degrees are its own arguments ($1, ${10}) says nothing alone; the line that calls it does. The called
script then begins with `set --` and these arguments. Left out: calls from scripts that are not given, and every call
of a script but the first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from planner.frameworks.shell.script import COMMAND_END, Script, is_script

# what may stand before a script that is called
_CALLERS: Final = frozenset(("bash", "sh", "zsh", "sbatch", "srun", "nohup", "exec", "env", "time"))
_REDIRECTED: Final = re.compile(r"[|&<>]|[12]>")


def with_arguments(files: Mapping[str, str]) -> dict[str, str]:
    """The files, those that another one calls beginning with the arguments of that call."""
    scripts = {name.split("/")[-1]: name for name in files if is_script(name) and not name.endswith(".py")}
    found = dict(files)
    if len(scripts) < 2:
        return found
    for caller in scripts.values():
        for called, arguments in _calls(files[caller], scripts):
            if called != caller and arguments and found[called] == files[called]:
                found[called] = f"set -- {shlex.join(arguments)}\n{files[called]}"
    return found


def _calls(text: str, scripts: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """(script, its arguments) of every call, in order."""
    commands: list[list[str]] = [[]]
    for word in Script().follow(text).words:
        if word == COMMAND_END:
            commands.append([])
        else:
            commands[-1].append(word)
    found = []
    for command in commands:
        at = next((i for i, word in enumerate(command) if word.split("/")[-1] in scripts), None)
        if at is None or any(
            w not in _CALLERS and not w.startswith("-") and "=" not in w for w in command[:at]
        ):
            continue
        end = next((i for i in range(at, len(command)) if _REDIRECTED.match(command[i])), len(command))
        found.append((scripts[command[at].split("/")[-1]], command[at + 1 : end]))
    return found
