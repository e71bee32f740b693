"""Which cluster does the word CLUSTER on the command line stand for?

A name under `cluster_specs/`, a device, a cloud's machine, a YAML path, or a shorthand. The only module of clusters
and accelerators that touches files. Left out: downloading anything, and probing the machine planner runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from planner.errors import (
    FileInputError,
    InputError,
    UnknownNameError,
    alike_names,
    field_given,
    field_must,
    nearest_names,
)
from planner.spec.findings import finding
from planner.spec.load_yaml import read_yaml
from planner.spec.machine.accelerator import AcceleratorSpec, accelerator_from_spec
from planner.spec.machine.architecture import ANY_DEVICE, GPU
from planner.spec.machine.build_cluster import assemble_cluster, beyond_any_nic, cluster_from_spec
from planner.spec.machine.cluster import Accelerator, Cluster, ClusterSpec, FieldError
from planner.spec.machine.device_names import Named, called, device_name, nearest
from planner.spec.machine.fabric_text import (
    FORM,
    GRAMMAR,
    Shorthand,
    looks_like_path,
    looks_like_shorthand,
    readings,
)
from planner.units import parse_quantity

_PACKAGE = Path(__file__).resolve().parents[2]
_ACCELERATORS = _PACKAGE / "catalog" / "accelerators"
_INSTANCES = _PACKAGE / "catalog" / "instances.yaml"
_CALLED_SO = "All of them are called so"
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# in the installed package; in a source checkout the folder lies beside the package
_CLUSTERS = next(
    (d for d in (_PACKAGE / "cluster_specs", _PACKAGE.parent / "cluster_specs") if d.is_dir()),
    _PACKAGE / "cluster_specs",
)
FileType = TypeVar("FileType", bound=BaseModel)


_EXAMPLES = "the files in cluster_specs/ show every key"


def _read_spec(path: Path, model: type[FileType]) -> FileType:
    """The file as a checked model. Raises `FileInputError` naming file and key."""
    return _checked(read_yaml(path), str(path), model)


def _checked(document: Mapping[str, Any], path: str, model: type[FileType]) -> FileType:
    """The document as a checked model. Raises `FileInputError` naming file and key."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        errors = error.errors()
        first = errors[0]
        if first["type"] == "missing":  # a misspelt key tells more than the one that is then missing
            first = next((found for found in errors if found["type"] == "extra_forbidden"), first)
    raised = first.get("ctx", {}).get("error")
    field = raised.field if isinstance(raised, FieldError) else _dotted(first["loc"], document)
    here = [found for found in errors if _dotted(found["loc"], document) == field]  # a union has several
    must = str(raised) if raised else field_must(*here)
    hint = ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, first["loc"])
        hint = "known: " + ", ".join(known)
    elif first["type"] == "missing":
        hint = f"add it: {_EXAMPLES}"
    given = field_given(first) if field else ""
    raise FileInputError(path, must, given, hint, field=field)


def _dotted(location: tuple[int | str, ...], document: Any) -> str:
    """The key of an error, without the names pydantic gives to the members of a union."""
    parts: list[str] = []
    for part in location:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int):
            document = document[part]
        else:
            break
        parts.append(str(part))
    return ".".join(parts)


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Keys of the part of `model` that `location` lies in, those most like its last one first."""
    part = model
    for name in location[:-1]:
        if isinstance(name, str) and name in part.model_fields:
            part = next(_models_in(part.model_fields[name].annotation))
    near = nearest_names(str(location[-1]), part.model_fields, count=12)
    return list(dict.fromkeys([*near, *sorted(part.model_fields)]))[:12]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _folded(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", " ").replace("-", " ").split())


@lru_cache(maxsize=1)
def _clusters() -> dict[str, Path]:
    """Folded name or alias -> file. Reading every file happens only for a name that is no file name."""
    names: dict[str, Path] = {}
    for path in sorted(_CLUSTERS.glob("*.yaml")):
        document = read_yaml(path)
        for name in (path.stem, *(document.get("aliases") or ())):
            names.setdefault(_folded(str(name)), path)
    return names


def _direct(folder: Path, name: str) -> Path | None:
    """The file of exactly that name."""
    key = _folded(name)
    direct = folder / f"{key}.yaml"
    spelled = len(key) < 100 and key.replace("-", "").replace(".", "").isalnum()
    return direct if spelled and direct.is_file() else None


def _find_cluster(name: str) -> Path | None:
    return _direct(_CLUSTERS, name) or _clusters().get(_folded(name))


@lru_cache(maxsize=1)
def _devices() -> tuple[Named, ...]:
    """Every accelerator with the names that it goes by."""
    found = []
    for name in accelerator_names():
        document = yaml.load((_ACCELERATORS / f"{name}.yaml").read_text(encoding="utf-8"), _SAFE_LOADER)
        names = tuple(device_name(str(known)) for known in (name, *(document.get("aliases") or ())))
        found.append(Named(name, names, parse_quantity(document["nominal_memory"], "capacity")))
    return tuple(found)


def _find_accelerator(name: str) -> Path | None:
    """The file of the accelerator that a name means, where it means one."""
    direct = _direct(_ACCELERATORS, name)
    found = [] if direct else called(name, _devices())
    return _ACCELERATORS / f"{found[0]}.yaml" if len(found) == 1 else direct


@lru_cache(maxsize=1)
def _instances() -> Mapping[str, Mapping[str, Any]]:
    """Folded name of a cloud's machine -> its family in `instances.yaml` with its own row as `size`."""
    return {
        _folded(name): {**family, "name": name, "size": size}
        for family in read_yaml(_INSTANCES)["families"]
        for name, size in family["instances"].items()
    }


