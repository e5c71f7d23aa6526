"""What Slurm's accounting adds, with a real slurmdbd: ends that slurmctld has forgotten, and GPU memory.

The cards here are no cards, so nothing measures their memory. Slurm keeps the column ``gres/gpumem`` as on a cluster
with NVML, and the test writes into it what slurmd would.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounted_slurm import AccountedSlurm, running_accounted
from bounded import until
from engine_conformance import asking, status_of, until_phase
from own_home import Home
from whole_site import Site, last_run

from gpuqueue.engines.engine import Phase, Ref, new_key
from gpuqueue.engines.slurm import NAME, Slurm, SlurmAccess
from gpuqueue.text.units import GIB

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[AccountedSlurm]:
    """Return a Slurm with accounting. The tests of the module share it."""
    place = Path(tempfile.mkdtemp(prefix="gq-acct-"))
    try:
        with running_accounted(place, kill_wait_s=5) as made:
            yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(autouse=True)
def _commands(slurm: AccountedSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands of Slurm find this one."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environ[name])
    monkeypatch.setenv("HOME", str(slurm.place))


def ended(script: str) -> Ref:
    """Run a script in Slurm to its end, and return its allocation."""
    ref = Slurm().submit(asking(script), new_key())
    until_phase(Slurm(), ref, Phase.ENDED)
    return ref


def recorded(slurm: AccountedSlurm, ref: Ref) -> None:
    """Wait until the accounting has the end of the job itself: that of its step comes before."""
    row = ("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State")
    named = (f"--name={NAME}{ref.key}", "--starttime=now-1days")
    until(lambda: slurm.command(*row, *named) == "FAILED", what="the accounting", timeout_s=60)


def forget(slurm: AccountedSlurm) -> None:
    """Let slurmctld forget all jobs, as it does minutes after their end."""
    slurm.kill_controller()
    for path in (slurm.place / "state").glob("job_state*"):
        path.unlink()
    slurm.start_controller()
    assert [] == slurm.listed("--states=all")


def test_an_end_that_slurmctld_has_forgotten_is_known(slurm: AccountedSlurm) -> None:
    """State, exit code, node and times come from the accounting, and the key still leads to the job."""
    before_s = time.time()
    ref = ended("exit 3")
    recorded(slurm, ref)
    forget(slurm)
    engine = Slurm(SlurmAccess(absent_s=0.0))
    until_phase(engine, ref, Phase.ENDED)  # by name, sacct finds a job some seconds after its end

    assert (Phase.ENDED, "failed") == (status_of(engine, ref).phase, status_of(engine, ref).word)
    assert [(ref, Phase.ENDED)] == [(each, status.phase) for each, status in engine.find([ref.key]).items()]
    account = engine.account(ref)
    assert account is not None
    assert ("failed", 3, None) == (account.word, account.exit_code, account.signal)
    assert account.nodes == slurm.command("sinfo", "--noheader", "--format=%N", "--partition=low")
    assert account.started_s is not None
    assert account.ended_s is not None
    assert before_s - 2 <= account.started_s <= account.ended_s <= time.time() + 2
    assert Phase.UNKNOWN is status_of(Slurm(), ref).phase, "it ended less than five minutes ago"


def test_accounting_that_is_away_or_hangs_ends_nothing(slurm: AccountedSlurm) -> None:
    """What nobody can say is unknown, with the reason. Accounting that comes back says it."""
    ref = ended("exit 4")
    recorded(slurm, ref)
    forget(slurm)
    engine = Slurm(SlurmAccess(absent_s=0.0, ask_s=3.0))
    slurm.pause_accounting()
    try:
        found = status_of(engine, ref)
        assert engine.account(ref) is None
    finally:
        slurm.pause_accounting(on=True)
    assert (Phase.UNKNOWN, "not in squeue for 0 s, and sacct did not answer within 3 s") == (found.phase, found.word)

    slurm.kill_accounting()
    found = status_of(engine, ref)
    assert Phase.UNKNOWN is found.phase
    assert "and sacct does not answer: " in found.word
    assert {} == engine.find([ref.key])
    slurm.start_accounting()
    until_phase(engine, ref, Phase.ENDED)


def test_accounting_that_was_away_at_the_end_has_it_later(slurm: AccountedSlurm) -> None:
    """Slurmctld keeps what it could not tell. Until then its own word counts, and no memory is known."""
    ref = Slurm().submit(asking(f"until [ -e {slurm.place}/go-late ]; do sleep 0.1; done; exit 5"), new_key())
    until_phase(Slurm(), ref, Phase.RUNNING)
    slurm.kill_accounting()
    (slurm.place / "go-late").touch()
    until_phase(Slurm(), ref, Phase.ENDED)
    account = Slurm().account(ref)
    assert account is not None
    assert ("failed", 5, False) == (account.word, account.exit_code, account.is_late)

    slurm.start_accounting()
    rows = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", f"--jobs={ref.id}")
    until(lambda: slurm.command(*rows) == "FAILED|5:0", what="the accounting", timeout_s=120)


def test_the_gpu_memory_of_a_whole_job_is_its_peak(slurm: AccountedSlurm, home: Home, tmp_path: Path) -> None:
    """The most that one of its tasks used, of all its steps."""
    go = tmp_path / "go"
    site = Site(home, slurm)
    site.up()
    job = site.submit(
        f"srun true; srun true; echo measured; until [ -e {go} ]; do sleep 0.1; done; exit 3", "--gpus", "2"
    )
    site.until_in_log(job, "measured")
    ((ref, _),) = site.at_slurm(job)
    steps = ("sacct", "--noheader", "--parsable2", "--format=JobIDRaw,State,TRESUsageInMax", f"--jobs={ref}")
    until(lambda: slurm.command(*steps).count("COMPLETED") == 2, what="both steps")
    number = dict(line.split("|")[::-1] for line in tres(slurm))["gpumem"]
    used = {0: 3 * GIB, 1: 5 * GIB + 512 * 1024**2}
    statements = "\n".join(
        f"UPDATE private_step_table SET tres_usage_in_max='{number}={size}' WHERE id_step={step} AND job_db_inx="
        f"(SELECT MAX(job_db_inx) FROM private_job_table WHERE id_job={ref} AND job_name LIKE '{NAME}%');"
        for step, size in used.items()
    )

    def is_written() -> bool:  # slurmdbd shows rows that it has not committed yet, and stores them anew after this
        slurm.write(statements)
        until(lambda: slurm.run(*steps).returncode == 0, what="slurmdbd", timeout_s=60)
        return "gres/gpumem=" in slurm.command(*steps)

    until(is_written, what="the memory in the accounting", timeout_s=150)
    go.touch()
    record = site.ended(job)

    run = last_run(record)
    assert ("failed", 3) == (record["job"]["state"], run["ending"]["exit_code"])
    assert [5 * GIB + 512 * 1024**2] == [device["peak"]["bytes"] for device in run["devices"]]
    assert "5.5G" in site.home("history")


def tres(slurm: AccountedSlurm) -> list[str]:
    """Return the number and the name of each resource of the accounting."""
    return slurm.command("sacctmgr", "--noheader", "--parsable2", "list", "tres", "format=id,name").split()
