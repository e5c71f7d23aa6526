"""What a command imports when it uses the HTTP service: no library of a server, of the store or of the history."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from service_fixtures import ServedSite

#: Modules whose import takes as long as much of a command. ``email`` is what ``http.client`` would import.
HEAVY = frozenset(
    {
        *(
            "asyncio",
            "email",
            "hashlib",
            "http.client",
            "httptools",
            "logging",
            "prometheus_client",
            "redis",
            "secrets",
        ),
        *("sqlalchemy", "ssl", "starlette", "subprocess", "uvicorn", "uvloop"),
        *("gpuqueue.service", "gpuqueue.queue.store", "gpuqueue.history.database"),
    }
)
#: Number of modules beyond those of click and of Python's start. With fewer than the first the test measures nothing.
RANGE = range(40, 135)

TELLING = """
import atexit, json, sys
import click
before = set(sys.modules)
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr))
from gpuqueue.cli.main import main
sys.argv = ["gpuqueue", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("words", [("submit", "--mem", "1M", "--", "true"), ("queue",), ("cancel", "1")], ids=" ".join)
def test_a_command_over_the_socket_loads_nothing_heavy(served: ServedSite, words: tuple[str, ...]) -> None:
    """A submit, a list and a cancel over the unix socket load no heavy module, and not more than they need."""
    environ = {**served.environ, "GPUQUEUE_URL": f"unix://{served.socket_path}"}  # its state directory has a short path
    command = [sys.executable, "-c", TELLING, *words]

    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    loaded = set(json.loads(done.stderr.splitlines()[-1]))

    assert done.returncode in {0, 3}, done.stderr
    assert set() == HEAVY & loaded
    assert len(loaded) in RANGE, sorted(loaded)
