"""Which operations does the probe time, and in which shapes? Those of dense and expert layers, each as a closure.

`tiny` shapes finish in seconds on a processor, for tests. torch comes as an argument. Left out: timing (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal[
    "gemm", "grouped_gemm", "attention", "attention_backward", "memory_bound", "launch", "layer", "collective"
]
Work = Callable[[], object]


@dataclass(frozen=True)
class Task:
    """One operation. `prepare` allocates and returns the work to time; `times`: how often the work repeats it."""

    kind: Kind
    name: str
    dtype: str
    shape: Mapping[str, int]
    prepare: Callable[[], Work]
    times: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it the same as a measurement of a profile."""
        return (self.kind, self.name, self.dtype, *sorted(self.shape.items()))


# tokens, outputs, inputs: qkv, projection, both halves of the MLP of 8B and of 70B models, whole and split by 8
_GEMMS = (
    (4096, 6144, 4096), (4096, 4096, 4096), (8192, 28672, 4096), (8192, 4096, 14336), (8192, 10240, 8192),
    (8192, 57344, 8192), (8192, 8192, 28672), (8192, 1280, 8192), (8192, 7168, 8192), (8192, 8192, 3584),
    (4096, 128256, 4096), (16384, 16384, 16384),
)  # fmt: skip
_GROUPED = ((32768, 28672, 4096, 8), (65536, 4096, 7168, 64), (65536, 7168, 2048, 64))
_ATTENTION = ((1, 2048, 32, 8, 128), (2, 4096, 32, 8, 128), (1, 8192, 32, 8, 128), (1, 16384, 8, 1, 128))
_TINY: Final[dict[str, Any]] = {
    "gemm": ((64, 96, 64), (128, 64, 64)), "grouped": ((64, 64, 32, 4),), "attention": ((1, 64, 4, 2, 16),),
    "elements": (1 << 14,), "layer": (1, 64, 64, 128, 4, 2), "bytes": (1 << 10, 1 << 14, 1 << 18),
}  # fmt: skip
_ELEMENTS = (1 << 27,)
_LAYER = (1, 4096, 4096, 14336, 32, 8)  # batch, tokens, hidden, ffn, heads, kv heads
_BYTES = tuple(1 << power for power in range(10, 31, 2))


def compute_tasks(torch: Any, place: str, tiny: bool) -> Iterator[Task]:
    """Everything that one device does alone."""
    dtypes = {"bf16": torch.bfloat16} if place != "cpu" else {"fp32": torch.float32}
    for name, dtype in dtypes.items():
        for m, n, k in _TINY["gemm"] if tiny else _GEMMS:
            yield Task("gemm", "matmul", name, {"m": m, "n": n, "k": k}, _gemm(torch, place, dtype, m, n, k))
        if place != "cpu":
            for m, n, k in _TINY["gemm"] if tiny else _GEMMS:
                shape = {"m": m, "n": n, "k": k}
                yield Task("gemm", "scaled matmul", "fp8", shape, _narrow_gemm(torch, place, dtype, m, n, k))
        for rows, n, k, groups in _TINY["grouped"] if tiny else _GROUPED:
            shape = {"rows": rows, "n": n, "k": k, "groups": groups}
            yield Task("grouped_gemm", "experts", name, shape, _grouped(torch, place, dtype, shape))
        for batch, seq, heads, kv_heads, width in _TINY["attention"] if tiny else _ATTENTION:
            shape = {
                "batch": batch, "seq_q": seq, "seq_kv": seq, "heads": heads, "kv_heads": kv_heads,
                "d_qk": width, "d_v": width,
            }  # fmt: skip
            yield Task("attention", "causal", name, shape, _attention(torch, place, dtype, shape, False))
            yield Task(
                "attention_backward", "causal", name, shape, _attention(torch, place, dtype, shape, True)
            )
        for count in _TINY["elements"] if tiny else _ELEMENTS:
            yield from _memory_tasks(torch, place, name, dtype, count)
        yield Task("launch", "small add", name, {"elements": 16}, _launches(torch, place), LAUNCHES)
        shape = dict(zip(("batch", "tokens", "hidden", "ffn", "heads", "kv_heads"), _TINY["layer"] if tiny else _LAYER,
                         strict=True))  # fmt: skip
        for recompute in (0, 1):
            whole = {**shape, "recompute": recompute}
            yield Task("layer", "forward and backward", name, whole, _layer(torch, place, dtype, whole))


