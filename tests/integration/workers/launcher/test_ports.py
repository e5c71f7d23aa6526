"""A real launcher says at which address a run listens: nobody else can see that of another account's processes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

from bounded import until
from one_shim import RUN_TOKEN, Shim
from submitters import Launcher

from gpuqueue.model.run import EndingKind
from workers.run.environment import TOKEN
from workers.shim.launched import port_address

#: The address that stands for all of IPv4.
EVERY = "0.0.0.0"  # noqa: S104 - what a program of a user may choose
#: Listens at the address in its first argument, in a child that has left the session, and prints the port.
LISTENS = """
import os, socket, sys
if os.fork():
    os.wait()
    sys.exit()
os.setsid()
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], 0), family=family)
print("port", listener.getsockname()[1], flush=True)
listener.accept()
"""


def test_only_a_port_of_the_run_has_an_address(as_user: Callable[..., Shim], launcher: Launcher) -> None:
    """That of a process of this test has none, and neither has it for another run, or an address of the network."""
    found = {}
    for address in ("127.0.0.1", EVERY, "::1", "::", "127.0.0.2"):
        run = as_user("python3", "-c", LISTENS, address, env={TOKEN: RUN_TOKEN, "PATH": os.defpath})
        match = until(lambda run=run: re.search(r"port (\d+)\n", run.log()), what=f"the port in {run.log()}")
        assert match is not None
        port = int(match[1])
        found[address] = port_address(launcher.socket, RUN_TOKEN, port)
        assert port_address(launcher.socket, f"{RUN_TOKEN}0", port) is None
        run.directory.ask_end(EndingKind.CANCELLED)
        run.ended()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert port_address(launcher.socket, RUN_TOKEN, listener.getsockname()[1]) is None

    v4, v6 = "127.0.0.1", "::1"
    assert {"127.0.0.1": v4, EVERY: v4, "::1": v6, "::": v6, "127.0.0.2": None} == found
