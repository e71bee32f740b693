"""With which arguments and variables does one of the given scripts call another?

A script whose degrees are its own arguments ($1, ${10}) or variables set for it (`TP=4 bash train.sh`) says nothing
alone; the line that calls it does. The called script then begins with these variables, and `set --` with the arguments.
Left out: calls from scripts that are not given, and every call
of a script but the first.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from typing import Final

from planner.frameworks.shell.script import COMMAND_END, Script, is_script

# what may stand before a script that is called
_CALLERS: Final = frozenset(("bash", "sh", "zsh", "sbatch", "srun", "nohup", "exec", "env", "time"))
_SET: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_REDIRECTED: Final = re.compile(r"[|&<>]|[12]>")


def with_arguments(files: Mapping[str, str]) -> dict[str, str]:
    """The files, those that another one calls beginning with the variables and arguments of that call."""
    scripts = {name.split("/")[-1]: name for name in files if is_script(name) and not name.endswith(".py")}
    found = dict(files)
    if len(scripts) < 2:
        return found
    for caller in scripts.values():
        for called, variables, arguments in _calls(files[caller], scripts):
            if called != caller and found[called] == files[called]:
                lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
                lines += [f"set -- {shlex.join(arguments)}"] if arguments else []
                found[called] = "\n".join([*lines, files[called]])
    return found


def _calls(text: str, scripts: Mapping[str, str]) -> list[tuple[str, dict[str, str], list[str]]]:
    """(script, variables set for it alone, its arguments) of every call, in order."""
    script = Script().follow(text)
    starts = [i for i, word in enumerate(script.words) if word == COMMAND_END]
    found = []
    for start, end in itertools.pairwise([*starts, len(script.words)]):
        command = script.words[start + 1 : end]
        at = next((i for i, word in enumerate(command) if word.split("/")[-1] in scripts), None)
        if at is None or any(
            w not in _CALLERS and not w.startswith("-") and "=" not in w for w in command[:at]
        ):
            continue
        stop = next((i for i in range(at, len(command)) if _REDIRECTED.match(command[i])), len(command))
        exported = [part for word in command[:at] for part in word.removeprefix("--export=").split(",")]
        pairs = dict(part.split("=", 1) for part in exported if _SET.fullmatch(part))
        variables = script.environments.get(start, {}) | pairs
        found.append((scripts[command[at].split("/")[-1]], variables, command[at + 1 : stop]))
    return found
