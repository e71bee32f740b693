"""What trains where a framework is a library and not a program? Small scripts on made-up tokens.

They exist so that a launch runs and its time and memory can be compared with the plan before there is a data loader.
Left out: data, checkpoints, evaluation.
"""

from __future__ import annotations

from typing import Final

from planner.errors import UnsupportedError
from planner.spec.mixers import LightningAttention, ShortConvolution
from planner.spec.model import ModelSpec
from planner.spec.stack import Stack
from planner.spec.stack.kinds import AttentionKernel, CrossEntropy

PROGRAM: Final = "train.py"
MODEL_CONFIG: Final = "config.json"

# attention of transformers by what the plan's stack runs; without a stack it chooses itself
_ATTENTION: Final = {
    AttentionKernel.FLASH_2: "flash_attention_2",
    AttentionKernel.FLASH_TRITON: "flash_attention_2",
    AttentionKernel.MEMORY_EFFICIENT: "sdpa",
    AttentionKernel.FUSED_SOFTMAX: "sdpa",
    AttentionKernel.EAGER: "eager",
}
# releases of FlashAttention after the second, by the devices they were written for (Dao-AILab/flash-attention, README)
_FLASH_RELEASES: Final = {
    ("h100", "h200", "h800", "h20", "gh200"): "flash_attention_3",
    ("b200", "b300", "gb200", "gb300"): "flash_attention_4",
}
NEWER_FLASH: Final = frozenset(_FLASH_RELEASES.values())


# Families that transformers 5.24 has no causal language model of (models/auto/modeling_auto.py): published with code of
# their own, or there only beside a vision tower.
NOT_IN_LIBRARY: Final = frozenset(
    {
        *("Yi", "baichuan", "chatglm", "internlm", "minicpm", "qwen", "xverse"),
        *(
            "bailing_moe",
            "bailing_moe_v2",
            "deepseek",
            "hunyuan",
            "hy_v4_vl_text",
            "internlm2",
            "k2_horizon",
            "kimi_k2",
            "kimi_k3",
            "mimo",
            "mimo_v2",
        ),
        *("minimax_m1", "minimax_m3", "minimax_text_01"),
        *("mistral4", "mistral_large4_text", "muse_glimmer_text", "nemotron-nas", "step3p5"),
    }
)


# those that releases before 5.24 have none of
SINCE_5_24: Final = frozenset({"apertus1p5_text", "exaone", "lara_mini", "sarvam_mla", "sarvam_moe"})


def check_program(model: ModelSpec) -> None:
    """Raise `UnsupportedError` for a model that the program cannot build from its configuration."""
    if model.family in NOT_IN_LIBRARY:
        raise UnsupportedError(
            "transformers, which the program runs, must have a causal language model of the family",
            f"{model.family}, of which 5.24 has none",
            "plan another model, or write the program that runs its own code",
        )


def release_notes(model: ModelSpec) -> list[str]:
    """Which release of transformers the program must find, where not every one of the newest two will do."""
    if model.family in SINCE_5_24:
        return [f"transformers 5.24 or later: those before have no model of the family {model.family}"]
    if model.family == "bailing_hybrid" and any(a.q_lora_rank for a in model.attentions):
        return ["transformers 5.24 or later: those before know no q_lora_rank of bailing_hybrid"]
    return []


def attention_of(stack: Stack, accelerator: str) -> str:
    """attn_implementation of transformers that runs the stack's attention, the device's fastest where it names none."""
    kernel = stack.kernels.attention
    if kernel is not AttentionKernel.FLASH:
        return _ATTENTION[kernel]
    newer = (name for parts, name in _FLASH_RELEASES.items() if accelerator.lower().startswith(parts))
    return next(newer, _ATTENTION[AttentionKernel.FLASH_2])


def kernel_words(stack: Stack | None, accelerator: str) -> list[tuple[str, ...]]:
    """Options of the programs that ask for the kernels a stack counts on."""
    if stack is None:
        return []
    fused = (
        stack.kernels.fused_norm and stack.kernels.fused_activation and not stack.kernels.single_operations
    )
    return [("--attention", attention_of(stack, accelerator)), *([("--compile",)] if fused else [])]


def kernel_notes(stack: Stack | None, model: ModelSpec, accelerator: str) -> list[str]:
    """What the programs need for that, or do not bring."""
    said = []
    if model.delta_nets:
        said.append(
            "flash-linear-attention and causal-conv1d: without their kernels transformers is far slower"
        )
    elif model.mambas:
        said.append(
            "mamba-ssm and causal-conv1d: without their kernels transformers scans step by step, far slower"
        )
    if any(isinstance(state, ShortConvolution) for state in model.state_spaces):
        said.append("causal-conv1d: without its kernel transformers takes a slower convolution")
    if any(isinstance(state, LightningAttention) for state in model.state_spaces):
        said.append(
            "a kernel of lightning attention: transformers has none, and without --compile the time of its backward "
            "pass grows with the square of the sequence"
        )
    if stack is None:
        return [
            *said,
            "kernels of the plan's stack, which is another framework's: those transformers chooses are used",
        ]
    if stack.kernels.attention.is_flash:
        said.append(f"{attention_of(stack, accelerator)}: its package must be installed")
    if stack.kernels.attention is AttentionKernel.MEMORY_EFFICIENT:
        said.append(
            "an attention mask: without one, as of these tokens, sdpa takes a faster kernel than planned"
        )
    if stack.kernels.fused_rotary:
        said.append(
            "Liger's kernels: train.py does not put them in; call liger_kernel.transformers' apply_liger_kernel"
        )
    if stack.kernels.cross_entropy is not CrossEntropy.EAGER:
        said.append("the loss of the plan's stack: transformers computes it on whole logits")
    return said


