"""What Megatron-Bridge's configuration says of formats, gradients and states: written as planned, read, or said.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, training/mixed_precision.py, comm_overlap.py, config.py; a name under which
a field is overridden is refused by Hydra 1.3 itself.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.ask.question import Question
from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import DP_SERIAL, GATHER_SERIAL, GRADIENTS_16, GRADIENTS_32
from planner.cli.check import check_files
from planner.cli.files import problem_of
from planner.errors import InputError
from planner.frameworks import framework
from planner.frameworks.framework import ParsedConfig
from planner.frameworks.megatron_bridge.precision import NAMED, PRECISIONS, Mixed, mixed_of, written
from planner.frameworks.megatron_bridge.recipes import RECIPES
from planner.spec.config import ParallelConfig
from planner.spec.job import Optimizer
from planner.spec.precision import Precision
from tests.frameworks.launches import CONFIGS, launch, problem

BRIDGE = framework("megatron-bridge")
# a name (no section comm_overlap), a configuration of its own in bf16, one that reduces gradients in 16 bits
NAMED_RECIPE, SPELLED, NARROW = (RECIPES[name] for name in ("llama-3-8b", "llama-3.1-70b", "deepseek-v3"))
MEASURED = "torchrun --nnodes 2 --nproc-per-node 8 run_recipe.py --mode pretrain --dataset mock "


def read(words: str, recipe: str = NAMED_RECIPE) -> ParsedConfig:
    return BRIDGE.parse({"run.sh": f"{MEASURED} --recipe {recipe} {words}"})


def test_named_formats_are_those_of_the_source() -> None:
    assert mixed_of(NAMED["bf16_mixed"], "") == Mixed(Precision.BF16, True, None, (0, 0))
    assert mixed_of(NAMED["fp16_mixed"], "") == Mixed(Precision.FP16, False, None, (0, 0))
    current = mixed_of(NAMED["bf16_with_fp8_current_scaling_mixed"], "")
    assert current == Mixed(Precision.FP8_CS, True, True, (1, 1))
    super_ = mixed_of(NAMED["nemotron_3_super_bf16_with_nvfp4_mixed"], "")
    assert super_ == Mixed(Precision.NVFP4, True, True, (0, 14))
    assert mixed_of(NAMED["fp16_with_mxfp8_mixed"], "").wide is False
    assert len(NAMED) == 14


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("gathers", [True, False])
def test_formats_are_read_as_they_are_written(precision: Precision, wide: bool, gathers: bool) -> None:
    """Over a recipe that names its precision and over one that spells it out."""
    narrow = mixed_of(NAMED[PRECISIONS[precision]], "").gathers is not None
    meant = Mixed(precision, wide, gathers if narrow else None, (0, 0))
    words = " ".join(f"'{field}={value}'" for field, value in written(meant))
    for recipe in (NAMED_RECIPE, SPELLED):
        found = read(words, recipe)
        assert (found.precision, found.param_gather, found.bf16_layers) == (precision, meant.gathers, (0, 0))
        assert (GRADIENTS_32 if wide else GRADIENTS_16) in found.stack_options


@pytest.mark.parametrize(
    ("words", "recipe", "option"),
    [
        ("", NAMED_RECIPE, GRADIENTS_32),
        ("", SPELLED, GRADIENTS_32),
        ("", NARROW, GRADIENTS_16),
        ("mixed_precision=fp16_mixed", NAMED_RECIPE, GRADIENTS_16),
        ("mixed_precision=bf16-mixed", NARROW, GRADIENTS_32),
        ("mixed_precision.grad_reduce_in_fp32=false", SPELLED, GRADIENTS_16),
        ("mixed_precision.grad_reduce_in_fp32=true", NARROW, GRADIENTS_32),
        ("mixed_precision.grad_reduce_in_fp32=false mixed_precision=bf16_mixed", SPELLED, GRADIENTS_32),
        ("ddp.grad_reduce_in_fp32=false", NAMED_RECIPE, GRADIENTS_32),  # overwritten at setup
        ("mixed_precision=null ddp.grad_reduce_in_fp32=false", NAMED_RECIPE, GRADIENTS_16),
        ("mixed_precision.grad_reduce_in_fp32=false", "of_ones_own_config", GRADIENTS_16),
    ],
)
def test_the_width_of_gradients_is_the_files(words: str, recipe: str, option: str) -> None:
    found = set(read(words, recipe).stack_options) & {GRADIENTS_16, GRADIENTS_32}
    assert found == {option}


def test_a_recipe_that_is_not_known_says_nothing_of_gradients() -> None:
    found = read("", "llama3_8b_pretrain_8gpu_h100_fp8cs_config")
    assert not set(found.stack_options) & {GRADIENTS_16, GRADIENTS_32}
    assert found.precision is Precision.FP8_CS  # as its name ends


@pytest.mark.parametrize(
    "words",
    [
        "mixed_precision.grad_reduce_in_fp32=false",
        "+mixed_precision.fp8_param_gather=true",
        "mixed_precision=bf16_mixed mixed_precision.grad_reduce_in_fp32=false",
    ],
)
def test_fields_of_a_name_are_refused(words: str) -> None:
    with pytest.raises(InputError, match="which has no fields"):
        read(words)


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("mixed_precision='{fp8:'", "must be valid YAML"),
        ("model.hybrid_layer_pattern=M-M-", "must have the layers of llama-3-8b, which is no hybrid"),
        ("tokenizer.vocab_size=many", "must be a whole number"),
        ("mixed_precision=bf16", "must be a mixed precision of Megatron-Bridge"),
        ("mixed_precision='{_target_:torch.float16}'", "must be of megatron.bridge"),
        ("mixed_precision='{_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,fp8:e4m3,"
         "fp8_recipe:custom}'", "fp8_recipe"),
        ("optimizer.exp_avg_dtype=torch.bfloat16", "must be torch.float32 without"),
        ("model.recompute_granularity=selective model.recompute_modules=[core_attn,nothing]", "modules that planner"),
        ("model.cross_entropy_fusion_impl=linear", "must be one of native, te"),
        ("comm_overlap.overlap_grad_reduce=false", "comm_overlap is None"),
        ("model.cuda_graph_impl=local", "transformer_engine for graphs of layers"),
    ],
)  # fmt: skip
def test_what_is_refused(words: str, must: str) -> None:
    with pytest.raises(InputError, match=must):
        read(words)


@pytest.mark.parametrize("option", [GRADIENTS_16, GRADIENTS_32])
def test_check_costs_the_files_gradients_and_says_what_contradicts_them(option: str) -> None:
    """A file with gradients in fp32 was costed as a stack with 16 bits, if that was named, and the other way."""
    wide = option == GRADIENTS_32
    words = f"mixed_precision.grad_reduce_in_fp32={str(wide).lower()} model.pipeline_model_parallel_size=2"
    files = {
        "run.sh": f"{MEASURED} --recipe {SPELLED} model.virtual_pipeline_model_parallel_size=null {words}"
    }
    plain, other = (
        problem_of(BRIDGE.parse(files), BRIDGE, Question("", "2x8 h100 400G-ib", 16, stack=stack))[0].stack
        for stack in (None, f"megatron-2026+{GRADIENTS_16 if wide else GRADIENTS_32}")
    )
    width = 4.0 if wide else 2.0
    assert plain.engine.gradient == other.engine.gradient == width
    assert plain.engine.sent_gradient == other.engine.sent_gradient == width
    if wide:
        answer = check_files(
            files, Question("", "2x8 h100 400G-ib", 16, stack=f"megatron-2026+{GRADIENTS_16}")
        )
        assert (
            f"the files say {GRADIENTS_32}, --stack says {GRADIENTS_16}: the files count" in answer["notes"]
        )
        assert GRADIENTS_16 not in other.name.split("+")


@pytest.mark.parametrize("stack", ["megatron-2026", f"megatron-2026+{GRADIENTS_16}"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "deepseek-v3"])
def test_gradients_of_the_plan_are_written(model: str, stack: str) -> None:
    """DeepSeek-V3's recipe reduces them in 16 bits, the others in 32."""
    config = (
        CONFIGS["megatron"]
        if model != "deepseek-v3"
        else ParallelConfig(pp=16, ep=8, dp=8, zero=1, num_microbatches=32)
    )
    script = BRIDGE.render(launch(model, config, problem(model, stack)), "0.7.0")["launch.sh"]
    narrow = load_stack(stack).engine.gradient == 2.0
    assert (GRADIENTS_16 if narrow else GRADIENTS_32) in BRIDGE.parse({"launch.sh": script}).stack_options
    assert ("MixedPrecisionConfig" in script) is narrow


