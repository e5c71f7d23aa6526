"""A link between a host and the store that can be cut silently: packets vanish, connections stay half open."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from urllib.parse import urlsplit

IP = shutil.which("ip") or "/sbin/ip"


def stop_accepting(listener: socket.socket, thread: threading.Thread) -> None:
    """Close *listener* and wait for the thread that accepts its connections.

    Closing alone would not wake the thread. It would accept one more connection, which nobody would close.
    """
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(timeout=30)


class Link:
    """Carries bytes between any number of connections to ``url`` and a server, until it is cut.

    The server is a store at a unix socket, or what listens at ``tcp://HOST:PORT``.
    """

    def __init__(self, store_url: str, address: str = "127.0.0.1") -> None:
        self._server = urlsplit(store_url)
        #: Whether bytes pass from the host to the store, and back.
        self._there, self._back = threading.Event(), threading.Event()
        self.heal()
        #: What the host has sent to the store since the last cut, and the store has not got.
        self.held: list[bytes] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((address, 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://{address}:{self.port}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """Stop the traffic to the store, the traffic back, or both, without closing a connection."""
        if there:
            self.held = []
            self._there.clear()
        if back:
            self._back.clear()

    def heal(self, *, back: bool = True) -> None:
        """Resume the traffic to the store, and *back*; pending bytes are delivered first."""
        self._there.set()
        if back:
            self._back.set()

    def close(self) -> None:
        """Close every connection, and meet no other."""
        stop_accepting(self._listener, self._accepting)
        for each in self._sockets:
            with suppress(OSError):
                each.close()
        self.heal()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX if self._server.scheme == "unix" else socket.AF_INET)
                try:
                    far.connect(self._server.path or (self._server.hostname, self._server.port))
                except OSError:  # the server is down: the other end sees a closed connection
                    near.close()
                    far.close()
                    continue
                self._sockets += [near, far]
                for words in ((near, far, self._there), (far, near, self._back)):
                    threading.Thread(target=self._carry, args=words, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                if passes is self._there and not passes.is_set():
                    self.held.append(chunk)
                passes.wait()
                sink.sendall(chunk)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Namespace:
    """A network namespace, like the network of another host. Only root can create one."""

    def __init__(self, name: str, subnet: int) -> None:
        """Create the namespace *name* with a link to the host's network.

        Raises:
            OSError: there is no ``ip`` command.
            subprocess.CalledProcessError: the permission is missing.
        """
        self.name = name
        self._wire = f"{name}w"
        self.address = f"10.213.{subnet}.1"
        _ip("netns", "add", name)
        try:
            _ip("link", "add", self._wire, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("addr", "add", f"{self.address}/24", "dev", self._wire)
            _ip("link", "set", self._wire, "up")
            _ip("-n", name, "addr", "add", f"10.213.{subnet}.2/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        except subprocess.CalledProcessError:
            self.close()
            raise

    def command(self, *words: str) -> list[str]:
        """Return a command line that runs a program inside."""
        return [IP, "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Take the link down."""
        _ip("link", "set", self._wire, "down")

    def heal(self) -> None:
        """Bring the link up again."""
        _ip("link", "set", self._wire, "up")

    def close(self) -> None:
        """Delete the namespace and its link."""
        subprocess.run([IP, "netns", "del", self.name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run([IP, *words], check=True, capture_output=True)
