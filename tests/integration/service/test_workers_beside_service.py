"""Workers with an account of their own on the machine of the service. Here it is the account of the test."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from factories import make_spec, must_claim
from service_fixtures import ServedSite, ask, mine, serving

from gpuqueue.client.first_call import ServiceAddress
from gpuqueue.client.joining import settings_of
from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import Refused
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account
from workers.relay.link import Link

BODIES = {"/jobs": {"argv": ["true"], "cwd": "/", "env": {}, "mem_bytes": 2**20}}


@pytest.fixture(scope="module")
def beside() -> Iterator[ServedSite]:
    """Return a site whose workers are this account."""
    with serving(GPUQUEUE_WORKERS_ACCOUNT=current_account("here").name) as site:
        yield site


def address(site: ServedSite) -> str:
    """Return the address of the socket."""
    return f"unix://{site.socket_path}"


def asked(site: ServedSite, method: str, path: str) -> tuple[int, object]:
    """Return the status and the answer to a request over the socket."""
    link = HTTPConnection("localhost", timeout=30)
    link.sock = socket.socket(socket.AF_UNIX)
    with closing(link):
        link.sock.connect(str(site.socket_path))
        body = json.dumps(BODIES.get(path, {}))
        link.request(method, f"/api/v1{path}", body if method == "POST" else None)
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())


def test_the_relay_calls_over_the_socket(beside: ServedSite) -> None:
    """It needs no token, and is the host of this machine."""
    settings = replace(beside.settings, service_url=address(beside))
    with closing(Link(settings)) as link:
        found = json.loads(link.get("/settings", timeout_s=30))
        polled = link.get_list("/requests?timeout_s=0", timeout_s=30)

    assert (beside.settings.host, None) == (found["host"], found["token_expires_at"])
    assert [] == polled
    assert found["host"] == settings_of(ServiceAddress(url=address(beside), token="")).host


@pytest.mark.parametrize("request_line", ["GET /jobs", "GET /history", "POST /jobs", "POST /tokens", "GET /audit"])
def test_the_workers_are_no_person(beside: ServedSite, request_line: str) -> None:
    """Their account has no right of a person, also if it is root. A token still proves its person."""
    method, path = request_line.split()
    status, problem = asked(beside, method, path)

    assert 401 == status, problem
    assert 200 == ask(beside, "/jobs", mine(beside, "bobs"))[0]


def test_an_account_that_is_not_the_workers_is_named(served: ServedSite) -> None:
    """`doctor` of such workers says what to set."""
    with pytest.raises(Refused, match=r"does not know this account as that of its workers: set workers_account"):
        settings_of(ServiceAddress(url=address(served), token=""))


def test_the_service_opens_no_directory_of_the_workers(beside: ServedSite, tmp_path: Path) -> None:
    """A log of this host is asked of the relay, or was delivered. Where the workers have our account, it is opened."""
    job = beside.queue.requests.submit(make_spec()).id
    claim = must_claim(beside.queue)
    path = tmp_path / str(job) / claim.token / "log"
    beside.queue.runs.started(job, claim.token, lease_s=300, log_path=str(path), devices=())
    record = beside.queue.jobs.record(job)
    assert record is not None
    assert record.last_run is not None
    theirs = Settings.load({**beside.environ, "GPUQUEUE_CONFIG": os.devnull})

    assert beside.settings.host == record.last_run.host == theirs.host
    assert path == own_log(beside.settings, record.last_run)
    assert own_log(theirs, record.last_run) is None
