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
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)


exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m torchtitan.train --job.config_file "$HERE/config.toml" --model.hf_assets_path "$HF_ASSETS_PATH" "$@"
