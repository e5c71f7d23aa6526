"""Tests of the peer benchmarks: every wait ends, no process is left behind, and a missing peer is reported."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from bounded import until

from benchmarks.measure.ended import patient
from benchmarks.measure.figure import Absent
from benchmarks.peers import compare, gflow, gpuqu, jobd, python_queues, slurm, task_spooler
from benchmarks.peers.compare import _quiet, figures, within
from benchmarks.peers.crew import MARK, Crew, alive, marked, running
from benchmarks.peers.install import FROM_DEBIAN, FROM_PYPI
from benchmarks.peers.known import PEERS
from benchmarks.peers.peer import Peer, Submitter, private_place
from benchmarks.peers.submitter import TO


def environ(place: Path) -> dict[str, str]:
    """Return the environment of the processes of a peer in *place*."""
    return {MARK: str(place), "PATH": "/usr/bin:/bin"}


def test_every_peer_has_who_submits_to_it() -> None:
    """Every peer has a submitter and every submitter a peer. Otherwise a run would fail in the middle."""
    assert set(PEERS) == set(TO)


@pytest.mark.parametrize("name", [each for each in (*FROM_PYPI, *FROM_DEBIAN) if each in PEERS])
def test_a_missing_peer_is_reported_with_the_command_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing peer is reported as absent with the command that installs it. The other peers are still measured."""
    for module in (python_queues, gflow, jobd, gpuqu):
        monkeypatch.setattr(module, "HOME", tmp_path)
    for module in (task_spooler, slurm):
        monkeypatch.setattr(module.shutil, "which", lambda *_, **__: None)

    reported = list(figures(names=[name]))

    (missing,) = reported
    assert isinstance(missing, Absent)
    assert missing.name == f"peers.{name}"
    assert missing.why.startswith(f"not installed: python -m benchmarks.peers.install {name}")


def test_a_peer_that_does_not_answer_is_given_up() -> None:
    """A submit that gets no answer times out. Regression: a hanging submit blocked the whole run."""
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            with pytest.raises(TimeoutError, match="no answer"):
                Submitter(process, patience_s=0.1).submit(["true"])
        finally:
            process.kill()


def test_a_peer_that_breaks_off_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that fails is reported with the reason, and the run goes on with the next peer."""

    @contextmanager
    def hangs() -> Iterator[Peer]:
        raise TimeoutError("the daemon did not come")
        yield

    monkeypatch.setattr(compare, "PEERS", {"one": hangs})

    assert [Absent(name="peers.one", why="it broke off: the daemon did not come")] == list(figures())


def test_a_failed_command_is_reported_with_its_output() -> None:
    """The error of a failed command contains its output.

    Regression: the error said only that the exit status was not 0.
    """
    words = ["sh", "-c", "echo no such queue >&2; exit 2"]
    peer = Peer(name="one", environ={}, mains=list, restart=lambda: None)

    with pytest.raises(RuntimeError, match="sh ended with 2: no such queue"):
        _quiet(words, peer)


def test_who_ended_is_started_again_and_nobody_else(tmp_path: Path) -> None:
    """Only a process that ended is started again.

    Regression: the last command was taken for the ended one, so a broker was started twice and a worker never again.
    """
    crew = Crew([["sleep", "601"], ["sleep", "602"]], environ(tmp_path))
    try:
        crew.start()
        first, second = crew.mains()
        first.kill()
        psutil.wait_procs([first])
        crew.start()

        # A process that was just started has no command line until it executes its program.
        until(lambda: [each.cmdline()[1:] for each in crew.mains()] == [["601"], ["602"]], what="both")
        assert second in crew.mains()
    finally:
        crew.end()


def test_a_daemon_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    """The wait for a daemon ends when the daemon ends. The error contains the daemon's last output."""
    words = ["sh", "-c", "echo no such port >&2; exit 3"]
    with (
        pytest.raises(RuntimeError, match="sh ended with 3: no such port"),
        running([words], environ(tmp_path)) as crew,
    ):
        crew.await_up(lambda: False, "a daemon")


def test_nothing_of_a_peer_is_left(tmp_path: Path) -> None:
    """No process of a peer is left, not even one that left its parent and its session, as some daemons do."""
    with running([["sh", "-c", "setsid sleep 600 & exec sleep 600"]], environ(tmp_path)) as crew:
        crew.await_up(lambda: len(marked(str(tmp_path))) > 1, "its child")
        left = marked(str(tmp_path))

    assert [] == alive(left)


def test_a_peer_is_as_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer does not see the user's settings and proxies, and its files are removed with its directory."""
    monkeypatch.setenv("SLURM_CONF", "/etc/mine")
    monkeypatch.setenv("HTTPS_PROXY", "http://nowhere")
    with private_place(path=["/first"], WORD="printed") as (place, given):
        assert (place, place, "printed") == (given["HOME"], given[MARK], given["WORD"])
        assert given["PATH"].startswith("/first:")
        assert {"SLURM_CONF", "HTTPS_PROXY"}.isdisjoint(given)
        Path(place, "left").touch()

    assert not Path(place).exists()


def test_a_slow_peer_gets_as_many_jobs_as_there_is_time_for() -> None:
    """A slow peer gets fewer jobs. Four hundred jobs at two seconds each would take a quarter of an hour."""
    assert (400, 30, 10) == (within(60, 400, 0.001), within(60, 400, 2.0), within(60, 400, 60.0))


def test_the_stand_in_for_cards_shows_one_for_each_slot(tmp_path: Path) -> None:
    """The stand-in for `nvidia-smi` shows one card for each slot, with the fields in the requested order."""
    cards = tmp_path / "nvidia-smi"
    cards.write_text(gpuqu.NVIDIA_SMI.replace("SLOTS", "2"))
    asked = ["sh", str(cards), "--query-gpu=index,name,memory.used,memory.total", "--format=csv,noheader,nounits"]

    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    assert "0, Stand-in, 0, 24576\n1, Stand-in, 0, 24576\n" == printed


# ---- what is timed ---------------------------------------------------------------------------------------------------


def test_the_end_of_a_process_is_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for the end of a process does not poll.

    Regression: a command of 40 ms took 64 ms, because ``subprocess`` with a timeout sleeps between two checks.
    """

    def never(_seconds: float) -> None:
        raise AssertionError("slept")

    monkeypatch.setattr(time, "sleep", never)
    with patient([sys.executable, "-c", "print('said')"], patience_s=60, stdout=subprocess.PIPE) as process:
        assert process.communicate()[0] == "said\n"
    assert process.returncode == 0


def test_a_process_that_does_not_end_is_killed() -> None:
    """A process that does not end in time is killed, so that the benchmark can go on."""
    with (
        pytest.raises(TimeoutError, match=r"sleep did not end within 0.1 s"),
        patient(["sleep", "60"], patience_s=0.1) as process,
    ):
        process.wait()
    assert process.returncode == -9
