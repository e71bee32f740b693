"""Which causal language models of the installed transformers can be run dry, and do they keep for the backward pass
what they keep when they run with values?

    python -m benchmarks.dry_run_classes [TYPE ...] [--json OUT] [--write]

A tiny model of each type (`tiny_configs.py`), one sequence of 32 tokens, in bf16 as a GPU would run it, and under
autocast where that fails. Then the same model in fp32 with eager attention and without dropout, where a CPU and a GPU
run the same operations: once dry, once with values, its saved tensors counted by
`torch.autograd.graph.saved_tensors_hooks`. Left out: whether peaks are right, which `dry_runs.py` judges.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from benchmarks.results_file import write_section
from benchmarks.tiny_configs import tiny_fields
from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.replay import replay
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.outcome import memory_of
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.timeline import blocks_after
from planner.dryrun.transformers.recipe import Recipe, Weights
from planner.errors import PlannerError

TOKENS: Final = 32
FEW: Final = (
    1024  # bytes: constants that a program makes of Python's numbers are no operations, and not counted
)
WIDEST: Final = 160
SECONDS: Final = 60
ENOUGH: Final = 2**50  # bytes: no device is asked about
HOPPER: Final = (9, 0)


class OverdueError(BaseException):
    """A run took too long. Not an error of the run, which would be taken for a reason of its own."""


@dataclass(frozen=True)
class Ran:
    """How a type's tiny model ran: `refused`, `refused_with_values`: why it did not, empty where it did; `in_bf16`: as
    its weights are, not under autocast; `kept`, `kept_with_values`: what it keeps for the backward pass [bytes]."""

    refused: str
    refused_with_values: str
    kept: int | None = None
    kept_with_values: int | None = None
    in_bf16: bool = True


def tried(kind: str) -> Ran:
    """Run a type's tiny model dry and with values."""
    from planner.dryrun.transformers.step import record_step

    fields = tiny_fields(kind)

    def run_dry(weights: Weights) -> None:
        recorded = record_step(Recipe(fields, kind, 1, TOKENS, weights=weights), HOPPER)
        memory_of(recorded, AllocatorSettings(), ENOUGH)

    plain = Recipe(without_dropout(fields), kind, 1, TOKENS, weights=Weights.FP32, attention="eager")
    refused, _ = outcome(lambda: run_dry(Weights.BF16))
    under_autocast = bool(refused) and not outcome(lambda: run_dry(Weights.AMP_BF16))[0]
    refused = "" if under_autocast else refused
    refused_with_values, kept_with_values = outcome(lambda: kept_with_values_by(plain))
    kept = None if refused else outcome(lambda: kept_by(record_step(plain, HOPPER)))[1]
    return Ran(refused, refused_with_values, kept, kept_with_values, not under_autocast)


def outcome(run: Callable[[], Any]) -> tuple[str, Any]:
    """Why something does not run, empty where it does, and its result."""

    def overdue(*_: object) -> None:
        raise OverdueError

    before = signal.signal(signal.SIGPROF, overdue)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return "", run()
    except OverdueError:
        return f"longer than {SECONDS} CPU s", None
    except PlannerError as error:
        return _line("; ".join(filter(None, (error.given or error.must, error.hint)))), None
    except Exception as error:  # the library's own
        return _line(f"{type(error).__name__}: {error}"), None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _line(text: str) -> str:
    return shorten(text.replace("|", "/"), WIDEST, placeholder=" ...")


def without_dropout(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without any that zeroes activations: a GPU and a CPU keep different masks of it."""
    import transformers

    return fields | _dropout_off(transformers.AutoConfig.for_model(**deepcopy(fields)), fields)


def _dropout_off(config: Any, fields: dict[str, Any]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name, value in vars(config).items():
        if isinstance(value, float) and "drop" in name:
            found[name] = 0.0
        elif name in fields and name in config.sub_configs:
            found[name] = fields[name] | _dropout_off(value, fields[name])
    return found


def kept_by(recording: Recording) -> int:
    """What a recorded step keeps for its first backward pass [bytes]."""
    first = next(one.first for one in recording.operations if one.phase is Phase.BACKWARD)
    allocated = replay(recording.trace, AllocatorSettings()).allocated_timeline
    alive = blocks_after(recording, first - 1, allocated)
    return sum(one.size * one.number for one in alive if one.holds is Holds.ACTIVATIONS)


def kept_with_values_by(recipe: Recipe) -> int:
    """What the same step keeps when it runs with values on a CPU, the loss among it [bytes]."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**deepcopy(recipe.config))
    config.use_cache = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=recipe.attention, dtype=torch.float32
        )
        model.train()
        tokens = torch.randint(
            0, config.get_text_config(decoder=True).vocab_size, (recipe.micro_batch, recipe.seq_len)
        )
        there = {id(one.untyped_storage()) for one in (*model.parameters(), *model.buffers(), tokens)}
        saved = dict[int, Any]()

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            saved[id(storage)] = weakref.ref(storage)
            return tensor.detach()  # a result that its own operation saves would never end otherwise

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(input_ids=tokens, labels=tokens).loss / 1
    saved[id(loss.untyped_storage())] = weakref.ref(loss.untyped_storage())
    kept = sum(one().nbytes() for key, one in saved.items() if key not in there and one() is not None)
    loss.backward()
    return kept


def section(found: dict[str, Ran], version: str) -> str:
    """How many run, why others do not, and how many keep what they keep with values."""
    autocast = [kind for kind, one in found.items() if not one.refused and not one.in_bf16]
    unrun = {kind: one for kind, one in found.items() if one.refused}
    ran = len(found) - len(unrun)
    pairs = {
        kind: (one.kept, one.kept_with_values)
        for kind, one in found.items()
        if one.kept is not None and one.kept_with_values is not None
    }
    off = {kind: abs(dry - real) for kind, (dry, real) in pairs.items() if dry != real}
    near = [amount for amount in off.values() if amount <= FEW]
    lines = [
        f"{ran} of {len(found)} causal model types of transformers {version} run ({ran / len(found):.0%}), "
        f"under autocast alone: {', '.join(autocast) or 'none'}.",
        "",
        "| not run | why | with values |",
        "|---|---|---|",
    ]
    for kind, one in unrun.items():
        lines.append(f"| {kind} | {one.refused} | {'does not run' if one.refused_with_values else 'runs'} |")
    lines += [
        "",
        f"{len(pairs)} also run with values: {len(pairs) - len(off)} keep equally many bytes for the backward pass, "
        f"{len(near)} differ by {max(near, default=0)} bytes or less, and {len(off) - len(near)} by more.",
    ]
    if len(off) > len(near):
        lines += ["", "| keeps other | dry [bytes] | with values [bytes] |", "|---|---:|---:|"]
    for kind, amount in off.items():
        if amount > FEW:
            lines.append(f"| {kind} | {pairs[kind][0]:,} | {pairs[kind][1]:,} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run them all."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.dry_run_classes", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="these model types alone")
    parser.add_argument("--json", type=Path, help="how each ran")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    given = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found = {}
    for kind in given.kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        one = found[kind] = tried(kind)
        kept = f"keeps {one.kept}, with values {one.refused_with_values or one.kept_with_values}"
        print(f"{kind}: {one.refused or 'runs'}; {kept}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(
            json.dumps({kind: asdict(one) for kind, one in found.items()}, indent=1), encoding="utf-8"
        )
    inside = section(found, transformers.__version__)
    print(inside)
    if given.write:
        write_section("dry-run-classes", inside)


if __name__ == "__main__":
    main()
