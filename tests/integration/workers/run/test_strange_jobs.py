from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from bounded import until
from factories import make_spec, must_claim, serve
from site_of_one import BIN, Site
from spoken import Spoken, harmless, speak

from gpuqueue.errors import BadRequest
from gpuqueue.model import validation
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

#: Strange texts, used as names, arguments, environment variables and directories of jobs.
STRANGE = (
    "two\nlines\r\nand\ta tab",
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "\udcff\udcfe no UTF-8",
    "'\"\\ quotes `touch injected`",
    "$(touch injected); touch injected | touch injected & $PATH",
    "'); DROP TABLE jobs; --",
    "-rf",
    "--mem",
    "--",
    "",
    "\u202eright to left\u200bno width\ufeff\u2028line",
    "%s%n{0}{gq}:epoch",
    "=HYPERLINK(1)",
    "a\x01b\x7f\x9b31m",
    "é😀",
)
#: Prints its arguments, directory and variables as hexadecimal digits.
REPORT = """
import json, os, sys
hexed = lambda text: os.fsencode(text).hex()
mine = {hexed(name): hexed(value) for name, value in os.environ.items() if name.startswith("STRANGE")}
print(json.dumps({"argv": [hexed(word) for word in sys.argv[1:]], "cwd": os.getcwdb().hex(), "env": mine}))
"""


def hexed(text: str) -> str:
    """Return the bytes of *text* as hexadecimal digits."""
    return os.fsencode(text).hex()


@pytest.fixture
def report(tmp_path: Path) -> str:
    """Return a program that prints what it was given."""
    script = tmp_path / "report.py"
    script.write_text(REPORT)
    return str(script)


def say(site: Site, *words: str) -> Spoken:
    """Run a command of the site's command line in this process, which is quicker than a new process."""
    with patch.dict(os.environ, site.environ, clear=True):
        output = speak(words)
    assert "Traceback" not in output.stderr
    return output


@pytest.mark.full
def test_strange_words_reach_the_job_as_they_are_and_nobody_else(site: Site, tmp_path: Path, report: str) -> None:
    """Each job gets exactly its bytes, what is shown of it is harmless, and nothing of it is executed."""
    inside = tmp_path / "in\n\x1b[31m'$(touch injected)\udcff"
    inside.mkdir()
    env = {f"STRANGE\n{n}\x1b[31m\udcff": text for n, text in enumerate(STRANGE)}
    pairs = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    job = ["--mem", "1M", "-C", str(inside), *pairs, "--", sys.executable, report, *STRANGE]
    site.start_recorder()
    names = [name for name in STRANGE if _is_name(name)]
    ids = [int(site.cli("submit", f"--name={names[0]}", *job).stdout)]
    ids += [int(say(site, "submit", f"--name={name}", *job).stdout) for name in names[1:]]
    waiting = say(site, "queue").stdout
    site.start_worker(plain=False)
    for job_id in ids:
        site.until_recorded(job_id)

    for job_id in ids:
        output = json.loads(say(site, "logs", str(job_id)).stdout)
        assert [hexed(word) for word in STRANGE] == output["argv"]
        assert (hexed(str(inside)), {hexed(name): hexed(value) for name, value in env.items()}) == (
            output["cwd"],
            output["env"],
        )
    shown = [waiting, *(say(site, "show", str(job_id)).stdout for job_id in ids), say(site, "history", "--csv").stdout]
    shown += [say(site, "history").stdout, say(site, "gpus").stdout, site.cli("show", "1").stdout.encode()]
    for text in (*shown, site.log().encode()):
        assert harmless(text.decode()), text
    assert not [*tmp_path.rglob("injected")]
    assert not Path("injected").exists()
    history = json.loads(say(site, "history", "--json").stdout)
    assert names[::-1] == [row["job"]["spec"]["name"] for row in history]
    assert {(sys.executable, report, *STRANGE)} == {tuple(row["job"]["spec"]["argv"]) for row in history}
    rows = [*csv.DictReader(io.StringIO(say(site, "history", "--csv").stdout.decode()))]
    assert [str(job_id) for job_id in reversed(ids)] == [row["id"] for row in rows]
    assert all(None not in row and None not in row.values() for row in rows)
    dropper = json.loads(say(site, "history", "--json", "--name", "'); DROP TABLE jobs; --").stdout)
    assert ["'); DROP TABLE jobs; --"] == [row["job"]["spec"]["name"] for row in dropper]


def _is_name(text: str) -> bool:
    """Return whether a job can have this name: one line without control characters, and not only blanks."""
    try:
        validation.name(text)
    except BadRequest:
        return False
    return True


