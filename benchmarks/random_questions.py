"""Small random questions: models of few layers and large vocabularies, on 2 to 16 devices, under every stack.

Everything follows from one number, so that any question can be asked again. Models are written as `config.json`, as
users give them. Questions whose space cannot be looked at whole are narrowed as `--set` narrows them. Left out: what
the answers are judged by (`benchmarks/exhaustive.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.layouts import number_of_layouts
from benchmarks.legal_space import LegalSpace, divisors, legal_space
from planner.ask.request import Request, resolve
from planner.catalog.load_stacks import load_stack, stacks_to_plan
from planner.errors import PlannerError
from planner.frameworks import explicit_splits
from planner.space.restriction import parse_restriction
from planner.spec.planfile import EMPTY_CHUNKS
from planner.spec.rule import Problem

Config = dict[str, Any]

VOCABULARIES: Final = (32_000, 128_256, 151_936, 262_144)
DEVICES: Final = ("rtx4090", "a100", "h100", "b200")
SHAPES: Final = ("1x2", "1x3", "1x4", "1x6", "1x8", "1x8", "1x8", "2x4", "2x8", "2x8")
NETWORKS: Final = ("25G-eth", "100G-ib", "400G-ib")
BATCHES: Final = (8, 12, 16, 24, 32, 48, 64, 96)
HEADROOMS: Final = (0.05, 0.05, 0.05, 0.3, 0.5, 0.7, 0.85)
PIPELINES: Final = 0.5  # of questions are about pipelines alone
MOST_LEGAL: Final = 300_000
MOST_LAYOUTS: Final = 25_000  # of all pp and vpp of a question together
TRIES: Final = 200


def random_model(rng: random.Random) -> Config:
    """A `config.json` of any family."""
    return rng.choice((_llama, _llama, _qwen3_moe, _deepseek, _gemma, _gpt_oss, _nemotron_h, _qwen3_next))(
        rng
    )


def _dense(rng: random.Random, model_type: str, architecture: str, **more: Any) -> Config:
    heads, head = rng.choice((8, 12, 16, 32)), rng.choice((64, 128))
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "hidden_size": heads * head,
        "intermediate_size": heads * head * rng.choice((2, 3, 4)),
        "num_hidden_layers": rng.choice((3, 4, 5, 6, 7, 8, 8, 9, 10, 12)),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([n for n in divisors(heads) if n > 1]),
        "head_dim": head,
        "vocab_size": rng.choice(VOCABULARIES),
        "tie_word_embeddings": rng.random() < 0.4,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        **more,
    }


def _experts(rng: random.Random) -> Config:
    return {
        "num_experts_per_tok": rng.choice((1, 2, 4)),
        "moe_intermediate_size": rng.choice((256, 768, 1536)),
    }


def _llama(rng: random.Random) -> Config:
    return _dense(rng, "llama", "LlamaForCausalLM")


def _qwen3_moe(rng: random.Random) -> Config:
    return _dense(
        rng, "qwen3_moe", "Qwen3MoeForCausalLM", num_experts=rng.choice((4, 8, 12, 32)), decoder_sparse_step=1,
        mlp_only_layers=[], norm_topk_prob=True, tie_word_embeddings=False, **_experts(rng),
    )  # fmt: skip


def _deepseek(rng: random.Random) -> Config:
    heads = rng.choice((8, 16, 32))
    return _dense(
        rng, "deepseek_v2", "DeepseekV2ForCausalLM", num_attention_heads=heads, num_key_value_heads=heads,
        q_lora_rank=rng.choice((None, 512)), kv_lora_rank=256, qk_rope_head_dim=64, qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=rng.choice((4, 8, 16)), n_shared_experts=rng.choice((1, 2)), n_group=1, topk_group=1,
        topk_method="greedy", routed_scaling_factor=1.0, norm_topk_prob=False, moe_layer_freq=1, attention_bias=False,
        first_k_dense_replace=rng.choice((1, 2)), tie_word_embeddings=False, **_experts(rng),
    )  # fmt: skip


def _gemma(rng: random.Random) -> Config:
    return _dense(
        rng, "gemma3_text", "Gemma3ForCausalLM", query_pre_attn_scalar=256, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", sliding_window=512, sliding_window_pattern=rng.choice((2, 3, 6)),
        tie_word_embeddings=True,
    )  # fmt: skip


def _gpt_oss(rng: random.Random) -> Config:
    return _dense(
        rng, "gpt_oss", "GptOssForCausalLM", num_local_experts=rng.choice((4, 8, 16)), num_experts_per_tok=2,
        attention_bias=True, sliding_window=128, tie_word_embeddings=False,
    )  # fmt: skip


def _nemotron_h(rng: random.Random) -> Config:
    pattern = "".join(rng.choice("MM-*") for _ in range(rng.choice((4, 5, 6, 8))))
    return _dense(
        rng, "nemotron_h", "NemotronHForCausalLM", num_hidden_layers=len(pattern) + 2,
        hybrid_override_pattern=f"M{pattern}-", mamba_num_heads=32, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
        mlp_hidden_act="relu2", mlp_bias=False, attention_bias=False, use_bias=False, use_conv_bias=True, conv_kernel=4,
        chunk_size=128, layer_norm_epsilon=1e-5, tie_word_embeddings=False,
    )  # fmt: skip


def _qwen3_next(rng: random.Random) -> Config:
    return _dense(
        rng, "qwen3_next", "Qwen3NextForCausalLM", full_attention_interval=rng.choice((2, 3, 4)),
        linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=8, linear_num_value_heads=16,
        linear_value_head_dim=128, decoder_sparse_step=1, mlp_only_layers=[], num_experts=rng.choice((4, 8, 16)),
        norm_topk_prob=True, shared_expert_intermediate_size=512, partial_rotary_factor=0.25, tie_word_embeddings=False,
        **_experts(rng),
    )  # fmt: skip


def _restrictions(rng: random.Random, request: Request) -> dict[str, str]:
    """Some axes held as `--set` holds them, by name."""
    stack = load_stack(request.stack or "megatron-2026")
    limits = stack.limits

    def few(values: Sequence[object]) -> str:
        return ",".join(map(str, rng.sample(values, min(len(values), rng.choice((1, 1, 2))))))

    offloads = {0: "none", 1: "none,optimizer", 3: "none,optimizer+params", 4: "none,activations"}
    ways: dict[str, Callable[[], str]] = {
        "pp": lambda: rng.choice(("1", "2", "4", "8", "2,4", "2,4,8", "4,8", "3", "6")),
        "vpp": lambda: rng.choice(("1", "1,2", "2", "3", "2,3")),
        "schedule": lambda: few(limits.schedules),
        "zero": lambda: few(limits.zero),
        "tp": lambda: rng.choice(("1", "2", "1,2", "4")),
        "cp": lambda: rng.choice(("1", "1,2")),
        "micro_batch": lambda: rng.choice(("1", "2", "1,2,4")),
        "recompute": lambda: rng.choice(("none", "none,selective", "full", "none,full")),
        "offload": lambda: offloads[rng.choice([bits for bits in limits.offload if bits in offloads])],
        "sp": lambda: rng.choice(("0,1", "0")),
    }
    chosen = rng.sample(sorted(ways), rng.choice((0, 0, 1, 1, 2, 3)))
    held = {axis: ways[axis]() for axis in chosen}
    if rng.random() < PIPELINES:  # small models seldom have one unasked
        held["pp"] = rng.choice(("2", "4", "8", "2,4", "4,8", "2,4,8", "3,6", "6"))
    return held


@dataclass(frozen=True)
class Question:
    """A question, what it stands for, its model's `config.json`, and all that is legal."""

    request: Request
    problem: Problem
    config: Config
    space: LegalSpace


