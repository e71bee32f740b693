"""How long do DeepSpeed's hooks around the modules of ZeRO-3 take the host? Its own code, on a processor alone.

    python -m benchmarks.deepspeed_hooks [--ranks 1 8]

Needs PyTorch and DeepSpeed (2.13 and 0.19.8 gave what `catalog/stacks/deepspeed-2025.yaml` has). Models of linear
layers with 64 inputs, whose products take no time, trained forward and backward under stage 3 and without it: the least
of several steps' processor time, of which the difference between models of 4 and 12 such layers in 4 and 16 blocks is
a module's. Several ranks: torch's fake process group, whose messages take no time. Left out: what the device waits for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Final

STEPS: Final = 40
WIDTH: Final = 64
BLOCKS, LAYERS = (4, 16), (4, 12)
PREFETCHED: Final = {"one module a gather": WIDTH**2, "ten": 10 * WIDTH**2}  # stage3_prefetch_bucket_size


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each number of ranks and size of a gather."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deepspeed_hooks", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.measure:
        print(json.dumps(measured(**json.loads(given.measure))))
        return 0
    plain = _module(ranks=1, prefetched=0, stage=0)
    for ranks in given.ranks:
        for name, prefetched in PREFETCHED.items():
            both = _module(ranks=ranks, prefetched=prefetched, stage=3)
            ahead, behind = (1e3 * (hooked - bare) for hooked, bare in zip(both, plain, strict=True))
            print(f"{ranks} ranks, {name}: {ahead:.2f} ms forward and {behind:.2f} backward a linear layer")
    return 0


def _module(**settings: int) -> tuple[float, float]:
    """Processor time of one linear layer, forward and backward [s]."""
    times = {
        (blocks, layers): _in_a_process(blocks=blocks, layers=layers, **settings)
        for blocks in BLOCKS
        for layers in LAYERS
    }
    number = (BLOCKS[1] - BLOCKS[0]) * (LAYERS[1] - LAYERS[0])
    more = [
        (times[BLOCKS[1], LAYERS[1]][way] - times[BLOCKS[0], LAYERS[1]][way])
        - (times[BLOCKS[1], LAYERS[0]][way] - times[BLOCKS[0], LAYERS[0]][way])
        for way in (0, 1)
    ]
    return more[0] / number, more[1] / number


def _in_a_process(**settings: int) -> tuple[float, float]:
    """What `measured` says in a process of its own, for an engine cannot be taken down."""
    words = [sys.executable, "-m", "benchmarks.deepspeed_hooks", "--measure", json.dumps(settings)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    ahead, behind = json.loads(done.stdout.splitlines()[-1])
    return ahead, behind


def measured(blocks: int, layers: int, ranks: int, prefetched: int, stage: int) -> tuple[float, float]:
    """The least processor time of a forward and of a backward pass [s]; `stage` 0: without DeepSpeed."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def block() -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))

    model: Any = nn.Sequential(*(block() for _ in range(blocks)))
    backward = _plain
    if stage:
        model, backward = _engine(model, ranks, prefetched, stage)
    else:
        model = model.bfloat16()
    inputs = torch.randn(8, WIDTH, dtype=torch.bfloat16)
    ahead, behind = [], []
    for _ in range(STEPS):
        begun = time.process_time()
        loss = model(inputs).float().pow(2).mean()
        turned = time.process_time()
        backward(loss)
        ahead.append(turned - begun)
        behind.append(time.process_time() - turned)
    return min(ahead), min(behind)


def _plain(loss: Any) -> None:
    loss.backward()


def _engine(model: Any, ranks: int, prefetched: int, stage: int) -> tuple[Any, Any]:
    """DeepSpeed's engine around a model, and its backward pass."""
    import torch

    deepspeed = importlib.import_module("deepspeed")  # has no types

    if ranks > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
        deepspeed.init_distributed("fake", dist_init_required=False)
    else:
        deepspeed.init_distributed("gloo")
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1000,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage, "stage3_param_persistence_threshold": 100, "overlap_comm": True,
            "contiguous_gradients": True, "reduce_bucket_size": 500_000, "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": prefetched,
        },
    }  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    return engine, engine.backward


if __name__ == "__main__":
    sys.exit(main())
