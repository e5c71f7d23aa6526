from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from factories import make_spec
from site_of_one import BIN, Site

from gpuqueue.cli.main import COMMANDS
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(site: Site, command: str) -> None:
    """Each command has ``--help`` and is in the list of commands."""
    assert "Usage: gpuqueue" in site.cli(command, "--help").stdout
    assert f"  {command} " in site.cli("--help").stdout


def test_without_tables_the_history_says_what_to_do(site: Site) -> None:
    """A history without tables gives a message that says what to do, and no traceback."""
    done = site.cli("history", check=False)

    assert 4 == done.returncode
    assert "run gpuqueue up, or gpuqueue db upgrade" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "queue",
        "history",
        "stats",
        "show 1",
        "why 1",
        "logs 1",
        "wait 1",
        "gpus",
        "limits",
        "status",
        "top --json",
        "doctor",
    ],
)
def test_a_reading_command_creates_no_files(site: Site, tmp_path: Path, words: str) -> None:
    """Commands that only read create nothing in a missing state directory.

    A typing error in GPUQUEUE_STATE_DIR used to create a directory with an empty database.
    """
    wrong = tmp_path / "stat"
    environ = {name: value for name, value in site.environ.items() if name != "GPUQUEUE_REDIS_URL"}
    environ["GPUQUEUE_STATE_DIR"] = str(wrong)
    environ.pop("GPUQUEUE_DATABASE_URL", None)

    done = subprocess.run([BIN / "gpuqueue", *words.split()], env=environ, capture_output=True, text=True, check=False)

    assert done.returncode in {1, 4}
    assert not wrong.exists()
    if words not in {"doctor", "status"}:  # these two print a report
        (line,) = done.stderr.splitlines()
        assert "gpuqueue up" in line
        assert "GPUQUEUE_STATE_DIR" in line


def test_a_program_says_on_what_it_runs_in_words(site: Site) -> None:
    """The Python API takes the device kinds of the command line.

    An unknown kind is refused before anything is queued.
    """
    assert DeviceFilter.CPU is site.client.jobs.submit(["true"], mem="1G", device="cpu").spec.device
    assert DeviceFilter.ANY is site.client.jobs.submit(["true"], mem="1G", device=DeviceFilter.ANY).spec.device
    with pytest.raises(BadRequest, match="or write gpu, cpu or any"):
        site.client.jobs.submit(["true"], mem="1G", device="tpu")
    assert (2, 0) == site.queue.jobs.counts()


def test_a_reader_that_leaves_is_no_mistake(site: Site) -> None:
    """A reader that closes the pipe causes no error message."""
    for _ in range(3):
        site.queue.requests.submit(make_spec())
    done = subprocess.run(
        ["/bin/sh", "-c", "gpuqueue queue --json | head -c 0"],
        env=site.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ("", "") == (done.stdout, done.stderr)


def test_a_missing_directory_is_reported_without_a_traceback(site: Site, tmp_path: Path) -> None:
    """A submit from a deleted directory gives a message and no traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    # The program begins with /bin/sh where the path of the interpreter has a space. That warns of the directory itself.
    command = shlex.join([sys.executable, str(BIN / "gpuqueue"), "submit", "--mem", "1M", "--", "pwd"])
    script = f"cd {gone} && rmdir {gone} && exec {command}"

    done = subprocess.run(
        ["/bin/sh", "-c", script], env=site.environ, capture_output=True, text=True, timeout=60, check=False
    )

    assert (2, "gpuqueue: the current directory is gone: go elsewhere, or use --cwd\n") == (
        done.returncode,
        done.stderr,
    )


def test_an_id_that_cannot_be_printed_goes_to_standard_error(site: Site) -> None:
    """If stdout cannot be written, stderr has the id, because the job is queued."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(BIN / "gpuqueue"), "submit", "--mem", "1M", "--", "true"],
            env=site.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert 1 == done.returncode
    assert "job 1 is queued, but its id could not be printed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_changes_nothing_that_is_done(site: Site, closed: int) -> None:
    """With any closed standard stream ``submit`` succeeds.

    ``submit >&-`` used to queue its job and fail with a traceback, so that a user who tried again had two jobs.
    """
    site.queue.recovery.open(0)
    command = f'"{BIN / "gpuqueue"}" submit --mem 64M -- true {closed}>&-'

    done = subprocess.run(["/bin/sh", "-c", command], env=site.environ, capture_output=True, text=True, check=False)

    assert (0, False) == (done.returncode, "Traceback" in done.stderr), done.stderr
    assert 1 == len(site.queue.jobs.live())
