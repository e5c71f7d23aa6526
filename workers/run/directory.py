"""The run directory: how a worker and a shim talk, and what the next worker finds.

``<state>/runs/<job>/<token>/`` holds one run and nothing else of the house. The files are listed in
:mod:`workers.shim.supervisor`; this is the worker's end of them, with two more: ``claim``, what the next worker of this
device must know to adopt the run, and ``job``, the job's spec, for a store that loses it. When the book has the run
only ``log`` stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuqueue.errors import Unreadable
from gpuqueue.model.run import EndingKind
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.json_fields import Fields
from gpuqueue.text.sanitize import in_one_line
from workers.run.files import is_ours, put, read, read_fields
from workers.run.values import Exit, Held, ShimSpec
from workers.shim.preempt_notice import NAME as NOTICE

log = logging.getLogger(__name__)

#: Below the runs: a link to the claim of each run that is not settled. The name alone tells which: of older versions it
#: is a symbolic link to the run's directory.
LIVE = "live"
#: Below the runs: a link to each run whose end the store was told and the book does not have yet.
TOLD = "told"

#: What a file system says that gives a file only one name, or whose rules allow no second one.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class RunDir:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._beat: int | None = None
        self._beat_lock = threading.Lock()

    @classmethod
    def create(cls, runs: Path, held: Held, payload: str = "") -> RunDir:
        """Make the directory of a new run below *runs*; nobody but its owner can read it.

        *payload* is the job's spec as it was claimed, for a store that loses it.

        Raises:
            OSError: it cannot be made; nothing of it is left.

        """
        path = runs / str(held.job_id) / held.token
        _make(path)
        directory = cls(path)
        live = runs / LIVE
        try:
            if payload:
                put(directory.path / "job", payload)
            put(directory.path / "claim", json.dumps(held.plain()))
            with contextlib.suppress(OSError):  # else try_lock makes one
                os.link(directory._at("claim"), directory._at("lock"))
            _within(live, lambda: _second_name(directory._at("claim"), f"{live}/{directory._name}"))
        except OSError:
            directory.discard()
            raise
        return directory

    def discard(self) -> None:
        """Take it away whole: no run came of it. A claim that is tried all night must not fill the disk."""
        self.settle()
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    @property
    def token(self) -> str:
        """Return the token of the run, after which its directory is named."""
        return self.path.name

    @property
    def log(self) -> Path:
        """Return the path of the job's log."""
        return self.path / "log"

    @property
    def claimed(self) -> bool:
        """Return whether the run is still to be answered for; from the first step of its settlement on it is not."""
        return os.path.lexists(self._at("claim"))  # no Path: this is asked several times a run

    def held(self) -> Held | None:
        """Return what the run holds, or None if the run is settled or was never whole."""
        try:
            plain = read_fields(self.path / "claim")
            return None if plain is None else self._held(plain)
        except Unreadable as error:
            _warn_once(self.path / "claim", f"nobody can adopt the run: {error}")
            return None

    def claimed_at(self) -> datetime | None:
        """Return when the run was claimed, or None if it is settled."""
        try:
            return datetime.fromtimestamp((self.path / "claim").stat().st_mtime, timezone.utc)
        except OSError:
            return None

    def _held(self, plain: Fields) -> Held:
        held = Held.of(plain)
        if (str(held.job_id), held.token) != (self.path.parent.name, self.path.name):
            raise plain.wrong("token", "this run's")
        return held

    def damaged(self) -> bool:
        """Return whether the claim is there and makes no sense: nobody can adopt the run."""
        try:
            plain = read_fields(self.path / "claim")
            if plain is not None:
                self._held(plain)
        except Unreadable:
            return True
        return False

    def payload(self) -> str | None:
        """Return the job's spec as it was claimed, or None if it is not there, or somebody else has written over it.

        Raises:
            OSError: it cannot be read now.

        """
        with contextlib.suppress(Unreadable):
            return read(self.path / "job")
        return None

    def may_have_started(self) -> bool:
        """Return whether the queue said yes to the start of the run: from then on there may be a shim."""
        # The shim writes its exit over the spec, and was there before it did.
        return any(os.path.lexists(self._at(name)) for name in ("spec", "pid", "exit"))

    def try_lock(self) -> int | None:
        """Return the locked file's descriptor, or None while a worker or a shim is there."""
        fd = os.open(self._at("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                return None
            raise
        return fd

    def write_spec(self, spec: ShimSpec, figures: Mapping[str, Any] | None = None) -> None:
        """Write what the shim is to run; it may hold secrets of the submitter's environment.

        The *figures* go along for whoever adopts the run before the first beat has kept some (:meth:`meters`).
        """
        plain = spec.plain() if figures is None else {**spec.plain(), "meters": figures}
        put(self.path / "spec", json.dumps(plain, default=dict))

    def vouch(self, until_s: float) -> None:
        """Tell the shim that somebody answers for the run until *until_s* on the host's monotonic clock.

        Written in place and always as long, so that it works on a full disk too; and the file stays open, so that
        it works where no other can be opened. Whoever has vouched calls :meth:`close` in the end.

        Raises:
            OSError: it cannot be written.

        """
        if not self.claimed:
            return  # the run was settled meanwhile
        with self._beat_lock:
            if self._beat is None:
                # Not blocking: a job may have put a pipe there, and one run's files must not hold up the beats of all.
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
                self._beat = os.open(self._at("beat"), flags, 0o600)
            os.pwrite(self._beat, f"{until_s:020.3f}\n".encode("ascii"), 0)
        self._not_after_settlement("beat")

    def close(self) -> None:
        """Let go of what :meth:`vouch` keeps open."""
        with self._beat_lock:
            if self._beat is not None:
                os.close(self._beat)
                self._beat = None

    def ask_end(self, kind: EndingKind) -> None:
        """Ask the shim to end the run, for the reason *kind*. The first reason given stays.

        Raises:
            OSError: the shim cannot be asked.

        """
        cancel = self.path / "cancel"
        if self.claimed and not os.path.lexists(cancel):
            try:
                put(cancel, kind.value)
            except OSError:
                # To cancel a job may be the only way to empty a full disk, and a link needs no room there.
                with contextlib.suppress(FileExistsError):
                    cancel.symlink_to(kind.value)
            self._not_after_settlement("cancel")
        self._call_shim()

    def ask_for_place(self, by: int, left_s: float) -> bool:
        """Ask the run to make place for the job *by* in *left_s*: its shim, and whoever in the job reads the file.

        Returns:
            Whether it was not asked before: the first word stays.

        Raises:
            OSError: it cannot be asked.

        """
        notice = self.path / NOTICE
        if not self.claimed or os.path.lexists(notice):
            return False
        plain = {
            "reason": f"job {by} of a higher level takes its place",
            "by": by,
            "deadline": time.time() + left_s,
            "until_s": time.monotonic() + left_s,
        }
        put(notice, json.dumps(plain))
        self._not_after_settlement(NOTICE)
        self._call_shim()
        return True

    def _call_shim(self) -> None:
        """Have the shim look at its files now, if there is one."""
        shim = self.shim()
        if shim is not None:
            shim.send(signal.SIGUSR1)

    def shim(self) -> ProcessIdentity | None:
        """Return the shim's identity, or None if it has not said yet, or somebody else has written over it."""
        with contextlib.suppress(Unreadable):
            lines = (read(self.path / "pid") or "").splitlines()
            return ProcessIdentity.parse(lines[0]) if lines else None
        return None

    def exit(self) -> Exit | None:
        """Return how the run ended, or None if no shim said so.

        Raises:
            Unreadable: somebody said so, but it makes no sense.

        """
        plain = read_fields(self.path / "exit")
        return None if plain is None else Exit.of(plain)

    def start(self) -> str | None:
        """Return whether a spare became the job, or why not; None where there was none, or nobody said so."""
        with contextlib.suppress(Unreadable, OSError):
            said = read(self.path / "start")
            return None if said is None else in_one_line(said)
        return None

    def keep_meters(self, plain: Mapping[str, Any]) -> None:
        """Keep the figures so far, so that the peak is not lost with the worker that saw it."""
        if self.claimed:
            put(self.path / "meters", json.dumps(plain))
            self._not_after_settlement("meters")

    def meters(self) -> Fields:
        """Return the figures that an earlier worker kept (``LiveRun.figures``); empty if none did.

        Raises:
            Unreadable: they make no sense.

        """
        kept = read_fields(self.path / "meters")
        if kept is None:
            spec = read_fields(self.path / "spec")
            kept = spec.below("meters", "the figures of a run") if spec is not None and "meters" in spec else None
        return kept or Fields({}, "the figures of a run")

    def tell(self) -> None:
        """Note that the store was told the end: the files stay until the book has it, should the store lose it.

        Raises:
            OSError: it cannot be noted.

        """
        runs, told = self.path.parent.parent, self.path.parent.parent / TOLD
        with contextlib.suppress(FileNotFoundError):  # it was noted before
            _within(told, lambda: os.rename(f"{runs}/{LIVE}/{self._name}", f"{told}/{self._name}"))  # noqa: PTH104 - _at

    @property
    def _name(self) -> str:
        return f"{self.path.parent.name}.{self.path.name}"

    def _at(self, name: str) -> str:
        """Return where a file of the run lies. A Path for each file of each run takes longer than to open it."""
        return f"{self.path}/{name}"

    def settle(self) -> None:
        """Forget everything but the log: the book has the run, or the run is stale.

        The claim goes first: whoever writes a file meanwhile sees by that to take it away again. The link goes last:
        where a worker dies in between, the next one finds the rest by it. The spec holds what may be secrets.
        """
        _unlink(self._at("claim"))
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(self.path)  # noqa: PTH208 - see _at
        for name in names:
            if is_ours(name):
                _unlink(self._at(name))
        if "inside" in names:
            shutil.rmtree(self._at("inside"), ignore_errors=True)
        for links in (LIVE, TOLD):
            _unlink(f"{self.path.parent.parent}/{links}/{self._name}")

    def _not_after_settlement(self, name: str) -> None:
        """Take a file away again that was written while somebody else settled the run."""
        if not self.claimed:
            _unlink(self._at(name))


def _make(path: Path) -> None:
    """Make the directory of a run, whose parent is hardly ever there: each job has one of its own.

    Raises:
        OSError: it cannot be made, or is there already.

    """
    try:
        path.parent.mkdir()
    except FileExistsError:
        pass  # a job's second run
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700)


def _second_name(file: str, name: str) -> None:
    """Give a file one more name: a file of its own, or a symbolic link, takes an inode.

    To find a free one is most of what a small file costs where many come and go: ext4 passes over each that was freed
    in the last minutes. A symbolic link is made where the file system knows no other.

    Raises:
        OSError: neither can be made.

    """
    try:
        os.link(file, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.symlink(file, name)  # noqa: PTH211 - see RunDir._at


def _unlink(file: str) -> None:
    """Take a file away; what cannot be taken away stays."""
    with contextlib.suppress(OSError):
        os.unlink(file)  # noqa: PTH108 - see RunDir._at


def _within(directory: Path, act: Callable[[], object]) -> None:
    """Do *act*, which needs *directory*; that is made only where it is not there: it is asked for with each job."""
    try:
        act()
    except FileNotFoundError:
        directory.mkdir(exist_ok=True, mode=0o700)
        act()


@lru_cache(maxsize=1024)
def _warn_once(path: Path, words: str) -> None:
    """Say that a file makes no sense. It is looked at with every look at the device."""
    log.warning("%s: %s", path, words)


def unsettled(runs: Path, but: Collection[str] = ()) -> Iterator[RunDir]:
    """Yield the run directories below *runs* that some worker must still settle, however many were settled before.

    Those of the tokens in *but* are left out, before anything is made of their names.
    """
    yield from _linked(runs, LIVE, but)


def told(runs: Path) -> Iterator[RunDir]:
    """Yield the run directories below *runs* whose end the store was told, and the book may not have yet."""
    yield from _linked(runs, TOLD)


def _linked(runs: Path, links: str, but: Collection[str] = ()) -> Iterator[RunDir]:
    try:
        names = sorted(os.listdir(f"{runs}/{links}"))  # noqa: PTH208 - see RunDir._at
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        job_id, _, token = name.partition(".")
        if token not in but:
            yield RunDir(runs / job_id / token)
