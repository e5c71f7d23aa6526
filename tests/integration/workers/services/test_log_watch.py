"""The limits of the logs of running jobs: real files, real shims, and small disks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from one_shim import Shim
from run_logs import on_disk, run_of, shared
from site_of_one import Site

from gpuqueue.settings.settings import Settings
from gpuqueue.system.disk_room import Room
from gpuqueue.text.units import GIB, MIB
from workers.doctor.runs import UnsettledRuns, cut_logs
from workers.run.directory import RunDir
from workers.services import log_watch
from workers.services.log_watch import LogWatch, level
from workers.shim.log import DISK, LIMIT, USER, LogLimit, lowered

NEVER = threading.Event()
#: Writes a line of 64 KiB every 10 ms until a file is there, and then a last line.
WRITER = """
import os, pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    os.write(1, b"x" * 65535 + b"\\n")
    time.sleep(0.01)
print("the last line")
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the directory of a host's runs."""
    return tmp_path / "state" / "runs"


def watch_of(runs: Path, user_limit: str = "none") -> LogWatch:
    """Return the watch of a host with this limit for each user."""
    environ = {"GPUQUEUE_STATE_DIR": str(runs.parent), "GPUQUEUE_CONFIG": os.devnull}
    return LogWatch(Settings.load({**environ, "GPUQUEUE_USER_LOG_LIMIT": user_limit}))


