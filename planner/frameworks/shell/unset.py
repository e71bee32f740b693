"""What is to be done about a value that no file given sets?

Left out: which values these are (`script.py`).
"""

from __future__ import annotations

import re


def how_to_set(text: str) -> str:
    """What to do about a value that no file given sets."""
    if re.search(r"\$\((?!\()|`", text):
        return "what a command prints is not known, since none is run: write the value itself"
    if re.search(r"\$\{?[0-9@*]", text):
        return "it is an argument of the script: give a file too that calls the script with its arguments"
    return "no file given sets it: name the file that does before this one, or write the value itself"
