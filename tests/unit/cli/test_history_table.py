"""Tests of the table of ``gpuqueue history``: what a narrow terminal omits, cuts or abbreviates."""

from __future__ import annotations

import dataclasses
import itertools
import re
from datetime import datetime, timedelta, timezone

import click
import pytest
from factories import make_spec

from gpuqueue.cli.output.history_columns import COLUMNS, LEFT_OUT, USUAL, peak_note, rows
from gpuqueue.cli.output.job_story import story
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, EndingKind, Record, Run, RunDevice
from gpuqueue.text.units import GIB

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


def record(job_id: int, name: str, ending: Ending) -> Record:
    """Return a job that ran for two hours on two devices of a host with a long name."""
    times = {"claimed_at": NOW, "started_at": NOW, "ended_at": NOW + timedelta(hours=2)}
    peak = Peak(bytes=5 * GIB, source=PeakSource.NVML_SAMPLED, samples=9)
    devices = tuple(
        RunDevice(uuid=f"GPU-{index}", index=index, kind=DeviceKind.GPU, lease_bytes=6 * GIB, peak=peak)
        for index in (0, 1)
    )
    run = Run(
        job_id=job_id, attempt=1, token="1.a", host="node-with-many-cards-07", worker="w", devices=devices,
        duration_s=7200.0, ending=ending, **times,
    )  # fmt: skip
    state = JobState.SUCCEEDED if ending == Ending.from_status(0) else JobState.FAILED
    spec = make_spec(mem_bytes=6 * GIB, gpus=2, name=name, argv=("python", "train.py", "--lr", "1e-3" * 9))
    del times["claimed_at"]
    job = Job(
        id=job_id, spec=spec, state=state, submitted_at=NOW, attempt=1, host=run.host, note="diverges " * 6, **times
    )
    return Record(job=job, runs=(run,))


RECORDS = [
    record(1234, "a-long-name-of-a-training-run", Ending.from_status(0)),
    record(1235, "short", Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "as it said")),
]


def lines(width: int | None, names: tuple[str, ...] | None = None) -> list[str]:
    """Return the lines of the table without colours."""
    return click.unstyle(rows(RECORDS, names, width)).splitlines()


@pytest.mark.parametrize("width", [*range(40, 160), 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """No line is wider than the terminal.

    Regression: lines had 130 characters at 80 columns, and each job took two broken lines.
    """
    assert max(map(len, lines(width))) <= width


def test_at_80_columns_all_that_one_asks_for_is_there() -> None:
    """80 columns show the user, the name, the state, the ending, the duration and the memory."""
    head, first, second = lines(80)

    assert ["ID", "NAME", "USER", "STATE", "ENDING", "TOOK", "ASKED", "PEAK"] == head.split()
    assert ["1234", "a-long-name-of-a-tr…", "ada", "succeeded", "exit", "0", "2:00:00", "2x6G", "10G"] == first.split()
    assert "out of memory" in second


def test_what_does_not_fit_is_left_out_in_a_set_order() -> None:
    """Columns are omitted in a fixed order. The name and the state are omitted last."""
    seen = [tuple(lines(width)[0].split()) for width in range(160, 39, -1)]
    order = []
    for before, after in itertools.pairwise(seen):
        order += [word for word in before if word not in after and word in {column.head for column in COLUMNS.values()}]

    assert order == [COLUMNS[name].head for name in LEFT_OUT][: len(order)]
    assert len(order) > 4


def test_a_time_loses_its_year_and_a_host_its_end_first() -> None:
    """A time loses its year first, and a host the end of its name. The day and the device index are more important."""
    _, first, _ = lines(108)

    assert re.search(r"node-with-[\w-]*…:0,1 +11-2[12] \d\d:\d\d +2:00:00", first)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_column_that_is_named_is_there(width: int) -> None:
    """Columns that the user names are cut but never omitted."""
    named = ("id", "name", "user", "command", "note")
    head, *found = lines(width, named)

    assert ["ID", "NAME", "USER", "COMMAND", "NOTE"] == head.split()
    assert max(map(len, found)) <= width


def test_a_pipe_gets_all_of_it() -> None:
    """A pipe gets every usual column in full, because programs split the lines by columns."""
    head, first, _ = lines(None)

    assert [COLUMNS[name].head for name in USUAL] == head.split()
    assert "node-with-many-cards-07:0,1" in first
    assert re.search(r"2026-11-2[12] \d\d:\d\d:\d\d", first)


def test_a_pipe_gets_long_words_whole() -> None:
    """A pipe gets long words uncut.

    Regression: names were cut after 24 characters and commands after 60, so a search for a later part failed.
    """
    job = RECORDS[0].job
    name, command = "x" * 90, ("python", "train.py", "y" * 90)
    spec = make_spec(mem_bytes=6 * GIB, name=name, argv=command)
    wordy = Record(job=dataclasses.replace(job, spec=spec, tags=("a" * 30, "b" * 30)), runs=RECORDS[0].runs)
    named = ("name", "command", "tags", "note")

    for text in (rows([wordy], named, None), rows([wordy], None, None)):
        assert name in text
    for whole in (" ".join(command), " ".join(wordy.job.tags), job.note):
        assert (whole or "").strip() in rows([wordy], named, None)
    assert name not in rows([wordy], named, 400)


@pytest.mark.parametrize("source", list(PeakSource))
def test_a_peak_of_host_memory_says_so(source: PeakSource) -> None:
    """The peak of a job on the CPU or a simulated device has a mark, with a line below the table, and `show` says it.

    Regression: its 1.2G could be taken for memory of a GPU.
    """
    ran = RECORDS[0].last_run
    assert ran is not None
    known = source is not PeakSource.NONE
    peak = Peak(bytes=5 * GIB if known else None, source=source, samples=9)
    run = dataclasses.replace(ran, devices=(dataclasses.replace(ran.devices[0], peak=peak),))
    measured = dataclasses.replace(RECORDS[0], runs=(run,))
    resident = source in {PeakSource.HOST_RSS, PeakSource.SIMULATED}

    expected = "5G*" if resident else "5G" if known else "-"
    assert expected == click.unstyle(rows([measured], ["peak_bytes"], None)).split()[-1]
    for names in (None, ["peak_bytes"]):
        note = peak_note([RECORDS[1], measured], names)
        assert ("* resident memory of the job's processes, not memory of a GPU" if resident else None) == note
    assert peak_note([measured], ["id", "name"]) is None
    assert resident is (f"({source}: resident memory, 9 samples" in story(measured))
