"""Tests that bound what a submit sends to the store, from the first byte of its connection on.

Each command waits for the network. test_store_commands.py counts what :class:`JobQueue` asks. It would not notice a
client that asks something first, or that greets the store. This module monitors all commands.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from factories import make_offer, serve
from guard.one_life import END, uncovered
from own_store import OwnStore

from gpuqueue.client import Client
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue

#: No greeting, no choice of a database, no question whether the script is known. It does not vary, so it has no range.
#: A further command belongs into the script, where it costs no wait. If that is not possible, add it here and say why.
SENT = ["eval"]
BEGIN = "from-here-on"


@pytest.fixture
def served(own_store: OwnStore) -> OwnStore:
    """Return a store without other clients, with a device that can run jobs."""
    queue = JobQueue(own_store.url)
    queue.recovery.open(0)
    serve(queue)
    queue.close()
    return own_store


def sent(store: OwnStore, act: Callable[[], object]) -> list[str]:
    """Return the commands that *store* receives while *act* runs, without those that its scripts call."""
    admin, found = connect(store.url), list[str]()
    with admin.monitor() as listening:
        admin.echo(BEGIN)  # discards the greeting of the admin's own connection
        act()
        admin.echo(END)
        for heard in listening.listen():
            if END in heard["command"]:
                break
            if BEGIN in heard["command"]:
                found.clear()
            elif heard["client_type"] != "lua":
                found.append(heard["command"].split()[0].lower())
    jobs = admin.get("{gq}:seq")
    admin.close()
    assert jobs is not None, "nothing was submitted"
    assert 1 == int(jobs)
    return found


def test_the_command_sends_one_question(served: OwnStore) -> None:
    """The command line's submit sends one command, from its start to its end."""
    words = ["submit", "--mem", "1M", "--", "true"]
    environ = {**uncovered(), "GPUQUEUE_STATE_DIR": str(served.settings.state_dir), "GPUQUEUE_HOST": make_offer().host}

    def submit() -> None:
        command = [sys.executable, "-c", "from gpuqueue.cli.main import main; main()", *words]
        subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60)

    assert SENT == sent(served, submit)


def test_the_client_sends_one_question(served: OwnStore) -> None:
    """A submit from Python sends one command, because a script may submit thousands of jobs."""
    settings = replace(served.settings, host=make_offer().host)
    with Client(settings) as client:
        assert SENT == sent(served, lambda: client.jobs.submit("/bin/true", mem="1M"))
