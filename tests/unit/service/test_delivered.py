"""What hosts deliver: real files, with the limits of the site, and nothing outside of the directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest, Refused, Unreachable
from gpuqueue.model.relay import DeliveredFile
from gpuqueue.service import delivered
from gpuqueue.service.delivered import Delivered, OtherOffset
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.responses import TooLarge
from gpuqueue.settings.settings import Settings
from gpuqueue.system import disk_room
from gpuqueue.system.logs import last_bytes
from gpuqueue.text.units import MIB

RUN = HostRun(host="gpu2", job_id=5, token="1.abc")
LOG = DeliveredFile.LOG


def kept(tmp_path: Path, **settings: str) -> Delivered:
    """Return the deliveries below *tmp_path*."""
    environ = {f"GPUQUEUE_{name.upper()}": value for name, value in settings.items()}
    found = Settings.load({**environ, "GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    assert tmp_path / "delivered" == found.delivered_dir
    return Delivered(found)


def place(tmp_path: Path) -> Path:
    """Return the directory of the run."""
    return tmp_path / "delivered" / "5" / "1.abc"


def test_a_log_arrives_in_parts(tmp_path: Path) -> None:
    """Each part goes behind the last one, only the service can read it, and its user is noted."""
    site = kept(tmp_path)
    assert 4 == site.add(RUN, "ann", LOG, 0, b"one\n")
    assert 8 == site.add(RUN, "ann", LOG, 4, b"two\n")
    assert 3 == site.add(RUN, "ann", DeliveredFile.LOG_TIMES, 0, b"1 8")

    folder = place(tmp_path)
    assert ["log", "log.times", "user"] == sorted(each.name for each in folder.iterdir())
    assert b"one\ntwo\n" == (folder / "log").read_bytes()
    assert "ann" == os.readlink(folder / "user")  # noqa: PTH115 - the name is no path
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (folder.parent.parent, folder.parent, folder)}
    assert ({0o700}, 0o600) == (modes, stat.S_IMODE((folder / "log").stat().st_mode))


def test_a_part_that_was_delivered_is_not_written_again(tmp_path: Path) -> None:
    """The refusal says where to go on, and the log stays as it is."""
    site = kept(tmp_path)
    site.add(RUN, "ann", LOG, 0, b"one\n")
    with pytest.raises(OtherOffset) as refusal:
        site.add(RUN, "ann", LOG, 0, b"ONE\ntwo\n")

    assert 4 == refusal.value.next
    assert b"one\n" == (place(tmp_path) / "log").read_bytes()


def test_a_hole_of_the_log_is_a_hole_here(tmp_path: Path) -> None:
    """A part behind the end leaves a hole, which takes no disk, and which readers skip."""
    site = kept(tmp_path, log_limit="1M")
    site.add(RUN, "ann", LOG, 0, b"begin\n")
    site.add(RUN, "ann", LOG, 2**40, b"end\n")

    log = place(tmp_path) / "log"
    assert 2**40 + 4 == log.stat().st_size
    assert log.stat().st_blocks * 512 < MIB
    assert last_bytes(log, 2**41).replace(b"\0", b"") == b"begin\nend\n"


def test_a_log_that_needs_too_much_disk_is_refused_and_can_begin_anew(tmp_path: Path) -> None:
    """The limit is that of log_limit. A log from the start replaces what was delivered."""
    site = kept(tmp_path, log_limit="1M")
    site.add(RUN, "ann", LOG, 0, b"x" * MIB)
    with pytest.raises(TooLarge, match=r"more than 1M here .setting log_limit"):
        site.add(RUN, "ann", LOG, MIB, b"x")

    assert MIB == (place(tmp_path) / "log").stat().st_size
    assert 4 == site.add(RUN, "ann", LOG, 0, b"new\n", from_start=True)
    assert b"new\n" == (place(tmp_path) / "log").read_bytes()


def test_the_growth_of_a_log_has_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as much as readers read, whatever the limit of logs."""
    monkeypatch.setattr(delivered, "MOST_TIMES_BYTES", 10_000)
    site = kept(tmp_path, log_limit="none")
    site.add(RUN, "ann", LOG, 0, b"x" * MIB)
    with pytest.raises(TooLarge):
        site.add(RUN, "ann", DeliveredFile.LOG_TIMES, 0, b"x" * 10_001)


