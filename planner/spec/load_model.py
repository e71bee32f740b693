"""Which model does a name or a path on the command line mean?

Looks in this order: the catalog (names, Hugging Face ids, other spellings), then the file system: a
`config.json`, a folder holding one, or a description by hand (`planner/spec/description.py`) in YAML. Put
`./` before the path of a folder that is called like a catalog model. Left out: downloading; nothing is fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from planner.errors import FileInputError, UnknownNameError, field_must, sort_of
from planner.spec.findings import finding
from planner.spec.hf import read_hf_config
from planner.spec.hf.mistaken import folder_hint, weights_in
from planner.spec.load_file import read_bytes, unreadable
from planner.spec.load_json import check_characters, unique_keys
from planner.spec.load_yaml import parse_yaml
from planner.spec.model import ModelSpec

LARGEST_FILE = 8 * 2**20
_SUFFIXES = (".json", ".yaml", ".yml")


class CatalogEntry(BaseModel):
    """What the index says of one catalog model.

    `published_params`: total published with the weights; `unverified`: dimensions or context are from memory
    and no published total confirms them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    aliases: list[str] = []
    source: str
    published_params: int | None = None
    unverified: bool = False
    note: str = ""


def _catalog_folder() -> Traversable:
    return files("planner.catalog") / "models"


@lru_cache(maxsize=1)
def catalog_index() -> Mapping[str, CatalogEntry]:
    """The index of the shipped models by name."""
    path = _catalog_folder() / "index.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    try:
        return {name: CatalogEntry.model_validate(entry) for name, entry in content.items()}
    except ValidationError as error:
        first = error.errors()[0]
        raise FileInputError(
            str(path), field_must(first), repr(first.get("input")), "repair the index"
        ) from error


@lru_cache(maxsize=1)
def _folders() -> frozenset[str]:
    """Names of the shipped models, each that of its folder."""
    return frozenset(entry.name for entry in _catalog_folder().iterdir() if entry.is_dir())


def catalog_models() -> list[str]:
    """Names of the models that ship with planner."""
    return sorted(catalog_index())


def _folded(name: str) -> str:
    """Spelling without case and punctuation, so that llama3.1-8b finds llama-3.1-8b."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@lru_cache(maxsize=1)
def _names() -> Mapping[str, str]:
    """Every accepted spelling to catalog name; exact ones are never overruled by folded ones."""
    index = catalog_index()
    exact = {alias.lower(): name for name, entry in index.items() for alias in (name, *entry.aliases)}
    folded: dict[str, str] = {}
    for spelling, name in exact.items():
        for form in (_folded(spelling), _folded(spelling.rsplit("/", 1)[-1])):
            folded.setdefault(form, name)
    return {**folded, **exact}


def resolve_catalog_name(name: str) -> str | None:
    """The catalog name behind a name, a Hugging Face id or another spelling of either, or None."""
    if name in _folders():
        return name  # as most write it: the index of all spellings need not be read
    names = _names()
    return names.get(name.lower()) or names.get(_folded(name)) if _folded(name) else None


def catalog_name_at(place: str) -> str | None:
    """The same behind a folder or another account's copy, by what either is called: unsloth/DeepSeek-V3."""
    return resolve_catalog_name(place) or resolve_catalog_name(place.rstrip("/").rpartition("/")[2])


def load_model(name_or_path: str, with_mtp: bool = False) -> ModelSpec:
    """The model behind a catalog name, a Hugging Face id, or a path.

    `with_mtp` counts multi-token-prediction modules where the configuration has them. Raises
    `UnknownNameError`, `FileInputError` or `UnsupportedError`.
    """
    name = None if name_or_path.startswith((".", "/", "~")) else resolve_catalog_name(name_or_path)
    if name is not None:
        return _load_catalog_model(name, with_mtp)
    path = _existing_path(name_or_path)
    if path is None:
        raise _not_found(name_or_path)
    return load_model_file(path, with_mtp)


@lru_cache(maxsize=256)
def _load_catalog_model(name: str, with_mtp: bool) -> ModelSpec:
    path = _catalog_folder() / name / "config.json"
    return _read(path.read_bytes(), f"catalog/models/{name}/config.json", name, ".json", with_mtp)


