from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.array import Array, Indexes, Tally
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.notification import Notification
from gpuqueue.model.run import Ending, EndingKind, Note, Record, Run, RunDevice, RunNote
from gpuqueue.model.run_mark import RunMark
from gpuqueue.notify.message import held_message_of, mark_message_of, message_of, title_of, took
from gpuqueue.notify.targets import url_of
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB

NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)


def a_record(state: JobState, ending: Ending | None = None, **run: object) -> Record:
    """Return job 17, named "train"; it has a run if *ending* is given."""
    job = Job(id=17, spec=make_spec(name="train"), state=state, submitted_at=NOW)
    if ending is None:
        return Record(job=job)
    made = Run(
        job_id=17,
        attempt=1,
        token="1.a",
        host="node1",
        worker="w",
        devices=(RunDevice(uuid="GPU-0", lease_bytes=GIB, index=0, kind=DeviceKind.GPU),),
        claimed_at=NOW,
        duration_s=11520.0,
        ending=ending,
    )
    return Record(job=job, runs=(replace(made, **run),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "title"),
    [
        (
            a_record(JobState.FAILED, Ending.from_status(1)),
            "job 17 (train) failed: exit 1 after 3 h 12 min on node1:0",
        ),
        (
            a_record(JobState.SUCCEEDED, Ending.from_status(0)),
            "job 17 (train) succeeded after 3 h 12 min on node1:0",
        ),
        (
            a_record(JobState.FAILED, Ending.from_status(-11)),
            "job 17 (train) failed: killed by SIGSEGV after 3 h 12 min on node1:0",
        ),
        (
            a_record(JobState.FAILED, Ending.stopped(EndingKind.TIMED_OUT, -15), devices=()),
            "job 17 (train) failed: timed out after 3 h 12 min on a device of node1",
        ),
        (
            a_record(JobState.LOST, Ending.lost("its shim vanished"), duration_s=None),
            "job 17 (train) lost on node1:0",
        ),
        (a_record(JobState.CANCELLED), "job 17 (train) cancelled before it ever ran"),
    ],
)
def test_the_end_stands_in_one_line(record: Record, title: str) -> None:
    """The title names the job, the ending, the duration and the place.

    It is one line, short enough for the lock screen of a phone.
    """
    assert title == title_of(record)


def test_the_message_has_the_reason_why_it_never_ran() -> None:
    """The message says why a job never ran, for example that a job it depended on failed."""
    record = a_record(JobState.CANCELLED)
    record = replace(record, job=replace(record.job, reason=WaitReason.DEPENDENCY, because="job 3 failed"))

    assert "job 17 (train) cancelled before it ever ran: its dependency can no longer be met" == title_of(record)
    assert "\nwhy      job 3 failed\n" in message_of(record, host="node1").body


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        (JobState.CANCELLED, Ending.stopped(EndingKind.CANCELLED, None, "unkillable: 7")),
        (JobState.FAILED, Ending.from_status(1, "unkillable: 7")),
        (JobState.FAILED, Ending.stopped(EndingKind.TIMED_OUT, None, "unkillable: 7")),
    ],
)
def test_what_is_known_about_the_end_is_there_once(state: JobState, ending: Ending) -> None:
    """The owner reads that a process could not be ended, in the title or below it."""
    found = message_of(a_record(state, ending), host="node1")
    assert 1 == f"{found.title}\n{found.body}".count("unkillable: 7")


def test_an_array_says_how_many_ended_how() -> None:
    """The title of an array counts its members by state and names no device."""
    tally = Tally(left=Indexes(), held=Indexes(), ended={"succeeded": 8, "failed": 2, "lost": 0})
    spec = make_spec(name="sweep", array=Array.parse("0-9"))
    job = Job(id=17, spec=spec, state=JobState.FAILED, submitted_at=NOW, tally=tally)

    assert "array 17 (sweep) failed: 8 succeeded, 2 failed" == title_of(Record(job=job))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.4, "0 s"), (59.6, "1 min"), (185, "3 min 5 s"), (3600, "1 h"), (3605, "1 h"), (187200, "2 d 4 h")],
)
def test_times_have_at_most_two_units(seconds: float, words: str) -> None:
    """A duration has at most two units. More precision does not help the reader."""
    assert words == took(seconds)


def test_only_a_log_on_this_machine_goes_along(tmp_path: Path) -> None:
    """The message contains the last ten lines of a log on this machine, without control characters.

    The message is never longer than a screen of text.
    """
    log = tmp_path / "17" / "1.a" / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(20)) + b"\x1b[31mred \xff\n" + b"x" * 100_000)
    record = a_record(JobState.FAILED, Ending.from_status(1), log_path=str(log))

    here, there = message_of(record, host="node1").body, message_of(record, host="node2").body

    assert len(here) < 3000
    assert "x" * 1000 in here
    assert "log" not in there
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(20)) + b"\x1b[31mred \xff\n")
    body = message_of(record, host="node1").body
    assert "line 10\n" not in body
    assert "\nline 11\n" in body
    assert "\nred \ufffd\n" in body
    other = log.rename(tmp_path / "secrets")
    assert there == message_of(record, host="node1").body
    record = a_record(JobState.FAILED, Ending.from_status(1), log_path=str(other))
    assert there == message_of(record, host="node1").body  # no worker has made this path


