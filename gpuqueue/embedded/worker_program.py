"""What ``up`` and ``down`` ask of the program ``gpuqueue-worker``. The package ``workers`` is never imported here."""

from __future__ import annotations

import json
import subprocess

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.system.process import installed


def find_devices(spec: str) -> tuple[str, ...]:
    """Return the UUIDs of the devices that *spec* selects on this machine.

    Raises:
        GpuQueueError: there are none, or *spec* is malformed.

    """
    found = _run("devices", "--devices", spec, "--json")
    return tuple(each["uuid"] for each in json.loads(found))


def park_jobs() -> str:
    """Let this machine's jobs continue without workers; return a text with their number and the time limit.

    Raises:
        GpuQueueError: the command failed. The shims will end the jobs when their grace is over.

    """
    return _run("park")


def left_jobs() -> str:
    """Return a text on the jobs of this machine that run without a worker, empty if none does. Needs no store."""
    return _run("left")


def end_left_jobs() -> None:
    """End the jobs of this machine that run without a worker, and wait until they are gone. Needs no store."""
    _run("left", "--end")


def _run(*words: str) -> str:
    """Run ``gpuqueue-worker`` with *words* and return its output.

    Raises:
        GpuQueueError: the program failed. The message is its last line on standard error.

    """
    done = subprocess.run([installed("gpuqueue-worker"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _as_error(done.returncode, done.stderr)
    return done.stdout.strip()


def _as_error(code: int, stderr: str) -> GpuQueueError:
    lines = stderr.strip().splitlines() or ["the devices could not be found, and no reason was given"]
    text = lines[-1].removeprefix("gpuqueue-worker: ")
    return BadRequest(text) if code == BadRequest.exit_code else GpuQueueError(text)
