"""Checks of this machine's unsettled runs: whether a worker serves them, and whether they are already over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuqueue.errors import Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.model.run import Record
from gpuqueue.queue.diagnostics import store_states
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import is_locked
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_bytes, format_duration
from workers.run.directory import USER, RunDir
from workers.run.links import LIVE
from workers.shim.log import REASONS

#: A run that is younger than this may still be starting, without a lock yet, in seconds.
YOUNG_S = 30.0
#: Most runs that are listed by name.
MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """An unsettled run, which has a link below ``runs/live``."""

    job_id: int
    token: str
    directory: RunDir
    #: Whether the run directory exists, and whether its claim is readable.
    there: bool
    whole: bool
    young: bool
    #: The UUID of the device whose worker manages the run.
    device: str | None
    #: Whether a shim or a worker holds the run's lock, and for how many more seconds the heartbeat is valid.
    attended: bool
    renewed_s: float
    #: The limit in bytes to which its log was cut, and the key of the reason; None if it was not.
    lowered: tuple[int, str] | None
    #: Whether the run is certainly over: the store does not know the token, and the history has the end.
    over: bool

    @property
    def name(self) -> str:
        """Return the run's name for users."""
        return f"job {self.job_id}"

    @property
    def user(self) -> str:
        """Return the name of the job's user; empty if it is not known yet."""
        with contextlib.suppress(OSError):
            return in_one_line(str((self.directory.path / USER).readlink()))
        return ""

    @property
    def is_left(self) -> bool:
        """Return whether the run has neither a shim nor a worker, and is not just starting."""
        return self.there and not self.attended and not self.young


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The unsettled runs of this machine."""

    settings: Settings
    runs: tuple[RunFacts, ...]
    #: The devices that have a worker, which holds their lock in this state directory.
    served: frozenset[str]
    #: Why the store or the history did not answer; empty if both answered or neither was needed.
    unasked: str


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts_of(settings: Settings) -> Facts:
    """Return the facts about the unsettled runs."""
    names = list(links(settings.runs_dir))
    over, unasked = frozenset[str](), ""
    try:
        over = tokens_over(settings, names)
    except Unreachable as error:
        unasked = str(error)
    runs = tuple(_read(settings.runs_dir, job_id, token, over=token in over) for job_id, token in names)
    locks = settings.state_dir / "devices"
    devices = {run.device for run in runs if run.device is not None}
    return Facts(
        settings=settings,
        runs=runs,
        served=frozenset(device for device in devices if is_locked(locks / f"{device}.lock")),
        unasked=unasked,
    )


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


def _read(runs: Path, job_id: int, token: str, *, over: bool) -> RunFacts:
    directory = RunDir(runs / str(job_id) / token)
    held = directory.held()
    return RunFacts(
        job_id=job_id,
        token=token,
        directory=directory,
        there=directory.path.is_dir(),
        whole=held is not None,
        young=_age_s(directory.path) < YOUNG_S,
        device=None if held is None else held.devices[0].uuid,
        attended=is_locked(directory.path / "lock"),
        renewed_s=_renewed_until_s(directory.path) - time.monotonic(),
        lowered=directory.log_limit(),
        over=over,
    )


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


# ---- checks ----------------------------------------------------------------------------------------------------------


def dangling_links(facts: Facts) -> Findings:
    """Report links to runs whose directories are gone."""
    gone = [f"{run.job_id}.{run.token}" for run in facts.runs if not run.there]
    if not gone:
        return ok("none")
    seen = f"in {facts.settings.runs_dir / LIVE} {len(gone)} lead nowhere: {', '.join(gone[:MOST_NAMED])}"
    return warning(seen, "gpuqueue doctor --fix removes them", fixable=True)


def without_a_worker(facts: Facts) -> Iterator[Finding]:
    """Report live runs whose device has no worker to send heartbeats."""
    alone = [run for run in facts.runs if run.there and run.attended and run.device not in facts.served]
    for run in alone:
        if run.renewed_s <= 0:
            yield problem("its shim ends it now: no worker renewed its lease in time", "gpuqueue up", about=run.name)
            continue
        seen = f"it runs without a worker, and is ended in {format_duration(run.renewed_s)} unless one comes"
        if run.renewed_s > facts.settings.shim_grace_s:
            yield note(
                seen, "it was left alone (gpuqueue down --leave-jobs); gpuqueue up takes it over", about=run.name
            )
        else:
            yield warning(seen, "gpuqueue up", about=run.name)
    if not alone:
        attended = sum(run.attended for run in facts.runs)
        yield ok(f"{attended} live, each with its worker" if attended else "none is live")


def unsettled(facts: Facts) -> Iterator[Finding]:
    """Report runs that have ended without a report to the queue."""
    left = [run for run in facts.runs if run.is_left and not run.over]
    for run in left:
        if run.device in facts.served:
            yield note("it has ended, and its worker is about to report it to the queue", about=run.name)
        elif not run.whole:
            seen = f"nobody can adopt it: {run.directory.path / 'claim'} is missing or damaged"
            yield warning(
                seen, "the queue takes it back when its lease ends; then gpuqueue doctor --fix", about=run.name
            )
        elif facts.unasked:
            seen = f"it has ended; whether the queue knows cannot be seen: {facts.unasked}"
            yield unknown(seen, "gpuqueue up", about=run.name)
        else:
            yield warning(
                "it has ended, and no worker has reported it to the queue",
                "gpuqueue up: its worker does",
                about=run.name,
            )
    if not left:
        yield ok("every end was reported")


def stale_directories(facts: Facts) -> Findings:
    """Report run directories of runs that are certainly over."""
    stale = [run for run in facts.runs if run.is_left and run.over]
    if not stale:
        return ok("none")
    jobs = ", ".join(str(run.job_id) for run in stale[:MOST_NAMED])
    seen = f"{len(stale)} runs are over and were never tidied up: job {jobs}"
    return warning(seen, "gpuqueue doctor --fix does; their logs stay", fixable=True)


def cut_logs(facts: Facts) -> Iterator[Finding]:
    """Report running jobs whose logs were cut because the host has no room for more."""
    cut = [(run, *run.lowered) for run in facts.runs if run.attended and run.lowered is not None]
    for run, limit_bytes, why in cut:
        seen = f"the log of {run.user or 'its user'} is held to {format_bytes(limit_bytes)}: {REASONS[why]}"
        yield warning(seen, "let the job write less; GPUQUEUE_LOG_LIMIT keeps each log smaller", about=run.name)
    if not cut:
        yield ok("none")


CHECKS = (dangling_links, without_a_worker, unsettled, stale_directories, cut_logs)
