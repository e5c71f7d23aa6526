"""Tests of the soak judges: each judge gets a short story with one fault and must find it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from fake_driver.fake_driver import Change
from soak.jobs import Kind
from soak.peaks import Peaks
from soak.promises import Card, Judge, Promises
from soak.truth import Level, Truth, truth_of

from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.text.units import GIB

T0 = datetime(2026, 11, 1, tzinfo=timezone.utc)
T0_NS = int(T0.timestamp()) * 10**9
CARD = Card("GPU-0", 0, 24 * GIB, GIB // 2, GIB // 2)
#: A run of job 7, the pid and start time of its process, and an external process, which has no start time.
RUN, PROCESS, EXTERNAL = (7, "1.aa"), (70, 5), (99, 0)


def ns(second: float) -> int:
    """Return *second* of the story as wall-clock time in nanoseconds."""
    return T0_NS + round(second * 1e9)


def step(second: float, process: tuple[int, int], gib: float, *, refused: int = 0) -> Change:
    """Return one change in the driver's record."""
    return Change(ns(second), 0, *process, int(gib * GIB), refused)


def report(second: float, act: Act, job_id: int, state: JobState = JobState.STARTING, **fields: str) -> Event:
    """Return an event of the outbox."""
    at = T0 + timedelta(seconds=second)
    token = f"1.{job_id:02x}"
    return Event(
        id=f"{second}", act=act, job_id=job_id, state=state, at=at, attempt=1, fields={"token": token, **fields}
    )


def claim(second: float, job_id: int, gib: int) -> Event:
    """Return the event of a claim of the card."""
    return report(second, Act.CLAIM, job_id, devices="GPU-0", lease=str(gib * GIB))


def judged(truth: Truth, *events: Event, samples: dict[str, float] | None = None) -> Promises:
    """Return the judge's result for *events*; *samples* maps a nonce or token to the second of its sample."""
    judge = Judge([CARD], truth, {key: ns(second) for key, second in (samples or {}).items()})
    for event in events:
        judge.take(event)
    return judge.promises


def test_allocations_are_summed_over_live_leases_and_external_processes() -> None:
    """Live leases and external processes add up.

    Exactly the whole card is allowed, one GiB more is a violation, and a released claim no longer counts.
    """
    truth = truth_of([step(1, EXTERNAL, 3), step(9, EXTERNAL, 0)], {})
    full = judged(truth, claim(2, 1, 12), claim(3, 2, 8))
    assert [] == full.violations
    assert [12 / 20, 1.0] == full.shares

    over = judged(truth, claim(2, 1, 12), claim(3, 2, 9))
    assert 1 == len(over.violations)
    assert "job 2 on card 0" in over.violations[0]

    given_back = report(2.5, Act.RELEASE_CLAIM, 1, JobState.QUEUED)
    assert [] == judged(truth, claim(2, 1, 12), given_back, claim(3, 2, 9)).violations


def test_a_run_that_holds_more_than_its_lease_counts_with_what_it_holds() -> None:
    """A run that uses more than its lease counts with its recorded memory.

    The driver's record counts for as long as the run is known to live.
    """
    owners = {PROCESS: (1, "1.01")}
    held = [step(2.5, PROCESS, 15), step(9, PROCESS, 15)]
    story = (claim(2, 1, 12), claim(3, 2, 9))
    assert 1 == len(judged(truth_of(held, owners), *story).violations)
    assert [] == judged(truth_of([step(2.5, PROCESS, 11), held[1]], owners), *story).violations
    assert [] == judged(truth_of(held[:1], owners), *story).violations, "it may be dead"


def test_a_change_between_sample_and_claim_counts_with_its_minimum() -> None:
    """The lowest usage between the sample and the claim counts.

    An external process that came after the sample is nobody's fault, but the check at the start had to see it.
    """
    truth = truth_of([step(1.95, EXTERNAL, 3), step(9, EXTERNAL, 0)], {})
    story = (claim(2, 1, 23), report(2.1, Act.STARTED, 1, JobState.RUNNING))
    samples = {"01": 1.9, "1.01": 1.94}
    assert [] == judged(truth, *story, samples=samples).violations
    late = judged(truth, *story, samples={**samples, "1.01": 2.05}).violations
    assert ["started"] == [each.split()[0] for each in late]
    assert ["claim", "started"] == [each.split()[0] for each in judged(truth, *story).violations]


def test_of_two_starts_the_later_sample_must_see_the_other() -> None:
    """Of two starts, the one with the later sample must see the other.

    Both were claimed before an external process came, so one claim must be released. Two starts are a violation.
    """
    truth = truth_of([step(1.95, EXTERNAL, 3), step(9, EXTERNAL, 0)], {})
    claims = (claim(2, 1, 12), claim(2, 2, 11))
    samples = {"01": 1.9, "02": 1.9, "1.01": 2.1, "1.02": 2.2}
    first, second = (report(2.3, Act.STARTED, job_id, JobState.RUNNING) for job_id in (1, 2))
    assert [] == judged(truth, *claims, first, samples=samples).violations
    both = judged(truth, *claims, first, second, samples=samples).violations
    assert 1 == len(both)
    assert "started of job 2" in both[0]

    owners = {PROCESS: (1, "1.01")}
    record = [step(1.95, EXTERNAL, 3), step(2.22, PROCESS, 12), step(2.25, PROCESS, 0), step(9, EXTERNAL, 0)]
    assert [] == judged(truth_of(record, owners), *claims, first, second, samples=samples).violations, (
        "the first is over"
    )


