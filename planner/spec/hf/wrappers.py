"""Where in a wrapper's `config.json` does its text model stand, of which family is it, and has its head own weights?

A wrapper holds encoders of images or sound beside a text model. transformers 5 ties the head by the wrapper's
`tie_word_embeddings`, transformers 4 by the text model's; of a file that states one of the two, that one is taken.
Where both are silent the text family's default is: transformers 5 asks for tying in some wrappers then, but keeps a
head that the weights hold, as those of Mistral Small 3.1 do (transformers issue 42313 and pull request 43429, vLLM
issue 51063). Left out: the encoders, whose parameters and time are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from planner.spec.hf.fields import ConfigFields
from planner.spec.hf.load_tables import load_tables

# names of the text model's section: the library's, InternVL's own (configuration_internvl_chat.py), DeepSeek-VL2's and
# Janus's own, VILA's; the model that answers in Qwen's Omni models stands in a section of theirs
_SECTIONS = ("text_config", "llm_config", "language_config", "llm_cfg")
_OUTER_SECTION = "thinker_config"
# LLaVA's own classes, whose files hold the text fields beside the rest and all call themselves llava
_LLAVA = {
    "LlavaLlamaForCausalLM": "llama",
    "LlavaMistralForCausalLM": "mistral",
    "LlavaQwenForCausalLM": "qwen2",
}


class Tied(StrEnum):
    """What says whether a wrapper ties its text model's head."""

    WRAPPER = "wrapper"  # where it is silent, too, the text model
    EITHER = "either"
    TEXT = "text"  # it leaves it to the text model
    NEVER = "never"
    SILENT = "silent"  # as WRAPPER, but where nothing is said transformers 5 asks for tying, unlike the text family


class Wrapper(BaseModel):
    """A row of the wrappers in `families.json`. `text`: of which family the text model is that does not state it;
    `defaults`: what it takes where its family alone takes another value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    tied: Tied = Tied.WRAPPER
    defaults: Mapping[str, int | bool | None] = {}


def wrappers() -> dict[str, Any]:
    """The rows of all wrappers by model_type, as they stand in the file."""
    rows: dict[str, Any] = load_tables()["wrappers"]
    return rows


@cache
def _wrapper(model_type: str) -> Wrapper:
    return Wrapper.model_validate(wrappers()[model_type])


def _text_defaults(stated: str, wrapper: str) -> dict[str, Any]:
    """What a text model takes whose section names the family `stated`."""
    own = stated.removesuffix("_text")
    named = _wrapper(own).defaults if own in wrappers() else {}
    return {**(named or _wrapper(wrapper).defaults)}


def text_section(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the sections, outermost first, in which a wrapper's file holds its text model; none: beside the rest."""
    outer = (_OUTER_SECTION,) if isinstance(config.get(_OUTER_SECTION), dict) else ()
    around = config[_OUTER_SECTION] if outer else config
    found = next((name for name in _SECTIONS if around.get(name) is not None), None)
    if found is None and around.get("hidden_size") is None:  # older files hold the text fields themselves
        found = _SECTIONS[0]
    return (*outer, found) if found else outer


def stated_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a file, those of its text model over what stands around it."""
    inner: Any = config
    for name in text_section(config):
        found = inner.get(name)
        inner = found if isinstance(found, Mapping) else inner
    return {**config, **inner}


def text_fields(fields: ConfigFields, wrapper: str) -> ConfigFields:
    """The fields of a wrapper's text model, with what it takes from the wrapper. Raises `FileInputError`."""
    around = inner = fields
    for name in text_section(fields.values):
        around, inner = inner, inner.section(name)
    if around is not fields and "tie_word_embeddings" not in around.values:
        around = fields
    stated = str(inner.values.get("model_type"))
    defaults = _text_defaults(stated, wrapper)
    # in a section transformers 4 wrote only what differs from these (LLaVA 1.5, Idefics 2, Pixtral)
    if inner is not fields:
        defaults |= load_tables()["dimensions"].get(stated, {})
    for name, value in defaults.items():
        if name not in inner.values:
            inner.assume(name, value)
    inner.values = {**defaults, **inner.values}
    if (tied := _ties(around, inner, wrapper)) is not None:
        inner.values["tie_word_embeddings"] = tied
    inner.assume("vision tower", "ignored", "text model only")
    return inner


def _ties(around: ConfigFields, inner: ConfigFields, wrapper: str) -> Any:
    """Whether the text model's head is tied; None where its family's default holds."""
    name = "tie_word_embeddings"
    outside, inside = around.values.get(name), inner.values.get(name)
    tied = _wrapper(wrapper).tied
    if tied is Tied.NEVER:
        return False
    if inside is None and outside is None and tied is Tied.SILENT:
        why = f"neither {wrapper} nor its text model states it; weights may tell"
        inner.assume(name, "the text family's", why)
    if tied is Tied.TEXT or outside is None:
        return inside
    return True if tied is Tied.EITHER and inside is True else outside


def default_family(config: Mapping[str, Any], wrapper: str) -> str:
    """Of which family a wrapper's text model is that does not state it."""
    named = config.get("architectures")
    own = [_LLAVA[name] for name in named if name in _LLAVA] if isinstance(named, list) else []
    return own[0] if own else _wrapper(wrapper).text
