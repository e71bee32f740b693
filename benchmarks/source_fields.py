"""Which fields have the dataclasses of a source tree, read without importing it?

    from benchmarks.source_fields import bridge_classes, bridge_options, maxtext_options, nanotron_options

For frameworks whose packages need a GPU library to be imported. Left out: defaults, and fields that code adds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

Classes = dict[str, list[ast.ClassDef]]
# sections of Megatron-Bridge's ConfigContainer that an override may name, and the classes whose fields they have
BRIDGE_SECTIONS: Final = {
    "model": (
        "GPTModelProvider", "HybridModelProvider", "TransformerConfig", "MLATransformerConfig", "ModelParallelConfig",
    ),
    "train": ("TrainingConfig",),
    "optimizer": ("OptimizerConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "scheduler": ("SchedulerConfig",),
    "dataset": ("GPTDatasetConfig", "BlendedMegatronDatasetConfig", "MockGPTDatasetConfig"),
    "logger": ("LoggerConfig",),
    "checkpoint": ("CheckpointConfig",),
    "comm_overlap": ("CommOverlapConfig",),
    "rng": ("RNGConfig",),
    "rerun_state_machine": ("RerunStateMachineConfig",),
    "validation": ("ValidationConfig",),
    "profiling": ("ProfilingConfig",),
    "dist": ("DistributedInitConfig",),
    "mixed_precision": ("MixedPrecisionConfig",),
    "tokenizer": ("TokenizerConfig",),
}  # fmt: skip
# what recipes may have as their model instead of a provider, its own fields, and those of the section in it
BRIDGE_CLASSES: Final = {
    "BridgeGPTModelConfig": {
        "model": ("BridgeGPTModelConfig", "GPTModelConfig", "ModelConfig"),
        "model.transformer": ("TransformerConfig", "ModelParallelConfig"),
    }
}
# fields of nanotron whose settings are not gone into: lists, and evaluation, which costs no step anything
NANOTRON_WHOLE: Final = {"data_stages": "str*", "lighteval": "str"}
# a field of several classes, which the union of its annotation does not name itself
NANOTRON_UNIONS: Final = {"NanotronConfigs": "Union[LlamaConfig, Starcoder2Config, Qwen2Config]"}
# settings of MaxText that are any word for its classes -> what its code takes (layers/attention_op.py apply_attention)
MAXTEXT_TAKEN: Final = {
    "attention": "str autoselected|dot_product|flash|cudnn_flash_te|cudnn_flash_jax|paged|vllm_rpa|vllm_batched_rpa",
}
_PLAIN: Final = {"int": "int", "float": "float", "bool": "bool", "str": "str"}


def classes_of(roots: Iterable[Path]) -> Classes:
    """Every class of the Python files below the roots, by name; same names are kept side by side."""
    found: Classes = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(node)
    return found


def fields_of(names: Iterable[str], classes: Classes) -> dict[str, str]:
    """Field -> type and choices, of the classes of these names, the first that states more than a word."""
    found: dict[str, str] = {}
    for name in names:
        for node in classes.get(name, []):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    field, annotation = line.target.id, ast.unparse(line.annotation)
                    if field.startswith("_") or annotation.startswith("ClassVar"):
                        continue
                    if found.get(field, "str") == "str":
                        found[field] = type_text(annotation)
    return found


def type_text(annotation: str) -> str:
    """An annotation as option tables write it."""
    if annotation.startswith(("Optional[Literal[", "Literal[")) and annotation.count("Literal[") == 1:
        inside = annotation[annotation.index("Literal[") + 8 : annotation.index("]")]
        try:
            choices = ast.literal_eval(f"[{inside}]")
        except (ValueError, SyntaxError):
            return "str"
        optional = annotation.startswith("Optional") or "None" in annotation.split("]", 1)[1]
        return "str " + "|".join([*(str(c) for c in choices if c is not None), *["null"] * optional])
    return _PLAIN.get(annotation, "str")  # of several kinds, or null: any word


def bridge_options(paths: str) -> dict[str, str]:
    """Overrides of Megatron-Bridge from `BRIDGE:MEGATRON`, checkouts of it and of the Megatron-LM it builds on."""
    bridge, _, megatron = paths.partition(":")
    classes = classes_of([Path(bridge) / "src", Path(megatron) / "megatron"])
    found = {"mixed_precision": "str", "comm_overlap": "str"}  # by name, or as a whole
    for section, names in BRIDGE_SECTIONS.items():
        found |= {f"{section}.{field}": kind for field, kind in fields_of(names, classes).items()}
    return found


def bridge_classes(paths: str) -> dict[str, dict[str, str]]:
    """The overrides of the model by the classes of recipes' models that are no providers."""
    bridge, _, megatron = paths.partition(":")
    classes = classes_of([Path(bridge) / "src", Path(megatron) / "megatron"])
    found: dict[str, dict[str, str]] = {}
    for kind, sections in BRIDGE_CLASSES.items():
        if kind not in classes:  # of a later release
            continue
        found[kind] = {
            f"{section}.{field}": text
            for section, names in sections.items()
            for field, text in fields_of(names, classes).items()
            if f"{section}.{field}" not in sections
        }
    return found


