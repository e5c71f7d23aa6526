from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from factories import make_offer, make_spec, serve
from site_of_one import BIN, Site

from gpuqueue.cli.main import COMMANDS
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(site: Site, command: str) -> None:
    """Each command has ``--help`` and is in the list of commands."""
    assert "Usage: gpuqueue" in site.cli(command, "--help").stdout
    assert f"  {command} " in site.cli("--help").stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["submit", "--mem", "80G", "--device", "gpu", "--", "true"], 2, "the largest GPU can give 24G"),
        (["submit", "--mem", "1G", "--gpus", "2", "--device", "cpu", "--", "true"], 2, "ask for one device"),
        (["submit", "--mem", "1G", "--", ""], 2, "there is no command to run"),
        (["logs", "77"], 3, "there is no job 77"),
        (["wait", "77"], 3, "there is no job 77"),
        (["cancel", "77"], 3, "there is no job 77"),
        (["hold", "77"], 3, "there is no job 77"),
        (["history", "--json", "--csv"], 2, "exclude each other"),
        (["history", "--json", "--columns", "id"], 2, "--json has no columns"),
        (["history", "--exit-code", "256"], 2, "--exit-code: 256 is not valid: give a whole number from 0 to 255"),
        (["submit", "--mem", "-6G", "--", "true"], 2, "negative sizes make no sense"),
        (["history", "--columns", ""], 2, "'' is no column"),
        (
            ["history", "--exit-code", "0", "--exit-code=3"],
            2,
            "--exit-code takes one value and is given twice",
        ),
        (
            ["history", "-u", "ada", "--user", "bob", "-ueve"],
            2,
            "--user takes one value and is given 3 times",
        ),
        (["stats", "--by", "user", "--by", "host"], 2, "--by takes one value and is given twice"),
        (
            ["cancel", "-n", "a", "-n", "b"],
            2,
            "--name takes one value and is given twice: run the command once for each",
        ),
        (["queue", "-u", "ada", "-u", "bob"], 2, "--user takes one value and is given twice"),
        (["history", "--min-peak", "20"], 2, "add the unit: 20M or 20G"),
        (["history", "--min-duration", "long"], 2, "is not a duration"),
        (["history", "--min-duration", "2h", "--max-duration", "1h"], 2, "no run is both"),
        (["history", "--since", "1d", "--until", "2d"], 2, "nothing lies between them"),
        (["history", "--since", "0001-01-01"], 2, "is no time"),
        (["history", "--command", "x" * 1001], 2, "text must have at most 1000 characters"),
        (["history", "--after", "77"], 3, "no job 77 in the history to continue after: take the last id of a page"),
        (["history", "--sort", "peak", "--after", "77"], 3, "no job 77 in the history"),
        (["top", "--interval", "nan"], 2, "--interval: nan is not valid: give a number from 0.2 to 3600"),
        (["show", "1_2-3"], 2, "1_2-3 is several jobs"),
        (["cancel", "1_x"], 2, "is no job"),
        (["cancel", "77_1"], 3, "there is no job 77"),
        (["submit", "--mem", "1G", "--array", "0-9%x", "--", "true"], 2, "number of concurrent members"),
        (["submit", "--mem", "1G", "--sweep", "lr", "--", "true"], 2, "is no sweep: write it like lr=1e-3"),
        (["submit", "--mem", "1G", "--array", "0-9", "--sweep", "a=1", "--", "true"], 2, "exclude each other"),
        (["submit", "--mem", "1G", "--at-once", "3", "--", "true"], 2, "add one, such as --array 0-99"),
        (["submit", "--mem", "1G", "--array", "0-9%2", "--at-once", "3", "--", "true"], 2, "is given twice"),
        (["run", "--mem", "1G", "--array", "0-9", "--", "true"], 2, "run attends one: gpuqueue submit --array"),
        (["run", "--mem", "1G", "--sweep", "a=1,2", "--", "true"], 2, "--sweep makes many jobs"),
        (["submit", "--mem", "1G", "--sweep", "lr=0.1..0.5", "--", "true"], 2, "name other values one by one"),
        (["submit", "--mem", "0", "--", "true"], 2, "is not a size"),
        (["show", "99999999999999999999999999"], 2, "is no job"),
        (["history", "--before", "99999999999999999999999999"], 2, "is no job: write 17"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_a_documented_code(site: Site, words: list[str], code: int, line: str) -> None:
    """A mistake gets a line on stderr with the fault and the remedy, no stdout, and queues nothing."""
    site.cli("db", "upgrade")
    serve(site.queue, make_offer(host="far"))

    done = site.cli(*words, check=False)

    assert (code, "") == (done.returncode, done.stdout)
    assert line in done.stderr
    assert (0, 0) == site.queue.jobs.counts()


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
        f"{Path(site.environ['PATH'].split(':')[0]) / 'gpuqueue'} queue --json | head -c 0",
        shell=True,
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
    script = f"cd {gone} && rmdir {gone} && exec gpuqueue submit --mem 1M -- pwd"

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
