"""Who may change a job: its owner, an admin of the site, and root on the machine of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from factories import BOB, must_claim, serve, submit
from own_store import OwnStore
from spoken import speak

from gpuqueue import Client
from gpuqueue.client import connection
from gpuqueue.errors import Refused
from gpuqueue.model.array import Array
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.safety import server_facts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import SUPERUSER, is_superuser

DAY_S = 86400.0
ADMINS = "an administrator of this site (setting admins)"
#: The changes that a user may make to a waiting job.
CHANGES: dict[str, Callable[[JobQueue, int, str], object]] = {
    "cancel": lambda queue, job, by: queue.jobs.cancel(job, by=by),
    "hold": lambda queue, job, by: queue.jobs.hold(job, by=by),
    "release": lambda queue, job, by: queue.jobs.release(job, by=by),
    "edit": lambda queue, job, by: queue.requests.edit(job, lambda spec: spec, by=by),
    "part": lambda queue, job, by: queue.jobs.part(job, "hold", by=by),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by", ["bob", "root"])
def test_no_other_user_can_change_a_job(queue: JobQueue, change: str, by: str) -> None:
    # One line names the owner and who may change it, and the job stays unchanged. The account ``root`` is no exception:
    # anybody can be root of some machine in the network.
    serve(queue)
    array = Array.parse("0-3") if change == "part" else None
    job = submit(queue, array=array)
    before = queue.jobs.get(job)

    with pytest.raises(Refused, match=f"job {job} is ada's: only ada may change it, or an administrator of this site"):
        CHANGES[change](queue, job, by)

    assert before == queue.jobs.get(job)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by", ["ada", "eve", ""])
def test_owner_admin_and_the_queue_itself_may(queue: JobQueue, change: str, by: str) -> None:
    # Eve is an admin by the site's setting.
    serve(queue)
    queue.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={}, admins="dan,eve")
    job = submit(queue, array=Array.parse("0-3") if change == "part" else None)

    assert CHANGES[change](queue, job, by) is not None


def test_a_change_of_the_admins_applies_at_once(queue: JobQueue) -> None:
    # A part of a name does not match.
    job = submit(queue)
    queue.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={}, admins="bobby,eve")
    with pytest.raises(Refused):
        queue.jobs.hold(job, by="bob")

    queue.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={}, admins="*")
    assert JobState.HELD is queue.jobs.hold(job, by="bob")

    queue.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={})
    with pytest.raises(Refused):
        queue.jobs.release(job, by="bob")


def test_a_member_that_runs_is_its_owners(queue: JobQueue) -> None:
    """A running member can only be changed by its owner, by its own id or by its array's."""
    serve(queue)
    array = submit(queue, array=Array.parse("0-3"))
    member = must_claim(queue).job_id

    for meant in (array, member):
        with pytest.raises(Refused, match="is ada's"):
            queue.jobs.cancel(meant, by="bob")

    assert JobState.CANCELLING is queue.jobs.cancel(array, by="ada")


@pytest.fixture
def as_bob(queue: JobQueue, store_url: str, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    """Return a queue that the command line uses as bob."""
    monkeypatch.setenv("GPUQUEUE_REDIS_URL", store_url)
    monkeypatch.setattr(connection, "current_account", lambda host: Account(name="bob", uid=1001, host=host))
    return queue


def test_the_command_line_asks_as_the_account_that_runs_it(as_bob: JobQueue) -> None:
    # Another user's job gives exit code 5 and one line, and the own jobs are still changed. A filter for another user's
    # jobs is refused completely.
    theirs, own = submit(as_bob), submit(as_bob, account=BOB)

    output = speak(["cancel", str(theirs), str(own)])
    chosen = speak(["hold", "--user", "ada", "--yes"])

    assert (5, f"job {own}: cancelled\n".encode(), 1) == (output.code, output.stdout, output.stderr.count("\n"))
    assert (
        f"job {theirs} is ada's: only ada may change it, or an administrator of this site (setting admins)"
        in output.stderr
    )
    assert 5 == speak(["edit", str(theirs), "--mem", "2G"]).code
    assert (5, b"") == (chosen.code, chosen.stdout)
    assert (
        "gpuqueue: only ada may change the jobs of ada, or an administrator of this site (setting admins)\n"
        == chosen.stderr
    )
    as_bob.rules.set_policy(half_life_s=DAY_S, urgent=None, shares={}, admins="bob")
    assert f"job {theirs}: held\n".encode() == speak(["hold", "--user", "ada", "--yes"]).stdout


@pytest.mark.parametrize(
    ("url", "uid_map", "user"),
    [
        ("unix:///run/store.sock", "0 0 4294967295", SUPERUSER),
        ("unix:///run/store.sock", "0 1001 1", "root"),
        ("redis://store:6379", "0 0 4294967295", "root"),
    ],
)
def test_root_is_root_only_on_the_machine_of_the_store(
    url: str, uid_map: str, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``unshare -Ur gpuqueue cancel 81`` used to cancel ann's job, and so did root of any laptop in the network."""
    (tmp_path / "uid_map").write_text(f"{uid_map}\n")
    monkeypatch.setattr(connection, "current_account", lambda host: Account(name="root", uid=0, host=host))
    monkeypatch.setattr(connection, "is_superuser", lambda account: is_superuser(account, tmp_path / "uid_map"))

    here = connection.Connection(Settings.load({"GPUQUEUE_REDIS_URL": url, "GPUQUEUE_STATE_DIR": "/nowhere"}))

    assert user == here.user


@pytest.mark.usefixtures("as_bob")
def test_the_python_client_submits_and_changes_jobs_as_the_account_that_runs_it(store_url: str) -> None:
    with Client(Settings.load({"GPUQUEUE_REDIS_URL": store_url, "GPUQUEUE_STATE_DIR": "/nowhere"})) as client:
        mine = client.jobs.submit(["true"], mem="1G")
        other = submit(client.queue)

        assert "bob" == mine.spec.account.name
        assert JobState.HELD is client.jobs.hold(mine.id).state
        with pytest.raises(Refused, match="is ada's"):
            client.jobs.cancel(other)


def test_the_access_rule_of_the_docs_is_enough_and_no_more(own_store: OwnStore) -> None:
    """The documented access rule is sufficient and minimal."""
    # A job runs completely under it, and no member empties the store or reads keys of other programs.
    page = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "identity.md"
    rule = next(line for line in page.read_text().splitlines() if line.startswith("ACL SETUSER"))
    as_superuser = connect(own_store.url)
    as_superuser.execute_command(*rule.split())
    as_superuser.set("others", "1")
    url = own_store.listen().replace("redis://", "redis://gpuqueue:PASSWORD@")
    queue, member = JobQueue(url), connect(url)

    queue.recovery.open(0)
    serve(queue)
    job = submit(queue)
    queue.jobs.hold(submit(queue))
    claimed = must_claim(queue)
    queue.runs.started(job, claimed.token, lease_s=300, log_path="/l", devices=())
    assert JobState.CANCELLING is queue.jobs.cancel(job)
    assert ["submit", "submit", "hold", "claim", "started", "cancel"] == [
        str(each.act) for each in queue.outbox.events("0-0")
    ]
    assert server_facts(url).product
    assert None is queue.jobs.record(99)
    for words in (
        ("FLUSHALL",),
        ("CONFIG", "SET", "appendonly", "no"),
        ("GET", "others"),
        ("SHUTDOWN",),
        ("KEYS", "*"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            member.execute_command(*words)
    for each in (queue, member, as_superuser):
        each.close()
