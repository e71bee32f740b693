"""The option tables are those of the installed packages' own parsers and models.

Needs the extra `frameworks`; a checkout of Megatron-LM named by MEGATRON_PATH and MEGATRON_RELEASE adds its table,
one of nanotron named by NANOTRON_PATH and NANOTRON_RELEASE, one of MaxText by MAXTEXT_PATH and MAXTEXT_RELEASE theirs.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from benchmarks.framework_options import TRANSCRIBED
from planner.frameworks.options import option_table, table_releases

pytestmark = pytest.mark.slow


def installed(name: str) -> tuple[str, str]:
    """(release, where its code is), skipping where there is none."""
    if name in ("megatron", "nanotron", "maxtext"):
        release, place = (os.environ.get(f"{name.upper()}_{what}", "") for what in ("RELEASE", "PATH"))
    else:
        place = sys.executable
        try:
            release = version(name)
        except PackageNotFoundError:
            release = ""
    if release not in table_releases(name):
        pytest.skip(f"no release of {name} installed that has a table")
    return release, place


CHECKOUTS = [pytest.param(name, marks=pytest.mark.checkout) for name in ("megatron", "nanotron", "maxtext")]


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "torchtitan", *CHECKOUTS])
def test_tables_are_the_packages(name: str) -> None:
    release, place = installed(name)
    asked = TRANSCRIBED[name][0](place)
    table = option_table(name, release)
    assert sorted(table) == sorted(asked)
    for option, kind in asked.items():
        # a type that the table states more closely than the source does is kept
        assert kind == "str" or (table[option].type, "|".join(table[option].choices)) == tuple(
            f"{kind} ".split(" ")[:2]
        ), option
