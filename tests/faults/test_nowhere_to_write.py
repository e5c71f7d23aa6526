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
    """Return a state directory that cannot be made, or not be written to."""
    if request.param == "read-only":
        with own_disk(tmp_path / "disk", options="ro") as disk:
            yield disk / "state"
        return
    (tmp_path / "file").touch()
    places = {"below a file": tmp_path / "file" / "state", "a file": tmp_path / "file"}
    yield places.get(request.param, Path("/proc/no/state"))


def run(state_dir: Path | None, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run one of our commands as a user would, with nothing set but the state directory."""
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
    """Whoever has to write there."""
    done = run(state_dir, *command)

    assert (1, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert f": the state directory {state_dir} cannot be used: " in line
    assert line.endswith(". Set GPUQUEUE_STATE_DIR to one that you may write to")


@pytest.mark.parametrize("words", ["submit --mem 1M -- true", "queue", "gpus", "logs 1"])
def test_whoever_only_asks_the_store_says_that_it_is_not_there(state_dir: Path, words: str) -> None:
    """Nothing is written for a submit; so a home that is read-only is no reason to refuse one."""
    done = run(state_dir, "gpuqueue", *words.split())

    assert (4, "") == (done.returncode, done.stdout)
    (line,) = done.stderr.splitlines()
    assert "does not answer: is it running? Start it with gpuqueue up" in line


def test_a_machine_that_has_nothing_yet_has_no_jobs_without_a_worker(state_dir: Path) -> None:
    """`down` asks for them, also where nothing was ever written."""
    done = run(state_dir, "gpuqueue-worker", "left")

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("home", ["not/absolute", None], ids=["an odd one", "none"])
def test_an_account_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    """In a container with a uid of no account: it made a directory called `~` wherever it was started."""

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
    """It did in every version; asking it takes a command longer than all other settings."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if state_home is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state_home)

    assert platformdirs.user_state_path("gpuqueue") == Settings.load({}).state_dir


def test_a_home_that_is_not_there_is_no_reason_to_refuse_a_state_directory_that_is(tmp_path: Path) -> None:
    """A service account often has no home, and says where its state is."""
    done = run(tmp_path / "state", "gpuqueue", "status", HOME="/proc/no/home")

    assert (4, "") == (done.returncode, done.stderr)
    assert Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path / "state")}).redis_url in done.stdout
