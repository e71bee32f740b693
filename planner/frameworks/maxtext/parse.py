"""What do MaxText's settings say? The mesh, the batch, what is kept of a layer, numbers, the model.

Left out: meshes and rules of a user's own, exchanges of context parallelism other than by all-gather, integers of 8
bits, DiLoCo and adapters, all refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from planner.catalog.stack_options import PURE_BF16
from planner.dialect import option
from planner.errors import FileInputError, InputError, as_written
from planner.frameworks.fields import Settings
from planner.frameworks.framework import ParsedConfig, StackSetting
from planner.frameworks.maxtext.given import given_in
from planner.frameworks.maxtext.mesh import ALIKE, ORDER, REST, UNKNOWN, UNSTATED, Mesh
from planner.frameworks.maxtext.model import parsed_model
from planner.frameworks.maxtext.names import (
    EXACT,
    IN_BLOCKS,
    KEPT,
    LAYER_INPUT,
    NOT_ACCUMULATED,
    OFFLOADING,
    OPTIMIZERS,
    PLACEABLE,
    QUANTIZED,
    VERSION,
    Repeated,
)
from planner.frameworks.maxtext.slices import ASSIGNED, SPLIT, Stated
from planner.frameworks.options import not_costed, option_table, unknown_options
from planner.spec.config import (
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMETERS,
    Recompute,
    Schedule,
    recomputed_modules,
)
from planner.spec.job import Optimizer
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack.losses import Chunked

_PER_DEVICE: Final = 12.0  # of configs/base.yml
_LAYERS: Final = 16
_LENGTH: Final = 2048
_GATHER: Final = "all_gather"
_REFUSED: Final = {
    "enable_diloco": "training whose copies meet every so many steps (DiLoCo)",
    "lora.enable_lora": f"adapters: name them to planner estimate with {option('lora_rank')}",
    "use_dpo": "preference optimization",
    "use_indexer": "sparse attention by an indexer",
    "use_multimodal": "models with encoders",
    "moba": "attention to chosen blocks (MoBA)",
}


@dataclass(frozen=True)
class _Batch:
    """Micro-batches of a rank, their size, and sequences of a step."""

    micro: int
    number: int
    whole: int


def parse(files: Mapping[str, str]) -> ParsedConfig:
    """What a YAML file and a command line say. Raises `FileInputError` or `InputError`."""
    given = given_in(files)
    s = Settings(given.values, given.file)
    _require_taken(s)
    _require_modelled(s)
    model, missing = parsed_model(s)
    mesh = _mesh(s)
    plain = ParsedConfig(
        framework="maxtext",
        version=VERSION,
        axes={},
        seq_len=s.count("max_target_length", _LENGTH),
        precision=_precision(s),
        model=model,
        missing=missing,
        optimizer=_optimizer(s),
        unknown=unknown_options("maxtext", VERSION, given.values),
        notes=(*given.notes, *_notes(s)),
        loss=_loss(s),
        stack_options=(PURE_BF16,) if s.text("weight_dtype", "float32") == "bfloat16" else (),
        stack_settings=_settings(s),
        starts=_stated(s, mesh).on,
    )
    if mesh.devices is not None:
        return _placed(plain, s, mesh, model)
    return replace(
        plain,
        axes=_alone(mesh),
        placed=lambda devices, domain: _placed(plain, s, mesh.on(devices, domain), model),
    )


def _require_taken(s: Settings) -> None:
    """Raise `FileInputError` for a word that is none of a setting's (configs/types.py)."""
    table = option_table("maxtext", VERSION)
    for name, value in s.values.items():
        choices = table[name].choices if name in table else ()
        word = value if isinstance(value, str) else as_written(value)
        if not choices or value is None or word in choices or word.lower() == "none" or "$" in word:
            continue
        must = "must be one of " + ", ".join(choice for choice in choices if choice)
        raise FileInputError(s.file, must, word[:60], field=name)


def _require_modelled(s: Settings) -> None:
    """Raise `FileInputError` for what planner does not model, where it changes what a step computes."""
    for name, what in _REFUSED.items():
        if s.flag(name):
            raise FileInputError(s.file, f"planner does not model {what}", "true", field=name)
    for name, default in (("custom_mesh_and_rule", ""), ("custom_mesh", ""), ("mesh_axes", "")):
        if s.values.get(name) not in (None, default, []):
            must = "planner reads the mesh of configs/base.yml and its rules"
            raise FileInputError(s.file, must, str(s.values[name])[:80], field=name)
    for axis in UNKNOWN:
        for net in ("ici", "dcn"):
            name = f"{net}_{axis}_parallelism"
            if s.count(name, 1, least=-1) != 1:
                must = f"must be 1: planner reads the axes {', '.join(reversed(ORDER))}"
                raise FileInputError(s.file, must, str(s.values[name])[:40], field=name)
    if s.count("mtp_num_layers", 0, least=0):
        must = "planner reads no multi-token prediction here"
        raise FileInputError(s.file, must, str(s.values["mtp_num_layers"]), field="mtp_num_layers")
    layers = s.count("pipeline_parallel_layers", -1, least=-1)
    if layers != -1 and layers != s.count("base_num_decoder_layers", layers):
        must = "planner models pipelines of all layers (-1)"
        raise FileInputError(s.file, must, str(layers), field="pipeline_parallel_layers")


