"""The two kinds of history database of a site, and how each becomes unavailable for a while."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

TESTS = Path(__file__).resolve().parents[2] / "tests" / "support"
if TYPE_CHECKING:
    from private_postgres import Account


class Database(Protocol):
    """The SQL database of the site."""

    #: For ``GPUQUEUE_DATABASE_URL``.
    url: str

    def be_away(self, for_s: float) -> str:
        """Make it unavailable for *for_s* seconds; it comes back by itself. Return in words what was done."""


class SqliteFile:
    """A SQLite file; a long transaction makes it unavailable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    def be_away(self, for_s: float) -> str:
        """Hold the write lock."""
        taken = threading.Event()

        def hold() -> None:
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            try:
                connection.execute("BEGIN IMMEDIATE")
                taken.set()
                threading.Event().wait(for_s)
                connection.execute("ROLLBACK")
            finally:
                taken.set()
                connection.close()

        threading.Thread(target=hold, name="chaos-lock", daemon=True).start()
        taken.wait()
        return f"write lock held for {for_s:.1f} s"


class PrivatePostgres:
    """A private server that is aborted and restarted."""

    def __init__(self, url: str, account: Account, pg_ctl: Path, home: Path) -> None:
        self.url = url
        self._account = account
        self._pg_ctl = pg_ctl
        self._home = home
        self._starter: threading.Timer | None = None

    def be_away(self, for_s: float) -> str:
        """Abort the server as in a crash, and start it again later."""
        self.be_back()
        self._account.run(self._pg_ctl, "-D", self._home / "data", "-w", "-m", "immediate", "stop", cwd=self._home)
        self._starter = threading.Timer(for_s, self._start)
        self._starter.start()
        return f"server aborted, started again after {for_s:.1f} s"

    def be_back(self) -> None:
        """Wait until the server is up again."""
        if self._starter is not None:
            self._starter.join()

    def _start(self) -> None:
        options = f"-k {self._home} -c listen_addresses='' -c fsync=off -c full_page_writes=off"
        log = self._home / "server.log"
        data = self._home / "data"
        self._account.run(self._pg_ctl, "-D", data, "-w", "-o", options, "-l", log, "start", cwd=self._home)


@contextmanager
def open_database(kind: str, place: Path) -> Iterator[Database]:
    """Yield the database *kind*: ``sqlite`` (below *place*) or ``postgres`` (a private server, removed afterwards)."""
    if kind == "sqlite":
        yield SqliteFile(place / "history.db")
        return
    sys.path.insert(0, str(TESTS))
    import private_postgres as private  # noqa: PLC0415 - the tests' own, and only where it is asked for

    with ExitStack() as stack:
        binaries, server = _server(private, stack)
        url = stack.enter_context(server.database())
        home = Path(server.url.rpartition("host=")[2])
        database = PrivatePostgres(url, private.Account.choose(), binaries / "pg_ctl", home)
        try:
            yield database
        finally:
            database.be_back()


def _server(private: ModuleType, stack: ExitStack) -> tuple[Path, Any]:
    """Return a private server, and the directory of programs that run here."""
    for binaries in private.candidates():
        with suppress(private.NoPostgres):
            return binaries, stack.enter_context(private.running(binaries))
    binaries = stack.enter_context(private.copied_wheel())
    return binaries, stack.enter_context(private.running(binaries))
