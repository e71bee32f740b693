#!/usr/bin/env bash
# Starts this node's processes. Set NODE_RANK (0 .. nodes-1) and MASTER_ADDR on every node.
set -euo pipefail
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
MASTER_PORT=${MASTER_PORT:-29500}
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec accelerate launch --config_file "$HERE/accelerate.yaml" --machine_rank "$NODE_RANK" \
  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
  "$HERE/train.py" --seq-len 4096 --micro-batch 1 --accumulate 4 --steps 50 --sync-each-batch --attention sdpa --compile "$@"
