"""DeepSeek Sparse Attention: how Megatron-LM is told of it, read back, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.load_stacks import load_stack
from planner.catalog.stack_options import GRADIENTS_32
from planner.cost.params import layer_parameters
from planner.errors import InputError, UnsupportedError
from planner.frameworks import framework
from planner.frameworks.framework import Launch
from planner.frameworks.megatron.sparse import chooses, sharing
from planner.spec.config import ContextKind, ParallelConfig
from planner.spec.indexer import IndexerLoss
from planner.spec.layer import Layer
from planner.spec.load_model import load_model
from planner.spec.model import ModelSpec
from tests.frameworks.launches import launch, problem
from tests.frameworks.megatron_checkout import MAIN, beginning, of_main, written
from tests.frameworks.test_own_parsers import needs, run

V32, GLM = "deepseek-v3.2", "glm-5"
PIPELINE = ParallelConfig(tp=2, pp=4, dp=16, ep=8, micro_batch=1, num_microbatches=16, sp=1, zero=1)
LONG = ParallelConfig(cp=4, pp=4, dp=8, ep=16, micro_batch=1, num_microbatches=32, zero=1)


def shared(layer: Layer) -> Layer:
    """The layer with another one's choice of keys."""
    a = layer.attention
    assert a is not None
    assert a.indexer is not None
    return replace(layer, attention=replace(a, indexer=replace(a.indexer, shared=True)))


def with_loss(model: ModelSpec, loss: IndexerLoss) -> ModelSpec:
    layers = []
    for layer in model.layers:
        a = layer.attention
        assert a is not None
        assert a.indexer is not None
        layers.append(replace(layer, attention=replace(a, indexer=replace(a.indexer, loss=loss))))
    return replace(model, layers=tuple(layers))


def launches() -> list[Launch]:
    given = problem(V32, "megatron-2026")
    predicting = load_model(V32, with_mtp=True)
    tilelang = replace(given, stack=load_stack("megatron-2026+dsa-kernel-backend=tilelang"))
    alone = ParallelConfig(dp=128, ep=128, micro_batch=1, num_microbatches=2, zero=1)
    flat = launch(GLM, alone, problem(GLM, "megatron-2026"))
    own = chooses(78, 4, 3)
    layers = tuple(
        layer if chosen else shared(layer) for layer, chosen in zip(flat.model.layers, own, strict=True)
    )
    sharing_model = replace(flat.model, layers=layers)
    return [
        launch(V32, PIPELINE, given, (15, 15, 15, 16)),
        replace(launch(V32, PIPELINE, given, (15, 15, 15, 16)), model=predicting),
        launch(V32, LONG, tilelang, (15, 15, 15, 16)),
        launch(GLM, replace(LONG, ep=8), problem(GLM, "megatron-2026"), (19, 20, 20, 19)),
        replace(flat, model=sharing_model),
        replace(flat, model=replace(sharing_model, mtp_layers=1, mtp_block=(flat.model.layers[-1],))),
        replace(flat, model=with_loss(flat.model, IndexerLoss.DENSE)),
        replace(flat, model=with_loss(flat.model, IndexerLoss.NONE)),
    ]


COUNT = 8


def script(*more: str) -> dict[str, str]:
    words = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 "
        "--vocab-size 1000 --normalization RMSNorm --swiglu --position-embedding-type rope --multi-latent-attention "
        "--q-lora-rank 512 --kv-lora-rank 512"
    )
    return {"run.sh": " ".join((words, *more))}


SIZES = "--dsa-indexer-n-heads 32 --dsa-indexer-head-dim 128 --dsa-indexer-topk 512"
INDEXER = f"--experimental-attention-variant dsa {SIZES}"
WHOLE = f"{INDEXER} --disable-bias-linear --no-rope-fusion"


@pytest.mark.parametrize("case", range(COUNT))
def test_megatron_reads_back_what_was_planned(case: int) -> None:
    told = launches()[case]
    read = framework("megatron").parse({"launch.sh": framework("megatron").render(told, MAIN)["launch.sh"]})
    assert read.model is not None
    assert read.model.layers == told.model.layers
    assert (read.model.mtp_layers, read.model.mtp_kinds) == (told.model.mtp_layers, told.model.mtp_kinds)
    for axis in ("tp", "cp", "pp", "ep", "sp", "micro_batch"):
        assert read.axes[axis] == getattr(told.config, axis), axis
    assert told.stack is not None
    assert set(read.stack_options) - {GRADIENTS_32} == set(told.stack.name.split("+")[1:])
    assert read.version == MAIN
    assert not read.unknown


