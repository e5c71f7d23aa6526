from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from short_host import own_disk
from site_of_one import BIN

from gpuqueue.errors import BadRequest
from gpuqueue.settings.settings import Settings


@pytest.fixture(params=["read-only", "below a file", "a file", "below /proc"])
def state_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a state directory that cannot be created or cannot be written to."""
    if request.param == "read-only":
        with own_disk(tmp_path / "disk", options="ro") as disk:
            yield disk / "state"
        return
    (tmp_path / "file").touch()
    places = {"below a file": tmp_path / "file" / "state", "a file": tmp_path / "file"}
    yield places.get(request.param, Path("/proc/no/state"))


def run(state_dir: Path | None, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a gpuqueue command as a user would, with only the state directory set."""
    ours = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_DEVICES": "sim:1x1G", "PATH": f"{BIN}:/usr/bin:/bin"}
    where = {} if state_dir is None else {"GPUQUEUE_STATE_DIR": str(state_dir)}
    command = [str(BIN / words[0]), *words[1:]]
    return subprocess.run(
        command, env={**ours, **where, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "command", [("gpuqueue", "up"), ("gpuqueue", "down"), ("gpuqueue-worker", "run", "--plain")], ids=" ".join
)
def test_one_line_says_what_is_wrong_and_what_to_do(state_dir: Path, command: tuple[str, ...]) -> None:
    """Commands that write to the state directory name the fault and the remedy in one line."""
    done = run(state_dir, *command)

    assert (1, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert f": the state directory {state_dir} cannot be used: " in line
    assert line.endswith(". Set GPUQUEUE_STATE_DIR to one that you may write to")


@pytest.mark.parametrize("words", ["submit --mem 1M -- true", "queue", "gpus", "logs 1", "top"])
def test_a_command_that_only_reads_says_that_there_is_no_queue_yet(state_dir: Path, words: str) -> None:
    """Commands that only use the store report that there is none yet, and how to start it.

    A submit writes no file, so a read-only home directory is no reason to refuse it.
    """
    done = run(state_dir, "gpuqueue", *words.split())

    assert (4, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert f"there is no queue in {state_dir} yet: start one with gpuqueue up" in line


@pytest.mark.parametrize("command", ["history", "stats"])
def test_the_commands_of_the_history_say_so_too(tmp_path: Path, command: str) -> None:
    """A person who has never started a queue need not know what a history database is."""
    done = run(tmp_path / "state", "gpuqueue", command)

    assert (4, "") == (done.returncode, done.stdout)
    assert f"there is no queue in {tmp_path / 'state'} yet: start one with gpuqueue up" in done.stderr


def test_a_machine_that_has_nothing_yet_has_no_jobs_without_a_worker(state_dir: Path) -> None:
    """`gpuqueue-worker left` finds no jobs on a host where nothing was ever written.

    `gpuqueue down` runs this command.
    """
    done = run(state_dir, "gpuqueue-worker", "left")

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("home", ["not/absolute", None], ids=["an odd one", "none"])
def test_an_account_without_a_home_gets_the_setting_to_use(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    """An account without a home directory gets the name of the setting that it needs.

    Such an account is a uid without a passwd entry in a container. gpuqueue used to create a directory called `~` in
    the working directory.
    """

    def nobody(_uid: int) -> None:
        raise KeyError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    if home is not None:
        monkeypatch.setenv("HOME", home)

    with pytest.raises(BadRequest, match="has no home directory: set GPUQUEUE_STATE_DIR"):
        Settings.load({})


@pytest.mark.parametrize("state_home", [None, "", " ", "/var/tmp/elsewhere"])
def test_the_state_lies_where_platformdirs_says(monkeypatch: pytest.MonkeyPatch, state_home: str | None) -> None:
    """The default state directory is that of platformdirs, as in every earlier version.

    gpuqueue computes the path itself, because importing platformdirs takes longer than loading all other settings.
    """
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if state_home is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state_home)

    assert platformdirs.user_state_path("gpuqueue") == Settings.load({}).state_dir


def test_a_home_that_is_not_there_is_no_reason_to_refuse_a_state_directory_that_is(tmp_path: Path) -> None:
    """A missing home directory does not matter if the state directory is set.

    Service accounts often have no home directory.
    """
    done = run(tmp_path / "state", "gpuqueue", "status", HOME="/proc/no/home")

    assert (4, "") == (done.returncode, done.stderr)
    assert Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path / "state")}).redis_url in done.stdout
