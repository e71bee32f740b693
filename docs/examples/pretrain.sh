#!/usr/bin/env bash
# A launch of Megatron-LM as people keep it: 70B on 64 nodes, the batch wrong.
torchrun --nnodes 64 --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --vocab-size 128256 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 \
  --sequence-parallel --use-distributed-optimizer --bf16 \
  --micro-batch-size 1 --global-batch-size 500 --train-iters 1000
