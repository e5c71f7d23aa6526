from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import odd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import Refused, Unreadable
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.system.logs import LogTail
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.system.safe_open import MOST_BYTES, read_small
from gpuqueue.text.units import GIB
from workers.measure.active_runs import LiveRun
from workers.run.directory import USER, Held, RunDir, ShimSpec, reported, unsettled
from workers.run.files import is_ours
from workers.run.verdict import read_reports, tail

DEVICE = RunDevice(uuid="GPU-1", lease_bytes=GIB, index=0, name="T", kind=DeviceKind.GPU, total_bytes=2 * GIB)
HELD = Held(job_id=7, token="1.ab", devices=(DEVICE,))
EXIT = json.dumps({"kind": "exited", "status": 0, "detail": "", "duration_s": 1.5, "max_rss_bytes": 5, "cpu_s": 0.1})
INSIDE = json.dumps(
    {
        "began_s": 1.0,
        "ended_s": 2.0,
        "out_of_memory": False,
        "devices": [
            {
                "index": 0,
                "uuid": None,
                "allocated_bytes": 5,
                "reserved_bytes": 6,
                "ooms": 0,
                "alloc_retries": 0,
            }
        ],
    }
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """Return the directory of a claimed run."""
    return RunDir.create(tmp_path, HELD)


def replace(directory: RunDir, name: str, content: bytes) -> None:
    """Replace the content of a file of the run."""
    (directory.path / name).write_bytes(content)


anything = st.one_of(st.binary(max_size=50), odd.values.map(lambda value: json.dumps(value).encode()))


def damaged(good: str) -> st.SearchStrategy[bytes]:
    """Return a strategy for damaged versions of a valid file."""
    return st.one_of(anything, odd.mutants(good).map(lambda text: text.encode("utf-8", "surrogatepass")))


@pytest.mark.full
@odd.few_examples
@given(content=st.data())
def test_a_claim_is_read_whole_or_not_at_all(directory: RunDir, content: st.DataObject) -> None:
    """A claim file is read completely or not at all.

    An unreadable claim is not adopted. A readable claim belongs to this run and has a device.
    """
    good = (directory.path / "claim").read_text()
    replace(directory, "claim", content.draw(damaged(good)))

    held = directory.held()

    assert (held is None) == directory.damaged()
    if held is not None:
        assert (7, "1.ab") == (held.job_id, held.token)
        assert held.devices
    (directory.path / "claim").write_text(good)
    assert HELD == directory.held()


@odd.few_examples
@given(content=damaged(EXIT))
def test_an_exit_is_an_ending_or_unreadable(directory: RunDir, content: bytes) -> None:
    """An exit file is an ending or raises `Unreadable`.

    With any other error the worker would try to settle the run again and again.
    """
    replace(directory, "exit", content)
    try:
        end = directory.exit()
    except Unreadable:
        return

    assert end is not None
    assert end.ending.kind in EndingKind
    assert "\n" not in str(end.ending)
    assert isinstance(end.ending.shell_code, int)


@odd.few_examples
@given(content=st.data())
def test_figures_that_make_no_sense_start_over(directory: RunDir, content: st.DataObject) -> None:
    """With unreadable figures the measurement starts again. The run continues and can be measured and reported."""
    good = LiveRun(held=HELD, directory=directory, since_s=100.0)
    good.meter("GPU-1").note(5, at_s=0.1, shared=False, device_bytes=7, pids=[3])
    replace(directory, "meters", content.draw(damaged(json.dumps(good.figures()))))
    run = LiveRun(held=HELD, directory=directory, since_s=500.0)

    run.resume()

    assert 0.0 <= run.since_s <= 500.0
    assert set(run.meters) <= {"GPU-1"}
    run.meter("GPU-1").note(8, at_s=600.0 - run.since_s, shared=True, device_bytes=9, pids=[4])
    assert 8 <= (run.meter("GPU-1").peak_bytes or 0)
    run.note_at_once([8])
    json.dumps(run.figures(), allow_nan=False)
    run.meter("GPU-1").activity()
    run.meter("GPU-1").timeline()


@odd.few_examples
@given(content=anything)
def test_a_pid_file_names_a_process_or_nobody(directory: RunDir, content: bytes) -> None:
    """Any content of the pid file gives a process or None, without an error."""
    replace(directory, "pid", content)
    shim = directory.shim()

    assert shim is None or not shim.alive()
    directory.ask_end(EndingKind.CANCELLED)


@pytest.mark.parametrize("text", ["² 5 x", "0 5 x", f"{10**30} 5 x", "1 2", "-1 5 x", "٣ 5 x", "99999999999 5 x"])
def test_no_digits_but_ours_make_a_process(text: str) -> None:
    """Only ASCII digits of a valid size make a process id.

    Python accepts digits of any script, and the kernel no number that is too large.
    """
    identity = ProcessIdentity.parse(text)
    assert identity is None or identity.handle() is None


@odd.few_examples
@given(content=damaged(INSIDE))
def test_an_invalid_report_of_a_process_spoils_no_other(tmp_path: Path, content: bytes) -> None:
    """A bad report of one process does not affect the reports of others.

    The job can write anything into the file.
    """
    (tmp_path / "reports").write_bytes(INSIDE.encode() + b"\n" + content)

    report = read_reports(tmp_path)

    assert report is not None
    assert report.reserved_on[0] >= 6


@pytest.mark.parametrize("kind", odd.NO_FILES)
def test_what_is_no_file_holds_nobody_up(directory: RunDir, kind: str) -> None:
    """A path that is no regular file or is too large is an error.

    A read from a pipe without a writer would never end, and a terabyte would not fit into memory.
    """
    put = odd.NO_FILES[kind]
    inside = directory.path / "inside"
    inside.mkdir()
    (inside / "1.json").write_text(INSIDE)
    put(inside / "2.json")
    put(directory.path / "exit")
    put(directory.path / "pid")
    put(directory.path / "meters")
    (directory.path / "claim").unlink()
    put(directory.path / "claim")

    with pytest.raises(Unreadable, match=r"is no file|is larger than|is a symbolic link|cannot be read"):
        directory.exit()
    assert directory.held() is None
    assert directory.damaged()
    assert directory.shim() is None
    LiveRun(held=HELD, directory=directory, since_s=1.0).resume()
    report = read_reports(directory.path)
    assert report is not None
    assert {0: 6} == report.reserved_on
    put(directory.log)
    assert b"" == tail(directory.log)  # the file of a terabyte is a hole


def test_a_heartbeat_that_is_a_pipe_is_an_error_and_no_wait(directory: RunDir) -> None:
    """A heartbeat file that is a pipe is an error.

    A wait would delay all runs, because one thread writes the heartbeats of all runs of a worker.
    """
    os.mkfifo(directory.path / "heartbeat")

    with pytest.raises(OSError, match="No such device or address"):
        directory.renew(5.0)


def test_a_small_file_is_read_to_its_last_byte(tmp_path: Path) -> None:
    """A file of the maximum size is read whole. A file with one byte more is refused."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * MOST_BYTES)
    assert MOST_BYTES == len(read_small(path))
    with pytest.raises(Unreadable, match="file is larger than 5 bytes"):
        read_small(path, 5)
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none")


def test_a_million_reports_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of reports is limited. A job may fork without limit, and its worker has other jobs to serve."""
    monkeypatch.setattr("workers.run.verdict._MAX_REPORTS", 3)
    output = json.loads(INSIDE)
    output["devices"][0]["ooms"] = 1
    (tmp_path / "reports").write_text(f"{json.dumps(output)}\n" * 9)

    report = read_reports(tmp_path)

    assert report is not None
    assert {0: 3} == report.ooms_on


def test_the_link_of_a_run_may_be_called_anything(tmp_path: Path) -> None:
    """A link with an invalid name or a missing target is no readable run. A user may have deleted the wrong files."""
    (tmp_path / "live").mkdir()
    for name in ("x", "1", ".", "7.1.ab", "7.1.ab.c", "\udcff"):
        if name != ".":
            (tmp_path / "live" / name).symlink_to("/nonexistent")

    assert [None] * 5 == [directory.held() for directory in unsettled(tmp_path)]


class Log:
    """A log with its reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail = LogTail()
        self.tail.turn_to(path)

    def more(self) -> bytes:
        """Return the new content."""
        return b"".join(self.tail.rest())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log that does not exist yet, with its reader."""
    return Log(tmp_path / "log")


def test_a_log_that_comes_and_goes_and_comes_back(log: Log) -> None:
    """A missing or removed log is empty. Content is read once."""
    assert b"" == log.more()
    log.path.write_bytes(b"one\n\x00\x1b[31m\xff")
    assert b"one\n\x00\x1b[31m\xff" == log.more()  # unchanged, because programs read logs too
    with log.path.open("ab") as file:
        file.write(b"two")
    assert b"two" == log.more()
    log.path.unlink()
    assert b"" == log.more()


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop"])
def test_a_log_that_is_no_file_is_an_error_at_once(log: Log, kind: str) -> None:
    """A log that is no regular file is refused without a wait. The job can replace any file in the run directory."""
    odd.NO_FILES[kind](log.path)

    with pytest.raises(Refused, match=r"cannot be read: log is (no file|a symbolic link)"):
        log.more()


def test_a_log_of_another_account_is_an_error(tmp_path: Path) -> None:
    """A log of another account is refused with a clear message.

    Root may read every file, so another account reads it in that case.
    """
    if os.getuid() != 0:
        (tmp_path / "log").write_bytes(b"")
        (tmp_path / "log").chmod(0)
        with pytest.raises(Refused, match="belongs to the account that runs the jobs"):
            Log(tmp_path / "log").more()
        return
    assert 0 == _as_nobody(lambda: _refused(tmp_path / "log"))


def _refused(path: Path) -> Any:
    with pytest.raises(Refused, match="belongs to the account that runs the jobs"):
        Log(path).more()


def _as_nobody(act: Any) -> int:
    """Run *act* in a child process under an account without rights, and return the exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_run_makes_two_directories_and_asks_for_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run creates only its own two directories.

    Regression: the directories of all runs were created again with each run, and its own was tried before its parent,
    in five calls.
    """
    first = RunDir.create(tmp_path / "runs", HELD)
    first.report()
    made: list[Path] = []
    mkdir = Path.mkdir
    monkeypatch.setattr(Path, "mkdir", lambda path, *rest, **more: made.append(path) or mkdir(path, *rest, **more))

    later = RunDir.create(tmp_path / "runs", Held(job_id=8, token="1.cd", devices=(DEVICE,)))
    later.report()

    assert [later.path.parent, later.path] == made
    assert [first.path, later.path] == [each.path for each in reported(tmp_path / "runs")]


def test_a_claim_has_the_names_of_its_lock_and_of_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim, the lock and the link of a run are one file with three names.

    A new inode takes ten times as long as a new name. Without hard links they are separate files.
    """
    plain = RunDir.create(tmp_path / "runs", HELD)
    claim = (plain.path / "claim").stat()
    assert claim.st_ino == (plain.path / "lock").stat().st_ino
    assert claim.st_ino == (tmp_path / "runs" / "live" / f"{HELD.job_id}.{HELD.token}").stat().st_ino

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no second names here")

    monkeypatch.setattr(os, "link", link)
    other = RunDir.create(tmp_path / "runs", Held(job_id=8, token="1.cd", devices=(DEVICE,)))

    assert {plain.path, other.path} == {each.path for each in unsettled(tmp_path / "runs")}
    for each in (plain, other):
        fd = each.try_lock()
        assert fd is not None
        assert each.try_lock() is None
        os.close(fd)
        each.settle()
    assert [] == list(unsettled(tmp_path / "runs"))
    assert [] == [*plain.path.iterdir(), *other.path.iterdir()]


def test_figures_go_along_with_the_spec_until_a_heartbeat_has_kept_some(directory: RunDir) -> None:
    """The first figures are stored with the spec, until a heartbeat stores newer ones.

    This saves a file for the ten seconds until the first heartbeat.
    """
    assert directory.meters() is None
    spec = ShimSpec(argv=("true",), cwd="/", env={}, time_limit_s=None, kill_grace_s=1.0, start_before=1.0, umask=0o022)
    directory.write_spec(spec, {"since_s": 5.0, "devices": {}})
    assert {"since_s": 5.0, "devices": {}} == figures(directory)

    directory.keep_meters({"since_s": 6.0, "devices": {}})

    assert {"since_s": 6.0, "devices": {}} == figures(directory)


def figures(directory: RunDir) -> dict[str, object]:
    """Return the saved figures."""
    found = directory.meters()
    return {} if found is None else {name: found.plain(name) for name in found}


@pytest.mark.parametrize("name", ["figures", ".figures", ".figures.12.3", "whole.json", ".whole.json"])
def test_a_settlement_removes_what_only_a_live_run_needs(name: str) -> None:
    """The figures so far stayed after the end, and so could the request of a whole job, which has its environment."""
    assert is_ours(name)
    assert not is_ours(f"{name}.txt")


def test_a_run_directory_has_the_spec_and_the_name_of_its_user(tmp_path: Path) -> None:
    """The spec is in the claim. The user is noted once, and a name with a slash is kept as it is."""
    for number, user in ((1, "ann"), (2, "../1")):
        directory = RunDir.create(tmp_path, Held(job_id=number, token="1.a", devices=()), "{}")
        directory.note_user(user)
        directory.note_user("bob")
        assert (user, "{}") == (str((directory.path / USER).readlink()), directory.payload())
