"""Lines as frameworks write them, made up after the format strings in their sources, figures invented."""

RED, GREEN, BLUE, RESET = "\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[39m"

# Megatron-LM core_v0.5 (training.py), 2026 (date in front, throughput), BigScience (consumed tokens, TFLOPs)
MEGATRON_2023 = (
    " iteration       {step}/  500000 | consumed samples:         5120 | elapsed time per iteration (ms): {ms:.1f} "
    "| learning rate: 3.000E-06 | global batch size:   512 | lm loss: 1.029E+01 | loss scale: 1.0 | grad norm: 1.9 "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |"
)
MEGATRON_2026 = (
    " [2026-03-01 10:00:00] iteration {step:8d}/     100 | consumed samples:         2560 | elapsed time per "
    "iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.5 | learning rate: 1.000000E-05 | global batch "
    "size:   512 | lm loss: 9.81E+00 | loss scale: 1.0 | grad norm: 2.345 | number of skipped iterations:   0 |"
)
MEGATRON_ENERGY = (  # main of August 2026 (training.py, training_log): microseconds, energy and power
    " [2026-08-22 10:00:00.123456] iteration {step:8d}/     100 | consumed samples:         2560 | skipped samples:  "
    "         16 | elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.5 | energy per "
    "GPU (J/iter/GPU): 2891.4 | power per GPU (W/GPU): 670.9 | learning rate: 1.000000E-05 | global batch size:   512 "
    "| lm loss: 9.812345E+00 | loss scale: 1.0 | grad norm: 2.345 | number of skipped iterations:   0 |"
)
BIGSCIENCE = (
    " iteration {step:8d}/  115311 | consumed samples:       153600 | consumed tokens:    314572800 | elapsed time per "
    "iteration (s): 105.1 | elapsed time per iteration (ms): {ms:.1f} | learning rate: 6.0E-05 | global batch size: "
    "  512 | lm loss: 4.2E+00 | TFLOPs: 149.02 |"
)
BRIDGE = "Step Time : {s:.2f}s GPU utilization: 611.3MODEL_TFLOP/s/GPU"
NEMO_BAR = (
    "Epoch 0: : 100%|##########| 50/50 [31:51<00:00, reduced_train_loss=6.130, global_step={step}.0, "
    "consumed_samples=76800.0, train_step_timing in s={s:.3f}, val_loss=6.250]"
)
NEMO2 = (
    "Training epoch 0, iteration {step}/99 | lr: 4.5e-06 | global_batch_size: 128 | global_step: {step} | "
    "reduced_train_loss: 11.03 | train_step_timing in s: {s:.3f} | consumed_samples: 1280"
)
TITAN_2024 = (
    f"[rank0]:2024-06-01 12:00:00,123 - root - INFO - {RED}step: {{step:2}}  {GREEN}loss:  8.1234  "
    f"\x1b[33mmemory: 38.03GiB(40.01%)  {BLUE}wps: {{tps:,}}  \x1b[35mmfu: 41.32%{RESET}"
)
TITAN_2026 = (
    f"[rank0]:[titan] 2026-02-01 12:00:00,123 - root - INFO - {RED}step: {{step:2}}  {GREEN}loss:  8.12345  "
    f"\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[38;2;54;234;195mmemory: 42.03GiB(44.21%)  {BLUE}tps: {{tps:,}}  "
    f"\x1b[36mtflops: 388.12  \x1b[35mmfu: 39.24%{RESET}"
)
TITAN_VALIDATE = (  # torchtitan/components/metrics.py, log_validation
    f"[rank0]:[titan] 2026-08-20 12:00:00,123 - root - INFO - \x1b[33mvalidate step: {{step:2}}  {GREEN}loss:  8.1234  "
    f"\x1b[38;2;54;234;195mmemory: 40.10GiB(42.18%)  {BLUE}tps: {{tps:,}}{RESET}"
)
DEEPSPEED_2022 = (
    "[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/{step}, RunningAvgSamplesPerSec=30.5, "
    "CurrSamplesPerSec={rate}, MemAllocated=0.36GB, MaxMemAllocated=15.06GB"
)
DEEPSPEED_2024 = (
    "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}/global_step={step}, "
    "RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec={rate}, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
)
NANOTRON_2024 = (
    "03/01/2024 10:00:00 [INFO|DP=0|PP=3|TP=0|ip-26-0-1-2]: iteration: {step} / 100 | consumed_tokens: 12.6M | "
    "elapsed_time_per_iteration_ms: {k:.3g}K | tokens_per_sec: 415K | tokens_per_sec_per_gpu: 6.48K | "
    "global_batch_size: 512 | lm_loss: 10.3 | lr: 3e-05 | model_tflops_per_gpu: 321 | hardware_tflops_per_gpu: 321 | "
    "grad_norm: 2.1 | cuda_memory_allocated: 11.2G | cuda_max_memory_reserved: 40.1G"
)
NANOTRON_2025 = (
    "06/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|node]: iteration: {step} / 100 | consumed_tokens: 12.6M | "
    "time_per_iteration_ms: {k:.3g}K | tokens_per_sec: 415K | tokens_per_sec_per_gpu: 6.48K | global_batch_size: 2.1M "
    "| lm_loss: 10.3 | lr: 3e-05 | model_tflops_per_gpu: 321 | grad_norm: 2.1"
)
TRAINER = " 12%|#2        | {step}/500 [01:10<08:32, {s:.2f}s/it]"

MAXTEXT = (
    "I0706 16:50:26.257925 140110937163584 metric_logger.py:214] completed step: {step}, seconds: {s:.3f}, "
    "TFLOP/s/device: 388.120, Tokens/s/device: {tps:.3f}, total_weights: 6965, loss: 9.693, lm_loss: 9.693, "
    "perplexity: 16204.4"
)
MAXTEXT_RAMPUP = (
    "[Rampup Batch Size Phase], completed step: {step}, seconds: {s:.3f}, total_weights: 8.0, loss: 9.693"
)
COMPOSER = "\t Train throughput/batches_per_sec: {rate:.4f}"
TRAINER_END = (
    "{{'train_runtime': 431.0, 'train_samples_per_second': 29.7, 'train_steps_per_second': {rate:.3f}}}"
)

MEGATRON_MEMORY = (
    "[Rank {rank}] (after 10 iterations) memory (MB) | allocated: 30000.5 | max allocated: 61440.0 | reserved: "
    "65000.0 | max reserved: 66560.0"
)
NANOTRON_MEMORY = " Memory usage: 10240.00MiB. Peak allocated 40960.00MiB. Peak reserved: 46080.00MiB"
SEE_MEMORY = (
    "[2024-03-07 15:27:02,646] [INFO] [utils.py:801:see_memory_usage] "
    "MA 6.01 GB         Max_MA 19.52 GB         CA 25.0 GB         Max_CA 26 GB"
)

OOM_2025 = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of "
    "79.10 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.59 GiB memory in use. Of "
    "the allocated memory 65.00 GiB is allocated by PyTorch, with 128.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 9.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
    "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
OOM_2022 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 39.59 GiB total capacity; 36.10 GiB "
    "already allocated; 200.19 MiB free; 37.02 GiB reserved in total by PyTorch) If reserved memory is >> allocated"
)
OOM_ROCM = OOM_2025.replace("CUDA out of memory", "HIP out of memory").replace("79.10", "191.98")
OOM_SHARED = OOM_2025.replace(
    "Including non-PyTorch", "Process 77 has 20.00 GiB memory in use. Including non-PyTorch"
)
