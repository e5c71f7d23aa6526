"""A store of a test's own, set up as badly as the test likes. conftest.py names it in ``pytest_plugins``."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from bounded import until

from gpuqueue.embedded.store import find_server
from gpuqueue.queue.connect import connect

#: Starts a server with these words of configuration on top, and returns its address.
StartStore = Callable[..., str]


@pytest.fixture
def start_store() -> Iterator[StartStore]:
    """Start servers with any configuration; they are gone after the test."""
    with ExitStack() as stack:

        def start(*words: str) -> str:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuqueue-store-")))
            where = ("--port", "0", "--unixsocket", str(directory / "s"), "--dir", str(directory), "--save", "")
            server = subprocess.Popen(
                [str(find_server()), *where, *words],
                stdout=subprocess.DEVNULL,
                restore_signals=False,  # as we do, it takes a write beyond a limit for an error and not for its end
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
