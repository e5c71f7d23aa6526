from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bounded import until
from factories import make_spec
from own_store import OwnStore
from site_of_one import BIN, Site

from gpuqueue.model.job import JobState
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import MIB
from workers.celery_app import broker_url

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "identity.md"


@pytest.fixture
def limited(own_store: OwnStore, tmp_path: Path) -> Iterator[Site]:
    """Return a site that reaches its store only as the user of the documented rule."""
    (rule,) = (line for line in PAGE.read_text().splitlines() if line.startswith("ACL SETUSER"))
    address = urlsplit(own_store.listen())
    admin = connect(own_store.url)
    admin.execute_command(*rule.replace("PASSWORD", "secret").split())
    admin.close()
    site = Site(tmp_path / "state", f"redis://gpuqueue:secret@{address.netloc}{address.path}")
    yield site
    site.stop()


def refusals(own_store: OwnStore) -> list[str]:
    """Return what the store refused to a user, in words of its own log."""
    admin = connect(own_store.url)
    try:
        return [f"{each['username']}: {each['object']} ({each['reason']})" for each in admin.acl_log()]
    finally:
        admin.close()


def inspect(site: Site, what: str) -> str:
    """Run `celery inspect` on the workers, as an operator would."""
    command = [str(BIN / "celery"), "-A", "workers.celery_app", "inspect", "--timeout", "5", "--json", what]
    return subprocess.run(command, env=site.environ, capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.mark.full
def test_a_running_job_is_a_real_celery_task(site: Site, tmp_path: Path) -> None:
    """`celery inspect active` shows a running job under its worker's device.

    The job is never in a queue of the broker.
    """
    site.start_recorder()
    worker = site.start_worker(plain=False)
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", wait), mem_bytes=MIB, name="seen"))
    site.until_state(job.id, JobState.RUNNING)

    node, tasks = until(lambda: next(iter(json.loads(inspect(site, "active") or "{}").items()), None))

    assert f"sim-{site.settings.host}-0@{site.settings.host}" == node
    (task,) = tasks
    assert ("gpuqueue.run", job.id, {"name": "seen"}) == (task["name"], task["args"][0], task["kwargs"])
    assert f"gpu.sim-{site.settings.host}-0" == task["delivery_info"]["routing_key"]
    gate.touch()
    assert JobState.SUCCEEDED is site.until_recorded(job.id).job.state
    assert 0 == site.end(worker)


@pytest.mark.full
def test_the_documented_rule_is_enough_for_a_worker(limited: Site, own_store: OwnStore) -> None:
    """Celery's keys and channels were outside the rule: each worker crashed at once, and was started again for ever."""
    limited.start_recorder()
    worker = limited.start_worker(plain=False)

    job_id = int(limited.cli("submit", "--mem", "1M", "--", "echo", "hello").stdout)

    assert JobState.SUCCEEDED is limited.until_recorded(job_id).job.state
    assert "hello\n" == limited.cli("logs", str(job_id)).stdout
    assert "gpuqueue.run" in inspect(limited, "registered")
    assert 0 == limited.end(worker)
    assert [] == refusals(own_store), limited.log()[-3000:]


@pytest.mark.full
def test_flower_sees_the_worker_and_the_job(limited: Site, own_store: OwnStore) -> None:
    """Flower shows gpuqueue's workers and jobs unchanged, and the documented access rule is enough for it."""
    site = limited
    site.start_recorder()
    site.start_worker(plain=False)
    port = 20000 + site.client.queue.now_ms() % 20000
    log = site.settings.state_dir / "flower.log"
    with log.open("wb") as out:
        flower = subprocess.Popen(
            [str(BIN / "celery"), "-A", "workers.celery_app", "flower", "--address=127.0.0.1", f"--port={port}"],
            env={**site.environ, "FLOWER_UNAUTHENTICATED_API": "true"},
            stdout=out,
            stderr=out,
        )
    try:

        def ask(path: str) -> dict[str, dict[str, str]]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=5) as reply:
                    return dict(json.load(reply))
            except OSError:
                return {}

        until(lambda: ask("workers"), what="flower knows the worker")

        def seen() -> list[str]:
            # Flower misses events from before it subscribed, and only a task's first event has the name. So jobs run
            # until Flower has seen one from its first event.
            site.until_recorded(site.queue.requests.submit(make_spec(mem_bytes=MIB)).id)
            return [task["name"] for task in ask("tasks").values() if task["name"]]

        assert {"gpuqueue.run"} == set(until(seen, what="flower knows the job"))
        assert [] == refusals(own_store)
    finally:
        flower.kill()
        flower.wait()


def test_the_broker_is_the_store_itself() -> None:
    """The Celery broker is the store, and a unix socket URL is spelt as kombu expects it."""
    assert "redis+socket:///run/store.sock" == broker_url("unix:///run/store.sock")
    assert "redis://h:1/2" == broker_url("redis://h:1/2")
