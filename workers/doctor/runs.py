"""Checks of this machine's unsettled runs: whether a worker serves them, whether they are over, what outlived them."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from gpuqueue.errors import Unreachable
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.model.run import Record
from gpuqueue.queue.diagnostics import store_states
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import name_of
from gpuqueue.system.process import ProcessIdentity, each_process, is_locked
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import GIB, format_bytes, format_duration
from workers.run.directory import USER, RunDir
from workers.run.environment import TOKEN
from workers.run.links import LIVE
from workers.shim.log import BLOCK_BYTES, REASONS
from workers.shim.shared_memory import PLACE, unused

#: A run that is younger than this may still be starting, without a lock yet, in seconds.
YOUNG_S = 30.0
#: Most runs that are listed by name.
MOST_NAMED = 10
#: How long the last processes of a run may take to exit after their shim, in seconds.
GOING_S = 0.5
#: Shared memory without a process that is large: in bytes, and as a share of /dev/shm.
LARGE_SHARED_BYTES, LARGE_SHARED_SHARE = GIB, 0.1
RUN_DIR = "GPUQUEUE_RUN_DIR"
_MARKS = frozenset({TOKEN.encode(), RUN_DIR.encode()})


class UnsettledRun:
    """A run with a link below ``runs/live``, as it was when this was made.

    It ``is_over`` for certain if the store does not know the token, and the history has the end.
    """

    def __init__(self, settings: Settings, job_id: int, token: str, *, is_over: bool) -> None:
        self.job_id, self.token, self.is_over = job_id, token, is_over
        self.name = f"job {job_id}"
        self.directory = RunDir(settings.runs_dir / str(job_id) / token)
        path, held = self.directory.path, self.directory.held()
        self.is_there = path.is_dir()
        #: Whether its claim is readable, and the UUID of the device whose worker manages the run.
        self.is_whole = held is not None
        self.device = None if held is None else held.devices[0].uuid
        #: Whether a shim or a worker holds the run's lock, and for how many more seconds the heartbeat is valid.
        self.is_attended = is_locked(path / "lock")
        self.renewed_s = _renewed_until_s(path) - time.monotonic()
        #: Whether the run has neither a shim nor a worker, and is not just starting.
        self.is_left = self.is_there and not self.is_attended and _age_s(path) >= YOUNG_S
        #: The limit in bytes to which its log was cut, and the key of the reason; None if it was not.
        self.lowered = self.directory.log_limit()

    @property
    def user(self) -> str:
        """Return the name of the job's user; empty if it is not known yet."""
        with contextlib.suppress(OSError):
            return in_one_line(str((self.directory.path / USER).readlink()))
        return ""


class UnsettledRuns:
    """The unsettled runs of this machine. ``unasked`` is why the store or the history did not answer."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.unasked = settings, ""
        names, over = list(links(settings.runs_dir)), frozenset[str]()
        try:
            over = tokens_over(settings, names)
        except Unreachable as error:
            self.unasked = str(error)
        self.runs = [UnsettledRun(settings, job_id, token, is_over=token in over) for job_id, token in names]
        devices = {run.device for run in self.runs if run.device is not None}
        #: The devices that have a worker, which holds their lock in this state directory.
        self.served = {each for each in devices if is_locked(settings.state_dir / "devices" / f"{each}.lock")}


def links(runs: Path) -> Iterator[tuple[int, str]]:
    """Yield the job id and token of each link below ``runs/live``. Other files are skipped."""
    try:
        entries = sorted((runs / LIVE).iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        job_id, mark, token = entry.name.partition(".")
        if mark and job_id.isdigit():
            yield int(job_id), token


def tokens_over(settings: Settings, names: Iterable[tuple[int, str]]) -> frozenset[str]:
    """Return the tokens of the runs that are certainly over, according to both the store and the history.

    The store alone is not enough: a store that lost its data knows no token, and the run directories must stay until
    the queue is rebuilt from them. On a host without a history no run is certainly over.
    """
    pairs = list(names)
    known = store_states(settings.redis_url, {job_id for job_id, _ in pairs}) if pairs else {}
    if known is None:
        return frozenset()
    unknown_there = [(job_id, token) for job_id, token in pairs if job_id not in known or known[job_id].token != token]
    if not unknown_there or not settings.has_history:
        return frozenset()
    from gpuqueue.history.database import HistoryDatabase  # noqa: PLC0415 - slow import, not needed on a healthy machine

    database = HistoryDatabase(settings.database_url)
    try:
        return frozenset(token for job_id, token in unknown_there if _is_over(database.get(job_id), token))
    finally:
        database.close()


def _is_over(record: Record | None, token: str) -> bool:
    """Return whether the history has the run's end, the job's end or a later attempt of the job."""
    if record is None:
        return False
    attempt = int(token.partition(".")[0])
    reported = any(run.token == token and run.ending is not None for run in record.runs)
    return reported or record.job.state.is_end or any(run.attempt > attempt for run in record.runs)


def _age_s(path: Path) -> float:
    """Return the time since the directory was last modified, in seconds; infinity if it does not exist."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float("inf")


