"""What an answer assumes of model, cluster, job, stack and run, and what it leaves out, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.dialect import option
from planner.report.words.template import Words, amount, counted
from planner.spec.findings import Finding
from planner.units import format_bandwidth, format_count

_PER_DAY: Final = 86400.0


def _batch(found: Finding) -> str:
    """A batch and its tokens: below a million, all of them."""
    batch, seq_len = amount(found, "batch", int), amount(found, "seq_len", int)
    tokens = batch * seq_len
    whole = format_count(tokens).replace(" ", "")
    size = f"{tokens / 1e6:.3g}M" if 1e6 <= tokens < 9.995e8 else whole
    said = f"{tokens:,}" if tokens < 1e6 else size
    return f"{counted(batch, 'sequence', 'sequences')}, {said} token{'s' * (tokens != 1)}"


_BASIS: Final[Mapping[str, str]] = {
    "tokens": "asked for as tokens, rounded to a legal size",
    "usual": "about 4M tokens, rounded to a legal size",
    "degrees": "more than 4M tokens, which the named degrees do not divide, rounded to a legal size",
    "nearest": "the nearest to 4M tokens that is legal here",
    "chosen": "about 4M tokens",
}


def _held_batch(found: Finding) -> str:
    values = found.values
    if "seq_len" not in values:
        return (
            f"global batch held at {counted(amount(found, 'batch', int), 'sequence', 'sequences')}, as given"
        )
    what = f"{values['asked']} asked for" if "asked" in values else "about 4M tokens"
    over = " or ".join(f"{devices:,}" for devices in amount(found, "sizes", list))
    return f"global batch held at {_batch(found)} ({what}{f', rounded to divide over {over} devices' if over else ''})"


_TARGETS: Final = {"all-linear": "every dense linear layer", "qkv": "q, k and v"}


def _adapters(found: Finding) -> str:
    values = found.values
    bits = amount(found, "bits", int)
    where = _TARGETS.get(str(values["targets"]), "the projections of attention")
    read = "" if bits >= 16 else ", dequantised before every GEMM that reads them"
    return f"LoRA of rank {values['rank']} on {where}, weights frozen in {bits} bits{read}"


def _expert_loads(found: Finding) -> str:
    values = found.values
    busiest = zip(amount(found, "degrees", list), amount(found, "imbalances", list), strict=True)
    said = ", ".join(f"{factor:.2f} at ep {ep}" for ep, factor in busiest)
    return (
        f"expert loads {values['loads']}, {values['replicas']} replicas of {values['experts']} experts "
        "placed as evenly "
        f"as can be: the busiest rank has this many times the mean: {said}"
    )


_FP32: Final[Mapping[str, str]] = {
    "transformer_engine": "as TF32: those of Transformer Engine always, PyTorch's own only where it is allowed to",
    "pytorch": "as TF32, which PyTorch does only where it is allowed to",
}
_IDLE: Final[Mapping[str, str]] = {
    "precision": " changes nothing under {}",
    "dense": " changes nothing of a dense model",
    "experts": " changes nothing of experts without gated SiLU or quick GELU",
    "liger": ": Liger has no kernels for layers of {}",
    "indexers": " changes nothing of a model without sparse attention",
}
_NO_FLASH: Final[Mapping[str, str]] = {
    "capability": "flash kernels need compute capability 8.0 (Ampere) or more",
    "fp32": "Transformer Engine's flash and cuDNN kernels take 16 and 8 bits, not fp32",
    "latent": "this release has no flash kernel for latent attention on Blackwell",
}


def _fp32_products(found: Finding) -> str:
    none = f"in FP32: {found.values['accelerator']} has no TF32"
    return f"fp32 GEMMs run {_FP32.get(str(found.values['by']), none)}"


def _idle_option(found: Finding) -> str:
    return f"+{found.values['option']}" + _IDLE[str(found.values["why"])].format(found.values.get("of"))


def _wide_heads(found: Finding) -> str:
    values = found.values
    why = f"flash kernels take heads {values['most']} wide at most, the model has some of {values['width']}"
    if values["one_kernel"]:
        return f"attention runs in PyTorch's memory-efficient kernel: {why}"
    return f"attention of the wide heads keeps its scores, only the softmax fused: {why}"


def _blocks(found: Finding) -> str:
    prefers = " and prefers fp8_mx there" if found.values["prefers_mx"] else ""
    return (
        f"{found.values['precision']} on {found.values['accelerator']}: Transformer Engine emulates it "
        "with products of "
        f"MXFP8{prefers}; rewriting the scales is not counted"
    )


def _latencies(found: Finding) -> str:
    hops = zip(amount(found, "kinds", list), amount(found, "latencies", list), strict=True)
    return f"assumed link latency per hop: {', '.join(f'{kind} {hop * 1e6:g} µs' for kind, hop in hops)}"


def _fast_nic(found: Finding) -> str:
    what = {"device": "the speed of one device"}.get(str(found.values["of"]), str(found.values["of"]))
    bandwidth, fastest = amount(found, "bandwidth", float), amount(found, "fastest", float)
    return (
        f"{what} is {bandwidth * 8e-9:,g} Gbit/s, taken as given although no NIC sends more than {fastest * 8e-9:g}: "
        "correct it if bits are meant instead of bytes, or a whole node's NICs together"
    )


def _fabric_speed(found: Finding) -> str:
    device, node = (8e-9 * amount(found, name, float) for name in ("bandwidth", "node_bandwidth"))
    return f"{found.values['fabric']} of {device:g} Gbit/s a device, {node:,g} Gbit/s a node"


def _node_sends(found: Finding) -> str:
    values = found.values
    speed = amount(found, "bandwidth", float) * 8e-9
    return (
        f"a node sends {speed:g} Gbit/s, as a typical {values['accelerator']} node on {values['fabric']} does"
    )


def _compiled(found: Finding) -> str:
    left = (
        ", and what runs on GPUs fitted of its kernels is left out"
        if found.values["fitted_elsewhere"]
        else ""
    )
    program = f"{found.values['stack']} on {found.values['accelerator']} is one program"
    return f"{program}: its layers are not launched one by one{left}"


def _launched_otherwise(found: Finding) -> str:
    values = found.values
    how = f"planner export --framework-version {values['version']}"
    return f"launched with {values['framework']} {values['version']} ({how}), not {values['usual']}: {_refused(found)}"


def _refused(found: Finding) -> str:
    return ", given ".join(str(found.values[part]) for part in ("must", "given") if part in found.values)


def _defaults(found: Finding) -> str:
    axes = zip(amount(found, "axes", list), amount(found, "set", list), strict=True)
    return "defaults used: " + ", ".join(f"{axis}={value}" for axis, value in axes)


_LEAST: Final = {
    "cost": "cost of the run", "energy": "energy of the run", "gpus": "devices that hold the job",
}  # fmt: skip


def size_chosen(found: Finding) -> str:
    """Which of several sizes an objective takes."""
    sizes = ", ".join(f"{devices:,}" for devices in amount(found, "sizes", list))
    least = _LEAST[str(found.values["objective"])]
    return f"{found.values['devices']:,} devices: of the sizes tried ({sizes}) the one with least {least}"


def _span(seconds: float) -> str:
    """A time as it would be written by hand: 5 s, 10 min, 24 h."""
    units = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds >= size or unit == "s")
    return f"{seconds / size:.3g} {unit}"


def _interruptions(found: Finding) -> str:
    def daily(name: str) -> str:
        return f"{amount(found, name, float) * _PER_DAY:.3g} a day"

    def span(name: str) -> str:
        return _span(amount(found, name, float))

    every = f"for every {found.values['per_devices']} devices"
    text = (
        f"interruptions: {daily('hardware_failures')} {every} and {daily('software_stops')} for the job, "
        f"{span('detection_time')} to notice and {span('restart_time')} to restart, then reading the checkpoint"
    )
    if "spot_preemptions" in found.values:
        text += f"; preempted {daily('spot_preemptions')} {every}, {span('spot_wait')} to get another"
    return text


def _checkpoints(found: Finding) -> str:
    values = found.values
    per_node, limit = (
        format_bandwidth(amount(found, n, float)) for n in ("bandwidth_per_node", "bandwidth_limit")
    )
    return (
        f"checkpoints: {values['writing']}, {per_node} per node up "
        f"to {limit}, "
        f"{_span(amount(found, 'overhead', float))} overhead; {values['full_kept']:.0f} full states "
        "kept, weights every "
        f"{_span(amount(found, 'weights_interval', float))}"
    )  # fmt: skip


def _site(found: Finding) -> str:
    values = found.values
    carbon, price = amount(found, "grid_carbon", float), amount(found, "electricity_price", float)
    return f"site: PUE {values['pue']:g}, {carbon * 3.6e9:.0f} g CO2 per kWh, electricity ${price * 3.6e6:.3g} per kWh"


def _owned(found: Finding) -> str:
    values = found.values
    prices = zip(amount(found, "accelerators", list), amount(found, "prices", list), strict=True)
    bought = ", ".join(f"${price:,.0f}" + (f" ({name})" if name else "") for name, price in prices)
    years = amount(found, "depreciation_time", float) / (365.25 * _PER_DAY)
    return (
        f"owned hardware: {bought} per device with its network, over {years:.2g} years at "
        f"{values['utilisation']:.0%} use, ${values['staff_cost']:,.0f} staff and "
        f"{values['maintenance']:.1%} upkeep a year"
    )


def _moved(found: Finding) -> str:
    v = found.values
    return (
        f"on {v['devices']:,} {v['accelerator']} of {v['cluster']}; planned for {v['planned_devices']:,} "
        f"{v['planned_accelerator']} of {v['planned_cluster']}"
    )


WORDS: Final[Mapping[str, Words]] = {
    # the job
    "settings_unused": lambda found: (
        f"{', '.join(amount(found, 'settings', list))}: not used without the length of the run ({option('tokens')})"
    ),
    "usual_length": "sequence length {seq_len:,} (the model's context or {usual:,}, the smaller)",
    "beyond_context": "sequences of {seq_len} tokens although the config names a context of {context}",
    "global_batch": lambda found: f"global batch {_batch(found)} ({_BASIS[str(found.values['basis'])]})",
    "held_batch": _held_batch,
    "batches_of_sizes": ("global batch of about 4M tokens as suits a size, {least:,} to {most:,} sequences"),
    "default_stack": "stack {stack} (default)",
    "calibrated": "calibrated with {with}",
    "adapters": _adapters,
    "packed_documents": "documents of {mean:g} tokens packed into {seq_len:,}, each attending to itself",
    "rotated_by_one_kernel": (
        "packed documents rotated by one kernel, as Megatron-LM does by default and Megatron-Bridge with "
        "model.apply_rope_fusion=true; without it, say {change}"
    ),
    "ordered_by_one_kernel": (
        "packed documents that context parallelism exchanges by all-to-all put in order by one kernel, as Transformer "
        "Engine 2.18 does; with 2.11 to 2.17, say {change}"
    ),
    "padded_sequences": (
        "sequences of {mean:g} tokens on average and at most {seq_len:,}, lengths exponential, padded "
        "to the longest of "
        "the micro-batch: memory holds the longest, tokens/s counts no padding"
    ),
    "expert_loads": _expert_loads,
    "fp32_products": _fp32_products,
    "no_bf16": "fp16: {accelerator} has no bf16",
    # the model
    "config_field": "{field} = {value} ({why})",
    "default_field": "{field} = {value}",
    "no_mtp_known": "no multi-token prediction: planner knows no such modules of this model",
    # the stack
    "idle_option": _idle_option,
    "no_flash_attention": lambda found: (
        f"attention keeps its scores, only the softmax fused: {_NO_FLASH[str(found.values['why'])]}"
    ),
    "wide_heads": _wide_heads,
    "emulated_blocks": _blocks,
    "written_for_gpus": "{stack} runs on {accelerator} as on a GPU, for which its release was written",
    "fused_loss": (
        "the fused loss is told apart from an unfused one in memory, not in time: 24 bytes a logit are counted of "
        "either, where Transformer Engine's kernel moves 10 in 16 bits"
    ),
    "deepep_of_primus": (
        "DeepEP on {accelerator} is Primus-Turbo's, which Primus puts in (use_turbo_deepep), not Megatron-LM alone; "
        "what it copies and launches is taken as measured on H100"
    ),
    "one_program": _compiled,
    "torus_links_all_used": (
        "collectives take all links of the axes of the torus that their group spans, both ways; those of several "
        "groups at once are not slowed down by each other"
    ),
    # the cluster
    "shared_bridges": (
        "{devices} devices of a node share PCIe as on a usual host; hosts differ: in an all-reduce of 8 devices three "
        "reached 0.41 to 0.44 of the rate of a card's link, a fourth 0.05; planner calibrate with --nccl "
        "all_reduce.txt, "
        "or with --profile of planner probe under torchrun, tells what yours does"
    ),
    "even_domains": "{devices} devices fill the {tier} domains of {domain} evenly, {each} in each",
    "joined_slice": "{devices} devices of a slice are joined as {torus}",
    "non_blocking_fabric": "the fabric between nodes does not block",
    "unsourced_figures": lambda found: (
        f"figures of the cluster file that name no source: {', '.join(amount(found, 'fields', list))}"
    ),
    "nominal_latencies": _latencies,
    "beyond_any_nic": _fast_nic,
    "fabric_speed": _fabric_speed,
    "bridges_not_modelled": (
        "NVLink bridges of {bridged} devices are not modelled: PCIe joins all {devices}"
    ),
    "typical_fabric": "the fabric is {fabric}, as in a typical {accelerator} node",
    "typical_node_sends": _node_sends,
    # the configuration
    "layers_as_the_stack_deals": (
        "layers assigned to pipeline ranks as the stack does (planner plan solves the split; layout= states one)"
    ),
    "defaults_used": _defaults,
    "evaluated_again": "configuration {place} of {plan}, evaluated again",
    "moved": _moved,
    "follows_devices": (
        "dp: {dp} instead of {planned_dp}; micro-batches per step: {num_microbatches} instead of "
        "{planned_num_microbatches}, for the same global batch"
    ),
    "no_launch_files": lambda found: (
        f"planner export cannot write launch files for this plan ({found.values['framework']}): {_refused(found)}"
    ),
    "launched_otherwise": _launched_otherwise,
    "size_chosen": size_chosen,
    # several sizes or clusters
    "batch_of_each_size": (
        f"the global batch is planner's choice at each size; {option('global_batch')} holds one at all of them"
    ),
    "batch_fixed": "the global batch is fixed; sizes whose dp cannot divide it are rejected",
    "spare_nodes_held": (
        "{held} spare nodes are held and paid for; at this rate {needed} would be enough 99 % of the time"
    ),
    "devices_given": (
        "the number of {noun}s is given, so each cluster's fastest plan is also its cheapest and takes least energy"
    ),
    # the run
    "interruptions": _interruptions,
    "checkpoints": _checkpoints,
    "site": _site,
    "owned_hardware": _owned,
    "assumptions_given": lambda found: f"given: {', '.join(amount(found, 'names', list))}",
    "assumptions_unverified": (
        "{number} numbers of the run are unverified (no source): planner assumptions lists every one"
    ),
    # what is left out
    "left_out_interruptions": "queueing, evaluation and planned maintenance: they add to the days of a run",
    "left_out_congestion": "network congestion from other jobs, and a pathological network state",
    "left_out_muon": "the GEMMs of Muon's update",
    "left_out_loads": (
        f"experts that get more tokens than others, unless their loads are given ({option('expert_loads')})"
    ),
    "left_out_lengths": (
        f"varying sequence lengths and padding, unless their mean is given ({option('mean_len')})"
    ),
    "left_out_loader": "the data loader",
    "left_out_schedules": "pipeline schedules that the stack does not run (`planner schedule` simulates them)",
    "left_out_graphs": "what the driver keeps of CUDA graphs outside the allocator",
    "left_out_buffers": "buffers registered with {library}, and its settings by the environment",
}
