"""What do packages that are driven say to whoever asks for a dry run? Nothing but their errors."""

from __future__ import annotations

import logging
import sys
import warnings

import pytest

from planner.dryrun.software import quiet


def test_what_packages_say_of_each_other_is_not_said(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with quiet():
        logging.getLogger("torchao").warning("Failed to load a library")
        warnings.warn("a function is deprecated", stacklevel=1)
        logging.getLogger("torch").error("this one is told")
        sys.stdout.write("the answer alone is on stdout")
    told = capfd.readouterr()
    assert told.out == ""
    assert [one.message for one in caplog.records] == ["this one is told"]
    assert logging.root.manager.disable == logging.NOTSET


def test_it_ends_with_an_error() -> None:
    with pytest.raises(ImportError), quiet():
        raise ImportError
    assert logging.root.manager.disable == logging.NOTSET
