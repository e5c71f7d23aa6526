"""Tests of the line of `show` about a file that a run lacked although it is where the job was submitted."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from factories import ADA, make_spec

from gpuqueue.cli.output.job_story import missing_file_line
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, Record, Run

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)
SNAPSHOT = f"{'a' * 64}:src"
TREE = "/var/runs/1/1.a/code/tree"


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Return a failed job with a copy of its code, whose directory here has a file of data and one above it."""
    cwd = tmp_path / "src"
    (cwd / "data").mkdir(parents=True)
    (cwd / "data" / "train.bin").touch()
    (tmp_path / "top.txt").touch()
    spec = make_spec(cwd=str(cwd), snapshot=SNAPSHOT)
    run = Run(
        job_id=1,
        attempt=1,
        token="1.a",
        host="node1",
        worker="w",
        devices=(),
        claimed_at=NOW,
        ending=Ending.from_status(1),
        log_path="/var/runs/1/1.a/log",
    )
    return Record(job=Job(id=1, spec=spec, state=JobState.FAILED, submitted_at=NOW), runs=(run,))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'", "src/data/train.bin"),
        ("FileNotFoundError: [Errno 2] No such file or directory: b'../top.txt'", "top.txt"),
        (f"FileNotFoundError: [Errno 2] No such file or directory: '{TREE}/src/data/train.bin'", "src/data/train.bin"),
        (f"FileNotFoundError: [Errno 2] No such file or directory: '{TREE}/top.txt'", "top.txt"),
        (f"python: can't open file '{TREE}/src/data/train.bin': [Errno 2] No such file", "src/data/train.bin"),
        ("FileNotFoundError: data/train.bin not found.", "src/data/train.bin"),
        ("FileNotFoundError: [Errno 2] Unable to open file (name = 'data/train.bin', errno = 2)", "src/data/train.bin"),
        ("sh: 1: cannot open data/train.bin: No such file", "src/data/train.bin"),
        ("cat: data/train.bin: No such file or directory", "src/data/train.bin"),
        ("cat: 'data/train.bin': No such file or directory", "src/data/train.bin"),
        ("./run.sh: line 3: data/train.bin: No such file or directory\nfailed\n", "src/data/train.bin"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/other.bin'", None),
        ("cat: data/train.bin: Permission denied", None),
        (f"No such file or directory: '{'x' * 5000}'", None),
        ("", None),
    ],
)
def test_a_file_that_is_where_the_job_was_submitted_is_named(
    record: Record, tmp_path: Path, written: str, name: str | None
) -> None:
    """Python, its interpreter, NumPy, the shell and its tools say in other words that a file is missing."""
    line = missing_file_line(record, written.encode(), ADA.host)

    where = f"{tmp_path / (name or '')} is here, where the job was submitted, but not where it ran: "
    expected = f"{where}ignored and newer files do not travel with the code. Give data by its path on the host"
    assert (None if name is None else expected) == line


def test_nothing_is_said_where_it_is_not_known_or_of_no_use(record: Record, tmp_path: Path) -> None:
    """On another host the file of this name may be any file, and a job without a copy ran in this directory."""
    written = b"cat: data/train.bin: No such file or directory"
    here = replace(record, job=replace(record.job, spec=replace(record.job.spec, snapshot=None)))
    at_home = replace(here, runs=(replace(here.runs[0], host=ADA.host),))
    good = replace(record, runs=(replace(record.runs[0], ending=Ending.from_status(0)),))

    assert missing_file_line(record, written, "node1") is None
    assert missing_file_line(at_home, written, ADA.host) is None
    assert missing_file_line(good, written, ADA.host) is None
    assert (
        f"{tmp_path}/src/data/train.bin is here, where the job was submitted, but not where it ran: "
        "give its path on node1"
    ) == missing_file_line(here, written, ADA.host)
