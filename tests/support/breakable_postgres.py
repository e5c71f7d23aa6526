"""A PostgreSQL server that a test may kill, stop and start, because no other test uses it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from bounded import until
from private_postgres import Account, NoPostgres, Server, candidates, copied_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator


class Breakable:
    """A server in a directory of its own, on a unix socket there."""

    def __init__(self, binaries: Path, home: Path) -> None:
        """Create a server below *home* without starting it.

        Raises:
            NoPostgres: these programs do not run here.
        """
        self.server = Server(url=f"postgresql://gpuqueue@/postgres?host={home}")
        self._binaries, self._home, self._account = binaries, home, Account.choose()
        self._process: subprocess.Popen[bytes] | None = None
        self._account.own(home)
        initdb = ("-U", "gpuqueue", "-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._account.run(binaries / "initdb", "-D", home / "data", *initdb, cwd=home)

    @property
    def data(self) -> Path:
        """Return its data directory."""
        return self._home / "data"

    @property
    def socket(self) -> Path:
        """Return its unix socket."""
        return self._home / ".s.PGSQL.5432"

    def start(self, *settings: str, wait: bool = True) -> None:
        """Start it as a child process, with *settings* such as ``hot_standby=off``.

        A killed child must be waited for.
        """
        output = ("fsync=off", "full_page_writes=off", "listen_addresses=", f"unix_socket_directories={self._home}")
        options = [word for each in (*output, *settings) for word in ("-c", each)]
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, *options],
                stdout=log, stderr=log, cwd=self._home, env={"LC_ALL": "C"}, **self._account.arguments,
            )  # fmt: skip
        if wait:
            until(self._answers, what="a server that answers")

    def stop(self) -> None:
        """Stop it in order, even with open connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=60)

    def promote(self) -> None:
        """Promote a standby to a primary."""
        self.server.run("SELECT pg_promote()")

    def kill(self) -> None:
        """Kill all its processes at once, and wait until they are gone."""
        if self._process is None:
            return
        self.send(signal.SIGSTOP)  # no process may notice another one's end and clean up
        self.send(signal.SIGKILL)
        self._process.wait(timeout=60)
        until(lambda: not self._pids(), what="the end of the server")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def own(self, directory: Path) -> None:
        """Let it write below *directory*."""
        self._account.own(directory)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._home / "server.log").read_text()[-2000:]
        try:
            self.server.run("SELECT 1")
        except sa.exc.OperationalError:
            return False
        return True

    def _pids(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == self.data:
                    found.append(int(process.name))
        return found


@contextmanager
def breakable() -> Iterator[Breakable]:
    """Run a server of the test's own.

    Raises:
        NoPostgres: there is none here.
    """
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="gq-pg-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        places = candidates()
        try:
            made = Breakable(places[0], home) if places else None
        except NoPostgres:
            made = None
        if made is None:
            shutil.rmtree(home / "data", ignore_errors=True)
            made = Breakable(stack.enter_context(copied_wheel()), home)
        stack.callback(made.kill)
        made.start()
        yield made
