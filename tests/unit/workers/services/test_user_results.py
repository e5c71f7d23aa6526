"""Tests of the limit of all kept files of one user on a host: real files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuqueue.clock import SystemClock
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.services.prune import Pruner
from workers.services.user_limits import hold_results

NEVER = threading.Event()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return the directory of a host's runs."""
    return tmp_path / "runs"


def kept(runs: Path, job_id: int, user: str = "ann", size_bytes: int = MIB) -> Path:
    """Make the directory of an ended run with kept files, which were packed at second *job_id*."""
    directory = runs / str(job_id) / "1.abc"
    directory.mkdir(parents=True)
    (directory / "user").symlink_to(user)
    (directory / "results.tar").write_bytes(bytes(size_bytes))
    os.utime(directory / "results.tar", (job_id, job_id))
    os.utime(directory, (job_id, job_id))
    return directory


def names(directory: Path) -> set[str]:
    """Return the names in a run directory without the link to its user."""
    return {each.name for each in directory.iterdir()} - {"user"}


def test_the_oldest_kept_files_of_a_user_are_removed(runs: Path) -> None:
    """Until the rest fits, and with a reason in their place. Those of others stay."""
    oldest, older, newest = (kept(runs, number) for number in (9, 10, 11))
    others = kept(runs, 1, "bob", 3 * MIB)

    assert 1 == hold_results(runs, 2 * MIB, "gpu1", NEVER)
    assert [{"results.removed"}, *[{"results.tar"}] * 3] == list(map(names, (oldest, older, newest, others)))
    reason = "all kept files of ann on host gpu1 needed 3M, more than 2M (setting user_results_limit)"
    assert reason == (oldest / "results.removed").read_text()
    assert 9 == oldest.stat().st_mtime
    assert 0 == hold_results(runs, 2 * MIB, "gpu1", NEVER)


def test_the_newest_kept_files_stay(runs: Path) -> None:
    """A single run is held to results_limit only, so nothing is removed that was packed just now."""
    old, newest = kept(runs, 1), kept(runs, 2, size_bytes=4 * MIB)

    assert 1 == hold_results(runs, 2 * MIB, "gpu1", NEVER)
    assert [{"results.removed"}, {"results.tar"}] == [names(old), names(newest)]


def test_kept_files_that_must_still_be_delivered_stay(runs: Path) -> None:
    """The relay would pack them again. They count, so others go before."""
    pending, old, newest = (kept(runs, number) for number in (1, 2, 3))

    assert 1 == hold_results(runs, MIB, "gpu1", NEVER, lambda job, token: (job, token) == ("1", "1.abc"))
    assert [{"results.tar"}, {"results.removed"}, {"results.tar"}] == list(map(names, (pending, old, newest)))


@pytest.mark.parametrize("place", ["job", "run", "file", "note"])
def test_no_link_of_a_job_is_followed(runs: Path, tmp_path: Path, place: str) -> None:
    """A job can put links in its run directory. What they lead to is neither removed nor written."""
    outside = kept(tmp_path / "outside", 1)
    (outside / "note").write_text("keep")
    at = {"job": "1", "run": "1/1.abc", "file": "1/1.abc/results.tar", "note": "1/1.abc/results.removed"}[place]
    if place == "note":
        kept(runs, 1)
    kept(runs, 2)
    link = runs / at
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to({"job": outside.parent, "run": outside}.get(place, outside / "note"))

    hold_results(runs, MIB // 2, "gpu1", NEVER)
    assert ({"results.tar", "note"}, "keep") == (names(outside), (outside / "note").read_text())


def test_a_stop_ends_it(runs: Path) -> None:
    """The next round goes on."""
    first, _ = kept(runs, 1), kept(runs, 2)
    stopping = threading.Event()
    stopping.set()

    assert 0 == hold_results(runs, 1, "gpu1", stopping)
    assert {"results.tar"} == names(first)


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[..., Settings]:
    """Return a function that returns the settings of a host."""

    def load(**values: str) -> Settings:
        named = {f"GPUQUEUE_{name.upper()}": value for name, value in values.items()}
        return Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull, **named})

    return load


@pytest.mark.parametrize(("limit", "removed"), [("1M", True), ("none", False), ("", False)])
def test_the_setting_decides(runs: Path, settings_of: Callable[..., Settings], limit: str, *, removed: bool) -> None:
    """A worker's round reads it, and leaves what must still be delivered. The default is 50G."""
    pending, old, _ = (kept(runs, number) for number in (1, 2, 3))
    settings = settings_of(**({"user_results_limit": limit} if limit else {}))
    deliveries.add(settings, Delivery(job_id=1, token="1.abc", keep=("*",)))

    Pruner(settings, SystemClock()).round(NEVER)
    assert ({"results.tar"}, removed) == (names(pending), names(old) == {"results.removed"})
    assert removed or settings.user_results_limit_bytes == (None if limit else 50 * 2**30)


def test_kept_files_have_a_user_after_their_log_is_gone(runs: Path, settings_of: Callable[..., Settings]) -> None:
    """The limit counts them still. The directory goes when nothing else is left."""
    directory = kept(runs, 1)
    (directory / "log").write_text("log\n")
    for each in (directory / "log", directory):
        os.utime(each, (1, 1))
    pruner = Pruner(settings_of(keep_logs="1d", keep_results="none"), SystemClock())
    for _ in range(2):
        pruner.round(NEVER)
    assert {"results.tar", "user"} == {each.name for each in directory.iterdir()}

    (directory / "results.tar").unlink()
    os.utime(directory, (1, 1))
    pruner.round(NEVER)
    assert not directory.exists()
