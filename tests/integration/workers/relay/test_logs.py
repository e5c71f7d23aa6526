"""Tests of logs that are sent to the service, whole and while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from host_service import HostService

from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers.relay.link import Link, Refusal
from workers.relay.logs import PROBE_BYTES, RunLogs
from workers.run.deliveries import Delivery
from workers.shim.log import LogLimit

RUN = Delivery(job_id=1, token="1.a")
PLACE = "1/1.a"


@pytest.fixture
def link(settings: Settings) -> Iterator[Link]:
    """Return a link to the service."""
    with closing(Link(settings)) as made:
        yield made


@pytest.fixture
def directory(settings: Settings) -> Path:
    """Return the directory of the run."""
    path = RUN.run_directory(settings)
    path.mkdir(parents=True)
    return path


def make_hole(log: Path, limit_bytes: int) -> None:
    """Cut the middle of a log, as its shim does."""
    size = log.stat().st_size
    LogLimit(str(log), limit_bytes).check()
    if log.stat().st_size < size:
        pytest.skip("this file system has no holes")


def test_what_is_new_is_sent_once(service: HostService, settings: Settings, link: Link, directory: Path) -> None:
    """All files of a log are sent as they grow, each byte once, and large ones in several requests."""
    logs = RunLogs(settings, RUN)
    assert 0 == logs.send(link)
    (directory / "log").write_bytes(b"one\n")
    (directory / "log.times").write_bytes(b"1.0 4\n")
    assert 10 == logs.send(link)
    large = os.urandom(9 * MIB)
    with (directory / "log").open("ab") as file:
        file.write(large)
    (directory / "stderr").write_bytes(b"oh\n")
    assert 9 * MIB + 3 == logs.send(link)
    assert 0 == logs.send(link)

    assert b"one\n" + large == service.delivered(PLACE, "log")
    assert (b"1.0 4\n", b"oh\n") == (service.delivered(PLACE, "log.times"), service.delivered(PLACE, "stderr"))
    assert service.delivered(PLACE, "stderr.times") is None
    assert 8 == len(service.calls)


def test_one_log_does_not_hold_up_the_others(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """A part of a large log is sent at a time, if that is asked for."""
    (directory / "log").write_bytes(bytes(20 * MIB))

    assert 2 * MIB == RunLogs(settings, RUN).send(link, MIB)
    assert 2 * MIB == len(service.delivered(PLACE, "log") or b"")


def test_the_hole_of_a_log_is_not_sent(service: HostService, settings: Settings, link: Link, directory: Path) -> None:
    """A log that exceeded its limit has a hole. The service makes the same hole, and has the same bytes around it."""
    (directory / "log").write_bytes(os.urandom(24 * MIB))
    make_hole(directory / "log", 4 * MIB)

    assert 4 * MIB > RunLogs(settings, RUN).send(link)

    assert (directory / "log").read_bytes() == service.delivered(PLACE, "log")
    assert 24 * MIB > (service.directory / PLACE / "log").stat().st_blocks * 512


def test_a_hole_that_comes_later_changes_nothing(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """The service keeps what it got before the hole was made. Only what is new is sent."""
    first, logs = os.urandom(8 * MIB), RunLogs(settings, RUN)
    (directory / "log").write_bytes(first)
    logs.send(link)
    make_hole(directory / "log", MIB)
    with (directory / "log").open("ab") as file:
        file.write(b"end\n")

    assert 4 == logs.send(link)
    assert first + b"end\n" == service.delivered(PLACE, "log")


@pytest.mark.parametrize("size", [100, PROBE_BYTES + 10], ids=["small", "large"])
def test_the_next_relay_goes_on_where_the_last_one_was(
    service: HostService, settings: Settings, link: Link, directory: Path, size: int
) -> None:
    """The service says how much it has. Nothing of a large log is sent twice."""
    content = os.urandom(size)
    (directory / "log").write_bytes(content)
    RunLogs(settings, RUN).send(link)
    with (directory / "log").open("ab") as file:
        file.write(b"more")

    assert 4 == RunLogs(settings, RUN).send(link)
    assert content + b"more" == service.delivered(PLACE, "log")


@pytest.mark.parametrize("same_relay", [True, False], ids=["same relay", "next relay"])
@pytest.mark.parametrize("size", [100, 3 * PROBE_BYTES], ids=["small", "large"])
def test_a_log_that_was_cut_back_is_sent_again(
    service: HostService, settings: Settings, link: Link, directory: Path, size: int, *, same_relay: bool
) -> None:
    """Without holes the shim cuts the middle out of the file itself. What was sent is then not its beginning."""
    logs = RunLogs(settings, RUN)
    (directory / "log").write_bytes(os.urandom(size))
    logs.send(link)
    shorter = os.urandom(size // 2)
    (directory / "log").write_bytes(shorter)

    (logs if same_relay else RunLogs(settings, RUN)).send(link)

    assert shorter == service.delivered(PLACE, "log")


def test_a_log_that_was_cut_back_and_grew_is_sent_again(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """Its length does not show that it was cut. The last bytes that were sent do."""
    logs = RunLogs(settings, RUN)
    (directory / "log").write_bytes(os.urandom(1000))
    logs.send(link)
    other = os.urandom(5000)
    (directory / "log").write_bytes(other)

    logs.send(link)

    assert other == service.delivered(PLACE, "log")


def test_a_log_above_the_limit_of_the_service_stops_there(
    service: HostService, settings: Settings, link: Link, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is not sent again and again, and the other files are."""
    service.log_limit_bytes = 5 * MIB
    for name, size in (("log", 9 * MIB), ("stderr", 3)):
        (directory / name).write_bytes(os.urandom(size))
    logs = RunLogs(settings, RUN)

    assert 4 * MIB + 3 == logs.send(link)
    assert 0 == logs.send(link)
    assert ["the service takes no more of it: the log is above the limit of the service"] == [
        each.partition(": ")[2] for each in caplog.messages
    ]


