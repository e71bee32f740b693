"""How fast is this device? Times what training is made of, with torch alone, in a minute or two.

    torchrun --nproc-per-node 8 -m planner probe -o profile.json      collectives too

Each operation runs until its median settles or its time is up; what a profile already holds is not measured again.
torch is imported only here. Left out: what the times mean (`profile.py`), and operations of one framework alone.
"""

from __future__ import annotations

import datetime
import importlib
import math
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.calibrate.probe_shapes import Task, collective_tasks, compute_tasks
from planner.calibrate.profile import Device, Measurement, Profile, read_profile
from planner.errors import InputError, PlannerError, UnsupportedError
from planner.spec.save import save_text

WARM_UP: Final = 3
_LEAST, _MOST = 5, 200  # repeats of an operation
_TOGETHER: Final = 20  # of a collective, which every process must call as often
SECONDS: Final = 0.7  # of each operation at most, warm-up apart; 0.05 where shapes are tiny


@dataclass(frozen=True)
class Bench:
    """torch, the device, and how it is timed."""

    torch: Any
    device: Device
    place: str
    budget: float

    def synchronise(self) -> None:
        """Wait until everything asked for is done."""
        if self.place != "cpu":
            self.torch.cuda.synchronize()

    def clock(self) -> float | None:
        """The device's clock now [MHz]; None where it cannot be read."""
        try:
            return float(self.torch.cuda.clock_rate()) or None if self.place != "cpu" else None
        except Exception:  # pynvml is optional, and so is the permission to ask
            return None

    def time(self, work: Callable[[], object], together: bool) -> tuple[float, float, int]:
        """Median seconds of `work`, relative spread, repeats; `together`: as often in every process."""
        for _ in range(WARM_UP):
            work()
        self.synchronise()
        times: list[float] = []
        started = time.perf_counter()
        while len(times) < (_TOGETHER if together else _LEAST) or (
            not together and len(times) < _MOST and time.perf_counter() - started < self.budget
        ):
            times.append(self._once(work))
        low, _, high = statistics.quantiles(times, n=4)
        middle = statistics.median(times)
        return middle, (high - low) / middle, len(times)

    def _once(self, work: Callable[[], object]) -> float:
        if self.place == "cpu":
            started = time.perf_counter()
            work()
            return max(time.perf_counter() - started, 1e-9)
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        self.torch.cuda.synchronize()
        return max(float(begin.elapsed_time(end)) * 1e-3, 1e-9)