def test_a_whole_log_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is written into it, and to say again that it is whole is fine."""
    site = kept(tmp_path)
    site.add(RUN, "ann", LOG, 0, b"one\n")
    site.complete(RUN, "ann")
    site.complete(RUN, "ann")
    assert 4 == site.add(RUN, "ann", LOG, 4, b"")
    for offset, from_start in ((4, False), (0, True), (100, False)):
        with pytest.raises(OtherOffset) as refusal:
            site.add(RUN, "ann", LOG, offset, b"two\n", from_start=from_start)
        assert 4 == refusal.value.next

    assert b"one\n" == (place(tmp_path) / "log").read_bytes()
    assert (place(tmp_path) / "complete").exists()


def test_a_run_without_output_has_an_empty_log(tmp_path: Path) -> None:
    """So readers know that it has none."""
    site = kept(tmp_path)
    site.begin(RUN, "ann")
    site.begin(RUN, "ann")

    assert b"" == (place(tmp_path) / "log").read_bytes()


@pytest.mark.parametrize("token", ["..", "1.a/../../x", "", "1", "1.a\0", "1." + "a" * 65, "1.é", "."])
def test_a_token_is_no_path(tmp_path: Path, token: str) -> None:
    """Nothing but a token of a run names a directory."""
    with pytest.raises(BadRequest):
        kept(tmp_path).begin(HostRun(host="gpu2", job_id=5, token=token), "ann")

    assert [] == list(tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["5", "5/1.abc", "5/1.abc/log"])
def test_no_link_among_deliveries_is_followed(tmp_path: Path, name: str) -> None:
    """Neither in the place of a directory nor of a file."""
    state, outside = tmp_path / "state", tmp_path / "outside"
    target = outside if not name.endswith("log") else outside / "file"
    outside.mkdir()
    (outside / "file").write_text("keep\n")
    link = state / "delivered" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    with pytest.raises(Unreachable):
        kept(state).add(RUN, "ann", LOG, 0, b"one\n")

    assert ["file"] == [each.name for each in outside.rglob("*")]
    assert "keep\n" == (outside / "file").read_text()


@pytest.mark.parametrize("kind", ["pipe", "folder", "second name"])
def test_nothing_but_a_file_of_the_service_is_written(tmp_path: Path, kind: str) -> None:
    """A pipe would block, and a second name would be another file."""
    log = place(tmp_path) / "log"
    log.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    else:
        (tmp_path / "other").write_text("keep\n")
        log.hardlink_to(tmp_path / "other")
    with pytest.raises((Refused, Unreachable)):
        kept(tmp_path).add(RUN, "ann", LOG, 0, b"one\n")

    assert kind != "second name" or "keep\n" == (tmp_path / "other").read_text()


def test_results_are_there_once_they_are_whole(tmp_path: Path) -> None:
    """Until then there are none, and their arrival ends an earlier failure."""
    site = kept(tmp_path)
    site.fail_results(RUN, "ann", b"no room")
    with site.results(RUN, "ann") as results:
        results.write(b"one")
        results.write(b"two")
        assert not (place(tmp_path) / "results.tar").exists()
        results.commit()

    assert b"onetwo" == (place(tmp_path) / "results.tar").read_bytes()
    assert ["results.tar", "user"] == sorted(each.name for each in place(tmp_path).iterdir())


def test_results_that_are_cut_short_leave_nothing(tmp_path: Path) -> None:
    """The results of before stay."""
    site = kept(tmp_path)
    with site.results(RUN, "ann") as results:
        results.write(b"whole")
        results.commit()
    with pytest.raises(ConnectionError), site.results(RUN, "ann") as results:
        results.write(b"ha")
        raise ConnectionError

    assert b"whole" == (place(tmp_path) / "results.tar").read_bytes()
    assert ["results.tar", "user"] == sorted(each.name for each in place(tmp_path).iterdir())


def test_results_have_a_limit(tmp_path: Path) -> None:
    """It counts before anything is written, and together with what has arrived."""
    with kept(tmp_path, results_limit="1M").results(RUN, "ann") as results:
        with pytest.raises(TooLarge, match=r"more than 1M .setting results_limit"):
            results.check(MIB + 1)
        results.write(b"x" * MIB)
        with pytest.raises(TooLarge):
            results.write(b"x")

    assert ["user"] == [each.name for each in place(tmp_path).iterdir()]


def test_two_requests_never_write_the_same_results(tmp_path: Path) -> None:
    """The second one is refused while the first goes on."""
    site = kept(tmp_path)
    with site.results(RUN, "ann") as first:
        first.write(b"first")
        with pytest.raises(Refused, match="being received already"), site.results(RUN, "ann"):
            pass
        first.commit()
    with site.results(RUN, "ann") as second:
        second.write(b"second")
        second.commit()

    assert b"second" == (place(tmp_path) / "results.tar").read_bytes()


def test_what_a_service_that_was_killed_has_left_is_replaced(tmp_path: Path) -> None:
    """Its partial results are not those of the next one."""
    site = kept(tmp_path)
    site.begin(RUN, "ann")
    (place(tmp_path) / "results.partial").write_bytes(b"half of something long")
    with site.results(RUN, "ann") as results:
        results.write(b"whole")
        results.commit()

    assert b"whole" == (place(tmp_path) / "results.tar").read_bytes()


def test_some_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store and the history of the service need it."""
    monkeypatch.setattr(disk_room, "LEAST_FREE", 1.0)
    site = kept(tmp_path)
    with pytest.raises(Unreachable, match="its administrator must make room"):
        site.add(RUN, "ann", LOG, 0, b"x")
    with site.results(RUN, "ann") as results, pytest.raises(Unreachable):
        results.write(b"x")