def hf_fields(name_or_path: str) -> tuple[str, Mapping[str, Any]]:
    """A model's name, and the fields of the `config.json` behind it, whether or not planner understands them.

    Raises `PlannerError` as `load_model` does, and for a model that is described by hand.
    """
    catalog = None if name_or_path.startswith((".", "/", "~")) else resolve_catalog_name(name_or_path)
    if catalog is not None:
        file = f"catalog/models/{catalog}/config.json"
        return catalog, _fields((_catalog_folder() / catalog / "config.json").read_bytes(), file, ".json")
    path = _existing_path(name_or_path)
    if path is None:
        raise _not_found(name_or_path)
    name, place, content = _own_file(path)
    fields = _fields(content, str(place), place.suffix.lower())
    if "model_type" not in fields:
        must = "the model must be a Hugging Face config.json, with a model_type"
        raise FileInputError(str(place), must, "a description by hand", "give its config.json")
    return name, fields


def load_model_file(path: Path, with_mtp: bool = False) -> ModelSpec:
    """The model that a file, or the `config.json` in a folder, describes."""
    name, file, content = _own_file(path)
    return _read(content, str(file), name, file.suffix.lower(), with_mtp, own=True)


def _own_file(path: Path) -> tuple[str, Path, bytes]:
    """The name of the model that a file, or the `config.json` in a folder, describes, the file, and what it holds."""
    name = path.stem
    try:
        if path.is_dir():
            name = path.resolve().name
            path = path / "config.json"
            if not path.is_file():
                must = "a model folder must hold a config.json"
                hint = folder_hint({file.name for file in path.parent.iterdir()})
                raise FileInputError(str(path.parent), must, hint=hint)
        elif path.name == "config.json":
            name = path.resolve().parent.name
        if weights_in(path.name):
            must = "a model file must be a configuration"
            raise FileInputError(
                str(path), must, "weights", "give the config.json that they were published with"
            )
    except (OSError, RuntimeError) as error:
        raise unreadable(str(path), error) from None
    return name, path, read_bytes(path, LARGEST_FILE, large="give a configuration, not weights")


def _existing_path(text: str) -> Path | None:
    """The path, if it exists; None for text that cannot be a path at all."""
    try:
        path = Path(text).expanduser() if text.strip() else None
        return path if path is not None and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _not_found(text: str) -> FileInputError | UnknownNameError:
    shown = text if len(text) <= 200 else text[:200] + "..."
    if text.startswith((".", "/", "~")) or text.lower().endswith(_SUFFIXES):
        return FileInputError(shown, "the file must exist", "no such file or folder", "check the path")
    return unknown_model(shown, "Or give a config.json")


def unknown_model(name: str, hint: str) -> UnknownNameError:
    """The error for a name that is of no shipped model, with those that are like it: first those that it goes on from,
    as names of later versions do."""
    own = _folded(name.rsplit("/", 1)[-1])
    begun = sorted((known for known in catalog_models() if own.startswith(_folded(known))), key=len)
    spellings = [alias for entry in catalog_index().values() for alias in entry.aliases]
    return UnknownNameError("model", name[:200], [*catalog_models(), *spellings], hint, begun[::-1])


def described_model(fields: dict[str, Any], name: str, source: str, with_mtp: bool = False) -> ModelSpec:
    """The model that the fields of a `config.json` or of a description by hand stand for. Raises `InputError`."""
    if "model_type" not in fields and "layers" in fields:
        from planner.spec.description import spec_from_description  # few models are described

        spec = replace(spec_from_description(fields, str(fields.get("name") or name), source), source=source)
    else:
        spec = read_hf_config(fields, source, name, with_mtp)
    if with_mtp and not spec.mtp_layers:
        return replace(spec, assumed=(*spec.assumed, finding("no_mtp_known")))
    return spec


def _read(
    content: bytes, file: str, name: str, suffix: str, with_mtp: bool, own: bool = False
) -> ModelSpec:  # fmt: skip
    fields = _fields(content, file, suffix)
    spec = described_model(fields, name, file, with_mtp)
    return replace(spec, described=fields) if own else spec


def _fields(content: bytes, file: str, suffix: str) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        must = "the file must be text in UTF-8"
        raise FileInputError(file, must, f"byte {error.start}: {error.reason}", "save it as UTF-8") from error
    fields = parse_yaml(text, file) if suffix in (".yaml", ".yml") else _parse_json(text, file)
    if not isinstance(fields, dict):
        must = "the file must hold one object of named fields"
        raise FileInputError(file, must, sort_of(fields), "give a model's config.json")
    return fields


def _parse_json(text: str, file: str) -> Any:
    try:
        # Infinity, which Python writes: no number of ours
        found = json.loads(text, object_pairs_hook=unique_keys(file), parse_constant=str)
    except (ValueError, RecursionError) as error:
        given = str(error) if text.strip() else "an empty file"
        raise FileInputError(file, "the file must be valid JSON", given, "repair the file") from error
    check_characters(text, found, file)
    return found
