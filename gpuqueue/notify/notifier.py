"""The notifier: sends messages to URLs of users, in system mode. It is the program of the unit ``gpuqueue-notify``.

Its account reads nothing of the queue, so a URL that has Apprise open a file or connect to a server gains nothing. The
service connects to a socket for each message: it writes the request of :mod:`gpuqueue.notify.child`, reads the answer,
and the notifier keeps nothing. The kernel says who connects, and only the account of the service gets an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gpuqueue.notify import sending

#: Most messages that are sent at a time. The recorder sends four.
MAX_CONNECTIONS = 8
#: Pause after a connection that could not be accepted, in seconds.
FULL_S = 0.1
#: How long a request may take to arrive, in seconds.
READ_S = 5.0
#: Longest time limit of a message that a request may name, in seconds.
MAX_LIMIT_S = 60.0
#: The credentials of the other end of a unix socket: pid, uid and gid.
_CREDENTIALS = struct.Struct("3i")
#: The variables of the unit that Apprise gets. A proxy is none: it would connect to addresses that nobody has checked.
_PASSED_ON = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def serve(uid: int, path: Path) -> None:
    """Send the messages of the account *uid* that arrive at the socket *path*. Does not return."""
    path.unlink(missing_ok=True)
    free = threading.BoundedSemaphore(MAX_CONNECTIONS)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)  # the service has another account; the uid decides
        listener.listen(MAX_CONNECTIONS)
        while True:
            try:
                link, _ = listener.accept()
            except OSError:  # the host has no file descriptor left
                time.sleep(FULL_S)
                continue
            if _uid_of(link) != uid or not free.acquire(blocking=False):
                link.close()
                continue
            try:
                threading.Thread(target=_handle, args=(link, free), daemon=True).start()
            except RuntimeError:  # the host has no thread left
                free.release()
                link.close()


def _uid_of(link: socket.socket) -> int:
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def _handle(link: socket.socket, free: threading.BoundedSemaphore) -> None:
    """Read a request from *link*, send its message, and write the answer."""
    try:
        with link, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            request: dict[str, Any] = json.loads(sending.read_all(link, time.monotonic() + READ_S))
            limit_s = min(float(request["limit_s"]), MAX_LIMIT_S)
            # The networks are always there, so that the child checks each address.
            fields = {name: request[name] for name in ("url", "title", "body", "good", "networks")}
            environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            answer = sending.answer_of_child(
                fields, limit_s, environ={"PATH": os.defpath, "LANG": "C.UTF-8", **environ}
            )
            link.settimeout(READ_S)
            link.sendall(json.dumps(answer).encode())
    finally:
        free.release()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="gpuqueue-worker notify")
    parser.add_argument("--account", required=True)
    parser.add_argument("--socket", type=Path, default=sending.SOCKET)
    words = parser.parse_args()
    try:
        uid = pwd.getpwnam(words.account).pw_uid
    except KeyError:
        sys.exit(f"gpuqueue-worker: this machine has no account {words.account}")
    serve(uid, words.socket)


if __name__ == "__main__":
    main()
