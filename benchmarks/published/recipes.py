"""What do a published recipe and a named release add to what a row states?

Left out: switches that a row sets itself (`published/switches.py`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from benchmarks.published.cells import Row
from benchmarks.published.releases import release_of
from benchmarks.published.words import Word
from planner.ask.routing import usual_imbalance
from planner.errors import UnsupportedError
from planner.report.words import texts
from planner.spec.findings import Finding
from planner.spec.layer import Layer
from planner.spec.load_finding_codes import TEXT
from planner.spec.load_model import load_model, resolve_catalog_name
from planner.spec.model import ModelSpec
from planner.spec.precision import Precision
from planner.spec.stack import Stack
from planner.spec.stack.kinds import Dispatcher
from planner.spec.stack.losses import InPlace

ADAPTERS: Final = Word(r"\bq?lora\b")
# Models whose recipes in Megatron-Bridge keep the optimizer's moments in bf16 (use_precision_aware_optimizer with
# exp_avg_dtype bf16 in src/megatron/bridge/recipes, August 2026).
BF16_MOMENTS: Final = re.compile(
    r"moonlight|deepseek[-_]?v[34]|glm[-_]?5|olmoe|minimax[-_]?m3", re.IGNORECASE
)
_BALANCED: Final = re.compile(
    r"forced?[ _-](?:load[ _-])?balanc|balanced (?:routing|experts|gate)|fake[ _-]balanc"
)
_DISPATCHERS: Final = re.compile("alltoall|all-to-all|hybrid-?ep|deep-?ep")
# NVFP4 parameters are gathered in 4 bits from Megatron-Bridge 0.5.0 on, the container of 26.06 (its #3364 of 2026-04;
# 0.4.1's training/mixed_precision.py has no such field), but for recipes that switch it off (067f987 perf_recipes
# gpt_oss/common.py, nemotronh/common.py, deepseek/b200/deepseek_v3.py): models, and devices, of these.
FP4_GATHERED_FROM: Final = 202606
# Nemotron 3 Super and Ultra run their one prediction module twice (mtp_num_layers, mtp_use_repeated_layer; v0.4.0
# recipes/nemotronh/nemotron_3_super.py, 067f987 nemotron_3_ultra.py). Here as two: the second's weights count again.
MTP_REPEATED: Final = 2
HALF: Final = 2.0  # bytes of a gradient in bf16
_FP4_NOT_GATHERED: Final = (("gpt[-_]?oss|nemotron", ""), (r"deepseek[-_]?v3", "b200"))
_BF16_ENDS: Final = (("gpt[-_]?oss", (0, 4)), ("nemotron[-_]?3[-_]?super", (0, 14)))
# Most performance recipes of Megatron-Bridge for mixtures of experts on GB200 and GB300 capture the router and what
# follows it at least, those of hybrids attention and Mamba too (v0.2.0, the container of 25.11,
# scripts/performance/configs; 067f987 perf_recipes).
GRAPHS_ON_GRACE_FROM: Final = 202511
Narrowed = dict[tuple[int, bool, bool, Dispatcher, bool, bool], Stack]


def with_routing_groups(model: ModelSpec, hf_id: str) -> ModelSpec:
    """The model with its router's groups of experts, which a description cannot state, from the release it names."""
    name = resolve_catalog_name(hf_id) if hf_id and model.is_moe else None
    if name is None:
        return model
    released = [layer.moe for layer in load_model(name).layer_kinds if layer.moe is not None]

    def grouped(layer: Layer) -> Layer:
        moe = layer.moe
        same = [r for r in released if moe and (r.experts, r.top_k) == (moe.experts, moe.top_k)]
        if moe is None or not same:
            return layer
        return replace(layer, moe=replace(moe, groups=same[0].groups, top_groups=same[0].top_groups))

    return replace(model, layers=tuple(grouped(layer) for layer in model.layers))


def imbalance_in(
    cells: Row, model: ModelSpec, hf_id: str, stack: Stack, assumed: list[str]
) -> tuple[tuple[int, float], ...]:
    """Tokens of the busiest expert-parallel rank over the mean, by degree; none where the row or its recipe balances
    routing. Performance recipes of NeMo and Megatron-Bridge force it (moe_router_force_load_balancing in
    scripts/performance of both)."""
    recipe = re.search("bridge|nemo|dgxc", cells["framework"].lower())
    if not model.is_moe or recipe or _BALANCED.search(cells["extras"].lower()):
        return ()
    name = resolve_catalog_name(hf_id or cells["model"]) or resolve_catalog_name(cells["model"])
    said = list[Finding]()
    found = usual_imbalance(replace(model, family=load_model(name).family if name else ""), stack, said)
    assumed += texts(said)
    return found


def released_model(key: str, hf_id: str) -> ModelSpec:
    """The model that planner ships under either name, where a file names one without its layers; with as many
    multi-token-prediction modules as NVIDIA trains it with. Raises `UnsupportedError`."""
    name = resolve_catalog_name(hf_id) if hf_id else None
    name = name or resolve_catalog_name(key)
    if name is None:
        raise UnsupportedError(
            "a model must state its layers", f"{key!r} has none", "describe its architecture"
        )
    spec = load_model(name, with_mtp=True)
    if not spec.mtp_block or spec.family != "nemotron_h":
        return spec
    said = f"its MTP module runs {MTP_REPEATED} times; its weights are counted for each"
    return replace(spec, mtp_layers=MTP_REPEATED, assumed=(*spec.assumed, Finding(code=TEXT, text=said)))


