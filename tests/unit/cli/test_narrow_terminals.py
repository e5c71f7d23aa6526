"""Tests of ``limits``, ``notify`` and ``show`` on a terminal of 60 columns.

Regression: these commands ignored the width.
"""

from __future__ import annotations

from datetime import datetime, timezone

import click
from factories import make_spec

from gpuqueue.cli.commands.limits import _tables
from gpuqueue.cli.commands.notify import COLUMNS
from gpuqueue.cli.output import job_story
from gpuqueue.cli.output.render import hanging, table_of
from gpuqueue.model.device import Timeline
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.limits import EVERYBODY, Bound, LimitsInUse
from gpuqueue.model.measures import Limit, Measure, PoolLimits
from gpuqueue.model.run import Ending, Record, Run, RunDevice
from gpuqueue.queue.senders import Sender
from gpuqueue.text.sanitize import cells
from gpuqueue.text.units import GIB, TIB

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
NARROW = 60
LONG = "somebody-with-a-name-of-as-many-characters-as-may-be-in-one-name"


def widest(text: str) -> int:
    """Return the width of the widest line, in terminal columns."""
    return max(map(cells, text.splitlines()))


def limits_in_use() -> LimitsInUse:
    """Return limits of a user with a long name, and of a pool with wide figures."""
    limit = Limit(most=1000 * GIB, refuses=True)
    pool = PoolLimits(
        default_mem_bytes=900 * GIB,
        max_mem_bytes=2 * TIB,
        default_time_s=10 * 86400.0,
        max_time_s=99 * 86400.0,
        max_gpus=64,
    )
    return LimitsInUse(
        bounds=(
            Bound(whose=LONG, measure=Measure.RUNNING_MEM, limit=limit, used=999 * GIB),
            Bound(whose=EVERYBODY, measure=Measure.RUNNING_MEM, limit=limit, used=None),
        ),
        pools={LONG: pool},
    )


def test_limits_fit_and_a_pipe_gets_them_whole() -> None:
    """The limits fit, and a pipe gets them in full.

    Names are cut first. A narrower terminal also loses the default columns of a job and the text about exceeded limits.
    """
    whole, narrow, narrower = (_tables(limits_in_use(), width) for width in (None, NARROW, 50))

    assert LONG in whole
    assert ["POOL", "MEM", "MOST", "MEM", "TIME", "MOST", "TIME", "MOST", "GPUS"] == whole.splitlines()[4].split()
    assert widest(narrow) <= NARROW
    assert ["somebody-with-a-n…", "running_mem", "999G", "1000G", "is", "refused"] == narrow.splitlines()[1].split()
    assert "10d 00:00:00" in whole
    assert widest(narrower) <= 50
    assert {"2T", "64"} <= set(narrower.split())


def test_targets_fit() -> None:
    """The notification targets fit.

    A long name and a long host are cut at the end, because the beginnings tell them apart.
    """
    rows = [("t" * 64, Sender(host="h" * 60, targets=(), schemes=("json",), urls=True))]

    narrow = table_of(COLUMNS, rows, NARROW)

    assert widest(narrow) <= NARROW
    assert narrow.splitlines()[1].endswith("yes")
    assert "h" * 60 in table_of(COLUMNS, rows)


def a_record(command: str) -> Record:
    """Return a failed job with a long reason and five hours of memory samples."""
    device = RunDevice(uuid="GPU-1", lease_bytes=8 * GIB, timeline=Timeline(step_s=60.0, bytes=(GIB,) * 300))
    run = Run(
        job_id=1,
        attempt=1,
        token="1.a",
        host="node",
        worker="w",
        devices=(device,),
        claimed_at=NOW,
        ending=Ending.from_status(0),
        duration_s=18000.0,
        log_path="/scratch/" + "deep/" * 20 + "log",
    )
    spec = make_spec(argv=("sh", "-c", command), cwd="/home/" + "d" * 80)
    because = "what it waited for never came, and nobody had said what was to be done then"
    job = Job(id=1, spec=spec, state=JobState.FAILED, submitted_at=NOW, attempt=1, because=because, note="word " * 30)
    return Record(job=job, runs=(run,))


def test_the_story_of_a_job_fits_and_what_is_copied_stays_whole() -> None:
    """Text wraps within its own column, and the memory line has as many blocks as fit.

    Lines that users copy are never wrapped.
    """
    command = "echo " * 40
    record = a_record(command)

    narrow = click.unstyle(job_story.story(record, width=NARROW)).splitlines()

    wide = [line.split()[0] for line in narrow if cells(line) > NARROW]
    assert wide == ["command", "directory", "log"]
    state = next(at for at, line in enumerate(narrow) if line.startswith("  state "))
    assert narrow[state : state + 3] == [
        "  state      failed (what it waited for never came,",
        "             and nobody had said what was to be done then)",
        "  user       ada on laptop",
    ]
    (memory,) = [line for line in narrow if line.strip().startswith("memory ")]
    assert memory.endswith(" over 5:00:00")
    assert job_story.story(record).count("\n") < len(narrow) - 1, "a pipe gets every line whole"


def test_a_label_takes_at_most_half_of_the_line() -> None:
    """A text behind a long label goes on at the left, and no line ends with a space."""
    line = "external process on trainer-with-a-long-name.example.org: 2G  ada, pid 4711  python train.py"

    assert [
        "external process on",
        "  trainer-with-a-long-name.example.org:",
        "  2G  ada, pid 4711  python train.py",
    ] == hanging(line, 40)
    assert ["start  not before noon", "       on nodeA:0"] == hanging("start  not before noon on nodeA:0", 24)
