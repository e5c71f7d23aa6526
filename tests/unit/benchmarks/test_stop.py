"""Tests that a stopped benchmark leaves nothing behind, and that the next run cleans up after a killed one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bounded import until

from benchmarks import __main__ as whole
from benchmarks.measure.figure import Figure, Measured
from benchmarks.measure.home import MARK, clean_environ, clear_dead, whole_run
from benchmarks.measure.stop import Stopped, heeding, not_now

ROOT = Path(__file__).resolve().parents[3]
#: A part of a run that never ends, with its own directory and a child that would outlive it.
ENDLESS = """
import subprocess, sys, tempfile, time
from benchmarks.measure.figure import Figure
from benchmarks.measure.table import report

def figures():
    place = tempfile.mkdtemp()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield Figure(name=f"at.{child.pid}", value=1.0, unit="ms")
    time.sleep(600)

report(figures())
"""


@contextlib.contextmanager
def measuring(below: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Start a benchmark in *below*, and yield its process and the child that it started."""
    environ = {**os.environ, "TMPDIR": str(below), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", ENDLESS]
    with subprocess.Popen(
        words, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            child = next(line for line in process.stdout if line.startswith("at."))
            yield process, psutil.Process(int(child.split()[0].removeprefix("at.")))
        finally:
            process.kill()


def gone(process: psutil.Process) -> bool:
    """Return whether a process has ended."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send the signal, and again to a process that goes on, as a person does. Return its standard error.

    Python drops an exception that a signal raises in a destructor.
    """
    for _ in range(3):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=60)[1]
    raise AssertionError("it goes on after three signals")


@pytest.fixture
def quiet_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore `threading.excepthook`, which a stopped run replaces."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_stops_a_benchmark_finds_nothing_of_it(number: signal.Signals, tmp_path: Path) -> None:
    """A stopped benchmark leaves nothing.

    Regression: its server, its processes and its directory stayed after SIGTERM, and after Ctrl-C at a bad moment.
    """
    with measuring(tmp_path) as (process, child):
        output = stopped(process, number)

    assert 128 + number == process.returncode
    assert f"benchmarks: stopped by {number.name}\n" == output
    assert gone(child)
    assert [] == list(tmp_path.iterdir())


def test_the_next_run_clears_away_what_a_kill_has_left(tmp_path: Path) -> None:
    """The next run cleans up after SIGKILL. It leaves a live run and directories of other programs alone."""
    (tmp_path / "gq-bench-of-old").mkdir()
    with measuring(tmp_path) as (process, child):
        assert [] == clear_dead(tmp_path)
        process.kill()
        process.wait()
        assert not gone(child)

        (cleared,) = clear_dead(tmp_path)

        until(lambda: gone(child))
    assert not cleared.exists()
    assert ["gq-bench-of-old"] == [each.name for each in tmp_path.iterdir()]


@pytest.mark.usefixtures("quiet_threads")
def test_a_stop_that_is_lost_on_its_way_is_heeded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stop takes effect although another error hides it.

    Regression: a directory that could not be removed raised its own error, and the run went on with exit status 0.
    """
    after: list[str] = []

    def loses_it(*, quick: bool) -> Measured:
        yield Figure(name="one.thing", value=float(quick), unit="ms")
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise OSError(39, "Directory not empty") from None

    def never(*, quick: bool) -> Measured:
        after.append(f"{quick}")
        yield Figure(name="another.thing", value=1.0, unit="ms")

    monkeypatch.setattr(whole, "BENCHMARKS", {"one": loses_it, "another": never})
    monkeypatch.setattr(whole, "_machine", dict)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = tmp_path / "run.json"

    with pytest.raises(SystemExit) as ended:
        whole.main(["--json", str(kept)])

    assert 130 == ended.value.code
    assert [] == after
    assert '"one.thing"' in kept.read_text()
    assert f"stopped by SIGINT; what was measured until then is in {kept}\n" in capsys.readouterr().err


@pytest.mark.usefixtures("quiet_threads")
def test_what_is_cleaned_up_is_cleaned_up_whole() -> None:
    """A stop signal during cleanup takes effect after the cleanup."""
    done = []

    with pytest.raises(Stopped), heeding():
        with not_now():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("whole")
        done.append("too far")

    assert ["whole"] == done


def test_all_children_have_one_and_the_same_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All children get the same clean environment.

    Regression: some children had the user's settings and an interpreter that compiled every module again, which changed
    the floor.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("GPUQUEUE_DATABASE_URL", "sqlite:////of/the/user")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = dict(os.environ)

    with whole_run():
        inside = dict(os.environ)
        again = clean_environ(inside[MARK])

    assert before == dict(os.environ)
    assert inside == again
    assert {"GPUQUEUE_CONFIG"} == {each for each in inside if each.startswith("GPUQUEUE_")}
    assert "PYTHONDONTWRITEBYTECODE" not in inside
    assert f"{inside[MARK]}/compiled" == inside["PYTHONPYCACHEPREFIX"]
    assert Path(inside[MARK]).parent == tmp_path
