"""One earlier run, and what its measured peak proves. Pure.

docs/explanation/peak-memory.md describes the sources of peaks. A framework with a cap fills its cache up to the cap
before it frees anything, so a peak close to the allocation shows the cap and not the need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import DeviceKind, PeakSource

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.run import Run
else:
    runs = later("gpuqueue.model.run")

#: The number of newest jobs of a program whose runs are considered. The rule uses 20 runs of one signature. Each job
#: costs a submit some hundredths of a millisecond.
MOST_JOBS = 50
#: The number of samples that a trusted sampled peak needs: one second, at ten samples a second.
ENOUGH_SAMPLES = 10
#: From this share of its allocation on, a peak shows the cap and not the need.
CAPPED_FROM = 0.95

_SAMPLED = frozenset({PeakSource.NVML_SAMPLED, PeakSource.HOST_RSS, PeakSource.SIMULATED})


class Proof(str, Enum):
    """What the peak of a run proves about the need of the program."""

    #: The run needed this much and no more.
    PEAK = "peak"
    #: The run needed at least this much: the source of its peak misses a part, or the run was a probe that ended early.
    AT_LEAST = "at_least"
    #: The run needed at least this much, and its memory was not measured for a time. It says nothing of a smaller need.
    PARTIAL = "partial"
    #: The run filled its allocation and ended well: the allocation was enough, and the need may be below or above.
    CAPPED = "capped"
    #: The run ended for lack of memory: the allocation was not enough.
    DIED = "died"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """One ended run of a program, on its fullest device.

    ``bytes`` is the peak, or for ``CAPPED`` and ``DIED`` the larger of peak and allocation. ``kind`` is the kind of the
    device. ``words`` are the arguments. ``code`` is the address of the snapshot or the clean commit, None if the code
    is not known. ``environment`` is the name of the Python environment, if the job named one. ``gpus`` is the number of
    devices. ``models`` are the names of the devices, and ``room_bytes`` is the size of the smallest one, None if
    unknown. ``utilisation`` is that of :func:`utilisation_of`. ``lasted_s`` is how long a successful run took, in
    seconds, None for others.
    """

    proof: Proof
    bytes: int
    kind: DeviceKind
    words: tuple[str, ...] = ()
    code: str | None = None
    interpreter: str | None = None
    environment: str | None = None
    gpus: int = 1
    models: tuple[str, ...] = ()
    room_bytes: int | None = None
    utilisation: float | None = None
    lasted_s: float | None = None


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The memory of one run on one of its devices, as the history has it. ``use`` is its own mean utilisation.

    ``shared`` is whether others were on the device at any time (SQLite has numbers for that); None if it is unknown.
    """

    lease_bytes: int
    peak_bytes: int | None
    source: PeakSource
    samples: int
    kind: DeviceKind | None = None
    name: str | None = None
    total_bytes: int | None = None
    shared: bool | int | None = None
    use: float | None = None


def on_devices(run: Run) -> list[OnDevice]:
    """Return the memory of *run* on its devices. Whether others were there, and how much it used them, is left out."""
    return [
        OnDevice(
            each.lease_bytes,
            each.peak.bytes,
            each.peak.source,
            each.peak.samples,
            each.kind,
            each.name,
            each.total_bytes,
        )
        for each in run.devices
    ]


