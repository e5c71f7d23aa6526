"""A store of a test's own, with any configuration, however bad. conftest.py names it in ``pytest_plugins``."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from bounded import until

from gpuqueue.embedded.server import find_server
from gpuqueue.queue.connect import connect

#: Starts a server with these additional configuration words, and returns its address.
StartStore = Callable[..., str]


@pytest.fixture
def start_store() -> Iterator[StartStore]:
    """Return a function that starts servers with any configuration; they are stopped after the test."""
    with ExitStack() as stack:

        def start(*words: str) -> str:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuqueue-store-")))
            where = ("--port", "0", "--unixsocket", str(directory / "s"), "--dir", str(directory), "--save", "")
            server = subprocess.Popen(
                [str(find_server().path), *where, *words],
                stdout=subprocess.DEVNULL,
                restore_signals=False,  # a write beyond a limit must be an error, as for gpuqueue
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
            url = f"unix://{directory / 's'}"
            until(lambda: _answers(url), what="a store")
            return url

        yield start


def _answers(url: str) -> bool:
    client = connect(url)
    try:
        client.info()
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False
    finally:
        client.close()
    return True