def test_options_of_indexers_kernels_and_gathered_keys() -> None:
    text = framework("megatron").render(launches()[0], MAIN)["launch.sh"]
    for words in (
        "--experimental-attention-variant dsa", "--dsa-indexer-n-heads 64", "--dsa-indexer-head-dim 128",
        "--dsa-indexer-topk 2048", "--dsa-kernel-backend cudnn", "--dsa-indexer-use-sparse-loss",
        "--dsa-indexer-loss-coeff 0.001", "--no-rope-fusion", "--rope-type yarn",
    ):  # fmt: skip
        assert words in text, words
    assert "rope-interleaved" not in text
    assert "topk-freq" not in text
    long = framework("megatron").render(launches()[2], MAIN)
    assert "--cp-comm-type all_gather" in long["launch.sh"]
    assert "--dsa-kernel-backend tilelang" in long["launch.sh"]
    assert "tilelang must be installed" in long["README.md"]


def test_what_is_told_of_glm() -> None:
    plain, shares, *_, dense, untaught = (
        framework("megatron").render(told, MAIN)["launch.sh"] for told in launches()[3:]
    )
    assert "--dsa-indexer-rope-interleaved" in plain
    assert "--no-dsa-indexer-rotate-activation" in plain
    assert "--moe-router-score-function sigmoid" in plain
    assert "--dsa-indexer-topk-freq 4" in shares
    assert "--dsa-indexer-skip-topk-offset 3" in shares
    assert "use-sparse-loss" not in dense
    assert "--dsa-indexer-loss-coeff" in dense
    assert "--dsa-indexer-loss-coeff" not in untaught


def test_earlier_releases_are_refused() -> None:
    for version in framework("megatron").versions[:-1]:
        with pytest.raises(UnsupportedError, match="framework-version main-2026-08"):
            framework("megatron").render(launches()[0], version)
    with pytest.raises(UnsupportedError, match="must be one that planner writes for Megatron-Bridge"):
        framework("megatron-bridge").render(launches()[0], framework("megatron-bridge").default_version)


def test_layers_that_share_by_no_frequency_are_refused() -> None:
    told = launches()[3]
    layers = list(told.model.layers)
    layers[4], layers[9] = shared(layers[4]), shared(layers[9])
    with pytest.raises(UnsupportedError, match="no regular frequency"):
        framework("megatron").render(replace(told, model=replace(told.model, layers=tuple(layers))), MAIN)


@pytest.mark.parametrize(("every", "offset"), [(2, 1), (4, 3), (3, 1), (4, 2)])
def test_frequencies_are_found_again(every: int, offset: int) -> None:
    model = load_model(GLM)
    own = chooses(78, every, offset)
    layers = tuple(
        layer if chosen else shared(layer) for layer, chosen in zip(model.layers, own, strict=True)
    )
    found = sharing(replace(model, layers=layers))
    assert found is not None
    assert chooses(78, *found) == own


