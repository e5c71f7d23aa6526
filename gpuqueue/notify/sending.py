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
_LATE = "it took longer than {:g} s"


class Failed(Exception):
    """The process ended without an answer."""


def is_there() -> bool:
    """Return whether Apprise is installed for this Python."""
    return importlib.util.find_spec("apprise") is not None


def schemes() -> tuple[str, ...]:
    """Return the URL schemes that this host's Apprise supports, or none if the child process fails."""
    try:
        answer = _asked({}, SCHEMES_S, _unnoticed)
    except Failed:
        return ()
    return tuple(str(each) for each in answer.get("schemes", ()))


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
    try:
        answer = _asked({"url": url, **asdict(message)}, limit_s, started or _unnoticed)
    except Failed as failed:
        return str(failed)
    trouble = answer.get("trouble")
    return None if trouble is None else str(trouble)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* and its process group, if it has not ended."""
    if process.poll() is None:  # else the pid may belong to another process by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _asked(asked: dict[str, Any], limit_s: float, started: Callable[[subprocess.Popen[bytes]], None]) -> dict[str, Any]:
    # Runs in the root directory, so that no module of the current directory is imported in place of Apprise.
    process = subprocess.Popen(
        _COMMAND,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    started(process)
    try:
        out, _ = process.communicate(json.dumps({**asked, "limit_s": limit_s}).encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failed(_LATE.format(limit_s)) from None
    finally:
        end(process)
        process.communicate()
    try:
        answer = json.loads(out)
    except ValueError:
        late = process.returncode == -signal.SIGALRM
        raise Failed(_LATE.format(limit_s) if late else f"its process ended with {process.returncode}") from None
    return answer if isinstance(answer, dict) else {}


def _unnoticed(_process: subprocess.Popen[bytes]) -> None:
    """Ignore the process."""
