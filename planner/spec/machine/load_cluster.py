"""Which cluster does the word CLUSTER on the command line stand for?

A name under `cluster_specs/`, a YAML path, or a shorthand. The only module of clusters and accelerators that
touches files. Left out: downloading anything, and probing the machine planner runs on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from planner.errors import (
    FileInputError,
    InputError,
    UnknownNameError,
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
from planner.spec.machine.fabric_text import FORM, GRAMMAR, looks_like_shorthand, parse_shorthand

_PACKAGE = Path(__file__).resolve().parents[2]
_ACCELERATORS = _PACKAGE / "catalog" / "accelerators"
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


@lru_cache(maxsize=2)
def _index(folder: Path) -> dict[str, Path]:
    """Folded name or alias -> file. Reading every file happens only for a name that is no file name."""
    names: dict[str, Path] = {}
    for path in sorted(folder.glob("*.yaml")):
        document = read_yaml(path)
        for name in (path.stem, *(document.get("aliases") or ())):
            names.setdefault(_folded(str(name)), path)
    return names


def _find(folder: Path, name: str) -> Path | None:
    key = _folded(name)
    direct = folder / f"{key}.yaml"
    if len(key) < 100 and key.replace("-", "").replace(".", "").isalnum() and direct.is_file():
        return direct
    return _index(folder).get(key)


def accelerator_names() -> list[str]:
    """Names of the accelerator catalog."""
    return sorted(path.stem for path in _ACCELERATORS.glob("*.yaml"))


def cluster_names() -> list[str]:
    """Names of the shipped clusters and node types."""
    return sorted(path.stem for path in _CLUSTERS.glob("*.yaml"))


def cluster_specs() -> Iterator[tuple[Path, ClusterSpec]]:
    """Every shipped cluster file."""
    for name in cluster_names():
        path = _CLUSTERS / f"{name}.yaml"
        yield path, _read_spec(path, ClusterSpec)


@lru_cache(maxsize=64)
def load_accelerator(name: str) -> Accelerator:
    """The accelerator of that name or alias; `_`, spaces, capitals don't matter. Raises `InputError`."""
    path = _find(_ACCELERATORS, name)
    if path is None:
        raise UnknownNameError("accelerator", name, accelerator_names())
    return accelerator_from_spec(_read_spec(path, AcceleratorSpec))


def noun_of(accelerators: Iterable[str]) -> str:
    """What people call devices of these names: "device" of several kinds, "GPU" where an older file has no name."""
    nouns = {load_accelerator(name).noun if name else GPU for name in accelerators} or {GPU}
    return nouns.pop() if len(nouns) == 1 else ANY_DEVICE


def load_cluster(text: str, gpus: int | None = None) -> Cluster:
    """The first `gpus` devices (None: all) of a name, a YAML path, or a shorthand. Raises `InputError`."""
    if not text.strip():
        raise InputError("a cluster must be named", repr(text), f"name a spec, a YAML file, or {GRAMMAR}")
    named = _find(_CLUSTERS, text)
    if named is not None:
        return _built(_read_spec(named, ClusterSpec), str(named), gpus)
    if looks_like_shorthand(text):
        return _load_shorthand(text, gpus)
    if _is_file(text):
        document = read_yaml(Path(text))
        return described_cluster(document, text, gpus)
    nearest = nearest_names(text[:100], _index(_CLUSTERS))
    raise UnknownNameError("cluster", text, nearest, f"Or give a YAML file, or {FORM}")


def cluster_spec(text: str) -> ClusterSpec | None:
    """The file behind a name or a YAML path; None of a shorthand and of what is no cluster. Raises `InputError`."""
    named = _find(_CLUSTERS, text)
    if named is None and (looks_like_shorthand(text) or not _is_file(text)):
        return None
    return _read_spec(named or Path(text), ClusterSpec)


def accelerator_of(text: str) -> str:
    """The accelerator of a name, a YAML path, or a shorthand. Raises `InputError`."""
    spec = cluster_spec(text)
    return load_accelerator(parse_shorthand(text).accelerator if spec is None else spec.accelerator).name


def names_no_file(text: str) -> bool:
    """Is it a cluster that planner ships, or a shorthand, so that no other file is read for it?"""
    return bool(text.strip()) and (_find(_CLUSTERS, text) is not None or looks_like_shorthand(text))


def _is_file(text: str) -> bool:
    """Is it meant as a path?"""
    named = text.endswith((".yaml", ".yml")) or "/" in text or os.sep in text
    return named or (bool(text.strip()) and _exists(text))


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


def _load_shorthand(text: str, gpus: int | None) -> Cluster:
    said = parse_shorthand(text)
    accelerator = load_accelerator(said.accelerator)
    node = accelerator.typical_node
    usual = node.accelerators if node else 8
    most = 2 * max(8, usual)
    if said.devices_per_node > most:
        nodes = -(-said.nodes * said.devices_per_node // usual)
        raise InputError(
            f"a node of {accelerator.name} must hold at most {most} devices",
            repr(text),
            f"write nodes x devices, such as '{nodes}x{usual} {said.accelerator} 400G-ib'",
        )
    injection = said.speed * said.devices_per_node if said.speed else None
    whole = assemble_cluster(
        accelerator,
        said.nodes * said.devices_per_node,
        said.devices_per_node,
        fabric_kind=said.fabric,
        node_injection_bandwidth=injection,
    )
    if said.speed and whole.num_nodes > 1:  # with the network in its name a plan's cluster can be read again
        whole = replace(whole, name=f"{whole.name} {said.network}")
    if said.speed and whole.num_nodes > 1 < said.devices_per_node:
        speed = finding(
            "fabric_speed", fabric=str(said.fabric), bandwidth=said.speed,
            node_bandwidth=said.speed * said.devices_per_node,
        )  # fmt: skip
        beyond = beyond_any_nic(said.speed, "device")
        whole = replace(whole, assumed=(speed, *beyond, *whole.assumed))
    return whole if gpus is None else whole.with_devices(gpus)
