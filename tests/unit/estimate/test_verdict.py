"""Tests of the sentence that compares the requested memory of a job with its used memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from factories import make_spec

from gpuqueue.estimate.verdict import asked_and_used, larger_mem_bytes
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.placement import Placement
from gpuqueue.model.run import Ending, EndingKind, MemAdvice, Note, NoteKind, Record, Run, RunDevice, RunNote
from gpuqueue.text.units import GIB, MIB, format_bytes

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
WELL = Ending.from_status(0)


def record(
    peak_bytes: int | None,
    *,
    asked_bytes: int = 24 * GIB,
    ending: Ending | None = WELL,
    samples: int = 100,
    placement: Placement | None = None,
    devices: int = 1,
) -> Record:
    """Return a job with one run that used *peak_bytes* on each of its devices."""
    spec = make_spec(mem_bytes=asked_bytes, gpus=devices)
    spec = spec if placement is None else replace(spec, placement=placement)
    peak = (
        Peak.unknown()
        if peak_bytes is None
        else Peak(bytes=peak_bytes, source=PeakSource.NVML_SAMPLED, samples=samples, interval_s=1.0)
    )
    run = Run(
        job_id=1,
        attempt=1,
        token="1.a",
        host="h",
        worker="w",
        devices=tuple(RunDevice(uuid=f"GPU-{n}", lease_bytes=asked_bytes, peak=peak) for n in range(devices)),
        claimed_at=NOW,
        ending=ending,
    )
    return Record(job=Job(id=1, spec=spec, state=JobState.SUCCEEDED, submitted_at=NOW), runs=(run,))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (record(5222 * MIB), "asked 24G, used 5.1G at most: 6.7G would do"),
        (record(5222 * MIB, asked_bytes=6 * GIB), "asked 6G, used 5.1G at most: as it should be"),
        (
            record(7 * GIB, asked_bytes=6 * GIB),
            "asked 6G, used 7G at most: more than it asked for, 9.2G would have been enough",
        ),
        (
            record(None, asked_bytes=6 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1)),
            "asked 6G and it was not enough: try 12G",
        ),
        (
            record(7 * GIB, asked_bytes=6 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1)),
            "asked 6G and it was not enough: try 14G",
        ),
        (
            record(
                None,
                placement=Placement(exclusive=True, whole=True),
                ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1),
            ),
            "asked all of the device and it was not enough: it needs a larger one",
        ),
        (record(None), "asked 24G, use unknown: it could not be measured"),
        (record(GIB, ending=Ending.from_status(1)), "asked 24G, used 1G at most: a complete run may need more"),
        (record(GIB, samples=3), "asked 24G, used 1G at most: sampled too rarely for advice"),
        (record(GIB, devices=2), "asked 24G on each device, used 1G at most: 1.4G would do"),
        (
            record(5222 * MIB, placement=Placement(exclusive=True, whole=True), asked_bytes=MIB),
            "asked all of the device, used 5.1G at most: 6.7G would do, if other jobs may share the device",
        ),
        (record(GIB, ending=None), None),
    ],
)
def test_each_text(found: Record, words: str | None) -> None:
    """The sentence contains the requested memory and the used memory.

    If the advice is known, it also contains the size to request next time.
    """
    assert words == asked_and_used(found)


def test_a_job_that_never_ran_used_nothing() -> None:
    """A job that never ran has no sentence."""
    assert asked_and_used(replace(record(GIB), runs=())) is None


def test_a_retry_after_a_lack_of_memory_asks_for_more() -> None:
    """Not after another end, and not if the same size may do."""
    short = record(None, asked_bytes=4 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    assert f"asked 4G and it was not enough: try {format_bytes(larger_mem_bytes(short))}" == asked_and_used(short)
    taken = Note(attempt=1, at=NOW, text="out of memory, because others took its memory: pid 7; queued again with 4G")
    assert larger_mem_bytes(replace(short, notes=(taken,))) is None
    assert larger_mem_bytes(record(GIB)) is None


def test_a_job_that_asks_for_more_already_is_not_advised() -> None:
    """`show` once advised 5G of a job that was queued again with 7.5G: it took its request for that of the run."""
    short = record(None, asked_bytes=4 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    more = replace(short.job, spec=replace(short.job.spec, mem_bytes=15 * GIB // 2))
    assert larger_mem_bytes(replace(short, job=more)) is None

    assert "asked 4G and it was not enough: it asks for 7.5G now" == asked_and_used(replace(short, job=more))


def test_more_than_the_largest_device_is_not_advised() -> None:
    """`show` once advised a size that `submit` refuses. The note of the queue says how much there is."""
    short = record(None, asked_bytes=4 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    text = "out of memory, and not queued again with more: no device that the job may use gives more than 4G now"
    note = Note(attempt=1, at=NOW, text=text)

    words = "asked 4G and it was not enough, and no device that the job may use gives more"
    assert words == asked_and_used(replace(short, notes=(note,)))


def test_a_job_whose_memory_others_took_is_not_advised_to_ask_for_more() -> None:
    """`show` once advised twice as much, below the note that names the neighbour."""
    short = record(None, asked_bytes=6 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    text = "out of memory, because others took its memory: pid 7 of eve (python); queued again with 6G"
    found = replace(short, notes=(Note(attempt=1, at=NOW, text=text),))

    assert "asked 6G, and others took its memory: the same size may do" == asked_and_used(found)


def test_more_than_a_limit_allows_is_not_advised() -> None:
    """`show` once advised a size that a limit of the site refuses."""
    short = record(None, asked_bytes=8 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    text = "out of memory, and not queued again with more: a limit of the site lets it ask for no more"
    found = replace(short, notes=(Note(attempt=1, at=NOW, text=text),))

    words = "asked 8G and it was not enough, and a limit of the site lets it ask for no more"
    assert words == asked_and_used(found)


def test_an_exclusive_job_may_use_more_than_it_asked_for() -> None:
    """It gets all of a device. `show` used to say that it had used more than it asked for."""
    alone = record(3 * GIB, asked_bytes=GIB, placement=Placement(exclusive=True))

    assert "asked 1G, used 3G at most: as it should be" == asked_and_used(alone)


def test_more_than_the_named_device_has_is_not_advised() -> None:
    """`show` once advised 14G of a job that had named a device of 8G."""
    short = record(None, asked_bytes=7 * GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    run = short.runs[0]
    run = replace(run, devices=tuple(replace(each, total_bytes=8 * GIB) for each in run.devices))
    named = replace(short.job.spec, placement=Placement(devices=(run.devices[0].uuid,)))
    short = replace(short, job=replace(short.job, spec=named), runs=(run,))

    assert (
        "asked 7G and it was not enough: try what its device of 8G gives at most, or name a larger device"
        == asked_and_used(short)
    )


ADVICE = MemAdvice(mem_bytes=640 * MIB, runs=3, reason="3 runs took 307M")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            record(307 * MIB, asked_bytes=2 * GIB),
            "asked 2G, used 307M at most: 640M would do (3 runs took 307M)",
        ),
        (
            record(307 * MIB, asked_bytes=2 * GIB, samples=3),
            "asked 2G, used 307M at most: 640M would do (3 runs took 307M)",
        ),
        (
            record(307 * MIB, asked_bytes=256 * MIB),
            "asked 256M, used 307M at most: more than it asked for, 640M would have been enough (3 runs took 307M)",
        ),
        (
            record(None, asked_bytes=512 * MIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1)),
            "asked 512M and it was not enough: try 640M",
        ),
        (
            record(None, asked_bytes=GIB, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1)),
            "asked 1G and it was not enough: try 2G",
        ),
        (record(307 * MIB, asked_bytes=640 * MIB), "asked 640M, used 307M at most: as it should be"),
    ],
)
def test_the_advice_is_that_of_mem_auto(found: Record, words: str) -> None:
    """Regression: `show` advised 448M by one run where ``--mem auto`` asked for 640M by three."""
    assert words == asked_and_used(replace(found, advice=ADVICE))


def test_a_peak_with_a_gap_advises_nothing() -> None:
    """It is at least what was measured: `show` once advised 1.9G after a gap in which the run used 3.4G."""
    whole = replace(record(1400 * MIB, asked_bytes=4 * GIB), advice=ADVICE)
    gap = RunNote(kind=NoteKind.PEAK_IN_PART.value, count=6)
    found = replace(whole, runs=(replace(whole.runs[0], notes=(gap,)),))

    assert f"asked 4G, used at least 1.4G: {gap.words}" == asked_and_used(found)


def test_show_advises_as_little_as_submit() -> None:
    """What saves less than a fifth or 256 MiB is not worth a line: `submit` is silent about it, too."""
    assert "asked 832M, used 307M at most: as it should be" == asked_and_used(record(307 * MIB, asked_bytes=832 * MIB))
    assert "asked 1G, used 307M at most: 640M would do" == asked_and_used(record(307 * MIB, asked_bytes=GIB))


@pytest.mark.parametrize(
    ("asked_bytes", "peak_bytes", "words"),
    [
        (17 * GIB, None, "try what its device of 24G gives at most, or it needs a larger device"),
        (12 * GIB, 17 * GIB, "try what its device of 24G gives at most, or it needs a larger device"),
        (24 * GIB, None, "it needs a larger device than 24G"),
    ],
)
def test_no_more_than_the_device_has_is_advised(asked_bytes: int, peak_bytes: int | None, words: str) -> None:
    """Where twice as much is more than the device has, what it has comes first. The next run asks for no more, too."""
    short = record(peak_bytes, asked_bytes=asked_bytes, ending=Ending(kind=EndingKind.OUT_OF_MEMORY, exit_code=1))
    run = short.runs[0]
    run = replace(run, devices=tuple(replace(each, total_bytes=24 * GIB) for each in run.devices))

    expected = f"asked {format_bytes(asked_bytes)} and it was not enough: {words}"
    assert expected == asked_and_used(replace(short, runs=(run,)))


def test_a_run_that_used_nothing_is_not_advised_to_ask_for_nothing() -> None:
    """Regression: `show` said that 0B would do, which the queue refuses."""
    assert "asked 24G, used 0B at most: 256M would do" == asked_and_used(record(0))