def test_a_log_that_was_cut_here_finds_room_at_the_service(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """What was sent while somebody read the log, and then cut from it here, makes room for what came later."""
    service.log_limit_bytes = 9 * MIB
    logs = RunLogs(settings, RUN)
    (directory / "log").write_bytes(os.urandom(8 * MIB))
    logs.send(link)
    with (directory / "log").open("ab") as file:
        file.write(os.urandom(8 * MIB))
    make_hole(directory / "log", 4 * MIB)

    logs.send(link)

    assert (directory / "log").read_bytes() == service.delivered(PLACE, "log")


@pytest.mark.parametrize("is_final", [True, False], ids=["final", "followed"])
def test_a_log_that_is_cut_after_a_refusal_reaches_its_end(
    service: HostService, settings: Settings, link: Link, directory: Path, *, is_final: bool
) -> None:
    """A followed log meets the limit of the service before its shim cuts it. The end comes later all the same."""
    service.log_limit_bytes = 9 * MIB
    logs = RunLogs(settings, RUN)
    (directory / "log").write_bytes(os.urandom(8 * MIB))
    logs.send(link)
    with (directory / "log").open("ab") as file:
        file.write(os.urandom(MIB + 1))
    assert 0 == logs.send(link)
    make_hole(directory / "log", 9 * MIB)
    with (directory / "log").open("ab") as file:
        file.write(b"the end\n" + bytes(MIB if is_final else 0))

    logs.send(link, is_final=is_final)

    assert (directory / "log").read_bytes() == service.delivered(PLACE, "log")


def test_room_at_the_service_is_asked_for_again(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """A followed log is not sent again and again, but later, and then from where it stopped."""
    service.log_limit_bytes = MIB
    logs = RunLogs(settings, RUN)
    (directory / "log").write_bytes(bytes(2 * MIB))
    logs.send(link)
    calls = len(service.calls)
    service.log_limit_bytes = 9 * MIB

    assert (0, calls) == (logs.send(link), len(service.calls))
    logs._files[0]._full_until_s = 0.0
    assert 2 * MIB == logs.send(link)


def test_a_run_that_the_service_does_not_know_is_refused(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """The caller decides what that means."""
    service.runs = set()
    (directory / "log").write_bytes(b"x")

    with pytest.raises(Refusal, match="this host has no such run"):
        RunLogs(settings, RUN).send(link)


def test_nothing_but_a_log_is_sent(
    service: HostService, settings: Settings, link: Link, directory: Path, tmp_path: Path
) -> None:
    """A job may put a link to a secret of the worker's account, or a pipe, in the place of its log."""
    (tmp_path / "secret").write_text("the token")
    (directory / "log").symlink_to(tmp_path / "secret")
    os.mkfifo(directory / "stderr")

    assert 0 == RunLogs(settings, RUN).send(link)
    assert [] == service.calls
