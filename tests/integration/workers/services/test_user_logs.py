"""Tests of the limit of all logs of one user on a host: real files, real holes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from factories import make_spec
from run_logs import on_disk, run_of
from site_of_one import Site

from gpuqueue.clock import SystemClock
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers.run.directory import USER
from workers.services.prune import Pruner
from workers.services.user_limits import UserLogs

NEVER = threading.Event()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the directory of a host's runs."""
    return tmp_path / "state" / "runs"


def test_the_oldest_logs_of_a_user_are_cut_until_the_rest_fits(runs: Path) -> None:
    """The oldest log of an ended run loses its middle first. The newest stays whole, and so do the logs of others."""
    oldest, older, newest = (run_of(runs, number, "ann", 4 * MIB) for number in (1, 2, 3))
    others = run_of(runs, 4, "bob", 8 * MIB)

    UserLogs().enforce(runs, 9 * MIB + MIB // 2, NEVER)

    assert on_disk(oldest) <= MIB
    assert on_disk(older) == on_disk(newest) == 4 * MIB
    assert on_disk(others) == 8 * MIB
    text = oldest.log.read_bytes()
    assert text.startswith(f"{0:063}\n".encode())
    assert text.endswith(f"{4 * MIB // 64 - 1:063}\n".encode())
    assert b"bytes are missing here: the logs of this user on this host exceeded user_log_limit\n" in text
    assert 1.0 == oldest.log.stat().st_mtime


def test_the_reports_of_a_run_count(runs: Path) -> None:
    """The other file that a job may write needs room of its user, too, if it is still there after the end."""
    directory = run_of(runs, 1, "ann", 2 * MIB)
    (directory.path / "reports").write_bytes(b"x" * 3 * MIB)

    assert {"ann": 5 * MIB} == UserLogs().enforce(runs, 9 * MIB, NEVER)


def test_a_cut_leaves_no_descriptor_open(runs: Path) -> None:
    """A host has many logs, and a process so many descriptors."""
    run_of(runs, 1, "ann", 4 * MIB)
    before = set(Path("/proc/self/fd").iterdir())

    UserLogs().enforce(runs, MIB // 2, NEVER)
    assert before == set(Path("/proc/self/fd").iterdir())


def test_a_log_is_cut_once(runs: Path) -> None:
    """A second round changes nothing, even if the rest is still too much."""
    directory = run_of(runs, 1, "ann", 4 * MIB)
    UserLogs().enforce(runs, MIB // 2, NEVER)
    before = directory.log.read_bytes()

    UserLogs().enforce(runs, MIB // 2, NEVER)
    assert before == directory.log.read_bytes()
    assert 1 == before.count(b"bytes are missing")


def test_the_log_of_a_run_that_goes_on_is_not_cut(runs: Path) -> None:
    """A running job keeps its output. Its size counts, so the logs of the user's ended runs are cut instead."""
    running, ended = run_of(runs, 1, "ann", 8 * MIB, ended=False), run_of(runs, 2, "ann", 2 * MIB)

    UserLogs().enforce(runs, 8 * MIB, NEVER)
    assert on_disk(running) == 8 * MIB
    assert on_disk(ended) <= MIB


def test_a_cut_is_logged_and_no_cut_is_logged_once(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cut is reported only if a log was cut. That nothing could be cut is logged once while it lasts."""
    run_of(runs, 1, "ann", 8 * MIB, ended=False)
    logs = UserLogs()
    for _ in range(3):
        logs.enforce(runs, 4 * MIB, NEVER)
    (only,) = caplog.messages
    assert only.startswith("the logs of ann need 8M, more than user_log_limit (4M): ")
    assert only.endswith("no log of an ended run can be cut further")

    run_of(runs, 2, "ann", 2 * MIB)
    logs.enforce(runs, 4 * MIB, NEVER)
    assert caplog.messages[1:] == [
        "the logs of ann need 10M, more than user_log_limit (4M): the oldest logs of ended runs were cut to 1M"
    ]
    for _ in range(2):
        logs.enforce(runs, 4 * MIB, NEVER)
    assert 3 == len(caplog.messages)
    assert caplog.messages[2].endswith("can be cut further")


def test_no_link_of_a_job_is_followed(runs: Path, tmp_path: Path) -> None:
    """A job can put a link in the place of its log. The file that it points to is not cut."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 4 * MIB)
    for job_id in (1, 2):
        run_of(runs, job_id, "ann", 4 * MIB)
    links = list(runs.glob("*/*/log"))
    links[0].unlink()
    links[0].symlink_to(precious)

    UserLogs().enforce(runs, MIB // 2, NEVER)
    assert precious.read_bytes() == b"x" * 4 * MIB
    assert links[1].stat().st_blocks * 512 <= MIB


@pytest.mark.parametrize(("limit", "cut"), [("1M", True), ("none", False), ("", False)])
def test_the_setting_decides(runs: Path, limit: str, *, cut: bool) -> None:
    """The pruner's round reads the setting. The default of 20G leaves a log of 4M as it is."""
    directory = run_of(runs, 1, "ann", 4 * MIB)
    environ = {"GPUQUEUE_STATE_DIR": str(runs.parent), "GPUQUEUE_CONFIG": os.devnull}
    settings = Settings.load({**environ, **({"GPUQUEUE_USER_LOG_LIMIT": limit} if limit else {})})

    Pruner(settings, SystemClock()).round(NEVER)
    assert cut == (on_disk(directory) <= MIB)


def test_a_worker_records_whose_log_it_is(site: Site) -> None:
    """The run directory of a real job names its user, before and after the end of the run."""
    site.start_recorder()
    site.start_worker()
    job = site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB))
    site.until_recorded(job.id)
    (directory,) = (site.settings.runs_dir / str(job.id)).iterdir()
    assert str((directory / USER).readlink()) == job.spec.account.name
