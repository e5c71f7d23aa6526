"""Tests of what a relay does with the runs that have ended."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bounded import until
from host_service import HostService

from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system import disk_room
from workers.relay import deliveries as module
from workers.relay import trouble
from workers.relay.logs import LogProgress
from workers.relay.packing import Packing
from workers.relay.relay import Relay
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.run.directory import Held, RunDir

PACK = [sys.executable, str(Path(__file__).parents[3] / "support" / "pack_program.py")]


def ended(settings: Settings, job_id: int, *keep: str, log: bytes | None = b"the log\n") -> Path:
    """Return the directory of a settled run with an entry."""
    run = Delivery(job_id=job_id, token="1.ab", keep=keep)
    deliveries.add(settings, run)
    held = Held(job_id=job_id, token=run.token, devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    directory = RunDir.create(settings.runs_dir, held)
    directory.note_user("ann")
    if log is not None:
        directory.log.write_bytes(log)
    (directory.path / "code" / "tree").mkdir(parents=True)
    (directory.path / "code" / "tree" / "model.pt").write_bytes(os.urandom(100_000))
    directory.settle()
    return directory.path


@contextmanager
def relay(settings: Settings, *command: str) -> Iterator[threading.Thread]:
    """Run a relay in a thread. *command* is the program that packs."""
    stopping = threading.Event()
    before = set(threading.enumerate())
    serving = threading.Thread(target=Relay(settings, Packing(command or PACK)).serve, args=(stopping,), daemon=True)
    serving.start()
    try:
        yield serving
    finally:
        stopping.set()
        serving.join(timeout=30)
        for each in set(threading.enumerate()) - before:
            if each.name.startswith("gpuqueue-"):
                each.join(timeout=30)


def is_done(settings: Settings) -> Callable[[], bool]:
    """Return a condition: nothing is left to deliver."""
    return lambda: not deliveries.names(settings)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)


def test_logs_and_kept_files_are_delivered(service: HostService, settings: Settings) -> None:
    """The service has them whole, and the archive is gone from the host. The log stays there."""
    first = ended(settings, 1)
    second = ended(settings, 2, "*.pt", log=None)

    with relay(settings):
        until(is_done(settings), what="the deliveries")

    assert b"the log\n" == service.delivered("1/1.ab", "log")
    assert service.is_complete("1/1.ab")
    assert service.is_complete("2/1.ab")
    assert (None, None) == (service.delivered("1/1.ab", "results"), service.delivered("2/1.ab", "log"))
    with tarfile.open(fileobj=io.BytesIO(service.delivered("2/1.ab", "results") or b"")) as archive:
        assert ["model.pt"] == archive.getnames()
    assert {"log", "user", "code"} == {each.name for each in first.iterdir()}
    assert {"user", "code"} == {each.name for each in second.iterdir()}


def test_a_run_that_goes_on_is_not_delivered(service: HostService, settings: Settings) -> None:
    """Its log would be incomplete, and its files would change."""
    going_on = ended(settings, 1)
    (going_on / "claim").write_text("{}")
    ended(settings, 2)

    with relay(settings):
        until(lambda: ["1.1.ab"] == deliveries.names(settings), what="the other run")

    assert service.is_complete("2/1.ab")
    assert service.delivered("1/1.ab", "log") is None


def test_a_service_that_is_away_loses_nothing(
    service: HostService, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay tries again, and says each trouble once, and once that it is over."""
    monkeypatch.setattr(trouble, "FIRST_S", 0.05)
    ended(settings, 1)
    refused: list[str] = []

    def refuse(call: str) -> int | None:
        refused.extend([call] if "/runs/" in call else [])
        return (500 if len(refused) == 2 else 503) if "/runs/" in call and len(refused) < 5 else None

    service.refuse = refuse
    with relay(settings):
        until(is_done(settings), what="the delivery")

    assert service.is_complete("1/1.ab")
    away = f"no logs are sent for now: the service at {service.url} does not serve this host: refused with"
    assert [f"{away} 503", f"{away} 500", "logs are sent again"] == caplog.messages