def with_room(patch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Let the disk of the runs have so much room of 100G."""
    patch.setattr(Room, "of", classmethod(lambda _cls, _place: Room(free_bytes, 100 * GIB)))


@pytest.mark.parametrize(
    ("sizes", "room", "found"),
    [([], 10, 0), ([3], 10, 3), ([3, 5], 10, 5), ([3, 9], 10, 7), ([9, 9, 9], 10, 3), ([1, 9, 9], 10, 4), ([9], -5, 0)],
)
def test_the_largest_are_lowered_to_one_level(sizes: list[int], room: int, found: int) -> None:
    """The small ones stay whole, and all together fit."""
    assert found == level(sizes, room)
    assert sum(min(size, found) for size in sizes) <= max(0, room)


def test_the_largest_log_is_cut_when_the_disk_is_nearly_full(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A single large log is enough here. Its user and its job are named, and the other logs stay as they are."""
    small, large, ended = (
        run_of(runs, 1, "ann", 4 * MIB, ended=False),
        *(run_of(runs, number, "bob", 16 * MIB, ended=number == 3) for number in (2, 3)),
    )
    monkeypatch.setattr(Room, "least_bytes", lambda _self, _most_bytes: 4 * MIB)
    watch = watch_of(runs)
    with_room(monkeypatch, 3 * MIB)
    for _ in range(3):
        watch.check(NEVER)

    assert [None, (MIB, DISK), None] == [each.log_limit() for each in (small, large, ended)]
    (only,) = caplog.messages
    assert only.endswith("has only 3M free: the log of job 2 of bob (16M) is cut to 1M for the rest of its run")


def test_more_logs_are_cut_if_one_is_not_enough(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are cut from the largest on, until twice the least room would be free."""
    directories = [run_of(runs, number, "ann", number * 4 * MIB, ended=False) for number in (1, 2, 3)]
    with_room(monkeypatch, GIB // 2)

    watch_of(runs).check(NEVER)
    assert [(MIB, DISK)] * 3 == [each.log_limit() for each in directories]


def test_a_shim_that_does_not_cut_is_not_waited_for(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log counts as free only for some seconds. Then the next largest is cut."""
    monkeypatch.setattr(Room, "least_bytes", lambda _self, _most_bytes: 4 * MIB)
    with_room(monkeypatch, 3 * MIB)
    small, large = (run_of(runs, number, "ann", number * 8 * MIB, ended=False) for number in (1, 2))
    watch = watch_of(runs)
    watch.check(NEVER)
    assert None is small.log_limit()

    monkeypatch.setattr(log_watch, "CUT_S", 0.0)
    watch.check(NEVER)
    assert (MIB, DISK) == small.log_limit() == large.log_limit()


def test_a_disk_without_large_logs_is_reported_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be cut. When there is room again, that is reported too."""
    run_of(runs, 1, "ann", MIB // 2, ended=False)
    watch = watch_of(runs)
    with_room(monkeypatch, GIB // 2)
    for _ in range(3):
        watch.check(NEVER)
    with_room(monkeypatch, 50 * GIB)
    watch.check(NEVER)

    low, back = caplog.messages
    assert low.endswith("has only 512M free: make room, because no log of a running job can be cut any further")
    assert back.endswith("has room again: 50G free")


def test_a_disk_with_room_is_left_alone(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 1G, or 5 % of a small disk, nothing is cut."""
    directory = run_of(runs, 1, "ann", 4 * MIB, ended=False)
    with_room(monkeypatch, GIB + 1)
    watch_of(runs).check(NEVER)

    assert None is directory.log_limit()
    assert GIB == Room(0, 100 * GIB).least_bytes(GIB)
    assert GIB // 20 == Room(0, GIB).least_bytes(GIB)


def test_logs_of_a_user_are_held_to_the_limit_while_they_are_written(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """First those of ended runs are cut, then the largest of the running ones. Those of others stay."""
    small, large = (run_of(runs, number, "ann", number * 4 * MIB, ended=False) for number in (1, 3))
    ended, others = run_of(runs, 4, "ann", 4 * MIB), run_of(runs, 5, "bob", 9 * MIB, ended=False)

    watch_of(runs, "10M").check(NEVER)

    assert on_disk(ended) <= MIB
    assert [None, None] == [small.log_limit(), others.log_limit()]
    limit_bytes, why = large.log_limit() or (0, "")
    assert USER == why
    assert 3 * MIB < limit_bytes < 6 * MIB
    assert any("that of job 3 is held to" in each for each in caplog.messages)


def test_the_log_of_a_run_counts_after_its_end(runs: Path) -> None:
    """Between two searches of all logs, those of runs that end are added."""
    first = run_of(runs, 1, "ann", 6 * MIB, ended=False)
    watch = watch_of(runs, "10M")
    watch.check(NEVER)
    first.settle()
    second = run_of(runs, 2, "ann", 6 * MIB, ended=False)
    watch._users_s = float("-inf")

    watch.check(NEVER)
    assert second.log_limit() is not None


def test_a_log_that_is_open_after_its_end_does_not_grow(runs: Path) -> None:
    """A process of the user that still has the log open writes no more than the log had at the end of the run."""
    directory = shared(run_of(runs, 1, "ann", 2 * MIB, ended=False))
    watch = watch_of(runs, "100M")
    watch.check(NEVER)
    with directory.log.open("ab") as held:
        directory.settle()
        watch._users_s = float("-inf")
        watch.check(NEVER)
        held.write(b"x" * 8 * MIB)
        held.flush()
        watch._users_s = float("-inf")
        watch.check(NEVER)
        assert on_disk(directory) <= 2 * MIB
        before = len(list(Path("/proc/self/fd").iterdir()))
        watch._users_s = float("-inf")
        watch.check(NEVER)
        assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_limit_is_only_lowered(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was cut for the disk is not given more later."""
    directory = run_of(runs, 1, "ann", 20 * MIB, ended=False)
    with_room(monkeypatch, GIB // 2)
    watch_of(runs, "10M").check(NEVER)
    assert (MIB, DISK) == directory.log_limit()


@pytest.mark.parametrize("target", ["", "many disk", "-5 disk", "5", "5 fun", "\u0665 disk", "9" * 100])
def test_a_link_that_a_worker_would_not_make_is_no_limit(tmp_path: Path, target: str) -> None:
    """A job with the account of the worker may have put it there."""
    if target:
        (tmp_path / LIMIT).symlink_to(target)
    assert None is lowered(str(tmp_path / LIMIT))


def test_no_log_is_cut_below_the_least_size(tmp_path: Path) -> None:
    """The limit of a link is at least 1M."""
    (tmp_path / LIMIT).symlink_to(f"5 {DISK}")
    assert (MIB, DISK) == lowered(str(tmp_path / LIMIT))


def test_a_settlement_removes_the_limit(runs: Path) -> None:
    """Nothing but the log and its user stays."""
    directory = run_of(runs, 1, "ann", MIB, ended=False)
    directory.limit_log(MIB, DISK)
    directory.limit_log(2 * MIB, USER)
    assert (2 * MIB, USER) == directory.log_limit()
    directory.settle()
    assert None is directory.log_limit()

    directory.limit_log(MIB, DISK)
    assert {"log", "user"} == {each.name for each in directory.path.iterdir()}


def test_a_lower_limit_moves_the_hole_of_a_log_forward(tmp_path: Path) -> None:
    """A log that was cut before is cut again to the lower limit, with the new reason, and has no other mark in it."""
    log = tmp_path / "log"
    lines = b"".join(b"%063d\n" % number for number in range(16 * MIB // 64))
    log.write_bytes(lines)
    limit = LogLimit(str(log), 8 * MIB)
    limit.check()
    limit.lower((MIB, DISK))
    assert limit.check() < 1.0
    limit.lower((2 * MIB, USER))
    limit.check()

    assert log.stat().st_blocks * 512 <= MIB
    data = log.read_bytes().replace(b"\0", b"")
    assert data.startswith(lines[: MIB // 8])
    assert data.endswith(lines[-MIB // 8 :])
    assert 1 == data.count(b"bytes are missing here: the disk of this host was nearly full\n")
    assert b"exceeded its limit" not in data


def test_a_running_job_goes_on_with_a_lower_limit(shims: Callable[..., Shim], tmp_path: Path) -> None:
    """The shim cuts its log at once, although the job has no limit, and goes on cutting while the job writes."""
    shim = shims(sys.executable, "-c", WRITER, str(tmp_path / "end"), log_limit_bytes=None)
    log = shim.directory.log
    until(lambda: log.exists() and log.stat().st_size > 3 * MIB, what="a large log")

    shim.directory.limit_log(MIB, DISK)
    until(lambda: log.stat().st_blocks * 512 <= MIB, what="the cut")
    size = log.stat().st_size
    until(lambda: log.stat().st_size > size + 3 * MIB, what="more output")
    (tmp_path / "end").touch()

    assert "exit 0" == str(shim.ended().ending)
    assert log.stat().st_blocks * 512 <= MIB
    data = log.read_bytes()
    assert b"bytes are missing here: the disk of this host was nearly full\n" in data
    assert data.endswith(b"the last line\n")


@pytest.mark.full
def test_a_whole_host_holds_a_user_to_the_limit_while_a_job_runs(site: Site, tmp_path: Path) -> None:
    """The host process watches, the doctor names the job and its user, and the job goes on."""
    site.environ["GPUQUEUE_USER_LOG_LIMIT"] = "4M"
    site.make_tables()
    site.spawn("host", "--devices", "sim:1x8G")
    until(site.queue.devices.all, what="a worker")
    job = site.queue.requests.submit(
        make_spec(argv=(sys.executable, "-c", WRITER, str(tmp_path / "end")), mem_bytes=MIB)
    )
    log = until(lambda: next(site.settings.runs_dir.glob(f"{job.id}/*/log"), None), what="the log")
    until(lambda: RunDir(log.parent).log_limit(), what="the lower limit")
    until(lambda: log.stat().st_blocks * 512 <= 4 * MIB, what="the cut")

    (found,) = cut_logs(UnsettledRuns(Settings.load(site.environ)))
    assert (f"job {job.id}", "warning") == (found.about, str(found.grade))
    assert f"the log of {job.spec.account.name} is held to " in found.seen
    (tmp_path / "end").touch()
    assert "exit 0" == str(site.until_recorded(job.id).runs[-1].ending)