@pytest.mark.parametrize(
    ("words", "recipe", "options"),
    [
        ("", NAMED_RECIPE, ()),
        ("ddp.overlap_grad_reduce=false", NAMED_RECIPE, (DP_SERIAL,)),
        ("ddp.overlap_param_gather=false", NAMED_RECIPE, (GATHER_SERIAL,)),
        ("ddp.overlap_param_gather=false optimizer.overlap_param_gather=true", NAMED_RECIPE, ()),
        ("ddp.overlap_grad_reduce=false", SPELLED, ()),  # its comm_overlap overwrites that
        ("comm_overlap.overlap_grad_reduce=false", SPELLED, (DP_SERIAL,)),
        ("comm_overlap.overlap_param_gather=false", SPELLED, (GATHER_SERIAL,)),
        ("comm_overlap=null ddp.overlap_grad_reduce=false", SPELLED, (DP_SERIAL,)),
        ("ddp.use_distributed_optimizer=false ddp.overlap_param_gather=false", NAMED_RECIPE, ()),
    ],
)
def test_what_is_sent_under_compute(words: str, recipe: str, options: tuple[str, ...]) -> None:
    found = read(words, recipe).stack_options
    assert tuple(option for option in found if option in (DP_SERIAL, GATHER_SERIAL)) == options


