"""The main path: requests are read, defaults are said, plans and estimates hold what they promise."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.answer.answerer import not_modelled
from planner.answer.estimate import make_estimate, named_config
from planner.answer.objective import plan_with_size
from planner.answer.outcome import hold_batch
from planner.answer.plan import make_plan
from planner.ask.request import Request, cost_model, resolve
from planner.catalog.load_stacks import load_stack
from planner.cost.simulated import evaluate_exactly
from planner.dialect import in_words
from planner.errors import InputError, PlannerError
from planner.report.facts import subject_lines
from planner.report.proof import cautions, once_sentence
from planner.report.words import line_of, text_of, texts
from planner.space.batch import LARGEST_BATCH, global_batch_of
from planner.space.legality import explain_config
from planner.space.rules import RULES
from planner.space.without import ALL
from planner.spec.config import ConfigTable, CudaGraphs, ParallelConfig, Recompute, Schedule
from planner.spec.findings import finding
from planner.spec.planfile import Ending, Plan, Verdict
from planner.spec.planned_config import PlannedConfig
from planner.spec.stack import Stack, elsewhere
from planner.spec.verdict import MemoryVerdict
from planner.units import parse_count
from tests.problems import pins_of

SMALL = Request("llama-3.1-8b", "2x8 h100 400G-ib", seq_len=4096, global_batch="64")
LLAMA_405B = Request(
    "llama-3.1-405b", "h100-sxm-roce", 16384, seq_len=8192, global_batch="2048", tokens=15.6e12
)
AS_NAMED = (ALL,)  # without what a search turns on by itself
META = {"tp": (8,), "pp": (16,), "vpp": (8,), "sp": (1,), "zero": (1,)}  # dp 128, arXiv 2407.21783, table 4


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    return make_plan(SMALL)


@pytest.fixture(scope="module")
def large_plan() -> Plan:
    return make_plan(LLAMA_405B)


def config_of(plan: Plan, index: int = 0) -> ParallelConfig:
    return plan.choices[index].config.parallel()


@pytest.mark.parametrize(
    ("asked", "given", "taken"),
    [
        ({"model": "gemma-3-27b"}, (0,), "all-gather or a2a"),
        ({"model": "gemma-3-27b"}, (0, 2), "all-gather or a2a"),
        ({"model": "gpt-oss-20b"}, (0,), "a2a"),
        ({"stack": "torchtitan-2026"}, (0,), "all-gather"),
    ],
)
def test_a_ring_that_nothing_runs_is_refused(
    asked: dict[str, str], given: tuple[int, ...], taken: str
) -> None:
    request = replace(SMALL, **asked, set={"cp": (2,), "cp_kind": given})
    with pytest.raises(InputError, match=f"must be {taken}\n.*p2p"):
        resolve(request)
    resolve(replace(request, set={"cp": (2,), "cp_kind": (0, 1, 2)}))  # all there are: without the ring


def test_an_estimate_names_the_exchange_that_is_taken_unasked() -> None:
    said = named_config({"cp": (2,)}, resolve(replace(SMALL, model="gemma-3-27b"))[0])[1]
    assert "cp_kind=all-gather" in text_of(said[0])
    assert "cp_kind=p2p" in text_of(named_config({"cp": (2,)}, resolve(SMALL)[0])[1][0])


@pytest.mark.parametrize(
    ("asked", "given", "says"),
    [
        ({}, {"cp": (2,), "cp_kind": (0,)}, "p2p"),
        ({}, {"cp": (2,), "cp_kind": (2,)}, "a2a"),
        ({}, {"cp": (1,)}, None),
        ({"model": "gemma-3-27b"}, {"cp": (2,), "cp_kind": (1,)}, "all-gather"),
        ({"model": "gpt-oss-20b"}, {"cp": (2,)}, "a2a"),
    ],
)
def test_a_plan_says_what_is_exchanged_by(
    asked: dict[str, str], given: dict[str, tuple[int, ...]], says: str | None
) -> None:
    plan = make_plan(replace(SMALL, **asked, set={**given, "pp": (1,)}))
    configs = [choice.config for choice in plan.choices] + [point.config for point in plan.pareto]
    assert {config.cp_comm_type for config in configs} == {says}
    older = plan.choices[0].config.model_dump(exclude={"cp_comm_type"})
    assert PlannedConfig.model_validate(older).parallel() == configs[0].parallel()


def test_a_run_shorter_than_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="one step, 262,144"):
        resolve(replace(SMALL, tokens=15.0))
    resolve(replace(SMALL, tokens=524288.0))


@pytest.mark.parametrize("text", ["4M", "4000000", "2m", "1B", "4 M"])
def test_a_batch_that_may_count_tokens_is_refused_with_both_readings(text: str) -> None:
    with pytest.raises(InputError) as refused:
        global_batch_of(text, 8192, 8)
    said = str(refused.value)
    count = parse_count(text, "it")
    assert f"{count:,.0f} sequences" in said
    assert f"{count / 8192:,.0f} sequences of 8,192" in said
    for unit, sequences in (("tok", count / 8192), ("seq", count)):
        assert f"{text}{unit}" in said
        if sequences <= LARGEST_BATCH:
            assert global_batch_of(f"{text}{unit}", 8192, 8)[0] == pytest.approx(sequences, rel=0.13)


def test_usual_batches_count_sequences() -> None:
    for text, batch in (("16k", 16_000), ("120000", 120_000), ("512", 512), ("2seq", 2), ("2kseq", 2_000)):
        assert global_batch_of(text, 8192, 8) == (batch, ())
    with pytest.raises(InputError, match="write 4Mtok or 4Mseq"):
        make_plan(replace(SMALL, seq_len=4096, global_batch="4M"))
    with pytest.raises(InputError, match="write 4Mtok or 4Mseq"):
        hold_batch(replace(SMALL, global_batch="4M"))
    assert hold_batch(replace(SMALL, global_batch="64"))[1] == finding("held_batch", batch=64)


@pytest.mark.slow
def test_a_405b_model_on_16384_devices(large_plan: Plan) -> None:
    assert large_plan.verdict is Verdict.FOUND
    best = large_plan.choices[0]
    assert best.memory.verdict is not MemoryVerdict.DOES_NOT_FIT
    assert best.run is not None
    # 3.8e25 FLOP at 20 to 60 % MFU of 16,384 x 989 TFLOP/s
    assert 40 < best.run.days < 140
    search = large_plan.search
    assert search.legal > 100_000
    assert search.candidates == (
        search.legal + search.undealt + search.undealt_by_memory + sum(r.candidates for r in search.removed)
    )


@pytest.mark.slow
def test_a_configuration_like_metas_is_no_faster_than_the_best(large_plan: Plan) -> None:
    named = make_estimate(replace(LLAMA_405B, set=META)).choices[0]
    assert named.config.dp == 128
    assert sorted(named.layers_per_stage) == [7, 7, *[8] * 14]  # first and last stage one layer less
    assert 0.3 < named.mfu < 0.5  # the paper reports 38 to 43 %
    assert large_plan.choices[0].step_time <= named.step_time


def test_a_mixture_of_experts_on_one_shorthand() -> None:
    named = make_estimate(Request("Qwen/Qwen3-30B-A3B", "4x8 h100 400G-ib", set={"tp": (1,), "ep": (8,)}))
    assert named.verdict in (Verdict.FOUND, Verdict.DOES_NOT_FIT)
    assert named.choices[0].config.ep == 8


def test_choices_come_best_first_and_fit(small_plan: Plan) -> None:
    times = [choice.step_time for choice in small_plan.choices]
    assert times == sorted(times)
    assert len(times) == 10
    for choice in small_plan.choices:
        assert choice.memory.peak <= choice.memory.limit
        assert sum(choice.time.values()) == pytest.approx(choice.step_time)
        assert sum(choice.memory.terms.values()) == pytest.approx(choice.memory.peak)
        assert sum(choice.layers_per_stage) == 32
        assert choice.step_time_low < choice.step_time < choice.step_time_high
        assert max(stage.peak for stage in choice.memory.per_stage) == pytest.approx(choice.memory.peak)


def test_every_choice_is_legal_and_estimates_as_planned(small_plan: Plan) -> None:
    for index, choice in enumerate(small_plan.choices):
        problem, _ = resolve(replace(SMALL, stack=choice.stack))
        model = cost_model(problem)
        config = config_of(small_plan, index)
        assert explain_config(config, problem, RULES) == ()
        dealt = model.with_split(choice.split.layers_per_chunk) if choice.split else model
        cost = evaluate_exactly(dealt, ConfigTable.of([config]))
        assert float(cost.step_time[0]) == choice.step_time
        assert float(cost.device_memory[0]) == choice.memory.peak


def test_the_front_takes_what_the_list_takes(small_plan: Plan) -> None:
    """Its pipelines are simulated as well: a configuration had one time in the list and another on the front."""
    asked = replace(SMALL, stack=small_plan.subject.stack.name)
    model, points = cost_model(resolve(asked)[0]), small_plan.pareto
    rows = [point.config.parallel() for point in points]
    time = evaluate_exactly(model, ConfigTable.of(rows)).step_time.tolist()
    assert [point.step_time_s for point in points] == time == sorted(time)
    memory = [point.peak_mem_gib for point in points]
    assert memory == sorted(memory, reverse=True)
    assert len(set(memory)) == len(memory) > 10
    assert model.evaluate(ConfigTable.of(rows)).step_time.tolist() != time


def test_an_estimate_of_the_best_says_what_the_plan_said(small_plan: Plan) -> None:
    best = small_plan.choices[0]
    named = make_estimate(replace(SMALL, set=pins_of(config_of(small_plan)), stack=best.stack)).choices[0]
    if (
        best.split and best.split.own_step_time != best.step_time
    ):  # an estimate deals layers as the stack does
        assert named.step_time == best.split.own_step_time
        assert best.step_time < named.step_time
        return
    assert named.step_time == pytest.approx(best.step_time)
    assert named.memory.peak == pytest.approx(best.memory.peak)


def test_the_certificate_speaks_of_every_candidate_and_of_splits(small_plan: Plan) -> None:
    proof = small_plan.search.certificate
    assert proof is not None
    assert proof.ending is Ending.COMPLETE
    search = small_plan.search
    assert proof.by_rule + search.legal + search.undealt + search.undealt_by_memory == proof.candidates
    assert proof.bound is not None
    assert proof.bound <= proof.best == small_plan.choices[0].step_time
    assert proof.gap == pytest.approx(1 - proof.bound / proof.best, abs=1e-12)
    assert proof.gap < 0.05  # of layouts: under the stack's own splits nothing is left
    layouts = [bound for bound in (proof.split_bound, proof.outside_bound) if bound is not None]
    assert proof.bound >= 0.99 * min([proof.best, *layouts])
    assert small_plan.choices == tuple(sorted(small_plan.choices, key=lambda choice: choice.step_time))
    for choice in small_plan.choices:
        if choice.split is not None:
            assert choice.split.bound <= choice.step_time
            assert choice.split.own_step_time is None or choice.step_time <= choice.split.own_step_time
            assert sum(choice.split.layers_per_chunk) == 32
    times = [point.step_time_s for point in small_plan.pareto]
    sizes = [point.peak_mem_gib for point in small_plan.pareto]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)


def test_where_nothing_fits_a_search_finds_what_would() -> None:
    request = Request("llama-3.1-70b", "h100-sxm-roce", 8, seq_len=8192, global_batch="64", without=AS_NAMED)
    tight = make_plan(request)
    assert tight.verdict is Verdict.NOTHING_FITS
    assert "this would fit: " in line_of(tight.smallest_change)
    assert "devices (" in line_of(tight.smallest_change)
    gpus = int(line_of(tight.smallest_change).split("this would fit: ")[1].split(" devices")[0])
    assert make_plan(replace(request, gpus=gpus, thorough=False)).found


def test_more_devices_than_a_part_of_a_node_are_whole_nodes() -> None:
    """Of 3, 6, 12 and 24 GPUs the third is no whole number of nodes."""
    tight = make_plan(Request("llama-3.1-70b", "dgx-h100", 3, seq_len=4096, global_batch="24"))
    assert tight.verdict is Verdict.NOTHING_FITS
    assert "this would fit: 24 devices (" in line_of(tight.smallest_change)


@pytest.mark.parametrize(
    ("cluster", "fewest"), [("h100-sxm-roce", 24), ("3x8 h100 400G-ib", 24), ("2x8 h100 400G-ib", 0)]
)
def test_the_fewest_whole_nodes_are_named(cluster: str, fewest: int) -> None:
    """8 and 16 GPUs are too few, 32 are more than it takes; and all that a cluster has are tried."""
    request = Request("llama-3.1-70b", cluster, 8, seq_len=8192, global_batch="64", without=AS_NAMED)
    tight = make_plan(request)
    assert ("devices (" in line_of(tight.smallest_change)) == bool(fewest)
    if fewest:
        assert f"this would fit: {fewest} devices (" in line_of(tight.smallest_change)
        assert make_plan(replace(request, gpus=fewest, thorough=False)).found


def test_the_next_node_is_among_the_sizes_tried_far_from_one_that_fits() -> None:
    """Of 184 GPUs twice as many fit; between them lie more nodes than are all tried, of which the first does."""
    request = Request("deepseek-v3", "dgx-h100", 184, without=AS_NAMED)
    tight = make_plan(request)
    assert tight.choices[0].memory.verdict is MemoryVerdict.BORDERLINE
    said = line_of(tight.smallest_change)
    assert "this would surely fit: 192 devices (" in said
    assert "384 sequences a step)" in said, "the batch that a plan of 192 has, not the 368 of 184"
    assert "in steps of" not in said
    assert make_plan(replace(request, gpus=192, thorough=False)).found


def test_where_nothing_fits_the_sequence_named_is_the_longest_for_its_configuration() -> None:
    pins = {"cp": (1,), "tp": (1,), "pp": (4,), "dp": (2,), "vpp": (1,)}
    request = Request(
        "llama-3.1-8b", "1x8 h100 400G-ib", seq_len=98304, global_batch="8", set=pins, without=AS_NAMED
    )
    said = line_of(make_plan(request).smallest_change).split("sequences of ")[1]
    length = int(said.split(" tokens")[0].replace(",", ""))
    assert length % 128 == 0
    assert length not in (49152, 24576)  # no half
    assert make_plan(replace(request, seq_len=length)).found
    assert "the longest that it holds, which need not be the longest of all)" in said


def test_a_layout_is_found_where_none_of_the_stacks_own_fits() -> None:
    """The last stage holds the head, and has no room for a layer beside it."""
    pins = {"cp": (1,), "tp": (1,), "pp": (4,), "dp": (2,), "vpp": (1,)}
    request = Request("llama-3.1-8b", "1x8 h100 400G-ib", seq_len=98304, global_batch="8", set=pins)
    best = make_plan(request).choices[0]
    assert best.split is not None
    assert best.split.own_step_time is None
    pins = pins_of(best.config.parallel())
    own = make_estimate(replace(request, stack=best.stack, set=pins))
    assert own.verdict is Verdict.DOES_NOT_FIT
    stated = make_estimate(replace(request, stack=best.stack, set={**pins, "layout": best.layout}))
    assert stated.choices[0].step_time == best.step_time
    assert stated.choices[0].memory == best.memory


def test_where_lengths_differ_the_sequence_named_is_the_longest_of_them() -> None:
    pins = {"cp": (1,), "tp": (1,), "pp": (4,), "dp": (2,), "vpp": (1,)}
    request = Request(
        "llama-3.1-8b", "1x8 h100 400G-ib", seq_len=98304, global_batch="8", mean_len=500.0, set=pins,
        without=AS_NAMED,
    )  # fmt: skip
    said = line_of(make_plan(request).smallest_change)
    assert "sequences of at most " in said
    assert " tokens (500 on average) (tp1" in said


def test_a_copy_of_a_checkpoint_that_hosts_have_no_room_for_is_named_and_can_be_left_out(
    tmp_path: Path,
) -> None:
    small = tmp_path / "small.yaml"
    small.write_text(
        "name: small\naccelerator: h100-sxm-80g\nnodes: 1\nnode: {accelerators: 8, host_memory: 16 GiB, nics: 8, "
        "nic_bandwidth: 400 Gbit/s, scale_up: {kind: nvlink, domain: 8}}\n"
        "fabric: {kind: infiniband, tiers: [{name: leaf, devices: all, oversubscription: 1}]}\n"
    )
    asked = replace(SMALL, model="llama-3.2-3b", cluster=str(small), gpus=8, without=AS_NAMED)
    plan = make_plan(asked)
    assert plan.verdict is Verdict.NOTHING_FITS
    assert re.search(r"exceeds host memory by .* per node \(checkpoint copy ", line_of(plan.smallest_change))
    assert "no copy of a checkpoint on hosts, --assume checkpoint_writing=blocking (" in line_of(
        plan.smallest_change
    )
    waits = make_plan(replace(asked, assume=("checkpoint_writing=blocking",)))
    assert waits.found
    assert waits.choices[0].config.text in line_of(plan.smallest_change)


def test_where_nothing_fits_offloading_is_among_what_would() -> None:
    """States of 8B parameters are 120 GiB beside bf16 weights: no one device of 80 GB, but its host has the room."""
    tuning = Request("llama-3.1-8b", "1x1 h100", seq_len=2048, global_batch="8")
    taken = make_plan(tuning).choices[0].config
    assert taken.offload, "which a search tries by itself"
    tuning = replace(tuning, without=AS_NAMED)
    tight = make_plan(tuning)
    assert tight.verdict is Verdict.NOTHING_FITS
    assert "this would fit: --set offload=optimizer (" in line_of(tight.smallest_change)
    assert make_plan(replace(tuning, set={"offload": (1,)})).found
    pinned = make_plan(replace(tuning, set={"offload": (0,)}))
    assert "this would fit: leave offload free" not in line_of(pinned.smallest_change)
    assert "not tried: more devices than the cluster has, adapters" in line_of(pinned.smallest_change)


def test_a_time_limit_hands_over_what_there_is(small_plan: Plan) -> None:
    stopped = make_plan(replace(SMALL, time_limit=1e-6))
    proof = stopped.search.certificate
    assert proof is not None
    assert proof.ending is Ending.TIME_LIMIT
    assert stopped.choices
    assert proof.bound is not None
    full = small_plan.choices[0].step_time
    assert proof.bound <= full * (1 + 1e-9), "layouts that nobody looked at are in it"
    tight = make_plan(
        Request(
            "llama-3.1-70b",
            "h100-sxm-roce",
            8,
            seq_len=8192,
            global_batch="64",
            time_limit=1e-6,
            without=AS_NAMED,
        )
    )
    assert tight.verdict is Verdict.NOTHING_FITS
    assert "were not tried: no time was left" in line_of(tight.smallest_change)
    assert "no other single change" not in line_of(tight.smallest_change)


def test_objectives(small_plan: Plan) -> None:
    roomy, fast = make_plan(replace(SMALL, objective="headroom")), small_plan
    assert roomy.choices[0].memory.peak < fast.choices[0].memory.peak
    fronts = [[(point.step_time_s, point.peak_mem_gib) for point in plan.pareto] for plan in (roomy, fast)]
    assert set(fronts[1]) <= set(fronts[0]), "which reaches further"
    least, peak = fronts[0][-1][1], roomy.choices[0].memory.peak / 2**30
    assert least <= peak <= least + 0.01 * roomy.choices[0].memory.limit / 2**30
    few = plan_with_size(
        replace(SMALL, gpus=None, objective="gpus", cluster="4x8 h100 400G-ib", set={"pp": (1,)})
    )
    assert few.found
    assert few.subject.cluster.devices <= 16
    with pytest.raises(InputError, match="objective"):
        make_plan(replace(SMALL, objective="beauty"))
    with pytest.raises(InputError, match="length of the run"):
        plan_with_size(replace(SMALL, objective="cost", tokens=None))


def test_top_limits_the_choices_and_keeps_their_order(small_plan: Plan) -> None:
    three = make_plan(replace(SMALL, top=3))
    ten = [c.config for c in small_plan.choices]
    places = [ten.index(c.config) for c in three.choices]  # twins in vpp fill up the ten
    assert places[0] == 0
    assert places == sorted(places)
    assert len(places) == 3


def test_of_twins_in_graphs_that_tie_the_frameworks_default_is_listed() -> None:
    """torchtitan 0.3.0 captures dense models unless told not to; without graphs a step of 2.3 s takes 50 ns longer and
    less memory."""
    request = Request(
        "llama-3.2-1b",
        "dgx-a100",
        64,
        seq_len=16384,
        global_batch="128",
        stack="torchtitan-2026",
        top=4,
        set={"zero": (2, 3)},
    )
    plan = make_plan(request)
    configs = [choice.config for choice in plan.choices]
    assert {config.cuda_graphs.by for config in configs} == {CudaGraphs.FULL_ITERATION.label}
    assert len(configs) == 4
    certificate = plan.search.certificate
    assert certificate is not None
    assert certificate.gap == pytest.approx(0, abs=1e-6)
    assert plan.search.once == ("vpp", "hsdp", "cuda_graph_impl")
    assert "only in vpp or hsdp (the fastest) or in CUDA graphs without a gain" in once_sentence(plan.search)

    both = (int(CudaGraphs.NONE), int(CudaGraphs.FULL_ITERATION))
    asked = make_plan(replace(request, set={**request.restrict, "cuda_graph_impl": both}))
    assert [c.config.cuda_graphs.by for c in asked.choices[:2]] == [
        CudaGraphs(one).label for one in both[::-1]
    ]
    assert asked.choices[1].step_time == pytest.approx(asked.choices[0].step_time, rel=1e-4)
    assert [c.config for c in asked.choices[::2]] == configs[:2]
    assert once_sentence(asked.search) == (
        "configurations that differ only in vpp or hsdp (the fastest) are listed once, if there are enough others"
    )


@pytest.mark.slow
def test_what_is_exchanged_by_and_recomputed_is_searched() -> None:
    """A plan is as fast as the fastest of those with the exchange, the modules and the shards named."""
    long = Request("llama-3.1-8b", "dgx-a100", 8, seq_len=16384, global_batch="64", top=1, without=AS_NAMED)
    free = make_plan(long).choices[0]
    alone = [
        make_plan(replace(long, set=restrict)).choices[0].step_time
        for restrict in (
            {"cp_kind": (0,)}, {"cp_kind": (1,)}, {"recompute": (0,)}, {"recompute": (2,)}, {"recompute_modules": (4,)},
        )
    ]  # fmt: skip
    assert free.step_time <= min(alone) * (1 + 1e-9)
    assert free.config.recompute.modules  # 16k tokens fit in 80 GB without whole layers done again
    assert max(alone) > free.step_time * 1.01
    sharded = replace(
        long, cluster="dgx-h100", gpus=256, seq_len=8192, global_batch="512", stack="torchtitan-2026"
    )
    groups, whole = (
        make_plan(sharded).choices[0],
        make_plan(replace(sharded, set={"hsdp": (0,)})).choices[0],
    )
    assert groups.config.hsdp
    assert groups.step_time < whole.step_time


def test_only_what_is_listed_once_is_said_to_be(small_plan: Plan) -> None:
    assert small_plan.search.once == ("vpp", "cp_kind", "cuda_graph_impl")
    assert make_plan(replace(SMALL, without=AS_NAMED)).search.once == ("vpp", "cp_kind")
    assert not make_plan(replace(SMALL, set={"vpp": (1, 2), "cp_kind": (0, 2)}, without=AS_NAMED)).search.once
    assert not once_sentence(make_plan(replace(SMALL, objective="headroom")).search)


def test_more_headroom_is_never_faster_and_leaves_that_much_free(small_plan: Plan) -> None:
    capacity = resolve(SMALL)[0].cluster.accelerator.memory
    before = 0.0
    for headroom in (0.0, 0.05, 0.3, 0.6):
        plan = make_plan(replace(SMALL, headroom=headroom, top=1, without=AS_NAMED, set={"vpp": (1,)}))
        assert plan.headroom == headroom
        assert plan.choices[0].memory.peak <= capacity * (1 - headroom)
        assert plan.choices[0].step_time >= before
        before = plan.choices[0].step_time


def test_nothing_fits_is_an_answer_with_the_nearest() -> None:
    plan = make_plan(Request("llama-3.1-405b", "1x8 h100"))
    assert plan.verdict is Verdict.NOTHING_FITS
    assert plan.choices == ()
    assert plan.nearest is not None
    assert plan.nearest.memory.peak > plan.nearest.memory.limit
    assert "per device" in line_of(plan.smallest_change)


def test_nothing_legal_is_an_answer_with_the_rules() -> None:
    plan = make_plan(replace(SMALL, set={"tp": (3,)}))
    assert plan.verdict is Verdict.NOTHING_LEGAL
    assert plan.search.removed
    assert "tp=" in line_of(plan.smallest_change)


def test_contradicting_pins_are_nothing_legal() -> None:
    plan = make_plan(replace(SMALL, set={"recompute": (2,), "recompute_layers": (0,)}))
    assert plan.verdict is Verdict.NOTHING_LEGAL


def test_an_illegal_estimate_names_the_rule_and_the_nearest() -> None:
    plan = make_estimate(replace(SMALL, set={"tp": (3,)}))
    assert plan.verdict is Verdict.ILLEGAL
    assert {"world-size", "heads-tp"} <= {broken.rule for broken in plan.violations}
    assert plan.nearest is not None
    assert plan.nearest_config is not None
    problem, _ = resolve(SMALL)
    near = ParallelConfig(
        **{axis: getattr(plan.nearest_config, axis) for axis in ("tp", "cp", "pp", "dp", "vpp", "ep", "etp")},
        micro_batch=plan.nearest_config.micro_batch, num_microbatches=plan.nearest_config.num_microbatches,
        sp=int(plan.nearest_config.sp), zero=plan.nearest_config.zero,
    )  # fmt: skip
    assert explain_config(near, problem, RULES) == ()


def test_an_estimate_that_does_not_fit_names_one_that_does() -> None:
    plan = make_estimate(replace(SMALL, set={"zero": (0,), "micro_batch": (4,)}))
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert plan.choices[0].memory.peak > plan.choices[0].memory.limit
    assert plan.nearest is not None
    assert plan.nearest.memory.peak <= plan.nearest.memory.limit


@pytest.mark.parametrize(
    ("text", "seq_len", "sequences"),
    [
        ("2048", 8192, 2048),
        ("2k", 8192, 2000),
        ("16Mtok", 8192, 2048),  # 1,953, to a multiple of the largest divisor of the devices below
        ("16MTOK", 8192, 2048),
        ("4Mtok", 4096, 1024),
        ("1tok", 8192, 1),
        (None, 8192, 512),  # about 4M tokens: 488
    ],
)
def test_forms_of_the_global_batch(text: str | None, seq_len: int, sequences: int) -> None:
    request = Request("llama-3.1-8b", "h100-sxm-80g", 512, seq_len=seq_len, global_batch=text)
    if text is not None and seq_len == 8192 and text.lower() == "16mtok":
        request = replace(request, cluster="h100-sxm-roce", gpus=16384)
    problem, assumed = resolve(request)
    assert problem.job.global_batch == sequences
    said = any("global batch" in line for line in texts(assumed))
    assert said is (text is None or text.lower().endswith("tok"))


@pytest.mark.parametrize(
    ("gpus", "named", "sequences"),
    [
        (2304, {}, 576),  # 2^8 x 9 devices: more degrees divide 576 than 384 or 512
        (2304, {"dp": (144,)}, 576),
        (2304, {"dp": (288,)}, 576),
        (2304, {"tp": (8,), "pp": (1,), "cp": (1,)}, 576),
        (2304, {"dp": (96,), "pp": (12,), "vpp": (5,)}, 1152),  # in rounds of 12 micro-batches
        (24, {"dp": (3,), "micro_batch": (5,)}, 480),
        (8, {"micro_batch": (2,)}, 512),
        (24, {"dp": (3, 6)}, 384),
        (2048, {"tp": (3,), "pp": (1,), "cp": (1,)}, 682),
        (1024, {"tp": (3,), "pp": (1,), "cp": (1,)}, 682),  # 341: 341 and 1,023 are further
    ],
)
def test_a_default_batch_suits_the_devices_and_the_named_degrees(
    gpus: int, named: dict[str, tuple[int, ...]], sequences: int
) -> None:
    request = Request("llama-3.1-8b", "h100-sxm-80g", gpus, seq_len=8192, set=named)
    assert resolve(request)[0].job.global_batch == sequences
    given = replace(request, global_batch="16Mtok")
    assert resolve(given)[0].job.global_batch != sequences  # what is asked for in tokens is kept


def test_an_estimate_of_many_replicas_has_a_batch_for_them() -> None:
    request = Request("llama-3.1-8b", "h100-sxm-80g", 1152, seq_len=8192, set={"tp": (2,)})
    plan = make_estimate(request)
    assert plan.verdict is Verdict.FOUND, plan.headline
    assert plan.subject.job.global_batch == 576


@pytest.mark.parametrize("text", ["0", "-4", "1.5", "many", "tok", "", "16 Mbyte", "1e30", "nantok"])
def test_a_bad_global_batch_is_refused(text: str) -> None:
    with pytest.raises(PlannerError):
        resolve(replace(SMALL, global_batch=text))


def test_memory_to_keep_free_counts_where_headroom_is_less() -> None:
    """8 GiB of an 80 GiB device are a tenth of it."""
    asked = replace(SMALL, set={"tp": 2, "pp": 1}, without=())
    capacity = make_estimate(asked).subject.cluster.memory_per_device
    limits = {
        (share, free): make_estimate(replace(asked, headroom=share, min_free=free)).choices[0].memory.limit
        for share, free in ((0.05, None), (0.05, "8GiB"), (0.2, "8GiB"))
    }
    assert limits[0.05, None] == pytest.approx(0.95 * capacity)
    assert limits[0.05, "8GiB"] == pytest.approx(capacity - 8 * 2**30)
    assert limits[0.2, "8GiB"] == pytest.approx(0.8 * capacity)
    with pytest.raises(InputError, match="less than a device has"):
        make_estimate(replace(asked, min_free="80GiB"))


def test_advice_to_keep_nothing_back_names_all_that_keeps_back() -> None:
    """What `change` says, asked, fits: nothing is kept back by either option."""
    asked = Request(
        "llama-3.2-3b", "1x1 h100", seq_len=4096, global_batch=8, without="all", min_free="68GiB",
        set={"recompute": "full"}, front=False,
    )  # fmt: skip
    (advice,) = [one for one in make_plan(asked).smallest_change if one.code == "no_headroom"]
    assert advice.change is not None
    changed = replace(asked, **{one.option: one.value for one in advice.change})
    assert make_plan(changed).found


def test_defaults_are_said() -> None:
    problem, assumed = resolve(Request("llama-2-7b", "1x8 h100"))
    assert problem.job.seq_len == 4096  # the model's context, below 8192
    assert problem.stack.name == "megatron-2026"
    said = "\n".join(texts(assumed))
    for words in ("sequence length 4,096", "global batch", "stack megatron-2026"):
        assert words in said
    assert resolve(Request("llama-3.1-8b", "1x8 h100"))[0].job.seq_len == 8192


def test_what_is_named_is_not_assumed() -> None:
    _, assumed = resolve(replace(SMALL, stack="megatron-2026"))
    assert not any("stack" in line or "sequence" in line or "batch" in line for line in texts(assumed))


BAD_REQUESTS: tuple[dict[str, Any], ...] = (
    {"headroom": 1.0}, {"headroom": -0.1}, {"top": 0}, {"seq_len": 0}, {"seq_len": 2**31}, {"objective": "speed"},
    {"precision": "bf17"}, {"optimizer": "adam"}, {"stack": "megatron-1999"}, {"stack": "vtrain-2024"},
    {"model": "llama-9"}, {"cluster": "h1000"}, {"tokens": -1.0}, {"gpus": 0}, {"set": {"zero": (4,)}},
    {"set": {"unknown": (1,)}},
)  # fmt: skip


@pytest.mark.parametrize("change", BAD_REQUESTS, ids=str)
def test_a_bad_request_is_refused_in_words(change: dict[str, Any]) -> None:
    with pytest.raises(PlannerError) as caught:
        make_plan(replace(SMALL, **change))
    assert caught.value.exit_code == 2
    assert str(caught.value)


def test_an_estimate_needs_one_value_of_an_axis() -> None:
    with pytest.raises(InputError, match="one value"):
        make_estimate(replace(SMALL, set={"tp": (2, 4)}))


def test_axes_left_out_are_neutral_and_said() -> None:
    problem, _ = resolve(SMALL)
    config, said = named_config({"tp": (4,), "vpp": (2,), "pp": (2,)}, problem)
    assert (config.dp, config.sp, config.zero, config.micro_batch) == (2, 1, 1, 1)
    assert config.num_microbatches == 32
    assert config.schedule == Schedule.INTERLEAVED
    assert "zero=1" in text_of(said[0])
    assert "tp=" not in text_of(said[0]).replace("etp=", "")
    alone, _ = named_config({"tp": (8,), "pp": (2,)}, problem)
    assert (alone.dp, alone.zero) == (1, 0)
    full, _ = named_config({"pp": (2,), "recompute": (2,)}, problem)
    assert (full.recompute, full.recompute_layers) == (Recompute.FULL, 16)
    some, _ = named_config({"recompute_layers": (4,)}, problem)
    assert (some.recompute, some.recompute_layers) == (Recompute.FULL, 4)
    selective, _ = named_config({"recompute": (1,)}, problem)
    assert selective.recompute_modules > 0


def test_the_same_request_gives_the_same_plan(small_plan: Plan) -> None:
    again = make_plan(SMALL)
    assert again.choices == small_plan.choices
    assert again.headline == small_plan.headline


def test_a_batch_that_hardly_divides_comes_with_advice(small_plan: Plan) -> None:
    plan = make_plan(replace(SMALL, global_batch="127"))
    assert "128 sequences" in line_of(plan.smallest_change)
    assert "sequences" not in line_of(small_plan.smallest_change)


def test_where_the_batch_is_held_only_what_would_fit_is_sought() -> None:
    uneven = replace(SMALL, global_batch="127")
    held = make_plan(replace(uneven, seek_batch=False))
    assert "sequences" not in line_of(held.smallest_change)
    assert held.choices == make_plan(uneven).choices
    small = Request("llama-3.1-70b", "4x8 h100 400G-ib", gpus=8, seek_batch=False, without=AS_NAMED)
    assert "this would fit" in line_of(make_plan(small).smallest_change)


def test_tensor_parallelism_across_nodes_comes_with_a_larger_batch() -> None:
    pins = {"pp": (1,), "cp": (1,)}
    few = make_plan(replace(SMALL, gpus=16, global_batch="1", set=pins))
    assert few.choices[0].config.tp == 16
    assert "a global batch of 2 sequences (of 1, tp 16 has to cross" in line_of(few.smallest_change)


def test_nothing_is_refused_for_a_batch_that_nobody_named() -> None:
    plan = make_plan(Request("llama-3.1-8b", "dgx-h100", gpus=8 * 1009, set={"tp": (8,), "cp": (1,)}))
    assert plan.choices[0].config.dp == 1009
    assert any(
        "global batch 1,009 sequences" in said and "legal here" in said for said in texts(plan.assumptions)
    )
    named = make_plan(Request("llama-3.1-8b", "dgx-h100", gpus=8 * 1009, global_batch="512"))
    assert "1009 sequences" in line_of(named.smallest_change)


def test_few_tokens_a_device_come_with_the_batch_of_a_large_run() -> None:
    pins = {"tp": (8,), "pp": (1,), "zero": (1,)}
    plan = make_plan(Request("llama-3.1-8b", "dgx-h100", gpus=16384, set=pins))
    assert "a global batch of 2048 sequences, 1,024 tokens a device (512 have 256)" in line_of(
        plan.smallest_change
    )
    named = make_plan(Request("llama-3.1-8b", "dgx-h100", gpus=16384, global_batch="512", set=pins))
    assert "tokens a device" not in line_of(named.smallest_change)
    assert not named.notes
    assert named.choices == plan.choices


def test_an_assumed_batch_that_is_much_slower_is_said_at_the_head() -> None:
    pins = {"tp": (8,), "pp": (1,), "zero": (1,), "cp": (4,), "recompute": (0,)}
    large = Request("llama-3.1-8b", "dgx-h100", gpus=16384, set=pins, top=1)
    plan = make_plan(large)
    assert plan.subject.job.global_batch == 512  # still about 4M tokens
    (note,) = plan.notes
    faster = re.fullmatch(
        r"batch assumed, not asked for: 2,048 sequences train ([\d.]+) times as many tokens/s", text_of(note)
    )
    assert faster
    other = make_plan(replace(large, global_batch="2048"))
    rates = [each.choices[0].tokens_per_second_per_device for each in (other, plan)]
    assert float(faster[1]) == pytest.approx(rates[0] / rates[1], abs=0.1)
    assert float(faster[1]) >= 1.5
    assert text_of(note) in subject_lines(plan)
    assert not other.notes
    assert not make_plan(replace(large, global_batch="512")).notes
    assert not make_plan(replace(large, gpus=1024)).notes


@pytest.mark.parametrize(("devices", "batch"), [(768, 384), (6000, 600), (10_000, 500), (100_000, 500)])
def test_an_assumed_batch_takes_odd_factors_that_pipelines_cannot(devices: int, batch: int) -> None:
    assert global_batch_of(None, 8192, devices)[0] == batch


def test_a_device_without_bf16_trains_in_fp16_and_says_so() -> None:
    plan = make_plan(Request("gpt2", "8 v100"))
    assert plan.subject.job.precision == "fp16"
    assert any("no bf16" in line for line in texts(plan.assumptions))


def test_contradictory_recomputation_is_refused() -> None:
    with pytest.raises(InputError, match="recompute_layers"):
        make_estimate(replace(SMALL, set={"recompute": (0,), "recompute_layers": (5,)}))


def test_bands_are_wide_where_nothing_was_measured() -> None:
    known, unknown = make_plan(SMALL), make_plan(Request("gpt2", "8 mi300x"))
    assert unknown.confidence.level == "L0"
    # ROCm's Megatron-LM on 8 MI300X was predicted 27 % too fast (benchmarks/RESULTS.md)
    assert 1 - 1 / (1 + unknown.confidence.band) > 0.27 > known.confidence.band
    assert "as NCCL does" not in " ".join(texts(unknown.confidence.explanation))  # on one node


def test_a_band_tells_a_card_whose_products_were_timed_from_one_of_which_nobody_timed_any() -> None:
    measured, timed, told = (
        make_estimate(Request("qwen3-0.6b", f"1x {card}", seq_len=2048, global_batch="8")).confidence
        for card in ("l40s", "rtx 3090", "a10g")
    )
    assert measured.band < timed.band < told.band
    assert "no product was timed on it" in " ".join(texts(told.explanation))


def test_the_band_of_a_cluster_without_published_runs_is_wider_than_of_those_fitted_on() -> None:
    stack = load_stack("megatron-2026")
    told = make_plan(SMALL).confidence
    assert stack.fitted
    assert told.band >= elsewhere(stack.band_at(16, moe=False))
    assert "planner calibrate narrows it" in " ".join(texts(told.explanation))


def test_devices_with_a_library_of_their_own_are_told_that_collectives_are_nccls() -> None:
    axes = {"tp": (1,)}
    said = [
        " ".join(texts(make_estimate(Request("gpt2", machine, set=axes)).confidence.explanation))
        for machine in ("2x8 mi300x 400G-ib", "2x8 h100 400G-ib")
    ]
    assert ["as NCCL does" in text for text in said] == [True, False]


def test_what_the_headroom_reserves_does_not_fit() -> None:
    pins = {"tp": (2,), "pp": (2,)}
    free = make_estimate(replace(SMALL, set=pins, headroom=0.0)).choices[0].memory
    assert free.verdict == "fits"
    capacity = free.limit
    reserved = make_estimate(replace(SMALL, set=pins, headroom=1 - 0.9 * free.peak / capacity))
    assert reserved.verdict is Verdict.DOES_NOT_FIT
    assert reserved.choices[0].memory.verdict == "does_not_fit"


def _unsure(name: str) -> Stack:
    stack = load_stack(name)
    return stack.model_copy(update={"overhead": stack.overhead.model_copy(update={"error": 0.45})})


def test_a_plan_prefers_what_surely_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.ask.request.stack_to_plan", _unsure)
    request = Request(
        "llama-3.1-8b", "dgx-h100", 8, seq_len=8192, global_batch="64", top=3, without=AS_NAMED,
        set={"pp": (2,), "cp": (1,), "vpp": (1,)},
    )  # fmt: skip
    sure, bold = make_plan(request), make_plan(replace(request, borderline=True))
    assert sure.choices[0].memory.verdict is MemoryVerdict.FITS
    assert bold.choices[0].memory.verdict is MemoryVerdict.BORDERLINE
    assert bold.choices[0].step_time < sure.choices[0].step_time
    assert any("--borderline" in in_words(caution) for caution in cautions(sure))
    assert any("borderline" in caution for caution in cautions(bold))


def test_a_gain_within_the_scatter_of_runs_is_not_worth_the_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.ask.request.stack_to_plan", _unsure)
    request = Request(
        "llama-3.1-8b", "dgx-h100", 8, seq_len=8192, global_batch="64", top=3, without=AS_NAMED,
        set={"pp": (2,), "cp": (1,), "vpp": (1,)},
    )  # fmt: skip
    sure, bold = make_plan(request), make_plan(replace(request, borderline=True))
    gain = sure.choices[0].step_time / bold.choices[0].step_time - 1
    assert gain > 0.02
    monkeypatch.setattr("planner.spec.verdict.WORTH_THE_RISK", 1.2 * gain)
    timid = make_plan(replace(request, borderline=True))
    assert timid.choices[0].config == sure.choices[0].config
    assert any(said.startswith(bold.choices[0].config.text) for said in texts(timid.notes))
    assert not any("--borderline" in in_words(caution) for caution in cautions(sure))
    monkeypatch.setattr("planner.spec.verdict.WORTH_THE_RISK", 0.8 * gain)
    assert make_plan(replace(request, borderline=True)).choices[0].config == bold.choices[0].config


def test_fp32_runs_in_fp32_where_there_is_no_tf32() -> None:
    pins = {"tp": (8,), "pp": (1,)}
    question = Request(
        "llama-3.2-1b", "v100-sxm2-32g", 8, seq_len=1024, global_batch="8", precision="fp32", set=pins
    )
    slow = make_estimate(question)
    fast = make_estimate(replace(question, cluster="1x8 a100"))
    assert slow.choices[0].peak_flops == pytest.approx(15.7e12)
    assert [any("no TF32" in text for text in texts(plan.assumptions)) for plan in (slow, fast)] == [
        True,
        False,
    ]
    assert slow.choices[0].time["gemm"] > 4 * fast.choices[0].time["gemm"]


def test_prediction_modules_that_a_model_lacks_are_refused() -> None:
    request = Request("llama-3.1-8b", "1x8 h100", mtp=True)
    with pytest.raises(InputError, match="--mtp needs a model with MTP modules"):
        resolve(request)
    assert resolve(replace(request, model="deepseek-v3"))[0].model.mtp_layers


@pytest.mark.parametrize(
    ("asked", "said", "unsaid"),
    [
        ({}, "--mean-len", ("Muon", "experts")),
        ({"optimizer": "muon", "mean_len": 4096.0}, "network", ("experts", "--mean-len", "Muon")),
        ({"optimizer": "muon", "stack": "deepspeed-2025"}, "Muon", ("experts",)),
        ({"model": "qwen3-30b-a3b"}, "--mean-len", ("Muon", "--expert-loads")),  # as training leaves them
        ({"model": "qwen3-30b-a3b", "expert_loads": "balanced"}, "--expert-loads", ("Muon",)),
        ({"model": "qwen3-30b-a3b", "expert_loads": "zipf:0.6"}, "--mean-len", ("Muon", "--expert-loads")),
    ],
)
def test_what_is_not_modelled_is_of_the_job(
    asked: dict[str, Any], said: str, unsaid: tuple[str, ...]
) -> None:
    told = " ".join(texts(not_modelled(resolve(replace(SMALL, **asked))[0])))
    assert said in told
    assert "data loader" in told
    assert not any(word in told for word in unsaid)


def test_pipelines_that_need_a_program_of_ones_own_are_tried_unless_left_out() -> None:
    request = Request(
        "llama-3.1-8b", "1x8 h100", 8, seq_len=4096, global_batch="64", stack="deepspeed-2025", top=3
    )
    assert {choice.config.pp for choice in make_plan(replace(request, without=("pipelines",))).choices} == {1}
    asked = make_plan(replace(request, set={"pp": (2,)}, without=AS_NAMED))
    assert {choice.config.pp for choice in asked.choices} == {2}
    # 1.2B parameters on cards of 24 GB whose ranks must not share states: only stages make them fit
    tight = Request(
        "llama-3.2-1b", "1x4 rtx4090 100G-ib", 4, seq_len=4096, global_batch="64", stack="deepspeed-2025"
    )
    tight = replace(tight, set={"zero": (0,), "tp": (1,)})
    taken = make_plan(tight).choices[0]
    assert taken.config.pp > 1
    assert taken.memory.verdict is MemoryVerdict.FITS
    found = make_plan(replace(tight, without=AS_NAMED))
    assert found.choices[0].memory.verdict is MemoryVerdict.BORDERLINE
    assert "this would surely fit: a pipeline, by a program of your own: --set pp=" in line_of(
        found.smallest_change
    )
    full = make_plan(replace(tight, headroom=0.2, without=AS_NAMED))
    assert full.verdict is Verdict.NOTHING_FITS
    assert "--set pp=" in line_of(full.smallest_change)


def test_adapters_are_in_the_headline() -> None:
    plan = make_plan(replace(SMALL, lora_rank=16, frozen_bits=4, top=1))
    assert ", LoRA of rank 16 on 4-bit weights" in text_of(plan.headline[0])
    assert "LoRA" not in text_of(make_plan(replace(SMALL, top=1)).headline[0])


def test_settings_of_a_run_are_said_not_to_be_used_without_one() -> None:
    asked = replace(SMALL, assume=("pue=1.3", "price=2 $/h", "checkpoint_writing=blocking"))
    said = "pue, price: not used without the length of the run (--tokens)"
    assert said in texts(resolve(asked)[1])
    assert said not in texts(resolve(replace(asked, tokens=1e12))[1])
    assert not any("not used" in line for line in texts(resolve(replace(asked, assume=asked.assume[2:]))[1]))


@pytest.mark.parametrize(
    ("batch", "seq_len", "said"),
    [
        (1, 8192, "1 sequence, 8,192 tokens"),
        (512, 8192, "512 sequences, 4.19M tokens"),
        (100, 9999, "100 sequences, 999,900 tokens"),
        (131072, 8192, "131,072 sequences, 1.07B tokens"),
    ],
)
def test_a_batch_in_words(batch: int, seq_len: int, said: str) -> None:
    found = finding("global_batch", batch=batch, seq_len=seq_len, basis="chosen")
    assert text_of(found) == f"global batch {said} (about 4M tokens)"
