"""What a submit sends to the store, from the first byte of its connection on: each is a wait for the network.

test_store_commands.py holds what :class:`JobQueue` asks; a client that asks something of its own before it, or greets
the store, would pass there: here whatever comes in is listened to.
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

#: No greeting, no choice of a database, no question whether the script is known. It has no range, as it does not vary.
#: A command more belongs into the script, where it costs no wait; if it cannot be there, add it here and say why.
SENT = ["eval"]
BEGIN = "from-here-on"


@pytest.fixture
def served(own_store: OwnStore) -> OwnStore:
    """Return a store that nobody asks anything, with a device to run jobs on."""
    queue = JobQueue(own_store.url)
    queue.open(0)
    serve(queue)
    queue.close()
    return own_store


def sent(store: OwnStore, act: Callable[[], object]) -> list[str]:
    """Return the commands that come to *store* while *act* runs, but for what its scripts call themselves."""
    admin, found = connect(store.url), list[str]()
    with admin.monitor() as listening:
        admin.echo(BEGIN)  # its own greeting comes before that
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
    """As it is typed, with everything before it and after it."""
    words = ["submit", "--mem", "1M", "--", "true"]
    environ = {**uncovered(), "GPUQUEUE_STATE_DIR": str(served.settings.state_dir), "GPUQUEUE_HOST": make_offer().host}

    def submit() -> None:
        command = [sys.executable, "-c", "from gpuqueue.cli.main import main; main()", *words]
        subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60)

    assert SENT == sent(served, submit)


def test_the_client_sends_one_question(served: OwnStore) -> None:
    """From Python: a script may submit thousands."""
    settings = replace(served.settings, host=make_offer().host)
    with Client(settings) as client:
        assert SENT == sent(served, lambda: client.submit("/bin/true", mem="1M"))