@pytest.mark.parametrize(
    ("words", "kernel", "loss"),
    [
        ("", "none", IndexerLoss.NONE),
        ("--dsa-kernel-backend cudnn --dsa-indexer-loss-coeff 0", "", IndexerLoss.NONE),
        ("--dsa-kernel-backend tilelang --dsa-indexer-loss-coeff 0.01", "tilelang", IndexerLoss.DENSE),
        ("--dsa-indexer-use-sparse-loss --dsa-indexer-loss-coeff 1", "none", IndexerLoss.SPARSE),
    ],
)
def test_kernels_and_losses_are_read(words: str, kernel: str, loss: IndexerLoss) -> None:
    read = framework("megatron").parse(script(WHOLE, words))
    assert read.model is not None
    assert [x.loss for x in read.model.indexers] == [loss]
    assert [name for name in read.stack_options if name.startswith("dsa")] == (
        [f"dsa-kernel-backend={kernel}"] if kernel else []
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (f"{INDEXER} --no-rope-fusion", "add_bias_linear=False"),
        (f"{INDEXER} --disable-bias-linear", "RoPE fusion is not supported"),
        ("--experimental-attention-variant dsa --disable-bias-linear", "come with --dsa-indexer-n-heads"),
        (f"{WHOLE} --tensor-model-parallel-size 2", "requires sequence_parallel"),
        (f"{WHOLE} --context-parallel-size 2", "allgather only"),
        (f"{WHOLE} --context-parallel-size 2 --cp-comm-type a2a", "allgather only"),
        (f"{WHOLE} --no-dsa-indexer-scoring-relu", "rectify"),
        (f"{WHOLE} --dsa-kernel-backend flash", "dsa-kernel-backend must be one of"),
    ],
)
def test_scripts_that_megatron_refuses_are_refused(words: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        framework("megatron").parse(script(words))


@pytest.mark.parametrize("kind", ["allgather", "all_gather"])
def test_gathered_keys_are_read(kind: str) -> None:
    read = framework("megatron").parse(script(WHOLE, f"--context-parallel-size 2 --cp-comm-type {kind}"))
    assert (read.axes["cp"], read.axes["cp_kind"]) == (2, ContextKind.ALL_GATHER)


@needs("torch", "triton", "six", "einops")
@pytest.mark.slow
@pytest.mark.checkout
@of_main
def test_megatrons_own_parser_takes_them(tmp_path: Path) -> None:
    """Degrees, dimensions of the indexer, its loss, its kernels and which layers share, in its own configuration."""
    listed = []
    for number, told in enumerate(launches()):
        words, environment = written(tmp_path / str(number), told, MAIN)
        mixers = [y.attention.indexer for y in told.model.layers if y.attention is not None]
        own = [int(x is not None and not x.shared) for x in mixers]
        x = told.model.indexers[0]
        listed.append([words, environment, told.config.__dict__, [x.heads, x.head_dim, x.top_k, x.loss], own])
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    source = (
        beginning()
        + """
import megatron.core.transformer.transformer_config as configured
configured._validate_dsa_kernel_backend_dependencies = lambda backend: None  # FlashMLA, cuDNN, TileLang
from megatron.core.transformer.experimental_attention_variant.dsa import is_dsa_skip_topk_layer
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
for words, environment, config, (heads, width, top_k, loss), own in json.load(open(sys.argv[1])):
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment, WORLD_SIZE="128", RANK="0")
    sys.argv = ["pretrain_gpt.py", *words]
    args = parse_args()
    validate_args(args)
    assert args.data_parallel_size == config["dp"]
    args.moe_permute_fusion = False  # a kernel of Transformer Engine, which needs a GPU
    made = core_transformer_config_from_args(args)
    assert made.experimental_attention_variant == "dsa" and made.multi_latent_attention
    assert [made.dsa_indexer_n_heads, made.dsa_indexer_head_dim, made.dsa_indexer_topk] == [heads, width, top_k]
    trained = (made.dsa_indexer_loss_coeff or 0) > 0
    assert loss == ("none" if not trained else "sparse" if made.dsa_indexer_use_sparse_loss else "dense")
    assert made.dsa_kernel_backend in ("cudnn", "tilelang")
    shares = [is_dsa_skip_topk_layer(i + 1, made.dsa_indexer_skip_topk_offset, made.dsa_indexer_topk_freq)
              for i in range(made.num_layers)]
    assert [int(not share) for share in shares] == own
print("read")
"""
    )
    assert run(source, str(tmp_path / "cases.json")).split()[-1] == "read"


@needs("torch", "triton", "six", "einops")
@pytest.mark.slow
@pytest.mark.checkout
@of_main
def test_megatrons_own_indexer_has_as_many_parameters() -> None:
    """That of DeepSeek-V3.2, its linear layers and its norm torch's, on the meta device."""
    attends = load_model(V32).layers[0].attention
    assert attends is not None
    sizes = (
        layer_parameters(Layer(replace(attends, indexer=x), None, None, 0), 7168)
        for x in (attends.indexer, None)
    )
    whole, plain = (found.total for found in sizes)
    source = (
        beginning()
        + """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.cuda.current_device = lambda: "meta"
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
from megatron.core import parallel_state as state
from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexer, DSAIndexerSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig
state.initialize_model_parallel(create_gloo_process_groups=False)
class Linear(torch.nn.Linear):
    def __init__(self, inputs, outputs, bias, **rest):
        super().__init__(inputs, outputs, bias)
class Norm(torch.nn.LayerNorm):
    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size, eps)
config = MLATransformerConfig(
    num_layers=2, hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128,
    qk_pos_emb_head_dim=64, v_head_dim=128, add_bias_linear=False, multi_latent_attention=True, rope_type="rope",
    experimental_attention_variant="dsa", dsa_indexer_n_heads=64, dsa_indexer_head_dim=128, dsa_indexer_topk=2048,
    use_cpu_initialization=True, perform_initialization=False,
)
with torch.device("meta"):
    built = DSAIndexer(config, DSAIndexerSubmodules(Linear, Linear, Norm, Linear))
print(sum(p.numel() for p in built.parameters()))
"""
    )
    assert int(run(source).split()[-1]) == whole - plain
