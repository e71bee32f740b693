"""What does planner predict for published runs, whose rows leave open what could make them fit?

Left out: predicting itself (`planner/calibrate/predict.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.published.runs import Run
from planner.calibrate import predict
from planner.calibrate.predict import Prediction, evaluated, refusal
from planner.spec.config import OFFLOAD_ACTIVATIONS
from planner.spec.verdict import MemoryRoom, MemoryVerdict


def predict_runs(runs: Sequence[Run | None]) -> list[Prediction | None]:
    """A prediction for every run, None for None. Never raises."""
    return [
        None if run is None or prediction is None else _completed_or_failed(run, prediction)
        for run, prediction in zip(runs, predict.predict_runs(runs), strict=True)
    ]


def _completed_or_failed(run: Run, prediction: Prediction) -> Prediction:
    try:
        return _completed(run, prediction)
    except Exception as error:
        return Prediction(failed=refusal(error))


def _completed(run: Run, prediction: Prediction) -> Prediction:
    """The prediction, its verdict softened where what the run leaves open could make it fit."""
    if prediction.verdict is not MemoryVerdict.DOES_NOT_FIT or prediction.illegal:
        return prediction
    if run.layers_offloaded:
        return _with_offloaded_layers(run, prediction)
    if run.offloads:
        return replace(prediction, verdict=MemoryVerdict.BORDERLINE)
    if run.fallback is None:
        return prediction
    frugal = evaluated(run.model(), [run.fallback])[0]
    if frugal.verdict is MemoryVerdict.DOES_NOT_FIT:
        return prediction
    said = "recomputation not stated: without any it would not fit, with all of it it would, so borderline"
    return replace(prediction, verdict=MemoryVerdict.BORDERLINE, assumed=(said, *prediction.assumed))


def _with_offloaded_layers(run: Run, prediction: Prediction) -> Prediction:
    """The prediction with activations of so many layers on the host: between none and all but two layers of a stage.

    The step time is that without, as copies run beside compute.
    """
    all_but_two = replace(run.config, offload=run.config.offload | OFFLOAD_ACTIVATIONS)
    least = evaluated(run.model(), [all_but_two])[0]
    share = min(run.layers_offloaded / max(-(-run.problem.model.num_layers // run.config.pp) - 2, 1), 1.0)
    sizes = []
    for whole, rest in (
        (prediction.peak_memory, least.peak_memory), (prediction.device_memory, least.device_memory),
    ):  # fmt: skip
        if whole is None or rest is None:
            return prediction
        sizes.append(whole + share * (rest - whole))
    verdict = MemoryRoom.of(run.problem, headroom=0.0).verdict(sizes[1])
    said = f"activations of {run.layers_offloaded} layers in CPU memory, their copies hidden"
    return replace(
        prediction, peak_memory=sizes[0], device_memory=sizes[1], verdict=verdict,
        assumed=(said, *prediction.assumed),
    )  # fmt: skip