def proof_of(
    devices: Sequence[OnDevice],
    *,
    ended_well: bool,
    out_of_memory: bool,
    is_cut: bool = False,
    note_kinds: Collection[str] = (),
) -> tuple[Proof, int] | None:
    """Return what a run on *devices* proves, and the bytes for one device. None if it proves nothing.

    *ended_well* means success or the time limit: other runs may have ended before their peak. *is_cut* means that the
    run is a probe that was ended early, so its peak is a lower bound. *note_kinds* are the kinds of its notes: a run
    whose processes were ended shows a lower bound too, so does one that was not measured for a time, and one that hides
    a failure shows nothing.
    """
    had = most = 0
    is_known = is_sure = True
    is_capped = is_partial = False
    for each in devices:
        peak = each.peak_bytes or 0
        had, most = max(had, each.lease_bytes, peak), max(most, peak)
        is_known = is_known and each.peak_bytes is not None
        is_capped = is_capped or peak >= CAPPED_FROM * each.lease_bytes
        is_sure = is_sure and _is_trusted(each.source, each.samples)
    if out_of_memory:
        return Proof.DIED, had
    if note_kinds:  # few runs have any, so most submits import no module for them
        is_cut = is_cut or runs.NoteKind.ENDED_PROCESSES in note_kinds
        is_partial = runs.NoteKind.PEAK_IN_PART in note_kinds
        ended_well = ended_well and runs.NoteKind.HIDDEN_FAILURE not in note_kinds
    if not ended_well or not is_known:
        return None
    if not most and (is_cut or is_partial or not is_sure):
        return None  # it was cut, or looked at, before it used its device
    if is_capped and not is_cut:
        return Proof.CAPPED, had
    if is_partial:
        return Proof.PARTIAL, most
    return (Proof.PEAK if is_sure and not is_cut else Proof.AT_LEAST), most


def next_request(mem_bytes: int, *, died: int, mem_retries: int) -> int | None:
    """Return the next request of a job whose newest run died for lack of memory, in bytes; None if no run follows.

    *mem_bytes* is the job's request now. *died* is the number of its runs that died for lack of memory, *mem_retries*
    the number of its memory retries.
    """
    return mem_bytes if died <= mem_retries else None


def without_lost(
    attempts: Iterable[tuple[PastRun | None, int, int | None]], next_bytes: int | None
) -> Iterator[PastRun | None]:
    """Yield the runs of one job, newest first. None for each that shows no need, or whose memory others had taken.

    Others that are known: then the job did not ask for more afterwards. Others that no driver lists: then a later run
    of the job has shown a need that the run had, and it had not used more itself. An earlier death says less than the
    run that repaired it.

    Args:
        attempts: Each run, None if it shows no need, with what it had, and its own peak; None if that is unknown.
        next_bytes: The job's next request; None if no run follows.

    """
    repaired_bytes: int | None = None
    for run, had_bytes, own_bytes in attempts:
        proof = None if run is None else run.proof
        is_repaired = repaired_bytes is not None and (own_bytes or 0) <= repaired_bytes
        is_lost = is_repaired or (next_bytes is not None and next_bytes <= had_bytes)
        yield None if proof is Proof.DIED and is_lost else run
        next_bytes = had_bytes
        if run is not None and proof is Proof.PEAK:
            repaired_bytes = max(repaired_bytes or 0, run.bytes)


def _is_trusted(source: PeakSource, samples: int) -> bool:
    return source is PeakSource.NVML_ACCOUNTING or (source in _SAMPLED and samples >= ENOUGH_SAMPLES)


def utilisation_of(devices: Sequence[OnDevice]) -> float | None:
    """Return how much of the time a run used its busiest device, from 0 to 1, by its own mean.

    None if that was not measured long enough, or if others were on one of its *devices*: they may have slowed it.
    """
    found = 0.0
    for each in devices:
        if each.use is None or each.shared is None or each.shared or each.samples < ENOUGH_SAMPLES:
            return None
        found = max(found, each.use)
    return found


def kind_of(device: OnDevice) -> DeviceKind:
    """Return the kind of *device*. If the history does not have it, the source of the peak shows it."""
    if device.kind is not None:
        return device.kind
    return {PeakSource.HOST_RSS: DeviceKind.CPU, PeakSource.SIMULATED: DeviceKind.SIMULATED}.get(
        device.source, DeviceKind.GPU
    )


def code_of(snapshot: str | None, commit: str | None, *, dirty: bool | None) -> str | None:
    """Return what names the code of a job: the address of its *snapshot*, or its *commit* if nothing was changed."""
    if snapshot is not None:
        return snapshot.partition(":")[0].partition("+")[0]  # the difference from a commit is not the code
    return commit if dirty is False else None