_TOP: Final = '''\
"""Trains the model of config.json on made-up tokens and prints the time of every step."""

import argparse
import json
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
parser.add_argument("--attention", help="implementation that transformers takes, for example flash_attention_2")
parser.add_argument("--compile", action="store_true", help="fuses norms and activations, block by block")
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
config = AutoConfig.from_pretrained(HERE)
config.use_cache = False


def prepare(model):
    if args.recompute:
        model.gradient_checkpointing_enable()
    if args.compile:
        depth = config.get_text_config().num_hidden_layers
        lists = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        for block in next(m for m in lists if len(m) == depth):
            block.compile()
'''

DEEPSPEED_PROGRAM: Final = (
    _TOP
    + """
from contextlib import nullcontext

import deepspeed

settings = json.loads((HERE / "ds_config.json").read_text())
types = {"bf16": torch.bfloat16, "fp16": torch.float16}
dtype = next((types[name] for name in types if name in settings), torch.float32)
parts = settings.get("sequence_parallel_size", 1)
copies = parts * settings.get("tensor_parallel", {}).get("autotp_size", 1)
deepspeed.init_distributed()
rank, mpu = torch.distributed.get_rank(), None
if parts > 1:  # Ulysses: each rank has its part of every sequence
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    mpu = UlyssesSPAttentionHF.register_with_transformers(
        str(HERE), args.attention or "sdpa", parts, args.micro_batch, args.seq_len, seq_length_is_variable=False
    )
import torch._dynamo  # its registrations fail on tensors that zero.Init has patched

sharded = settings["zero_optimization"]["stage"] == 3
at_once = deepspeed.zero.Init(config_dict_or_path=str(HERE / "ds_config.json"), mpu=mpu) if sharded else nullcontext()
with at_once:
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=args.attention)
prepare(model)
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=str(HERE / "ds_config.json"), mpu=mpu
)
torch.manual_seed(rank // copies)  # ranks that share a sequence draw the same one
length, here = args.seq_len // parts, rank % parts * (args.seq_len // parts)
places = torch.arange(here, here + length, device=engine.device).expand(args.micro_batch, -1)
for step in range(args.steps):
    start = time.time()
    for _ in range(args.accumulate):
        tokens = torch.randint(config.vocab_size, (args.micro_batch, args.seq_len), device=engine.device)
        tokens = tokens[:, here : here + length]
        loss = engine(input_ids=tokens, labels=tokens, position_ids=places).loss
        engine.backward(loss)
        engine.step()
    torch.cuda.synchronize()
    if rank == 0:
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step} loss {loss.item():.4f} time {time.time() - start:.3f} s peak {peak:.1f} GiB", flush=True)
torch.distributed.destroy_process_group()
"""
)

_LAST_WORD: Final = 'parser.add_argument("--local_rank"'
_SYNC: Final = (
    'parser.add_argument("--sync-each-batch", action="store_true", '
    'help="reduces gradients in every micro-batch: FSDP keeps them whole else")\n'
)
ACCELERATE_PROGRAM: Final = (
    _TOP.replace("import json\n", "").replace(_LAST_WORD, _SYNC + _LAST_WORD)
    + """
from contextlib import nullcontext

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

accumulation = GradientAccumulationPlugin(num_steps=args.accumulate, sync_each_batch=args.sync_each_batch)
accelerator = Accelerator(gradient_accumulation_plugin=accumulation)
if (plugin := accelerator.state.deepspeed_plugin) is not None:  # which takes it from a data loader else
    plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = args.micro_batch
parts = accelerator.parallelism_config.cp_size if accelerator.parallelism_config else 1
# the masters: config.json may name a narrower type
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=args.attention)
prepare(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
model, optimizer = accelerator.prepare(model, optimizer)
torch.manual_seed(accelerator.process_index // parts)  # ranks that share a sequence draw the same one


def divided(*whole):
    if parts == 1:
        return nullcontext()
    return accelerator.maybe_context_parallel(
        buffers=list(whole), buffer_seq_dims=[1] * len(whole), no_restore_buffers=set(whole)
    )


for step in range(args.steps):
    start = time.time()
    for _ in range(args.accumulate):
        tokens = torch.randint(config.vocab_size, (args.micro_batch, args.seq_len), device=accelerator.device)
        places = torch.arange(args.seq_len, device=accelerator.device).repeat(args.micro_batch, 1)
        with divided(tokens, places), accelerator.accumulate(model):
            said = {"position_ids": places} if parts > 1 else {}
            loss = model(input_ids=tokens, labels=tokens, **said).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    if accelerator.is_main_process:
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step} loss {loss.item():.4f} time {time.time() - start:.3f} s peak {peak:.1f} GiB", flush=True)
accelerator.end_training()
"""
)