def test_weights_that_are_gathered_after_the_step_take_longer() -> None:
    given = f"{MEASURED} --recipe {NAMED_RECIPE} model.context_parallel_size=1 "
    times = [
        check_files({"run.sh": given + words}, Question("", "2x8 h100 400G-ib", 16))["step_time_s"]
        for words in ("", "ddp.overlap_param_gather=false", "ddp.overlap_grad_reduce=false")
    ]
    assert times[0] < times[1] < times[2]


def test_overlaps_of_the_plan_are_written() -> None:
    """Also into recipes without a section comm_overlap, whose fields Hydra would refuse."""
    for model in ("llama-3.1-8b", "llama-3.1-70b", "glm-4.5-air"):
        config = replace(CONFIGS["megatron"], tp=1, sp=0, ep=8, dp=32, num_microbatches=8)
        config = config if model == "glm-4.5-air" else CONFIGS["megatron"]
        for stack, option in (("megatron-2026", None), (f"megatron-2026+{GATHER_SERIAL}", GATHER_SERIAL)):
            script = BRIDGE.render(launch(model, config, problem(model, stack)), "0.7.0")["launch.sh"]
            found = BRIDGE.parse({"launch.sh": script}).stack_options
            assert (GATHER_SERIAL in found) is (option is not None)
            assert ("comm_overlap." in script) is (model == "llama-3.1-70b")


@pytest.mark.parametrize(
    ("words", "recipe", "said"),
    [
        ("ddp.grad_reduce_in_fp32=false", NAMED_RECIPE, "ddp.grad_reduce_in_fp32=false has no effect"),
        ("ddp.grad_reduce_in_fp32=true", NAMED_RECIPE, ""),
        ("ddp.fp8_param_gather=true", NAMED_RECIPE, "ddp.fp8_param_gather=true has no effect"),
        ("model.fp8=e4m3", NAMED_RECIPE, "model.fp8=e4m3 has no effect"),
        ("model.tp_comm_overlap=false", SPELLED, "model.tp_comm_overlap=false has no effect"),
        ("ddp.overlap_grad_reduce=false", SPELLED, "ddp.overlap_grad_reduce=false has no effect"),
        ("ddp.overlap_grad_reduce=false", NAMED_RECIPE, ""),
        ("ddp.bucket_size=40000000 ddp.average_in_collective=false", NAMED_RECIPE,
         "not read, though time or memory may depend on it: ddp.bucket_size, ddp.average_in_collective"),
        ("ddp.average_in_collective=true model.transformer.fine_grained_activation_offloading=false", NAMED_RECIPE, ""),
        ("comm_overlap='{_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,tp_comm_overlap:false}'",
         NAMED_RECIPE, "may depend on it: comm_overlap"),
        ("model.fine_grained_activation_offloading=true", NAMED_RECIPE, "fine_grained_activation_offloading"),
        ("optimizer.lr=1e-4 checkpoint.save=x train.train_iters=5 model.transformer.init_method_std=0.01",
         NAMED_RECIPE, ""),
        ("model.cpu_offloading=true model.cpu_offloading_num_layers=4", NAMED_RECIPE,
         "model.cpu_offloading_num_layers 4"),
        ("model.transformer.cpu_offloading=true model.transformer.cpu_offloading_num_layers=4", NAMED_RECIPE,
         "model.transformer.cpu_offloading_num_layers 4"),
        ("optimizer.optimizer_cpu_offload=true", NAMED_RECIPE, "none are in CPU memory"),
        ("optimizer.use_precision_aware_optimizer=true optimizer.exp_avg_dtype=torch.bfloat16", NAMED_RECIPE,
         "moments in bfloat16 and float32: counted in fp32"),
        ("optimizer.use_precision_aware_optimizer=true", NAMED_RECIPE, "store_param_remainders"),
    ],
)  # fmt: skip
def test_what_is_said(words: str, recipe: str, said: str) -> None:
    notes = read(f"{words} tokenizer.use_tokenizer_vocab_size=false", recipe).notes
    assert any(said in note for note in notes) if said else not notes, notes


