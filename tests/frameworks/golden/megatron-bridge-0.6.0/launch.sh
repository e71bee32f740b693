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
# A checkout of Megatron-Bridge; in its container it is where you put it.
BRIDGE_PATH=${BRIDGE_PATH:-/opt/Megatron-Bridge}

RECIPE_ARGS=(
  --recipe llama31_8b_pretrain_2gpu_h100_bf16_config
  --mode pretrain
  --dataset mock
)
OVERRIDE_ARGS=(
  mixed_precision=bf16_mixed
  model.tensor_model_parallel_size=4
  model.pipeline_model_parallel_size=4
  model.virtual_pipeline_model_parallel_size=2
  model.context_parallel_size=1
  model.sequence_parallel=true
  model.pipeline_model_parallel_layout=null
  model.num_layers_in_first_pipeline_stage=null
  model.num_layers_in_last_pipeline_stage=null
  model.account_for_embedding_in_pipeline_split=false
  model.account_for_loss_in_pipeline_split=false
  model.seq_length=4096
  dataset.seq_length=4096
  optimizer.optimizer=adam
  optimizer.use_precision_aware_optimizer=false
  optimizer.main_grads_dtype=torch.float32
  optimizer.main_params_dtype=torch.float32
  optimizer.exp_avg_dtype=torch.float32
  optimizer.exp_avg_sq_dtype=torch.float32
  train.global_batch_size=256
  train.micro_batch_size=1
  train.train_iters=50
  logger.log_interval=1
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  model.recompute_granularity=null
  model.recompute_method=null
  model.recompute_num_layers=null
  model.cross_entropy_loss_fusion=false
  ddp.overlap_grad_reduce=true
  ddp.overlap_param_gather=true
  model.tp_comm_overlap=true
  model.overlap_p2p_comm=true
  model.batch_p2p_comm=false
  model.cuda_graph_impl=none
  model.vocab_size=128512
  tokenizer.use_tokenizer_vocab_size=false
)

exec torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$BRIDGE_PATH/scripts/training/run_recipe.py" "${RECIPE_ARGS[@]}" "${OVERRIDE_ARGS[@]}" "$@"
