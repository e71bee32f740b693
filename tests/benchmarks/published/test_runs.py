"""Rows of published runs as problems and configurations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.published.predict import predict_runs
from benchmarks.published.runs import INPUT_COLUMNS, Run, RunReader, read_models, read_rows
from benchmarks.published_data import published
from planner.errors import FileInputError, PlannerError, UnsupportedError
from planner.spec.config import RECOMPUTE_MODULES, Recompute, Schedule
from planner.spec.job import AdapterTargets, Optimizer
from planner.spec.precision import Dtype, Precision
from planner.spec.stack.kinds import AttentionKernel, Dispatcher, PipelineSplit
from tests.benchmarks.rows import MODELS, ROW


def read(**changed: str) -> Run:
    return RunReader(MODELS).read({**ROW, **changed})


def test_a_full_row_assumes_only_its_model() -> None:
    run = read()
    assert run.config.describe() == "tp4 pp2 dp8 mbs1 zero1 sp"
    assert run.config.num_microbatches == 16
    assert run.problem.job.seq_len == 8192
    assert run.stack == "megatron-2024"
    assert all(text.startswith("model: ") for text in run.assumed)


@pytest.mark.parametrize(
    ("text", "kind", "layers", "modules"),
    [
        ("none", Recompute.NONE, 0, ()),
        ("", Recompute.NONE, 0, ()),
        ("full", Recompute.FULL, 16, ()),
        ("full:5", Recompute.FULL, 5, ()),
        ("full:99", Recompute.FULL, 16, ()),
        ("selective", Recompute.SELECTIVE, 0, ("core_attn",)),
        ("selective:mla_up_proj+mlp", Recompute.SELECTIVE, 0, ("mla_up_proj", "mlp")),
        ("selective:moe_act+layernorm", Recompute.SELECTIVE, 0, ("moe_act", "layernorm")),
        ("selective: 1/2 of layers checkpointed", Recompute.FULL, 8, ()),
        ("minimal_flash (save all but attention)", Recompute.SELECTIVE, 0, ("core_attn",)),
    ],
)
def test_recompute_texts(text: str, kind: Recompute, layers: int, modules: tuple[str, ...]) -> None:
    config = read(recompute=text).config
    bits = sum(1 << RECOMPUTE_MODULES.index(name) for name in modules)
    assert (config.recompute, config.recompute_layers, config.recompute_modules) == (kind, layers, bits)


def test_empty_cells_follow_from_the_others() -> None:
    run = read(
        dp="",
        ep="",
        vpp="",
        cp="",
        schedule="interleaved",
        micro_batch="",
        sequence_parallel="",
        gpus_per_node="",
    )
    assert (run.config.dp, run.config.cp, run.config.vpp, run.config.micro_batch, run.config.sp) == (
        8,
        1,
        2,
        1,
        1,
    )
    assert run.config.schedule == Schedule.INTERLEAVED
    for word in ("cp not stated", "virtual stages", "micro_batch", "sequence parallelism", "per node"):
        assert any(word in text for text in run.assumed), word


def test_embedding_and_loss_may_fill_the_outermost_chunks() -> None:
    described = {**MODELS["moe"], "layers": 94, "moe": {**MODELS["moe"]["moe"], "first_dense_layers": 0}}
    row = {**ROW, "model": "moe", "gpus": "256", "tp": "2", "pp": "32", "dp": "4", "vpp": "3", "ep": "4"}
    run = RunReader({"moe": described}).read({**row, "schedule": "interleaved", "global_batch": "256"})
    assert (run.config.pp, run.config.vpp) == (32, 3)  # 96 chunks: a layer each, but the first and the last
    assert not any("virtual stages" in text for text in run.assumed)


@pytest.mark.parametrize(
    ("framework", "layers", "split"),
    [
        ("Megatron-DeepSpeed", 30, PipelineSplit.EVEN),
        ("Megatron-DeepSpeed", 31, PipelineSplit.BALANCED),
        ("DeepSpeed + transformers", 30, PipelineSplit.BALANCED),
    ],
)
def test_stages_of_megatron_deepspeed_are_equal_where_they_can_be(
    framework: str, layers: int, split: PipelineSplit
) -> None:
    reader = RunReader({name: {**told, "layers": layers} for name, told in MODELS.items()})
    row = {**ROW, "framework": framework, "precision": "fp16", "tp": "1", "dp": "32", "sequence_parallel": ""}
    assert reader.read(row).problem.stack.split is split


def test_batch_follows_from_accumulation() -> None:
    run = read(global_batch="", extras="grad_accum=4")
    assert run.problem.job.global_batch == 32


def test_zero_pipeline_and_optimizer_texts() -> None:
    assert read(dp_sharding="hsdp", framework="torchtitan", tp="1", pp="1", dp="64").config.hsdp == 8
    assert read(dp_sharding="none").config.zero == 0
    assert (
        read(optimizer="adam (bf16 moments: precision-aware)").problem.job.optimizer is Optimizer.ADAMW_BF16
    )
    assert read(optimizer="adam_8bit").problem.job.optimizer is Optimizer.ADAMW_8BIT
    assert read(precision="fp8_mx", gpu="b200").problem.job.precision is Precision.FP8_MX
    zbv = read(schedule="zbv").config
    assert (zbv.schedule, zbv.vpp) == (Schedule.ZB_V, 2)


@pytest.mark.parametrize(
    ("gpus", "tp", "pp", "waits"),
    [("256", "16", "4", True), ("128", "32", "1", True), ("128", "32", "4", False), ("512", "8", "4", False)],
)
def test_nanotron_that_polls_its_messages_leaves_no_blocks_waiting(
    gpus: str, tp: str, pp: str, waits: bool
) -> None:
    dp = str(int(gpus) // int(tp) // int(pp))
    row = {"gpus": gpus, "tp": tp, "pp": pp, "dp": dp, "global_batch": "256", "framework": "nanotron"}
    assert (read(**row).problem.stack.engine.model_dump()["deferred_bytes"] > 0) is waits


def test_experts_default_to_tensor_parallel_width() -> None:
    assert read(model="moe", ep="2").config.etp == 4
    assert read(model="moe", ep="2", etp="1").config.etp == 1


def test_a_named_release_brings_its_groups_of_experts() -> None:
    described = {**MODELS["moe"], "moe": {**MODELS["moe"]["moe"], "experts": 256, "top_k": 8}}
    named = RunReader({"moe": {**described, "hf_id": "deepseek-ai/DeepSeek-V3"}}).read(
        {**ROW, "model": "moe", "ep": "2"}
    )
    plain = RunReader({"moe": described}).read({**ROW, "model": "moe", "ep": "2"})
    found = [run.problem.model.layer_kinds[-1].moe for run in (named, plain)]
    assert [(moe.groups, moe.top_groups) for moe in found if moe] == [(8, 4), (0, 0)]


def test_dispatchers_of_performance_recipes() -> None:
    bridge = {
        "model": "moe",
        "ep": "8",
        "tp": "1",
        "dp": "32",
        "framework": "Megatron-Bridge",
        "source": "bridge_26.04",
    }
    for changed, kind in (
        ({}, Dispatcher.ALL_TO_ALL),
        ({"extras": "force balance"}, Dispatcher.DEEPEP),
        ({"extras": "config a.py", "gpu": "gb200"}, Dispatcher.HYBRIDEP),
        ({"extras": "config a.py; alltoall"}, Dispatcher.ALL_TO_ALL),
        ({"extras": "config a.py", "gpu": "b200", "source": "bridge_25.09"}, Dispatcher.ALL_TO_ALL),
    ):
        assert read(**bridge | changed).problem.stack.communication.dispatcher is kind


def test_latent_attention_on_blackwell_waits_for_its_kernel() -> None:
    mla = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope": 128, "qk_rope": 64, "v": 128}
    models = {"small": {**MODELS["small"], "attention": "mla", "mla": mla}}
    for release, gpu, kernel in (
        ("25.04", "b200", AttentionKernel.FUSED_SOFTMAX), ("25.04", "h100_sxm_80g", AttentionKernel.FLASH),
        ("26.04", "b200", AttentionKernel.FLASH),
    ):  # fmt: skip
        run = RunReader(models).read({**ROW, "source": f"bench_{release}", "gpu": gpu})
        assert run.problem.stack.kernels.attention is kernel


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "nobody"}, {"model": "unknown"}, {"gpu": "h900"}, {"gpus": ""}, {"gpus": "x"}, {"seq_len": ""},
        {"global_batch": ""}, {"tp": "3"}, {"tp": "0"}, {"tp": "1.5"}, {"precision": "int3"}, {"optimizer": "magic"},
        {"dp_sharding": "sideways"}, {"gpus": "1e300"}, {"seq_len": "nan"},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(PlannerError):
        read(**changed)


def test_equal_rows_share_one_problem() -> None:
    reader = RunReader(MODELS)
    first, second = reader.read(ROW), reader.read({**ROW, "tp": "8", "dp": "4"})
    assert first.problem is second.problem
    assert reader.read({**ROW, "seq_len": "4096"}).problem is not first.problem


def test_files_with_bom_crlf_and_extra_columns(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    header = [*INPUT_COLUMNS, "more"]
    cells = [ROW.get(name, "x" if name == "more" else "") for name in header]
    file.write_bytes(("﻿" + ",".join(header) + "\r\n" + ",".join(cells) + ",surplus\r\n").encode())
    rows = read_rows(file)
    assert len(rows) == 1
    assert RunReader(MODELS).read(rows[0]).config == read().config


def test_bad_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad"
    with pytest.raises(FileInputError):
        read_rows(file)
    file.write_text("a,b\n1,2\n")
    with pytest.raises(FileInputError):
        read_rows(file)
    with pytest.raises(FileInputError):
        read_models(file)


def test_most_published_rows_are_understood() -> None:
    rows = read_rows(published("measured/runs.csv"))
    reader = RunReader(read_models(published("measured/models.json")))
    refused = 0
    for row in rows:
        try:
            run = reader.read(row)
        except UnsupportedError:
            refused += 1
            continue
        degrees = run.config.tp * run.config.cp * run.config.pp * run.config.dp
        assert degrees == run.problem.cluster.num_devices
    assert refused <= 0.03 * len(rows)


@pytest.mark.parametrize(
    ("extras", "rank", "bits"),
    [
        ("LoRA, rank 8", 8, 16),
        ("packed; LoRA", 16, 16),
        ("QLoRA r=64 nf4", 64, 4),
        ("LoRA rank 16 on an fp32 base", 16, 32),
        ("fp32 grad", None, 16),
    ],
)
def test_adapters_are_read(extras: str, rank: int | None, bits: int) -> None:
    job = RunReader(MODELS).read({**ROW, "extras": extras}).problem.job
    assert (job.lora_rank, job.frozen_bits) == (rank, bits)


def test_recipes_of_the_bridge() -> None:
    reader = RunReader(MODELS)
    bridge = {**ROW, "framework": "Megatron-Bridge", "source": "bridge_26.04"}
    nemo = {**bridge, "framework": "NeMo 25.09"}
    for cells, width in ((bridge, 2.0), ({**bridge, "extras": "fp32 grad"}, 4.0), (nemo, 2.0)):
        stack = reader.read(cells).problem.stack
        assert (stack.name, stack.engine.gradient) == ("megatron-2026", width)
        assert (stack.engine.sent_gradient, stack.engine.optimizer_transient) == (
            width,
            8.0 - 2 * width,
        )
    assert stack.kernels.loss != reader.read(bridge).problem.stack.kernels.loss
    assert reader.read({**bridge, "extras": "LoRA"}).problem.job.lora_targets is AdapterTargets.QKV
    moonlight = RunReader({"moonlight_16b": MODELS[ROW["model"]]}).read({**bridge, "model": "moonlight_16b"})
    assert moonlight.problem.job.optimizer is Optimizer.ADAMW_BF16
    assert reader.read(bridge).problem.job.optimizer is Optimizer.ADAMW


@pytest.mark.parametrize(
    ("source", "model", "gpu", "gathers"),
    [
        ("megatron_bridge_26.04.01", "llama", "gb300", False),  # 0.4.1 has no such field
        ("megatron_bridge_26.06", "llama", "gb300", True),
        ("megatron_bridge_26.08", "gpt_oss_20b", "gb300", False),
        ("megatron_bridge_26.08", "deepseek_v3", "b200", False),
        ("megatron_bridge_26.08", "deepseek_v3", "gb300", True),
    ],
)
def test_nvfp4_parameters_by_release_and_recipe(source: str, model: str, gpu: str, gathers: bool) -> None:
    reader = RunReader({model: MODELS[ROW["model"]]})
    cells = {
        "framework": "Megatron-Bridge",
        "source": source,
        "model": model,
        "gpu": gpu,
        "precision": "nvfp4",
    }
    assert reader.read({**ROW, **cells}).problem.stack.engine.fp4_param_gather is gathers


def test_a_row_that_denies_packing_and_adapters_has_none() -> None:
    job = read(extras="full fine-tuning (not LoRA), not packed").problem.job
    assert (job.packed, job.lora_rank) == (False, None)


def test_packed_rows_attend_within_texts() -> None:
    job = RunReader(MODELS).read({**ROW, "extras": "SFT packed"}).problem.job
    assert job.packed
    assert job.attended_length < job.seq_len


def test_layers_on_the_host_leave_the_rest_of_the_activations() -> None:
    # Megatron-Bridge runs 70B on 288 GB with 20 layers on the host, on 192 GB with 40
    reader, sizes = RunReader(MODELS), []
    layers = MODELS[ROW["model"]]["layers"]
    for count in (0, 1, layers):
        row = {**ROW, "recompute": "none", "extras": f"cpu_offloading_num_layers={count}"}
        run = reader.read(row)
        assert run.layers_offloaded == count
        small = replace(run.problem.cluster.accelerator, memory=2.0**30)  # nothing fits
        cluster = replace(run.problem.cluster, accelerator=small)
        found = predict_runs([replace(run, problem=replace(run.problem, cluster=cluster))])[0]
        assert found is not None
        assert found.device_memory is not None
        sizes.append(found.device_memory)
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize(
    ("model", "precision", "ends"),
    [
        ("gpt_oss_20b", "nvfp4", (0, 4)),
        ("gpt_oss_20b", "fp8_mx", (0, 0)),
        ("llama", "nvfp4", (0, 0)),
        ("nemotron3_super_120b_a12b", "nvfp4", (0, 14)),
    ],
)
def test_recipes_of_the_bridge_with_layers_in_bf16(model: str, precision: str, ends: tuple[int, int]) -> None:
    cells = {
        "framework": "Megatron-Bridge",
        "source": "megatron_bridge_26.06",
        "model": model,
        "gpu": "gb300",
    }
    run = RunReader({model: MODELS[ROW["model"]]}).read({**ROW, **cells, "precision": precision})
    assert run.problem.job.bf16_layers == ends


@pytest.mark.parametrize(
    ("framework", "stated", "taken"),
    [
        ("torchtitan", "fp8", Precision.FP8_CS),
        ("FSDP2 (torchtune)", "fp8", Precision.FP8_CS),
        ("torchtitan", "fp8_delayed", Precision.FP8),  # which a rule then refuses
        ("torchtitan", "bf16", Precision.BF16),
        ("NeMo/Megatron-Core", "fp8", Precision.FP8),
    ],
)
def test_fp8_of_torchao_is_current_scaling(framework: str, stated: str, taken: Precision) -> None:
    run = read(framework=framework, precision=stated, dp_sharding="zero3")
    assert run.problem.job.precision is taken
    assert ("fp8 of torchao: fp8_cs" in run.assumed) is (taken is Precision.FP8_CS)


def test_a_model_without_layers_is_the_one_that_ships_under_its_name() -> None:
    """With prediction modules as NVIDIA trains it, run twice; where nothing ships, a refusal."""
    models = {"nemotron3_super_120b_a12b": {"hf_id": None, "layers": None}, "unheard": {"layers": None}}
    words = {**ROW, "framework": "Megatron-Bridge", "tp": "1", "pp": "1", "dp": "64", "vpp": "1", "ep": "64"}
    words |= {"extras": "MTP=2", "precision": "bf16"}
    run = RunReader(models).read({**words, "model": "nemotron3_super_120b_a12b"})
    spec = run.problem.model
    assert (spec.name, spec.num_layers, spec.mtp_layers) == ("nemotron-3-super-120b-a12b", 88, 2)
    assert not any("multi-token" in what for what in run.assumed)
    assert any("runs 2 times" in what for what in run.assumed)
    with pytest.raises(UnsupportedError, match="must state its layers"):
        RunReader(models).read({**words, "model": "unheard"})


def test_a_hybrid_shard_fills_the_nvlink_domain() -> None:
    words = {
        "dp_sharding": "hsdp",
        "framework": "Megatron-Bridge",
        "tp": "2",
        "pp": "1",
        "cp": "1",
        "vpp": "1",
    }
    words |= {"gpu": "gb300", "gpus": "256", "gpus_per_node": "4", "nvlink_domain": "72", "dp": "128"}
    assert read(**words, global_batch="256").config.hsdp == 32  # of 72 / 2, what divides 128


def test_torchtitans_full_sharding_keeps_weights_gathered_under_a_pipeline() -> None:
    """Its policy unless told otherwise; the row of a framework without that policy means what it says."""
    words = {"dp_sharding": "zero3", "framework": "torchtitan", "tp": "1", "cp": "1"}
    assert read(**words, pp="4", dp="16").config.zero == 2
    assert read(**words, pp="1", dp="64").config.zero == 3
    assert read(**{**words, "framework": "maxtext"}, pp="4", dp="16").config.zero == 3


def test_sums_of_profiles_hold_the_embedding_and_the_logits_matrix_each() -> None:
    """vTrain's predictor lists both (src/predictor.py), though its models tie them; real runs keep one."""
    reader = RunReader({"tied": {**MODELS["small"], "tied_embeddings": True}})
    row = {
        **ROW,
        "model": "tied",
        "gpu": "a100_sxm_80g",
        "framework": "Megatron-DeepSpeed",
        "precision": "fp16",
    }
    for source, tied in (("vtrain_single", False), ("vtrain_multi", True)):
        problem = reader.read({**row, "source": source}).problem
        assert problem.model.tied_embeddings is tied
        assert problem.stack.engine.sent_gradient == 2.0