def _mesh(s: Settings) -> Mesh:
    """The sizes of the axes in slices and between them; the rest where the files, or what they start from, say so."""

    def size(net: str, axis: str) -> int:
        sizes = [
            s.count(f"{net}_{name}_parallelism", UNSTATED.get(f"{net}_{name}", 1), least=REST)
            for name in ALIKE.get(axis, (axis,))
        ]
        if 0 in sizes:
            raise FileInputError(s.file, "must not be 0", "0", field=f"{net}_{axis}_parallelism")
        return REST if REST in sizes else prod(sizes)

    found = [{axis: size(net, axis) for axis in ORDER} for net in ("ici", "dcn")]
    for sizes in found:
        if list(sizes.values()).count(REST) > 1:
            free = ", ".join(axis for axis, one in sizes.items() if one == REST)
            raise InputError("one axis alone may take the rest (-1)", free, "write the size of the others")
    return Mesh(*found)


def _stated(s: Settings, mesh: Mesh) -> Stated:
    """What the files say of the devices they are for."""
    names = {axis: f"ici_{axis}" for axis in ASSIGNED}
    ici = {
        axis: s.count(f"{name}_parallelism", UNSTATED.get(name, 1), least=REST)
        for axis, name in names.items()
    }
    between = mesh.dcn.values()
    slices = 0 if REST in between else prod(between)
    checkpoints = s.flag("enable_checkpointing", True)
    return Stated(ici, slices, s.flag(SPLIT), s.text("hardware", "tpu"), checkpoints)


def _alone(mesh: Mesh) -> dict[str, int]:
    """Degrees that are known without the devices."""
    degrees = {"tp": "tensor", "cp": "context", "pp": "pipeline"}
    sizes = {of: (mesh.ici[axis], mesh.dcn[axis]) for of, axis in degrees.items()}
    return {of: prod(both) for of, both in sizes.items() if REST not in both}


def _placed(plain: ParsedConfig, s: Settings, mesh: Mesh, model: ModelSpec | None) -> ParsedConfig:
    """What the settings say on that mesh, of which every axis has a size."""
    size = mesh.sizes
    tp, cp, pp, ep = (size[axis] for axis in ("tensor", "context", "pipeline", "expert"))
    dp, group = size["data"] * size["fsdp"] * ep, size["fsdp"] * cp * ep
    states = s.flag("shard_optimizer_over_data") and size["data"] > 1
    batch = _batch(s, tp * cp * pp * dp, dp, pp)
    recompute, modules, said = _recomputation(s, Repeated.of(model))
    layers = model.num_layers if model is not None else s.count("base_num_decoder_layers", _LAYERS)
    moe = model.is_moe if model is not None else s.count("num_experts", 1) > 1
    sharded = group > 1
    axes = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": tp if moe else 1, "sp": int(tp > 1),
        "vpp": _repeats(s, layers, pp), "micro_batch": batch.micro, "num_microbatches": batch.number,
        "zero": 3 if sharded else int(states), "hsdp": group if sharded and size["data"] > 1 else 0,
        "recompute": int(recompute), "recompute_layers": -(-layers // pp) if recompute is Recompute.FULL else 0,
        "recompute_modules": modules, "schedule": int(Schedule.GPIPE if pp > 1 else Schedule.ONE_F_ONE_B),
        "offload": _offload(s),
    }  # fmt: skip
    notes = [*plain.notes, *said]
    if states and sharded:
        notes.append(
            "shard_optimizer_over_data: states of weights that are sharded already are modelled in each copy"
        )
    accumulated = s.count("gradient_accumulation_steps", 1)
    if pp > 1 and accumulated > 1:
        notes.append(
            f"a step runs the pipeline {accumulated} times, each with {batch.number // accumulated} micro-batches and "
            "a bubble of its own, modelled as one run"
        )
    if cp > 1:
        notes += _context(s)
    _require_start(s, accumulated)
    return replace(plain, axes=axes, devices=tp * cp * pp * dp, global_batch=batch.whole, notes=tuple(notes))


