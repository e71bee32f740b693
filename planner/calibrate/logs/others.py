"""What is a file that is no training log? Its kind by what stands in it, never by its name, and what to do with it.

Left out: packed and binary files, which `text.py` refuses.
"""

from __future__ import annotations

import re
from typing import Final

HEAD: Final = 100_000  # characters that tell
# what it is, what only it has, what to do with it
_KINDS: Final = tuple(
    (kind, re.compile(pattern, re.MULTILINE), hint)
    for kind, pattern, hint in (
        (
            "a table of nccl-tests or rccl-tests",
            r"^[^\n]{0,200}#[ \t]+\(?size\b.*\bcount\b|^# nThread \d+",
            "give it to planner calibrate --nccl",
        ),
        (
            "a trace of the PyTorch profiler",
            r'"traceEvents"\s*:|"deviceProperties"\s*:\s*\[',
            "name the text that the run printed; planner probe times kernels on their own",
        ),
        (
            "a report of Nsight Systems",
            r"\bCUDA (?:GPU )?Kernel (?:Summary|Statistics)\b|\[\d+/\d+\] Executing '\w+' stats report|"
            r"^Generating '[^\n]{0,200}\.qdstrm'|\bProcessing \[[^\n]{0,200}\.sqlite\]",
            "name the text that the run printed: kernels under a profiler take longer",
        ),
        (
            "a script of Slurm",
            r"\A#!.{0,80}\n(?:.*\n){0,200}?#SBATCH\b",
            "name the file of its --output; planner check reads the launch",
        ),
        ("a shell script", r"\A#!\s?/\S*\b(?:ba|z)?sh\b", "name the text that the run printed"),
        (
            "the output of nvidia-smi",
            r"\bNVIDIA-SMI \d|^={5,}NVSMI LOG={5,}|^[ \t]*GPU0[ \t]+GPU1\b|^index, ?(?:name|utilization|memory)",
            "name the text that the run printed; planner clusters describes machines",
        ),
        (
            "a list of packages",
            r"\A\s*Package +Version *\n-+ -+|\A(?:[\w.\[\]-]+==[\w.+!]+\s*\n){3}|\A# packages in environment at ",
            "name the text that the run printed, and the software beside it",
        ),
        (
            "a configuration of DeepSpeed",
            r'"(?:zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)"\s*:',
            "give it to planner check",
        ),
        (
            "a config.json of Hugging Face",
            r'"(?:model_type|architectures|num_hidden_layers)"\s*:',
            "give it as MODEL, and the text that the run printed as --run",
        ),
        (
            "a log of inference (vLLM, SGLang)",
            r"\bAvg (?:prompt|generation) throughput: |\bgen throughput \(token/s\): |\bvLLM API server version\b",
            "planner predicts training; name the log of a training run",
        ),
        (
            "a summary of lm-evaluation-harness",
            r"^\|\s*Tasks\s*\|\s*Version\s*\|",
            "name the log of the training run",
        ),
        (
            "a traceback alone",
            r"\ATraceback \(most recent call last\):",
            "name the whole text that the run printed, with its steps",
        ),
    )
)


def named(head: str) -> tuple[str, str] | None:
    """What a text is that is no training log, by its first `HEAD` characters, and what to do; None where unknown."""
    return next(((kind, hint) for kind, pattern, hint in _KINDS if pattern.search(head)), None)
