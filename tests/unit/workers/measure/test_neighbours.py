"""Tests of the text about other processes on the device of a run that ran out of memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from factories import make_device

from gpuqueue.model.device import DeviceKind, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.text.units import GIB, MIB
from workers.measure.active_runs import LiveRun
from workers.measure.neighbours import Neighbours
from workers.measure.sample import RunOnDevice, Sample
from workers.run.directory import Held, RunDir

ALICE = ExternalProcess(pid=4711, held_bytes=12 * GIB, user="alice", command="python train.py")


def sample(
    neighbours: Neighbours,
    ours: Mapping[int, int | None],
    *external_processes: ExternalProcess,
    uuid: str = "GPU-0",
    index: int = 0,
    free_bytes: int = 120 * MIB,
    processes: Mapping[int, int | None] | None = None,
    members: Mapping[int, str] | None = None,
) -> None:
    """Record one sample of a 24 GiB card."""
    reading = Reading(total_bytes=24 * GIB, free_bytes=free_bytes, processes=processes or {})
    neighbours.note(make_device(uuid, index=index), reading, ours, external_processes, {}, members or {})


def words(neighbours: Neighbours, *uuids: str, several: bool = False) -> str | None:
    """Return the text of the recorded sample, or None."""
    found = neighbours.fullest(uuids)
    return found.in_words(several=several) if found is not None else None


def test_jobs_and_external_processes_are_named_with_their_bytes() -> None:
    """The largest neighbour comes first.

    An external process counts with its bytes in this sample, and not with its remembered peak.
    """
    seen = Neighbours(11)
    sample(seen, {11: 6 * GIB, 12: 8 * GIB, 13: 0}, ALICE, processes={4711: round(9.1 * GIB)})

    assert "120M were free; beside it: pid 4711 of alice (python train.py, 9.1G), job 12 (8G)" == words(
        seen
    )  # job 13 uses no memory yet


def test_a_member_of_an_array_has_its_name() -> None:
    """Its id is that of no job that a person has submitted."""
    seen = Neighbours(11)
    sample(seen, {11: 6 * GIB, 12: 8 * GIB, 15: GIB}, members={15: "9_3"})

    assert "120M were free; beside it: job 12 (8G), job 9_3 (1G)" == words(seen)


def test_an_empty_device_is_described_and_no_sample_is_not() -> None:
    """A run that was alone has a text that says so. A run without a sample has no text."""
    seen = Neighbours(11)
    assert words(seen) is None
    sample(seen, {12: GIB})
    assert words(seen) is None  # the run was not alive in this sample

    sample(seen, {11: 6 * GIB}, free_bytes=0)

    assert "0B were free; no other process was on the device" == words(seen)


def test_what_the_driver_does_not_say_stays_unknown() -> None:
    """Memory that the driver does not report is unknown, and not 0."""
    seen = Neighbours(11)
    sample(seen, {11: None, 12: None}, processes={4711: None})

    assert "120M were free; beside it: job 12 (bytes unknown)" == words(seen)


@pytest.mark.parametrize(
    ("external", "shown"),
    [
        (ExternalProcess(pid=7, held_bytes=GIB, user=None, command=None), "pid 7 (1G)"),
        (ExternalProcess(pid=7, held_bytes=GIB, user="bob", command=None), "pid 7 of bob (1G)"),
        (
            ExternalProcess(pid=7, held_bytes=GIB, user="b\x1bob", command="a\x1b[31m\nb"),
            "pid 7 of b\ufffdob (a\ufffd[31m\ufffdb, 1G)",
        ),
        (ExternalProcess(pid=7, held_bytes=GIB, user="bob", command="x" * 200), f"pid 7 of bob ({'x' * 59}…, 1G)"),
    ],
)
def test_the_command_of_an_external_process_is_short_and_sanitized(external: ExternalProcess, shown: str) -> None:
    """The words of an external process are cut and harmless. They are shown in terminals and kept in the history."""
    seen = Neighbours(11)
    sample(seen, {11: GIB}, external)

    assert f"120M were free; beside it: {shown}" == words(seen)


def test_a_crowd_is_counted() -> None:
    """Many neighbours are cut to a few and a count, so that the text stays one line."""
    seen = Neighbours(1)
    sample(seen, {job_id: job_id * GIB for job_id in range(1, 9)})

    assert "120M were free; beside it: job 8 (8G), job 7 (7G), job 6 (6G), job 5 (5G), 3 more" == words(seen)


def test_the_last_sample_of_the_live_run_counts() -> None:
    """The last sample with the run alive counts.

    A sample after or during its end does not, because its memory is already freed.
    """
    seen = Neighbours(11)
    sample(seen, {11: 0}, free_bytes=9 * GIB)
    sample(seen, {11: 2 * GIB, 12: 1 * GIB}, free_bytes=5 * GIB)
    sample(seen, {11: 6 * GIB, 12: 8 * GIB})
    sample(seen, {11: 0, 12: 8 * GIB}, free_bytes=6 * GIB)
    sample(seen, {12: 8 * GIB}, free_bytes=7 * GIB)

    assert "120M were free; beside it: job 12 (8G)" == words(seen)


def test_a_run_that_never_got_a_byte_has_its_circumstances_too() -> None:
    """A run that never got memory has a text from its last sample, because there is no better one.

    Not even CUDA's own memory was available.
    """
    seen = Neighbours(11)
    sample(seen, {11: 0}, ALICE, free_bytes=9 * GIB)
    sample(seen, {11: 0}, ALICE, free_bytes=MIB)

    assert "1M were free; beside it: pid 4711 of alice (python train.py, 12G)" == words(seen)


def test_of_several_devices_the_fullest_is_named() -> None:
    """Of several devices the fullest is reported and named.

    If the processes reported which devices ran out of memory, only those count.
    """
    seen = Neighbours(11)
    sample(seen, {11: 6 * GIB}, uuid="GPU-0", index=0, free_bytes=2 * GIB)
    sample(seen, {11: 6 * GIB, 12: GIB}, uuid="GPU-1", index=1, free_bytes=MIB)
    sample(seen, {11: 6 * GIB, 13: GIB}, uuid="GPU-2", index=2, free_bytes=GIB)

    assert "1M were free on device 1; beside it: job 12 (1G)" == words(seen, several=True)
    assert "1G were free on device 2; beside it: job 13 (1G)" == words(seen, "GPU-0", "GPU-2", several=True)
    assert words(seen, "GPU-9") is None


@pytest.mark.parametrize(
    ("kind", "first_pids", "words"),
    [
        (DeviceKind.SIMULATED, [], "no other process was on the device"),
        (DeviceKind.GPU, [4711], "no other process was on the device"),
        (DeviceKind.GPU, [], "beside it: pid 4711 (3G)"),
    ],
)
def test_a_process_of_the_run_that_has_just_ended_is_no_neighbour(
    tmp_path: Path, kind: DeviceKind, first_pids: list[int], words: str
) -> None:
    """Regression: an out-of-memory error on a simulated device named processes of the run itself as external ones.

    They had ended between the reading of the device and that of their parents. A driver may report processes of other
    pid namespaces, which cannot be read either.
    """
    held = Held(job_id=11, token="1.a", devices=(RunDevice(uuid="GPU-0", lease_bytes=24 * GIB, kind=kind),))
    run = LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)
    gone = ExternalProcess(pid=4711, held_bytes=3 * GIB, user=None, command=None)
    for pids, others in ((first_pids, ()), ([4712], (gone,))):
        mine = RunOnDevice(
            job_id=11, token="1.a", lease_bytes=GIB, started=True, alive=True, pids=frozenset(pids), used_bytes=GIB
        )
        reading = Reading(total_bytes=24 * GIB, free_bytes=20 * GIB, processes={each.pid: 3 * GIB for each in others})
        run.note(
            Sample(
                device=make_device(kind=kind),
                began_s=1.0,
                reading=reading,
                runs=(mine,),
                counted={},
                external_processes=others,
            )
        )

    seen = run.neighbours.fullest()

    assert seen is not None
    assert f"20G were free; {words}" == seen.in_words()
    assert (None if words.startswith("no") else "pid 4711 (3G)") == seen.blamed(24 * GIB)
