"""What does a step under DeepSpeed's ZeRO ask of a device and its host? DeepSpeed's own engine on fake tensors.

Tensors of the device are on "cpu:0", those of the host on "cpu", so that DeepSpeed moves them between the two as it
does between a GPU and its host. Left out: what its kernels for the host's update take; how long blocks wait for other
streams (`Tensor.record_stream`), as if the device kept up with its host; its pipelines.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.cost.captured.operation import Phase
from planner.dryrun.deepspeed.held import hold_gradients, hold_states, zero_blocks_told
from planner.dryrun.deepspeed.recipe import DeepspeedRecipe
from planner.dryrun.processes import Device, process_of
from planner.dryrun.recorder import Recorder
from planner.dryrun.recording import Holds, Recording
from planner.dryrun.transformers.library import not_traced, on_device
from planner.dryrun.transformers.model import config_of, experts_of, plain_token, prepared
from planner.dryrun.transformers.recipe import MOST_MICROBATCHES
from planner.dryrun.values import Values
from planner.errors import InputError, PlannerError, UnsupportedError, in_short, install_hint

_DEVICE: Final = "cpu:0"
# which keep process groups, and functions that ZeRO-3 replaces
_PROCESS_WIDE: Final = ("deepspeed.utils.groups", "deepspeed.comm.comm", "torch.nn.functional")


def record_step(recipe: DeepspeedRecipe, capability: tuple[int, int]) -> Recording:
    """Everything that building a model and two of its steps ask of a device and of its host, of one rank.

    Raises `InputError` where DeepSpeed is missing or refuses, `UnsupportedError` for what cannot be run.
    """
    deepspeed = _deepspeed()
    config = config_of(recipe)
    recorder = Recorder(_Values(experts_of(config)), capability)
    recorder.host_is_apart = True
    with (
        on_device(capability) as undone,
        process_of(0, recipe.ranks, recorder),
        _accelerator(deepspeed, recorder),
        zero_blocks_told(recorder),
        FakeTensorMode(allow_non_fake_inputs=True),
        recorder,
    ):
        try:
            with torch.device(_DEVICE):
                model = prepared(recipe, config, recorder, undone)
            recorder.hold([*model.parameters(), *model.buffers()], Holds.WEIGHTS)
            recorder.name_modules(model)
            with not_traced():
                _step_twice(deepspeed, recipe, model, config, recorder)
        except PlannerError:
            raise
        except Exception as error:  # whatever DeepSpeed or the model's own code ends with
            must = (
                f"a dry run needs a step that DeepSpeed {deepspeed.__version__} runs on tensors without data"
            )
            raise UnsupportedError(must, in_short(error)) from error
        del model
        gc.collect()
    return recorder.recording


class _Values(Values):
    """Numbers that DeepSpeed asks for: a step overflows nowhere, and norms are 1."""

    def _number(self, tensor: Any) -> Any:
        if tensor.numel() == 1 and (tensor.is_floating_point() or tensor.dtype == torch.uint8):
            return 1.0 if tensor.is_floating_point() else 0
        return super()._number(tensor)


def _deepspeed() -> Any:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # which it looks for when it is imported
    try:
        import deepspeed
    except ImportError as error:
        raise InputError("a dry run of DeepSpeed needs it", str(error), install_hint("frameworks")) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


@contextmanager
def _accelerator(deepspeed: Any, recorder: Recorder) -> Iterator[None]:
    """Have DeepSpeed take the fake device for a GPU, and build nothing."""
    before = deepspeed.accelerator.get_accelerator()
    shared = sys.modules["deepspeed.comm.torch"]
    kept = [sys.modules[name] for name in _PROCESS_WIDE]
    as_it_was = [dict(vars(module)) for module in kept]
    deepspeed.accelerator.set_accelerator(_accelerator_class()(recorder))
    try:
        with (
            patch.dict(os.environ, LOCAL_RANK="0"),
            patch.object(shared, "build_shm_op", lambda: None),
            patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None),
        ):
            yield
    finally:
        deepspeed.accelerator.set_accelerator(before)
        for module, values in zip(kept, as_it_was, strict=True):
            vars(module).update(values)


def _accelerator_class() -> Any:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    class Accelerator(CPU_Accelerator):  # type: ignore[misc]  # DeepSpeed is not checked
        """A GPU as DeepSpeed asks for one."""

        def __init__(self, recorder: Recorder) -> None:
            super().__init__()
            self._recorder, self._device = recorder, Device(recorder)
            self._communication_backend_name = "nccl"

        def is_synchronized_device(self) -> bool:
            return False

        def is_fp16_supported(self) -> bool:
            return True

        def device_name(self, device_index: int | None = None) -> str:
            return _DEVICE

        def current_device_name(self) -> str:
            return _DEVICE

        def current_device(self) -> int:
            return 0

        def device(self, device_index: int | None = None) -> Any:
            return torch.device(_DEVICE)

        @property
        def Stream(self) -> Any:  # noqa: N802
            return self._device.Stream

        @property
        def Event(self) -> Any:  # noqa: N802
            return self._device.Event

        def stream(self, stream: Any) -> Any:
            return self._device.stream(stream)

        def current_stream(self, device_index: int | None = None) -> Any:
            return self._device.current_stream()

        def default_stream(self, device_index: int | None = None) -> Any:
            return self._device.default_stream()

        def on_accelerator(self, tensor: Any) -> bool:
            return tensor.device.index is not None

        def pin_memory(self, tensor: Any, make_copy: bool = True, match_shape: bool = True) -> Any:
            with self._recorder.pinning():
                return torch.empty_like(tensor)

        def _torch_empty_pinned(self, tensor: Any, shape: Any) -> Any:
            with self._recorder.pinning():
                return tensor.new_empty(shape)

    return Accelerator


def _step_twice(deepspeed: Any, recipe: DeepspeedRecipe, model: Any, config: Any, recorder: Recorder) -> None:
    micro = min(recipe.num_microbatches, MOST_MICROBATCHES)
    settings = {
        key: value
        for key, value in recipe.settings.items()
        if key not in ("optimizer", "train_batch_size", "steps_per_print", "wall_clock_breakdown")
    } | {
        "train_micro_batch_size_per_gpu": recipe.micro_batch,
        "gradient_accumulation_steps": micro,
        "zero_force_ds_cpu_optimizer": False,  # PyTorch's fused update holds what DeepSpeed's own kernels hold
        "zero_allow_untested_optimizer": True,
    }
    trained = [one for one in model.parameters() if one.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, config=settings, optimizer=torch.optim.AdamW(trained, lr=1e-5, fused=True)
    )
    size = (recipe.micro_batch, recipe.seq_len)
    tokens = torch.full(size, plain_token(config), device=_DEVICE)
    recorder.hold([tokens], Holds.INPUT)
    hold_states(engine, recorder)
    for step in range(2):
        recorder.begin_step(step)
        for number in range(micro):
            recorder.phase = Phase.FORWARD
            with recorder.modules_followed():
                loss = engine(input_ids=tokens, labels=tokens).loss
                recorder.phase = Phase.BACKWARD
                engine.backward(loss)
            hold_gradients(engine, recorder)
            recorder.phase = Phase.OPTIMIZER if number == micro - 1 else Phase.BACKWARD
            engine.step()  # which counts micro-batches
        hold_states(engine, recorder)
    recorder.recording.end = len(recorder.recording.trace)  # before the engine's own end
