#!/usr/bin/env bash
# Starts this node's processes. Set NODE_RANK (0 .. NNODES-1) and MASTER_ADDR on every node.
set -euo pipefail

NNODES=${NNODES:-16}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
MASTER_PORT=${MASTER_PORT:-29500}

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

PROGRAM_ARGS=(
  --seq-len 4096
  --micro-batch 2
  --accumulate 2
  --steps 50
  --recompute
  --attention flash_attention_2
)

exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$HERE/train.py" "${PROGRAM_ARGS[@]}" "$@"
