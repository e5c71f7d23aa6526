"""A machine for one test: its own accounts, /etc, /run, /opt, /home and /var/lib, its own processes, no systemd.

Control groups are hidden from it, because they would be those of the real machine. /tmp and the network are those of
the real machine, unless it is in a network namespace: then it shares no directory that anybody writes to.

It is made of a mount and a pid namespace, so nothing of it is left after the test, even if the test is killed. gpuqueue
is installed in /opt/gpuqueue, where only root can write. Tests that use it are skipped where they are not root.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from installed_copy import MOUNT, PYTHON, ROOT, mounts
from link import IP

HOME = Path("/opt/gpuqueue")
#: Where the programs are. People have it on their PATH.
BIN = HOME / "bin"
PATH = f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: Makes the mounts of a machine, as MOUNT does, before its command.
MOUNTS = rf"""
base=$1
{MOUNT}
mkdir "$base/etc" "$base/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$base/etc,workdir=$base/work" /etc
[ -z "$OWN_TMP" ] || mount -t tmpfs -o mode=1777 none /tmp
sed -i -E 's/^#?\s*(SYS_[UG]ID_MIN)\s.*/\1 310/; s/^#?\s*(SYS_[UG]ID_MAX)\s.*/\1 390/' /etc/login.defs
exec "$@"
"""
#: Directories of the real machine that are covered by empty ones.
COVERED = ("/run", "/opt", "/home", "/var/lib", "/sys/fs/cgroup")
#: Where the tests are on the machine.
CHECKOUT = Path("/opt/checkout")
#: How the paths of the PAM services begin that tests write (see tests/integration/workers/launcher/test_session.py).
PAM_FILES = "/etc/pam.d/gpuqueue-test-"
#: Locks, copies and new versions of the files with accounts: passwd-, group.lock, shadow.1234, .pwd.lock.
ACCOUNT_FILES = re.compile(r"/etc/(\.pwd\.lock|(passwd|group|shadow|gshadow|subuid|subgid)([-+]|\.\w+))$")
#: The first process: reaps, and ends with its standard input.
INIT = """
import os, select
print("ready", flush=True)
while not select.select([0], [], [], 0.05)[0]:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class PrivateMachine:
    """Runs commands on the machine, as root or as a person."""

    def __init__(self, base: Path, network: str | None = None) -> None:
        """Make the machine. *base* is an empty directory, *network* the name of a network namespace."""
        inside = [] if network is None else [IP, "netns", "exec", network]
        command = [*inside, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        make = ["/bin/sh", "-c", MOUNTS, "sh", *mounts(base, HOME, (ROOT, CHECKOUT), covered=COVERED)]
        self._process = subprocess.Popen(
            [*command, *make, str(PYTHON), "-I", "-S", "-c", INIT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OWN_TMP": "" if network is None else "yes"},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != "ready\n":
            reason = self._process.stderr.read().strip()
            self.close()
            pytest.skip(f"this machine permits no mounts: {reason}")
        pid = self._process.pid
        self._init = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        done = self.root(str(PYTHON), "-I", f"{CHECKOUT}/tests/support/installed_copy.py", str(HOME))
        assert 0 == done.returncode, done.stderr

    def enter(self, *words: str) -> list[str]:
        """Return the command that runs *words* on this machine as root."""
        own = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", *words]
        return ["nsenter", "--target", self._init, "--mount", "--pid", "--net", "--", *own]

    def root(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program as root."""
        return self._run(self.enter(*words))

    def gpuqueue(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuqueue`` as root."""
        return self.root("gpuqueue", *words)

    def command_of(self, name: str, *words: str) -> list[str]:
        """Return the command that runs *words* as the person *name*, in the home, as after a login."""
        home = f"/home/{name}"
        login = ["env", "-i", f"HOME={home}", f"USER={name}", f"PATH={PATH}", "LANG=C.UTF-8"]
        own = ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", "--", *login]
        return self.enter(*own, "/bin/sh", "-c", 'cd && exec "$@"', "sh", *words)

    def person(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program as the person *name*."""
        return self._run(self.command_of(name, *words))

    def add_person(self, name: str, *groups: str, uid: int | None = None) -> int:
        """Add an account with a private home to *groups*, and return its uid."""
        uid = uid or 60_000 + secrets.randbelow(4000)  # apart from the accounts of tests beside this one
        words = ["-m", "-k", "", "-u", str(uid), "-s", "/bin/sh", "-U", "-G", ",".join(groups), name]
        done = self.root("useradd", *words)
        assert 0 == done.returncode, done.stderr
        self.root("chmod", "700", f"/home/{name}")
        return uid

    def write(self, path: str, text: str, *, owner: str = "root", mode: str = "644") -> None:
        """Write a file."""
        words = ["sh", "-c", 'cat > "$1" && chown "$2" "$1" && chmod "$3" "$1"', "sh", path, owner, mode]
        subprocess.run(self.enter(*words), input=text, text=True, check=True, timeout=100)

    def text(self, path: str) -> str:
        """Return the content of a file."""
        return self.root("cat", path).stdout

    def listing(self, *paths: str) -> list[str]:
        """Return owner, mode and path of everything below *paths*.

        The files that useradd leaves are not among them, nor those that other tests write to the real /etc at the time.
        """
        found = self.root("find", *paths, "-printf", "%u:%g %m %y %p\n").stdout.splitlines()
        return sorted(line for line in found if not ACCOUNT_FILES.search(line) and PAM_FILES not in line)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=100
        )

    def close(self) -> None:
        """End all processes of the machine."""
        self._process.kill()
        self._process.wait(timeout=30)
        for each in (self._process.stdin, self._process.stdout, self._process.stderr):
            if each is not None:
                each.close()


def skip_without_root() -> None:
    """Skip the test if this process cannot make machines."""
    missing = [each for each in ("unshare", "nsenter", "setpriv", "useradd") if shutil.which(each) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"only root can make namespaces and accounts; not installed: {', '.join(missing) or 'nothing'}")


@pytest.fixture
def machine_of_its_own() -> Iterator[PrivateMachine]:
    """Return a machine with gpuqueue in /opt, on which nothing is set up."""
    skip_without_root()
    base = Path(mkdtemp(prefix="gpuqueue-machine-"))
    try:
        machine = PrivateMachine(base)
        yield machine
        machine.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)
