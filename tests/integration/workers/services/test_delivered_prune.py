"""Old deliveries of other hosts are deleted: real files, a real store."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from factories import make_offer, make_spec, must_claim, serve

from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers.services.prune import DeliveredPruner

NEVER = threading.Event()
DAY_S = 86400.0
NOW_S = time.time()


def settings_of(tmp_path: Path, **values: str) -> Settings:
    """Return the settings of a site with *values*."""
    environ = {f"GPUQUEUE_{name.upper()}": value for name, value in values.items()}
    return Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull, **environ})


def delivered(settings: Settings, job_id: int, ages: dict[str, float], token: str = "1.abc", user: str = "ann") -> Path:
    """Make the deliveries of a run: files by name, with their age in days. Return their directory."""
    folder = settings.delivered_dir / str(job_id) / token
    folder.mkdir(parents=True)
    (folder / "user").symlink_to(user)
    for name, age in ages.items():
        (folder / name).write_text("words\n")
        os.utime(folder / name, (NOW_S - age * DAY_S, NOW_S - age * DAY_S))
    return folder


def names(folder: Path) -> list[str]:
    """Return the names in *folder*, none if it has gone."""
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


def test_logs_and_results_go_when_their_times_are_over(tmp_path: Path, queue: JobQueue) -> None:
    """Each has a setting of its own, and the directory goes with the last of them."""
    settings = settings_of(tmp_path, keep_logs="10d", keep_results="20d")
    all_of_it = ("log", "log.times", "stderr", "complete", "results.tar", "results.failed")
    young = delivered(settings, 1, dict.fromkeys(all_of_it, 9))
    older = delivered(settings, 2, dict.fromkeys(all_of_it, 19))
    old = delivered(settings, 3, dict.fromkeys(all_of_it, 21))
    mixed = delivered(settings, 4, {"log": 21, "log.times": 21, "stderr": 1, "results.tar": 21})

    assert 3 + 5 + 1 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)
    assert sorted((*all_of_it, "user")) == names(young)
    assert ["results.failed", "results.tar", "user"] == names(older)
    assert not old.parent.exists()
    assert ["log", "log.times", "stderr", "user"] == names(mixed)
    assert 0 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)


def test_what_is_kept_for_ever_stays(tmp_path: Path, queue: JobQueue) -> None:
    """The value none of a setting keeps all, but for what a service that was killed has left."""
    settings = settings_of(tmp_path, keep_logs="none", keep_results="none")
    folder = delivered(settings, 1, dict.fromkeys(("log", "complete", "results.tar", "results.partial"), 1000))

    assert 1 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)
    assert ["complete", "log", "results.tar", "user"] == names(folder)


def test_results_that_arrive_now_stay(tmp_path: Path, queue: JobQueue) -> None:
    """Only after a day they are taken for what has been left."""
    settings = settings_of(tmp_path, keep_results="1s")
    folder = delivered(settings, 1, {"results.partial": 0.5})

    assert 0 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)
    assert ["results.partial", "user"] == names(folder)


def test_the_log_of_a_run_that_goes_on_stays(tmp_path: Path, queue: JobQueue) -> None:
    """However long it has written nothing. That of a run of before, which was never completed, goes."""
    settings = settings_of(tmp_path, keep_logs="10d")
    serve(queue, make_offer("GPU-B", host="nodeB"))
    job = queue.requests.submit(make_spec())
    claim = must_claim(queue, "GPU-B", host="nodeB")
    goes_on = delivered(settings, job.id, {"log": 100}, claim.token)
    before = delivered(settings, job.id, {"log": 100}, "0.abc")

    assert 1 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)
    assert (["log", "user"], []) == (names(goes_on), names(before))


def test_no_log_that_may_grow_is_deleted_while_the_store_is_away(tmp_path: Path, queue: JobQueue) -> None:
    """A log that may still grow stays while the store is away. A whole one goes."""
    settings = settings_of(tmp_path, keep_logs="10d")
    away = JobQueue(f"unix://{tmp_path}/nothing.sock")
    grows, whole = delivered(settings, 1, {"log": 100}), delivered(settings, 2, {"log": 100, "complete": 100})
    assert 1 == DeliveredPruner(settings, away).prune(NOW_S, NEVER)

    assert (["log", "user"], []) == (names(grows), names(whole))
    assert 1 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)


@pytest.mark.parametrize("place", ["job", "run", "file"])
def test_no_link_among_deliveries_leads_out(tmp_path: Path, queue: JobQueue, place: str) -> None:
    """What a link leads to is not deleted."""
    settings, outside = settings_of(tmp_path / "state", keep_logs="1d"), tmp_path / "outside"
    (outside / "1.abc").mkdir(parents=True)
    for folder in (outside, outside / "1.abc"):
        (folder / "log").write_text("keep\n")
        os.utime(folder / "log", (0, 0))
    link = settings.delivered_dir / {"job": "1", "run": "1/1.abc", "file": "1/1.abc/log"}[place]
    link.parent.mkdir(parents=True)
    link.symlink_to({"job": outside, "run": outside / "1.abc", "file": outside / "log"}[place])
    DeliveredPruner(settings, queue).prune(NOW_S + 100 * DAY_S, NEVER)

    assert ["1.abc", "1.abc/log", "log"] == sorted(str(each.relative_to(outside)) for each in outside.rglob("*"))


def test_the_logs_of_a_user_are_held_to_the_limit(tmp_path: Path, queue: JobQueue) -> None:
    """The oldest whole ones are cut. A log that may still grow is not."""
    settings = settings_of(tmp_path, user_log_limit="5M", keep_logs="none")
    grows, old, new = (delivered(settings, number, {"log": 0}) for number in (1, 2, 3))
    for age, folder in enumerate((new, old, grows)):
        (folder / "log").write_bytes(b"x" * 4 * MIB)
        os.utime(folder / "log", (NOW_S - age, NOW_S - age))
    for folder in (old, new):
        (folder / "complete").touch()
    DeliveredPruner(settings, queue).prune(NOW_S, NEVER)
    needed = [(each / "log").stat().st_blocks * 512 for each in (grows, old, new)]

    assert 4 * MIB == needed[0]
    assert needed[1] <= MIB
    assert needed[2] <= MIB


def test_the_results_of_a_user_are_held_to_the_limit(tmp_path: Path, queue: JobQueue) -> None:
    """The oldest are removed, and a note says why until the time of keep_results is over."""
    settings = settings_of(tmp_path, user_results_limit="1M", keep_results="20d")
    old, young = (delivered(settings, number, {"results.tar": age}) for number, age in ((1, 19), (2, 1)))
    for each in (old, young):
        with (each / "results.tar").open("r+b") as file:
            file.write(bytes(MIB))
        age_s = NOW_S - (19 if each == old else 1) * DAY_S
        os.utime(each / "results.tar", (age_s, age_s))

    assert 1 == DeliveredPruner(settings, queue).prune(NOW_S, NEVER)
    assert (["results.removed", "user"], ["results.tar", "user"]) == (names(old), names(young))
    assert "(setting user_results_limit)" in (old / "results.removed").read_text()
    DeliveredPruner(settings, queue).prune(NOW_S + 21 * DAY_S, NEVER)
    assert ([], []) == (names(old), names(young))
