"""The command ``burst`` without a Slurm: what is wrong is one line, with an exit code."""

from __future__ import annotations

import json

import pytest
from forked_command import command
from service_fixtures import ServedSite


def burst(served: ServedSite, *words: str, **settings: str) -> tuple[int, str, str]:
    """Return the exit code and the output of a command with these settings of Slurm."""
    environ = {
        **served.environ,
        "GPUQUEUE_URL": f"unix://{served.socket_path}",
        "GPUQUEUE_BURST": json.dumps({"slurm": settings}),
    }
    done = command(["burst", *words], environ)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "settings", "code", "said"),
    [
        (("slurm", "--gpus", "1", "--hours", "1"), {}, 2, "set service_url in [burst.slurm]"),
        (("slurm", "--gpus", "1", "--hours", "1"), {"partition": "gpu"}, 2, "'partition' is no setting of slurm"),
        (("slurm", "--gpus", "0", "--hours", "1"), {}, 2, "--gpus: 0 is not valid: give a whole number from 1 to 64"),
        (("slurm", "--gpus", "1"), {}, 2, "Missing option '--hours'"),
        (("cancel",), {}, 2, "name pilots, or give --all"),
        (("cancel", "--all", "x"), {}, 2, "name pilots, or give --all"),
        (("cancel", "no\x1bthing"), {}, 2, "is no pilot: gpuqueue burst list has them"),
    ],
)
def test_bad_input_is_one_line(
    served: ServedSite, words: tuple[str, ...], settings: dict[str, str], code: int, said: str
) -> None:
    """It says what is wrong and what to do."""
    found, out, err = burst(served, *words, **settings)
    assert (code, "") == (found, out)
    assert said in err
    assert "\x1b" not in err


def test_without_slurm_nothing_is_submitted_and_no_token_stays(served: ServedSite) -> None:
    """The line names the program that is missing, and the setting. Exit code 4."""
    settings = {"service_url": f"https://127.0.0.1:{served.port}", "service_ca": str(served.directory / "cert.pem")}
    code, out, err = burst(served, "slurm", "--gpus", "1", "--hours", "1", wrapper="/no/such/wrapper", **settings)

    assert (4, "") == (code, out)
    assert "/no/such/wrapper cannot be run (No such file or directory): is Slurm installed here? set wrapper" in err
    assert (0, "no pilots: see gpuqueue burst --help\n") == burst(served, "list")[:2]
    assert [] == json.loads(burst(served, "list", "--json")[1])


@pytest.mark.parametrize(
    ("settings", "when"),
    [
        ({}, "once an admin asks for one with gpuqueue burst slurm"),
        ({"when_waiting": "30m"}, "and the rule asks for one in "),
    ],
)
def test_submit_and_why_name_the_pilot_that_a_job_waits_for(
    served: ServedSite, settings: dict[str, str], when: str
) -> None:
    """Neither ``submit`` nor ``why`` says that no GPU is served, or that it never runs."""
    for each in served.queue.devices.all():
        served.queue.devices.withdraw(each.host, each.device.uuid)
    environ = {**served.environ, "GPUQUEUE_BURST": json.dumps({"slurm": settings})}
    done = command(["submit", "--mem", "1G", "--", "true"], environ)
    job = done.stdout.strip()
    words = "not before a pilot runs: a pilot of Slurm can run it"

    assert f"gpuqueue: no device that is served now can run job {job}: {words}" in done.stderr
    assert when in done.stderr
    why = command(["why", job], environ).stdout
    assert f"start  {words}" in why
    assert when in why
