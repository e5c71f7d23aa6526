"""The site that is broken: a state directory, a store, a history, workers and an operator."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity

BIN = Path(sys.executable).parent
#: The operator's polling interval, in seconds.
POLL_S = 0.2
#: How long `gpuqueue up` or `down` may take before it is given up, in seconds.
COMMAND_S = 180.0


class Role(str, Enum):
    """The role of a process of the site."""

    STORE = "store"
    HOST = "host"
    WORKER = "worker"
    RECORDER = "recorder"
    SHIM = "shim"
    JOB = "job"
    OTHER = "other"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteProcess:
    """A process of the site. ``of`` is a worker's device, a shim's or a job's token, else the command line."""

    identity: ProcessIdentity
    role: Role
    of: str

    def __str__(self) -> str:
        return f"{self.role} {self.of} (pid {self.identity.pid})"


class Site:
    """Starts, watches and ends everything. Its processes have its state directory in their environment."""

    def __init__(self, place: Path, database_url: str, *, devices: str, lease_s: float, heartbeat_s: float) -> None:
        self.place = place
        self.effects = place / "effects"
        self.effects.mkdir(parents=True)
        self._state = place / "s"
        self.environ = {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": os.environ.get("HOME", "/"),
            **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_STATE_DIR": str(self._state),
            "GPUQUEUE_DATABASE_URL": database_url,
            # Simulated devices are identified by host and number, and must differ between sites.
            "GPUQUEUE_HOST": f"chaos-{secrets.token_hex(3)}",
            "GPUQUEUE_DEVICES": devices,
            "GPUQUEUE_HEADROOM": "0",
            "GPUQUEUE_HOST_LOST_AFTER": f"{lease_s}s",
            "GPUQUEUE_HEARTBEAT": f"{heartbeat_s}s",
            "GPUQUEUE_POLL": "0.5s",
            "GPUQUEUE_KILL_GRACE": "0.5s",
        }
        self.settings = Settings.load(self.environ)
        self._ours = frozenset({f"GPUQUEUE_STATE_DIR={self._state}".encode()})
        self._run = f"GPUQUEUE_RUN_DIR={self._state}/".encode()

    # ---- up and down ---------------------------------------------------------------------------------------------

    def command(self, *words: str) -> subprocess.Popen[str]:
        """Start a gpuqueue command as an operator would; its output is kept in the site's directory."""
        log = (self.place / "operator.log").open("a")
        with log:
            return subprocess.Popen(
                [str(BIN / "gpuqueue"), *words], env=self.environ, cwd="/", text=True, stdout=log, stderr=log
            )

    def up(self) -> None:
        """Start everything and wait for it.

        Raises:
            RuntimeError: it does not come up.
        """
        if self.command("up").wait(COMMAND_S):
            raise RuntimeError(f"gpuqueue up failed:\n{self.operator_log()}")

    def down(self) -> None:
        """Stop everything as an operator would.

        Raises:
            RuntimeError: it does not go down.
        """
        if self.command("down").wait(COMMAND_S):
            raise RuntimeError(f"gpuqueue down failed:\n{self.operator_log()}")

    def operator_log(self) -> str:
        """Return the output of the commands."""
        with contextlib.suppress(OSError):
            return (self.place / "operator.log").read_text()
        return ""

    def end_everything(self) -> None:
        """Kill every process that is left."""
        for _ in range(100):
            left = list(self.processes())
            if not left:
                return
            for each in left:
                each.identity.send(signal.SIGKILL)
            time.sleep(0.05)

    # ---- looking -------------------------------------------------------------------------------------------------

    def processes(self, *roles: Role) -> Iterator[SiteProcess]:
        """Yield every process of the site that has one of *roles*, by its pid."""
        store = self.identity_of("store/pid")
        if store is not None and (not roles or Role.STORE in roles):
            yield SiteProcess(identity=store, role=Role.STORE, of="")
        for name in sorted((entry.name for entry in os.scandir("/proc") if entry.name.isdigit()), key=int):
            try:
                environ = Path("/proc", name, "environ").read_bytes().split(b"\0")
                words = Path("/proc", name, "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if self._ours.isdisjoint(environ) and not any(each.startswith(self._run) for each in environ):
                continue
            role, of = _what(environ, words)
            identity = ProcessIdentity.of(int(name))
            if identity is not None and (not roles or role in roles):
                yield SiteProcess(identity=identity, role=role, of=of)

    def identity_of(self, pid_file: str) -> ProcessIdentity | None:
        """Return the process of a pid file if it lives.

        The store's server overwrites its environment with its title, so it is found by its pid file.
        """
        with contextlib.suppress(OSError):
            identity = ProcessIdentity.parse((self._state / pid_file).read_text())
            return identity if identity is not None and identity.alive() else None
        return None

    def log_of(self, name: str) -> str:
        """Return a log of the site's own processes."""
        with contextlib.suppress(OSError):
            return (self.settings.logs_dir / name).read_text(errors="replace")
        return ""


def _what(environ: list[bytes], words: list[str]) -> tuple[Role, str]:
    token = next((each for each in environ if each.startswith(b"GPUQUEUE_TOKEN=")), None)
    if token is not None:
        return Role.JOB, token.partition(b"=")[2].decode()
    line = " ".join(words).strip()
    if any(word.endswith("supervisor.py") for word in words):
        return Role.SHIM, Path(words[-2] or "?").name
    if any(word.endswith("gpuqueue-worker") for word in words):
        if "run" in words:
            return Role.WORKER, words[words.index("--device") + 1]
        if "record" in words:
            return Role.RECORDER, line
        if "host" in words:
            return Role.HOST, line
    return Role.OTHER, line


class Operator:
    """Runs ``gpuqueue up`` whenever the host process is gone, as an operator or systemd would.

    The host process starts everything else again.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopping = threading.Event()
        self._leave_down_until_s = 0.0
        self._running: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._loop, name="chaos-operator", daemon=True)
        #: The number of calls, and of failed ones.
        self.calls = 0
        self.failures = 0

    def start(self) -> None:
        """Start watching the site."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; a running command is completed."""
        self._stopping.set()
        self._thread.join()
        if self._running is not None:
            self._running.wait(COMMAND_S)

    def drop(self) -> None:
        """Stop watching at once, and kill a running command."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def leave_down(self, for_s: float) -> None:
        """Do nothing for *for_s* seconds."""
        self._leave_down_until_s = time.monotonic() + for_s

    def _loop(self) -> None:
        while not self._stopping.wait(POLL_S):
            if self._running is not None:
                code = self._running.poll()
                if code is None:
                    continue
                self.failures += code != 0
                self._running = None
            if time.monotonic() >= self._leave_down_until_s and self._site.identity_of("host.pid") is None:
                self.calls += 1
                self._running = self._site.command("up")
