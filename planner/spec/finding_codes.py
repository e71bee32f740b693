"""Which findings are there, and in which units are their values?

A code never changes its meaning; a value that not every finding of a code has may be absent. Units are planner's inner
ones: "1" counts or is a share, "name" is a word of planner's own, "configuration" a line such as "tp8 pp4 dp16", "said"
a sentence of a rule, an option or an error. Left out: words (`planner.report.words`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXT: Final = "text"  # a sentence of an older file

_FITS: Final = {"configuration": "configuration"}  # what fits with a change

_HOST: Final = {"host_states": "bytes", "host_activations": "bytes", "host_checkpoint_copy": "bytes"}

CODES: Final[Mapping[str, Mapping[str, str]]] = {
    TEXT: {},
    # what stands at the head
    "best": {
        **_FITS, **_HOST, "step_time": "s", "step_time_low": "s", "step_time_high": "s", "mfu": "1",
        "tokens_per_second_per_device": "tokens/s", "verdict": "name", "rank": "1", "free": "bytes", "limit": "bytes",
        "kept_back": "bytes", "host_over": "bytes", "host_limit": "bytes", "lora_rank": "1", "frozen_bits": "1",
        "days": "days", "gap": "1", "ending": "name",
    },
    "none_legal": {"candidates": "1", "axes": "name", "pinned": "name", "other_chunks": "1"},
    "none_fits": {"candidates": "1", "axes": "name", "pinned": "name"},
    "not_legal": _FITS,
    "recommended": {**_FITS, "place": "1", "slower": "1", "more_free": "bytes", "nearer": "name"},
    # what would make something legal
    "rule_of_the_job": {"reason": "said", "hint": "said"},
    "axis_free": {"axis": "name", **_FITS},
    "axis_values": {"axis": "name", "values": "name", "asked": "name"},
    "legal_batches": {"batches": "sequences"},
    "nothing_makes_legal": {},
    # why there is no answer
    "refused": {"must": "said", "given": "said", "hint": "said"},
    "no_legal_split": {"devices": "1"},
    "nothing_fits": {},
    # what would make something fit
    "least_memory": {**_FITS, **_HOST, "of_those_seen": "1", "over": "bytes", "host_over": "bytes"},
    "changes_not_tried": {},
    "nothing_makes_fit": {},
    "checkpoint_not_copied": _FITS,
    "more_devices": {**_FITS, "devices": "1", "batch": "sequences", "step": "1"},
    "own_pipeline": _FITS,
    "offload": _FITS,
    "shorter_sequences": {
        **_FITS, "longest": "tokens", "mean": "tokens", "packed": "1", "holds_no_more": "1",
    },
    "gradients_16": _FITS,
    "optimizer": _FITS,
    "no_headroom": _FITS,
    # what would make it faster
    "better_batch": {
        "configuration": "configuration", "step_time": "s", "batch": "sequences", "asked": "sequences",
        "tp": "1", "domain": "1", "tokens_per_device": "tokens", "asked_tokens_per_device": "tokens",
    },
    "untried_option": {
        "configuration": "configuration", "precision": "name", "options": "name", "meanings": "said",
        "needs": "name", "numerics": "1",
    },
    "tilelang_kernels": {},
    "fewer_devices": {
        "devices": "1", "step_time": "s", "batch": "sequences", "asked_devices": "1", "asked_step_time": "s",
        "asked_batch": "sequences", "spare_nodes": "1",
    },
    "sooner": {
        "devices": "1", "days": "days", "others": "1", "others_days": "days", "others_more": "1",
        "quantity": "name",
    },
    # one change of a configuration
    "axes": {
        "tp": "1", "cp": "1", "pp": "1", "dp": "1", "vpp": "1", "ep": "1", "etp": "1", "micro_batch": "sequences",
        "zero": "1", "hsdp": "1", "sp": "1", "recompute": "name", "recompute_layers": "1", "cuda_graphs": "name",
        "offload": "name", "schedule": "name",
    },
    "sequence_parallelism": {"on": "1"},
    "recompute_layers": {"layers": "1", "all": "1", "least_held": "1", "most_held": "1", "cuda_graphs": "name"},
    "host_memory": {"offload": "name", "cuda_graphs": "name"},
    "growing_segments": {"setting": "name"},
    "lengths": {"longest": "tokens", "mean": "tokens", "packed": "1"},
    "batch": {"batch": "sequences"},
    "planned": {},
    "rest_as_planned": {},
    "best_with_it": {},
    "least_memory_with_it": {},
    # what more devices bring
    "size": {"devices": "1", "noun": "name"},
    "whole_cluster": {"devices": "1", "noun": "name"},
    "doublings_hardly_pay": {},
    "holds_back": {
        "cause": "name", "terms": "name", "shares": "1", "num_microbatches": "1", "pp": "1",
    },
    # what the head of an answer says of the question
    "batch_assumed": {"batch": "sequences", "speedup": "1"},
    "too_little_for_the_risk": {"configuration": "configuration", "gain": "1"},
    # what was decided by what
    "step_shares": {"terms": "name", "shares": "1", "exposed": "1"},
    "tightest_memory": {"rank": "1", "ranks": "1", "phase": "name", "term": "name", "size": "bytes"},
    "offload_time": {"least": "s", "most": "s"},
    "host_memory_needed": {**_HOST, "limit": "bytes", "over": "bytes"},
    "slow_mode": {"above": "s", "share": "1", "step_time": "s"},
    "measured_shapes": {"mean": "1", "most": "1", "outside": "1", "attention": "1", "on_another_device": "1"},
    "mfu_convention": {"indexers": "1", "frozen": "1"},
    "layers_dealt_by_framework": {"framework": "name", "layers": "1", "gain": "1"},
    "layers_recomputed_alike": {"framework": "name", "recomputed": "1", "layers": "1", "gain": "1"},
    "even_split_too_large": {},
    "balanced_lead": {"place": "1", "configuration": "configuration", "lead": "1", "undone_by": "1"},
    # what an answer assumes of the job
    "settings_unused": {"settings": "name"},
    "usual_length": {"seq_len": "tokens", "usual": "tokens"},
    "beyond_context": {"seq_len": "tokens", "context": "tokens"},
    "global_batch": {"batch": "sequences", "seq_len": "tokens", "basis": "name"},
    "held_batch": {"batch": "sequences", "seq_len": "tokens", "asked": "name", "sizes": "1"},
    "batches_of_sizes": {"least": "sequences", "most": "sequences"},
    "default_stack": {"stack": "name"},
    "calibrated": {"with": "said"},
    "adapters": {"rank": "1", "targets": "name", "bits": "1"},
    "packed_documents": {"mean": "tokens", "seq_len": "tokens"},
    "rotated_by_one_kernel": {},
    "ordered_by_one_kernel": {},
    "padded_sequences": {"mean": "tokens", "seq_len": "tokens"},
    "expert_loads": {"loads": "name", "replicas": "1", "experts": "1", "degrees": "1", "imbalances": "1"},
    "fp32_products": {"by": "name", "accelerator": "name"},
    "no_bf16": {"accelerator": "name"},
    # of the model
    "config_field": {"field": "name", "value": "name", "why": "said"},
    "default_field": {"field": "name", "value": "name"},
    "no_mtp_known": {},
    # of the stack
    "idle_option": {"option": "name", "why": "name", "of": "name"},
    "no_flash_attention": {"why": "name"},
    "wide_heads": {"most": "1", "width": "1", "one_kernel": "1"},
    "emulated_blocks": {"precision": "name", "accelerator": "name", "prefers_mx": "1"},
    "written_for_gpus": {"stack": "name", "accelerator": "name"},
    "fused_loss": {},
    "deepep_of_primus": {"accelerator": "name"},
    "one_program": {"stack": "name", "accelerator": "name", "fitted_elsewhere": "1"},
    "torus_links_all_used": {},
    # of the cluster
    "shared_bridges": {"devices": "1"},
    "even_domains": {"devices": "1", "tier": "name", "domain": "1", "each": "1"},
    "joined_slice": {"devices": "1", "torus": "name"},
    "non_blocking_fabric": {},
    "unsourced_figures": {"fields": "name"},
    "nominal_latencies": {"kinds": "name", "latencies": "s"},
    "beyond_any_nic": {"of": "name", "bandwidth": "bytes/s", "fastest": "bytes/s"},
    "fabric_speed": {"fabric": "name", "bandwidth": "bytes/s", "node_bandwidth": "bytes/s"},
    "bridges_not_modelled": {"bridged": "1", "devices": "1"},
    "typical_fabric": {"fabric": "name", "accelerator": "name"},
    "typical_node_sends": {"bandwidth": "bytes/s", "accelerator": "name", "fabric": "name"},
    # of the configuration
    "layers_as_the_stack_deals": {},
    "defaults_used": {"axes": "name", "set": "name"},
    "evaluated_again": {"place": "1", "plan": "name"},
    "moved": {
        "devices": "1", "accelerator": "name", "cluster": "name", "planned_devices": "1",
        "planned_accelerator": "name", "planned_cluster": "name",
    },
    "follows_devices": {"dp": "1", "planned_dp": "1", "num_microbatches": "1", "planned_num_microbatches": "1"},
    "no_launch_files": {"framework": "name", "must": "said", "given": "said"},
    "launched_otherwise": {
        "framework": "name", "must": "said", "given": "said", "version": "name", "usual": "name",
    },
    # of several sizes or clusters
    "size_chosen": {"devices": "1", "sizes": "1", "objective": "name"},
    "batch_of_each_size": {},
    "batch_fixed": {},
    "spare_nodes_held": {"held": "1", "needed": "1"},
    "devices_given": {"noun": "name"},
    # of the run
    "interruptions": {
        "per_devices": "1", "hardware_failures": "1/s", "software_stops": "1/s", "detection_time": "s",
        "restart_time": "s", "spot_preemptions": "1/s", "spot_wait": "s",
    },
    "checkpoints": {
        "writing": "name", "bandwidth_per_node": "bytes/s", "bandwidth_limit": "bytes/s", "overhead": "s",
        "full_kept": "1", "weights_interval": "s",
    },
    "site": {"pue": "1", "grid_carbon": "kg/J", "electricity_price": "$/J"},
    "owned_hardware": {
        "accelerators": "name", "prices": "$", "depreciation_time": "s", "utilisation": "1", "staff_cost": "$",
        "maintenance": "1",
    },
    "assumptions_given": {"names": "name"},
    "assumptions_unverified": {"number": "1"},
    # what it leaves out
    "left_out_interruptions": {},
    "left_out_congestion": {},
    "left_out_muon": {},
    "left_out_loads": {},
    "left_out_lengths": {},
    "left_out_loader": {},
    "left_out_schedules": {},
    "left_out_graphs": {},
    "left_out_buffers": {"library": "name"},
    # what was compared, and how far a prediction is to be trusted
    "compared": {
        "quantity": "name", "near_most_room": "bytes", "all_splits_of": "1", "host_memory": "1",
        "peaks_up_to": "bytes",
    },
    "stack_fitted": {"fitted": "said", "numbers": "1", "runs": "said"},
    "stack_not_fitted": {"kin": "name"},
    "wider_on_more_devices": {},
    "wider_elsewhere": {},
    "wider_for_experts": {},
    "wider_for_mixers": {"mixers": "name", "untimed": "name"},
    "residuals_by_bytes": {},
    "compressed_as_chosen": {},
    "streams_by_bytes": {},
    "wider_for_chosen_blocks": {},
    "wider_for_chosen_keys": {"kernel": "name"},
    "wider_on_other_devices": {"devices": "name"},
    "wider_unmeasured_device": {},
    "kernels_of_kin": {"accelerator": "name", "kin": "said"},
    "links_of_kin": {"kin": "said"},
    "torus_not_measured": {},
    "collectives_as_nccl": {},
    "unverified_cluster": {"fields": "name"},
    # why a run ran out of memory, or reports another rate than its step time means
    "other_process": {"size": "bytes"},
    "end_other_process": {"monitor": "name"},
    "fragmentation": {"size": "bytes", "more_than_asked": "1"},
    "set_growing_segments": {"setting": "name"},
    "outside_pytorch": {"size": "bytes", "expected": "bytes"},
    "program_needs_more": {"needed": "bytes", "predicted": "bytes"},
    "needs_more_inside": {"needed": "bytes", "predicted": "bytes"},
    "too_large_as_predicted": {"needed": "bytes", "room": "bytes"},
    "expected_to_fit": {"needed": "bytes", "room": "bytes"},
    "log_without_memory": {},
    "predicted_against_log": {"predicted": "bytes", "off": "1", "agrees": "1"},
    "failed_request": {"bits": "1", "tensor": "name"},
    "flops_counted": {"reported": "FLOP/s", "half": "FLOP/s", "full": "FLOP/s", "alike": "name"},
}  # fmt: skip
