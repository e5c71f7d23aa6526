"""A site of four network namespaces: store and database, two GPU hosts, and a client. Only root can make it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from bounded import until
from forked_command import BIN
from link import IP

from gpuqueue.system.process import ProcessIdentity

HOSTS = ("h1", "h2")
#: Password of the store.
PASSWORD = "lab-secret"  # noqa: S105 - of a store that lives for one test
_RULES = Path(__file__).parents[2] / "docs" / "explanation" / "identity.md"


def ip(*words: str) -> None:
    """Run ``ip`` with these words."""
    subprocess.run([IP, *words], check=True, capture_output=True)


def certificate(place: Path, address: str) -> tuple[str, str]:
    """Return a certificate for the store's address, and its key."""
    made, key = str(place / "store.pem"), str(place / "store.key")
    what = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=store")
    where = ("-addext", f"subjectAltName=IP:{address}", "-out", made, "-keyout", key)
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl program to make a certificate with")
    subprocess.run([openssl, "req", *what, *where], check=True, capture_output=True)
    return made, key


def documented_rule() -> list[str]:
    """Return the words of the access rule in the documentation, with the password of this test."""
    (rule,) = (line for line in _RULES.read_text().splitlines() if line.startswith("ACL SETUSER"))
    return rule.replace("PASSWORD", PASSWORD).split()


class Lab:
    """The namespaces and the processes in them. The namespace ``db`` has a bridge with a cable to each other one."""

    def __init__(self, place: Path) -> None:
        """Create the namespaces.

        Raises:
            OSError: there is no ``ip`` command.
            subprocess.CalledProcessError: the permission is missing.
        """
        self._place = place
        self._name = f"gq{secrets.token_hex(3)}"
        self._net = f"10.214.{1 + secrets.randbelow(250)}"
        self.address = f"{self._net}.1"
        self.environ: dict[str, str] = {}
        self._stack = ExitStack()
        try:
            db = self._namespace("db")
            ip("-n", db, "link", "add", "br0", "type", "bridge")
            ip("-n", db, "addr", "add", f"{self.address}/24", "dev", "br0")
            ip("-n", db, "link", "set", "br0", "up")
            for number, who in enumerate((*HOSTS, "client"), start=11):
                there = self._namespace(who)
                ip("-n", db, "link", "add", who, "type", "veth", "peer", "name", "eth0", "netns", there)
                ip("-n", db, "link", "set", who, "master", "br0", "up")
                ip("-n", there, "addr", "add", f"{self._net}.{number}/24", "dev", "eth0")
                ip("-n", there, "link", "set", "eth0", "up")
        except subprocess.CalledProcessError:
            self.close()
            raise

    def _namespace(self, who: str) -> str:
        name = f"{self._name}{who}"
        ip("netns", "add", name)
        self._stack.callback(subprocess.run, [IP, "netns", "del", name], check=False, capture_output=True)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def namespace(self, who: str) -> str:
        """Return the name of a network namespace."""
        return f"{self._name}{who}"

    def command(self, who: str, *words: str) -> list[str]:
        """Return a command line that runs a program in a namespace."""
        return [IP, "netns", "exec", self.namespace(who), *words]

    def relay(self, port: int, path: str, *certificate: str, address: str = "") -> None:
        """Make a unix socket reachable at a port of the namespace ``db``: for all, or at *address* only."""
        program = str(Path(__file__).with_name("lab_relay.py"))
        words = self.command("db", sys.executable, program, address or self.address, str(port), path, *certificate)
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        self._stack.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    def environ_of(self, who: str) -> dict[str, str]:
        """Return the environment of gpuqueue's commands in a namespace."""
        own = {"GPUQUEUE_STATE_DIR": str(self._place / who), "GPUQUEUE_HOST": who}
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {"PATH": path, "HOME": str(self._place), **self.environ, **own}

    def up(self, host: str, first: str = "true") -> None:
        """Start a GPU host. *first* is a shell command in its namespaces, which it may change."""
        words = ("sh", "-c", f'{first}; exec "$@"', "sh", str(BIN / "gpuqueue"))
        (self._place / host).mkdir()
        with (self._place / f"{host}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command(host, *words, "up", "--foreground", "--devices", "sim:1x4G"),
                env=self.environ_of(host),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._stack.callback(self._leave, host, process)
        until(lambda: process.poll() is not None or "workers" in self.log(host), timeout_s=60, what=f"{host} is up")
        assert process.poll() is None, self.log(host)

    def cli(self, *words: str, who: str = "client", code: int = 0) -> str:
        """Run ``gpuqueue`` in a namespace and return its output."""
        done = subprocess.run(
            self.command(who, str(BIN / "gpuqueue"), *words),
            env=self.environ_of(who),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def log(self, host: str) -> str:
        """Return what the commands of a host printed."""
        return (self._place / f"{host}.log").read_text(errors="replace")

    def cut(self, who: str) -> None:
        """Pull the cable of a namespace: packets vanish, connections stay half open."""
        ip("-n", f"{self._name}db", "link", "set", who, "down")

    def heal(self, who: str) -> None:
        """Plug the cable in again."""
        ip("-n", f"{self._name}db", "link", "set", who, "up")

    def close(self) -> None:
        """End everything, in reverse order."""
        self._stack.close()

    def _leave(self, host: str, process: subprocess.Popen[bytes]) -> None:
        _end(process)
        for pid_file in (self._place / host / "runs").glob("[0-9]*/*/pid"):
            for line in pid_file.read_text().splitlines():
                identity = ProcessIdentity.parse(line)
                if identity is not None and identity.alive():
                    identity.send(signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
        return
    process.kill()
    process.wait()