def bridge_recipe(stack: Stack, cells: Row, seen: Narrowed) -> Stack:
    """The stack as performance recipes of Megatron-Bridge, or of NeMo, set it, where they ran.

    Both reduce, and so keep, gradients in bf16 (grad_reduce_in_fp32=False; NeMo v2.2.0 to v2.5.0rc0 llm/recipes,
    pretrain_performance_optimizations), which the update copies to fp32. Megatron-Bridge's compute the loss in
    Transformer Engine's kernel (cross_entropy_fusion_impl="te"), not with adapters. Where the row names the recipe's
    configuration or its forced balance of experts, tokens are dispatched by DeepEP or HybridEP (its dispatcher guide:
    DeepEP first on H100 and B200, HybridEP on GB200 and GB300), unless the row says otherwise. The first release
    dropped tokens on Blackwell, which switched both off (v0.1.0rc4 scripts/performance/run_script.py). Parameters of
    nvfp4 are kept in 4 bits where the release and the recipe do. Recipes that capture the full iteration of experts in
    MXFP8 have Transformer Engine's fused grouped MLP (v0.5.0 scripts/performance/configs; 067f987 perf_recipes
    qwen/common.py, deepseek/common.py, gpt_oss/common.py).
    """
    framework = cells["framework"].lower()
    bridge = "bridge" in framework
    if not bridge and ("nemo" not in framework or stack.engine.sent_gradient <= HALF):
        return stack
    text, gpu, dispatcher = cells["extras"].lower(), cells["gpu"].lower(), stack.communication.dispatcher
    drops = "25.09" in cells["source"] and re.match("g?b[23]00", gpu)
    named = re.search(r"config|force[ _-]balance", text)
    if bridge and named and not drops and not _DISPATCHERS.search(text):
        dispatcher = Dispatcher.HYBRIDEP if gpu.startswith("gb") else Dispatcher.DEEPEP
    fused, whole = bridge and not ADAPTERS.search(text), bridge and "cuda_graph_impl=full_iteration" in text
    key = (id(stack), "fp32 grad" in text, fused, dispatcher, _keeps_fp4_wide(cells), whole)
    if key not in seen:
        engine = stack.engine
        if not key[1]:
            engine = engine.model_copy(update={"gradient": HALF, "optimizer_transient": 4.0})
        if key[4] and engine.states_narrow():
            engine = engine.keeping_narrow(Precision.NVFP4, False)
        comm = stack.communication.model_copy(update={"dispatcher": dispatcher})
        own: dict[str, Any] = {"loss": InPlace()} if fused else {}
        own |= {"fused_experts": True} if whole else {}
        kernels = stack.kernels.model_copy(update=own)
        seen[key] = stack.model_copy(update={"engine": engine, "communication": comm, "kernels": kernels})
    return seen[key]


def unfound_graphs(cells: Row, model: ModelSpec) -> str:
    """What a row would say of CUDA graphs had its recipe been found: those that most on Grace have.

    Empty for rows that name a recipe, or say nothing of one.
    """
    text, released = cells["extras"].lower(), release_of(cells["framework"], cells["source"])
    unfound = text.startswith("no config") and "recipe " not in text
    grace = re.match("gb[23]00", cells["gpu"].lower())
    if not (unfound and grace and model.is_moe and "bridge" in cells["framework"].lower()):
        return ""
    if released is None or released < GRAPHS_ON_GRACE_FROM:
        return ""
    mixers = "+attn+mamba" if model.state_spaces else ""
    return f"; CUDA graphs moe_router+moe_preprocess{mixers}"


def torch_recipe(precision: Precision, cells: Row, stack: Stack, assumed: list[str]) -> Precision:
    """The recipe of a row that states "fp8": under torchtitan and its kin it is torchao's float8, which scales
    dynamically, by what a tensor holds (torchtitan 9dec370 and 820504e docs/float8.md; torchao 0.10 deleted delayed
    scaling, pytorch/ao#1753)."""
    delayed = "delay" in cells["precision"].lower()
    if precision is not Precision.FP8 or delayed or stack.framework != "torchtitan":
        return precision
    assumed.append(f"fp8 of torchao: {Precision.FP8_CS}")
    return Precision.FP8_CS


def bf16_layers_of(cells: Row) -> tuple[int, int]:
    """Layers at either end that a performance recipe of Megatron-Bridge keeps in bf16: those of gpt-oss in nvfp4, four
    at the end (v0.5.0 scripts/performance/configs/gpt_oss, 067f987 perf_recipes/gpt_oss/common.py), and of Nemotron 3
    Super, 14 (v0.4.0 training/mixed_precision.py nemotron_3_super_bf16_with_nvfp4_mixed). The others switch off what
    fp8_cs has by default (v0.1.0rc3 scripts/performance/utils/helpers.py on)."""
    if "bridge" not in cells["framework"].lower() or "fp4" not in cells["precision"].lower():
        return 0, 0
    name = cells["model"].lower()
    return next((ends for pattern, ends in _BF16_ENDS if re.search(pattern, name)), (0, 0))


def _keeps_fp4_wide(cells: Row) -> bool:
    """Does a run of nvfp4 keep its parameters in 16 bits, by its release or by the recipe of its model?"""
    if "fp4" not in cells["precision"].lower():
        return False
    released = release_of(cells["framework"], cells["source"])
    if released is not None and released < FP4_GATHERED_FROM:
        return True
    model, gpu = cells["model"].lower(), cells["gpu"].lower()
    return any(re.search(name, model) and (gpu == chip or not chip) for name, chip in _FP4_NOT_GATHERED)
