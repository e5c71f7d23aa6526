"""A copy of a state directory knows what it is a copy of, and leaves the processes of the original alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bounded import until
from forked_command import BIN
from own_home import Home
from own_store import OwnStore

from gpuqueue.embedded.machine import Machine
from gpuqueue.embedded.page import PageService
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.errors import BadRequest, Refused, StoreUnreachable
from gpuqueue.queue.absence import why_away
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system import ownership
from gpuqueue.system.ownership import DirectoryId, original_of, record, write_pid
from gpuqueue.system.process import DetachedProcess, ProcessIdentity

REFUSED, UNREACHABLE = 5, 4


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state directory that knows itself."""
    directory = tmp_path / "state"
    directory.mkdir()
    record(directory)
    return directory


def copied(original: Path, to: Path) -> Path:
    """Copy a directory like a person who makes a backup."""
    subprocess.run(["/bin/cp", "-a", str(original), str(to)], check=True)
    return to


def settings_of(directory: Path, **more: str) -> Settings:
    """Return the settings of a state directory."""
    return Settings.load({"GPUQUEUE_STATE_DIR": str(directory), "GPUQUEUE_CONFIG": os.devnull, **more})


@contextmanager
def logging_to(log: Path) -> Iterator[DetachedProcess]:
    """Run a process that writes to *log*, as those of gpuqueue do."""
    process = DetachedProcess(["/bin/sleep", "1000"], log=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def test_a_copy_knows_its_original(state: Path) -> None:
    """Also a copy of the copy."""
    copy = copied(state, state.with_name("copy"))
    assert None is original_of(state)
    assert str(state) == original_of(copy)
    assert str(state) == original_of(copied(copy, state.with_name("again")))


def test_a_moved_directory_is_no_copy(state: Path) -> None:
    """Also one that was moved to another disk, where all its files are new."""
    moved = state.rename(state.with_name("moved"))
    assert None is original_of(moved)
    elsewhere = copied(moved, state.with_name("elsewhere"))
    shutil.rmtree(moved)
    assert None is original_of(elsewhere)


def test_a_restored_directory_is_no_copy(state: Path) -> None:
    """At the recorded path on the recorded machine nothing else can be. What it has replaced is the copy then."""
    old = state.rename(state.with_name("old"))
    copied(old, state)
    assert None is original_of(state)
    record(state)
    assert str(state) == original_of(old)


def test_a_moved_directory_whose_old_place_is_closed_is_no_copy(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old home may be somebody else's now. A copy, with a mark of its own, is one all the same."""
    moved = state.rename(state.with_name("moved"))
    copy = copied(moved, state.with_name("copy"))
    monkeypatch.setattr(ownership, "_has", lambda _directory, _name: None)
    assert None is original_of(moved)
    assert str(state) == original_of(copy)


def test_a_directory_that_two_machines_see_is_no_copy(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home on a file server may have another path on the other machine, where it is no copy of itself."""
    monkeypatch.setattr(ownership, "_place", lambda: "another machine")
    assert None is original_of(state)
    assert None is original_of(state.rename(state.with_name("mounted")))


def test_a_directory_with_another_owner_is_no_copy(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may set the owner of all files at each start, which changes the mark."""
    monkeypatch.setattr(ownership, "_place", lambda: "another container")
    mark = state / ownership.MARK
    before = mark.stat().st_ctime_ns

    def is_changed() -> bool:
        mark.chmod(0o640)
        return mark.stat().st_ctime_ns != before

    until(is_changed, what="another time")
    assert None is original_of(state)


def test_a_copy_on_another_machine_knows_its_original(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have the path of the original there, which may live on."""
    old = state.rename(state.with_name("old"))
    copied(old, state)
    shutil.rmtree(old)
    monkeypatch.setattr(ownership, "_place", lambda: "another machine")
    assert f"{state} on {os.uname().nodename}" == original_of(state)


def test_a_copy_without_the_mark_is_a_copy(state: Path) -> None:
    """A backup program may leave out an empty file."""
    copy = copied(state, state.with_name("copy"))
    (copy / ownership.MARK).unlink()
    assert str(state) == original_of(copy)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"id": 1, "path": null}', "\xff"])
def test_a_damaged_record_is_replaced(state: Path, text: str) -> None:
    """It says nothing, so the directory is no copy."""
    (state / ownership.RECORD).write_text(text, encoding="latin-1")
    assert None is original_of(state)
    record(state)
    assert DirectoryId.read(state) is not None


def test_an_unchanged_record_is_not_written_again(state: Path) -> None:
    """The id stays, also when something has changed."""
    file = state / ownership.RECORD
    before, known = file.stat(), DirectoryId.read(state)
    record(state)
    assert before.st_ino == file.stat().st_ino
    moved = state.rename(state.with_name("moved"))
    record(moved)
    now = DirectoryId.read(moved)
    assert known is not None
    assert now is not None
    assert (known.id, str(moved)) == (now.id, now.path)


def test_a_pid_file_of_a_copy_names_nobody(state: Path) -> None:
    """Regression: ``down`` in a copy stopped the workers of the original."""
    with logging_to(state / "log" / "host.log") as process:
        for name in ("host.pid", "web.pid"):
            write_pid(state / name, process.pid)
        copy = copied(state, state.with_name("copy"))
        here, there = Machine(settings_of(state)), Machine(settings_of(copy))

        assert here.host_running() is not None
        assert None is there.host_running()
        assert not there.stop_host()
        assert not PageService(settings_of(copy)).stop()
        assert process.poll() is None
        assert PageService(settings_of(state)).running() is not None


def test_a_pid_file_is_read_by_earlier_versions(state: Path) -> None:
    """It has three words: pid, start and boot."""
    write_pid(state / "host.pid", os.getpid())
    assert ProcessIdentity.of(os.getpid()) == ProcessIdentity.parse((state / "host.pid").read_text())


def test_a_directory_that_moved_to_another_disk_while_it_ran_is_refused(state: Path) -> None:
    """A second store and second workers would have run all its jobs beside the first, and `down` stopped nothing."""
    with logging_to(state / "log" / "host.log") as process:
        write_pid(state / "host.pid", process.pid)
        new = copied(state, state.with_name("new"))
        state.rename(state.with_name("old"))
        state.symlink_to(new)
        machine = Machine(settings_of(state))

        assert machine.original is None
        for refuse in (machine.refuse_if_elsewhere, lambda: machine.own_directory(hold_jobs=False)):
            with pytest.raises(Refused, match=f"end them with kill {process.pid}, then gpuqueue up"):
                refuse()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert machine.own_directory(hold_jobs=False) is None


def test_a_host_process_follows_its_moved_directory(state: Path) -> None:
    """``down`` finds it, also if its logs were moved away."""
    with logging_to(state / "log" / "host.log") as process:
        write_pid(state / "host.pid", process.pid)
        (state / "log").rename(state / "log.old")
        moved = state.rename(state.with_name("moved"))
        assert Machine(settings_of(moved)).host_running() is not None


def test_a_copy_that_writes_the_logs_of_the_original_forgets_its_pids(tmp_path: Path) -> None:
    """Regression: a link to the logs is copied as it is, and the host process of the original was taken for its own."""
    state, logs = tmp_path / "state", tmp_path / "logs"
    for directory in (state, logs):
        directory.mkdir()
    (state / "log").symlink_to(logs)
    record(state)
    with logging_to(logs / "host.log") as process:
        write_pid(state / "host.pid", process.pid)
        copy = Machine(settings_of(copied(state, tmp_path / "copy")))
        assert str(state) == copy.own_directory(hold_jobs=True)
        assert None is copy.host_running()
        assert Machine(settings_of(state)).host_running() is not None


def test_an_original_whose_record_is_damaged_is_still_one(state: Path) -> None:
    """Something is there, and a copy must not run its jobs."""
    copy = copied(state, state.with_name("copy"))
    (state / ownership.RECORD).write_text("")
    assert str(state) == original_of(copy)


def test_a_copy_without_a_record_is_known_while_the_original_runs(tmp_path: Path) -> None:
    """That is one of a directory that an earlier version has started."""
    state = tmp_path / "state"
    with logging_to(state / "log" / "host.log") as process:
        write_pid(state / "host.pid", process.pid)
        assert None is original_of(state)
        assert str(state) == original_of(copied(state, tmp_path / "copy"))


def test_the_store_of_the_original_is_left_alone(own_store: OwnStore, tmp_path: Path) -> None:
    """Its pid file names no server in a copy."""
    record(own_store.settings.state_dir)
    copy = copied(own_store.settings.state_dir, tmp_path / "copy")
    store = EmbeddedStore(settings_of(copy))
    assert None is store.server()
    assert not store.stop()
    server = EmbeddedStore(own_store.settings).server()
    assert server is not None
    assert server.alive()


def test_each_command_in_a_copy_says_that_it_is_one(own_store: OwnStore, tmp_path: Path) -> None:
    """Regression: they said that the store hangs, with the pid of the original's, which serves its own directory."""
    state = own_store.settings.state_dir
    record(state)
    copy = copied(state, tmp_path / "copy")
    queue = JobQueue.of(settings_of(copy))
    with pytest.raises(StoreUnreachable) as raised:
        queue.epoch()
    queue.close()
    words = f" does not answer: {copy} is a copy of {state}: gpuqueue up says what can be done"
    assert str(raised.value).endswith(words)

    (copy / ownership.RECORD).unlink()  # an earlier version made the original
    assert (f"{copy} is a copy of {state}", ownership.IN_A_COPY) == why_away(settings_of(copy))


def test_a_copy_is_not_started_by_mistake(state: Path) -> None:
    """With parts of the queue elsewhere, its jobs cannot be held."""
    copy = copied(state, state.with_name("copy"))
    with pytest.raises(Refused, match=f"{copy} is a copy of {state}: .* gpuqueue up --hold-jobs "):
        Machine(settings_of(copy)).own_directory(hold_jobs=False)
    assert str(state) == Machine(settings_of(copy)).own_directory(hold_jobs=True)
    shared = settings_of(copy, GPUQUEUE_RUNS_DIR=str(state / "runs"))
    with pytest.raises(Refused, match="uses the same runs_dir"):
        Machine(shared).own_directory(hold_jobs=True)
    with pytest.raises(BadRequest, match="is no copy: leave out --hold-jobs"):
        Machine(settings_of(state)).own_directory(hold_jobs=True)
    assert str(state) == original_of(copy)


@pytest.fixture
def copies() -> Iterator[list[Home]]:
    """Return a list for homes that are to be stopped and removed."""
    made: list[Home] = []
    yield made
    for home in made:
        home.output_of("down", "--cancel-jobs")
        shutil.rmtree(home.state, ignore_errors=True)


def with_jobs(home: Home) -> Path:
    """Start a machine with a running job and two that wait, an array among them. Return what lets the first end."""
    home("up", "--devices", "sim:1x1G")
    gate = home.state / "gate"
    home("submit", "--mem", "400M", "--", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    home("submit", "--mem", "400M", "--", "true")
    home("submit", "--mem", "400M", "--array", "0-2", "--", "true")
    until(lambda: ["running"] == states(home)[:1], what="the first job")
    return gate


def states(home: Home) -> list[str]:
    """Return the states of the open jobs."""
    return [job["state"] for job in sorted(json.loads(home("queue", "--json"))["jobs"], key=lambda job: job["id"])]


@pytest.mark.full
@pytest.mark.parametrize("is_parked", [False, True])
def test_a_copy_of_a_running_queue_runs_nothing_and_ends_nothing(
    home: Home, copies: list[Home], *, is_parked: bool
) -> None:
    """Its jobs are held at the person's request. The original goes on, also if its jobs are left to their shims."""
    gate = with_jobs(home)
    if is_parked:
        home("down", "--leave-jobs")
    copy = Home(copied(home.state, home.state.with_name(f"{home.state.name}-copy")))
    copies.append(copy)

    assert f"is a copy of {home.state}: each of its jobs would run" in copy("up", code=REFUSED)
    assert f"of {home.state}" in copy("status", code=4)
    assert f"is a copy of {home.state}" in copy("queue", code=UNREACHABLE)
    assert "the original is left alone" in copy("down", "--cancel-jobs")
    copy("history")
    assert "3 jobs of this copy" in copy("up", "--hold-jobs", "--devices", "sim:1x1G")
    assert ["held", "held", "held"] == states(copy)

    home("up", "--devices", "sim:1x1G")
    assert "running" == states(home)[0]
    gate.touch()
    home("wait", "1", "2", "3")
    assert 1 == json.loads(home("show", "1", "--json"))["job"]["attempt"]

    copy("release", "2")
    copy("wait", "2")
    copy("down")
    copy("up", "--devices", "sim:1x1G")
    assert ["held", "held"] == states(copy)
    assert "already up" in home("up")


@pytest.mark.full
@pytest.mark.parametrize("first", ["true", "mount --bind {copy} {original}"], ids=["beside", "in its place"])
def test_a_copy_in_a_container_runs_nothing(home: Home, copies: list[Home], first: str) -> None:
    """There the processes of the original are not visible, and the copy may have the path of the original."""
    with_jobs(home)
    copy = Home(copied(home.state, home.state.with_name(f"{home.state.name}-copy")))
    copies.append(copy)
    seen = home if "mount" in first else copy
    script = f'{first.format(copy=copy.state, original=home.state)} && exec "$@"'
    container = ["unshare", "-pfm", "--mount-proc", "sh", "-c"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no namespaces here")

    done = subprocess.run(
        [*container, script, "sh", str(BIN / "gpuqueue"), "up", "--devices", "sim:1x1G"],
        env=seen.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert REFUSED == done.returncode, done.stdout + done.stderr
    assert f"is a copy of {home.state}" in done.stderr
    assert "running" == states(home)[0]
