"""Tests of the rule that estimates the need of the next run from earlier runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import ADA, BOB, make_spec

from gpuqueue.estimate.past import Past, Rule, Script, Whose, past_of
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending, EndingKind, Record, Run, RunDevice
from gpuqueue.text.units import GIB, MIB

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
ARGS = ("--lr", "1e-3")
ASKED = Script(path="/home/ada/train.py", args=ARGS, account=ADA)
WELL = Ending.from_status(0)
OUT_OF_MEMORY = Ending.stopped(EndingKind.OUT_OF_MEMORY, 1)


def sampled(size: int, samples: int = 10) -> Peak:
    return Peak(bytes=size, source=PeakSource.NVML_SAMPLED, samples=samples)


def a_record(
    *peaks: Peak,
    job_id: int = 1,
    days: float = 1,
    args: tuple[str, ...] = ARGS,
    ending: Ending = WELL,
    account: Account = ADA,
    cwd: str = "/home/ada",
    lease_bytes: int = 8 * GIB,
) -> Record:
    """Return a job with one run that ended *days* ago and had one device for each of *peaks*."""
    spec = make_spec(
        argv=("/venv/bin/python", "train.py", *args),
        script="train.py",
        interpreter="/venv/bin/python",
        cwd=cwd,
        account=account,
        gpus=len(peaks),
    )
    ended_at = NOW - timedelta(days=days)
    devices = tuple(RunDevice(uuid=f"GPU-{i}", lease_bytes=lease_bytes, peak=peak) for i, peak in enumerate(peaks))
    run = Run(
        job_id=job_id,
        attempt=1,
        token="1.a",
        host="h",
        worker="w",
        devices=devices,
        claimed_at=ended_at,
        ended_at=ended_at,
        ending=ending,
    )
    return Record(job=Job(id=job_id, spec=spec, state=JobState.SUCCEEDED, submitted_at=ended_at), runs=(run,))


def output(*records: Record, **changes: Any) -> Past:
    """Return the estimate from *records*, which must exist."""
    past = past_of(replace(ASKED, **changes), records)
    assert past is not None
    return past


def test_two_runs_with_the_same_arguments_give_the_largest_and_a_little_more() -> None:
    """Two runs with the same arguments give the largest peak plus 5 % and 256 MiB.

    The fullest device of a run counts, because --mem is for each device.
    """
    past = output(a_record(sampled(2 * GIB), sampled(3 * GIB)), a_record(sampled(GIB)))

    assert (Whose.OWN, Rule.SAME_ARGUMENTS, 2, True) == (past.whose, past.rule, len(past.runs), past.suffices)
    assert -(-3 * GIB * 105 // 100) + 256 * MIB == past.need_bytes


def test_only_the_last_five_runs_count() -> None:
    """Only the last five runs count, because a script may have changed since older runs."""
    new = [a_record(sampled(GIB), job_id=number) for number in range(9, 4, -1)]

    assert output(*new).need_bytes == output(*new, a_record(sampled(20 * GIB))).need_bytes
    assert output(*new).need_bytes < output(*new[:4], a_record(sampled(20 * GIB))).need_bytes


def test_other_arguments_give_a_high_percentile_in_which_the_young_weigh_more() -> None:
    """Other arguments give a high percentile with more weight on recent runs.

    A run loses half its weight in two weeks, so that recent small runs outvote a large run of last year.
    """
    old = a_record(sampled(20 * GIB), days=365, args=())
    young = [a_record(sampled(size * MIB), args=("--epochs", str(size))) for size in (1000, 1010, 1020)]

    past = output(*young, old)

    assert (Rule.SAME_SCRIPT, 4) == (past.rule, len(past.runs))
    assert -(-1020 * MIB * 115 // 100) == past.need_bytes
    assert -(-20 * GIB * 115 // 100) == output(*young, replace_days(old)).need_bytes


def replace_days(record: Record) -> Record:
    """Return *record* as if it had ended today."""
    return replace(record, runs=tuple(replace(run, ended_at=NOW) for run in record.runs))


def test_one_run_with_the_same_arguments_is_judged_with_the_others() -> None:
    """A single run with the same arguments counts with the runs with other arguments."""
    assert Rule.SAME_SCRIPT is output(a_record(sampled(GIB)), a_record(sampled(2 * GIB), args=())).rule


@pytest.mark.parametrize(
    "untrusted",
    [
        a_record(Peak.unknown()),
        a_record(sampled(GIB, samples=9)),
        a_record(Peak(bytes=GIB, source=PeakSource.TORCH, samples=50)),
        a_record(Peak(bytes=GIB, source=PeakSource.DEVICE_DELTA, samples=50)),
        a_record(Peak(bytes=GIB, source=PeakSource.HOST_RSS, samples=50)),
        a_record(Peak(bytes=GIB, source=PeakSource.SIMULATED, samples=50)),
        a_record(sampled(GIB), Peak.unknown()),
        a_record(sampled(GIB), ending=Ending.from_status(1)),
        a_record(sampled(GIB), ending=Ending.stopped(EndingKind.CANCELLED, -15)),
        a_record(sampled(GIB), ending=Ending.lost("gone")),
    ],
)
def test_what_cannot_be_trusted_says_nothing(untrusted: Record) -> None:
    """Untrusted peaks give no estimate.

    Such a peak is a lower bound, the memory of another device kind, or comes from a run that may have ended before its
    peak.
    """
    assert past_of(ASKED, [untrusted, untrusted, untrusted]) is None


@pytest.mark.parametrize(
    "trusted",
    [
        a_record(Peak(bytes=GIB, source=PeakSource.NVML_ACCOUNTING)),
        a_record(sampled(GIB), ending=Ending.stopped(EndingKind.TIMED_OUT, -15)),
    ],
)
def test_the_drivers_own_maximum_and_a_run_that_used_its_time_count(trusted: Record) -> None:
    """The driver's own maximum counts, because it misses nothing.

    A run that reached its time limit counts, because it ran as long as allowed.
    """
    assert Rule.SAME_ARGUMENTS is output(trusted, trusted).rule


def test_out_of_memory_says_more_than_that() -> None:
    """A run out of memory gives a lower bound: twice its lease.

    It is not a sufficient size.
    """
    past = output(a_record(sampled(2 * GIB), ending=OUT_OF_MEMORY, lease_bytes=4 * GIB))

    assert (Rule.MORE_THAN, False, 8 * GIB) == (past.rule, past.suffices, past.need_bytes)


def test_out_of_memory_raises_what_went_well_before() -> None:
    """A run out of memory with the same arguments counts among the last five.

    One with other arguments does not count.
    """
    well = [a_record(sampled(GIB)), a_record(sampled(GIB))]
    short = a_record(sampled(4 * GIB), ending=OUT_OF_MEMORY, lease_bytes=4 * GIB)
    elsewhere = a_record(sampled(4 * GIB), ending=OUT_OF_MEMORY, lease_bytes=4 * GIB, args=("--big",))
    others = [a_record(sampled(GIB), args=()), a_record(sampled(GIB), args=())]

    assert (Rule.SAME_ARGUMENTS, 8 * GIB) == (output(short, *well).rule, output(short, *well).need_bytes)
    assert output(*well).need_bytes == output(elsewhere, *well).need_bytes
    assert output(*others).need_bytes == output(elsewhere, *others).need_bytes
    assert Rule.MORE_THAN is output(short, *others).rule


def test_own_runs_go_first_then_anybodys_of_this_file_then_own_ones_elsewhere() -> None:
    """Own runs come first, then any user's runs of this file, then own runs of a copy.

    Another user's script of the same name elsewhere is unrelated, because many users have a train.py.
    """
    own = [a_record(sampled(GIB))] * 2
    shared = [a_record(sampled(2 * GIB), account=BOB)] * 2
    copy = [a_record(sampled(3 * GIB), cwd="/scratch/copy")] * 2
    strange = [a_record(sampled(4 * GIB), account=BOB, cwd="/home/bob")] * 2

    assert Whose.OWN is output(*copy, *shared, *own).whose
    assert Whose.ANYBODY is output(*copy, *shared, *strange).whose
    assert Whose.OWN_ELSEWHERE is output(*copy, *strange).whose
    assert past_of(ASKED, strange) is None


def test_the_same_file_by_another_way_of_writing_is_the_same() -> None:
    """The path is compared after normalization. The arguments are compared word by word."""
    assert Whose.OWN is output(*[a_record(sampled(GIB))] * 2, path="/home/ada/./train.py").whose
    assert Rule.SAME_SCRIPT is output(*[a_record(sampled(GIB))] * 2, args=("--lr", "1e-4")).rule
