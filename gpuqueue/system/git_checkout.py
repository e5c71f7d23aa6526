"""Reads the commit and branch that a directory has checked out, and whether tracked files were changed.

The commit is read directly from ``.git``, which takes microseconds. Only git knows whether files were changed, which
takes a while in a large repository. So git runs in the background, and the result is awaited only for a limited time.
This module uses posix_spawn, because the import of ``subprocess`` costs a submit more than git does.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from gpuqueue.model.job_spec import COMMIT, MAX_BRANCH, Checkout

#: Time limit of ``git status``, in seconds from its start. In a new clone it reads all files: 0.2 s for two thousand.
DIRTY_S = 1.0
#: For how long an answer of git serves further submits of this process with the same commit and index, in seconds. A
#: program that submits many jobs asks git once a second. So the answer may be from before an edit of the last second,
#: and never from before a commit, a checkout, ``git add`` or ``git stash``.
FRESH_S = 1.0
#: Most bytes to read of one of git's files. Only a packed-refs file of a huge repository can be longer.
MOST_BYTES = 4 * 1024 * 1024
#: Most symbolic references to follow from HEAD.
MOST_STEPS = 5

_HEADS = "refs/heads/"
#: Only tracked files, since an untracked file is usually an output. ``core.fsmonitor=false`` keeps git from running the
#: monitor program that the repository's configuration may name.
_STATUS = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"),
    *("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"),
)


class CheckoutReader:
    """Reads the checkout of *directory* and starts ``git status`` in the background. It never raises.

    An answer of git is used again for ``FRESH_S`` in the same process, for the same working tree, commit and index.
    """

    #: The newest answer of git, the time at which it was asked for, and the tree, commit and index that it is for.
    _newest: ClassVar[tuple[tuple[Path, str, object], float, bool] | None] = None

    def __init__(self, directory: Path) -> None:
        self._asked: _StatusProcess | None = None
        self._dirty: bool | None = None
        found = next(_repositories(directory), None)
        self._commit, self._branch = _head(found[1]) if found is not None else (None, None)
        if found is None or self._commit is None:
            return
        self._of, self._at_s = (found[0], self._commit, _stamp(found[1] / "index")), time.monotonic()
        newest = CheckoutReader._newest
        if newest is not None and newest[0] == self._of and self._at_s < newest[1] + FRESH_S:
            self._dirty = newest[2]
        else:
            self._asked = _StatusProcess(found[0])

    def seen(self) -> Checkout | None:
        """Return the checkout, or None if there is none. Waits for git until its time limit."""
        if self._commit is None:
            return None
        if self._asked is not None:
            self._dirty = self._asked.answer()
            if self._dirty is not None:
                CheckoutReader._newest = self._of, self._at_s, self._dirty
        return Checkout(commit=self._commit, branch=self._branch, dirty=self._dirty)


def work_tree_of(directory: Path) -> Path | None:
    """Return the root of the git work tree that holds *directory*, or None if there is none."""
    found = next(_repositories(directory), None)
    return found[0] if found is not None else None


def commit_of(work_tree: Path) -> str | None:
    """Return the commit that the git *work_tree* has checked out, or None if there is none yet."""
    found = next(_repositories(work_tree), None)
    return _head(found[1])[0] if found is not None and found[0] == work_tree else None


def _repositories(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the working tree and the git directory of each repository from *directory* upwards."""
    for each in (directory, *directory.parents):
        own = each / ".git"
        if os.path.isfile(own / "HEAD"):  # noqa: PTH113 - Path.is_file raises in a closed directory
            yield each, own
        elif os.path.isfile(own):  # noqa: PTH113 - as above; a worktree or a submodule: the file names the git directory
            where = _read(own).partition("gitdir:")[2].strip()
            if where:
                yield each, each / where


def _stamp(index: Path) -> object:
    """Return what is different after each command of git that changes what is staged or checked out."""
    try:
        seen = os.stat(index)  # noqa: PTH116 - twice as fast as Path.stat
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


def _head(own: Path) -> tuple[str | None, str | None]:
    """Return the commit and the branch of HEAD, or None for each that cannot be read."""
    shared = own / (_read(own / "commondir").strip() or ".")  # a worktree has its branches in its repository
    text = _read(own / "HEAD").strip()
    name = text.partition("ref:")[2].strip() if text.startswith("ref:") else ""
    branch = name.removeprefix(_HEADS)[:MAX_BRANCH] if name.startswith(_HEADS) else None
    for _ in range(MOST_STEPS):
        if not text.startswith("ref:"):
            break
        name = text.partition("ref:")[2].strip()
        text = _read(own / name).strip() or _read(shared / name).strip() or _packed(shared, name)
    return (text, branch) if COMMIT.fullmatch(text) else (None, None)


def _packed(shared: Path, name: str) -> str:
    for line in _read(shared / "packed-refs").splitlines():
        commit, _, its_name = line.partition(" ")
        if its_name == name:
            return commit
    return ""


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES)
    except (OSError, ValueError):
        return ""


class _StatusProcess:
    """A running ``git status`` of *directory*."""

    def __init__(self, directory: Path) -> None:
        self._until_s = time.monotonic() + DIRTY_S
        self._pid: int | None = None
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # set in git hooks
        self._answer_fd, writes = os.pipe()
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, writes, 1),
            ]
            words = (_STATUS[0], "-C", str(directory), *_STATUS[1:])
            self._pid = os.posix_spawnp(words[0], words, environ, file_actions=actions)
        except (OSError, ValueError):  # git is not installed, or no process can be started
            pass
        finally:
            os.close(writes)

    def answer(self) -> bool | None:
        """Return whether a tracked file was changed, or None if git failed or did not answer in time."""
        pid, self._pid = self._pid, None
        if pid is None:
            return self._closed(None)
        text = self._first_byte()
        if text is None:
            os.kill(pid, signal.SIGKILL)
        status = _collected(pid, wait=text == b"")
        if text:
            return self._closed(True)
        return self._closed(False if status == 0 else None)

    def _closed(self, answer: bool | None) -> bool | None:  # noqa: FBT001 - the value is passed through
        os.close(self._answer_fd)
        return answer

    def _first_byte(self) -> bytes | None:
        """Return the first byte of git's output, ``b""`` if there is no output, None after the time limit."""
        poll = select.poll()
        poll.register(self._answer_fd, select.POLLIN)
        left_s = max(0.0, self._until_s - time.monotonic())
        return os.read(self._answer_fd, 1) if poll.poll(left_s * 1000) else None


def _collected(pid: int, *, wait: bool) -> int | None:
    """Reap the child process *pid*. Return its wait status, or None if it is not known yet.

    A thread reaps a process that still runs, because on a dead network disk it may never end.
    """
    try:
        done, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
    except ChildProcessError:  # this program ignores SIGCHLD, or has reaped the child itself
        return None
    if done:
        return status
    import threading  # noqa: PLC0415 - rare, and imports slow down the start of a command

    threading.Thread(target=_collect, args=(pid,), name="gpuqueue-git", daemon=True).start()
    return None


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


#: The package, and the file in it that ``hatch_build.py`` adds to an archive.
PACKAGE, RECORD = Path(__file__).parents[1], "commit"


def commit_of_code(package: Path = PACKAGE) -> str | None:
    """Return the commit of the code in *package*, or None if nobody knows. Git is not called."""
    found = commit_of(package.parent)
    if found is None:
        with suppress(OSError, ValueError):
            found = (package / RECORD).read_text(encoding="ascii").strip()
    return found if found is not None and COMMIT.fullmatch(found) else None
