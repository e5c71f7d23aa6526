"""Starts what systemd units describe, on a machine without systemd."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

from private_machine import PrivateMachine

UNITS = "/etc/systemd/system"
#: The keys that are understood here. A unit with another one fails the test, unless it changes nothing here.
KNOWN = {"User", "Environment", "ExecStart", "RuntimeDirectory"}
#: Keys that need systemd: what it does with the process later, and its sandbox.
LATER = {
    "ExecStartPost",
    "RuntimeDirectoryPreserve",
    "Restart",
    "RestartSec",
    "KillMode",
    "OOMPolicy",
    "OOMScoreAdjust",
    "TasksMax",
    "TimeoutStopSec",
    "Delegate",
}
SANDBOX = {
    "CapabilityBoundingSet",
    "InaccessiblePaths",
    "KeyringMode",
    "LockPersonality",
    "MemoryMax",
    "NoNewPrivileges",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateTmp",
    "ProcSubset",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "RemoveIPC",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallErrorNumber",
    "SystemCallFilter",
    "UMask",
}


class Unit:
    """The service of one unit file, started as systemd would."""

    def __init__(self, machine: PrivateMachine, name: str, log: Path) -> None:
        self._machine = machine
        self.name = name
        self.log = log
        self.service = service_of(machine.text(f"{UNITS}/{name}.service"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, with its account and its environment."""
        account = self.service.get("User", ["root"])[0]
        for directory in self.service.get("RuntimeDirectory", []):
            done = self._machine.root("install", "-d", "-o", account, "-m", "755", f"/run/{directory}")
            assert 0 == done.returncode, done.stderr
        home = self._machine.root("getent", "passwd", account).stdout.split(":")[5]
        environ = [f"HOME={home}", f"USER={account}", *self.service.get("Environment", [])]
        become = ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", "--"]
        (words,) = (shlex.split(each) for each in self.service["ExecStart"])
        # systemd sets a PATH without /opt.
        own = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *environ, *words]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._machine.enter(*become, *own), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the main process only (KillMode=process), and wait for its end."""
        assert self._process is not None
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        (child,) = Path(children).read_text().split()  # nsenter forks into the pid namespace
        os.kill(int(child), number)
        self.ended()

    def ended(self, timeout_s: float = 60.0) -> int:
        """Wait until the main process has ended, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=timeout_s)


def service_of(text: str) -> dict[str, list[str]]:
    """Return the section ``[Service]`` of a unit."""
    section, found = "", dict[str, list[str]]()
    for line in text.splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            assert key in KNOWN | LATER | SANDBOX, line
            found.setdefault(key, []).append(value)
    return found
