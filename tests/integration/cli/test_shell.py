"""``gpuqueue shell``: the login shell as a job, at the terminal of the user."""

from __future__ import annotations

import signal

import pytest
from bounded import until
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.model.job import JobState

SHELL = [str(BIN / "gpuqueue"), "shell", "--mem", "1M"]


def test_without_a_terminal_nothing_is_submitted(site: Site) -> None:
    done = site.cli("shell", "--mem", "1M", check=False)

    words = "gpuqueue: a shell needs a terminal, and this is none: for a program without one, use gpuqueue run\n"
    assert (2, words) == (done.returncode, done.stderr)
    assert [] == site.client.jobs.list()


def test_ctrl_c_while_it_waits_cancels_it_without_a_question(site: Site) -> None:
    with Terminal(SHELL, site.environ, columns=120) as terminal:
        terminal.shows("job 1 queued, for at most 8h (gpuqueue extend 1 gives it more)")
        terminal.shows("job 1 waits")
        terminal.press("\x03")
        assert 130 == terminal.ended()
        assert "[c]ancel" not in terminal.picture()
    assert JobState.CANCELLED is site.client.jobs.get(1).state


@pytest.mark.full
def test_the_login_shell_runs_on_the_device_and_its_exit_ends_the_job(site: Site) -> None:
    """It has the keys, the size and the device. After a lost connection attach comes back to it."""
    site.start_recorder()
    site.start_worker()
    environ = {**site.environ, "SHELL": "/bin/sh", "PS1": "at-work> "}
    with Terminal(SHELL, environ, columns=100) as terminal:
        terminal.shows("this is the terminal of job 1")
        terminal.press('echo "$0 has <$CUDA_VISIBLE_DEVICES>"\r')
        device = site.client.devices.list()[0].device
        terminal.shows(f"/bin/sh has <{device.uuid}>")
        terminal.resize(columns=77, rows=20)
        terminal.press("stty size\r")
        terminal.shows("20 77")
        terminal.process.send_signal(signal.SIGHUP)
        assert 128 + signal.SIGHUP == terminal.ended()
        terminal.shows("it runs on: gpuqueue attach 1")
    with Terminal([str(BIN / "gpuqueue"), "attach", "1"], site.environ, columns=100) as terminal:
        terminal.shows("this is the terminal of job 1")
        terminal.press("exit 3\r")
        assert 3 == terminal.ended()
    job = until(lambda: next((each for each in [site.client.jobs.get(1)] if each.state.is_end), None), what="the end")
    assert job is not None
    assert (JobState.FAILED, "shell", 28_800, False) == (
        *(job.state, job.spec.name, job.spec.time_limit_s),
        job.spec.requeue,
    )


@pytest.mark.full
def test_a_program_in_its_place_and_a_shell_that_is_not_there(site: Site) -> None:
    site.start_recorder()
    site.start_worker()
    with Terminal([*SHELL, "--name", "mine", "--", "sh", "-c", "tty && exit 4"], site.environ) as terminal:
        terminal.shows("/dev/pts/")
        assert 4 == terminal.ended()
    assert "mine" == site.client.jobs.get(1).spec.name
    with Terminal(SHELL, {**site.environ, "SHELL": "/no/such/shell"}) as terminal:
        terminal.shows("this is the terminal of job 2")
        terminal.press("echo it is $SHELL; exit\r")
        terminal.shows("it is /bin/sh")
        assert 0 == terminal.ended()
