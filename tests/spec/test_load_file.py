"""Is every file of the user's read by one guarded reader, whatever verb it is given to?"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import planner
from planner.calibrate.logs.lines import read_log
from planner.calibrate.logs.machine import read_topology
from planner.calibrate.logs.nccl_tests import read_tests
from planner.calibrate.profile import read_profile
from planner.calibrate.run_table import read_run_table
from planner.catalog.load_stacks import load_stack
from planner.cli.files import read_files
from planner.errors import FileInputError, PlannerError
from planner.spec.load_file import check_file, read_text
from planner.spec.load_loads import load_expert_loads
from planner.spec.load_model import load_model_file
from planner.spec.load_plan import read_document
from planner.spec.load_yaml import parse_yaml, read_yaml
from planner.spec.machine.load_cluster import load_cluster
from planner.spec.save import save_text

READERS: dict[str, Callable[[Path], object]] = {
    "loads": lambda path: load_expert_loads(str(path), 8, 2),
    "yaml": read_yaml,
    "plan": read_document,
    "table": read_run_table,
    "nccl-tests": read_tests,
    "topology": read_topology,
    "profile": read_profile,
    "stack": lambda path: load_stack(str(path)),
    "model": load_model_file,
    "cluster": lambda path: load_cluster(str(path)),
    "launch file": lambda path: read_files([path]),
    "log": read_log,
}
CONFIGS = Path(planner.__file__).parent / "catalog" / "models"
OWN_DATA = re.compile(r"__file__|files\(|_folder\(\)|[A-Z]_?(?:FILE|FOLDER|FILES)\b|^FILES\b|_ACCELERATORS")


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused_in_words(tmp_path: Path, name: str) -> None:
    suffix = {"yaml": ".yaml", "stack": ".yaml", "cluster": ".yaml", "model": ".json", "plan": ".json"}.get(
        name, ""
    )
    pipe, loop, zeros, packed = (tmp_path / f"{of}{suffix}" for of in ("pipe", "loop", "zeros", "packed"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    zeros.symlink_to("/dev/zero")
    packed.write_bytes(b"\x00\xff" * 500)
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    for path in (pipe, loop, zeros, packed, folder, tmp_path / f"absent{suffix}"):
        with pytest.raises(PlannerError):
            READERS[name](path)


def test_no_other_module_opens_a_file_of_the_user_s() -> None:
    found = []
    for path in Path(planner.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            reads = isinstance(node, ast.Attribute) and node.attr in ("read_text", "read_bytes")
            if reads and not OWN_DATA.search(ast.unparse(node)):
                found.append(f"{path.name}: {ast.unparse(node)}")
    # the shipped catalog and tables, by paths that were made above; the driver's version; a journal of planner's own
    assert sorted(found) == [
        "details.py: path.read_text",
        "details.py: path.read_text",
        "html.py: (FILES / name).read_text",
        "load_links.py: path.read_text",
        "load_model.py: path.read_bytes",
        "load_model.py: path.read_text",
        "load_operations.py: file.read_text",
        "not_read.py: file.read_text",
        "probe.py: driver.read_text",
        "sweep.py: self.path.read_bytes",
    ]


def test_sizes_marks_and_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_bytes("é\r\nb\n".encode(encoding))
        assert read_text(path, 100) == "é\nb\n"
    path.write_bytes(b"a" * 101)
    with pytest.raises(FileInputError, match="smaller than 100 bytes"):
        check_file(path, 100)
    with pytest.raises(FileInputError, match="readable"):
        check_file("\0", 100)


@pytest.mark.parametrize(
    "tag", ["!!bool x", "!!timestamp x", "!!int x", "!!float x", "2020-99-99", "1" * 100_000]
)
def test_tags_that_hold_something_else(tag: str) -> None:
    with pytest.raises(FileInputError):
        parse_yaml(f"nodes: {tag}", "x.yaml")


def test_nothing_is_written_through_a_loop_of_links(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    with pytest.raises(FileInputError):
        save_text("{}", loop)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"x"', "[]", "true", "1e400", "[1, NaN]"])
@pytest.mark.parametrize(
    "field", ["rope_theta", "rms_norm_eps", "rope_scaling.factor", "rope_scaling.mscale"]
)
def test_a_figure_of_a_launch_file_that_is_none_is_refused(tmp_path: Path, field: str, value: str) -> None:
    """In the reader, for every verb: what planner does not cost is written to launch files all the same."""
    config = json.loads((CONFIGS / "llama-3.2-1b" / "config.json").read_text())
    outer, _, inner = field.rpartition(".")
    config[outer or inner] = {"rope_type": "yarn", inner: "@"} if outer else "@"
    (tmp_path / "config.json").write_text(json.dumps(config).replace('"@"', value))
    if value == "[]":  # no value, of no layer
        load_model_file(tmp_path / "config.json")
        return
    with pytest.raises(FileInputError, match=inner):
        load_model_file(tmp_path / "config.json")


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    config = json.loads((CONFIGS / "llama-3.2-1b" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "note": "\ud800"}))
    with pytest.raises(FileInputError, match="whole characters"):
        load_model_file(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps({**config, "note": "\U0001f600"}))
    load_model_file(tmp_path / "config.json")
