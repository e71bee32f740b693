"""Which value has a variable of the environment in the program that scripts start?

Read are assignments, exported or not, variables set for one command (`NAME=1 torchrun ...`), and words that hand one
over (`docker run -e NAME=1`, `srun --export=ALL,NAME=1`). Left out: what the shell that starts the scripts has, and
what a program sets itself.
"""

from __future__ import annotations

import re

from planner.frameworks.shell.script import Script

_ASIDE = re.compile(r"^\s*(?:#|unset\s)")


def value_of(name: str, text: str) -> str | None:
    """Its value, the last one set; "" where the text says nothing of it, None where its value is not known."""
    script = Script().follow(text)
    handed = re.compile(rf"(?:^|,|=)['\"]?{re.escape(name)}=([^,\s'\"]*)")
    found = [script.variables[name]] if name in script.variables else []
    found += [match[1] for word in script.words if (match := handed.search(word))]
    found += [own[name] for own in script.environments.values() if name in own]
    set_to = re.findall(rf"{re.escape(name)}=(\S+)", text)
    if script.conditions and len(set(set_to)) > 1:  # all branches were read
        return None
    if found:
        return None if "$" in found[-1] else found[-1].strip()
    told = any(name in line and not _ASIDE.match(line) for line in text.splitlines())
    return None if told else ""
