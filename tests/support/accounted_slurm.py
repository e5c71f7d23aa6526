"""A private Slurm with its accounting: slurmdbd on a private MariaDB, as sites have it."""

from __future__ import annotations

import contextlib
import getpass
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from private_slurm import PATH, PrivateSlurm, _free_port

#: The programs beside those of a Slurm without accounting.
PROGRAMS = ("mariadbd", "slurmdbd", "sacctmgr", "sacct")
#: The scripts by which MariaDB makes its own tables. Its install command needs a client, which is not needed otherwise.
TABLES = [Path(f"/usr/share/mysql/mysql_{each}.sql") for each in ("system_tables", "system_tables_data")]
#: ``gres/gpumem`` is what slurmd measures by NVML: here Slurm keeps a column for it, and no card fills it.
CONFIG = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={place}/munge.socket
AccountingStorageTRES=gres/gpu,gres/gpumem,gres/gpuutil
"""
DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
DbdAddr=127.0.0.1
DbdHost={host}
DbdPort={port}
SlurmUser={user}
PidFile={place}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""


class AccountedSlurm(PrivateSlurm):
    """One controller and one node with four fake GPUs, and an accounting."""

    def __init__(self, place: Path, *, kill_wait_s: int = 30) -> None:
        super().__init__(place, kill_wait_s=kill_wait_s)
        found = {each: shutil.which(each, path=PATH) for each in PROGRAMS}
        missing = [each for each, path in found.items() if path is None]
        missing += [str(path) for path in TABLES if not path.exists()]
        if missing:
            pytest.skip(f"the accounting of Slurm is not installed here: {', '.join(missing)}")
        self._programs |= {each: str(path) for each, path in found.items()}
        self._database_port, password = _free_port(), secrets.token_hex(16)
        own: dict[str, object] = {"place": place, "host": socket.gethostname().partition(".")[0], "port": _free_port()}
        with (place / "slurm.conf").open("a") as config:
            config.write(CONFIG.format(**own))
        daemon = place / "slurmdbd.conf"
        daemon.touch(mode=0o600)
        daemon.write_text(
            DAEMON.format(**own, user=getpass.getuser(), database_port=self._database_port, password=password)
        )
        self._grants = (
            "CREATE DATABASE slurm;\n"
            f"CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            "GRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1';\n"
        )

    def start(self) -> None:
        """Start everything, and wait until the node is idle and the accounting knows the cluster."""
        (self.place / "database").mkdir()
        tables = "".join(path.read_text() for path in TABLES)
        self._bootstrap(f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n{tables}")
        self._bootstrap(f"FLUSH PRIVILEGES;\n{self._grants}")
        self.start_database()
        self.start_munge()
        self.start_accounting()
        self.command("sacctmgr", "--immediate", "add", "cluster", "private")
        super().start()

    def start_accounting(self) -> None:
        """Start slurmdbd, and wait until it answers."""
        self._spawn("slurmdbd", "-D")
        until(lambda: self.run("sacctmgr", "--noheader", "list", "tres").returncode == 0, what="slurmdbd", timeout_s=90)

    def start_database(self) -> None:
        """Start MariaDB."""
        words = (f"--socket={self.place}/database.socket", f"--port={self._database_port}", "--bind-address=127.0.0.1")
        self._spawn("mariadbd", *self._words(), *words, "--skip-name-resolve")
        until(lambda: "ready for connections" in self.log("mariadbd"), what="MariaDB", timeout_s=60)

    def kill_accounting(self) -> None:
        """End slurmdbd with SIGKILL."""
        self._processes["slurmdbd"].kill()
        self._processes["slurmdbd"].wait(timeout=30)

    def pause_accounting(self, *, on: bool = False) -> None:
        """Stop slurmdbd, which takes connections and answers none; with *on* let it go on."""
        self._processes["slurmdbd"].send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def write(self, statements: str) -> None:
        """Change what the accounting has stored. slurmdbd connects again by itself."""
        self._processes["mariadbd"].terminate()
        self._processes["mariadbd"].wait(timeout=60)
        self._bootstrap(f"USE slurm;\n{statements}\n")
        (self.place / "mariadbd.out").write_text("")
        self.start_database()

    def _words(self) -> list[str]:
        sizes = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0")
        return ["--no-defaults", f"--user={getpass.getuser()}", f"--datadir={self.place}/database", *sizes]

    def _bootstrap(self, statements: str) -> None:
        """Run *statements*, one a line, without a server."""
        words = [self._programs["mariadbd"], *self._words(), "--bootstrap"]
        done = subprocess.run(words, input=statements, capture_output=True, text=True, timeout=60, check=False)
        assert 0 == done.returncode, done.stderr[-2000:]


@contextlib.contextmanager
def running_accounted(place: Path, *, kill_wait_s: int = 30) -> Iterator[AccountedSlurm]:
    """Run Slurm with its accounting in the directory *place*, whose path must be short."""
    made = AccountedSlurm(place, kill_wait_s=kill_wait_s)
    try:
        made.start()
        yield made
    finally:
        made.stop()