def test_an_external_process_that_dies_without_a_trace_takes_no_memory_from_later_claims() -> None:
    """A worker measures what a context takes with a process that it kills, and the record has no step of its death.

    The soak counted those bytes for ever, and reported claims of the whole card as violations.
    """
    measured = [step(1, (98, 4), 1)]
    assert [] == judged(truth_of(measured, {}), claim(2, 1, 23)).violations
    there = [*measured, step(1.5, EXTERNAL, 1), step(9, EXTERNAL, 0)]
    assert 1 == len(judged(truth_of(there, {}), claim(2, 1, 23)).violations)
    assert [] == judged(truth_of(there, {}), claim(2, 1, 22)).violations


def test_memory_that_a_run_takes_after_its_end_is_seen() -> None:
    """Memory growth after a run's end and a second claim of a claimed job are violations, and lost runs are counted."""
    truth = truth_of([step(2, PROCESS, 1), step(4, PROCESS, 2)], {PROCESS: (1, "1.01")})
    end = report(3, Act.FINISH, 1, JobState.SUCCEEDED)
    assert 1 == len(judged(truth, claim(1, 1, 9), end).violations)
    assert 1 == len(judged(truth, claim(1, 1, 9), claim(1.5, 1, 9)).violations)
    lost = judged(truth, claim(1, 1, 9), report(5, Act.LOSE, 1, JobState.LOST))
    assert (1, {1: JobState.LOST}) == (lost.losses, lost.ended)


def test_processes_of_a_run_add_up_and_a_refusal_is_kept() -> None:
    """The memory of all processes of a run is summed at every change.

    External processes are separate, and refusals are kept.
    """
    second = (71, 6)
    record = [
        step(1, PROCESS, 2),
        step(2, second, 3),
        step(3, PROCESS, 1),
        step(4, EXTERNAL, 9),
        step(5, second, 3, refused=GIB),
    ]
    truth = truth_of(record, {PROCESS: RUN, second: RUN})
    assert [2 * GIB, 5 * GIB, 4 * GIB, 4 * GIB] == truth.runs[RUN, 0].bytes
    assert 9 * GIB == truth.external_processes[0].peak_bytes
    assert [(second, GIB)] == [(each.process, each.wanted_bytes) for each in truth.refusals]


def level(*steps: tuple[float, float]) -> Level:
    """Return the memory of a run over time from steps of (second, GiB)."""
    made = Level()
    for second, gib in steps:
        made.note(ns(second), int(gib * GIB))
    return made


def test_the_longest_stretch_above_a_level() -> None:
    """The longest time above a level is known.

    A sample in that time must have seen more. The last level has no end and does not count.
    """
    line = level((1, 2), (2, 5), (2.5, 6), (3, 4), (5, 5), (5.25, 0))
    assert 1.0 == line.longest_above_s(4 * GIB)
    assert 0.5 == line.at_peak_s()
    assert 0.0 == level((1, 2)).longest_above_s(0)
    assert (0, 2 * GIB) == (line.least(ns(0), ns(1.5)), line.least(ns(1.5), ns(2.2)))


def compared(kind: Kind, recorded: float | None, *, accounting: bool = False, **more: Any) -> Peaks:
    """Compare one recorded peak, in GiB, with a run that held 5 GiB for half a second, and return the result."""
    peaks = Peaks()
    source = PeakSource.NONE if recorded is None else PeakSource.NVML_SAMPLED
    peak = Peak(bytes=None if recorded is None else int(recorded * GIB), source=source, samples=5)
    line = more.get("line", level((1, 2), (2, 5), (2.5, 0)))
    peaks.compare("job 1", kind, line, peak, accounting=accounting)
    return peaks


def test_a_peak_above_the_truth_is_never_right() -> None:
    """A recorded peak above the driver's record is always an error, for any kind of job."""
    assert 1 == len(compared(Kind.ONE, 5.1).above)
    assert 1 == len(compared(Kind.LIAR, 5.1).above)
    assert [] == compared(Kind.ONE, 5).above


def test_a_sampled_peak_must_be_in_the_history() -> None:
    """A peak that lasted longer than the sampling interval must be in the history. Only a late sampler misses it."""
    right, late, never = compared(Kind.ONE, 5), compared(Kind.ONE, 2), compared(Kind.ONE, None)
    assert [(1, 1), (1, 0), (1, 0)] == [(each.held, each.equal) for each in (right, late, never)]
    assert [0, 1, 1] == [each.late for each in (right, late, never)]
    assert (0.5, 3 * GIB) == (late.longest_unseen_s, late.largest_gap_bytes)
    assert [0, 0, 1] == [each.unseen for each in (right, late, never)]
    spike = compared(Kind.SPIKE, 2, line=level((1, 2), (2, 5), (2.05, 0)))
    assert (0, 0) == (spike.held, spike.late)


def test_what_the_driver_kept_account_of_is_exact_for_one_process() -> None:
    """With driver accounting the peak of a single process is exact, however short it is.

    The peaks of two processes need not coincide.
    """
    spike = level((1, 2), (2, 5), (2.05, 0))
    assert (1, 0) == ((found := compared(Kind.SPIKE, 2, accounting=True, line=spike)).accounted, found.accounted_equal)
    assert 0 == compared(Kind.TWO, 2, accounting=True, line=spike).accounted
    assert 0 == compared(Kind.SPIKE, 2, line=spike).accounted