@pytest.mark.parametrize(
    ("gpu", "changed"),
    [
        ("tpu_v4", {"tp": "4", "dp": "16"}),
        ("tpu_v5e", {"gpus": "256", "tp": "1", "dp": "256", "global_batch": "512", "recompute": "full"}),
        ("tpu_v5p", {"tp": "4", "dp": "16"}),
        ("tpu_v6e", {"tp": "1", "dp": "64"}),
        ("trainium2", {"tp": "16", "dp": "4", "framework": "NeuronX Distributed", "dp_sharding": "zero1"}),
    ],
)
def test_rows_of_compiled_devices_are_answered(gpu: str, changed: dict[str, str]) -> None:
    cells = {"gpu": gpu, "gpus_per_node": "", "nvlink_domain": "", "internode": "", "pp": "1", "framework": "MaxText",
             "dp_sharding": "zero3", **changed}  # fmt: skip
    run = read(**cells)
    (found,) = predict_runs([run])
    assert found is not None
    assert found.step_time is not None
    chip, job = run.problem.cluster.accelerator, run.problem.job
    work = 6.0 * 8.03e9 * job.tokens_per_step  # an 8B of 32 layers, its attention apart
    mfu = work / found.step_time / run.problem.cluster.num_devices / chip.peak_flops(Dtype.BF16)
    assert 0.3 < mfu < 0.75
    assert run.calibration_level == "L0"
    assert run.problem.cluster.tiers[0].torus is not None


