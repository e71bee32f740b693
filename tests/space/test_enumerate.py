"""Does the space hold every legal configuration once, and account for each of the others?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.catalog.load_stacks import load_stack
from planner.errors import InputError
from planner.space.axes import Restriction, divisors, stack_modules
from planner.space.enumerate import enumerate_configs
from planner.space.legality import changed_axes, explain_config, nearest_legal
from planner.space.recomputations import Recomputations, module_lists
from planner.space.rules import RULES
from planner.spec.config import (
    AXES,
    RECOMPUTE_MODULES,
    ConfigTable,
    ParallelConfig,
    Recompute,
    Schedule,
    recomputed_modules,
)
from planner.spec.model import ModelSpec
from planner.spec.rule import Problem
from planner.spec.stack.kinds import AttentionKernel, RecomputedLayers
from tests.problems import dense_model, legal_table, moe_model, problem, random_rows


def divisors_by_hand(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def documented_space(subject: Problem) -> Iterator[ParallelConfig]:
    """The product of the documented axes, as nested loops."""
    devices, layers = subject.cluster.num_devices, subject.model.num_layers
    experts = [layer.moe.experts for layer in subject.model.layers if layer.moe]
    lists = lists_by_hand(subject)
    for tp, cp, pp in (
        (t, c, p)
        for t in divisors_by_hand(devices)
        for c in divisors_by_hand(devices)
        for p in (divisors_by_hand(devices) if subject.stack.pipelines_tried else [1])
        if devices % (t * c * p) == 0
    ):
        dp = devices // (tp * cp * pp)
        share = subject.job.global_batch // dp
        for vpp in range(1, max(1, (layers + 2) // pp) + 1) if pp > 1 else (1,):
            most = -(-layers // pp)
            full = [*range(vpp, most, vpp), most] if subject.stack.limits.partial_full_recompute else [most]
            recomputed = [(Recompute.NONE, 0, 0), *((Recompute.SELECTIVE, 0, mask) for mask in lists)]
            recomputed += [(Recompute.FULL, count, 0) for count in full]
            for sp in (0, 1) if tp > 1 else (0,):
                for ep in divisors_by_hand(experts[0]) if experts else (1,):
                    for etp in divisors_by_hand(tp) if experts else (1,):
                        for micro in divisors_by_hand(share) if share else (1,):
                            for zero in range(4):
                                for (kind, count, mask), schedule, exchange, group in product(
                                    recomputed, schedules_by_hand(subject, vpp),
                                    exchanges_by_hand(subject, cp), groups_by_hand(subject, dp * cp),
                                ):  # fmt: skip
                                    yield ParallelConfig(
                                        tp, cp, pp, dp, vpp, ep, etp, micro,
                                        max(subject.job.global_batch // (dp * micro), 1), sp, zero,
                                        recompute=kind, recompute_layers=count, recompute_modules=mask,
                                        schedule=schedule, cp_kind=exchange, hsdp=group,
                                    )  # fmt: skip


def exchanges_by_hand(subject: Problem, cp: int) -> list[int]:
    """Megatron-LM's three ways to exchange keys and values; other frameworks have one."""
    return [0, 1, 2] if cp > 1 and subject.stack.framework == "megatron" else [0]


def groups_by_hand(subject: Problem, ranks: int) -> list[int]:
    """Ranks that share a shard: all of them, or fewer where weights are sharded in groups."""
    groups = divisors_by_hand(ranks)[1:-1] if 3 in subject.stack.limits.hybrid_sharding else []
    return [0, *groups]


