"""Checks of the history: whether it is reachable, has this version's tables, is writable and is intact."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from gpuqueue.doctor.state import free_bytes, room
from gpuqueue.errors import HistoryUnreachable, install_extra
from gpuqueue.history.diagnostics import Contents, DatabaseFacts, database_facts
from gpuqueue.history.error_text import silent
from gpuqueue.history.revision import REVISION
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Check, Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.redact import without_password
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import format_bytes

#: Longest reason that is shown, in characters.
MAX_WHY = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about the history, and the free bytes on the disk of its file, if its file is on this machine."""

    database: DatabaseFacts
    free_bytes: int | None


def facts_of(settings: Settings, *, integrity_s: float) -> Facts:
    """Return the facts about the history.

    Raises:
        HistoryUnreachable: this host has none.

    """
    if not settings.has_history:
        raise HistoryUnreachable("this host records no history")
    database = database_facts(settings.database_url, integrity_s=integrity_s)
    return Facts(database=database, free_bytes=None if database.path is None else free_bytes(database.path.parent))


def away(settings: Settings, why: CallFailed) -> Finding:
    """Return a finding on why the history is unreachable, with a remedy."""
    if not settings.has_history:
        return ok("none here: the host of the service records it (record = false)")
    words, known = str(why), why.cause if isinstance(why.cause, HistoryUnreachable) else None
    if "malformed" in words or "not a database" in words:  # SQLite's words for a damaged file
        return problem(known.what if known else words, _recover(settings.database_url.partition(":///")[2]))
    if known is not None and known.remedy:
        return problem(known.what, known.remedy.removeprefix("run "))
    if why.cause is not None:
        return problem(words, _BRING_BACK)
    gone = silent(without_password(settings.database_url), words)
    return problem(gone.what, gone.remedy)


_BRING_BACK = silent("", "").remedy


def answers(facts: Facts) -> Findings:
    """Report that the history answers, with its address and size."""
    size = "" if facts.database.size_bytes is None else f", {format_bytes(facts.database.size_bytes)}"
    return ok(f"{facts.database.product} at {facts.database.where}{size}")


def tables(facts: Facts) -> Findings:
    """Check that the history has the tables of this version."""
    has, wanted = facts.database.revision, REVISION
    if has is None:
        return problem("it has no tables yet", "gpuqueue up, or gpuqueue db upgrade")
    if has < wanted:
        return problem(f"its tables are older ({has}) than this gpuqueue ({wanted})", "gpuqueue db upgrade")
    if has > wanted:
        return problem(f"its tables are newer ({has}) than this gpuqueue ({wanted})", "upgrade gpuqueue here")
    return ok(f"revision {has}")


def writing(facts: Facts) -> Findings:
    """Check that the history is writable."""
    if facts.database.refusal is None:
        return ok("it can be written")
    remedy = "the recorder must be able to write it; jobs go on, and their history waits in the store"
    return problem(f"it cannot be written: {facts.database.refusal}", remedy)


def integrity(facts: Facts) -> Findings:
    """Check that the history's file is not damaged."""
    if facts.database.path is None:
        return ()
    if facts.database.damage is None:
        return note("too large to be checked now", "gpuqueue doctor --deep checks it")
    if facts.database.damage:
        seen = f"its file is damaged: {facts.database.damage.splitlines()[0]}"
        return problem(seen, _recover(str(facts.database.path)))
    return ok("its file is whole")


def _recover(path: str) -> str:
    return f"gpuqueue down --leave-jobs, keep a copy, then: sqlite3 {path} .recover | sqlite3 {path}.new"


def disk(facts: Facts) -> Findings:
    """Check the free space on the disk of the history's file."""
    if facts.free_bytes is None:
        return ()
    seen = f"{format_bytes(facts.free_bytes)} free"
    return room(seen, facts.free_bytes, full="the history waits in the store's memory meanwhile")


def lost_jobs(contents: Contents) -> Finding:
    """Check for jobs that are held because their runs were lost too often."""
    if not contents.lost_too_often:
        return ok("none is held")
    jobs = [str(job_id) for job_id in contents.lost_too_often]
    return warning(
        f"job {', '.join(jobs)} was lost too often and is held",
        f"gpuqueue show {jobs[0]} shows each loss; when the cause is gone, gpuqueue release {' '.join(jobs)}",
    )


def events(contents: Contents) -> Finding:
    """Check for dead letters: events that the tables refused."""
    number, job_id, why = contents.dead_letters
    if not number:
        return ok("its tables have every event")
    seen = f"it refused {number} events, the first of job {job_id}: {short(why or '', MAX_WHY)}"
    return warning(seen, "its table dead_letters has them complete: report this, then delete them")


def messages(contents: Contents) -> Finding:
    """Check for notifications that are late or given up. A failure of a job's own URL concerns only its submitter."""
    late, job_id, trouble = contents.late
    if late:
        why = f": {short(trouble, MAX_WHY)}" if trouble else ""
        remedy = f"does a recorder run, with {install_extra('notify')}? gpuqueue notify lists its targets"
        what = "1 message is" if late == 1 else f"{late} messages are"
        return warning(f"{what} still to be sent, the first about job {job_id}{why}", remedy)
    gone, job_id, trouble = contents.given_up
    if gone:
        why = short(trouble or "no reason was given", MAX_WHY)
        remedy = "gpuqueue notify --test WHAT, where the recorder runs; the jobs are not affected"
        what = "1 message was" if gone == 1 else f"{gone} messages were"
        return warning(f"{what} given up this week, the last about job {job_id}: {why}", remedy)
    failed, job_id, trouble = contents.to_urls
    if failed:
        why = short(trouble or "", MAX_WHY)
        what = "1 message" if failed == 1 else f"{failed} messages"
        seen = f"{what} to URLs of jobs could not be sent this week, one about job {job_id}: {why}"
        return note(seen, f"nothing here is wrong: gpuqueue show {job_id} shows it to the submitter")
    return ok("none is late")


def texts(facts: Facts) -> Findings:
    """Check that an index supports the search for a part of a command."""
    if facts.database.contents is None:
        return unknown(_UNREADABLE)
    if facts.database.contents.finds_texts:
        return ok("an index finds a part of a command")
    needs = "with SQLite 3.34 or newer and FTS5"
    if facts.database.path is None:
        needs = "after CREATE EXTENSION pg_trgm in its database, as its owner"
    seen = "no index finds a part of a command: history --command reads one job after the other"
    return note(seen, f"gpuqueue db upgrade makes it, {needs}")


_UNREADABLE = "its tables cannot be read"


def _of_contents(check: Callable[[Contents], Finding]) -> Check[Facts]:
    """Return *check* as a check of all facts. Without readable tables its result is unknown."""

    @wraps(check)
    def of_facts(facts: Facts) -> Finding:
        return unknown(_UNREADABLE) if facts.database.contents is None else check(facts.database.contents)

    return of_facts


CHECKS = (answers, tables, writing, integrity, disk, *map(_of_contents, (lost_jobs, events, messages)), texts)
