"""The run directory: the files by which a worker and a shim communicate, and from which the next worker adopts a run.

``<state>/runs/<job>/<token>/`` holds the files of one run. :mod:`workers.shim.supervisor` lists the files that both
sides use. The worker writes two more: ``claim``, which another worker of the device needs to adopt the run, with the
job's spec for a store that lost its data, and ``progress``, for those who look at the queue. The link ``user`` names
the account whose log this is. When the history has the run, only the logs and ``user`` stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpuqueue.codec import figures_file
from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.progress import Reading
from gpuqueue.model.run import Ending, EndingKind, RunDevice, RunNote
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.system import progress_file
from gpuqueue.system.logs import LOGS
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.json_fields import Fields
from gpuqueue.text.sanitize import in_one_line
from workers.run import links
from workers.run.files import FixedFile, is_ours, lock, put, read, read_fields, remove, warn_once
from workers.shim import acl
from workers.shim.code import DIRECTORY
from workers.shim.files import TIME_LIMIT, extended
from workers.shim.log import LIMIT, lowered
from workers.shim.preempt_request import NAME as PREEMPT_REQUEST

#: The name of a link in the run directory to the name of the job's user, which is no file. It needs no disk block.
USER = "user"
#: The mode of a directory that all accounts may enter and none but its owner may list.
ENTERED = 0o711
#: The largest exit code of a process; no signal number is larger.
MOST_STATUS = 255


class RunDir:
    """The directory of one run. A method that writes a file raises OSError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heartbeat = FixedFile(f"{path}/heartbeat")

    @classmethod
    def create(cls, runs: Path, held: Held, payload: str = "", *, entered: bool = False) -> RunDir:
        """Create the directory of a new run below *runs*, readable only by its owner.

        *payload* is the job's spec as it was claimed, for a store that loses its data. With *entered* all accounts may
        enter the directory, because the job runs as another account; the files decide what they may read.
        """
        path = runs / str(held.job_id) / held.token
        with contextlib.suppress(FileExistsError):  # a job's second run
            path.parent.mkdir(parents=True)
        path.mkdir(mode=0o700)
        if entered:
            path.parent.chmod(ENTERED)
            path.chmod(ENTERED)
        directory = cls(path)
        try:
            # In one file: where many files come and go, a new inode takes half a millisecond.
            put(directory.path / "claim", json.dumps({**held.plain(), "payload": payload or None}))
            with contextlib.suppress(OSError):  # without the link, try_lock creates the file
                os.link(directory._at("claim"), directory._at("lock"))
            links.add(runs, directory._name, directory._at("claim"))
        except OSError:
            directory.discard()
            raise
        return directory

    def discard(self) -> None:
        """Remove the whole directory of a claim that started no run, so that repeated claims do not fill the disk."""
        self.settle()
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    @property
    def token(self) -> str:
        """Return the token of the run, which is the name of its directory."""
        return self.path.name

    @property
    def log(self) -> Path:
        """Return the path of the job's log."""
        return self.path / "log"

    @property
    def lock(self) -> Path:
        """Return the path of the file that the shim holds a lock on, and before it the worker."""
        return self.path / "lock"

    @property
    def code(self) -> Path:
        """Return the path of the directory for the job's code, if the code came with the job."""
        return self.path / DIRECTORY

    @property
    def claimed(self) -> bool:
        """Return whether the run is unsettled. The first step of the settlement removes the claim."""
        return os.path.lexists(self._at("claim"))  # no Path, because this is called several times per run

    def held(self) -> Held | None:
        """Return the claim of the run, or None if the run is settled or its claim is damaged."""
        try:
            return self._held()
        except Unreadable as error:
            warn_once(self.path / "claim", f"nobody can adopt the run: {error}")
            return None

    def damaged(self) -> bool:
        """Return whether the claim exists but cannot be read, so that no worker can adopt the run."""
        try:
            self._held()
        except Unreadable:
            return True
        return False

    def _held(self) -> Held | None:
        plain = read_fields(self.path / "claim")
        held = None if plain is None else Held.of(plain)
        if plain is not None and held is not None and (str(held.job_id), held.token) != self.path.parts[-2:]:
            raise plain.wrong("token", "this run's")
        return held

    def claimed_at(self) -> datetime | None:
        """Return the time of the claim, or None if the run is settled."""
        try:
            return datetime.fromtimestamp((self.path / "claim").stat().st_mtime, timezone.utc)
        except OSError:
            return None

    def payload(self) -> str | None:
        """Return the job's spec as it was claimed, or None if it is missing or was replaced."""
        with contextlib.suppress(Unreadable):
            claim = read_fields(self.path / "claim")
            if claim is not None and claim.has("payload"):
                return claim.text("payload")
            return read(self.path / "job")  # of a run that an earlier version started
        return None

    def may_have_started(self) -> bool:
        """Return whether the queue has allowed the start of the run, so that a shim may exist."""
        # The shim replaces the spec by its exit, so any of the three files counts.
        return any(os.path.lexists(self._at(name)) for name in ("spec", "pid", "exit"))

    def has_exit(self) -> bool:
        """Return whether the shim has written the exit of the run, which it does after the end of the last process."""
        return os.path.lexists(self._at("exit"))

    def try_lock(self) -> int | None:
        """Lock the run and return the lock's descriptor, or None while a worker or a shim holds the lock."""
        return lock(self._at("lock"))

    def write_spec(self, spec: ShimSpec, figures: Mapping[str, Any] | None = None) -> None:
        """Write the spec for the shim. It may contain secrets of the submitter's environment.

        The *figures* are for a worker that adopts the run before the first heartbeat has saved any (:meth:`meters`).
        """
        plain = spec.plain() if figures is None else {**spec.plain(), "meters": figures}
        put(self.path / "spec", json.dumps(plain, default=dict))

    def note_user(self, name: str) -> None:
        """Record whose log this is, for the limit of each user's logs."""
        with contextlib.suppress(FileExistsError):
            os.symlink(name, self._at(USER))  # noqa: PTH211 - see _at

    def renew(self, until_s: float) -> None:
        """Write a heartbeat for the shim, valid until *until_s* on the host's monotonic clock, in seconds.

        The file stays open, so the caller must call :meth:`close` at the end.
        """
        if self.claimed:
            self._heartbeat.write(f"{until_s:020.3f}\n")
            self._not_after_settlement("heartbeat")

    def close(self) -> None:
        """Close the file that :meth:`renew` keeps open."""
        self._heartbeat.close()

    def ask_end(self, kind: EndingKind) -> None:
        """Ask the shim to end the run for the reason *kind*. The first reason is kept."""
        cancel = self.path / "cancel"
        if self.claimed and not os.path.lexists(cancel):
            try:
                put(cancel, kind.value)
            except OSError:
                # Cancelling a job may be the only way to free a full disk, and a symbolic link needs no disk space.
                with contextlib.suppress(FileExistsError):
                    cancel.symlink_to(kind.value)
            self._not_after_settlement("cancel")
        self._call_shim()

    def ask_preempt(self, by: int, left_s: float) -> bool:
        """Preempt the run for the job *by*, with *left_s* seconds to go, by a file for the shim and the job itself.

        *by* is 0 if it is for no job: its time on the device is over.

        Returns:
            Whether this is the first request. The first request is kept.
        """
        if not self.claimed or os.path.lexists(self._at(PREEMPT_REQUEST)):
            return False
        plain = {
            "reason": f"job {by} of a higher priority takes its place" if by else "its time on the device is over",
            "by": by,
            "deadline": time.time() + left_s,
            "until_s": time.monotonic() + left_s,
        }
        self._put(PREEMPT_REQUEST, json.dumps(plain), mode=0o644)  # the job reads it
        self._call_shim()
        return True

    def limit_log(self, limit_bytes: int, reason: str) -> None:
        """Lower the limit of the logs for the rest of the run. *reason* is a key of ``workers.shim.log.REASONS``."""
        if not self.claimed:
            return
        self._link(LIMIT, f"{limit_bytes} {reason}")
        self._call_shim()

    def _link(self, name: str, text: str) -> None:
        """Make *name* a link whose target is *text*: a link needs no room on a full disk."""
        new = self._at(f".{name}.{os.getpid()}.{threading.get_ident()}")
        os.symlink(text, new)  # noqa: PTH211 - see _at
        os.rename(new, self._at(name))  # noqa: PTH104 - see _at
        self._not_after_settlement(name)

    def extend(self, limit_s: float) -> None:
        """Raise the time limit of the run to *limit_s* seconds, if it is not that already."""
        if self.claimed and extended(self._at(TIME_LIMIT)) != limit_s:
            self._link(TIME_LIMIT, str(limit_s))
            self._call_shim()

    def log_limit(self) -> tuple[int, str] | None:
        """Return the limit in bytes that :meth:`limit_log` has set, and the key of its reason, or None."""
        return lowered(self._at(LIMIT))

    def _call_shim(self) -> None:
        """Signal the shim, if there is one, to read its files now."""
        if (shim := self.shim()) is not None:
            shim.send(signal.SIGUSR1)

    def shim(self) -> ProcessIdentity | None:
        """Return the shim's identity, or None if the shim has not written it yet or the file was replaced."""
        return next(iter(self.processes()), None)

    def processes(self) -> tuple[ProcessIdentity | None, ...]:
        """Return the identities that the shim has written so far: its own, the first process, perhaps a guard."""
        with contextlib.suppress(Unreadable):
            return tuple(ProcessIdentity.parse(line) for line in (read(self.path / "pid") or "").splitlines())
        return ()

    def exit(self) -> Exit | None:
        """Return the exit that the shim wrote, or None if there is none. Raises Unreadable if it is not valid."""
        plain = read_fields(self.path / "exit")
        return None if plain is None else Exit.of(plain)

    def seen_ms(self) -> int:
        """Return the time of the last heartbeat or output of the run, in milliseconds since 1970; 0 without any."""
        seen_s = 0.0
        for name in ("heartbeat", "pid", *LOGS):
            with contextlib.suppress(OSError):
                seen_s = max(seen_s, os.stat(self._at(name)).st_mtime)  # noqa: PTH116 - see _at
        return round(seen_s * 1000)

    def start(self) -> str | None:
        """Return the shim's words on whether a warm interpreter became the job, or None if it has written none."""
        with contextlib.suppress(Unreadable, OSError):
            text = read(self.path / "start")
            return None if text is None else in_one_line(text)
        return None

    def keep_meters(self, plain: Mapping[str, Any]) -> None:
        """Save the figures so far, so that the peak survives the worker."""
        self._put("meters", json.dumps(plain))

    def meters(self) -> Fields | None:
        """Return the saved ``LiveRun.figures``, or None if there are none. Raises Unreadable if they are damaged."""
        kept = read_fields(self.path / "meters")
        if kept is None:
            spec = read_fields(self.path / "spec")
            kept = spec.below("meters", "the figures of a run") if spec is not None and "meters" in spec else None
        return kept

    def keep_progress(self, reading: Reading) -> None:
        """Write the progress of the run for those who look at the queue."""
        self._put(progress_file.NAME, progress_file.written(reading))

    def keep_figures(self, figures: RunFigures) -> None:
        """Write the figures of the run so far for those who look at the job."""
        self._put(figures_file.NAME, figures_file.written(figures))

    def drop_progress(self) -> None:
        """Remove the progress of the run, which is unknown now."""
        remove(self._at(progress_file.NAME))

    def report(self) -> None:
        """Move the run's link from ``LIVE`` to ``REPORTED``: its end was reported to the store.

        The files stay until the history has the end, because the store may still lose it.
        """
        links.report(self.path.parent.parent, self._name)

    @property
    def _name(self) -> str:
        return f"{self.path.parent.name}.{self.path.name}"

    def _at(self, name: str) -> str:
        """Return the path of a file of the run as a string, since creating a Path is slower than opening the file."""
        return f"{self.path}/{name}"

    def settle(self) -> None:
        """Remove the run's files, except the logs and files of the job: the history has the run, or the run is stale.

        The claim is removed first, so that a concurrent writer notices the settlement and removes its file again. The
        link is removed last, so that the next worker finds the remaining files if this one dies in between. The spec
        must go because it may contain secrets.
        """
        remove(self._at("claim"))
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(self.path)  # noqa: PTH208 - see _at
        for name in names:
            if is_ours(name):
                remove(self._at(name))
        for name in {*acl.REPORTED} & {*names}:
            with contextlib.suppress(OSError):
                acl.end_writing(self.path)  # the shim may have been killed
                acl.remove(self._at(name))
        if "inside" in names:  # of a run that an earlier version started
            shutil.rmtree(self._at("inside"), ignore_errors=True)
        links.remove(self.path.parent.parent, self._name)

    def _put(self, name: str, text: str, mode: int = 0o600) -> None:
        """Write a file, unless the run is settled."""
        if self.claimed:
            put(self.path / name, text, mode)
            self._not_after_settlement(name)

    def _not_after_settlement(self, name: str) -> None:
        """Remove a file again if the run was settled while the file was written."""
        if not self.claimed:
            remove(self._at(name))


