"""Sends a message in a child process with a time limit, or has the notifier send it.

In system mode the notifier sends the messages to URLs of users (:mod:`gpuqueue.notify.notifier`): it has an account of
its own, which reads nothing of the queue.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuqueue.notify import child
from gpuqueue.notify.message import Message
from gpuqueue.text.sanitize import plain, short

#: Time limit of one message, in seconds, including slow connections and greylisting mail servers.
LIMIT_S = 30.0
#: Time limit of listing the schemes, in seconds. Listing needs no network.
SCHEMES_S = 30.0
#: The error for a URL that no plugin handles.
NO_SCHEME = child.NO_SCHEME
#: The socket of the notifier. Only the account of the service gets answers.
SOCKET = Path("/run/gpuqueue-notify/notify.sock")
#: The error where URLs of users need the notifier, and it is not there.
NO_NOTIFIER = (
    "messages to URLs of users need the unit gpuqueue-notify, which does not run here: its administrator types "
    "gpuqueue install --force, or starts the unit; targets of the site work without it"
)
#: Most bytes of a request to the notifier, and of its answer.
MAX_BYTES = 2**18
#: How long the notifier may take beyond the time limit of a message, in seconds.
GRACE_S = 5.0
#: Longest reason of a failure that the notifier gives, in columns.
_MAX_TROUBLE = 300
_COMMAND = (sys.executable, "-m", "gpuqueue.notify.child")


def is_there() -> bool:
    """Return whether Apprise is installed for this Python."""
    return importlib.util.find_spec("apprise") is not None


def has_notifier() -> bool:
    """Return whether the notifier of this machine accepts connections."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(GRACE_S)
        try:
            link.connect(str(SOCKET))
        except OSError:
            return False
        return True


def schemes() -> tuple[str, ...]:
    """Return the URL schemes that this host's Apprise supports, or none if the child process fails."""
    return tuple(map(str, answer_of_child({}, SCHEMES_S).get("schemes", ())))


def send(
    url: str,
    message: Message,
    *,
    networks: Sequence[str] | None = None,
    limit_s: float = LIMIT_S,
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> str | None:
    """Send *message* to *url*. Return why it was not sent, or None if it was.

    With *networks* the notifier sends it: to public addresses, and to these networks. Otherwise a child process does;
    *started* is called with it, so that the caller can end it early.
    """
    request = {"url": url, **asdict(message)}
    if networks is not None:
        return _trouble_of_notifier({**request, "networks": list(networks)}, limit_s)
    trouble = answer_of_child(request, limit_s, started=started).get("trouble")
    return None if trouble is None else str(trouble)


def _trouble_of_notifier(request: dict[str, Any], limit_s: float) -> str | None:
    deadline_s = time.monotonic() + limit_s + GRACE_S
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(GRACE_S)
            link.connect(str(SOCKET))
            link.sendall(json.dumps({**request, "limit_s": limit_s}).encode())
            link.shutdown(socket.SHUT_WR)
            answer = json.loads(read_all(link, deadline_s))
            return None if answer["trouble"] is None else short(plain(str(answer["trouble"])), _MAX_TROUBLE)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        return NO_NOTIFIER
    except TimeoutError:
        return f"it took longer than {limit_s:g} s"
    except (OSError, ValueError, KeyError, TypeError):
        return "the unit gpuqueue-notify gave no answer: its journal says why"


def read_all(link: socket.socket, deadline_s: float) -> bytes:
    """Return what comes from *link* until its other end stops sending. *deadline_s* is on the monotonic clock.

    Raises:
        TimeoutError: it did not end in time.
        ValueError: it is more than ``MAX_BYTES``.

    """
    data = b""
    while len(data) <= MAX_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        link.settimeout(left_s)
        more = link.recv(MAX_BYTES)
        if not more:
            return data
        data += more
    raise ValueError(f"more than {MAX_BYTES} bytes")


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* and its process group, if it has not ended."""
    if process.poll() is None:  # else the pid may belong to another process by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def answer_of_child(
    request: dict[str, Any],
    limit_s: float,
    *,
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
    environ: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the answer of a child process to *request*; if it has none, ``trouble`` says why.

    *environ* is its environment, by default that of this process.
    """
    # Runs in the root directory, so that no module of the current directory is imported in place of Apprise.
    process = subprocess.Popen(
        _COMMAND,
        cwd="/",
        env=environ,
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