def accelerator_names() -> list[str]:
    """Names of the accelerator catalog."""
    return sorted(path.stem for path in _ACCELERATORS.glob("*.yaml"))


def cluster_names() -> list[str]:
    """Names of the shipped clusters and node types."""
    return sorted(path.stem for path in _CLUSTERS.glob("*.yaml"))


def names_of_clusters() -> list[str]:
    """Names that a cluster has without a file of the user's: those that ship, then devices in their usual nodes."""
    clusters = cluster_names()
    return [*clusters, *(name for name in accelerator_names() if name not in clusters)]


def cluster_specs() -> Iterator[tuple[Path, ClusterSpec]]:
    """Every shipped cluster file."""
    for name in cluster_names():
        path = _CLUSTERS / f"{name}.yaml"
        yield path, _read_spec(path, ClusterSpec)


@lru_cache(maxsize=64)
def load_accelerator(name: str) -> Accelerator:
    """The accelerator of that name or alias; `_`, spaces, capitals don't matter. Raises `InputError`."""
    path = _find_accelerator(name)
    if path is None:
        raise _unknown_device(name)
    return accelerator_from_spec(_read_spec(path, AcceleratorSpec))


def _unknown_device(name: str) -> UnknownNameError:
    several = called(name, _devices())
    near = several or nearest(name[:100], _devices())
    return UnknownNameError(
        "accelerator", name[:100], accelerator_names(), _CALLED_SO if several else "", near
    )


def noun_of(accelerators: Iterable[str]) -> str:
    """What people call devices of these names: "device" of several kinds, "GPU" where an older file has no name."""
    nouns = {load_accelerator(name).noun if name else GPU for name in accelerators} or {GPU}
    return nouns.pop() if len(nouns) == 1 else ANY_DEVICE


def load_cluster(text: str, gpus: int | None = None) -> Cluster:
    """The first `gpus` devices (None: all) of a name, a YAML path, or a shorthand. Raises `InputError`."""
    if not text.strip():
        raise InputError("a cluster must be named", repr(text), f"name a spec, a YAML file, or {GRAMMAR}")
    shipped = _shipped(text)
    if shipped is not None:
        return _built(*shipped, gpus)
    if looks_like_shorthand(text):
        return _load_shorthand(text, gpus)
    if _is_file(text):
        document = read_yaml(Path(text))
        return described_cluster(document, text, gpus)
    raise _unknown(text)


def _unknown(text: str) -> UnknownNameError:
    if called(text, _devices()):
        return _unknown_device(text)
    text, machines = text[:100], (machine["name"] for machine in _instances().values())
    known = [*_clusters(), *accelerator_names(), *machines]
    near = list(dict.fromkeys([*nearest(text, _devices()), *alike_names(text, known)]))[:7]
    return UnknownNameError("cluster", text, known, f"Or give a YAML file, or {FORM}", near)


def _shipped(text: str) -> tuple[ClusterSpec, str] | None:
    """The cluster or node type of a name, and its file: of a cluster, a cloud's machine, or a device."""
    named = _find_cluster(text)
    if named is not None:
        return _read_spec(named, ClusterSpec), str(named)
    machine = _folded(text).removeprefix("standard-")
    if machine in _instances():
        return _checked(_instance(_instances()[machine]), str(_INSTANCES), ClusterSpec), str(_INSTANCES)
    counted = looks_like_shorthand(text) and not text.lstrip()[:4].isdigit()  # "3080 ti" may be both
    if counted or looks_like_path(text):
        return None
    device = _find_accelerator(text)
    if device is None:
        return None
    return _checked(_usual_nodes(read_yaml(device)), str(device), ClusterSpec), str(device)


def _instance(row: Mapping[str, Any]) -> dict[str, Any]:
    """The file that a cloud's machine would have."""
    links = read_yaml(_ACCELERATORS / f"{row['accelerator']}.yaml")["scale_up"]
    devices, nics, bandwidth = row["size"]
    links = {"kind": links["kind"], "domain": row.get("domain", devices)}
    node = {"accelerators": devices, "nics": nics, "nic_bandwidth": bandwidth, "scale_up": links}
    return _node_type(
        row["name"], row["accelerator"], node, row["fabric"], row["source"], "unverified" in row
    )


def _usual_nodes(device: Mapping[str, Any]) -> dict[str, Any]:
    """The file of as many usual servers of a device as asked for."""
    node = {key: value for key, value in device["node"].items() if key not in ("fabric", "injection")}
    node["scale_up"] = {key: device["scale_up"][key] for key in ("kind", "domain")}
    unverified = "node" in device.get("unverified", ())
    source = "the usual server of this accelerator, from its file"
    return _node_type(device["name"], device["name"], node, device["node"]["fabric"], source, unverified)


