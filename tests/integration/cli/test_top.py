"""``gpuqueue top`` on a real terminal, with a real store and real jobs."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from factories import BOB, make_offer, make_spec, must_claim, serve
from own_store import OwnStore
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue.lease import Alive
from gpuqueue.text.units import GIB

TOP = [str(BIN / "gpuqueue"), "top", "--interval", "0.2"]
BAR = (
    "import sys; "
    "print('epoch 1/1:  25%|##5       | 25/100 [00:10<00:30,  2.5it/s]', end='', file=sys.stderr, flush=True); "
    "open(sys.argv[1]).read()"
)


@pytest.mark.full
def test_a_running_jobs_progress_is_seen_live(site: Site, tmp_path: Path) -> None:
    """A progress bar in a job's log appears on the screen, and disappears when the job ends."""
    site.start_recorder()
    site.start_worker()
    done = tmp_path / "done"
    os.mkfifo(done)  # the job waits until it is written to
    job_id = int(site.cli("submit", "--mem", "1G", "--name", "mine", "--", "python3", "-c", BAR, str(done)).stdout)

    with Terminal(TOP, site.environ) as terminal:
        terminal.shows("epoch 1/1, 25 %")
        terminal.press("l")
        terminal.shows("25%|##5")
        terminal.press("d")
        terminal.shows(f"job {job_id}  mine")
        done.write_text("")
        terminal.shows("0 running, 0 waiting")
        terminal.press("q")
        assert 0 == terminal.ended()
        assert "Traceback" not in terminal.picture()


@pytest.mark.full
def test_a_pane_is_scrolled_by_its_own_keys(site: Site, tmp_path: Path) -> None:
    """PgUp and PgDn scroll the pane.

    It has nine lines on a usual terminal. The keys used to move the cursor in the job list, and the rest of the pane
    was unreachable.
    """
    site.start_recorder()
    site.start_worker()
    done = tmp_path / "done"
    os.mkfifo(done)  # the job waits until it is written to
    lines = "import sys; print(*(f'line {n}.' for n in range(40)), sep='\\n', flush=True); open(sys.argv[1]).read()"
    job_id = int(site.cli("submit", "--mem", "1G", "--name", "mine", "--", "python3", "-c", lines, str(done)).stdout)

    with Terminal(TOP, site.environ) as terminal:
        terminal.shows("mine")
        terminal.press("l")
        terminal.shows("line 39.")
        terminal.shows("of 40 lines, PgUp PgDn")
        terminal.press("\x1b[5~" * 9)
        terminal.shows("line 0.")
        terminal.hides("line 39.")
        terminal.press("\x1b[6~" * 9)
        terminal.shows("line 39.")
        terminal.press("d")
        terminal.shows(f"job {job_id}  mine")
        terminal.press("\x1b[6~" * 9)
        terminal.shows("run 1 on")
        terminal.hides(f"job {job_id}  mine")
        terminal.press("d")
        terminal.hides("run 1 on")
        terminal.press("d")
        terminal.shows(f"job {job_id}  mine")
        done.write_text("")
        terminal.press("q")
        assert 0 == terminal.ended()


@pytest.mark.full
def test_keys_change_the_job_under_the_cursor(site: Site) -> None:
    """Hold and release act at once, and cancel asks first. The store's answer is shown."""
    site.make_tables()
    serve(site.queue, make_offer(host=site.settings.host))
    first, second = (site.queue.requests.submit(make_spec(name=name)).id for name in ("one", "two"))

    with Terminal(TOP, site.environ) as terminal:
        terminal.shows("two")
        terminal.press("\x1b[B")  # down
        terminal.press("h")
        terminal.shows(f"job {second}: held")
        site.until_state_in_queue(second, JobState.HELD)
        terminal.shows("held")
        terminal.press("c")
        terminal.shows(f"Cancel job {second} (two, ada, held)?")
        terminal.press("n")
        terminal.hides("Cancel job")
        site.until_state_in_queue(second, JobState.HELD)
        terminal.press("h")
        site.until_state_in_queue(second, JobState.QUEUED)
        terminal.press("c")
        terminal.shows(f"Cancel job {second}")
        terminal.press("y")
        terminal.shows(f"job {second}: cancelled")
        terminal.hides("two")
    site.until_state_in_queue(first, JobState.QUEUED)


@pytest.mark.full
def test_keys_raise_and_lower_a_waiting_job_as_far_as_its_user_may(site: Site) -> None:
    """The store decides which users may use the highest priority. A running job's priority does not change."""
    site.make_tables()
    serve(site.queue, make_offer(host=site.settings.host))
    site.queue.rules.set_policy(half_life_s=7 * 86400.0, urgent=["bob"], shares={})
    job_id = site.queue.requests.submit(make_spec(name="one", account=BOB)).id
    other = site.queue.requests.submit(make_spec(name="two")).id

    with Terminal(TOP, site.environ, columns=100) as terminal:
        terminal.shows("two")
        terminal.press("++")
        terminal.shows(f"job {job_id}: priority urgent")
        assert " one " in terminal.shows("memory, priority urgent")
        terminal.press("+")
        terminal.shows("there is none above")
        terminal.press("\x1b[B")
        terminal.press("++")
        terminal.shows("may not use the priority urgent")
        assert " two " in terminal.shows("memory, priority high")
        terminal.press("-")
        terminal.shows(f"job {other}: priority normal")
        claim = must_claim(site.queue, host=site.settings.host)
        assert claim.job_id == job_id
        terminal.shows("starting")
        terminal.press("\x1b[A")
        terminal.press("d")
        terminal.shows(f"job {job_id}  one")
        terminal.press("-")
        terminal.shows("only a job that waits can be edited")
    assert [Priority.URGENT, Priority.NORMAL] == [job.spec.priority for job in site.queue.jobs.live()]


