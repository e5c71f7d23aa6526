"""``gpuqueue forward`` on one machine, without a service: a real server in a real job."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest
from bounded import until
from port_of_job import (
    LONG,
    at_once,
    free_port,
    get,
    is_answered,
    posted_by_half_closing,
    rest_of,
    serving_job,
    stalled,
)
from site_of_one import BIN, Site

from gpuqueue.model.job import Job, JobState


@pytest.fixture
def running(site: Site) -> tuple[Job, int]:
    """Return a job that serves HTTP, and its port."""
    site.make_tables()
    site.start_worker()
    return serving_job(site.client)


def forwarding(site: Site, *words: str) -> subprocess.Popen[str]:
    """Start the command, and wait until it listens."""
    pipe = subprocess.PIPE
    command = [str(BIN / "gpuqueue"), "forward", *words]
    made = subprocess.Popen(command, env=site.environ, stdout=pipe, stderr=pipe, text=True, bufsize=1)
    assert made.stdout is not None
    expected = f" leads to port {words[-1].rpartition(':')[2]} of job {words[-2]} (Ctrl-C ends it)\n"
    assert made.stdout.readline().endswith(expected)
    return made


def test_a_port_here_leads_to_the_job_until_it_ends(site: Site, running: tuple[Job, int]) -> None:
    job, port = running
    here = free_port()
    with forwarding(site, str(job.id), f"{here}:{port}") as command:
        assert [b"short"] * 30 == at_once(30, lambda: get(here))
        slow = stalled(here)
        assert b"short" == get(here)
        assert LONG == rest_of(slow)
        assert 64 == len(posted_by_half_closing(here, b"x" * 1_000_000))
        site.client.jobs.cancel(job.id)
        _, errors = command.communicate(timeout=60)
    assert (0, f"gpuqueue: job {job.id} has ended (cancelled)\n") == (command.returncode, errors)

    again = site.cli("forward", str(job.id), str(port), check=False)
    assert (5, f"gpuqueue: job {job.id} is cancelled: its ports can be reached while it runs\n") == (
        again.returncode,
        again.stderr,
    )


def test_a_server_that_begins_later_is_reached_then(site: Site, running: tuple[Job, int]) -> None:
    """Until then the user reads why not, once. Ctrl-C ends the command and not the job."""
    job, _ = running
    later, here = free_port(), free_port()
    with forwarding(site, str(job.id), f"{here}:{later}") as command:
        assert [False] * 3 == at_once(3, lambda: is_answered(here))
        other = serving_job(site.client, later)[0]  # another job has it, and not this one
        assert not is_answered(here)
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    line = f"gpuqueue: no process of the job listens on port {later} of 127.0.0.1: connections here are closed until"
    assert (130, 1, True) == (command.returncode, errors.count(line), errors.startswith(line)), errors
    with forwarding(site, "--address", "localhost", str(other.id), f"{here}:{later}") as command:
        until(lambda: is_answered(here), what="the server")
        command.send_signal(signal.SIGINT)
    assert JobState.RUNNING is site.client.jobs.get(job.id).state


def test_what_cannot_be_is_one_line(site: Site, running: tuple[Job, int]) -> None:
    job, port = running
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = taken.getsockname()[1]
        tries = {
            (
                "forward",
                str(job.id),
                f"{here}:{port}",
            ): f"another program here listens on port {here} of 127.0.0.1: put",
            ("forward", str(job.id), "0"): "0 is no port: give 6006, or with another one here 8080:6006",
            ("forward", str(job.id), "1:2:3"): "1:2:3 is no port",
            ("forward", str(job.id), str(port), "--address", "nowhere"): "'nowhere' is no address to listen at",
        }
        for typed, line in tries.items():
            done = site.cli(*typed, check=False)
            assert (2, True, 1) == (done.returncode, line in done.stderr, done.stderr.count("\n")), done
