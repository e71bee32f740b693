"""A headless Chromium for tests of pages, which must ask for nothing and complain of nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def opened(url: str, allowed: str = "", width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """The page at `url`, drawn. Fails on a console message or a request that does not start with `allowed`."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here")
    said: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        yield page
        browser.close()
    assert said == []
    outside = [address for address in asked if address != url and not address.startswith("data:")]
    assert [address for address in outside if not allowed or not address.startswith(allowed)] == []


def marks(page: Any, chart: str) -> list[str]:
    """What the marks of a chart are said to be, in the order drawn."""
    found: list[str] = page.eval_on_selector_all(
        f'[data-chart="{chart}"] .role-mark > [aria-label]',
        "all => all.map(mark => mark.getAttribute('aria-label'))",
    )
    return found
