"""Which arguments do files for Megatron-LM state: scripts, tables of arguments, presets of Primus?

Left out: what the arguments mean (`parse.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from planner.errors import InputError
from planner.frameworks.adapters import Adapters
from planner.frameworks.megatron.given import Arguments
from planner.frameworks.megatron.model_args import environment_in, is_model_args, options_in
from planner.frameworks.megatron.primus import arguments_in, is_primus
from planner.frameworks.shell.script import options_of, program_options

_TELLING: Final = (
    "--num-layers",
    "--hybrid-layer-pattern",
    "--tensor-model-parallel-size",
    "--micro-batch-size",
)
# Words of torchrun and of other starters, which are not the program's.
_STARTERS: Final = frozenset((
    "--account", "--chdir", "--comment", "--constraint", "--container-env", "--container-image",
    "--container-mount-home", "--container-mounts", "--container-name", "--container-save", "--container-workdir",
    "--cpu-bind", "--cpus-per-task", "--dependency", "--error", "--exclude", "--exclusive", "--export",
    "--gpu-bind", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gres", "--job-name", "--kill-on-bad-exit",
    "--label", "--local-ranks-filter", "--log-dir", "--master-addr", "--master-port", "--master_addr",
    "--master_port", "--max-restarts", "--max_restarts", "--mem", "--mem-bind", "--mpi", "--nnodes",
    "--no-container-mount-home", "--no-kill", "--node-rank", "--node_rank", "--nodelist", "--nodes",
    "--nproc-per-node", "--nproc_per_node", "--ntasks", "--ntasks-per-node", "--output", "--overlap", "--partition",
    "--qos", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv_backend", "--rdzv_endpoint", "--rdzv_id",
    "--redirects", "--reservation", "--role", "--segment", "--signal", "--standalone", "--tee", "--time",
    "--unbuffered",
))  # fmt: skip


class Stated(NamedTuple):
    """What files state: the program's arguments, all options, variables and the scripts' text; of a Primus preset its
    notes and adapters."""

    arguments: Arguments
    options: list[tuple[str, ...]]
    variables: dict[str, str]
    text: str
    preset: bool
    notes: list[str]
    adapters: Adapters | None


def stated_in(files: Mapping[str, str]) -> Stated:
    """The arguments in one or several scripts, tables and presets. Raises `InputError` where there are none."""
    # in order, so that a file of settings given before a script fills its variables
    tables = {name: text for name, text in files.items() if is_model_args(name, text)}
    presets = {name: text for name, text in files.items() if is_primus(name, text)}
    text = "\n".join(text for name, text in files.items() if name not in {**tables, **presets})
    options, variables = options_of(text)
    own = [option for option in program_options(text, _TELLING) if option[0] not in _STARTERS]
    for name, table in tables.items():
        variables = environment_in(table, name) | variables
        own = [*options_in(table, name, variables), *own]
    said, adapters = list[str](), None
    for name, preset in presets.items():
        stated, notes, adapters = arguments_in(preset, name, variables)
        own, said = [*stated, *own], [*said, *notes]
    arguments = Arguments(own)
    if not any(arguments.has(name) for name in _TELLING):
        must = "Megatron-LM arguments must be present (--num-layers, --tensor-model-parallel-size, ...)"
        raise InputError(must, ", ".join(files), "give the script or the list of arguments")
    return Stated(arguments, options, variables, text, bool(presets), said, adapters)
