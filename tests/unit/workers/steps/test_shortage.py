"""Tests of the facts about a run that died for lack of device memory."""

from __future__ import annotations

import pytest
from factories import make_device
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.model.device import DeviceKind, Reading
from gpuqueue.model.mem_source import Shortage
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.text.units import GIB, MIB
from workers.measure.neighbours import Neighbours, Snapshot
from workers.run.verdict import InsideReport
from workers.steps.judge import shortage_of, tried_bytes

DIED = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)
TORCH = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB"
)
ALICE = ExternalProcess(pid=4711, held_bytes=12 * GIB, user="alice", command="python train.py")


def seen(
    *external: ExternalProcess,
    free_bytes: int = 100 * MIB,
    own_bytes: int | None = 2 * GIB,
    job_bytes: int = 0,
    job_lease_bytes: int = 0,
    unlisted_bytes: int | None = 0,
) -> Snapshot:
    """Return the last sample of a 24 GiB card with the run of job 11, and perhaps job 12."""
    neighbours = Neighbours(11)
    listed = None if unlisted_bytes is None else 24 * GIB - free_bytes - unlisted_bytes - 12 * GIB
    processes = {4711: 12 * GIB, 1: listed}
    reading = Reading(total_bytes=24 * GIB, free_bytes=free_bytes, processes=processes)
    neighbours.note(
        make_device(), reading, {11: own_bytes, 12: job_bytes}, external, {11: 6 * GIB, 12: job_lease_bytes}, {}
    )
    found = neighbours.fullest()
    assert found is not None
    return found


def facts(
    snapshot: Snapshot | None,
    log_tail: bytes = b"CUDA out of memory",
    *,
    peak_bytes: int | None = 2 * GIB,
    report: InsideReport | None = None,
    kind: DeviceKind = DeviceKind.GPU,
    ending: Ending = DIED,
) -> Shortage | None:
    """Return the facts about a run that was allocated 6 GiB."""
    return shortage_of(
        ending, report, log_tail, kind=kind, lease_bytes=6 * GIB, peak_bytes=peak_bytes, snapshot=snapshot
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TORCH, 2 * GIB + 512 * MIB),
        (b"Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity", 20 * MIB),
        (b"Tried to allocate 512 bytes.", 512),
        (b"Tried to allocate 1.00 GiB. ...\nTried to allocate 3.00 GiB. ...", 3 * GIB),
        (b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 8 * GIB),
        (b"RESOURCE_EXHAUSTED: Failed to allocate request for 8.00GiB (8589934592B) on device", 8 * GIB),
        (
            b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,512 bytes (allocated so",
            8_000_000_512,
        ),
        (b"CUDA error: out of memory", None),
        (b"Tried to allocate 99999999.00 GiB", None),
        (b"", None),
    ],
)
def test_the_size_of_the_failed_allocation(text: bytes, expected: int | None) -> None:
    """The messages of PyTorch, JAX and CuPy name the allocation. The last one counts, and an absurd one does not."""
    assert expected == tried_bytes(text)


@given(st.binary(max_size=200))
def test_any_text_is_read(text: bytes) -> None:
    """The job writes the texts, so nothing in them may be an error."""
    for each in (text, b"Tried to allocate " + text, b"trying to allocate " + text):
        found = tried_bytes(each)
        assert found is None or 0 < found < 2**50


def test_the_job_that_used_up_its_own_memory_blames_nobody() -> None:
    """A run that needed more than was allocated to it blames nobody, however full the device is."""
    assert Shortage(peak_bytes=5 * GIB, tried_bytes=5 * GIB // 2) == facts(seen(ALICE), TORCH, peak_bytes=5 * GIB)
    assert Shortage(peak_bytes=7 * GIB) == facts(seen(ALICE), peak_bytes=7 * GIB)


def test_an_external_process_that_took_the_memory_is_named() -> None:
    """A run within its allocation, on a device that cannot give it the rest, names the external process."""
    found = facts(seen(ALICE), TORCH)

    assert (
        Shortage(peak_bytes=2 * GIB, tried_bytes=5 * GIB // 2, blamed="pid 4711 of alice (python train.py, 12G)")
        == found
    )


def test_only_a_job_beyond_its_lease_is_named() -> None:
    """A neighbour that uses what was allocated to it has taken nothing."""
    assert facts(seen(job_bytes=9 * GIB, job_lease_bytes=9 * GIB)) == Shortage(peak_bytes=2 * GIB)
    assert facts(seen(job_bytes=13 * GIB, job_lease_bytes=9 * GIB)) == Shortage(
        peak_bytes=2 * GIB, blamed="job 12 (13G)"
    )


def test_memory_that_no_listed_process_holds_is_named() -> None:
    """Regression: a process that no driver listed took the memory, and the next twenty jobs asked for twice as much."""
    words = "3.9G that no listed process holds"
    assert Shortage(peak_bytes=2 * GIB, blamed=words) == facts(seen(unlisted_bytes=9 * GIB))
    for snapshot in (
        seen(unlisted_bytes=300 * MIB),
        seen(unlisted_bytes=None),
        seen(unlisted_bytes=9 * GIB, free_bytes=4 * GIB),
        seen(unlisted_bytes=9 * GIB, own_bytes=5700 * MIB),
    ):
        assert Shortage(peak_bytes=2 * GIB) == facts(snapshot)
    assert Shortage(peak_bytes=7 * GIB) == facts(seen(unlisted_bytes=9 * GIB), peak_bytes=7 * GIB)


def test_nobody_is_named_where_the_device_had_room_or_nothing_is_known() -> None:
    """The device must lack what was left of the run's allocation, and the run's own use must be known."""
    for snapshot in (seen(ALICE, free_bytes=4 * GIB), seen(ALICE, own_bytes=None), None):
        assert Shortage(peak_bytes=2 * GIB) == facts(snapshot)


def test_the_report_of_torch_comes_before_the_log() -> None:
    """The process's own report names the fatal allocation; the log may have one that was handled."""
    found = facts(None, b"Tried to allocate 9.00 GiB", report=InsideReport(message="Tried to allocate 1.00 GiB"))

    assert Shortage(peak_bytes=2 * GIB, tried_bytes=GIB) == found


@pytest.mark.parametrize(
    ("log_tail", "changes"),
    [
        (b"CUDA out of memory", {"ending": Ending.from_status(-9)}),
        (b"MemoryError", {"ending": Ending.from_status(1)}),
        (b"CUDA out of memory", {"kind": DeviceKind.CPU}),
        (b"in pin_memory\nRuntimeError: CUDA error: out of memory", {}),
    ],
)
def test_host_memory_is_no_lack_of_device_memory(log_tail: bytes, changes: dict[str, object]) -> None:
    """The kernel's OOM killer, Python's MemoryError, a run on a CPU and pinned host memory lead to no facts."""
    assert facts(seen(ALICE), log_tail, **changes) is None  # type: ignore[arg-type]