def lists_by_hand(subject: Problem) -> list[int]:
    """Its own, and every set of the modules that the stack takes one by one and a layer has, none within another; flash
    attention in no such set."""
    own = stack_modules(subject)
    if not subject.stack.limits.recompute_modules:
        return [own]
    mixture = any(layer.moe for layer in subject.model.layers)
    shared = any(layer.moe and layer.moe.shared_ffn for layer in subject.model.layers)
    there = {"layernorm", *(["mlp"] if any(layer.mlp for layer in subject.model.layers) else [])}
    there |= ({"moe", "moe_act"} if mixture else set()) | ({"shared_experts"} if shared else set())
    masks = range(1, 2 ** len(RECOMPUTE_MODULES))
    sets = {mask: set(recomputed_modules(mask)) for mask in masks}
    inside = {"moe_act", "shared_experts"}
    chosen = {m for m, names in sets.items() if names <= there and not ("moe" in names and names & inside)}
    return sorted({own} | chosen)


def schedules_by_hand(subject: Problem, vpp: int) -> list[int]:
    names = subject.stack.limits.schedules
    if vpp == 1:
        return [Schedule.ONE_F_ONE_B, *([Schedule.GPIPE] if "gpipe" in names else [])]
    looped = [Schedule.INTERLEAVED] if "interleaved" in names else []
    return [*looped, *([Schedule.GPIPE] if "gpipe" in names else [])] or [Schedule.INTERLEAVED]


def legal_by_every_rule(table: ConfigTable, subject: Problem) -> np.ndarray:
    legal = np.ones(len(table), dtype=bool)
    for rule in RULES:
        legal &= rule.legal(table.columns, subject)
    return legal


def rows_of(table: ConfigTable) -> list[tuple[int, ...]]:
    return sorted(zip(*(table[axis].tolist() for axis in AXES), strict=True))


# heads of 12 and 24 allow tp = 3 and 6 on 24, 48, 96 GPUs
THREES = dense_model(layers=6, hidden=1536, heads=12, kv_heads=6, ffn=6144)
CASES: dict[str, Problem] = {
    "8 dense": problem(dense_model(layers=4), "1x8 h100", global_batch=8),
    "16 dense nanotron": problem(dense_model(layers=6), global_batch=12, stack="nanotron-2024"),
    "8 moe": problem(moe_model(layers=4, experts=8), "1x8 h100", global_batch=8),
    "8 moe torchtitan": problem(
        moe_model(layers=3, experts=6), "1x8 h100", global_batch=6, stack="torchtitan-2024"
    ),
    "24 threes": problem(THREES, "3x8 h100 400G-ib", seq_len=3072, global_batch=24),
    "12 on odd nodes": problem(THREES, "2x6 h100 400G-ib", seq_len=4608, global_batch=18),
    "7 layers": problem(dense_model(layers=7), "1x4 h100", global_batch=10, stack="deepspeed-2025"),
    "prime batch": problem(dense_model(layers=4), "1x8 h100", global_batch=7),
}
limits = load_stack("megatron-2026").limits.model_copy(update={"recomputed_layers": RecomputedLayers.ALL})
CASES["all or none"] = problem(
    dense_model(layers=6), "1x8 h100", global_batch=8,
    stack=load_stack("megatron-2026").model_copy(update={"limits": limits}),
)  # fmt: skip
every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_the_legal_set_is_that_of_nested_loops(name: str) -> None:
    subject = CASES[name]
    table = ConfigTable.of(list(documented_space(subject)))
    space = enumerate_configs(subject, RULES)
    legal = table.take(legal_by_every_rule(table, subject))
    assert rows_of(space.table()) == rows_of(legal)
    assert space.total == len(table)
    assert len(space) == len(legal) > 0


@every_case
def test_no_configuration_comes_twice(name: str) -> None:
    rows = rows_of(legal_table(CASES[name]))
    assert len(set(rows)) == len(rows)


@every_case
def test_counts_add_up(name: str) -> None:
    space = enumerate_configs(CASES[name], RULES)
    assert space.total == len(space) + sum(removed.candidates for removed in space.removed)


@every_case
def test_every_row_is_legal_on_its_own(name: str) -> None:
    rows = random_rows(legal_table(CASES[name]), 200, seed=1)
    for row in range(len(rows)):
        assert explain_config(rows.row(row), CASES[name], RULES) == ()


