from __future__ import annotations

import pytest

from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.run import PROBE_ENDED, Ending, EndingKind, NoteKind, RunNote, state_after


@pytest.mark.parametrize(
    ("ending", "state", "words", "code"),
    [
        (Ending.from_status(0), JobState.SUCCEEDED, "exit 0", 0),
        (Ending.from_status(3), JobState.FAILED, "exit 3", 3),
        (Ending.from_status(-11), JobState.FAILED, "killed by SIGSEGV", 139),
        (
            Ending.from_status(-9, "the host ran out of memory"),
            JobState.FAILED,
            "killed by SIGKILL: the host ran out of memory",
            137,
        ),
        (Ending.stopped(EndingKind.TIMED_OUT, -15), JobState.FAILED, "timed out", 124),
        (Ending.stopped(EndingKind.TIMED_OUT, -15, PROBE_ENDED), JobState.SUCCEEDED, "ended by the probe", 124),
        (Ending.stopped(EndingKind.CANCELLED, -15), JobState.CANCELLED, "cancelled", 130),
        (Ending.refused("no such program"), JobState.FAILED, "refused: no such program", 1),
        (Ending.lost("its shim vanished"), JobState.LOST, "lost: its shim vanished", 1),
    ],
)
def test_how_a_run_ended_decides_where_the_job_stands(ending: Ending, state: JobState, words: str, code: int) -> None:
    """Each ending has one job state, one text and one exit status."""
    assert (state, words, code) == (state_after(ending), str(ending), ending.shell_code)


def test_a_stopped_run_keeps_its_exit_code() -> None:
    """A cancelled job that exits with 0 is cancelled, and its exit status is kept."""
    ending = Ending.stopped(EndingKind.CANCELLED, 0)

    assert (JobState.CANCELLED, 0, None) == (state_after(ending), ending.exit_code, ending.signal)


def test_a_peak_without_a_source_cannot_be_written_down() -> None:
    """A peak has both a figure and a source, or neither."""
    with pytest.raises(ValueError, match="cannot come from"):
        Peak(bytes=0, source=PeakSource.NONE)
    with pytest.raises(ValueError, match="cannot come from"):
        Peak(bytes=None, source=PeakSource.HOST_RSS)


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            RunNote(kind="ended_processes", items=("python train.py (pid 17)",)),
            (
                "ended 1 process that was still running: python train.py (pid 17); run it in the foreground, or put "
                "`wait` at the end of the script"
            ),
        ),
        (
            RunNote(kind="ended_processes", items=("sleep 1 (pid 2)", "sleep 2 (pid 3)"), count=5),
            (
                "ended 5 processes that were still running: sleep 1 (pid 2), sleep 2 (pid 3) and 3 more; run them in "
                "the foreground, or put `wait` at the end of the script"
            ),
        ),
        (
            RunNote(kind="peak_in_part", count=6),
            "its memory was not measured for 6.0s: its peak may be higher",
        ),
        (
            RunNote(kind="hidden_failure", items=("ValueError: bad",)),
            (
                "exit 0, but a program in it failed: ValueError: bad; `set -eo pipefail` at the start of a bash script "
                "makes that a failure of the job"
            ),
        ),
        (
            RunNote(kind="hidden_failure", items=("ValueError: bad",)).without_items(),
            (
                "exit 0, but a program in it failed; `set -eo pipefail` at the start of a bash script makes that a "
                "failure of the job"
            ),
        ),
        (
            RunNote(kind="left_shared_memory", items=("left_0", "sem.1"), count=2, size_bytes=2**28, owner="ann"),
            "left 256M of ann in /dev/shm, which no process uses; remove it with `rm /dev/shm/left_0 /dev/shm/sem.1`",
        ),
        (
            RunNote(kind="left_shared_memory", items=("left_0",), count=12, size_bytes=2**28, owner="ann"),
            (
                "left 256M of ann in /dev/shm, which no process uses; remove it with `rm /dev/shm/left_0` (11 more "
                "files are there)"
            ),
        ),
        (
            RunNote(kind="left_shared_memory", items=("left_0",), size_bytes=32, owner="ann").without_items(),
            "left 32B of ann in /dev/shm, which no process uses",
        ),
        (
            RunNote(kind="removed_shared_memory", items=("left_0",), count=2, size_bytes=2**28, owner="ann"),
            "removed 256M of ann in /dev/shm, which the run had left: left_0 and 1 more",
        ),
        (RunNote(kind="of_a_newer_version"), "of a newer version"),
    ],
)
def test_a_note_is_a_sentence(note: RunNote, words: str) -> None:
    """A note names what it is about, says how many more there are, and what to do."""
    assert words == note.words


def test_every_kind_of_note_has_a_sentence() -> None:
    """A new kind of note must not be shown by its code."""
    assert [] == [kind for kind in NoteKind if RunNote(kind=kind.value).words == kind.value.replace("_", " ")]
