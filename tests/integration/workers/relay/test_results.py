"""Tests of the files that a job keeps: packed on the host, and sent to the service."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from host_service import HostService

from gpuqueue.settings.settings import Settings
from workers.relay import deliveries as module
from workers.relay.deliveries import FAILED, Results
from workers.relay.link import Link
from workers.relay.packing import RESULTS, DiskFull, PackFailed, Packing, Stopped
from workers.run.deliveries import Delivery

NEVER = threading.Event()
PACK = [sys.executable, str(Path(__file__).parents[3] / "support" / "pack_program.py")]


def run(*keep: str) -> Delivery:
    """Return a run that keeps files."""
    return Delivery(job_id=1, token="1.a", keep=keep)


@pytest.fixture
def directory(settings: Settings) -> Path:
    """Return the directory of the run, with a copy of the code."""
    path = run().run_directory(settings)
    (path / "code" / "tree" / "out").mkdir(parents=True)
    (path / "code" / "tree" / "train.py").write_text("x")
    (path / "code" / "tree" / "out" / "model.pt").write_bytes(bytes(200_000))
    return path


@pytest.fixture
def link(settings: Settings) -> Iterator[Link]:
    """Return a link to the service."""
    with closing(Link(settings)) as made:
        yield made


def names(directory: Path) -> set[str]:
    """Return what the run directory has beside the code."""
    return {each.name for each in directory.iterdir()} - {"code"}


def files_of(archive: bytes | None) -> list[str]:
    """Return the names in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive or b"")) as opened:
        return opened.getnames()


def test_kept_files_are_packed_once_and_sent(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """The archive is whole before it has its name, only the account of the workers reads it, and it goes when sent."""
    results = Results(settings, Packing(PACK))
    (directory / f".{RESULTS}").write_bytes(b"of a relay that was killed")

    results.pack(run("*.pt"), NEVER)
    assert {RESULTS} == names(directory)
    assert 0o600 == (directory / RESULTS).stat().st_mode & 0o777
    before = (directory / RESULTS).stat()
    results.pack(run("*.pt"), NEVER)
    assert before.st_ino == (directory / RESULTS).stat().st_ino

    results.deliver(link, run())
    assert ["out/model.pt"] == files_of(service.delivered("1/1.a", "results"))
    assert set() == names(directory)


@pytest.mark.parametrize(
    ("limit_bytes", "keep", "reason"),
    [
        (100_000, "*.pt", "they have more than 97.7K (results_limit of host gpu2)"),
        (10**9, "exit=3", "the disk has failed"),
    ],
)
def test_what_cannot_be_kept_is_said(
    service: HostService, settings: Settings, link: Link, directory: Path, limit_bytes: int, keep: str, reason: str
) -> None:
    """Files above the limit are not packed, nor is a run without a copy of the code. The service gets the reason."""
    results = Results(replace(settings, results_limit_bytes=limit_bytes), Packing(PACK))

    results.pack(run(keep), NEVER)
    assert {FAILED} == names(directory)
    results.deliver(link, run())

    assert reason.encode() == service.delivered("1/1.a", "results-failed")
    assert service.delivered("1/1.a", "results") is None
    assert set() == names(directory)


def test_a_disk_that_is_nearly_full_gets_no_archive(
    settings: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs need the rest for their logs. The files wait until the disk has room again."""
    disk = namedtuple("disk", "f_bavail f_blocks f_frsize")  # noqa: PYI024 - the fields that count
    free = 51
    monkeypatch.setattr(os, "statvfs", lambda _: disk(free, 1000, 4096))
    results = Results(settings, Packing(PACK))

    with pytest.raises(DiskFull, match=r"^the disk of gpu2 was nearly full$") as failed:
        results.pack(run("*.pt"), NEVER)
    assert not failed.value.is_final
    assert set() == names(directory)
    free = 500
    results.pack(run("*.pt"), NEVER)
    assert {RESULTS} == names(directory)


def test_an_archive_that_is_cut_short_is_none(settings: Settings, directory: Path) -> None:
    """Trouble of the program that packs may pass. Nothing of it is kept, and the caller tries again."""
    results = Results(settings, Packing(PACK))

    with pytest.raises(PackFailed, match=r"^the disk has failed$") as failed:
        results.pack(run("exit=1"), NEVER)
    assert not failed.value.is_final
    assert set() == names(directory)
    with pytest.raises(PackFailed, match=r"^the program that packs files ended with -9$"):
        results = Results(settings, Packing(["/bin/sh", "-c", "kill -9 $$"]))
        results.pack(run("*.pt"), NEVER)
    results.give_up(run(), "it failed\nagain")
    assert "it failed again" == (directory / FAILED).read_text()


def test_packing_may_take_only_so_long(settings: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account of the job can stop the program again and again. The files of other jobs wait meanwhile."""
    monkeypatch.setattr(module, "PACK_S", 0.2)

    with pytest.raises(PackFailed, match=r"^packing took more than ") as failed:
        Results(settings, Packing(PACK)).pack(run("*.pt", f"while={directory}"), NEVER)
    assert not failed.value.is_final
    assert set() == names(directory)


def test_a_relay_that_stops_ends_the_packing(settings: Settings, directory: Path) -> None:
    """The next one packs again."""
    stopping = threading.Event()
    stopping.set()

    with pytest.raises(Stopped):
        Results(settings, Packing(PACK)).pack(run(f"while={directory}"), stopping)
    assert set() == names(directory)


def test_an_archive_above_the_limit_of_the_service_is_not_sent_again(
    service: HostService, settings: Settings, link: Link, directory: Path
) -> None:
    """The reason takes its place."""
    service.results_limit_bytes = 1000
    results = Results(settings, Packing(PACK))
    results.pack(run("*.pt"), NEVER)

    results.deliver(link, run())

    assert b"the kept files are above the limit of the service" == service.delivered("1/1.a", "results-failed")
    assert set() == names(directory)


def test_only_a_file_of_this_run_is_sent(
    service: HostService, settings: Settings, link: Link, directory: Path, tmp_path: Path
) -> None:
    """A job that has the account of the workers may put a link in the place of the archive."""
    (tmp_path / "secret").write_text("the token")
    (directory / RESULTS).symlink_to(tmp_path / "secret")
    results = Results(settings, Packing(PACK))
    results.pack(run("*.pt"), NEVER)

    results.deliver(link, run())

    assert b"the kept files cannot be read: results.tar is a symbolic link" == service.delivered(
        "1/1.a", "results-failed"
    )
    assert (tmp_path / "secret").exists()