def unsettled(runs: Path, but: Collection[str] = ()) -> Iterator[RunDir]:
    """Yield the directories of the unsettled runs below *runs*. The cost does not depend on the number of settled runs.

    Runs with a token in *but* are left out.
    """
    for job_id, token in links.names(runs, links.LIVE):
        if token not in but:
            yield RunDir(runs / job_id / token)


def reported(runs: Path) -> Iterator[RunDir]:
    """Yield the directories of runs whose end was reported to the store and may not be in the history yet."""
    for job_id, token in links.names(runs, links.REPORTED):
        yield RunDir(runs / job_id / token)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShimSpec:
    """The shim's spec of a run. ``start_before`` is on the host's monotonic clock, in seconds."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    time_limit_s: float | None
    kill_grace_s: float
    start_before: float
    umask: int
    #: Largest size of the log, in bytes; None for no limit.
    log_limit_bytes: int | None = None
    #: Columns and rows of the job's terminal; None for no terminal.
    pty: tuple[int, int] | None = None
    #: The longest kill grace of a lost run, whose job another worker may claim soon; None for the usual grace.
    fence_grace_s: float | None = None
    #: The number of the signal before the time limit, and how many seconds before; None for no signal.
    signal: tuple[int, float] | None = None
    #: Whether standard error goes into a separate file.
    separate_stderr: bool = False
    #: Whether the terminal is also standard input, so that users can type on it.
    typed: bool = False
    #: The submitter if the job runs as its submitter: ``name`` and ``uid``. None: it runs as the worker.
    user: Mapping[str, str | int] | None = None
    #: The socket of the launcher, which starts it as the submitter.
    launcher: str | None = None
    #: How to unpack the code that came with the job (:func:`workers.shim.code.unpack`). None: none came.
    code: Mapping[str, Any] | None = None
    #: The most that the run may use of the host: ``memory_bytes`` and ``cpus``, each None for no limit.
    limits: Mapping[str, float | None] | None = None
    #: The signature of the service, by which a launcher knows the job (:mod:`gpuqueue.model.ticket`). None: there is
    #: none.
    ticket: str | None = None
    #: Which links to its logs the job's first process makes: log -> pattern, None for no link.
    outputs: Mapping[str, str | None] | None = None
    #: What is added to the score by which the kernel chooses a process to kill when host memory runs out; 0: nothing.
    oom_score_adj: int = 0
    #: Whether shared memory that the run has used and that no process uses at its end is removed.
    remove_shared_memory: bool = False
    #: The container that the job runs in: ``engine``, ``program``, ``image``, ``binds``, ``devices`` (UUIDs) and the
    #: names of the variables that stay ``outside`` (:mod:`workers.shim.containers`). None: it runs in none.
    container: Mapping[str, Any] | None = None

    def plain(self) -> dict[str, Any]:
        """Return the spec as plain values for the file."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The claim of a run, with all that another worker of the same device needs to adopt the run."""

    job_id: int
    token: str
    devices: tuple[RunDevice, ...]
    #: Whether the job's memory is capped at its request.
    capped: bool = True
    #: The time of the claim on the store's clock, in milliseconds; None if it was not recorded.
    claimed_ms: int | None = None
    #: When a probe ends early: the text of a :class:`gpuqueue.model.probe.Probe`. None: the job is no probe.
    probe: str | None = None
    #: When the worker ends the run, see :class:`gpuqueue.model.job_spec.JobTerms`.
    stop_on_nan: bool = False
    stop_when_stalled_s: float | None = None
    #: Whether the job has a terminal, on which a person may think.
    has_terminal: bool = False
    #: The working directory of the job, None if it runs in a copy of its code, which is in the run directory.
    cwd: str | None = None
    #: The name of a member of an array, ``12_3``; None for another job.
    member: str | None = None

    def has(self, uuid: str) -> bool:
        """Return whether the run holds the device *uuid*."""
        return any(device.uuid == uuid for device in self.devices)

    def plain(self) -> dict[str, Any]:
        """Return the claim as plain values for the file."""
        return to_stored(self)  # type: ignore[no-any-return] # a value becomes a dictionary

    @classmethod
    def of(cls, plain: Fields) -> Held:
        """Return the claim in the file's fields.

        Raises:
            Unreadable: The fields are not a valid claim.

        """
        held: Held = from_plain(cls, plain.whole_object(), "the claim of a run")
        if not held.devices:
            raise plain.wrong("devices", "that of this run")
        return held


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """The exit of a run, which the shim writes after the run's last process is gone, unless the shim is lost."""

    ending: Ending
    duration_s: float | None
    max_rss_bytes: int | None
    #: Whether the job never began because the host was short of a resource: a process, a descriptor, disk space.
    hosts_fault: bool = False
    #: Whether the job never began because its directory or program is missing on this host.
    host_lacks: bool = False
    #: Whether the shim is gone without having written an exit.
    shim_vanished: bool = False
    #: What the shim noted.
    notes: tuple[RunNote, ...] = ()

    @classmethod
    def of(cls, plain: Fields) -> Exit:
        """Return the exit in the file's fields.

        Raises:
            Unreadable: The fields are not a valid exit.

        """
        return cls(
            ending=_ending(plain),
            duration_s=plain.number_or_none("duration_s"),
            max_rss_bytes=plain.whole_or_none("max_rss_bytes"),
            hosts_fault=plain.flag("hosts_fault", default=False),
            host_lacks=plain.flag("host_lacks", default=False),
            notes=tuple(map(_plain_note, from_plain(tuple[RunNote, ...], plain.each("notes"), "the notes of a run"))),
        )


def _plain_note(note: RunNote) -> RunNote:
    return replace(note, items=tuple(map(in_one_line, note.items)))


def _ending(plain: Fields) -> Ending:
    status = plain.whole("status", least=-MOST_STATUS) if plain.has("status") else None
    kind = plain.text("kind")
    detail = in_one_line(plain.text("detail", ""))
    if kind == EndingKind.EXITED.value and status is not None:
        return Ending.from_status(status, detail)
    if kind in {each.value for each in EndingKind if each is not EndingKind.EXITED}:
        return Ending.stopped(EndingKind(kind), status, detail)
    raise plain.wrong("kind", "a kind of ending, with the status that goes with it")