def nanotron_options(checkout: str) -> dict[str, str]:
    """Settings of nanotron's YAML, from the dataclasses below Config in a checkout.

    dacite reads it strictly: a setting that no class has is refused (config/config.py get_config_from_dict).
    """
    classes = {name: nodes[0] for name, nodes in classes_of([Path(checkout) / "src/nanotron/config"]).items()}
    return _nested("Config", "", classes)


def _nested(name: str, prefix: str, classes: dict[str, ast.ClassDef]) -> dict[str, str]:
    """Dotted settings of a class and of the classes that its fields are of; a section that may be null is one too."""
    found: dict[str, str] = {}
    for line in classes[name].body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        field, annotation = prefix + line.target.id, ast.unparse(line.annotation)
        annotation = NANOTRON_UNIONS.get(annotation, annotation)
        inner = [word for word in re.findall(r"\w+", annotation) if _is_settings(word, classes)]
        if field in NANOTRON_WHOLE:
            found[field] = NANOTRON_WHOLE[field]
        elif not inner:
            found[field] = _listed(annotation)
        for kind in inner if field not in NANOTRON_WHOLE else ():
            found |= _nested(kind, f"{field}.", classes)
        if inner and annotation.startswith("Optional["):
            found[field] = "str"
    return found


def maxtext_options(checkout: str) -> dict[str, str]:
    """Settings of MaxText's YAML and command line, from the classes that its MaxTextConfig is made of.

    A setting that none has is refused (configs/pyconfig.py _prepare_for_pydantic), but for the file that one starts
    from. Enumerations and named Literals are their values; of `MAXTEXT_TAKEN`, any word for the class, those that the
    code takes. remat_policy is any word for both.
    """
    root = Path(checkout) / "src/maxtext"
    classes = classes_of([root / "configs", root / "common"])
    words = {name: _members(nodes[0]) for name, nodes in classes.items()} | _literals(
        root / "configs/types.py"
    )
    (config,) = classes["MaxTextConfig"]
    found = {"base_config": "str"}
    for name in [ast.unparse(base) for base in config.bases]:
        for line in classes[name][0].body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = _worded(ast.unparse(line.annotation), words)
    for line in config.body:  # sections of their own, named with a dot
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            for own in classes[ast.unparse(line.annotation)][0].body:
                if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name):
                    found[f"{line.target.id}.{own.target.id}"] = _worded(ast.unparse(own.annotation), words)
    return found | MAXTEXT_TAKEN


def _literals(path: Path) -> dict[str, list[str]]:
    """The words of Literals that a module names."""
    found: dict[str, list[str]] = {}
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.value).startswith("Literal["):
            found[ast.unparse(line.targets[0])] = [
                node.value
                for node in ast.walk(line.value)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    return found


def _members(node: ast.ClassDef) -> list[str]:
    """The values of an enumeration of words."""
    values = [line.value for line in node.body if isinstance(line, ast.Assign)]
    return [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def _worded(annotation: str, words: dict[str, list[str]]) -> str:
    """As `type_text` has it, with enumerations by name and numbers above 0."""
    inside = annotation.removeprefix("None | ").removesuffix(" | None")
    if known := words.get(inside):
        return "str " + "|".join(known)
    kinds = {
        "PositiveInt": "int",
        "NonNegativeInt": "int",
        "NonNegativeFloat": "float",
        "int | float": "float",
    }
    if inside.startswith("list["):
        return "str*"
    return kinds.get(inside, type_text(inside))


def _is_settings(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    node = classes.get(name)
    return node is not None and any(ast.unparse(mark) == "dataclass" for mark in node.decorator_list)


def _listed(annotation: str) -> str:
    """As `type_text` has it, with what may be null or is a list of words."""
    inside = annotation.removeprefix("Optional[").removesuffix("]")
    if inside.startswith("List["):
        inner = type_text(inside.removeprefix("List[").removesuffix("]"))
        return (inner if inner in ("int", "float") else "str") + "*"
    return type_text(inside)