def random_question(seed: str, folder: Path) -> Question:
    """The question of a seed, its model written into `folder`: one of which something is legal."""
    rng = random.Random(seed)
    for _ in range(TRIES):
        drawn = random_request(rng, folder / f"question-{seed}.json")
        if drawn is None:
            continue
        request, problem, config = drawn
        request = narrowed(request, problem)
        space = legal_space(problem, request.restrict, MOST_LEGAL)
        if space:
            return Question(request, problem, config, space)
    raise AssertionError(f"no question of seed {seed} can be asked")


def random_request(rng: random.Random, path: Path) -> tuple[Request, Problem, Config] | None:
    """A question about a random model, which is written into a file; None where it cannot be asked."""
    config = random_model(rng)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    shape, lengths = rng.choice(SHAPES), (512, 1024, 2048, 4096)
    request = Request(
        str(path), f"{shape} {rng.choice(DEVICES)} {rng.choice(NETWORKS)}", None, seq_len=rng.choice(lengths),
        global_batch=str(rng.choice(BATCHES)), stack=rng.choice(_stacks()), headroom=rng.choice(HEADROOMS),
        seek_batch=False, front=False,
    )  # fmt: skip
    held = _restrictions(rng, request)
    try:
        request = replace(request, set=parse_restriction(f"{axis}={value}" for axis, value in held.items()))
        problem, _ = resolve(request)
    except PlannerError:
        return None
    return request, problem, config


def _stacks() -> list[str]:
    """Every stack; those that can be told a layout three times."""
    return [
        name
        for name in stacks_to_plan()
        for _ in range(3 if explicit_splits(load_stack(name).framework) else 1)
    ]


def narrowed(request: Request, problem: Problem) -> Request:
    """The question with fewer chunks in a pipeline where there are too many layouts to look at."""
    restrict = dict(request.restrict)
    if not explicit_splits(problem.stack.framework):
        return request
    for axis, value in (("vpp", 3), ("vpp", 2), ("vpp", 1), ("pp", 6), ("pp", 4), ("pp", 3), ("pp", 2)):
        if layouts(problem, restrict) <= MOST_LAYOUTS:
            break
        free = tuple(range(1, value + 1)) if axis == "vpp" else divisors(problem.cluster.num_devices)
        values = restrict.get(axis, free)
        restrict[axis] = tuple(v for v in values if v <= value) or (1,)
    return replace(request, set=restrict)


def layouts(problem: Problem, restrict: dict[str, tuple[int, ...]]) -> int:
    """Layouts of all pp and vpp of a restriction."""
    layers, devices = problem.model.num_layers, problem.cluster.num_devices
    pairs = (
        (pp, vpp)
        for pp in restrict.get("pp", divisors(devices))
        for vpp in restrict.get("vpp", range(1, (layers + EMPTY_CHUNKS) // pp + 1))
        if pp > 1 and devices % pp == 0 and pp * vpp <= layers + EMPTY_CHUNKS
    )
    return sum(number_of_layouts(layers, pp * vpp) for pp, vpp in pairs)
