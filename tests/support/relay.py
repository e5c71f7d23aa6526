"""A connection to a store that can be made bad: answers split into bytes, cut off, or lost, and TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from link import stop_accepting


class Relay:
    """Carries bytes between its own port and the store's socket; with *tls*, encrypted up to this port."""

    def __init__(self, store_url: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._store = urlsplit(store_url).path
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        #: Whether answers are sent one byte at a time.
        self.in_pieces = False
        #: The bytes of answers that still pass before the connection breaks; None for no limit.
        self.left: int | None = None
        #: The number of connections that were made.
        self.met = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Close every connection, and meet no other."""
        stop_accepting(self._listener, self._accepting)
        for each in self._sockets:
            with suppress(OSError):
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.met += 1
                threading.Thread(target=self._meet, args=(near,), daemon=True).start()

    def _meet(self, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        self._sockets += [near, far]
        with suppress(OSError):  # ssl.SSLError is an OSError: the client does not trust the certificate
            if self._tls is not None:
                near = self._tls.wrap_socket(near, server_side=True)
                self._sockets.append(near)
            far.connect(self._store)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._ask, args=(near, far), daemon=True).start()
            self._answer(far, near)
        for each in (near, far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while chunk := near.recv(65536):
                far.sendall(chunk)
        with suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        while chunk := far.recv(65536):
            left = self.left  # read once: a test sets it as soon as it has the answer before
            passed = chunk if left is None else chunk[:left]
            for piece in [bytes([each]) for each in passed] if self.in_pieces else [passed]:
                near.sendall(piece)
            if left is not None:
                self.left = left - len(passed)
                if self.left == 0:
                    return