def _gemm(torch: Any, place: str, dtype: Any, m: int, n: int, k: int) -> Callable[[], Work]:
    def prepare() -> Work:
        a = torch.randn(m, k, device=place).to(dtype)
        w = torch.randn(n, k, device=place).to(dtype)  # as a linear layer keeps its weight: TN
        out = torch.empty(m, n, device=place, dtype=dtype)
        return lambda: torch.mm(a, w.t(), out=out)

    return prepare


def _narrow_gemm(torch: Any, place: str, out: Any, m: int, n: int, k: int) -> Callable[[], Work]:
    """A product in fp8 with one scale a tensor; devices without it raise, and the probe says so."""

    def prepare() -> Work:
        chip = getattr(torch.cuda.get_device_properties(place), "gcnArchName", "")
        # MI300 has the format without negative zero; later AMD and all NVIDIA devices that of OCP
        dtype = torch.float8_e4m3fnuz if chip.startswith("gfx94") else torch.float8_e4m3fn
        a = torch.randn(m, k, device=place).to(dtype)
        w = torch.randn(n, k, device=place).to(dtype)
        one = torch.ones((), device=place)
        return lambda: torch._scaled_mm(a, w.t(), scale_a=one, scale_b=one, out_dtype=out)

    return prepare


def _grouped(torch: Any, place: str, dtype: Any, shape: Mapping[str, int]) -> Callable[[], Work]:
    def prepare() -> Work:
        groups, rows = shape["groups"], shape["rows"] // shape["groups"]
        x = torch.randn(groups, rows, shape["k"], device=place).to(dtype)
        w = torch.randn(groups, shape["n"], shape["k"], device=place).to(dtype)
        grouped = getattr(torch, "_grouped_mm", None)
        if grouped is None or place == "cpu":
            return lambda: [x[i] @ w[i].t() for i in range(groups)]
        ends = torch.arange(1, groups + 1, device=place, dtype=torch.int32) * rows
        flat = x.reshape(groups * rows, shape["k"])
        return lambda: grouped(flat, w.transpose(-2, -1), offs=ends)

    return prepare


def _attention(
    torch: Any, place: str, dtype: Any, shape: Mapping[str, int], backward: bool
) -> Callable[[], Work]:
    def prepare() -> Work:
        def tensor(heads: int, width: int) -> Any:
            extents = (shape["batch"], heads, shape["seq_q"], width)
            return torch.randn(*extents, device=place).to(dtype).requires_grad_(backward)

        q, k, v = tensor(shape["heads"], shape["d_qk"]), tensor(shape["kv_heads"], shape["d_qk"]), None
        v = tensor(shape["kv_heads"], shape["d_v"])
        attend = torch.nn.functional.scaled_dot_product_attention
        if not backward:
            return lambda: attend(q, k, v, is_causal=True, enable_gqa=True)
        out = attend(q, k, v, is_causal=True, enable_gqa=True)
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return prepare


