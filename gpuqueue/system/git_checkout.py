"""Which commit of which branch a directory has checked out, and whether it was changed since.

The commit is read out of ``.git`` itself, which takes microseconds. Whether files were changed only git can say, and in
a large repository that takes a while: it is asked at once, works while we do other things, and is waited for until a
bound. Subprocess, with all that it imports, would cost a submit more than git does.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.model.git import COMMIT, MAX_BRANCH, Checkout

#: How long git may take to say whether something was changed, in seconds from when it was asked.
DIRTY_S = 0.06
#: More than any of the small files of git that are read whole; and than the list of all references of most.
MOST_BYTES = 4 * 1024 * 1024
#: A branch may point at a branch, a few times.
MOST_STEPS = 5

_HEADS = "refs/heads/"
#: Tracked files alone: a new file beside them is most often an output. Nothing in the repository may be run for it.
_STATUS = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"),
    *("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"),
)


class CheckoutLook:
    """A look at what *directory* has checked out, from now on; nothing of it ever raises."""

    def __init__(self, directory: Path) -> None:
        self._asked: _Asked | None = None
        found = next(_repositories(directory), None)
        self._commit, self._branch = _head(found[1]) if found is not None else (None, None)
        if found is not None and self._commit is not None:
            self._asked = _Asked(found[0])

    def seen(self) -> Checkout | None:
        """Return what is checked out there, None if nothing is; waits for git until its bound."""
        if self._commit is None:
            return None
        dirty = self._asked.answer() if self._asked is not None else None
        return Checkout(commit=self._commit, branch=self._branch, dirty=dirty)


def _repositories(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the directory with ``.git``, and git's own directory, from *directory* upwards."""
    for each in (directory, *directory.parents):
        own = each / ".git"
        if (own / "HEAD").is_file():
            yield each, own
        elif own.is_file():  # a worktree, or a submodule: it names the place
            where = _read(own).partition("gitdir:")[2].strip()
            if where:
                yield each, each / where


def _head(own: Path) -> tuple[str | None, str | None]:
    """Return the commit and the branch that a repository has checked out, as far as can be read."""
    shared = own / (_read(own / "commondir").strip() or ".")  # the branches of a worktree are its repository's
    said = _read(own / "HEAD").strip()
    name = said.partition("ref:")[2].strip() if said.startswith("ref:") else ""
    branch = name.removeprefix(_HEADS)[:MAX_BRANCH] if name.startswith(_HEADS) else None
    for _ in range(MOST_STEPS):
        if not said.startswith("ref:"):
            break
        name = said.partition("ref:")[2].strip()
        said = _read(own / name).strip() or _read(shared / name).strip() or _packed(shared, name)
    return (said, branch) if COMMIT.fullmatch(said) else (None, None)


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


class _Asked:
    """Git at work on the question whether *directory* was changed."""

    def __init__(self, directory: Path) -> None:
        self._until_s = time.monotonic() + DIRTY_S
        self._pid: int | None = None
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook
        self._says, writes = os.pipe()
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, writes, 1),
            ]
            words = (_STATUS[0], "-C", str(directory), *_STATUS[1:])
            self._pid = os.posix_spawnp(words[0], words, environ, file_actions=actions)
        except (OSError, ValueError):  # there is no git here, or no process
            pass
        finally:
            os.close(writes)

    def answer(self) -> bool | None:
        """Return whether something was changed, None if it did not say so in time."""
        pid, self._pid = self._pid, None
        if pid is None:
            return self._closed(None)
        said = self._first_byte()
        if said is None:
            os.kill(pid, signal.SIGKILL)
        status = _collected(pid, wait=said == b"")
        if said:
            return self._closed(True)
        return self._closed(False if status == 0 else None)

    def _closed(self, answer: bool | None) -> bool | None:  # noqa: FBT001 - it is passed through
        os.close(self._says)
        return answer

    def _first_byte(self) -> bytes | None:
        """Return the first byte that git writes, nothing if it writes none, None if it is not done in time."""
        poll = select.poll()
        poll.register(self._says, select.POLLIN)
        left_s = max(0.0, self._until_s - time.monotonic())
        return os.read(self._says, 1) if poll.poll(left_s * 1000) else None


def _collected(pid: int, *, wait: bool) -> int | None:
    """Collect a process that ends now; return its status, None where that is not known yet.

    One that is being killed, or has more to say, is left to a thread: on a dead network disk it may never end.
    """
    try:
        done, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
    except ChildProcessError:  # the program that we are in ignores its children, or has collected it
        return None
    if done:
        return status
    import threading  # noqa: PLC0415 - rare, and imports are the latency that a user feels

    threading.Thread(target=_collect, args=(pid,), name="gpuqueue-git", daemon=True).start()
    return None


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
