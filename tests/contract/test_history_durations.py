"""How long earlier runs of a job took, on each database."""

from __future__ import annotations

from typing import Any

from factories import make_spec
from outbox import Outbox

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.learning.signature import program_of
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.text.units import GIB

ADA, BOB = (Account(name=name, uid=1000, host="nodeA") for name in ("ada", "bob"))
TRAIN = ("python", "train.py", "--lr", "0.1")


def spec(*argv: str, account: Account = ADA, **more: Any) -> JobSpec:
    """Return the request of a job."""
    return make_spec(argv=argv, script="train.py", account=account, **more)


def alike(database: HistoryDatabase, job: JobSpec) -> list[float]:
    """Return the durations of the runs like *job*."""
    program = program_of(job.argv, job.script, job.cwd)
    return database.durations_alike_s(user=job.account.name, program=program, command=job.command, array_id=None)


def test_runs_of_the_same_command_are_alike_whatever_their_name(database: HistoryDatabase) -> None:
    """Neither other arguments nor other users count, nor runs that failed: they ended early."""
    outbox = Outbox(database)
    for number, (job, status) in enumerate(
        [
            (spec(*TRAIN, name="first"), 0),
            (spec(*TRAIN, name="second"), 0),
            (spec(*TRAIN, name="first"), 1),
            (spec(*TRAIN[:-1], "0.2", name="first"), 0),
            (spec(*TRAIN, account=BOB, name="first"), 0),
        ],
        1,
    ):
        outbox.submit(number, job)
        devices = (RunDevice(uuid="GPU-0", lease_bytes=GIB),)
        outbox.run(number, devices, Ending.from_status(status), duration_s=float(number))
    outbox.record()

    assert [2.0, 1.0] == alike(database, spec(*TRAIN))
    assert [4.0, 1.0] == database.durations_s(user="ada", name="first")
    assert [] == alike(database, spec("python", "other.py"))