def _node_type(
    name: str, accelerator: str, node: Mapping[str, Any], fabric: str, source: str, unverified: bool
) -> dict[str, Any]:
    """The file of as many nodes as asked for, `unverified` or from a source."""
    return {
        "name": name, "accelerator": accelerator, "nodes": "any", "node": node, "fabric": {"kind": fabric},
        "sources": {"node": source, "fabric": source}, "unverified": ["node"] if unverified else [],
    }  # fmt: skip


def cluster_spec(text: str) -> ClusterSpec | None:
    """The file behind a name or a YAML path; None of a shorthand and of what is no cluster. Raises `InputError`."""
    shipped = _shipped(text)
    if shipped is not None:
        return shipped[0]
    return None if looks_like_shorthand(text) or not _is_file(text) else _read_spec(Path(text), ClusterSpec)


def accelerator_of(text: str) -> str:
    """The accelerator of a name, a YAML path, or a shorthand. Raises `InputError`."""
    spec = cluster_spec(text)
    if spec is not None:
        return load_accelerator(spec.accelerator).name
    if not looks_like_shorthand(text):
        raise _unknown(text)
    return accelerator_of(_shorthand(text).accelerator)


def names_no_file(text: str) -> bool:
    """Is it a name that planner ships, or a shorthand, so that no other file is read for it?"""
    return bool(text.strip()) and (looks_like_shorthand(text) or _shipped(text) is not None)


def _is_file(text: str) -> bool:
    """Is it meant as a path?"""
    return looks_like_path(text) or (bool(text.strip()) and _exists(text))


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def described_cluster(document: Mapping[str, Any], file: str, gpus: int | None) -> Cluster:
    """The first `gpus` devices of the cluster that the keys of a user's file describe. Raises `InputError`."""
    return replace(_built(_checked(document, file, ClusterSpec), file, gpus), described=document)


def _built(spec: ClusterSpec, file: str, gpus: int | None) -> Cluster:
    try:
        accelerator = load_accelerator(spec.accelerator)
    except UnknownNameError as error:
        raise FileInputError(file, error.must, error.given, error.hint, field="accelerator") from None
    return cluster_from_spec(spec, accelerator, gpus)


def _shorthand(text: str) -> Shorthand:
    """What a shorthand says: the first way to read it whose device is known, else that of the longest name."""
    said = list(readings(text))
    known = (one for one in said if _find_accelerator(one.accelerator) or _machine(one))
    return next(known, max(said, key=lambda one: len(one.accelerator)))


def _machine(said: Shorthand) -> tuple[ClusterSpec, str] | None:
    """The node type that a shorthand counts, and its file; None where it counts devices."""
    shipped = None if said.nodes or said.speed else _shipped(said.accelerator)
    return shipped if shipped and shipped[0].nodes == "any" else None


def _nodes_of(said: Shorthand, accelerator: Accelerator) -> tuple[int, int]:
    """Nodes, and devices of each: a count alone is of a usual node's devices, or of all of several such nodes."""
    node = accelerator.typical_node
    usual = node.accelerators if node else 8
    most = 2 * max(8, usual)
    if said.nodes and said.devices <= most:
        return said.nodes, said.devices
    if not said.nodes and said.devices <= usual:
        return 1, said.devices
    if not said.nodes and said.devices % usual == 0:
        return said.devices // usual, usual
    whole = -(-max(1, said.nodes) * said.devices // usual)
    raise InputError(
        f"a node of {accelerator.name} usually holds {usual} devices, so a count above it must be of whole nodes",
        str(said.devices),
        f"write nodes x devices, such as '{whole}x{usual} {said.accelerator} 400G-ib', at most {most} in a node",
    )


def _load_shorthand(text: str, gpus: int | None) -> Cluster:
    said = _shorthand(text)
    device = _find_accelerator(said.accelerator)
    machine = None if device else _machine(said)
    if machine is not None:
        whole = _built(*machine, said.devices * machine[0].node.accelerators)
        return whole if gpus is None else whole.with_devices(gpus)
    if device is None:
        raise _unknown(said.accelerator)
    accelerator = load_accelerator(device.stem)
    nodes, per_node = _nodes_of(said, accelerator)
    whole = assemble_cluster(
        accelerator,
        nodes * per_node,
        per_node,
        fabric_kind=said.fabric,
        node_injection_bandwidth=said.speed * per_node if said.speed else None,
    )
    if said.speed and whole.num_nodes > 1:  # with the network in its name a plan's cluster can be read again
        whole = replace(whole, name=f"{whole.name} {said.network}")
    if said.speed and whole.num_nodes > 1 < per_node:
        speed = finding(
            "fabric_speed",
            fabric=str(said.fabric),
            bandwidth=said.speed,
            node_bandwidth=said.speed * per_node,
        )
        beyond = beyond_any_nic(said.speed, "device")
        whole = replace(whole, assumed=(speed, *beyond, *whole.assumed))
    return whole if gpus is None else whole.with_devices(gpus)
