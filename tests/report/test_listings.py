"""What planner knows, listed: names are whole in 80 columns, numbers of a stack have the units of their fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from planner.catalog.load_stacks import load_stack, stack_names
from planner.errors import InputError
from planner.report.listings import named_cluster, shipped_clusters, shipped_stacks, stack_facts, stack_rules
from planner.report.listings_text import (
    cluster_document,
    clusters_document,
    rules_document,
    stack_document,
    stacks_document,
)
from planner.report.text import render
from planner.spec.machine.load_cluster import accelerator_names, cluster_specs


def lines(document: object, width: int = 80) -> list[str]:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    return render(document, console).splitlines()  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 120])
def test_names_to_type_are_whole(width: int) -> None:
    clusters = lines(clusters_document(shipped_clusters(), accelerator_names()), width)
    for facts in shipped_clusters():
        assert any(line.split()[:1] == [facts["name"]] for line in clusters), facts["name"]
    stacks = lines(stacks_document(shipped_stacks()), width)
    for name in stack_names():
        assert any(line.startswith(f"{name}  ") for line in stacks), name
    assert max(map(len, clusters + stacks)) <= width
    assert sum(len(line.split()) > 4 for line in stacks) >= len(stack_names())  # no column of a word a line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host.moe_layer_floor", "ms"),
        ("host.expert_launch", "µs"),
        ("overhead.context", "MiB"),
        ("limits.offload", "none, optimizer"),
        ("kernels.float8_scales", "not set"),
    ],
)
def test_numbers_of_a_stack_have_units(name: str, value: str) -> None:
    told = next(
        line for line in lines(stack_document(stack_facts(load_stack("megatron-2026")))) if name + " " in line
    )
    assert value in told


def test_a_node_type_of_ones_own_is_shown_as_a_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text((next(cluster_specs())[0].parent / "dgx-h100.yaml").read_text())
    assert named_cluster(str(own), None) == named_cluster("dgx-h100", None)
    assert named_cluster("DGX_H100", None)["any_size"]
    assert named_cluster(str(own), 64)["devices"] == 64
    assert not named_cluster("h100-sxm-roce", None)["any_size"]
    with pytest.raises(InputError, match="a cluster must be named"):
        named_cluster("", None)


def test_the_slice_of_a_torus_is_shown() -> None:
    facts = named_cluster("tpu-v5p", 1024)
    assert facts["slice"] == [8, 8, 16]
    assert "8 x 8 x 16, each device linked to its neighbours" in "\n".join(lines(cluster_document(facts)))
    assert "slice" not in named_cluster("dgx-h100", 8)


@pytest.mark.parametrize("name", ["megatron-2026", "torchtitan-2026", "deepspeed-2025", "nanotron-2024"])
def test_conditions_of_rules_name_no_values_of_a_row(name: str) -> None:
    rules = stack_rules(load_stack(name))
    assert len(rules) > 40
    for facts in rules.values():
        assert not set("{}") & set(facts["must"])
        assert facts["source"]
    assert rules["expert-grid"]["must"] == "ep x etp must divide tp x cp x dp"
    assert max(map(len, lines(rules_document(name, rules)))) <= 80
