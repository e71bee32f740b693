"""Do a run's step time and the MFU or FLOP rate reported of it speak of the same run?

A way of counting explains a factor of two: peaks with sparsity, or of 8 bits for one of 16; attention counted whole is
less. What is further apart is of another run or another job, and no cause can be told from it; what is nearer and yet
not the same is remarked on. Left out: which of the two is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.calibrate.diagnosis.hypotheses import Evidence, model_flops, peak_of
from planner.cost.mfu import MfuConvention
from planner.spec.findings import Finding, finding

MOST_BETWEEN: Final = 2.5  # twice for another peak, the rest for other FLOPs and rounding
SAME: Final = 0.03  # relative: rates of one run, its step times averaged


@dataclass(frozen=True)
class Contradiction:
    """A step time and an MFU that cannot be one run's. `seconds`: of the step; `shown`: the MFU that it means, `given`:
    the one reported, as logs of the stack count it; `full`, `half`: what the step time means with causal attention
    counted whole and at half [1]; `peak`: dense [FLOP/s]; `devices`, `sequences`, `seq_len`: of the job."""

    seconds: float
    shown: float
    given: float
    full: float
    half: float
    peak: float
    devices: int
    sequences: int
    seq_len: int

    @property
    def ratio(self) -> float:
        """MFU given over the one that the step time means [1]."""
        return self.given / self.shown


def contradiction(part: Evidence) -> Contradiction | None:
    """What is contradicted where no way of counting makes the reported rate the step time's."""
    ratio = part.reported_ratio
    if ratio is None or 1 / MOST_BETWEEN <= ratio <= MOST_BETWEEN:
        return None
    seen, peak = part.seen, peak_of(part.seen)
    shown, full, half = (
        model_flops(seen, kind) / seen.seconds / peak
        for kind in (None, MfuConvention.FULL_SQUARE, MfuConvention.CAUSAL_HALF)
    )
    job, devices = seen.problem.job, seen.problem.cluster.num_devices
    return Contradiction(
        seen.seconds, shown, ratio * shown, full, half, peak, devices, job.global_batch, job.seq_len
    )


def counted_otherwise(part: Evidence) -> Finding | None:
    """What there is to say of a reported FLOP rate that is not the step time's; none where it is, or is of another
    run."""
    ratio = part.reported_ratio
    if part.flops is None or ratio is None or abs(ratio - 1) <= SAME or contradiction(part) is not None:
        return None
    full, half = (
        model_flops(part.seen, kind) / part.seen.seconds
        for kind in (MfuConvention.FULL_SQUARE, MfuConvention.CAUSAL_HALF)
    )
    alike = next(
        (how for rate, how in ((full, "full"), (half, "half")) if abs(part.flops / rate - 1) <= SAME), None
    )
    return finding("flops_counted", reported=part.flops, half=half, full=full, alike=alike)