def _batch(s: Settings, devices: int, dp: int, pp: int) -> _Batch:
    """As MaxText takes sequences apart (configs/types.py calculate_global_batch_sizes). Raises `FileInputError`."""
    each = s.number("per_device_batch_size") if s.has("per_device_batch_size") else _PER_DEVICE
    sequences = int(devices * each)
    parts = 1
    if pp > 1:
        usual = pp * (2 if s.flag("pipeline_delay_activation_forwarding") else 1)
        parts = s.count("num_pipeline_microbatches", -1, least=-1)
        parts = parts if parts > 0 else usual
    if sequences < 1 or sequences % (dp * parts):
        over = f"data x fsdp x expert, {dp}" + (f", x {parts} micro-batches" if parts > 1 else "")
        must = f"per_device_batch_size x devices must be a multiple of {over}"
        given = f"{each:g} x {devices} = {sequences}"
        raise FileInputError(s.file, must, given, field="per_device_batch_size")
    accumulated = s.count("gradient_accumulation_steps", 1)
    return _Batch(sequences // (dp * parts), parts * accumulated, sequences * accumulated)


def _repeats(s: Settings, layers: int, pp: int) -> int:
    """Chunks of a rank: repeats of the circular pipeline."""
    if pp == 1:
        return 1
    repeats = s.count("num_pipeline_repeats", -1, least=-1)
    each = s.count("num_layers_per_pipeline_stage", 1)
    if repeats < 1:
        repeats, over = divmod(layers, pp * each)
        if over or not repeats:
            must = f"stages x layers of a stage, {pp} x {each}, must divide the layers"
            raise FileInputError(s.file, must, str(layers), field="num_layers_per_pipeline_stage")
    elif repeats * each * pp != layers:
        must = f"stages x repeats x layers of a stage, {pp} x {repeats} x {each}, must be the layers"
        raise FileInputError(s.file, must, str(layers), field="num_pipeline_repeats")
    return repeats


def _recomputation(s: Settings, repeated: Repeated) -> tuple[Recompute, int, list[str]]:
    """What is done again of every layer, and how the policy differs from what planner counts."""
    name = s.text("remat_policy", "full")
    if name.lower() == "none":  # null to pyconfig.py, and layers/nnx_decoders.py checkpoints without one
        said = "remat_policy none checkpoints without a policy: all layers are recomputed"
        return Recompute.FULL, 0, [said]
    if name == "custom":
        places = {tensor: s.text(tensor, "remat") for tensor in PLACEABLE}
        kept = frozenset(tensor for tensor, place in places.items() if place == "device")
        hosted = [tensor for tensor, place in places.items() if place == "offload"]
        if _inputs_hosted(s):  # and all that is kept with them
            recompute, modules = repeated.without(kept.union(hosted))
            here = f"{', '.join(sorted(kept))}, which the policy keeps on the device, modelled on the host"
            return recompute, modules, [here] * bool(kept)
        recompute, modules = repeated.without(kept)
        what = ", ".join(sorted(kept)) or "nothing"
        host = f"{', '.join(hosted)}, which the policy keeps on the host, modelled as recomputed, which is slower"
        own = f"remat_policy custom that keeps {what}: {_words(recompute, modules)}"
        return recompute, modules, [own, *[host] * bool(hosted)]
    if name not in KEPT:
        must = "must be one that planner models: " + ", ".join((*KEPT, "custom"))
        raise FileInputError(s.file, must, name[:60], field="remat_policy")
    recompute, modules = repeated.without(KEPT[name])
    if name in OFFLOADING:
        away = f"remat_policy {name}: what it keeps on the host is modelled as recomputed, which is slower"
        return recompute, modules, [away]
    return recompute, modules, [] if name in EXACT else [f"remat_policy {name}: {_words(recompute, modules)}"]


def _inputs_hosted(s: Settings) -> bool:
    """Do layers' inputs, which no policy makes again, wait on the host?"""
    return s.text("remat_policy", "full") == "custom" and s.text(LAYER_INPUT, "device") == "offload"


def _words(recompute: Recompute, modules: int) -> str:
    named = ", ".join(recomputed_modules(modules))
    return f"modelled as recomputing {'all of every layer' if recompute is Recompute.FULL else named}"


def _context(s: Settings) -> list[str]:
    """Notes on context parallelism. Raises `FileInputError` for an exchange that is not modelled."""
    kind = s.text("context_parallel_strategy", _GATHER).lower()
    if kind != _GATHER:
        must = f"planner models {_GATHER} of MaxText's context parallelism"
        raise FileInputError(s.file, must, kind[:40], field="context_parallel_strategy")
    if s.flag("context_parallel_load_balance", True):
        return []
    return ["context_parallel_load_balance false: the last rank attends to most, modelled as balanced"]


def _require_start(s: Settings, accumulated: int) -> None:
    """Raise `FileInputError` for what MaxText refuses when it starts (configs/types.py)."""
    name = s.text("quantization", "")
    if accumulated > 1 and name in NOT_ACCUMULATED:
        must = (
            "float8 by delayed scaling does not accumulate gradients: gradient_accumulation_steps must be 1"
        )
        raise FileInputError(s.file, must, str(accumulated), field="gradient_accumulation_steps")
    cudnn = s.text("hardware", "tpu") == "gpu" and s.text("attention", "") == "cudnn_flash_te"
    if cudnn and s.flag("packing", True) and s.count("max_segments_per_seq", -1, least=-1) <= 0:
        must = "must be set with cudnn_flash_te and packing, which is on unless the files say packing: false"
        raise FileInputError(s.file, must, "-1", field="max_segments_per_seq")


def _precision(s: Settings) -> Precision:
    """The recipe of products. Raises `FileInputError` for one that planner does not have."""
    name = s.text("quantization", "")
    if name:
        if name in QUANTIZED:
            return QUANTIZED[name]
        must = "must be one that planner models: " + ", ".join(QUANTIZED)
        raise FileInputError(s.file, must, name[:40], field="quantization")
    kinds = {"bfloat16": Precision.BF16, "float32": Precision.FP32, "float16": Precision.FP16}
    dtype = s.text("dtype", "bfloat16")
    if dtype not in kinds:
        raise FileInputError(s.file, "must be one of " + ", ".join(kinds), dtype[:40], field="dtype")
    return kinds[dtype]


def _optimizer(s: Settings) -> Optimizer:
    name = s.text("opt_type", "adamw")
    if name not in OPTIMIZERS:
        raise FileInputError(s.file, "must be one of " + ", ".join(OPTIMIZERS), name[:40], field="opt_type")
    return OPTIMIZERS[name]


def _offload(s: Settings) -> int:
    states = OFFLOAD_OPTIMIZER if s.flag("optimizer_memory_host_offload") else 0
    states |= OFFLOAD_PARAMETERS if s.flag("parameter_memory_host_offload") else 0
    return states | (OFFLOAD_ACTIVATIONS if _inputs_hosted(s) else 0)


def _settings(s: Settings) -> tuple[StackSetting, ...]:
    """Rows of experts that drop tokens (without sparse_matmul)."""
    if not _drops(s):
        return ()
    return (StackSetting("capacity_factor", "kernels", "expert_padding", s.number("capacity_factor")),)


def _loss(s: Settings) -> Chunked | None:
    """In parts, whose logits are made again (utils/vocabulary_tiling.py _chunked_cross_entropy_loss_bwd,
    AI-Hypercomputer/maxtext@e591f30)."""
    parts = s.count("num_vocab_tiling", 1)
    return Chunked(number=parts, makes_again=True) if parts > 1 else None


def _drops(s: Settings) -> bool:
    return not s.flag("sparse_matmul", True) and s.has("capacity_factor") and s.number("capacity_factor") > 0


def _notes(s: Settings) -> list[str]:
    """What was read but is not modelled."""
    said = [f"{name}: {what}" for name, what in not_costed("maxtext").items() if s.flag(name)]
    if s.flag("pipeline_delay_activation_forwarding"):
        said.append("pipeline_delay_activation_forwarding: its bubble is twice as long as modelled")
    if s.has("logical_axis_rules") and s.values["logical_axis_rules"]:
        said.append("logical_axis_rules: not read, weights and activations lie as configs/base.yml has them")
    if s.text("mu_dtype", "") == "bfloat16" and s.text("weight_dtype", "float32") == "float32":
        said.append("mu_dtype bfloat16: the first moment is modelled in fp32, 2 bytes a parameter more")
    if s.text("grad_dtype", "float32") != "float32":
        said.append(f"grad_dtype {s.text('grad_dtype', '')[:20]}: gradients are modelled in fp32")
    if s.count("num_experts", 1) > 1 and not s.flag("sparse_matmul", True) and not _drops(s):
        said.append(
            "sparse_matmul false without capacity_factor: every expert computes every token, which is slower"
        )
    if s.text("model_name", "") in IN_BLOCKS and s.flag("scan_layers", True):
        said.append(
            "scan_layers: six layers are recomputed together, modelled one by one, which takes less memory"
        )
    if s.number("dropout_rate") > 0:
        said.append("dropout_rate: dropout is not modelled here")
    if (limit := s.number("expansion_factor_real_data")) > 0 and limit != 1:
        said.append("expansion_factor_real_data: the data loader is not modelled")
    return said