def test_the_trouble_of_one_run_does_not_hold_up_the_others(
    service: HostService, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that the service does not know is tried again for a while, and then dropped with one line."""
    for job_id in (1, 2, 3):
        ended(settings, job_id)
    service.runs = {"2/1.ab", "3/1.ab"}

    with relay(settings):
        until(lambda: ["1.1.ab"] == deliveries.names(settings), what="the other runs")
        assert service.is_complete("2/1.ab")
        assert service.is_complete("3/1.ab")
        monkeypatch.setattr(module, "REFUSED_S", 0.0)
        until(is_done(settings), what="the end of the tries")

    refusals = [each for each in caplog.messages if "1.1.ab" in each]
    assert [
        "run 1.1.ab waits: the service refuses it: this host has no such run",
        "nothing more of run 1.1.ab is delivered: the service has refused it for too long: this host has no such run",
    ] == refusals


@pytest.mark.parametrize("status", [408, 500, 503])
@pytest.mark.parametrize("what", ["log?", "results"])
def test_a_delivery_that_cannot_be_stored_does_not_hold_up_the_others(
    service: HostService, settings: Settings, monkeypatch: pytest.MonkeyPatch, status: int, what: str
) -> None:
    """The disk of the service may have no room for one archive, and have room for others. That one is sent later."""
    monkeypatch.setattr(trouble, "FIRST_S", 0.05)
    for job_id in (1, 2):
        ended(settings, job_id, "*.pt")
    service.fail = lambda call: status if f"/runs/1/1.ab/{what}" in call else None

    with relay(settings):
        until(lambda: service.delivered("2/1.ab", "results"), what="the other run")
        until(lambda: ["1.1.ab"] == deliveries.names(settings), what="its end")
        service.fail = lambda _: None
        until(is_done(settings), what="the first run")

    assert service.is_complete("1/1.ab")
    assert service.delivered("1/1.ab", "results")


def test_a_run_with_trouble_waits_behind_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a run whose packing takes its whole time each time would be the first one again and again."""
    monkeypatch.setattr(trouble, "FIRST_S", 0.0)
    for job_id in (1, 2, 3):
        ended(settings, job_id)
    pending = trouble.Pending()
    pending.report("1.1.ab", "its files cannot be packed: packing took more than 1h")
    progress = LogProgress(settings)

    due = module.Deliveries(settings, progress, module.Results(settings, Packing(PACK)))._due(
        lambda _: True, pending, threading.Event()
    )

    assert [2, 3, 1] == [each.job_id for each in due]


def test_what_is_gone_is_dropped_with_one_line(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """A run directory that somebody deleted, and a log that was pruned, end their deliveries. No service is needed."""
    deliveries.add(settings, Delivery(job_id=1, token="1.ab", keep=("*.pt",)))
    pruned = ended(settings, 2)
    (pruned / "log").unlink()
    (pruned / "user").unlink()

    with relay(replace(settings, service_url="http://127.0.0.1:9")):
        until(is_done(settings), what="the end of the deliveries")

    pruned_words = "it has no log here: it never began, or its log was deleted after the time of keep_logs"
    assert [
        "nothing more of run 1.1.ab is delivered: its run directory is gone",
        f"nothing more of run 2.1.ab is delivered: {pruned_words}",
    ] == sorted(each for each in caplog.messages if each.startswith("nothing more"))


def test_kept_files_are_delivered_without_the_log(
    service: HostService, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The log was sent before this relay began, and has been deleted since. The kept files still have to be sent."""
    pruned = ended(settings, 1, "*.pt")
    (pruned / "log").unlink()
    (pruned / "user").unlink()

    with relay(settings):
        until(is_done(settings), what="the delivery")

    assert service.delivered("1/1.ab", "results") is not None
    assert 1 == sum(each.startswith("the logs of run 1.1.ab are not delivered: ") for each in caplog.messages)


def test_without_a_service_kept_files_stay_here(
    service: HostService, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The host of the service, or one whose service was removed, keeps the archives. The relay ends then."""
    kept, other = ended(settings, 1, "*.pt"), ended(settings, 2)

    with relay(replace(settings, service_url=None)) as serving:
        until(is_done(settings), what="the packing")
        serving.join(timeout=30)
        assert not serving.is_alive()

    assert {"log", "user", "code", "results.tar"} == {each.name for each in kept.iterdir()}
    assert {"log", "user", "code"} == {each.name for each in other.iterdir()}
    assert [] == service.calls
    assert [
        "nothing more of run 2.1.ab is delivered: this host has no service any more (setting service_url)"
    ] == caplog.messages


@pytest.mark.full
def test_files_that_cannot_be_packed_are_given_up_after_a_while(
    service: HostService, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trouble may pass, as that of a launcher which restarts. If it does not, the service gets the reason."""
    monkeypatch.setattr(module, "PACKING_S", 0.0)
    ended(settings, 1, "exit=1")

    with relay(settings):
        until(is_done(settings), what="the end of the tries")

    assert b"the disk has failed" == service.delivered("1/1.ab", "results-failed")


def test_a_full_disk_is_waited_for(
    service: HostService, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no kept files, however long it takes: another user may have filled the disk for a moment."""
    monkeypatch.setattr(module, "PACKING_S", 0.0)
    monkeypatch.setattr(trouble, "FIRST_S", 0.05)
    monkeypatch.setattr(disk_room, "LEAST_FREE", 2.0)
    ended(settings, 1, "*.pt")

    with relay(settings):
        until(lambda: any("nearly full" in each for each in caplog.messages), what="the full disk")
        monkeypatch.setattr(disk_room, "LEAST_FREE", 0.0)
        until(is_done(settings), what="the delivery")

    assert service.delivered("1/1.ab", "results") is not None
    assert service.delivered("1/1.ab", "results-failed") is None


def test_two_relays_of_one_host_do_not_work_at_the_same_time(service: HostService, settings: Settings) -> None:
    """Two containers may share a state directory. The second relay takes over when the first one ends."""
    with relay(settings):
        until(lambda: service.calls, what="the first relay")
        with relay(replace(settings, host="second")) as second:
            ended(settings, 1)
            until(is_done(settings), what="the delivery")
            polls = [each for each in service.calls if "requests" in each]
            assert second.is_alive()
    assert polls
