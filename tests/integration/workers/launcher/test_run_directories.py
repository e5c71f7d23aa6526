"""A worker that was taken over asks a real launcher for work in directories that are not those of its runs."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from results_copy import Copy, contents
from service_site import as_account
from submitters import Launcher, People

from gpuqueue.files.ignore import rules_of
from workers.results.pack import ArchiveRequest
from workers.shim.code import DIRECTORY

#: Sends a request with descriptors, and prints the answer: SOCKET MESSAGE DIRECTORY FILE... The descriptor of the
#: directory comes first for a request that an earlier version of the launcher took with one.
ASK = """
import os, socket, sys
launcher, message, directory, *files = sys.argv[1:]
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect(launcher)
fds = [os.open(directory, os.O_RDONLY)] if directory else []
fds += [os.open(each, os.O_RDWR | os.O_CREAT, 0o600) for each in files]
asking.settimeout(30)
socket.send_fds(asking, [message.encode()], fds)
print(asking.recv(4096).decode(errors="replace"))
"""
#: Puts one directory into the place of another, again and again, until its standard input ends: PLACE OTHER.
SWAP = """
import os, select, sys
place, other = sys.argv[1:]
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    try:
        os.rename(place, place + ".mine")
        os.rename(other, place)
        os.rename(place, other)
        os.rename(place + ".mine", place)
    except OSError:
        pass
"""
RUN = "17/1.a4"


class Attacker:
    """The account of the workers, with a run of alice's, and the home of bob."""

    def __init__(self, people: People, launcher: Launcher, base: Path) -> None:
        self.people, self.launcher, self._base = people, launcher, base
        self.environ = {"PATH": f"{people.installation}/bin:/usr/bin:/bin"}
        self.service = people.service
        self.run = self.make_run(RUN)
        self.home = Path(people.bob.pw_dir)
        (self.home / "key").write_text("private")
        os.chown(self.home / "key", people.bob.pw_uid, people.bob.pw_gid)

    def make_run(self, name: str) -> Path:
        """Return a new run directory of the account of the workers."""
        path = self.launcher.runs / name
        for made in (self.launcher.runs, path.parent, path):
            made.mkdir(exist_ok=True)
            made.chmod(0o711)
            os.chown(made, self.service.pw_uid, self.service.pw_gid)
        return path

    def make_code(self, run: Path, owner: pwd.struct_passwd) -> Path:
        """Return the directory of the code in *run*, with a file, both of *owner*."""
        code = run / DIRECTORY
        (code / "tree").mkdir(parents=True)
        (code / "tree" / "file").write_text("of the owner")
        for each in (code, *code.rglob("*")):
            os.chown(each, owner.pw_uid, 0)  # as the launcher makes it
        code.chmod(0o700)
        return code

    def as_workers(self, *words: str) -> list[str]:
        """Return the command that runs *words* as the account of the workers, in ``environ``."""
        return as_account(self.people, self.service, self._base, *words)

    def ask(self, message: str, directory: Path | str, *files: Path, mounted: Path | None = None) -> str:
        """Send a request as the account of the workers, and return the answer.

        *mounted* lies over the directory of the code then, in a mount namespace of the attacker.
        """
        words = ["python", "-I", "-S", "-c", ASK, self.launcher.socket, message, str(directory), *map(str, files)]
        if mounted is not None:
            place = f'mount --bind "{mounted}" "{self.run / DIRECTORY}" && exec "$@"'
            words = ["unshare", "-Urm", "/bin/sh", "-c", place, "sh", *words]
        done = subprocess.run(
            self.as_workers(*words),
            capture_output=True, text=True, check=False, timeout=60, cwd="/", env=self.environ,
        )  # fmt: skip
        if "unshare" in done.stderr or "mount:" in done.stderr:
            pytest.skip(f"this machine permits no user namespaces: {done.stderr.strip()}")
        assert 0 == done.returncode, done.stderr
        return done.stdout.strip()

    def spec_of(self, run: Path) -> tuple[Path, Path, Path]:
        """Write what a start of alice's job in *run* needs, and return the files."""
        alice = self.people.alice
        code = {"directory": str(run / DIRECTORY), "address": "0" * 64, "cwd": ".", "limits": [1, 1, 1]}
        spec = {
            "user": {"name": alice.pw_name, "uid": alice.pw_uid},
            "argv": ["true"],
            "cwd": str(run / DIRECTORY / "tree"),
            "env": {},
            "umask": 0o22,
            "start_before": time.monotonic() + 60,
            "pty": None,
            "typed": False,
            "code": code,
        }
        files = run / "spec", run / "bundle", run / "log"
        for each in files:
            each.write_text(json.dumps(spec) if each.name == "spec" else "")
            os.chown(each, self.service.pw_uid, self.service.pw_gid)
        return files


@pytest.fixture
def attacker(people: People, launch: Callable[..., Launcher], tmp_path: Path) -> Iterator[Attacker]:
    """Return a worker that was taken over, and its launcher."""
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("setpriv and unshare are not installed")
    made = Attacker(people, launch(account=people.service.pw_name), tmp_path)
    yield made
    (made.home / "key").unlink(missing_ok=True)


def test_a_home_mounted_over_the_code_is_not_emptied(attacker: Attacker) -> None:
    """The launcher opens the run directory itself, where no mount of the attacker is."""
    code = attacker.make_code(attacker.run, attacker.people.bob)

    answer = attacker.ask(f"remove {RUN}", attacker.run, mounted=attacker.home)

    assert "removed" == answer
    assert ("private", []) == ((attacker.home / "key").read_text(), [*code.iterdir()])


