"""The access rule of docs/explanation/identity.md is enough for everything that reaches the store."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from factories import make_spec
from own_store import OwnStore
from site_of_one import BIN, Site

from gpuqueue.model.job import JobState
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import MIB

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


def test_the_documented_rule_is_enough_for_a_worker(limited: Site, own_store: OwnStore) -> None:
    """Celery's keys and channels were outside the rule: each worker crashed at once, and was started again for ever."""
    limited.start_recorder()
    worker = limited.start_worker(plain=False)

    job_id = int(limited.cli("submit", "--mem", "1M", "--", "echo", "hello").stdout)

    assert JobState.SUCCEEDED is limited.until_recorded(job_id).job.state
    assert "hello\n" == limited.cli("logs", str(job_id)).stdout
    assert 0 == limited.end(worker)
    assert [] == refusals(own_store), limited.log()[-3000:]
