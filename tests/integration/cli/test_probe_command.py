"""The ``probe`` command on a card of the fake driver."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from bounded import until
from click import UsageError
from click.testing import CliRunner
from fake_driver.fake_driver import FakeGpus, build, compiler
from site_of_one import BIN, Site

from gpuqueue.cli.main import commands
from gpuqueue.errors import BadRequest
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.signature import program_of
from gpuqueue.model.job import JobState
from gpuqueue.text.units import GIB

SUPPORT = Path(__file__).parents[2] / "support"
#: Holds 3 GiB, and does what its arguments say.
TRAIN = """
import os, sys, time
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
from metered import until_seen
assert "false" == os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]
what = sys.argv[1]
if what in {{"unused", "idle"}}:
    until_seen(samples=3 if what == "unused" else 10)
    sys.exit()
FakeGpus.here().hold_here(3 * 2**30)
if what == "fails":
    sys.exit("it lacks its data")
if what == "ends":
    until_seen(peak_bytes=3 * 2**30, samples=10)
    sys.exit()
for step in range(1, 2001):
    time.sleep(0.05)
    if what == "steps":
        print(f"step {{step}}/2000", flush=True)
"""


@pytest.fixture
def site(tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site with one card of 24 GiB, a worker and a recorder, and a script."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    fake = FakeGpus.create(tmp_path / "gpus", (24 * GIB,))
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(fake.environ(build(tmp_path)))
    (tmp_path / "train.py").write_text(TRAIN.format(tests=str(SUPPORT)))
    made.start_recorder()
    made.start_worker()
    yield made
    made.stop()


def words_of(place: Path, what: str, *options: str) -> list[str]:
    """Return the words of a probe of the script."""
    return ["probe", str(place / "train.py"), "--python", sys.executable, *options, "--", what, "--max_steps=2000"]


def proofs(site: Site, place: Path) -> list[Proof]:
    """Return what the history learned from the probes of the script."""
    record = site.client.history.search(limit=1)[0]
    spec = record.job.spec
    program = program_of(spec.argv, str(place / "train.py"), spec.cwd)
    return [run.proof for run in site.client.database.runs_of_program(spec.account.name, program)]


def test_a_flat_peak_ends_the_probe_and_the_next_job_learns_from_it(site: Site, tmp_path: Path) -> None:
    """The probe has the whole card, proposes a memory, and ``--mem auto`` asks for the same."""
    done = site.cli(*words_of(tmp_path, "sleeps", "--flat", "1s", "--seconds", "60"))

    head, peak, _, ask, note = done.stdout.splitlines()
    assert "ended by the probe after" in head
    assert "has not grown for" in head
    assert peak.startswith("peak      at least 3")
    assert "(nvml_sampled, " in peak
    assert note.startswith("No time is proposed")
    record = site.client.history.search(limit=1)[0]
    assert JobState.SUCCEEDED is record.job.state, "a probe that did what it was for counted as a failure"
    assert "ended by the probe" == record.outcome, "`succeeded, timed out` contradicts itself"
    total = site.client.history.stats().total
    assert (1, 0, 0) == (total.succeeded, total.timed_out, total.failed)
    device = record.runs[-1].devices[0]
    assert (True, ("probe",)) == (record.job.spec.placement.whole, record.job.tags)
    assert device.lease_bytes > 23 * GIB
    assert [Proof.AT_LEAST] == proofs(site, tmp_path)
    mem = ask.removeprefix("ask for  --mem ")
    again = site.cli(*["submit", str(tmp_path / "train.py"), "--python", sys.executable, "--mem", "auto", "--hold"])
    assert f"gpuqueue: asking {mem}: " in again.stderr


@pytest.mark.full
def test_steps_end_the_probe_and_show_the_time(site: Site, tmp_path: Path) -> None:
    """The steps are those of the progress in its log, and the time of the whole follows from them."""
    done = site.cli(*words_of(tmp_path, "steps", "--flat", "0", "--steps", "30", "--json"))
    found = json.loads(done.stdout)

    assert any(": it has made 3" in note["text"] for note in found["record"]["notes"])
    assert (False, True) == (found["is_whole"], 30 / 2000 <= found["progress"]["share"] < 0.1)
    assert found["time_s"] >= 120
    assert 3 * GIB <= found["peak_bytes"] < found["mem_bytes"]


@pytest.mark.full
def test_a_script_that_ends_by_itself_shows_its_need(site: Site, tmp_path: Path) -> None:
    """Then the peak is no lower bound, and the time is known."""
    done = site.cli(*words_of(tmp_path, "ends"))

    assert "ended by itself after" in done.stdout
    assert "at least" not in done.stdout
    assert "--time 1m" in done.stdout
    assert [Proof.PEAK] == proofs(site, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "line"),
    [("fails", "failed (exit 1): gpuqueue logs"), ("unused", "no memory of job 1 was seen on its device")],
)
def test_a_probe_without_an_answer_says_why(site: Site, tmp_path: Path, what: str, line: str) -> None:
    """A failed script shows the end of its log, and the exit code is 1."""
    done = site.cli(*words_of(tmp_path, what), check=False)

    assert (1, "") == (done.returncode, done.stdout)
    assert line in done.stderr.splitlines()[-1]
    assert ("  it lacks its data" in done.stderr) == (what == "fails")


def test_a_run_that_held_nothing_leaves_a_size_that_a_device_gives(site: Site, tmp_path: Path) -> None:
    """Regression: ``--mem auto`` asked for 0B after it, and the job was refused for ever. `show` advised 0B too."""
    script = [str(tmp_path / "train.py"), "--python", sys.executable, "--env", "XLA_PYTHON_CLIENT_PREALLOCATE=false"]
    first = site.cli("submit", *script, "--mem", "2G", "--", "idle").stdout.strip()
    record = site.until_recorded(int(first))
    assert JobState.SUCCEEDED is record.job.state

    again = site.cli("submit", *script, "--mem", "auto", "--", "idle")

    assert "gpuqueue: asking 256M: the last run held no device memory\n" == again.stderr
    assert "256M would do (the last run held no device memory)" in site.cli("show", first).stdout
    assert JobState.SUCCEEDED is site.until_recorded(int(again.stdout)).job.state
    estimated = site.cli("estimate", script[0], "--history-only", "--", "idle").stdout
    assert estimated.endswith("ask for  --mem 256M\n")


@pytest.mark.full
def test_a_probe_works_through_the_service(site: Site, tmp_path: Path) -> None:
    """The client reaches neither the store nor the history, and the worker still ends the run."""
    with TemporaryDirectory() as short:
        path = Path(short) / "api.sock"  # the path of a socket must be short
        site.spawn_command([str(BIN / "gpuqueue"), "serve", "--socket", str(path)])
        until(path.exists, what="the socket of the service")
        site.environ["GPUQUEUE_URL"] = f"unix://{path}"
        done = site.cli(*words_of(tmp_path, "sleeps", "--flat", "1s", "--seconds", "60"))

    assert "has not grown for" in done.stdout
    assert "ask for  --mem " in done.stdout


@pytest.mark.full
def test_ctrl_c_cancels_the_probe(site: Site, tmp_path: Path) -> None:
    """The command ends with 130, and its job does not hold the card."""
    command = [str(BIN / "gpuqueue"), *words_of(tmp_path, "sleeps", "--flat", "0")]
    process = subprocess.Popen(command, env=site.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def running() -> bool:
        return any(job.state is JobState.RUNNING for job in site.client.jobs.list())

    until(running, what="the run of the probe")
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)

    assert (130, "") == (process.returncode, out), errors
    assert "cancelled" in errors
    assert "Traceback" not in errors
    job_id = int(errors.partition("gpuqueue: job ")[2].split()[0])
    assert JobState.CANCELLED is site.until_recorded(job_id).job.state


@pytest.mark.full
def test_a_probe_that_no_device_can_run_says_so(site: Site, tmp_path: Path) -> None:
    """It used to wait for ever without a hint, where `submit` says what to do."""
    command = [str(BIN / "gpuqueue"), *words_of(tmp_path, "sleeps", "--device", "cpu")]
    process = subprocess.Popen(command, env=site.environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None

    lines = [process.stderr.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert "queued: alone on a device" in lines[0]
    assert lines[1].startswith("gpuqueue: no CPU is served: the job waits. Serve one with gpuqueue up")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--seconds", "0"), "--seconds must be above 0"),
        (("--seconds", "soon"), "--seconds: 'soon' is not a duration"),
        (("--flat", "-1"), "--flat: '-1' is not a duration"),
        (("--steps", "0"), "0 is not in the range x>=1"),
    ],
)
def test_a_malformed_option_is_refused_before_anything_is_queued(
    tmp_path: Path, options: tuple[str, ...], line: str
) -> None:
    """Each names the option. There is no store here."""
    done = CliRunner().invoke(commands, words_of(tmp_path, "sleeps", *options), standalone_mode=False)

    assert isinstance(done.exception, (BadRequest, UsageError))
    assert line in str(done.exception)
