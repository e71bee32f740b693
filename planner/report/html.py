"""How does a page become one HTML file that needs no network? Lays out the blocks of `page` with a template.

Everything a user or a file named is escaped; scripts are allowed by their hash alone, and nothing may be loaded from
anywhere. Left out: what the page says (`page`), and writing files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from planner import __version__
from planner.dialect import Dialect, in_words
from planner.errors import InputError
from planner.report import charts
from planner.report.page import Block, Page

FILES: Final = Path(__file__).with_name("page_files")
_NUMBER: Final = re.compile(r"[+\-−$]?\d")
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def page_html(page: Page) -> str:
    """The whole file. Raises `InputError` where the libraries of the extra are not installed."""
    scripts = (chart_library(), page_file("page.js"))
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "script-src " + " ".join(_hash(script) for script in scripts)
    )
    text = _template("file.html.j2").render(
        page=page,
        policy=policy,
        style=page_file("page.css"),
        scripts=scripts,
        version=__version__,
        data=chart_json(page),
    )
    return in_words(text)


def page_fragment(page: Page, dialect: Dialect) -> str:
    """The page's sections alone, for a page that is there already; its charts are in `chart_json`."""
    return in_words(_template("body.html.j2").render(page=page, version=__version__), dialect)


def chart_json(page: Page) -> str:
    """Every chart's specification by name, as JSON that is safe inside a script element."""
    specs = {b.name: b.spec for section in page.sections for b in section.blocks if b.kind == "chart"}
    text = json.dumps(_clean_values(specs), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _clean_values(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _clean_values(inner) for key, inner in value.items()}
    return [_clean_values(inner) for inner in value] if isinstance(value, list | tuple) else value


def clean(text: str) -> str:
    """The text without characters that hide or reorder others."""
    return _CONTROL.sub("�", text)


@lru_cache(maxsize=1)
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Raises `InputError` where the extra is not installed."""
    charts.require_altair()
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise InputError(charts.MISSING, hint=charts.INSTALL) from None
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def rendered(template: str, **values: Any) -> str:
    """A template of `page_files` with these values, all escaped."""
    text: str = _template(template).render(**values)
    return text


@lru_cache(maxsize=8)
def page_file(name: str) -> str:
    """A file of `page_files`."""
    return (FILES / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


@lru_cache(maxsize=1)
def _environment() -> Any:
    charts.require_altair()
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, finalize=lambda value: clean(value) if type(value) is str else value,
    )  # fmt: skip
    made.filters["table_rows"] = table_rows
    made.filters["numeric"] = numeric_columns
    return made


def _template(name: str) -> Any:
    return _environment().get_template(name)


def table_rows(block: Block) -> tuple[tuple[str, ...], ...]:
    """The numbers of a chart as a table: what its marks are said to be."""
    layers = [block.spec, *block.spec.get("layer", ())]
    labels: list[str] = []
    for layer in layers:
        for row in _values_of(block.spec, layer):
            if "label" in row and row["label"] not in labels:
                labels.append(str(row["label"]))
    pairs = [label.partition(": ") for label in labels]
    return tuple((name, said or "") for name, _, said in pairs)


def numeric_columns(block: Block) -> tuple[bool, ...]:
    """Which columns of a table hold numbers, and so stand to the right."""
    return tuple(
        all(not cell or _NUMBER.match(cell) for cell in column) for column in zip(*block.rows, strict=True)
    )  # fmt: skip


def _values_of(spec: Any, layer: Any) -> list[Any]:
    data = layer.get("data") or {}
    if "values" in data:
        return list(data["values"])
    return list((spec.get("datasets") or {}).get(data.get("name"), ()))
