"""Sends a message in a child process with a time limit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gpuqueue.notify import child
from gpuqueue.notify.message import Message

#: Time limit of one message, in seconds, including slow connections and greylisting mail servers.
LIMIT_S = 30.0
#: Time limit of listing the schemes, in seconds. Listing needs no network.
SCHEMES_S = 30.0
#: The error for a URL that no plugin handles.
NO_SCHEME = child.NO_SCHEME
_COMMAND = (sys.executable, "-m", "gpuqueue.notify.child")


def is_there() -> bool:
    """Return whether Apprise is installed for this Python."""
    return importlib.util.find_spec("apprise") is not None


def schemes() -> tuple[str, ...]:
    """Return the URL schemes that this host's Apprise supports, or none if the child process fails."""
    return tuple(map(str, _answer_to({}, SCHEMES_S).get("schemes", ())))


def send(
    url: str,
    message: Message,
    *,
    limit_s: float = LIMIT_S,
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> str | None:
    """Send *message* to *url*. Return why it was not sent, or None if it was.

    *started* is called with the child process, so that the caller can end it early.
    """
    trouble = _answer_to({"url": url, **asdict(message)}, limit_s, started).get("trouble")
    return None if trouble is None else str(trouble)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* and its process group, if it has not ended."""
    if process.poll() is None:  # else the pid may belong to another process by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _answer_to(
    request: dict[str, Any], limit_s: float, started: Callable[[subprocess.Popen[bytes]], None] | None = None
) -> dict[str, Any]:
    """Return the answer of a child process to *request*; if it has none, ``trouble`` says why."""
    # Runs in the root directory, so that no module of the current directory is imported in place of Apprise.
    process = subprocess.Popen(
        _COMMAND,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if started is not None:
        started(process)
    late = {"trouble": f"it took longer than {limit_s:g} s"}
    try:
        out, _ = process.communicate(json.dumps({**request, "limit_s": limit_s}).encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        return late
    finally:
        end(process)
        process.communicate()
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        is_late = process.returncode == -signal.SIGALRM
        return late if is_late else {"trouble": f"its process ended with {process.returncode}"}
    return answer