def _renewed_until_s(path: Path) -> float:
    try:
        return float((path / "heartbeat").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0


def dangling_links(of: UnsettledRuns) -> Findings:
    """Report links to runs whose directories are gone."""
    gone = [f"{run.job_id}.{run.token}" for run in of.runs if not run.is_there]
    if not gone:
        return ok("none")
    seen = f"in {of.settings.runs_dir / LIVE} {len(gone)} lead nowhere: {', '.join(gone[:MOST_NAMED])}"
    return warning(seen, "gpuqueue doctor --fix removes them", fixable=True)


def without_a_worker(of: UnsettledRuns) -> Iterator[Finding]:
    """Report live runs whose device has no worker to send heartbeats."""
    alone = [run for run in of.runs if run.is_there and run.is_attended and run.device not in of.served]
    for run in alone:
        if run.renewed_s <= 0:
            yield problem("its shim ends it now: no worker renewed its lease in time", "gpuqueue up", about=run.name)
            continue
        seen = f"it runs without a worker, and is ended in {format_duration(run.renewed_s)} unless one comes"
        if run.renewed_s > of.settings.shim_grace_s:
            yield note(
                seen, "it was left alone (gpuqueue down --leave-jobs); gpuqueue up takes it over", about=run.name
            )
        else:
            yield warning(seen, "gpuqueue up", about=run.name)
    if not alone:
        attended = sum(run.is_attended for run in of.runs)
        yield ok(f"{attended} live, each with its worker" if attended else "none is live")


def unsettled(of: UnsettledRuns) -> Iterator[Finding]:
    """Report runs that have ended without a report to the queue."""
    left = [run for run in of.runs if run.is_left and not run.is_over]
    for run in left:
        if run.device in of.served:
            yield note("it has ended, and its worker is about to report it to the queue", about=run.name)
        elif not run.is_whole:
            seen = f"nobody can adopt it: {run.directory.path / 'claim'} is missing or damaged"
            yield warning(
                seen, "the queue takes it back when its lease ends; then gpuqueue doctor --fix", about=run.name
            )
        elif of.unasked:
            seen = f"it has ended; whether the queue knows cannot be seen: {of.unasked}"
            yield unknown(seen, "gpuqueue up", about=run.name)
        else:
            yield warning(
                "it has ended, and no worker has reported it to the queue",
                "gpuqueue up: its worker does",
                about=run.name,
            )
    if not left:
        yield ok("every end was reported")


def stale_directories(of: UnsettledRuns) -> Findings:
    """Report run directories of runs that are certainly over."""
    stale = [run for run in of.runs if run.is_left and run.is_over]
    if not stale:
        return ok("none")
    jobs = ", ".join(str(run.job_id) for run in stale[:MOST_NAMED])
    seen = f"{len(stale)} runs are over and were never tidied up: job {jobs}"
    return warning(seen, "gpuqueue doctor --fix does; their logs stay", fixable=True)


def cut_logs(of: UnsettledRuns) -> Iterator[Finding]:
    """Report running jobs whose logs were cut because the host has no room for more."""
    cut = [(run, *run.lowered) for run in of.runs if run.is_attended and run.lowered is not None]
    for run, limit_bytes, why in cut:
        seen = f"the log of {run.user or 'its user'} is held to {format_bytes(limit_bytes)}: {REASONS[why]}"
        yield warning(seen, "let the job write less; GPUQUEUE_LOG_LIMIT keeps each log smaller", about=run.name)
    if not cut:
        yield ok("none")


def orphans(settings: Settings) -> Iterator[Finding]:
    """Report the processes of runs without a shim that have not exited within ``GOING_S``."""
    alone = [item for item in _processes(settings.runs_dir) if not is_locked(item[1] / "lock")]
    deadline_s = time.monotonic() + GOING_S
    left = [item for item in alone if not item[0].wait(max(0.0, deadline_s - time.monotonic()))]
    for process, directory, command in left:
        seen = f"pid {process.pid} of job {directory.parent.name} has no shim that would end it: {command[:80]}"
        yield problem(seen, f"kill -9 {process.pid}, unless it is there on purpose", about=f"pid {process.pid}")
    if not left:
        yield ok("no process has outlived its run")


def _processes(runs: Path) -> Iterator[tuple[ProcessIdentity, Path, str]]:
    """Yield the processes of the runs below *runs* that this account can read, with run directory and command."""
    for entry in each_process():
        try:
            pairs = (word.partition(b"=") for word in (entry / "environ").read_bytes().split(b"\0"))
            found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name in _MARKS}
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        directory = Path(found.get(RUN_DIR, "/"))
        process = ProcessIdentity.of(int(entry.name))
        if TOKEN in found and directory.is_relative_to(runs) and process is not None:
            yield process, directory, words.decode(errors="replace").strip()


def shared_memory(_: Settings, files: Callable[[], Mapping[str, os.stat_result]] = unused) -> Finding:
    """Check that little shared memory is left in /dev/shm. Only root can examine the files of other accounts."""
    held = Counter[int]()
    for found in files().values():
        held[found.st_uid] += found.st_blocks * BLOCK_BYTES
    disk = os.statvfs(PLACE)
    sizes = ", ".join(f"{format_bytes(size)} of {name_of(uid)}" for uid, size in held.most_common() if size)
    if held.total() <= min(LARGE_SHARED_BYTES, LARGE_SHARED_SHARE * disk.f_blocks * disk.f_frsize):
        return ok(f"no large file in {PLACE} is without a process")
    seen = f"files in {PLACE} that no process uses take memory: {sizes}"
    return warning(seen, f"ls -l {PLACE}, and remove what no later job needs; remove_shared_memory does it for runs")


CHECKS = (dangling_links, without_a_worker, unsettled, stale_directories, cut_logs)
