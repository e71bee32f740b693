"""What trains where a framework is a library and not a program? Small scripts on made-up tokens.

They exist so that a launch runs and its time and memory can be compared with the plan before there is a data loader.
Left out: data, checkpoints, evaluation.
"""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "train.py"
MODEL_CONFIG: Final = "config.json"

_TOP: Final = '''\
"""Trains the model of config.json on made-up tokens and prints the time of every step."""

import argparse
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser()
parser.add_argument("--seq-len", type=int, required=True)
parser.add_argument("--micro-batch", type=int, required=True)
parser.add_argument("--accumulate", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
config = AutoConfig.from_pretrained(HERE)
config.use_cache = False
'''

DEEPSPEED_PROGRAM: Final = (
    _TOP
    + """
import deepspeed

deepspeed.init_distributed()
with deepspeed.zero.Init(config_dict_or_path=str(HERE / "ds_config.json")):
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
if args.recompute:
    model.gradient_checkpointing_enable()
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=str(HERE / "ds_config.json")
)
shape = (args.micro_batch, args.seq_len)
for step in range(args.steps):
    start = time.time()
    for _ in range(args.accumulate):
        tokens = torch.randint(config.vocab_size, shape, device=engine.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
    torch.cuda.synchronize()
    if torch.distributed.get_rank() == 0:
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step} loss {loss.item():.4f} time {time.time() - start:.3f} s peak {peak:.1f} GiB", flush=True)
"""
)

ACCELERATE_PROGRAM: Final = (
    _TOP
    + """
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
model = AutoModelForCausalLM.from_config(config)
if args.recompute:
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
model, optimizer = accelerator.prepare(model, optimizer)
shape = (args.micro_batch, args.seq_len)
for step in range(args.steps):
    start = time.time()
    for _ in range(args.accumulate):
        tokens = torch.randint(config.vocab_size, shape, device=accelerator.device)
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    if accelerator.is_main_process:
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step} loss {loss.item():.4f} time {time.time() - start:.3f} s peak {peak:.1f} GiB", flush=True)
"""
)
