#!/usr/bin/env bash
# Starts this node's processes. Set NODE_RANK (0 .. NNODES-1) and MASTER_ADDR on every node.
set -euo pipefail

NNODES=${NNODES:-16}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
MASTER_PORT=${MASTER_PORT:-29500}

export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
# A checkout of Megatron-LM; in its container it is where you put it.
MEGATRON_PATH=${MEGATRON_PATH:-/opt/megatron-lm}
export PYTHONPATH="$MEGATRON_PATH${PYTHONPATH:+:$PYTHONPATH}"

MODEL_ARGS=(
  --num-layers 32
  --hidden-size 4096
  --ffn-hidden-size 14336
  --num-attention-heads 32
  --seq-length 4096
  --max-position-embeddings 131072
  --position-embedding-type rope
  --rotary-base 500000
  --use-rope-scaling
  --rope-scaling-factor 8.0
  --kv-channels 128
  --group-query-attention
  --num-query-groups 8
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --vocab-size 128256
  --make-vocab-size-divisible-by 128
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 4
  --context-parallel-size 1
  --sequence-parallel
  --tp-comm-overlap
  --num-virtual-stages-per-pipeline-rank 2
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
)
PRECISION_ARGS=(
  --bf16
  --optimizer adam
)
KERNELS_ARGS=(
  --attention-backend auto
)
TRAINING_ARGS=(
  --micro-batch-size 1
  --global-batch-size 256
  --train-iters 50
  --lr 3e-4
  --min-lr 3e-5
  --lr-decay-style cosine
  --clip-grad 1.0
  --weight-decay 0.1
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --log-interval 1
  --log-throughput
  --eval-iters 0
  --distributed-timeout-minutes 60
)
DATA_ARGS=(
  --mock-data
  --tokenizer-type NullTokenizer
)

exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON_PATH/pretrain_gpt.py" "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${PRECISION_ARGS[@]}" "${KERNELS_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "$@"
