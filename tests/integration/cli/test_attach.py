"""``run`` and ``attach``: the output, the reason for a wait, Ctrl-C on a real terminal, and the exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from factories import make_offer, make_spec, must_claim, serve
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.console import LEFT
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.text.units import GIB

GPUQUEUE = str(BIN / "gpuqueue")
CTRL_C = "\x03"
QUESTION = "[c]ancel it"


@pytest.fixture
def full(site: Site) -> Site:
    """Return a site whose only device is full for an hour."""
    site.make_tables()
    host = site.settings.host
    serve(site.queue, make_offer(host=host))
    site.queue.requests.submit(make_spec(mem_bytes=20 * GIB, time_limit_s=3600.0))
    claim = must_claim(site.queue, host=host)
    site.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path="/l", devices=())
    return site


@pytest.fixture
def working(site: Site) -> Site:
    """Return a site with a recorder and a worker."""
    site.start_recorder()
    site.start_worker()
    return site


def looper(site: Site, done: Path) -> int:
    """Submit a job that prints a line when it starts, and ends with 3 once *done* exists."""
    script = f"echo begun; until [ -e {done} ]; do sleep 0.05; done; echo over; exit 3"
    return int(site.cli("submit", "--mem", "1M", "--", "sh", "-c", script).stdout)


def piped(site: Site, directory: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a command whose output goes to the files ``out`` and ``err`` in *directory*."""
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        return subprocess.Popen([GPUQUEUE, *words], env=site.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


# ---- standard input ----------------------------------------------------------------------------------------------


def output_with(site: Site, stdin: int) -> str:
    """Return the stderr of ``run`` with *stdin* as its standard input."""
    words = [GPUQUEUE, "run", "--mem", "1M", "--", "cat"]
    done = subprocess.run(words, env=site.environ, stdin=stdin, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.full
def test_what_is_piped_to_it_is_not_lost_in_silence(working: Site, tmp_path: Path) -> None:
    """``run`` warns about data on standard input, which the job does not get. It used to be dropped silently."""
    shown_text = "gpuqueue: the job does not read standard input: put the data into a file"
    reader, writer = os.pipe()
    os.write(writer, b"data")
    assert shown_text in output_with(working, reader)
    os.read(reader, 10)
    assert shown_text not in output_with(working, reader)  # an open pipe without data, as from cron and ssh
    os.close(writer)
    assert shown_text not in output_with(working, reader)
    os.close(reader)

    (tmp_path / "data").write_bytes(b"data")
    with (tmp_path / "data").open("rb", buffering=0) as file:
        assert shown_text in output_with(working, file.fileno())
        file.read()
        assert shown_text not in output_with(working, file.fileno())
    assert shown_text not in output_with(working, subprocess.DEVNULL)


# ---- waiting -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_terminal_shows_why_it_waits_and_for_how_long(full: Site) -> None:
    """One line on the terminal is updated with the reason for the wait, and removed when it ends."""
    with Terminal([GPUQUEUE, "run", "--mem", "10G", "--", "true"], full.environ, columns=80) as terminal:
        line = terminal.shows("waits for memory")
        assert "job 2 waits for memory, " in line
        # The expected start comes early in the line, without today's date, so that it fits 80 columns.
        assert re.search(r" so far; by (\d{4}-\d\d-\d\d )?\d\d:\d\d ", line), line
        until(lambda: line not in terminal.lines(), what="a newer line")
        assert 1 == sum("waits for memory" in each for each in terminal.lines())
        full.cli("hold", "2")
        terminal.hides("waits for memory")
        terminal.shows("job 2 is held until it is released: gpuqueue release 2")
        full.cli("cancel", "2")
        assert 130 == terminal.ended()


@pytest.mark.full
def test_a_narrow_terminal_keeps_it_on_one_line(full: Site) -> None:
    """On a narrow terminal the line is shortened, because a wrapped line cannot be updated."""
    with Terminal([GPUQUEUE, "run", "--mem", "10G", "--", "true"], full.environ, columns=32) as terminal:
        terminal.shows("job 2 waits for memory, ")
        first = terminal.shows("waits for memory")
        until(lambda: first not in terminal.lines(), what="another line")
        assert 1 == sum("waits for memory" in each for each in terminal.lines())


@pytest.mark.full
def test_a_pipe_gets_a_line_a_change(full: Site, tmp_path: Path) -> None:
    """A pipe gets one line per change, not one per second, and no escapes. It may be a log file."""
    process = piped(full, tmp_path, "run", "--mem", "10G", "--", "true")
    err = tmp_path / "err"
    until(lambda: "waits for memory" in err.read_text(), what="the reason")
    full.cli("drain", "0")
    until(lambda: "waits for a device that is not drained" in err.read_text(), what="the other reason")
    process.send_signal(signal.SIGINT)

    assert 130 == process.wait(60)
    shown_text = err.read_text()
    assert 2 == shown_text.count(" waits ")
    assert "\x1b" not in shown_text
    assert "\r" not in shown_text
    assert JobState.CANCELLED is full.client.jobs.get(2).state


@pytest.mark.full
def test_what_starts_at_once_has_not_waited(working: Site) -> None:
    """A job that starts at once gives no message about a wait."""
    shown_text = working.cli("run", "--mem", "1M", "--", "true")

    assert "gpuqueue: job 1 queued\ngpuqueue: job 1 succeeded (exit 0)\n" == shown_text.stderr


# ---- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_ctrl_c_asks_and_every_answer_is_kept(working: Site, tmp_path: Path) -> None:
    """Ctrl-C offers to go on, detach or cancel.

    Detach and cancel have different exit codes, so that scripts can distinguish them. Both used to be 130.
    """
    job_id = looper(working, tmp_path / "done")
    with Terminal([GPUQUEUE, "attach", str(job_id)], working.environ) as terminal:
        terminal.shows("begun")
        terminal.press(CTRL_C)
        terminal.shows(QUESTION)
        terminal.press("x\r")  # an invalid answer used to mean: go on
        terminal.shows("answer c, d or g")
        terminal.press("\r")
        terminal.shows(f"job {job_id} goes on")
        terminal.press(CTRL_C)
        until(lambda: sum(QUESTION in line for line in terminal.lines()) == 3, what="another question")
        terminal.press("d\r")
        assert LEFT == terminal.ended()
        assert f"job {job_id}: it runs on: gpuqueue attach {job_id}" in terminal.picture()
    working.until_state_in_queue(job_id, JobState.RUNNING)

    with Terminal([GPUQUEUE, "attach", str(job_id)], working.environ) as terminal:
        terminal.shows("begun")
        terminal.press(CTRL_C)
        terminal.shows(QUESTION)
        terminal.press("c\r")
        assert 130 == terminal.ended()
        assert f"gpuqueue: job {job_id} cancelled" in terminal.lines()


@pytest.mark.full
def test_the_question_is_taken_back_when_the_job_ends(working: Site, tmp_path: Path) -> None:
    """If the job ends while the question is open, ``attach`` prints the remaining output and returns the exit code."""
    job_id = looper(working, tmp_path / "done")
    with Terminal([GPUQUEUE, "attach", str(job_id)], working.environ) as terminal:
        terminal.shows("begun")
        terminal.press(CTRL_C)
        terminal.shows(QUESTION)
        (tmp_path / "done").touch()
        assert 3 == terminal.ended()
        assert "over" in terminal.lines()
        assert f"gpuqueue: job {job_id} failed (exit 3)" in terminal.lines()


@pytest.mark.full
def test_a_ctrl_c_between_the_submit_and_the_first_poll_leaves_no_job(working: Site) -> None:
    """A Ctrl-C right after the submit cancels the job. It used to print only "interrupted", and the job ran."""
    early = (
        "import os, signal; from gpuqueue.cli import main\n"
        "from gpuqueue.cli.commands import run\n"
        "run.warn_if_nobody_sends = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "main.main()"
    )
    command = [sys.executable, "-c", early, "run", "--mem", "1M", "--", "sleep", "600"]
    done = subprocess.run(
        command, env=working.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )

    assert 130 == done.returncode, done.stderr
    assert JobState.CANCELLED is working.until_state(1, JobState.CANCELLED).state


@pytest.mark.full
def test_the_cancel_of_a_waiting_job_is_reported_in_one_line(full: Site) -> None:
    """Cancelling a waiting job gives one line, without a message about a missing log. The waiting line is removed."""
    with Terminal([GPUQUEUE, "run", "--mem", "10G", "--", "true"], full.environ, columns=85) as terminal:
        terminal.shows("waits for memory")
        terminal.press(CTRL_C)
        terminal.shows(QUESTION)
        terminal.press("c\r")
        assert 130 == terminal.ended()
        shown_text = [line for line in terminal.lines() if line]
        assert "gpuqueue: job 2 cancelled" == shown_text[-1]
        assert QUESTION in shown_text[-2]
        assert "waits for memory" not in terminal.picture()


@pytest.mark.full
def test_ctrl_c_twice_cancels(working: Site, tmp_path: Path) -> None:
    """A second Ctrl-C cancels the job, as users expect."""
    job_id = looper(working, tmp_path / "done")
    with Terminal([GPUQUEUE, "attach", str(job_id)], working.environ) as terminal:
        terminal.shows("begun")
        terminal.press(CTRL_C)
        terminal.shows(QUESTION)
        terminal.press(CTRL_C)
        assert 130 == terminal.ended()
    assert JobState.CANCELLED is working.client.jobs.get(job_id).state


@pytest.mark.full
@pytest.mark.parametrize("answer", ["d\r", "\x04"], ids=["d", "Ctrl-D"])
def test_a_job_that_waits_can_be_left(full: Site, answer: str) -> None:
    """The question replaces the waiting line. The exit code says that the job goes on."""
    with Terminal([GPUQUEUE, "run", "--mem", "10G", "--", "true"], full.environ, columns=120) as terminal:
        terminal.shows("waits for memory")
        terminal.press(CTRL_C)
        terminal.shows(QUESTION)
        terminal.press(answer)
        assert LEFT == terminal.ended()
        assert "job 2: it runs on: gpuqueue attach 2" in terminal.picture()
    assert JobState.QUEUED is full.client.jobs.get(2).state


@pytest.mark.full
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_no_byte_is_lost_or_doubled_by_a_ctrl_c_in_the_flood(working: Site, tmp_path: Path, unbuffered: str) -> None:
    """A Ctrl-C during heavy output loses and repeats no byte. The question comes between two pieces of output."""
    working.environ["PYTHONUNBUFFERED"] = unbuffered
    out = tmp_path / "out"
    slow = tmp_path / "slow.py"
    slow.write_text("import os, time\nwhile some := os.read(0, 65536):\n    os.write(1, some)\n    time.sleep(0.02)\n")
    reader = f"(trap '' INT; exec python3 {slow} > {out})"  # so slow that the writer is always in a write call
    words = f"set -o pipefail; {GPUQUEUE} run --mem 1M -- seq 1 1000000 | {reader}"
    with Terminal(["/bin/bash", "-c", words], working.environ) as terminal:
        for count in (1, 2, 3):
            until(lambda: out.exists() and out.stat().st_size > 0, what="output")
            terminal.press(CTRL_C)
            found = until(
                lambda n=count: (
                    sum(QUESTION in line for line in terminal.lines()) >= n  # type: ignore[misc]
                    or (terminal.process.poll() is not None and "over")
                ),
                what="a question, or the end",
            )
            if found == "over":
                break
            terminal.press("g\r")
            until(
                lambda n=count: sum("goes on" in line for line in terminal.lines()) >= n,  # type: ignore[misc]
                what="the answer to be taken",
            )
        assert 0 == terminal.ended()
        assert QUESTION in terminal.picture()
    assert out.read_bytes() == b"".join(b"%d\n" % number for number in range(1, 1000001))


@pytest.mark.full
def test_an_attached_job_is_not_cancelled_where_nobody_can_be_asked(working: Site, tmp_path: Path) -> None:
    """Without a terminal a SIGINT to ``attach`` does not cancel the job, and the exit code does not say so."""
    job_id = looper(working, tmp_path / "done")
    process = piped(working, tmp_path, "attach", str(job_id))
    until(lambda: "begun" in (tmp_path / "out").read_text(), what="output")
    process.send_signal(signal.SIGINT)

    assert LEFT == process.wait(60)
    assert JobState.RUNNING is working.client.jobs.get(job_id).state


# ---- output and exit code ----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -SEGV $$", 139), ("kill -KILL $$", 137), ("true", 0)]
)
def test_the_exit_code_or_signal_comes_back(working: Site, script: str, code: int) -> None:
    """``run``, ``wait`` and a later ``attach`` return the job's exit code or signal."""
    done = working.cli("run", "--mem", "1M", "--", "sh", "-c", f"echo out; {script}", check=False)

    assert (code, "out\n") == (done.returncode, done.stdout)
    again = working.cli("attach", "1", check=False)
    assert (code, "out\n") == (again.returncode, again.stdout)
    assert code == working.cli("wait", "1", check=False).returncode


@pytest.mark.full
def test_a_worker_that_dies_is_no_reason_to_stop_showing(working: Site, tmp_path: Path) -> None:
    """``attach`` continues without a message when the worker dies and the next one adopts the job."""
    job_id = looper(working, tmp_path / "done")
    process = piped(working, tmp_path, "attach", str(job_id))
    until(lambda: "begun" in (tmp_path / "out").read_text(), what="output")
    worker = working._processes[-1]
    working.end(worker, signal.SIGKILL)
    working.start_worker()
    (tmp_path / "done").touch()

    assert 3 == process.wait(60)
    assert "begun\nover\n" == (tmp_path / "out").read_text()


@pytest.mark.full
def test_a_second_run_is_announced_and_shown_from_its_beginning(working: Site, tmp_path: Path) -> None:
    """When a lost job runs again, the output has both runs in order. The message about it is only on stderr."""
    mark, seen, out = tmp_path / "mark", tmp_path / "seen", tmp_path / "out"
    wait = f"until [ -e {seen} ]; do sleep 0.1; done"
    script = f"if [ -e {mark} ]; then echo two; exit 5; fi; touch {mark}; echo one; {wait}; kill -9 $PPID; sleep 60"
    process = piped(working, tmp_path, "run", "--mem", "1M", "--", "sh", "-c", script)
    until(lambda: out.read_text() == "one\n", what="the output of the first run")
    seen.touch()

    assert (5, "one\ntwo\n") == (process.wait(60), out.read_text())
    assert 1 == (tmp_path / "err").read_text().count("job 1 runs again: the following output is of attempt 2")


@pytest.mark.full
def test_a_user_who_cannot_read_the_log_gets_the_state(site: Site, tmp_path: Path) -> None:
    """Without access to the log, such as one on another host, ``attach`` reports the job's state changes.

    It used to print nothing until the end.
    """
    site.start_recorder()
    serve(site.queue, make_offer(host="elsewhere"))
    job_id = site.queue.requests.submit(make_spec()).id
    claim = must_claim(site.queue, host="elsewhere")
    site.queue.runs.started(job_id, claim.token, lease_s=300, log_path="/l", devices=())
    process = piped(site, tmp_path, "attach", str(job_id))
    err = tmp_path / "err"
    until(lambda: f"job {job_id} running on elsewhere\n" in err.read_text(), what="its state")

    ending = Ending.from_status(3)
    site.queue.runs.finish(job_id, claim.token, state=JobState.FAILED, ending=ending, duration_s=1.0, devices=())

    assert 3 == process.wait(60)
    first, *others = err.read_text().splitlines()
    assert first.startswith(
        f"gpuqueue: the log of job {job_id} is on host elsewhere: /l. Its end and its exit code are still reported"
    )
    assert [f"gpuqueue: job {job_id} running on elsewhere", f"gpuqueue: job {job_id} failed (exit 3)"] == others


def test_a_log_in_a_shared_directory_of_runs_is_here(site: Site, tmp_path: Path) -> None:
    """Another host's log is read if it is below this host's directory of runs, as with containers, and only there."""
    site.make_tables()
    serve(site.queue, make_offer(host="elsewhere"))
    for shared in (True, False):
        job_id = site.queue.requests.submit(make_spec()).id
        claim = must_claim(site.queue, host="elsewhere")
        log = (site.settings.runs_dir if shared else tmp_path / "others") / str(job_id) / claim.token / "log"
        log.parent.mkdir(parents=True)
        log.write_text("shared\n")
        site.queue.runs.started(job_id, claim.token, lease_s=300, log_path=str(log), devices=())
        done = site.cli("logs", str(job_id), check=False)
        assert ((0, "shared\n") if shared else (5, "")) == (done.returncode, done.stdout), done.stderr


def test_nobody_attaches_to_what_is_not_there(site: Site) -> None:
    """An unknown job gives the same message and exit code as in other commands."""
    site.make_tables()
    done = site.cli("attach", "77", check=False)

    assert 3 == done.returncode
    assert "there is no job 77" in done.stderr


@pytest.mark.full
def test_the_tail_of_a_log_and_what_comes_after_it(site: Site, tmp_path: Path) -> None:
    """``logs --tail`` works alone, with ``-f`` before the job has run, and with a reader that closes the pipe."""
    site.start_recorder()
    site.cli("hold", str(site.client.jobs.submit(["sh", "-c", "seq 100000"], mem="1M").id))
    process = piped(site, tmp_path, "logs", "-f", "-n", "3", "1")
    until(lambda: "held" in (tmp_path / "err").read_text(), what="a follower")
    site.start_worker()
    site.cli("release", "1")

    assert 0 == process.wait(60)
    assert "100000" == (tmp_path / "out").read_text().split()[-1]
    assert "99999\n100000\n" == site.cli("logs", "--tail", "2", "1").stdout
    left = subprocess.run(
        ["/bin/bash", "-c", "gpuqueue logs 1 | head -1; echo ${PIPESTATUS[0]}"],
        env=site.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("1\n141\n", "") == (left.stdout, left.stderr)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_ended_says_that_the_job_runs_on(working: Site, tmp_path: Path, number: signal.Signals) -> None:
    """A ``run`` that is terminated, as by a broken connection, says that the job runs on."""
    shown_text = tmp_path / "shown_text"
    with shown_text.open("wb") as file:
        command = [str(BIN / "gpuqueue"), "run", "--mem", "1M", "--", "sh", "-c", "echo on; sleep 60"]
        process = subprocess.Popen(command, env=working.environ, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        until(lambda: b"on\n" in shown_text.read_bytes(), what="the job's output")

        process.send_signal(number)

        assert 128 + number == process.wait(30)
    assert b"job 1: it runs on: gpuqueue attach 1" in shown_text.read_bytes()
    assert JobState.RUNNING is working.client.jobs.get(1).state
    working.cli("cancel", "1")


@pytest.mark.full
def test_a_closed_pipe_reports_that_the_job_goes_on(working: Site) -> None:
    """If the reader of ``run … | head`` ends, a message says that the job runs on."""
    command = f'"{BIN / "gpuqueue"}" run --mem 1M -- yes | head -1'

    done = subprocess.run(["/bin/sh", "-c", command], env=working.environ, capture_output=True, text=True, check=False)

    assert "y\n" == done.stdout
    assert "job 1: it runs on: gpuqueue attach 1" in done.stderr
    working.cli("cancel", "1")


# ---- after its output --------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("more", [(), ("--pty",)])
def test_our_line_stands_by_itself_and_in_our_colours(working: Site, more: tuple[str, ...]) -> None:
    """The last message is on its own line in default colours with a visible cursor, whatever the job printed last."""
    script = r"printf '\033[?25l\033[31mred no newline'"
    command = [GPUQUEUE, "run", *more, "--mem", "1M", "--", "sh", "-c", script]
    with Terminal(command, working.environ, columns=100) as terminal:
        assert 0 == terminal.ended()
        ours = terminal.shows("gpuqueue: job 1 succeeded")
        row = terminal.lines().index(ours)
        assert ours.startswith("gpuqueue: ")
        assert "default" == terminal.screen.buffer[row][0].fg
        assert not terminal.screen.cursor.hidden
        terminal.shows("red no newline")


@pytest.mark.full
def test_output_that_is_whole_gets_nothing_added(working: Site) -> None:
    """After complete output no extra line or escape is printed."""
    with Terminal([GPUQUEUE, "run", "--mem", "1M", "--", "echo", "hello"], working.environ) as terminal:
        assert 0 == terminal.ended()
        terminal.shows("gpuqueue: job 1 succeeded")
        assert b"hello\r\ngpuqueue: job 1 succeeded" in terminal.written