def test_memory_and_external_processes_are_drawn(site: Site) -> None:
    """Used, allocated and external memory have different marks, also without colour."""
    host = site.settings.host
    offer = make_offer(host=host, external_bytes=6 * GIB)
    serve(site.queue, offer)
    site.queue.requests.submit(make_spec(mem_bytes=12 * GIB, account=BOB))
    claim = must_claim(site.queue, host=host, external_bytes=6 * GIB)
    site.queue.runs.started(claim.job_id, claim.token, lease_s=300, log_path="/l", devices=())
    alive = Alive(job_id=claim.job_id, token=claim.token, observed={"GPU-0": 6 * GIB})
    site.queue.devices.heartbeat(offer, [alive], lease_s=300)

    once = site.cli("top", "--once").stdout

    assert f"{'█' * 5}{'▒' * 5}{'▚' * 5}{'·' * 5}" in once
    assert "12G/24G" in once
    assert "6G/12G" in next(line for line in once.splitlines() if " bob " in line)
    assert "1 running" not in site.cli("top", "--once", "--user", "ada").stdout


def test_a_store_that_goes_away_and_comes_back(own_store: OwnStore, tmp_path: Path) -> None:
    """While the store is away the last picture stays, with a message. `top` reconnects by itself."""
    site = Site(tmp_path / "state", own_store.url)
    try:
        serve(site.queue, make_offer(host=site.settings.host))
        site.queue.requests.submit(make_spec(name="stays"))
        with Terminal(TOP, site.environ, columns=100) as terminal:
            terminal.shows("stays")
            own_store.kill()
            terminal.shows("(this is the last known state)")
            terminal.shows("stays")
            own_store.start()
            terminal.hides("the last known state")
            terminal.press("q")
            assert 0 == terminal.ended()
    finally:
        site.stop()


def test_without_a_store_one_line_says_so(site: Site) -> None:
    """Without a store `top` prints an error and does not open its screen."""
    environ = {**site.environ, "GPUQUEUE_REDIS_URL": "redis://127.0.0.1:1/0"}
    with Terminal(TOP, environ) as terminal:
        assert 4 == terminal.ended()
        assert "does not answer" in terminal.picture()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(site: Site, number: signal.Signals) -> None:
    """After a signal the shell's screen and mouse mode are restored. Neither used to be."""
    site.make_tables()
    with Terminal(
        ["/bin/sh", "-c", f"echo before; {shlex.join(TOP)}; echo left with $?; read line"], site.environ
    ) as shell:
        shell.shows("0 running")
        (top,) = children(shell.process.pid)
        os.kill(top, number)
        shell.shows(f"left with {128 + number}")
        assert "before" in shell.lines()
        for mode in (b"1049", b"1000", b"1003"):
            assert shell.written.rfind(b"?" + mode + b"l") > shell.written.rfind(b"?" + mode + b"h")


def children(pid: int) -> list[int]:
    """Return the child processes of *pid*."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_a_line_terminal_gets_the_command_that_works(site: Site) -> None:
    """On a terminal without cursor control `top` names an alternative and prints no escapes."""
    with Terminal(TOP, site.environ, columns=120, term="dumb") as terminal:
        assert 2 == terminal.ended()
        terminal.shows("gpuqueue top --once prints one snapshot")
        assert b"\x1b" not in terminal.written


@pytest.mark.full
@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color_leaves_no_colour_at_all(site: Site, no_color: str, *, coloured: bool) -> None:
    """NO_COLOR (https://no-color.org) removes all colours, also greys. The selected row is then in reverse video."""
    site.make_tables()
    serve(site.queue, make_offer(host=site.settings.host))
    site.queue.requests.submit(make_spec(name="one"))
    site.queue.requests.submit(make_spec(name="two"))

    with Terminal(TOP, {**site.environ, "NO_COLOR": no_color}) as terminal:
        terminal.shows("two")
        terminal.press("w")
        terminal.shows("start  there is room")
        terminal.press("c")
        terminal.shows("Cancel job 1")
        terminal.press("n")
        terminal.hides("Cancel job")
        rows = {line.split()[0]: row for row, line in enumerate(terminal.lines()) if line}
        assert coloured is not terminal.screen.buffer[rows["1"]][2].reverse
        assert not terminal.screen.buffer[rows["2"]][2].reverse
        terminal.press("q")
        assert 0 == terminal.ended()

    assert coloured is bool(colours(terminal.written))


def colours(written: bytes) -> set[int]:
    """Return the colour codes in *written*, without 39 and 49, which restore the terminal's default."""
    output = {int(word) for words in re.findall(rb"\x1b\[([0-9;]*)m", written) for word in words.split(b";") if word}
    return output & {*range(30, 39), *range(40, 49), 58, *range(90, 98), *range(100, 108)}


@pytest.mark.full
def test_what_is_held_of_an_array_has_its_own_line_and_key(site: Site) -> None:
    """The held part of an array has its own line beside the waiting part. On that line the key releases."""
    site.make_tables()
    serve(site.queue, make_offer(host=site.settings.host))
    array = site.queue.requests.submit(make_spec(name="sweep", array=Array.parse("0-9"))).id
    site.cli("hold", f"{array}_0-3")

    with Terminal(TOP, site.environ, columns=100) as terminal:
        terminal.shows(f"{array}_[4-9]")
        assert "held" in terminal.shows(f"{array}_[0-3]")
        terminal.press("\x1b[B")  # down
        terminal.press("h")
        terminal.shows(f"{array}_[0-9]")
        terminal.press("c")
        terminal.shows(f"Cancel job {array} with all its members")