def test_the_lines_of_a_log_are_what_a_terminal_shows(tmp_path: Path) -> None:
    """Of a progress bar that is redrawn only its last state is in the message, so there is room for other lines."""
    log = tmp_path / "17" / "1.a" / "log"
    log.parent.mkdir(parents=True)
    bars = b"".join(b"%4d/1000 %s\r" % (step, b"#" * 40) for step in range(1000))
    log.write_bytes(b"loss\t0.5\n" + bars + b"\nsaved\n")
    record = a_record(JobState.FAILED, Ending.from_status(1), log_path=str(log))

    lines = message_of(record, host="node1").body.splitlines()

    at = next(number for number, line in enumerate(lines) if line.startswith("the last lines of its log"))
    assert ["loss    0.5", " 999/1000 " + "#" * 40, "saved", ""] == lines[at + 1 : at + 5]


def settings(**given: str) -> Settings:
    """Return settings with *given* values."""
    environ = {f"GPUQUEUE_{name.upper()}": value for name, value in given.items()}
    return Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": "/state", **environ})


def test_what_a_job_says_becomes_a_url_where_it_is_sent() -> None:
    """The sender resolves a target to a URL.

    A name is looked up. A mail address replaces the recipient of the site's mail account.
    """
    known = settings(
        notify="team=slack://a/b/c mail=mailtos://q:p%40ss@smtp.org:465/old@x.org?from=q@s.org&to=old@y.org"
    )

    assert "slack://a/b/c" == url_of(Notification("team"), known)
    assert "json://host/x" == url_of(Notification("json://host/x"), known)
    assert "mailtos://q:p%40ss@smtp.org:465/?from=q%40s.org&to=ann%40e.org" == url_of(Notification("ann@e.org"), known)


def test_what_is_not_known_or_not_allowed_says_what_is() -> None:
    """The error for an unknown or forbidden target lists what is available, in the words that `show` repeats."""
    with pytest.raises(BadRequest, match=r"no target is called 'lab' here .*: there are team"):
        url_of(Notification("lab"), settings(notify="team=json://h"))
    with pytest.raises(
        BadRequest, match=r"no mail can be sent to a@b\.org: the site has no target 'mail' .*; there are none"
    ):
        url_of(Notification("a@b.org"), settings())
    with pytest.raises(BadRequest, match="'mail' is no mailto:// or mailtos:// URL"):
        url_of(Notification("a@b.org"), settings(notify="mail=json://h"))
    with pytest.raises(Refused, match="takes no URLs of jobs"):
        url_of(Notification("json://h"), settings(notify_urls="false"))


def test_runs_that_lacked_memory_are_in_the_message() -> None:
    """Each decision about a lack of device memory has a line. Other notes have none."""
    texts = ("started warm", "out of memory: queued again with 12G (memory retry 1 of 2)")
    notes = tuple(Note(at=NOW, attempt=1, text=text) for text in texts)
    record = replace(a_record(JobState.SUCCEEDED, Ending.from_status(0)), notes=notes)

    body = message_of(record, host="elsewhere").body.splitlines()

    assert [f"memory   {texts[1]}"] == [line for line in body if "out of memory" in line]
    assert not any("warm" in line for line in body)


def test_the_message_about_an_idle_run_says_where_and_why() -> None:
    """The message names the job, the device and the newest reason, and how to end the job."""
    record = a_record(JobState.RUNNING, Ending.from_status(0))
    texts = ("no use of its device for 1:00:00", "no use of its device for 1:55:00: it is ended in 5:00", "other")
    notes = tuple(Note(at=NOW, attempt=1, text=text) for text in texts)

    message = mark_message_of(replace(record, notes=notes), "idle")

    assert "job 17 (train) is idle on node1:0" == message.title
    assert f"why      {texts[1]}" in message.body.splitlines()
    assert ["gpuqueue show 17", "gpuqueue cancel 17"] == message.body.splitlines()[-2:]
    assert not message.good


def test_the_message_about_a_mark_says_what_is_wrong() -> None:
    """Of several marks it is the one that the message is about. A kind of a newer version has a message too."""
    record = a_record(JobState.RUNNING, Ending.from_status(0))
    assert record.last_run is not None
    marks = (RunMark(kind="nan", since=NOW, what="loss is NaN at step 3"), RunMark(kind="stalled", since=NOW))
    record = replace(record, runs=(replace(record.last_run, marks=marks),))

    message = mark_message_of(record, "nan")

    assert "job 17 (train) has a metric that is no number on node1:0" == message.title
    assert "why      loss is NaN at step 3" in message.body.splitlines()
    assert "job 17 (train) is marked: on fire on node1:0" == mark_message_of(record, "on_fire").title


def test_the_message_has_the_notes_of_the_run() -> None:
    """A success that is none is named where its owner reads of it. The text is sanitized."""
    note = RunNote(kind="hidden_failure", items=("ValueError: \x1b",))
    record = a_record(JobState.SUCCEEDED, Ending.from_status(0), notes=(note,))

    body = message_of(record, host="elsewhere").body.splitlines()

    assert ["note     exit 0, but a program in it failed: ValueError: \N{REPLACEMENT CHARACTER}"] == [
        line.partition(";")[0] for line in body if line.startswith("note")
    ]


def test_the_message_about_a_held_array_says_why_and_what_to_type() -> None:
    """The rest of an array was held by the queue: the owner looks, repairs and releases it."""
    spec = make_spec(name="train", array=Array.parse("0-9"))
    tally = Tally(left=Indexes(), held=Indexes.parse("3-9"), ended={"failed": 3})
    because = "3 of its members failed and none succeeded"
    job = Job(id=17, spec=spec, state=JobState.HELD, submitted_at=NOW, tally=tally, because=because)

    message = held_message_of(Record(job=job))

    assert f"array 17 (train) is held: {because}" == message.title
    assert "held     7 of 10 members" in message.body.splitlines()
    assert ["gpuqueue show 17", "gpuqueue release 17", "gpuqueue cancel 17"] == message.body.splitlines()[-3:]
    assert not message.good
