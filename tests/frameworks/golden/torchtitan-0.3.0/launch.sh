#!/usr/bin/env bash
# Starts this node's processes. Set NODE_RANK (0 .. NNODES-1) and MASTER_ADDR on every node.
set -euo pipefail

NNODES=${NNODES:-16}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
MASTER_PORT=${MASTER_PORT:-29500}

export PYTORCH_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
# the tokenizer's folder
HF_ASSETS_PATH=${HF_ASSETS_PATH:-./assets/hf/llama-3.1-8b}

TITAN_ARGS=(
  --module llama3
  --config llama3_8b
  --training.local_batch_size 32
  --training.global_batch_size 256
  --training.seq_len 4096
  --training.steps 50
  --training.mixed_precision_param bfloat16
  --parallelism.data_parallel_replicate_degree 1
  --parallelism.data_parallel_shard_degree 8
  --parallelism.fsdp_reshard_after_forward always
  --parallelism.tensor_parallel_degree 2
  --parallelism.context_parallel_degree 2
  --parallelism.pipeline_parallel_degree 4
  --parallelism.pipeline_parallel_schedule Interleaved1F1B
  --parallelism.pipeline_parallel_microbatch_size 2
  --parallelism.pipeline_parallel_first_stage_less_layers 0
  --parallelism.pipeline_parallel_last_stage_less_layers 0
  --parallelism.pipeline_parallel_layers_per_stage 4
  --metrics.log_freq 1
  --compile.enable
  --compile.components 'model,loss'
  --compile.no_enable_async_tensor_parallel
  --optimizer.implementation fused
  --parallelism.enable_sequence_parallel
  --profiler.no_enable_profiling
  --dataloader.dataset c4_test
  --training.disable_cuda_graphs
  activation-checkpoint:none
)

exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m torchtitan.train --hf_assets_path "$HF_ASSETS_PATH" "${TITAN_ARGS[@]}" "$@"
