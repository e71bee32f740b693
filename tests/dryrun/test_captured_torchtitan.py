"""Are shipped lists of torchtitan's models what torchtitan does? Every shape and byte of a fresh run."""

from __future__ import annotations

import json

import pytest

from planner.catalog.load_operations import EVERY_FAMILY, FOLDER
from planner.dryrun.torchtitan.recipe import EAGER

NEEDS = ("torch", "torchtitan")
pytestmark = pytest.mark.slow


def test_a_fresh_run_finds_every_shape_and_byte_of_what_is_shipped() -> None:
    from benchmarks.capture_torchtitan import checked_forms, forms

    document = json.loads((FOLDER / EAGER / f"{EVERY_FAMILY}.json").read_text(encoding="utf-8"))
    found = {form: one for form, one in forms().items() if not one.config["tie_word_embeddings"]}
    assert set(found) <= set(document["forms"])
    assert checked_forms(document, found) == 0


def test_a_run_of_another_model_is_found_out() -> None:
    from benchmarks.capture.checking import check
    from benchmarks.capture.naming import NotListedError
    from benchmarks.capture_torchtitan import forms, run_of
    from planner.catalog.load_operations import Tables
    from planner.spec.listed import Variant

    document = json.loads((FOLDER / EAGER / f"{EVERY_FAMILY}.json").read_text(encoding="utf-8"))
    found = {one.name: (form, one) for form, one in forms().items()}
    form, _ = found["qwen3-0.6b"]
    lists = Tables.read(document).lists(document["forms"][form]["variants"][0])
    with pytest.raises((NotListedError, KeyError)):
        check(lists, run_of(found["llama-1-30b"][1].sized(2), 2, Variant()))
