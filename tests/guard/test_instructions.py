"""Instructions of the processor: what a claim costs the store, however busy the machine is. Counted by valgrind."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import redis
from bounded import until
from factories import make_spec, must_claim, serve
from guard.bounds import Bound

from gpuqueue.embedded.store import find_server
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue

VALGRIND = shutil.which("valgrind")
pytestmark = [
    pytest.mark.skipif(VALGRIND is None, reason="no valgrind here to count instructions: apt install valgrind"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the bound is for the instructions of x86_64"),
]
WAITING, CLAIMS = 210, 200
#: Instructions of the store for a claim that finds a job, its lease taken back included. Measured: 834 000, the same to
#: half a percent in each run, with the store of our wheel. It is about what takes the time of a claim:
#: to change it is the way to make claims cheaper. Another server (redis on PATH) is compiled otherwise.
CLAIM = Bound(420_000, 920_000)


def test_a_claim_takes_as_many_instructions_as_agreed() -> None:
    """The same store's life with and without its claims; the difference is theirs."""
    each = (instructions(CLAIMS) - instructions(0)) / CLAIMS

    CLAIM.hold(each, "instructions for a claim")


def instructions(claims: int) -> int:
    """Return what a store takes from its start to its end, with so many claims."""
    assert VALGRIND is not None
    with tempfile.TemporaryDirectory(prefix="gq-vg-") as place:
        count = [VALGRIND, "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={place}/out"]
        where = ["--port", "0", "--unixsocket", f"{place}/s", "--dir", place, "--save", "", "--hz", "1"]
        with subprocess.Popen(
            [*count, str(find_server()), *where], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as server:
            try:
                until(lambda: Path(place, "s").exists() and _answers(f"unix://{place}/s"), what="a store")
                _claim(f"unix://{place}/s", claims)
            finally:
                server.terminate()
            _, said = server.communicate(timeout=60)
    found = re.search(r"I\s+refs:\s+([\d,]+)", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def _claim(url: str, claims: int) -> None:
    queue, client = JobQueue(url), connect(url, wait_s=60)
    queue.open(0)
    serve(queue)
    for _ in range(WAITING):
        queue.submit(make_spec())
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