def test_a_home_mounted_over_the_code_is_not_packed(attacker: Attacker) -> None:
    """The archive has what is in the code directory of the run, and no file that only looks like one of it."""
    real, private = Copy(attacker.run / DIRECTORY), Copy(attacker.home)
    for copy in (real, private):
        copy.take()
        copy.write("key", b"of the run" if copy is real else b"private")
        for each in (copy.code, copy.code / "manifest", copy.tree, *copy.tree.rglob("*")):
            os.chown(each, attacker.people.bob.pw_uid, 0)
    request, archive = attacker.run / "request", attacker.run / "archive"
    request.write_bytes(ArchiveRequest.of(("*",), rules_of(("*",))).text())
    os.chown(request, attacker.service.pw_uid, attacker.service.pw_gid)

    answer = attacker.ask(f"pack {RUN}", "", request, archive, mounted=private.code)

    shutil.rmtree(private.tree)
    assert answer.startswith("packed")
    assert (b"of the run", "644") == contents(archive)["key"]


def test_a_directory_of_root_mounted_over_the_code_keeps_its_owner(attacker: Attacker, open_dir: Path) -> None:
    """Root changes the owner of the directory that it has made, and of no other."""
    target = open_dir / "of-root"
    target.mkdir()
    files = attacker.spec_of(attacker.run)
    (attacker.run / DIRECTORY).mkdir()  # a mount needs a place
    os.chown(attacker.run / DIRECTORY, attacker.service.pw_uid, attacker.service.pw_gid)

    answer = attacker.ask(f"start {RUN}", "", *files, mounted=target)

    assert answer.startswith("no ")
    assert (0, attacker.service.pw_uid) == (target.stat().st_uid, (attacker.run / DIRECTORY).stat().st_uid)


@pytest.mark.full
def test_the_code_of_another_user_that_is_moved_in_keeps_its_owner(attacker: Attacker) -> None:
    """The attacker renames what is in its run directories while root makes one. Root gives away only what it made."""
    other = attacker.make_code(attacker.make_run("18/1.b5"), attacker.people.bob)
    inode = other.stat().st_ino
    command = attacker.as_workers("python", "-I", "-S", "-c", SWAP, str(attacker.run / DIRECTORY), str(other))
    swapping = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=attacker.environ)
    assert swapping.stdin is not None
    assert swapping.stdout is not None
    try:
        assert "ready\n" == swapping.stdout.readline()
        for _ in range(100):
            attacker.ask(f"start {RUN}", "", *attacker.spec_of(attacker.run))
            for made in attacker.run.glob(f"{DIRECTORY}*"):
                with contextlib.suppress(OSError):
                    if made.stat().st_ino != inode:
                        shutil.rmtree(made)
    finally:
        swapping.stdin.close()
        swapping.wait(timeout=30)
        swapping.stdout.close()
    found = [path.stat() for path in attacker.launcher.runs.glob(f"*/*/{DIRECTORY}*")]
    assert [attacker.people.bob.pw_uid] == [each.st_uid for each in found if each.st_ino == inode]


@pytest.mark.parametrize("verb", ["remove", "pack"])
def test_a_directory_that_the_launcher_has_not_made_is_refused(attacker: Attacker, verb: str) -> None:
    """The attacker can move a directory of a user into a run, which the user made in a directory of the attacker."""
    code = attacker.make_code(attacker.run, attacker.people.bob)
    os.chown(code, -1, attacker.people.bob.pw_gid)
    files = [attacker.run / "request", attacker.run / "archive"] if verb == "pack" else []

    answer = attacker.ask(f"{verb} {RUN}", "", *files)

    assert "no -1 the directory for the code of the run was not made by the launcher" == answer
    assert ["tree"] == [each.name for each in code.iterdir()]


@pytest.mark.parametrize("place", ["17", RUN, f"{RUN}/{DIRECTORY}"], ids=["job", "run", "code"])
def test_a_mount_of_the_host_is_refused(attacker: Attacker, place: str) -> None:
    """A user can mount a FUSE file system in the namespace of the host, too. The launcher enters none."""
    attacker.make_code(attacker.run, attacker.people.bob)
    covered, copy = attacker.launcher.runs / place, attacker.home / "copy"
    shutil.copytree(covered, copy)
    done = subprocess.run(["/bin/mount", "--bind", copy, covered], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine permits no mounts: {done.stderr.strip()}")
    try:
        answer = attacker.ask(f"remove {RUN}", "")
    finally:
        subprocess.run(["/bin/umount", covered], check=True)
        kept = [path.name for path in copy.rglob("file")]
        shutil.rmtree(copy)
    assert (f"no -1 {covered.name} in the run directory is a mount point", ["file"]) == (answer, kept)


@pytest.mark.parametrize(
    "name",
    ["", "17", "17/../17/1.a4", "../17/1.a4", "/17/1.a4", "17/1.a4/..", "17//1.a4", "x/1.a4", "17/link", "18/1.a4"],
)
def test_a_name_that_is_none_of_a_run_is_refused(attacker: Attacker, name: str) -> None:
    """Only JOB/TOKEN is a name, and no link leads elsewhere."""
    code = attacker.make_code(attacker.run, attacker.people.bob)
    (attacker.run.parent / "link").symlink_to("1.a4")
    (attacker.launcher.runs / "18").symlink_to("17")

    answer = attacker.ask(f"remove {name}", attacker.run)

    assert answer.startswith("no ")
    assert ["tree"] == [each.name for each in code.iterdir()]
