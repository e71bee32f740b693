"""What do `planner model`, `clusters` and `stacks` do? They show one, or list those that planner ships.

Left out: the facts (`report/listings.py`) and how they look (`report/listings_text.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from planner.cli.options import GpusOption, JsonOption, MtpOption, SeqLenOption
from planner.cli.output import say, say_json
from planner.errors import InputError

MODEL_EPILOG = "\b\nExample:\n  planner model deepseek-ai/DeepSeek-V3 --seq-len 4096 --json"
CLUSTERS_EPILOG = "\b\nExample:\n  planner clusters dgx-h100 --gpus 64"
STACKS_EPILOG = "\b\nExample:\n  planner stacks megatron-2026\n  planner stacks megatron-2026 --rules"


def model(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Name, id or config.json; none lists the catalog."),
    ] = None,
    seq_len: SeqLenOption = None,
    batch: Annotated[
        int | None, typer.Option(help="Sequences the FLOPs are counted for.", show_default="1")
    ] = None,
    mtp: MtpOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show a model's parameters and FLOPs, or list all."""
    if batch is not None and batch < 1:
        raise InputError("--batch must be a whole number, 1 or more", str(batch))
    from planner.report.listings import catalog_facts, model_facts
    from planner.report.listings_text import catalog_document, model_document
    from planner.spec.load_model import load_model

    if model is None:
        _refuse_without("a model", {"--seq-len": seq_len, "--batch": batch, "--mtp": mtp or None})
        models = catalog_facts()
        say_json({"models": models}) if as_json else say(catalog_document(models))
    else:
        facts = model_facts(load_model(model, mtp), seq_len, 1 if batch is None else batch)
        say_json(facts) if as_json else say(model_document(facts))
    return 0


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER]",
            help='Name, device, YAML file or shorthand such as "64x8 h100 400G-ib"; none lists all.',
        ),
    ] = None,
    gpus: GpusOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a cluster and its sources, or list all. Links and unverified figures too."""
    from planner.report.listings import named_cluster, shipped_clusters
    from planner.report.listings_text import cluster_document, clusters_document
    from planner.spec.machine.load_cluster import accelerator_names

    if name is None:
        _refuse_without("a cluster", {"--gpus": gpus})
        every, devices = shipped_clusters(), accelerator_names()
        if as_json:
            say_json({"clusters": every, "devices": devices})
        else:
            say(clusters_document(every, devices))
    else:
        facts = named_cluster(name, gpus)
        say_json(facts) if as_json else say(cluster_document(facts))
    return 0


def stacks(
    name: Annotated[
        str | None, typer.Argument(metavar="[STACK]", help="Name or YAML file; none lists all.")
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Show what rules candidates out of a search, by rule, and why.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show a stack's constants, options or rules, or list all."""
    from planner.catalog.load_stacks import load_stack
    from planner.report.listings import shipped_stacks, stack_facts, stack_rules
    from planner.report.listings_text import rules_document, stack_document, stacks_document

    if rules:
        if name is None:
            raise InputError("--rules needs a stack", "none", "planner stacks lists them")
        found = load_stack(name)
        facts = stack_rules(found)
        say_json({"rules": facts}) if as_json else say(rules_document(found.name, facts))
    elif name is None:
        every = shipped_stacks()
        say_json({"stacks": every}) if as_json else say(stacks_document(every))
    else:
        facts = stack_facts(load_stack(name))
        say_json(facts) if as_json else say(stack_document(facts))
    return 0


def _refuse_without(subject: str, options: Mapping[str, object]) -> None:
    """Refuse options of one subject where all are listed. Raises `InputError`."""
    given = [
        option if value is True else f"{option} {value}"
        for option, value in options.items()
        if value is not None
    ]
    if given:
        raise InputError(
            f"{given[0].split()[0]} needs {subject}", " ".join(given), "name one, or leave it out"
        )
