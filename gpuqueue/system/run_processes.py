"""The processes of a run, and the addresses at which they listen. Standard library only: root uses it, too.

See proc(5). ``/proc/net/tcp`` has a line for each socket of this network namespace, with its inode, and a link in
``/proc/PID/fd`` says which process holds that inode. Only root and the account of a process can read its links.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The addresses of this machine that reach a program, and where it must listen for that: the kernel prefers the first.
_PLACES = {
    "127.0.0.1": (("127.0.0.1", "::ffff:127.0.0.1"), ("0.0.0.0",)),  # noqa: S104 - nothing listens by this
    "::1": (("::1",), ("::",)),
}
#: The state of a socket that listens, in the fourth column of ``/proc/net/tcp``; the inode is in the tenth.
_LISTENS = "0A"


def below(root: int) -> list[int]:
    """Return the pids of all descendants of *root*. A process that ends during the search may be missing."""
    found: list[int] = []
    todo = [root]
    while todo:
        new = children(todo.pop())
        found += new
        todo += new
    return found


def children(pid: int) -> list[int]:
    """Return the children of *pid*, from one small file per thread. This is 20 times cheaper than a scan of /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"{thread.path}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    return found


def address_of(port: int, pids: Iterable[int]) -> str | None:
    """Return the address of this machine at which only processes of *pids* listen on *port*; None if there is none."""
    listening = _listening(port)
    own = {inode for pid in pids for inode in _sockets(pid)} if listening else set()
    for address, ranks in _PLACES.items():
        places = (set().union(*(listening.get(_written(each), ()) for each in rank)) for rank in ranks)
        reached: set[str] = next(filter(None, places), set())
        if reached and reached <= own:
            return address
    return None


def _listening(port: int) -> dict[str, set[str]]:
    """Return the inodes of the sockets that listen on *port*, by their address as the kernel writes it."""
    found: dict[str, set[str]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as file:
            for line in file:
                words = line.split()
                address, _, number = words[1].partition(":")
                if words[3] == _LISTENS and int(number, 16) == port:
                    found.setdefault(address, set()).add(words[9])
    return found


def _sockets(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets that the process *pid* holds; none of one that has ended or is another's."""
    with contextlib.suppress(OSError):
        for link in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                kind, _, rest = os.readlink(link.path).partition(":[")
                if kind == "socket":
                    yield rest.rstrip("]")


def _written(address: str) -> str:
    """Return *address* as the kernel writes it: its words of 32 bits in the order of this machine."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
