"""Slurm as an engine, with Debian's slurmctld and slurmd: the conformance tests, and traps that need the real one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from engine_conformance import Bench, EngineConformance, asking, status_of, until_phase
from private_slurm import PrivateSlurm, running_slurm

from gpuqueue.engines.engine import Phase, Ref, new_key
from gpuqueue.engines.slurm import NAME, Slurm, SlurmAccess

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    """Return a Slurm with one node of four GPUs. The tests of the module share it."""
    place = Path(tempfile.mkdtemp(prefix="gq-slurm-"))
    try:
        with running_slurm(place, kill_wait_s=5) as made:
            yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(autouse=True)
def _commands(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands of Slurm find this one."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environ[name])
    monkeypatch.setenv("HOME", str(slurm.place))


def wrapped(slurm: PrivateSlurm, text: str) -> tuple[str, ...]:
    """Return a wrapper of commands, a shell script with *text*, in which ``"$@"`` is the command."""
    path = slurm.place / f"wrapper-{new_key()}"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


class SlurmBench(Bench):
    """The private Slurm."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self._slurm = slurm

    def engine(self) -> Slurm:
        """Return a new engine."""
        return Slurm()

    def unreachable(self) -> Slurm:
        """Return an engine whose commands hang."""
        return Slurm(SlurmAccess(wrapper=wrapped(self._slurm, "sleep 60"), ask_s=0.3, submit_s=0.3, search_s=0.1))

    def reuse_id(self, ref: Ref) -> None:
        """Do nothing: the id of *ref* belongs to a job with another key already."""


@pytest.fixture
def bench(slurm: PrivateSlurm) -> SlurmBench:
    """Return the private Slurm."""
    return SlurmBench(slurm)


class TestConformance(EngineConformance):
    """What each engine promises, of Slurm."""


def test_an_error_after_accepting_makes_no_second_job(slurm: PrivateSlurm) -> None:
    """The command says that it timed out, and Slurm has the job: it is found by its key, and there is one."""
    lie = (
        'case "$1" in sbatch) "$@" >/dev/null; echo "sbatch: error: Batch job submission failed: Socket timed out" >&2'
    )
    engine, key = Slurm(SlurmAccess(wrapper=wrapped(slurm, f'{lie}; exit 1;; *) exec "$@";; esac'))), new_key()
    ref = engine.submit(asking("sleep 600"), key)

    listed = slurm.command("squeue", "--noheader", "--format=%i", f"--name={NAME}{key}").split()
    assert [ref.id] == listed
    engine.cancel(ref, now=True)


def test_an_id_beside_an_error_text_counts(slurm: PrivateSlurm) -> None:
    """A plug-in of the site writes an error, and sbatch ends well."""
    noisy = wrapped(slurm, 'echo "sbatch: error: lua: something is odd" >&2; exec "$@"')
    engine = Slurm(SlurmAccess(wrapper=noisy))
    ref = engine.submit(asking("sleep 600"), new_key())

    assert status_of(engine, ref).phase in {Phase.WAITING, Phase.RUNNING}
    engine.cancel(ref, now=True)


