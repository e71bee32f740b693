"""Which model does an entry of a models file describe, as its curator wrote it?

An entry is brought to the fields of `spec/description.py`, which is strict: whole numbers written as floats or texts,
switches written as words, kinds of attention with a remark. What is dropped and could change a cost is said. Left out:
architectures that no field tells; these are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, get_args

from annotated_types import Gt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from benchmarks.published.cells import THOUSANDS, same_words, spaced, stated
from planner.errors import UnsupportedError
from planner.spec.attention import AttentionKind, QkNorm
from planner.spec.description import (
    MambaDescription,
    MlaDescription,
    ModelDescription,
    MoeDescription,
    spec_from_description,
)
from planner.spec.findings import Finding
from planner.spec.layer import NormKind
from planner.spec.load_finding_codes import TEXT
from planner.spec.model import ModelSpec

Fields = dict[str, Any]

_PARTS: Final[dict[str, type[BaseModel]]] = {
    "moe": MoeDescription, "mla": MlaDescription, "mamba": MambaDescription,
}  # fmt: skip
_UNUSED: Final = ("params_total_b", "params_active_b")  # said beside the dimensions, from which they follow
_KINDS: Final = (
    (r"\bmla|latent", AttentionKind.MLA),
    (r"\bmqa|multi ?query|\bgqa|grouped", AttentionKind.GQA),
    (r"\bmha|multi ?head", AttentionKind.MHA),
)
_ONE_KEY: Final = r"\bmqa|multi ?query"
_NO_KIND: Final = r"swa|(?:sliding )?window|causal|flash|full|softmax|self attention|alibi|ro ?pe|rotary"
_WINDOW: Final = re.compile(r"(?:window|swa)[a-z ]* (\d+)\b")
_SOME_LAYERS: Final = r"altern|interleav|every|global|local|mixed|some|layers|\d ?: ?\d"
_TRUE: Final = ("true", "yes", "1", "on")
_FALSE: Final = ("false", "no", "0", "off", "none")
_GATED: Final = r"\b(?:swi|ge|re|se)?glu\b|gated"
_PLAIN: Final = r"gelu|relu|plain"


def described_model(entry: Mapping[str, Any], name: str) -> ModelSpec:
    """The model that an entry of a models file describes. Raises `PlannerError`."""
    fields, said = plain_description(entry, name)
    return spec_from_description(fields, name, assumed=[Finding(code=TEXT, text=text) for text in said])


def plain_description(entry: Mapping[str, Any], name: str) -> tuple[Fields, list[str]]:
    """An entry of a models file in the fields of `spec/description.py`, and what was said of it. Raises
    `UnsupportedError`."""
    said: list[str] = []
    fields = _plain(entry, ModelDescription, "", said)
    for part, model in _PARTS.items():
        value = fields.get(part)
        told = value if isinstance(value, Mapping) and any(value.values()) else None
        fields[part] = None if told is None else _plain(told, model, f"{part}.", said)
    if fields["moe"] is not None and not fields["moe"].get("experts"):
        fields["moe"] = None
    _attention(fields, name, said)
    return fields, said


def _plain(entry: Mapping[str, Any], model: type[BaseModel], of: str, said: list[str]) -> Fields:
    """The known fields with values of their types; the others are said to be ignored."""
    fields: Fields = {}
    for key in sorted(str(key) for key in set(entry) - set(model.model_fields)):
        said.append(f"{of}{key} = {entry.get(key)!r} ignored")
    for key, field in model.model_fields.items():
        if key not in entry or key in _UNUSED:
            continue
        value = _value(entry[key], field)
        if value is not None or field.default is None or field.is_required():
            fields[key] = value
    if isinstance(fields.get("positions"), str):
        fields["positional"] = fields.pop("positions")
    return fields


def _value(value: Any, field: FieldInfo) -> Any:
    """A value as the type of its field; as it is where it cannot be one, for the field's own error."""
    of = field.annotation
    types = get_args(of) if isinstance(of, UnionType) else (of,)
    if value is None or (isinstance(value, str) and not stated(value)):
        return None
    if bool in types:
        return _switch(value)
    if int in types:
        number = _whole(value)
        absent = number == 0 and field.default is None and any(isinstance(m, Gt) for m in field.metadata)
        return None if absent and not isinstance(number, bool) else number
    if str in types:
        return value if isinstance(value, str) else str(value)
    if NormKind in types and isinstance(value, str):
        return (
            NormKind.RMS if "rms" in value.lower() else NormKind.LAYER if "layer" in value.lower() else value
        )
    if QkNorm in types and not isinstance(value, str):
        return QkNorm.HEAD if value else None  # as of the models that have any (Qwen 3, Gemma 3)
    return value


def _whole(value: Any) -> Any:
    """32.0, "32" and "4,096" as whole numbers."""
    if isinstance(value, str):
        text = THOUSANDS.sub("", value.strip())
        return int(float(text)) if re.fullmatch(r"\d{1,12}(?:\.0*)?", text) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _switch(value: Any) -> Any:
    text = spaced(str(value))
    if text in _TRUE or re.search(_GATED, text):
        return True
    return False if text in _FALSE or re.search(_PLAIN, text) else value


def _attention(fields: Fields, name: str, said: list[str]) -> None:
    """`attention` as a kind, by its words where it has any, else by the dimensions; a window where they tell one."""
    text = str(fields.get("attention") or "")
    words, told = spaced(text), fields.get("attention") is not None
    if fields.get("hybrid_pattern") or re.search(r"hybrid|mamba", words):
        fields["attention"] = text.lower() if told else None
        return
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, words)), None)
    if told and kind is None and not re.search(_NO_KIND, words):
        raise UnsupportedError(
            f"{name}: attention must be of a kind that planner models", repr(text), "mha, mqa, gqa or mla"
        )
    if re.search(_ONE_KEY, words) and fields.get("kv_heads") is None:
        fields["kv_heads"] = 1
    if fields.get("mla") is not None:
        kind = AttentionKind.MLA
    window = _WINDOW.search(words)
    if window and not re.search(_SOME_LAYERS, text.lower()) and fields.get("window") is None:
        fields["window"] = int(window[1])
    fields["attention"] = kind
    if told and not any(same_words(text, plain) for plain in (*AttentionKind, "mqa")):
        said.append(f"attention {text!r}: {_read(fields, words)}")


def _read(fields: Fields, words: str) -> str:
    heads, keys = fields.get("heads"), fields.get("kv_heads")
    kind = fields["attention"] or f"{keys or heads} key/value heads"
    if fields.get("window"):
        return f"{kind}, a window of {fields['window']} tokens in every layer"
    if re.search(r"window|swa", words):
        return f"{kind}, to all tokens: the size or the layers of its window are not stated"
    return f"{kind}; what else it says is not modelled"
