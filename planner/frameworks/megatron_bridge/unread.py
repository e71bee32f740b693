"""Which overrides of a script does planner not read, though they may change time or memory?

Every field is said that is neither read (`recipes.READ`) nor among those that change nothing that is costed. Left out:
fields that the release does not have, which are unknown options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from planner.frameworks.fields import Settings
from planner.frameworks.megatron_bridge.precision import DEFAULTS
from planner.frameworks.megatron_bridge.recipes import NAMES, READ, fields_of
from planner.spec.model import ModelSpec

_INERT: Final = {section: re.compile(f"(?:{'|'.join(fields)})$") for section, fields in NAMES.inert.items()}
_ON: Final = fields_of(NAMES.on)
_ARCHITECTURE: Final = re.compile(rf"model\.(?:{'|'.join(NAMES.architecture)})$")


def not_read(s: Settings, overrides: Mapping[str, Any]) -> list[str]:
    """A note on the overrides of `s` that are not read."""
    whole = [name for name, value in overrides.items() if name == "comm_overlap" and value != "null"]
    known = READ - set(whole)
    found = [s.name(n) for n, value in overrides.items() if not (n in known or _costs_nothing(n, value))]
    return [f"not read, though time or memory may depend on it: {', '.join(found)}"] if found else []


def _costs_nothing(name: str, value: Any) -> bool:
    section, _, field = name.partition(".")
    plain = section in _INERT and _INERT[section].match(field)
    # `sharding.overruled` says so
    overwritten = section in ("model", "optimizer", "ddp") and field in DEFAULTS
    if section in NAMES.inert_sections or plain or overwritten or _ARCHITECTURE.match(name):
        return True
    word = str(value).lower()
    return word in ("true", "false", "null", "none") and (name in _ON) == (word == "true")


def remade(s: Settings, overrides: Mapping[str, Any], model: ModelSpec) -> str:
    """What overrides of `s` leave unknown of a recipe's model; empty where they repeat what it has anyway."""
    own = {"model.num_layers": model.num_layers, "model.hidden_size": model.hidden}
    changed = [n for n in overrides if _ARCHITECTURE.match(n) and str(overrides[n]) != str(own.get(n, ""))]
    return f"what {', '.join(map(s.name, changed))} makes of {model.name}" if changed else ""
