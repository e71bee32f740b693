"""Fields of files are refused in words of a file, not of the library that checks them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from planner.ask.load_sweep import load_sweep
from planner.catalog.load_stacks import read_stack
from planner.errors import DISTRIBUTION, FileInputError, install_hint
from planner.spec.load_model import load_model
from planner.spec.machine.load_cluster import cluster_specs, load_cluster

OF_A_PROGRAMMER = ("Input should", "valid", "tuple", "dictionary", "instance", "inputs are not")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("aliases: superpod", "aliases: must be a list"),
        ("nodes: many", "nodes: must be a whole number or 'any'"),
        ("name: 3", "name: must be text"),
        ("fabric: fast", "fabric: must be keys with their values"),
        ("colour: red", "colour: the key must be a known one"),
        ("unverified: [3]", "unverified.0: must be text"),
    ],
)
def test_clusters(line: str, said: str, tmp_path: Path) -> None:
    shipped = next(path for path, spec in cluster_specs() if spec.name == "dgx-h100").read_text()
    key = line.split(":")[0]
    kept, skipping = [], False
    for row in shipped.splitlines():
        skipping = row.startswith(f"{key}:") or (skipping and row.startswith(" "))
        kept += [] if skipping else [row]
    (tmp_path / "own.yaml").write_text("\n".join([*kept, line]))
    with pytest.raises(FileInputError) as refused:
        load_cluster(str(tmp_path / "own.yaml"), 16)
    assert said in str(refused.value)
    assert not any(word in str(refused.value) for word in OF_A_PROGRAMMER)


def test_models_stacks_and_sweeps(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    head = "extends: megatron-2026\nname: own\ndescription: own\nreleased: 2026-01\nsource: own\n"
    for load, text, said in (
        (lambda: load_model(str(file)), "layers: 2.5\nhidden: 8\nheads: 1\nvocab: 9\n", "layers: must be a whole"),
        (lambda: read_stack(file), head + "host: 3\n", "host: must be keys with their values"),
        (lambda: read_stack(file), head + "limits: {zero: 3}\n", "limits.zero: must be a list"),
        (lambda: load_sweep(file), "model: a\ncluster: b\nspeed: 1\n", "speed: the key must be a known one"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(FileInputError) as refused:
            load()
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    [
        ("json", "null", "given: nothing"),
        ("json", "[1]", "given: a list"),
        ("json", '{"model_type": null}', "given: nothing"),
        ("json", '{"model_type": "llama", "hidden_size": [1, null, true]}', "given: [1, null, true]"),
        ("json", '{"model_type": "llama", "hidden_size": null}', "given: nothing"),
        ("yaml", "3", "given: a number"),
        ("yaml", "layers: [2]\nhidden: 8\nheads: 1\nvocab: 9\n", "given: a list"),
        ("yaml", "layers: true\nhidden: 8\nheads: 1\nvocab: 9\n", "given: true"),
        ("yaml", f"model_type: llama\nhidden_size: [0x{'f' * 6000}]", "given: a list"),
    ],
)
def test_what_a_file_holds_is_said_in_its_words(tmp_path: Path, suffix: str, text: str, said: str) -> None:
    file = tmp_path / f"own.{suffix}"
    file.write_text(text)
    with pytest.raises(FileInputError) as refused:
        load_model(str(file))
    assert str(refused.value).splitlines()[1].strip() == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model: {a: 1}", "given: a mapping"),
        ("top: [2]", "given: a list"),
        ("headroom: null", "given: nothing"),
    ],
)
def test_what_a_sweep_holds_is_said_in_its_words(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "\n".join({"model": "model: a", "cluster": "cluster: b", line.split(":")[0]: line}.values())
    )
    with pytest.raises(FileInputError, match=said):
        load_sweep(file)


ROOT = Path(__file__).parents[1]


def test_every_hint_installs_this_project() -> None:
    """`planner` on PyPI is another project: whoever follows a hint must not install that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert project["name"] == DISTRIBUTION
    offered = install_hint("sweep")
    for path in (
        *ROOT.glob("planner/**/*.py"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("planner/**/*.j2"),
        ROOT / "README.md",
    ):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install ['\"]?planner\b", text), path
        offered += "".join(re.findall(r"pip install '[^']*'", text))
    named = re.findall(rf"{DISTRIBUTION}\[([a-z,]+)\]", offered)
    assert named
    assert {extra for some in named for extra in some.split(",")} <= set(extras)