@pytest.mark.full
def test_a_megabyte_of_arguments_reaches_the_job(site: Site, report: str) -> None:
    """A job gets arguments up to the largest size of one, and about a megabyte in all, if the site permits it."""
    site.environ["GPUQUEUE_LIMITS"] = "*: arguments=1M"
    site.start_recorder()
    site.start_worker()
    words = ["x" * 131_071] * 7
    job_id = int(site.cli("submit", "--mem", "1M", "--", sys.executable, report, *words).stdout)

    site.until_recorded(job_id)
    assert [hexed(word) for word in words] == json.loads(say(site, "logs", str(job_id)).stdout)["argv"]
    assert harmless(say(site, "show", str(job_id)).stdout.decode())


@pytest.mark.full
def test_what_is_too_much_for_the_host_is_a_refusal_with_words(site: Site, report: str) -> None:
    """Arguments that exceed the host's limit refuse the job with a reason.

    The limit for all strings together is a quarter of the stack limit, which only the job's host knows.
    """
    site.environ["GPUQUEUE_LIMITS"] = "*: arguments=1M"
    site.start_recorder()
    before = {each.worker for each in site.queue.devices.all()}
    site.spawn_command(["/bin/sh", "-c", "ulimit -s 1024; exec gpuqueue-worker run --plain"])
    until(lambda: {each.worker for each in site.queue.devices.all()} - before, what="a worker")
    job_id = int(say(site, "submit", "--mem", "1M", "--", sys.executable, report, *["x" * 100_000] * 6).stdout)

    record = site.until_recorded(job_id)

    assert record.last_run is not None
    assert record.last_run.ending is not None
    assert (JobState.FAILED, EndingKind.REFUSED) == (record.job.state, record.last_run.ending.kind)
    assert "Argument list too long" in record.last_run.ending.detail
    for words in (["logs"], ["logs", "-f"]):
        output = say(site, *words, str(job_id)).stderr
        assert (
            f"gpuqueue: job {job_id} never started: cannot start {sys.executable}: Argument list too long\n" == output
        )


@pytest.mark.full
def test_a_program_with_a_strange_name_is_missing_in_plain_words(site: Site) -> None:
    """A missing program with a strange name is reported in harmless words, in lists and on terminals."""
    site.start_recorder()
    site.start_worker()
    name = "/no/\x1b]0;owned\x07\n\udcffprogram"
    job_id = int(say(site, "submit", "--mem", "1M", "--", name).stdout)
    site.until_state(job_id, JobState.HELD)

    for words in (["show", str(job_id)], ["queue"], ["why", str(job_id)], ["wait", "--timeout", "0s", str(job_id)]):
        done = say(site, *words)
        assert harmless(done.stdout.decode() + done.stderr), words
    run = say(site, "run", "--mem", "1M", "--", name)
    assert (1, True) == (run.code, harmless(run.stderr))
    assert f"was cancelled: no host can start it: {site.settings.host}: cannot start /no/" in run.stderr
    assert harmless(site.log()), ascii(site.log())


@pytest.mark.full
@pytest.mark.parametrize("words", [["wait"], ["logs", "-f"], ["run"]])
def test_a_waiting_client_learns_that_the_job_is_held(site: Site, words: list[str]) -> None:
    """A command that waits for a job reports once that the job is held.

    Otherwise a hold looks like any other wait.
    """
    site.start_recorder()  # without a recorder these commands would wait for the history, too
    if words == ["run"]:
        command = ["run", "--mem", "1M", "--", "true"]
    else:
        command = [*words, str(site.queue.requests.submit(make_spec()).id)]
    waiter = subprocess.Popen(
        [str(BIN / "gpuqueue"), *command], env=site.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until(lambda: site.queue.jobs.get(1), what="the job")
        assert waiter.stderr is not None
        site.queue.jobs.hold(1)
        line = b"queued"
        while b"held" not in line:
            assert line, "it printed no line about the hold"
            line = waiter.stderr.readline()
        assert b"gpuqueue: job 1 is held until it is released: gpuqueue release 1\n" == line
        site.queue.jobs.cancel(1)
        assert b"held" not in waiter.communicate(timeout=60)[1]
    finally:
        if waiter.poll() is None:
            waiter.send_signal(signal.SIGKILL)
            waiter.wait(timeout=30)


def test_a_job_lost_too_often_is_reported_to_a_waiting_client(site: Site) -> None:
    """A command that waits for a job held after too many losses reports that reason."""
    serve(site.queue)
    site.queue.requests.submit(make_spec())
    claimed = must_claim(site.queue)
    site.queue.runs.lose(1, claimed.token, loss_limit=1, detail="gone")

    output = say(site, "wait", "--timeout", "0.1s", "1")

    assert 124 == output.code
    assert "job 1 is held (its runs were lost too often) until it is released: gpuqueue release 1" in output.stderr
