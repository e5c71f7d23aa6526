"""Tests of the requests that a relay serves: logs as they are written, and files."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from host_service import HostService

from gpuqueue.settings.settings import Settings
from workers.relay import logs as log_module
from workers.relay import requests, trouble
from workers.relay.logs import PART_BYTES, Followed, LogProgress
from workers.relay.packing import Packing
from workers.relay.requests import Requests
from workers.run.deliveries import Delivery

PACK = [sys.executable, str(Path(__file__).parents[3] / "support" / "pack_program.py")]
PLACE = "1/1.a"


@pytest.fixture
def directory(settings: Settings) -> Path:
    """Return the directory of a run that goes on, with a copy of the code."""
    path = Delivery(job_id=1, token="1.a").run_directory(settings)
    (path / "code" / "tree").mkdir(parents=True)
    (path / "claim").write_text("{}")
    (path / "log").write_bytes(b"one\n")
    for name in ("a.txt", "b.pt"):
        (path / "code" / "tree" / name).write_text(name)
    return path


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """Serve requests in the background."""
    monkeypatch.setattr(log_module, "IDLE_S", 0.1)
    stopping, progress = threading.Event(), LogProgress(settings)
    followed = Followed(settings, progress)
    made = Requests(settings, progress, Packing(PACK), followed)
    threads = [threading.Thread(target=each, args=(stopping,), daemon=True) for each in (made.loop, followed.loop)]
    for thread in threads:
        thread.start()
    yield made
    stopping.set()
    for thread in [*threads, *(each for each in threading.enumerate() if each.name.startswith("gpuqueue-request"))]:
        thread.join(timeout=30)


def files_of(archive: bytes) -> list[str]:
    """Return the names in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return opened.getnames()


@pytest.mark.usefixtures("served")
def test_a_log_is_sent_at_once_and_then_as_it_is_written(service: HostService, directory: Path) -> None:
    """What is there when somebody asks is sent before the answer. What comes later follows without a request."""
    service.ask("r1", "log", PLACE)
    until(lambda: "r1" in service.done, what="the answer")
    assert ("", b"one\n") == (service.done["r1"], service.delivered(PLACE, "log"))

    for number in range(3):
        with (directory / "log").open("ab") as log:
            log.write(b"more %d\n" % number)
        until(lambda: (service.delivered(PLACE, "log") or b"").endswith(b"%d\n" % number), what="the new line")  # noqa: B023
    assert (directory / "log").read_bytes() == service.delivered(PLACE, "log")
    assert 1 == sum("requests/" in call for call in service.calls)


@pytest.mark.usefixtures("served")
def test_the_rest_of_a_large_log_is_sent_after_the_answer(
    service: HostService, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large log on a slow network does not hold up other requests. The reader learns that there is more."""
    monkeypatch.setattr(requests, "LOG_S", 0.0)
    (directory / "log").write_bytes(os.urandom(5 * PART_BYTES))
    held = threading.Event()

    def hold(path: str, _: int) -> None:
        if f"offset={PART_BYTES}&" in path:
            held.wait(30)

    service.on_part = hold

    service.ask("r1", "log", PLACE)
    until(lambda: "r1" in service.done, what="the answer")
    assert "host gpu2 has not sent all of it yet" == service.done["r1"]
    held.set()
    until(lambda: service.delivered(PLACE, "log") == (directory / "log").read_bytes(), what="the rest")
    service.ask("r2", "log", PLACE)
    until(lambda: "r2" in service.done, what="the second answer")
    assert "" == service.done["r2"]


@pytest.mark.usefixtures("served")
def test_a_log_that_nobody_reads_any_more_is_not_followed(
    service: HostService, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is delivered when its run has ended."""
    monkeypatch.setattr(log_module, "FOLLOW_S", 0.0)
    service.ask("r1", "log", PLACE)
    until(lambda: "r1" in service.done, what="the answer")
    with (directory / "log").open("ab") as log:
        log.write(b"more\n")
    service.ask("r2", "files", PLACE)
    until(lambda: "r2" in service.done, what="another answer")

    assert b"one\n" == service.delivered(PLACE, "log")


@pytest.mark.usefixtures("served", "directory")
@pytest.mark.parametrize(("patterns", "names"), [((), ["a.txt", "b.pt"]), (("*.pt",), ["b.pt"])])
def test_files_are_packed_and_sent(service: HostService, patterns: tuple[str, ...], names: list[str]) -> None:
    """The archive arrives whole, and then its end is reported."""
    service.ask("r1", "files", PLACE, *patterns)
    until(lambda: "r1" in service.done, what="the answer")

    assert "" == service.done["r1"]
    assert names == files_of(service.contents["r1"])


@pytest.mark.usefixtures("served", "directory")
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (("log", "1/2.b"), "the run directory is no longer on gpu2"),
        (("files", "9/1.a"), "the run directory is no longer on gpu2"),
        (("files", "2/1.a"), "there is no copy of the code of this run any more"),
        (("shell", PLACE), "gpu2 has a version of gpuqueue without requests of the kind shell"),
    ],
)
def test_what_cannot_be_done_is_answered_with_the_reason(
    service: HostService, settings: Settings, request_: tuple[str, ...], reason: str
) -> None:
    """The service gets the reason at once, for the client that waits."""
    (settings.runs_dir / "2" / "1.a").mkdir(parents=True)

    service.ask("r1", *request_)
    until(lambda: "r1" in service.done, what="the answer")

    assert reason == service.done["r1"]
    assert {} == service.contents