def test_slices_of_a_row_are_its_nvlink_domain() -> None:
    cells = {"gpu": "tpu_v5p", "gpus": "128", "gpus_per_node": "4", "pp": "1", "tp": "4", "dp": "32",
             "dp_sharding": "hsdp", "framework": "MaxText", "internode": ""}  # fmt: skip
    two = read(**cells, nvlink_domain="64")
    assert [tier.size for tier in two.problem.cluster.tiers] == [64, 128]
    assert two.config.zero == 3
    assert [tier.size for tier in read(**cells, nvlink_domain="").problem.cluster.tiers] == [128]


@pytest.mark.parametrize(
    ("framework", "stated", "zero"),
    [("PyTorch DDP", "", 0), ("nanoGPT", "", 0), ("nanoGPT", "zero3", 3), ("PyTorch FSDP", "", 3)],
)
def test_loops_around_torch_shard_as_they_do(framework: str, stated: str, zero: int) -> None:
    run = read(framework=framework, dp_sharding=stated, tp="1", pp="1", dp="64")
    assert run.config.zero == zero
    assert any(said.startswith("dp_sharding") for said in run.assumed) is (not stated)


def test_the_documented_columns_are_read() -> None:
    text = (Path(__file__).parents[3] / "benchmarks" / "published" / "README.md").read_text(encoding="utf-8")
    assert [name for name in INPUT_COLUMNS if f"`{name}`" not in text] == []
