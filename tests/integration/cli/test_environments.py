"""What people see of environments: no secret in any command, a retry without them, and a role that cannot read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from bounded import until
from factories import make_offer, must_claim, serve
from private_postgres import Server
from site_of_one import Site

from gpuqueue.history.connect import open_engine
from gpuqueue.model.environment import is_secret
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.system.environment import OURS_THAT_TRAVEL

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "own-store.md"
#: The secrets of the job, and what must be nowhere.
SECRETS = {"HF_TOKEN": "hunter2-token", "WANDB_API_KEY": "hunter2-key"}
SECRET = "hunter2"  # noqa: S105 - a test's


def quiet(site: Site) -> Site:
    """Return a site with a recorder, whose device has no worker."""
    for name in filter(is_secret, [*site.environ]):  # this machine's own would be named as well
        del site.environ[name]
    site.start_recorder()
    serve(site.queue, make_offer(host=site.settings.host))
    return site


@pytest.fixture
def small(site: Site) -> Site:
    """Return such a site with its history in SQLite."""
    return quiet(site)


def submit(site: Site, *words: str) -> int:
    """Submit a job with two secrets; return its id."""
    secrets = [word for name, value in SECRETS.items() for word in ("--env", f"{name}={value}")]
    return int(site.cli("submit", "--mem", "1M", *secrets, "--env", "COLOUR=blue", *words, "--", "true").stdout)


def end(site: Site, job_id: int) -> None:
    """Let a job run and fail, and wait until only the history has it."""
    claimed = must_claim(site.queue, host=site.settings.host)
    assert job_id == claimed.job_id
    assert SECRETS.items() <= claimed.spec.env.items(), "the job itself gets its secrets"
    ending = Ending.from_status(1)
    log = site.settings.runs_dir / str(job_id) / claimed.token / "log"
    site.queue.runs.started(job_id, claimed.token, lease_s=300, log_path=str(log), devices=())
    site.queue.runs.finish(job_id, claimed.token, state=JobState.FAILED, ending=ending, duration_s=1, devices=())
    until(lambda: site.queue.jobs.get(job_id) is None, what="the store without the job")


def environment_of(site: Site, job_id: int) -> dict[str, str]:
    """Return the environment of a waiting job."""
    job = site.queue.jobs.get(job_id)
    assert job is not None
    return dict(job.spec.env)


def test_a_retry_takes_removed_secrets_from_who_retries(small: Site) -> None:
    """A retry has the first environment but for its secrets: these are those of now, and missing ones are named."""
    job = submit(small)
    end(small, job)
    small.environ |= {"HF_TOKEN": "of-now", "COLOUR": "red"}

    partly = small.cli("retry", str(job))
    fully = small.cli("retry", str(job), "--env", "WANDB_API_KEY=given", "--env", "HF_TOKEN=given")

    line = (
        f"gpuqueue: the secrets of job {job} were removed at its end; from your environment: HF_TOKEN; missing, give "
        "with --env: WANDB_API_KEY\n"
    )
    assert (line, "gpuqueue: job 1 was retried before, as job 2\n") == (partly.stderr, fully.stderr)
    env = environment_of(small, int(partly.stdout))
    assert ("of-now", "blue") == (env["HF_TOKEN"], env["COLOUR"])
    assert "WANDB_API_KEY" not in env
    env = environment_of(small, int(fully.stdout))
    assert ("given", "given", "blue") == (env["HF_TOKEN"], env["WANDB_API_KEY"], env["COLOUR"])


def test_a_retry_of_an_old_job_has_the_environment_of_who_retries(small: Site) -> None:
    """Once the environment of a job is removed, a retry takes the current one, and says so in one line."""
    job = submit(small)
    end(small, job)
    assert 1 == small.client.database.forget_environments(datetime.now(timezone.utc))
    small.environ["COLOUR"] = "red"

    again = small.cli("retry", str(job))

    line = (
        f"gpuqueue: the environment of job {job} is not kept any more, or not for you: the new job gets your current "
        "one\n"
    )
    assert line == again.stderr
    env = environment_of(small, int(again.stdout))
    assert "red" == env["COLOUR"]
    assert not {*SECRETS} & {*env}
    assert not [name for name in env if name.startswith("GPUQUEUE_") and name not in OURS_THAT_TRAVEL]


def test_a_retry_of_a_member_has_the_environment_of_its_array(small: Site) -> None:
    """A member of an array has the variables of the array and its own, whether the array has ended or not."""
    array = submit(small, "--array", "0-1")
    end(small, array + 1)

    first = small.cli("retry", f"{array}_0")
    end(small, array + 2)
    until(lambda: small.queue.jobs.get(array) is None, what="the store without the array")
    second = small.cli("retry", f"{array}_0")

    envs = [environment_of(small, int(each.stdout)) for each in (first, second)]
    assert [("blue", "0")] * 2 == [(env["COLOUR"], env["GPUQUEUE_ARRAY_INDEX"]) for env in envs]
    assert [True, False] == ["HF_TOKEN" in env for env in envs]
    assert "" == first.stderr
    assert "missing, give with --env: HF_TOKEN, WANDB_API_KEY" in second.stderr


#: Commands that show jobs, for one that waits and one that has ended.
SHOWN = (
    *(
        "queue",
        "queue --json",
        "status",
        "status --json",
        "history",
        "history --json",
        "stats",
        "stats --json",
        "limits",
    ),
    *("show {}", "show {} --json", "why {}", "why {} --json", "gpus --json", "doctor --json"),
)


@pytest.mark.full
def test_no_command_shows_a_secret(small: Site) -> None:
    """No table, JSON or error of any command has a secret, while the job waits and after its end.

    The same is true of the log of the recorder.
    """
    ended, waiting = submit(small), submit(small)
    end(small, ended)

    for words in SHOWN:
        for job in (ended, waiting):
            shown = small.cli(*words.format(job).split(), check=False)
            assert SECRET not in shown.stdout + shown.stderr, words
    assert SECRET not in small.cli("edit", str(waiting), "--mem", "2M").stdout
    assert SECRET not in small.log()


@pytest.fixture
def shared(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with its history in PostgreSQL. Its commands use the role of the documentation."""
    server: Server = request.getfixturevalue("postgres_server")
    with server.database(request.getfixturevalue("_migrated_postgres")) as url:
        made = quiet(Site(tmp_path / "state", store_url, GPUQUEUE_DATABASE_URL=url))
        engine = open_engine(url)
        (grants,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
        with engine.begin() as connection:
            for statement in filter(str.strip, grants.split(";")):
                connection.exec_driver_sql(statement)
        role = sa.make_url(url).set(username="gpuqueue_reader", password="another secret")
        made.environ["GPUQUEUE_DATABASE_URL"] = role.render_as_string(hide_password=False)
        try:
            yield made
        finally:
            made.stop()
            with engine.begin() as connection:
                connection.exec_driver_sql("DROP OWNED BY gpuqueue_reader")
                connection.exec_driver_sql("DROP ROLE gpuqueue_reader")
            engine.dispose()


@pytest.mark.full
def test_a_role_that_cannot_read_environments_is_enough_for_clients(shared: Site) -> None:
    """With the documented role all commands for jobs work. It can neither read environments nor change anything."""
    job = submit(shared)
    end(shared, job)
    shared.environ["COLOUR"] = "red"

    assert f"{job} " in shared.cli("history").stdout
    for words in (f"show {job}", f"show {job} --json", "stats", "stats --json", f"why {job}", "history --json"):
        shown = shared.cli(*words.split())
        assert SECRET not in shown.stdout + shown.stderr
        assert shown.stdout
    assert 1 == shared.cli("wait", str(job), check=False).returncode
    assert "there any more" in shared.cli("logs", str(job), check=False).stderr
    again = shared.cli("retry", str(job))
    assert "not kept any more, or not for you" in again.stderr
    assert "red" == environment_of(shared, int(again.stdout))["COLOUR"]
    engine = open_engine(shared.environ["GPUQUEUE_DATABASE_URL"])
    for statement in ("SELECT * FROM environments", "DELETE FROM jobs", "UPDATE job_events SET act = 'x'"):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), engine.begin() as connection:
            connection.exec_driver_sql(statement)
    engine.dispose()