def _memory_tasks(torch: Any, place: str, name: str, dtype: Any, count: int) -> Iterator[Task]:
    size = dtype.itemsize

    def add() -> Work:
        a, b = (torch.ones(count, device=place, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.add(a, b, out=out)

    def copy() -> Work:
        a = torch.ones(count, device=place, dtype=dtype)
        out = torch.empty_like(a)
        return lambda: out.copy_(a)

    yield Task("memory_bound", "add", name, {"bytes": 3 * size * count}, add)
    yield Task("memory_bound", "copy", name, {"bytes": 2 * size * count}, copy)


LAUNCHES = 200


def _launches(torch: Any, place: str) -> Callable[[], Work]:
    def prepare() -> Work:
        x = torch.zeros(16, device=place)

        def work() -> None:
            for _ in range(LAUNCHES):
                x.add_(1.0)

        return work

    return prepare


def _layer(torch: Any, place: str, dtype: Any, shape: Mapping[str, int]) -> Callable[[], Work]:
    """A pre-norm transformer layer with grouped queries and a gated MLP, in training."""

    def prepare() -> Work:
        hidden, heads, kv_heads = shape["hidden"], shape["heads"], shape["kv_heads"]
        width = hidden // heads
        functional = torch.nn.functional
        weights = [
            torch.randn(rows, columns, device=place).mul_(0.02).to(dtype).requires_grad_(True)
            for rows, columns in (
                (hidden + 2 * kv_heads * width, hidden), (hidden, hidden), (2 * shape["ffn"], hidden),
                (hidden, shape["ffn"]),
            )
        ]  # fmt: skip
        norm = torch.ones(hidden, device=place, dtype=dtype)
        x = torch.randn(shape["batch"], shape["tokens"], hidden, device=place).to(dtype).requires_grad_(True)
        gradient = torch.randn_like(x)

        def forward(inputs: Any) -> Any:
            qkv = functional.linear(functional.rms_norm(inputs, (hidden,), norm), weights[0])
            q, k, v = qkv.split((hidden, kv_heads * width, kv_heads * width), dim=-1)
            parts = [part.unflatten(-1, (-1, width)).transpose(1, 2) for part in (q, k, v)]
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
            inner = inputs + functional.linear(mixed.transpose(1, 2).flatten(2), weights[1])
            gate, up = functional.linear(functional.rms_norm(inner, (hidden,), norm), weights[2]).chunk(2, -1)
            return inner + functional.linear(functional.silu(gate) * up, weights[3])

        def work() -> None:
            if shape["recompute"]:
                out = torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=False)
            else:
                out = forward(x)
            torch.autograd.grad(out, (x, *weights), gradient)

        return work

    return prepare


def collective_tasks(torch: Any, place: str, tiny: bool, ranks: int) -> Iterator[Task]:
    """What all processes do together; sizes are those of nccl-tests: the whole buffer."""
    distributed = torch.distributed
    for size in _TINY["bytes"] if tiny else _BYTES:
        count = max(size // 4 // ranks, 1)
        shape = {"bytes": count * ranks * 4, "ranks": ranks}

        def buffers(count: int = count) -> tuple[Any, Any]:
            return torch.zeros(count * ranks, device=place), torch.zeros(count, device=place)

        def all_reduce(make: Callable[[], tuple[Any, Any]] = buffers) -> Work:
            whole, _ = make()
            return lambda: distributed.all_reduce(whole)

        def all_gather(make: Callable[[], tuple[Any, Any]] = buffers) -> Work:
            whole, part = make()
            return lambda: distributed.all_gather_into_tensor(whole, part)

        def reduce_scatter(make: Callable[[], tuple[Any, Any]] = buffers) -> Work:
            whole, part = make()
            return lambda: distributed.reduce_scatter_tensor(part, whole)

        def all_to_all(make: Callable[[], tuple[Any, Any]] = buffers) -> Work:
            whole, _ = make()
            out = torch.empty_like(whole)
            return lambda: distributed.all_to_all_single(out, whole)

        def p2p(make: Callable[[], tuple[Any, Any]] = buffers) -> Work:
            whole, _ = make()
            got, rank = torch.empty_like(whole), distributed.get_rank()
            to_next = distributed.P2POp(distributed.isend, whole, (rank + 1) % ranks)
            from_last = distributed.P2POp(distributed.irecv, got, (rank - 1) % ranks)

            def work() -> None:
                for request in distributed.batch_isend_irecv([to_next, from_last]):
                    request.wait()

            return work

        for name, prepare in (
            ("all_reduce", all_reduce), ("all_gather", all_gather), ("reduce_scatter", reduce_scatter),
            ("all_to_all", all_to_all), ("p2p", p2p),
        ):  # fmt: skip
            yield Task("collective", name, "fp32", shape, prepare)