def test_a_requeued_job_waits_under_its_id(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """It ended for a moment, and is no ended allocation."""
    engine = Slurm(SlurmAccess(options=("--requeue",)))
    ref = engine.submit(asking(f"echo x >> {tmp_path}/starts; sleep 600"), new_key())
    until_phase(engine, ref, Phase.RUNNING)
    until((tmp_path / "starts").exists, what="the first start")
    slurm.command("scontrol", "requeue", ref.id)

    until_phase(engine, ref, Phase.WAITING)
    slurm.command("scontrol", "update", f"JobId={ref.id}", "StartTime=now")
    until_phase(engine, ref, Phase.RUNNING)
    assert [ref] == [*engine.find([ref.key])]
    engine.cancel(ref, now=True)
    until_phase(engine, ref, Phase.ENDED)


def test_a_controller_that_was_killed_ends_nothing(slurm: PrivateSlurm) -> None:
    """While slurmctld is dead all is unknown. Afterwards the job runs on, and is known."""
    engine = Slurm(SlurmAccess(ask_s=5.0))
    ref = engine.submit(asking("sleep 600"), new_key())
    until_phase(engine, ref, Phase.RUNNING)
    slurm.command("scontrol", "update", f"JobId={ref.id}", "Comment=saved")
    until(lambda: ref.key.encode() in (slurm.place / "state" / "job_state").read_bytes(), what="the saved state")
    slurm.kill_controller()
    assert Phase.UNKNOWN is status_of(engine, ref).phase

    slurm.start_controller()
    until_phase(engine, ref, Phase.RUNNING)
    engine.cancel(ref, now=True)
    until_phase(engine, ref, Phase.ENDED)


def test_a_controller_that_loses_a_job_gives_its_id_to_another(slurm: PrivateSlurm) -> None:
    """Slurmctld is killed before it saves what it has acknowledged. The id comes again, and means another job."""
    engine = Slurm()
    slurm.command("scontrol", "update", "PartitionName=low", "State=DOWN")  # so that no node learns of the job
    lost = engine.submit(asking("sleep 600"), new_key())
    slurm.kill_controller()
    slurm.start_controller()
    if status_of(engine, lost).phase is not Phase.UNKNOWN:
        engine.cancel(lost, now=True)
        pytest.skip("slurmctld had saved the job already")
    slurm.command("scontrol", "update", "PartitionName=low", "State=UP")
    other = engine.submit(asking("sleep 600"), new_key())

    assert lost.id == other.id
    assert Phase.UNKNOWN is status_of(engine, lost).phase
    assert {} == engine.find([lost.key])
    engine.cancel(lost, now=True)
    until_phase(engine, other, Phase.RUNNING)
    engine.cancel(other, now=True)
    until_phase(engine, other, Phase.ENDED)


def test_a_job_that_waits_too_long_is_dropped_by_slurm(slurm: PrivateSlurm) -> None:
    """Slurm has the latest time at which the allocation could end, and starts nothing after it."""
    engine = Slurm()
    ref = engine.submit(asking("true"), new_key())
    deadline = slurm.command("scontrol", "show", "job", ref.id)

    assert "Deadline=20" in deadline
    assert "Requeue=0" in deadline


def test_a_log_is_in_the_home_or_where_the_settings_say(
    slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the caller is: a service may be in ``/``."""
    monkeypatch.chdir("/")
    (tmp_path / "logs").mkdir()
    for access, place in (
        (SlurmAccess(), slurm.place),
        (SlurmAccess(logs=str(tmp_path / "logs")), tmp_path / "logs"),
    ):
        ref = Slurm(access).submit(asking("echo hello"), new_key())
        until_phase(Slurm(), ref, Phase.ENDED)
        assert "hello\n" == (place / f"{NAME}{ref.key}.log").read_text()


def test_commands_go_through_a_wrapper_as_through_ssh(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """It joins its words for a shell of another directory and environment; standard input goes through."""
    kept = f"PATH={slurm.environ['PATH']} SLURM_CONF={slurm.environ['SLURM_CONF']} HOME={tmp_path}"
    ssh = f'echo "$@" >> {tmp_path}/words; shift 2; cd {tmp_path} && exec env -i {kept} sh -c "$*"'
    engine = Slurm(SlurmAccess(wrapper=(*wrapped(slurm, ssh), "-q", "login")))
    ref = engine.submit(asking("echo hello; trap exit TERM; while :; do sleep 0.1; done"), new_key())
    until_phase(engine, ref, Phase.RUNNING)
    log = tmp_path / f"{NAME}{ref.key}.log"
    until(lambda: log.exists() and log.read_text() == "hello\n", what="its log in the home there")
    assert [ref] == [*engine.find([ref.key])]
    engine.cancel(ref)
    until_phase(engine, ref, Phase.ENDED)
    words = (tmp_path / "words").read_text().splitlines()
    assert {"-q login"} == {" ".join(line.split()[:2]) for line in words}
    assert {"sbatch", "squeue", "scancel"} <= {line.split()[2] for line in words}


def test_the_command_line_has_no_secret(slurm: PrivateSlurm, tmp_path: Path) -> None:
    """The script goes through standard input: other users see the words of sbatch."""
    record = wrapped(slurm, f'echo "$@" >> {tmp_path}/words; exec "$@"')
    engine = Slurm(SlurmAccess(wrapper=record))
    ref = engine.submit(asking("echo gq_secret >/dev/null"), new_key())

    assert "gq_secret" not in (tmp_path / "words").read_text()
    assert "gq_secret" not in slurm.command("scontrol", "show", "job", ref.id)
    assert "gq_secret" in slurm.command("scontrol", "write", "batch_script", ref.id, "-")
    engine.cancel(ref, now=True)