def load_torch() -> Any:
    """torch, or a clear word that it is missing. Raises `UnsupportedError`."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        must = "planner probe needs PyTorch in the same environment"
        raise UnsupportedError(
            must, "no module torch", "install it: https://pytorch.org/get-started"
        ) from None
    return torch


def describe_device(torch: Any, wanted: str | None) -> tuple[Device, str]:
    """The device to measure, and what torch calls it. Raises `InputError`."""
    has = bool(torch.cuda.is_available())
    if wanted not in (None, "cpu", "cuda"):
        raise InputError("--device must be cuda or cpu", str(wanted), "ROCm devices are cuda, too")
    if wanted == "cuda" and not has:
        raise InputError(
            "--device cuda needs a GPU that torch can see", "none", "check nvidia-smi or rocm-smi"
        )
    if wanted == "cpu" or not has:
        torch.set_num_threads(1)  # of tiny shapes, threads would time each other
        name = platform.processor() or platform.machine() or "cpu"
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return Device(kind="cpu", name=name, memory=memory, units=os.cpu_count()), "cpu"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    of = torch.cuda.get_device_properties(local)
    kind = "rocm" if getattr(torch.version, "hip", None) else "cuda"
    return Device(
        kind=kind,
        name=of.name,
        memory=float(of.total_memory),
        units=int(of.multi_processor_count),
        largest_clock=_largest_clock(of),
    ), f"cuda:{local}"


def _largest_clock(properties: Any) -> float | None:
    rate = getattr(properties, "clock_rate", None)  # kHz, where this torch has it
    return float(rate) / 1e3 if rate else None


def versions_of(torch: Any) -> dict[str, str]:
    """What the times depend on besides the device."""
    found = {"torch": str(torch.__version__), "python": platform.python_version()}
    for name, value in (("cuda", torch.version.cuda), ("hip", getattr(torch.version, "hip", None))):
        if value:
            found[name] = str(value)
    try:
        if torch.cuda.is_available():
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:  # a build without NCCL
        pass
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        words = driver.read_text(encoding="utf-8", errors="replace").split()
        found["driver"] = next((word for word in words if word.count(".") == 2), "")[:40]
    return {key: value for key, value in found.items() if value}


def probe(
    output: Path, wanted: str | None, tiny: bool, say: Callable[[str], object] = lambda text: None
) -> tuple[Profile, bool]:
    """Measure what the profile does not hold yet; it is written after every operation. Raises `PlannerError`.

    Of the processes of torchrun the first one measures, writes and leads (the second value).
    """
    torch = load_torch()
    device, place = describe_device(torch, wanted)
    tiny = tiny or place == "cpu"
    bench = Bench(torch, device, place, 0.05 if tiny else SECONDS)
    world = _join_processes(torch, place)
    try:
        profile = _resumed(output, device, versions_of(torch), world.hosts)
        done = world.shared({measured.key for measured in profile.measurements})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for task in _tasks(bench, tiny, world):
                if task.key in done:
                    continue
                say(f"{task.kind} {task.name}")
                timed = (*profile.measurements, _measured(bench, task))
                profile = profile.model_copy(update={"measurements": timed})
                if world.rank == 0:
                    save_text(profile.model_dump_json(indent=1) + "\n", output)
    finally:
        world.leave()
    return profile, world.rank == 0


def _tasks(bench: Bench, tiny: bool, world: World) -> Iterator[Task]:
    if world.size == 1 or world.rank == 0:
        yield from compute_tasks(bench.torch, bench.place, tiny)
    if world.size > 1:
        bench.torch.distributed.barrier()
        yield from collective_tasks(bench.torch, bench.place, tiny, world.size)


def _measured(bench: Bench, task: Task) -> Measurement:
    """One operation, timed; one that this build or this device cannot do says why."""
    torch, peak = bench.torch, None
    try:
        work = task.prepare()
        if bench.place != "cpu":
            torch.cuda.reset_peak_memory_stats()
        seconds, spread, repeats = bench.time(work, task.kind == "collective")
        if bench.place != "cpu" and task.kind == "layer":
            peak = float(torch.cuda.max_memory_allocated())
    except PlannerError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return Measurement(
            kind=task.kind, name=task.name, dtype=task.dtype, shape=dict(task.shape), skipped=reason
        )
    finally:
        if bench.place != "cpu":
            torch.cuda.empty_cache()
    return Measurement(
        kind=task.kind, name=task.name, dtype=task.dtype, shape=dict(task.shape),
        seconds=seconds / task.times, spread=max(spread, 0.0) if math.isfinite(spread) else 0.0,
        repeats=repeats, clock=bench.clock(), peak_memory=peak,
    )  # fmt: skip


def _resumed(output: Path, device: Device, versions: dict[str, str], hosts: tuple[int, ...]) -> Profile:
    """The profile in the file where it is of this device and software, else a new one. Raises `FileInputError`."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    fresh = Profile(date=today, device=device, versions=versions, hosts=hosts)
    if not output.exists():
        return fresh
    old = read_profile(output)
    if old.device.name != device.name or old.versions != versions:
        must = f"{output} must be a profile of this device and software, to go on with it"
        given = f"{old.device.name}, {old.versions}"[:300]
        raise InputError(must, given, "write to another file, or delete this one")
    kept = tuple(m for m in old.measurements if m.kind != "collective" or old.hosts == hosts)
    return fresh.model_copy(update={"measurements": kept})


@dataclass(frozen=True)
class World:
    """The processes of torchrun: one where it was not used. `hosts`: processes on each node."""

    torch: Any
    rank: int
    size: int
    hosts: tuple[int, ...]

    def shared(self, keys: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
        """What the first process knows, in all: they must agree on what is left to do."""
        if self.size == 1:
            return keys
        told: list[Any] = [keys]
        self.torch.distributed.broadcast_object_list(told, src=0)
        return set(told[0])

    def leave(self) -> None:
        """Leave the process group."""
        if self.size > 1 and self.torch.distributed.is_initialized():
            self.torch.distributed.destroy_process_group()


def _join_processes(torch: Any, place: str) -> World:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        return World(torch, 0, 1, (1,))
    distributed = torch.distributed
    if not distributed.is_available():
        raise UnsupportedError("collectives need a torch with torch.distributed", "a build without it")
    distributed.init_process_group("gloo" if place == "cpu" else "nccl")
    names: list[Any] = [None] * size
    distributed.all_gather_object(names, socket.gethostname())
    hosts = tuple(names.count(name) for name in dict.fromkeys(names))
    return World(torch, distributed.get_rank(), size, hosts)