@pytest.mark.usefixtures("served", "directory")
def test_an_archive_that_fails_on_its_way_is_cut_off(service: HostService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client must not take a part for the whole. The reason comes before the end of the connection."""
    monkeypatch.setattr(requests, "FIRST_S", 0.0)

    service.ask("r1", "files", PLACE, "exit=1")
    until(lambda: "r1" in service.cut, what="the end")

    assert "the disk has failed" == service.done["r1"]


@pytest.mark.usefixtures("served", "directory")
def test_what_the_service_may_not_name_is_ignored(
    service: HostService, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that was taken over names no other files of this host, and the other requests are served."""
    good = {"id": "good", "kind": "files", "job": 1, "token": "1.a"}
    bad = [
        {**good, "id": "bad", "token": "../../etc"},
        {**good, "id": "../bad"},
        {**good, "id": "bad", "job": "1/.."},
        {**good, "id": "bad", "patterns": ["x" * 2000]},
        {**good, "id": "bad", "patterns": ["x"] * 33},
        "bad",
    ]
    service.polls.put([*bad, good])  # type: ignore[list-item]
    until(lambda: "good" in service.done, what="the answer")

    assert {"good": ""} == service.done
    assert len(bad) == sum(each.startswith("the service asks for something unknown: ") for each in caplog.messages)
    assert settings.service_url == service.url


def test_so_many_requests_are_served_at_a_time(service: HostService, served: Requests, directory: Path) -> None:
    """Archives may take hours. They leave room for logs, and all together are bounded."""
    for number in range(requests.MOST_FILES):
        service.ask(f"f{number}", "files", PLACE, "*.pt", f"while={directory}")
    until(lambda: requests.MOST_FILES == len(served._served), what="the archives")

    service.ask("more", "files", PLACE, "*.pt")
    until(lambda: "more" in service.done, what="the refusal")
    service.ask("log", "log", PLACE)
    until(lambda: "log" in service.done, what="the log")

    assert f"gpu2 already sends the files of {requests.MOST_FILES} runs: ask again later" == service.done["more"]
    assert b"one\n" == service.delivered(PLACE, "log")
    until(lambda: requests.MOST_FILES == len(served._served), what="the end of the request for the log")


@pytest.mark.usefixtures("served", "directory")
def test_a_service_that_is_away_is_asked_again(
    service: HostService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trouble is logged once, and requests are served afterwards."""
    monkeypatch.setattr(trouble, "FIRST_S", 0.01)
    polls: list[str] = []

    def refuse(call: str) -> int | None:
        polls.extend([call] if "requests?" in call else [])
        return 503 if len(polls) < 5 else None

    service.refuse = refuse
    until(lambda: len(polls) >= 5, what="more polls")
    service.refuse = lambda _: None
    service.ask("r1", "log", PLACE)
    until(lambda: "r1" in service.done, what="the answer")

    assert "requests of the service are served again" == caplog.messages[-1]
    assert 2 == len(caplog.messages)