def legal_by_hand(row: ParallelConfig, subject: Problem) -> bool:
    """What Megatron-LM accepts, written a second time."""
    layer, job, limits = subject.model.layers[-1], subject.job, subject.stack.limits
    kv, world = layer.attention.kv_heads, row.tp * row.cp * row.pp * row.dp
    ffn = [block.mlp.ffn for block in subject.model.layers if block.mlp]
    ffn += [block.moe.shared_ffn for block in subject.model.layers if block.moe and block.moe.shared_ffn]
    moe = layer.moe
    most = -(-subject.model.num_layers // row.pp)
    return (
        world == subject.cluster.num_devices
        and layer.attention.heads % row.tp == 0
        and (kv % row.tp == 0 or row.tp % kv == 0)
        and all(width % row.tp == 0 for width in ffn)
        and (row.cp == 1 or job.seq_len % (2 * row.cp) == 0)
        and row.pp * row.vpp <= subject.model.num_layers + 2 * (row.vpp > 1)
        and (
            row.vpp == 1
            or any((subject.model.num_layers + less) % (row.pp * row.vpp) == 0 for less in range(5))
        )
        and (row.vpp == 1 or (row.pp > 1 and row.num_microbatches % row.pp == 0))
        and job.global_batch == row.dp * row.micro_batch * row.num_microbatches
        and (row.sp == 0 or (row.tp > 1 and job.seq_len % (row.tp * row.cp) == 0))
        and (moe is None or moe.experts % row.ep == 0)
        and (row.etp == 1 or (moe is not None and moe.expert_ffn % row.etp == 0))
        and (row.tp * row.cp * row.dp) % (row.ep * row.etp) == 0
        and row.zero in (subject.stack.zero_with_pp if row.pp > 1 else limits.zero)
        and (row.zero == 0 or row.dp * row.cp > 1)
        and (row.tp == 1 or row.sp in limits.sequence_parallel)
        and (row.recompute_layers % row.vpp == 0 or row.recompute_layers == most)
    )


@pytest.mark.parametrize("name", ["8 dense", "8 moe", "24 threes", "12 on odd nodes"])
def test_the_legal_set_is_that_of_the_rules_written_a_second_time(name: str) -> None:
    subject = CASES[name]
    table = ConfigTable.of([row for row in documented_space(subject) if legal_by_hand(row, subject)])
    assert rows_of(legal_table(subject)) == rows_of(table)


def random_restriction(subject: Problem, seed: int) -> Restriction:
    """Some axes pinned to one or a few values, possible or not."""
    chance = random.Random(seed)
    values = {
        "tp": [1, 2, 3, 4, 8, 16], "cp": [1, 2, 4, 5], "pp": [1, 2, 3, 4, 8], "dp": [1, 2, 4, 6, 8], "sp": [0, 1],
        "ep": [1, 2, 3, 8], "etp": [1, 2], "vpp": [1, 2, 3, 5], "micro_batch": [1, 2, 3, 4],
        "zero": [0, 1, 2, 3], "recompute": [0, 1, 2], "recompute_layers": [0, 1, 2, 4],
    }  # fmt: skip
    chosen = chance.sample(sorted(values), chance.randint(1, 4))
    return {
        axis: tuple(chance.sample(values[axis], chance.randint(1, min(3, len(values[axis])))))
        for axis in chosen
    }


@pytest.mark.parametrize("seed", range(60))
def test_a_restriction_leaves_the_legal_rows_with_those_values(seed: int) -> None:
    subject = CASES[sorted(CASES)[seed % len(CASES)]]
    restrict = random_restriction(subject, seed)
    space = enumerate_configs(subject, RULES, restrict)
    assert space.total == len(space) + sum(removed.candidates for removed in space.removed)
    table = space.table()
    for axis, values in restrict.items():
        allowed = np.isin(table[axis], values)
        if axis == "recompute_layers":  # more than a stage has means all of them
            most = -(-subject.model.num_layers // table["pp"])
            allowed |= (table[axis] == most) & (max(values) > most)
        assert allowed.all(), axis
    whole = legal_table(subject)
    keep = np.ones(len(whole), dtype=bool)
    for axis, values in restrict.items():
        keep &= np.isin(whole[axis], values)
    if "recompute" in restrict and "recompute_layers" not in restrict:  # "full" alone means all layers
        most = -(-subject.model.num_layers // whole["pp"])
        keep &= (whole["recompute"] != Recompute.FULL) | (whole["recompute_layers"] == most)
    # every legal row with those values is found; values outside the free axis' own domain may add more
    assert set(rows_of(whole.take(keep))) <= set(rows_of(table))
    for row in rows_of(random_rows(table, 20, seed)):
        assert explain_config(ParallelConfig(*row), subject, RULES) == ()


@pytest.mark.parametrize("seed", range(40))
def test_counts_add_up_on_random_problems(seed: int) -> None:
    chance = random.Random(seed)
    layers = chance.randint(1, 12)
    model: ModelSpec = (
        moe_model(layers, leading_dense=chance.randint(0, layers - 1), experts=chance.choice([4, 6, 16]))
        if chance.random() < 0.5
        else dense_model(layers, heads=16, kv_heads=chance.choice([1, 2, 8, 16]))
    )
    machine = chance.choice(["1x8 h100", "2x8 h100 400G-ib", "3x8 a100 200G-ib", "6x8 h100 400G-ib"])
    stack = chance.choice(
        ["megatron-2026", "megatron-2022", "nanotron-2024", "torchtitan-2026", "deepspeed-2025"]
    )
    subject = problem(
        model, machine, seq_len=chance.choice([100, 4095, 4096]), global_batch=chance.randint(1, 96),
        stack=stack,
    )  # fmt: skip
    space = enumerate_configs(subject, RULES)
    assert space.total == len(space) + sum(removed.candidates for removed in space.removed)
    assert len(space.table()) == len(space)
    rows = random_rows(space.table(), 10, seed)
    assert all(explain_config(rows.row(i), subject, RULES) == () for i in range(len(rows)))


@pytest.mark.parametrize("machine", ["3x8 h100 400G-ib", "6x8 h100 400G-ib", "12x8 h100 400G-ib"])
def test_device_counts_that_are_no_power_of_two(machine: str) -> None:
    table = legal_table(problem(THREES, machine, seq_len=3072, global_batch=96))
    assert {1, 2, 3, 6, 12} == set(table["tp"].tolist())
    assert {3, 6} <= set(table["pp"].tolist())
    assert 3 in table["cp"]
    assert 24 in (table["dp"] * table["cp"])


def test_restrictions_that_are_impossible_are_refused() -> None:
    subject = CASES["8 dense"]
    bad_ones: tuple[Restriction, ...] = (
        {"tp": (0,)}, {"sp": (2,)}, {"zero": (4,)}, {"recompute": (3,)}, {"tp": (-1,)}, {"pp": (2**21,)},
        {"cp_kind": (3,)}, {"nonsense": (1,)},
    )  # fmt: skip
    for bad in bad_ones:
        with pytest.raises(InputError):
            enumerate_configs(subject, RULES, bad)


def test_exchanges_of_context_parallelism_are_those_asked_for_where_there_is_any() -> None:
    subject = CASES["8 dense"]
    plain = enumerate_configs(subject, RULES, {"cp_kind": (0,)}).table()
    assert not plain["cp_kind"].any()
    divided = int((plain["cp"] > 1).sum())
    for asked in ((0, 2), (0, 1, 2), None):
        table = enumerate_configs(subject, RULES, {"cp_kind": asked} if asked else {}).table()
        assert len(table) == len(plain) + divided * (len(asked or (0, 1, 2)) - 1)
        assert not table["cp_kind"][table["cp"] == 1].any()
        assert set(table["cp_kind"][table["cp"] > 1]) == set(asked or (0, 1, 2))


def test_groups_that_share_a_shard_are_tried_where_weights_are_sharded() -> None:
    subject = CASES["8 moe torchtitan"]
    table = enumerate_configs(subject, RULES).table()
    groups = table.take(table["hsdp"] > 0)
    assert set(groups["zero"].tolist()) <= set(subject.stack.limits.hybrid_sharding)
    assert (groups["dp"] * groups["cp"] % groups["hsdp"] == 0).all()
    assert (groups["hsdp"] < groups["dp"] * groups["cp"]).all()
    assert set(groups["hsdp"].tolist()) == {2, 4}
    assert not enumerate_configs(CASES["8 dense"], RULES).table()["hsdp"].any()  # states alone are sharded


def test_what_p2p_stands_for_is_not_tried_twice() -> None:
    gathers = replace(CASES["8 dense"], stack=load_stack("torchtitan-2026"))  # p2p is an all-gather there
    for asked in ((0, 1), (1,), (0, 1, 2)):
        table = enumerate_configs(gathers, RULES, {"cp_kind": asked}).table()
        assert set(table["cp_kind"][table["cp"] > 1]) == {1}


def test_a_degree_that_divides_nothing_leaves_nothing_and_says_why() -> None:
    space = enumerate_configs(CASES["8 dense"], RULES, {"tp": (3,)})
    assert len(space) == 0
    assert {removed.rule for removed in space.removed} >= {"world-size"}
    assert space.total == sum(removed.candidates for removed in space.removed) > 0


def test_contradicting_pins_leave_nothing() -> None:
    # no layer is recomputed although all of them should be
    space = enumerate_configs(CASES["8 dense"], RULES, {"recompute": (2,), "recompute_layers": (0,)})
    assert (space.total, len(space)) == (0, 0)
    assert len(space.table()) == 0


def test_pinned_recomputed_layers_are_the_only_ones() -> None:
    table = enumerate_configs(CASES["8 dense"], RULES, {"recompute_layers": (1,)}).table()
    assert set(table["recompute_layers"].tolist()) == {1}
    assert set(table["recompute"].tolist()) == {int(Recompute.FULL)}


def test_pinned_recomputed_layers_obey_the_rules() -> None:
    # half of a virtual stage cannot be recomputed, and this stack recomputes all layers or none
    for name, rule in (("8 dense", "recompute-vpp"), ("all or none", "recompute-partial")):
        space = enumerate_configs(CASES[name], RULES, {"recompute_layers": (1,)})
        assert space.total == len(space) + sum(removed.candidates for removed in space.removed)
        assert rule in {removed.rule for removed in space.removed}
        rows = space.table()
        assert legal_by_every_rule(rows, CASES[name]).all()


def test_divisors() -> None:
    for number in range(1, 200):
        assert list(divisors(number)) == divisors_by_hand(number)


ILLEGAL = (
    ParallelConfig(tp=3, dp=2, num_microbatches=4),
    ParallelConfig(tp=2, pp=3, dp=1, num_microbatches=8),
    ParallelConfig(tp=8, micro_batch=5, num_microbatches=1),
    ParallelConfig(dp=8, vpp=2, num_microbatches=1),
    ParallelConfig(dp=8, ep=3, num_microbatches=1, recompute=Recompute.FULL, recompute_layers=3),
    ParallelConfig(tp=16, dp=16, zero=3, sp=1),
)


@pytest.mark.parametrize("name", ["8 dense", "8 moe", "7 layers"])
@pytest.mark.parametrize("config", ILLEGAL, ids=lambda config: config.describe())
def test_the_nearest_legal_configuration_is_the_nearest(name: str, config: ParallelConfig) -> None:
    subject = CASES[name]
    near = nearest_legal(config, subject, RULES)
    assert near is not None
    assert explain_config(near, subject, RULES) == ()
    whole = legal_table(subject)
    changed, distance = changed_axes(whole, config)
    best = min(zip(changed.tolist(), distance.tolist(), strict=True))
    found = changed_axes(ConfigTable.of([near]), config)
    assert (int(found[0][0]), float(found[1][0])) == pytest.approx(best)


def test_a_legal_configuration_is_its_own_nearest() -> None:
    rows = random_rows(legal_table(CASES["8 moe"]), 20, seed=3)
    for row in (rows.row(i) for i in range(len(rows))):
        assert nearest_legal(row, CASES["8 moe"], RULES) == row


def test_where_nothing_is_legal_there_is_no_nearest() -> None:
    subject = CASES["8 dense"]
    nothing = replace(RULES[0], legal=lambda columns, given: np.zeros(len(columns["tp"]), dtype=np.bool_))
    assert nearest_legal(ILLEGAL[0], subject, (nothing,)) is None


def test_schedules_are_an_axis_and_every_removed_one_is_counted() -> None:
    stack = load_stack("megatron-2026")
    limits = stack.limits.model_copy(update={"schedules": ("1f1b", "interleaved", "zb-v", "dualpipe")})
    several = replace(problem(), stack=stack.model_copy(update={"limits": limits}))
    found = enumerate_configs(several, RULES)
    kinds = set(np.unique(found.stems["schedule"]).tolist())
    assert kinds == {Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_V, Schedule.DUALPIPE}
    assert len(found) + sum(entry.candidates for entry in found.removed) == found.total
    usual = enumerate_configs(problem(), RULES)
    mine = found.table()
    assert int(np.isin(mine["schedule"], (0, 1)).sum()) == len(usual)
    only = enumerate_configs(several, RULES, {"schedule": (int(Schedule.ZB_V),)}).table()
    assert set(only["schedule"].tolist()) == {Schedule.ZB_V}
    assert set(only["vpp"].tolist()) == {2}


def selections(subject: Problem) -> set[tuple[str, ...]]:
    table = enumerate_configs(subject, RULES).table()
    return {recomputed_modules(mask) for mask in table["recompute_modules"].tolist() if mask}


def test_selective_recomputation_only_where_the_model_has_its_modules() -> None:
    """A stack that recomputes dense MLPs, of which a pure mixture of experts has none; operations every model has."""
    experts = moe_model()
    only = replace(experts, layers=tuple(layer for layer in experts.layers if layer.moe))
    assert selections(problem(only, stack="torchtitan-2026")) == {("op",)}
    sparse = problem(only)
    assert selections(sparse)
    assert not any("mlp" in names for names in selections(sparse))
    limits = sparse.stack.limits.model_copy(update={"recompute": ("mlp",)})
    stack = sparse.stack.model_copy(update={"limits": limits})
    assert selections(problem(dense_model(), stack=stack)) == {("mlp",)}
    assert selections(replace(sparse, stack=stack)) == set()


def test_lists_of_modules_hold_none_twice() -> None:
    lists = [recomputed_modules(mask) for mask in module_lists(("moe_act", "layernorm", "moe"))]
    assert lists == [("moe_act",), ("layernorm",), ("moe",), ("moe_act", "layernorm"), ("layernorm", "moe")]


def test_attention_is_recomputed_beside_others_where_it_keeps_scores() -> None:
    subject = problem(dense_model(layers=4), "1x8 h100", global_batch=8)
    eager = subject.stack.kernels.model_copy(update={"attention": AttentionKernel.EAGER})
    unfused = replace(subject, stack=subject.stack.model_copy(update={"kernels": eager}))
    both = ("core_attn", "layernorm")
    assert both in selections(unfused)
    assert both not in selections(subject)
    assert ("core_attn",) in selections(subject)


def test_what_starts_with_least() -> None:
    nothing, norms, both = (0, 0, 0), (1, 4, 0), (1, 6, 0)
    some, most = (2, 0, 2), (2, 0, 8)
    assert Recomputations.of([nothing, norms, some]).starts_with_least
    assert Recomputations.of([norms, both]).starts_with_least
    assert Recomputations.of([some, most]).starts_with_least
    assert not Recomputations.of([both, norms]).starts_with_least
    assert not Recomputations.of([norms, some]).starts_with_least
    assert not Recomputations.of([(1, 2, 0), norms]).starts_with_least


def test_modules_that_are_asked_for_are_an_axis() -> None:
    """Every configuration with selective recomputation once for each selection, all others as before."""
    subject = problem(moe_model())
    layernorm, both = 1 << RECOMPUTE_MODULES.index("layernorm"), 6
    spaces = {
        masks: enumerate_configs(subject, RULES, {"recompute_modules": masks} if masks else {})
        for masks in ((), (layernorm,), (layernorm, both))
    }
    tables = {masks: space.table() for masks, space in spaces.items()}
    kinds = {masks: table["recompute"] == Recompute.SELECTIVE for masks, table in tables.items()}
    own = int(kinds[(layernorm,)].sum())
    lists = np.unique(tables[()]["recompute_modules"][kinds[()]], return_counts=True)
    assert set(lists[0].tolist()) == set(lists_by_hand(subject))
    assert lists[1].tolist() == [own] * len(lists[0])
    columns, chosen = tables[layernorm, both], kinds[layernorm, both]
    assert np.unique(columns["recompute_modules"][chosen], return_counts=True)[1].tolist() == [own] * 2
    assert (columns["recompute_modules"][~chosen] == 0).all()
    assert (~chosen).sum() == (~kinds[()]).sum()
    more = spaces[layernorm, both].total - spaces[(layernorm,)].total
    assert spaces[()].total == spaces[(layernorm,)].total + (len(lists[0]) - 1) * more


def test_the_nearest_legal_keeps_the_modules() -> None:
    subject = problem(moe_model())
    wanted = ParallelConfig(tp=3, dp=16, recompute=int(Recompute.SELECTIVE), recompute_modules=6, zero=1)
    found = nearest_legal(wanted, subject, RULES)
    assert found is not None
    assert (found.recompute, found.recompute_modules) == (Recompute.SELECTIVE, 6)


def test_every_configuration_has_a_text_of_its_own() -> None:
    subject = problem(moe_model(4), "1x8 h100", global_batch=16)
    table = enumerate_configs(subject, RULES, {"hsdp": (0, 2), "offload": (0, 1)}).table()
    texts = {table.row(i).describe() for i in range(len(table))}
    assert len(texts) == len(table)
    assert any(" etp2 " in text and " ep" not in text for text in texts)


@pytest.mark.parametrize("early", [(6,), (8, 12), (3, 24)])
def test_every_batch_of_a_schedule_is_legal_alone(early: tuple[int, ...]) -> None:
    """Legal under a schedule are those that each of its batches can be dealt to, by all rules."""
    subject = problem(dense_model(layers=4), "1x8 h100", global_batch=48)
    stages = tuple((batch, 1e9 * place) for place, batch in enumerate(early, 1))
    staged = replace(subject, job=replace(subject.job, tokens=1e12, batch_schedule=stages))

    def legal(one: Problem) -> set[ParallelConfig]:
        table = enumerate_configs(one, RULES).table()
        return {replace(table.row(row), num_microbatches=1) for row in range(len(table))}

    alone = [legal(replace(subject, job=subject.job.with_batch(batch))) for batch in (*early, 48)]
    assert legal(staged) == set.intersection(*alone)
    assert 0 < len(legal(staged)) < len(alone[-1])
    refused = next(iter(alone[-1] - legal(staged)))
    number = 48 // (refused.dp * refused.micro_batch)
    broken = explain_config(replace(refused, num_microbatches=number), staged, RULES)
    assert broken, "and it is said by which rule"
    unused = replace(staged, job=replace(staged.job, tokens=None))  # nothing of a run is counted
    assert legal(unused) == alone[-1]