@pytest.mark.parametrize("model", RECIPES)
def test_nothing_that_is_written_is_unread(model: str) -> None:
    config = ParallelConfig(dp=128, zero=1, micro_batch=1, num_microbatches=2)
    script = BRIDGE.render(launch(model, config, problem(model, "megatron-2026")), "0.7.0")["launch.sh"]
    notes = BRIDGE.parse({"launch.sh": script}).notes
    assert not [note for note in notes if "not read" in note or "no effect" in note or "vocabulary" in note]


def test_states_in_16_bits() -> None:
    """Masters of two bytes; moments in bf16 only where both are."""
    aware = "optimizer.use_precision_aware_optimizer=true"
    narrow = f"{aware} optimizer.exp_avg_dtype=torch.bfloat16 optimizer.exp_avg_sq_dtype=bf16"
    assert read(narrow).optimizer is Optimizer.ADAMW_BF16
    assert read(f"{aware} optimizer.exp_avg_dtype=torch.bfloat16").optimizer is None
    stack = problem_of(
        read(f"{aware} optimizer.main_params_dtype=torch.float16"),
        BRIDGE,
        Question("", "2x8 h100 400G-ib", 16),
    )[0].stack
    assert stack.engine.master == 2.0
    late = problem_of(
        read("model.gradient_accumulation_fusion=false"), BRIDGE, Question("", "2x8 h100 400G-ib", 16)
    )
    assert not late[0].stack.engine.fused_weight_gradient


@pytest.mark.parametrize(
    ("words", "zero"),
    [
        ("ddp.use_distributed_optimizer=false optimizer.use_distributed_optimizer=true", 1),
        ("ddp.use_distributed_optimizer=false", 0),
        ("dist.use_torch_fsdp2=true", 3),
        ("dist.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads", 2),
    ],
)
def test_who_shards(words: str, zero: int) -> None:
    assert read(words).axes["zero"] == zero


def test_options_of_the_launcher_stand_for_overrides() -> None:
    """run_recipe.py's own options come first; --mode lora is a recipe of adapters."""
    found = read("-tp 2 -pp 4 -gb 64 --micro_batch_size=2 -sl 2048 model.pipeline_model_parallel_size=2")
    assert (found.axes["tp"], found.axes["pp"], found.axes["micro_batch"]) == (2, 2, 2)
    assert (found.global_batch, found.seq_len) == (64, 2048)
    adapted = BRIDGE.parse({"a.sh": "run_recipe.py --model llama31_8b --mode lora -tp 2"})
    assert any("adapters" in note for note in adapted.notes)


def test_the_dataset_decides_the_length() -> None:
    assert read("model.seq_length=1024").seq_len == 8192  # the recipe's dataset, to which the model is set
    assert read("dataset.seq_length=1024").seq_len == 1024


def test_a_synthetic_tokenizer_decides_the_vocabulary() -> None:
    """Recipes with one of 32,000 tokens train a model of that, unless the model's own is asked for."""
    found = read("")
    assert found.model is not None
    assert found.model.vocab == 32000
    assert any("the vocabulary is 32,000, not the model's 128,256" in note for note in found.notes)
    for words in (
        "tokenizer.use_tokenizer_vocab_size=false",
        "tokenizer.vocab_size=128256",
        "tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model=x",
    ):
        own = read(words).model
        assert own is not None
        assert own.vocab == 128256
    with pytest.raises(InputError, match="at least that of the tokenizer"):
        read("tokenizer.use_tokenizer_vocab_size=false model.vocab_size=1000")


def test_another_architecture_is_not_the_recipes_model() -> None:
    found = read("model.num_layers=4 model.hidden_size=4096")
    assert found.model is None
    assert re.search(r"model\.num_layers makes of llama-3-8b", found.missing)
    same = read("model.num_layers=32").model
    assert same is not None
    assert same.num_layers == 32
