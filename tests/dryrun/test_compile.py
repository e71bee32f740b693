"""Does a compiled step ask for what PyTorch's compiler plans? Needs PyTorch, transformers and Triton."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cost.captured.operation import Phase
from planner.dryrun.allocator.settings import AllocatorSettings
from planner.dryrun.allocator.trace import Kind
from planner.dryrun.outcome import memory_of
from planner.dryrun.recording import Recording
from planner.dryrun.transformers.recipe import Checkpointing, Recipe
from planner.errors import InputError

pytestmark = pytest.mark.slow
NEEDS = ("torch", "transformers", "triton")
HOPPER = (9, 0)
BATCH, LENGTH, WIDTH, INNER, HEADS, VOCABULARY, LAYERS = 2, 512, 256, 640, 4, 2000, 2
TOKENS = BATCH * LENGTH
TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY, "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
PLAIN = Recipe(TINY, "tiny", micro_batch=BATCH, seq_len=LENGTH, compiled=True)
WRITTEN = """
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
@triton.jit
def triton_poi_fused_add_0(in_out_ptr0, in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        table, = args
        args.clear()
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((8, 16), (16, 1), torch.float32)
            extern_kernels.mm(reinterpret_tensor(table, (8, 16), (16, 1), 0), buf0, out=buf0)
            buf1 = buf0; del buf0  # reuse
            buf2 = empty_strided_cuda((8, 16), (16, 1), torch.bfloat16)
            raw_stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(buf1, table, buf2, 128, stream=raw_stream0)
            del buf1
        return (buf2, )

runner = Runner(partitions=[])
call = runner.call
"""


def of(**changes: Any) -> Recording:
    """What a step does that differs from the plain one; each is recorded once."""
    key = tuple(sorted(changes.items()))
    if key not in _RECORDED:
        from planner.dryrun.transformers.step import record_step

        _RECORDED[key] = record_step(replace(PLAIN, **changes), HOPPER)
    return _RECORDED[key]


_RECORDED: dict[Any, Recording] = {}


def kept(found: Recording) -> int:
    """What the forward pass of the second step leaves to the backward pass [bytes]."""
    second = [one for one in found.operations if one.first >= found.second_step]
    until = next(one.first for one in second if one.phase is Phase.BACKWARD)
    alive: dict[int, int] = {}
    for what, block in zip(
        found.trace.what[:until].tolist(), found.trace.blocks[:until].tolist(), strict=True
    ):
        if what >= 0:
            alive[block] = what
        elif what == Kind.FREE:
            del alive[block]
    first = found.operations.index(second[0])
    return sum(size for block, size in alive.items() if found.made_by[block] >= first)


def test_the_partitioner_keeps_what_it_cannot_fuse_again() -> None:
    """Of a layer in bf16: its input, both normed inputs, queries, keys and values head by head, attention's result and
    its projection; gate, up and their product. In fp32: both norms' roots, and attention's sums. Then the mask that
    transformers makes when it is compiled; the last norm and its input, logits, the loss's maxima, sums and labels.
    """
    layer = 2 * TOKENS * (8 * WIDTH + 3 * INNER) + 4 * TOKENS * (2 + HEADS)
    mask = 2 * BATCH * LENGTH * LENGTH
    last = 2 * TOKENS * (2 * WIDTH + VOCABULARY) + 4 * 3 * TOKENS + 8 * BATCH * (LENGTH + 1)
    assert kept(of()) == pytest.approx(LAYERS * layer + mask + last, abs=1024)


def test_fused_chains_hold_less_than_eager_ones_and_are_fewer() -> None:
    compiled, eager = of(), of(compiled=False)
    assert kept(compiled) < kept(eager)
    peaks = [memory_of(one, AllocatorSettings(), 2**40).allocated_peak for one in (compiled, eager)]
    assert peaks[0] < peaks[1]
    assert len(compiled.operations) < len(eager.operations) / 2


def test_products_and_attention_carry_their_own_names_and_shapes() -> None:
    found = of()
    second = [one for one in found.operations if one.first >= found.second_step]
    products = [one for one in second if one.name == "aten.mm.default"]
    assert len(products) == 3 * (7 * LAYERS + 1)  # forward, and both gradients
    assert products[0].taken == (((TOKENS, WIDTH), "bfloat16"), ((WIDTH, WIDTH), "bfloat16"))
    assert products[0].given == (((TOKENS, WIDTH), "bfloat16"),)
    forward = "aten._scaled_dot_product_efficient_attention.default"
    assert [one.name for one in second].count(forward) == LAYERS
    assert {one.name for one in second} >= {"inductor.fused", "aten._fused_adamw_.default"}
    assert (found.trace.what == 32 * 2**20).sum() == 2  # workspaces of cuBLAS


def test_a_kernel_is_told_to_take_no_more_than_it_reads() -> None:
    """The table of the embedding has more rows than there are tokens, of which each reads one."""
    fused = (one for one in of().operations if one.name == "inductor.fused" and one.phase is Phase.FORWARD)
    taken = {shape for one in fused for shape, _ in one.taken}
    assert VOCABULARY > TOKENS
    assert (VOCABULARY, WIDTH) not in taken
    assert (TOKENS * WIDTH,) in taken


def test_checkpointed_layers_keep_their_inputs() -> None:
    again = of(checkpointing=Checkpointing.NON_REENTRANT)
    assert LAYERS * 2 * TOKENS * WIDTH < kept(again) < kept(of()) - 2 * TOKENS * 3 * INNER * LAYERS
    attention = "aten._scaled_dot_product_efficient_attention.default"
    assert sum(one.name == attention for one in again.operations) == 2 * sum(
        one.name == attention for one in of().operations
    )


def test_nothing_is_left_behind() -> None:
    import torch
    import torch._inductor.compile_fx as compile_fx

    of()
    assert compile_fx.partition_fn.__module__ == "torch._inductor.compile_fx"
    assert not torch.cuda.is_available() or torch.cuda.device_count()
    function = torch.compile(lambda tensor: tensor + 1, backend="eager")
    assert function(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_generated_program_is_run_as_it_stands() -> None:
    """Two buffers, the first given on to the kernel and freed by it; the second outlives the call."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from planner.dryrun.compiled.wrapper import callable_of
    from planner.dryrun.recorder import Recorder
    from planner.dryrun.values import Values

    recorder = Recorder(Values(0), (8, 0))
    with FakeTensorMode(), recorder:
        table = torch.empty(64, 16)
        before = len(recorder.recording.operations)
        (made,) = callable_of(WRITTEN, {}, recorder)([table])
        what = recorder.recording.trace.what.tolist()
    product, fused = recorder.recording.operations[before:]
    assert (product.name, fused.name) == ("aten.mm.default", "inductor.fused")
    whole, half = ((8, 16), "float32"), ((8, 16), "bfloat16")
    assert fused.taken == (whole, ((128,), "float32"))  # of 64 rows as many elements as it has iterations
    assert fused.given == (whole, half)
    workspace = 2 * 4 * 2**20 + 8 * 16 * 1024
    assert what == [64 * 16 * 4, 8 * 16 * 4, workspace, 8 * 16 * 2, Kind.FREE]
    assert made.shape == (8, 16)


def test_a_missing_triton_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.dryrun.compiled import lowering
    from planner.dryrun.transformers.step import record_step

    monkeypatch.setattr(lowering, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="Triton"):
        record_step(PLAIN, HOPPER)
