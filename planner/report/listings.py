"""What does planner know of a model, a cluster or a stack? Facts for the listing verbs, as plain mappings.

The keys are those of `--json`; numbers are in inner units. Left out: plans, which `facts` describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.catalog.load_stacks import load_stack, stack_names
from planner.catalog.stack_options import options_for
from planner.cost.flops import model_flops
from planner.cost.params import model_parameters
from planner.report.words import texts
from planner.space.framework_rules import rules_for
from planner.spec.load_model import catalog_index, catalog_models, load_model
from planner.spec.machine.build_cluster import smallest_size
from planner.spec.machine.cluster import Cluster
from planner.spec.machine.load_cluster import cluster_spec, cluster_specs, load_cluster
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack

Facts = dict[str, Any]

DEFAULT_SEQ_LEN = 8192


def model_facts(model: ModelSpec, seq_len: int | None = None, batch: int = 1) -> Facts:
    """Parameters by kind, and the FLOPs of a step over `batch` sequences of `seq_len` tokens.

    `seq_len` None: the model's context, at most 8192.
    """
    length = seq_len or min(model.max_position or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
    parameters = model_parameters(model)
    return {
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "assumed": list(texts(model.assumed)),
        "layers": model.num_layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "context": model.max_position,
        "params_total": parameters.total,
        "params_active": parameters.active,
        "params_by_kind": {kind: count for kind, count in parameters.by_kind.items() if count},
        "seq_len": length,
        "batch": batch,
        **model_flops(model, batch, length).as_mapping(),
    }


def catalog_facts() -> list[Facts]:
    """Every model of the catalog, with its parameters."""
    index = catalog_index()
    rows = []
    for name in catalog_models():
        model = load_model(name)
        parameters = model_parameters(model)
        rows.append(
            {
                "name": name,
                "aliases": list(index[name].aliases),
                "family": model.family,
                "layers": model.num_layers,
                "context": model.max_position,
                "params_total": parameters.total,
                "params_active": parameters.active,
                "source": index[name].source,
                "unverified": index[name].unverified,
            }
        )
    return rows


def cluster_facts(cluster: Cluster, any_size: bool = False) -> Facts:
    """A cluster: its accelerator, its tiers of links, what it costs, where the numbers come from."""
    chip, torus = cluster.accelerator, cluster.tiers[0].torus
    return {
        "name": cluster.name,
        "accelerator": chip.name,
        "any_size": any_size,
        **({} if torus is None else {"slice": list(torus.shape)}),
        "devices": cluster.num_devices,
        "devices_per_node": cluster.devices_per_node,
        "scale_up_domain": cluster.scale_up_domain,
        "memory_per_device": chip.memory,
        "memory_bandwidth": chip.memory_bandwidth,
        "peak_flops": {str(dtype): rate for dtype, rate in chip.peak},
        "tiers": [
            {
                "name": tier.name,
                "kind": str(tier.kind),
                "devices": tier.size,
                "bandwidth": tier.bandwidth,
                "bandwidth_alone": tier.bandwidth_alone,
                "latency": tier.latency,
            }
            for tier in cluster.tiers
        ],
        "rails": cluster.rails,
        "host_memory": cluster.host_memory,
        "price_per_device_hour": cluster.price_per_device_hour,
        "power_per_device": cluster.power_per_device,
        "source": cluster.source,
        "accelerator_source": chip.source,
        "assumed": list(texts(cluster.assumed)),
        "unverified": list(cluster.unverified),
    }


def shipped_clusters() -> list[Facts]:
    """Every shipped cluster; of a node type the smallest cluster with a network between nodes."""
    return [
        cluster_facts(load_cluster(path.stem, smallest_size(spec)), spec.nodes == "any")
        for path, spec in cluster_specs()
    ]


def named_cluster(text: str, gpus: int | None) -> Facts:
    """The cluster behind a name, a path or a shorthand; of a node type `gpus` or the smallest of its kind."""
    spec = cluster_spec(text) if gpus is None else None
    size = smallest_size(spec) if spec else gpus
    return cluster_facts(load_cluster(text, size), any_size=spec is not None and size is not None)


def stack_facts(stack: Stack) -> Facts:
    """All numbers of a stack, times in seconds and sizes in bytes."""
    facts: Facts = stack.model_dump(mode="json")
    facts["options"] = {
        str(option.name): {"kind": str(option.kind), "meaning": option.meaning, "needs": option.needs}
        for option in options_for(stack)
    }
    return facts


def stack_rules(stack: Stack) -> Facts:
    """What a candidate of a search on that stack must meet, and where that is enforced or derived, by rule."""
    return {rule.id: {"must": rule.condition, "source": rule.source} for rule in rules_for(stack)}


def shipped_stacks() -> list[Facts]:
    """Every shipped stack, newest first."""
    stacks = [stack_facts(load_stack(name)) for name in stack_names()]
    return sorted(stacks, key=lambda facts: (facts["released"], facts["name"]), reverse=True)


def flattened(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as rows of dotted key and value."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if isinstance(value, Mapping) and value:
            rows += flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            rows.append((prefix + key, ", ".join(map(str, value)) or "none"))
        else:
            rows.append((prefix + key, "" if value is None else str(value)))
    return rows
