"""What tests meet where the published measurements are absent, as in a clone alone."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import SkipTest

import pytest

from benchmarks import link_tables, published_data


@pytest.fixture
def clone_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(published_data, "DATA", tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.usefixtures("clone_alone")
def test_without_the_data_readers_skip_their_test_and_there_are_no_cases() -> None:
    with pytest.raises(SkipTest, match=r"hardware/collectives\.csv\.gz must lie in"):
        link_tables.read_rows()
    assert published_data.published_cases("oracles/schedule_vectors.csv") == []


def test_a_file_missing_among_the_data_is_no_reason_to_skip(clone_alone: Path) -> None:
    clone_alone.mkdir()
    for read in (
        link_tables.read_rows,
        lambda: published_data.published_cases("oracles/schedule_vectors.csv"),
    ):
        with pytest.raises(FileNotFoundError) as raised:
            read()
        assert not isinstance(raised.value, SkipTest)


def test_tests_reach_what_lies_beside_by_its_readers_alone() -> None:
    """`.ci/run` runs all tests in a clone alone and with the data those that were skipped there; these are all that
    read the data only where every reader skips."""
    folder = re.compile(r"""/ ["']shared["']|["']\.\./shared""")
    files = [file for file in Path(__file__).parent.rglob("*.py") if file != Path(__file__)]
    assert [file for file in files if folder.search(file.read_text(encoding="utf-8"))] == []
    assert folder.search(Path(published_data.__file__).read_text(encoding="utf-8"))
