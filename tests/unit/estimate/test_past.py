"""Tests of the rule that estimates the need of the next run from earlier runs."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from factories import ADA, BOB, make_spec

from gpuqueue.codec.wire import to_plain
from gpuqueue.estimate.past import Past, Script, Whose, past_of
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.rule import rounded_up
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Account, Checkout
from gpuqueue.model.mem_source import Signature
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


def test_the_number_is_that_of_learned_memory() -> None:
    """`estimate` and `--mem auto` agree: three runs have the small margin, two the large one.

    The fullest device of a run counts, because --mem is for each device.
    """
    two = output(a_record(sampled(2 * GIB), sampled(3 * GIB)), a_record(sampled(GIB), sampled(GIB)))
    three = output(*[a_record(sampled(3 * GIB))] * 3)

    assert (Whose.OWN, Signature.ARGUMENTS, 2, True) == (two.whose, two.lesson.signature, len(two.runs), two.suffices)
    assert math.ceil(3 * GIB * 1.3) == two.need_bytes
    assert (math.ceil(3 * GIB * 1.1) + 256 * MIB, rounded_up(three.need_bytes)) == (three.need_bytes, three.mem_bytes)


def test_other_arguments_count_where_no_run_has_the_same() -> None:
    """One run with the same arguments comes before any number of others. Without one, all runs are listed."""
    others = [a_record(sampled(size * GIB), args=("--size", str(size))) for size in (3, 4, 6)]

    exact, past = output(a_record(sampled(2 * GIB)), *others), output(*others)

    assert (Signature.ARGUMENTS, [True]) == (exact.lesson.signature, [run.same_args for run in exact.runs])
    assert math.ceil(2 * GIB * 1.3) == exact.need_bytes
    assert (Signature.SCRIPT, [False] * 3) == (past.lesson.signature, [run.same_args for run in past.runs])
    assert math.ceil(6 * GIB * 1.1) + 256 * MIB == past.need_bytes


def test_a_number_that_moves_the_peak_has_its_line() -> None:
    """The estimate has the line, and lists the runs with what they needed themselves."""
    runs = [a_record(sampled(size * GIB), args=("--batch", str(4 * size))) for size in (1, 2, 4)]
    past = output(*runs, args=("--batch", "32"))

    assert [GIB, 2 * GIB, 4 * GIB] == [run.bytes for run in past.runs]
    assert math.ceil(8 * GIB * 1.1) + 256 * MIB == past.need_bytes
    assert {"argument": "batch", "value": 32, "predicted_bytes": 8 * GIB, "is_far": False}.items() <= to_plain(past)[
        "lesson"
    ]["line"].items()


@pytest.mark.parametrize(
    "silent",
    [
        a_record(Peak.unknown()),
        a_record(Peak(bytes=GIB, source=PeakSource.HOST_RSS, samples=50)),
        a_record(sampled(GIB), Peak.unknown()),
        a_record(sampled(GIB), ending=Ending.from_status(1)),
        a_record(sampled(GIB), ending=Ending.stopped(EndingKind.CANCELLED, -15)),
        a_record(sampled(GIB), ending=Ending.lost("gone")),
    ],
)
def test_what_shows_no_need_says_nothing(silent: Record) -> None:
    """The memory of a CPU, and a run that may have ended before its peak, give no estimate."""
    assert past_of(ASKED, [silent, silent, silent]) is None


def test_simulated_devices_count_for_those_who_have_no_others() -> None:
    """`estimate` said 512M where ``--mem auto`` asked for 640M: it alone left the runs of a simulated device out.

    As with ``--mem auto``, the newest run decides which kind counts.
    """
    simulated = a_record(Peak(bytes=2 * GIB, source=PeakSource.SIMULATED, samples=50))

    found = output(simulated, a_record(sampled(GIB)))

    assert (DeviceKind.SIMULATED, 1, [2 * GIB]) == (
        found.kind,
        found.lesson.learned.runs,
        [run.bytes for run in found.runs],
    )
    assert DeviceKind.GPU is output(a_record(sampled(GIB)), simulated).kind


def test_the_code_and_the_interpreter_select_the_runs_as_for_a_submit() -> None:
    """Three runs of this very code count before newer ones of other code."""
    other = [a_record(sampled(6 * GIB))] * 3
    git = Checkout(commit="a" * 40, branch="main", dirty=False)
    spec = replace(other[0].job.spec, git=git)
    exact = [replace(each, job=replace(each.job, spec=spec)) for each in [a_record(sampled(2 * GIB))] * 3]

    found = output(*other, *exact, code=git.commit, interpreter="/venv/bin/python")

    assert (Signature.EXACT, 2 * GIB) == (found.lesson.signature, found.lesson.learned.high_bytes)


def test_what_is_kept_free_on_a_device_is_not_asked_for() -> None:
    """Regression: `estimate` advised all of a device, of which a part is the headroom."""
    run = a_record(sampled(22 * GIB), lease_bytes=24 * GIB)
    device = replace(run.runs[0].devices[0], total_bytes=24 * GIB)
    run = replace(run, runs=(replace(run.runs[0], devices=(device,)),))

    found = past_of(ASKED, [run], GIB)

    assert found is not None
    assert 23 * GIB == found.mem_bytes


@pytest.mark.parametrize(
    ("record", "proof"),
    [
        (a_record(Peak(bytes=GIB, source=PeakSource.NVML_ACCOUNTING)), Proof.PEAK),
        (a_record(sampled(GIB), ending=Ending.stopped(EndingKind.TIMED_OUT, -15)), Proof.PEAK),
        (a_record(sampled(GIB, samples=9)), Proof.AT_LEAST),
        (a_record(Peak(bytes=GIB, source=PeakSource.TORCH, samples=50)), Proof.AT_LEAST),
        (a_record(sampled(8 * GIB)), Proof.CAPPED),
        (a_record(sampled(2 * GIB), ending=OUT_OF_MEMORY), Proof.DIED),
    ],
)
def test_each_run_shows_something_of_its_own(record: Record, proof: Proof) -> None:
    """The driver's own maximum and enough samples show the need, other sources a lower bound."""
    past = output(record)

    assert ([proof], proof is not Proof.DIED) == ([run.proof for run in past.runs], past.suffices)


def test_out_of_memory_asks_for_twice_as_much() -> None:
    """A run out of memory shows that its allocation is not enough. Alone it is no usable estimate."""
    short = a_record(sampled(2 * GIB), ending=OUT_OF_MEMORY, lease_bytes=4 * GIB)

    assert 8 * GIB == output(short).need_bytes
    assert 8 * GIB == output(short, a_record(sampled(GIB)), a_record(sampled(GIB))).need_bytes


def test_a_run_whose_memory_others_took_says_nothing() -> None:
    """The job was queued again with the same, so its allocation was not too small."""
    short = a_record(sampled(2 * GIB), ending=OUT_OF_MEMORY)
    spec = replace(short.job.spec, mem_bytes=8 * GIB)

    assert past_of(ASKED, [replace(short, job=replace(short.job, spec=spec, mem_retries=1))]) is None
    more = replace(short.job, spec=replace(spec, mem_bytes=16 * GIB), mem_retries=1)
    assert 16 * GIB == output(replace(short, job=more)).need_bytes


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
    assert Signature.SCRIPT is output(*[a_record(sampled(GIB))] * 2, args=("--lr", "1e-4")).lesson.signature
