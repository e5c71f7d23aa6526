"""Checks of the history: whether it is reachable, has this version's tables, is writable and is intact."""

from __future__ import annotations

from gpuqueue.doctor.state import free_bytes, room
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history.diagnostics import DatabaseFacts, database_facts
from gpuqueue.history.error_text import silent
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timeout_call import Unseen
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
        HistoryUnreachable: the history does not answer or does not exist.

    """
    database = database_facts(settings.database_url, integrity_s=integrity_s)
    return Facts(database=database, free_bytes=None if database.path is None else free_bytes(database.path.parent))


def away(settings: Settings, why: Unseen) -> Finding:
    """Return a finding on why the history is unreachable, with a remedy."""
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
    has, wanted = facts.database.revision, facts.database.wanted
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
        return note("too large to be looked through now", "gpuqueue doctor --deep takes the time")
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


def lost_jobs(facts: Facts) -> Findings:
    """Check for jobs that are held because their runs were lost too often."""
    if facts.database.revision != facts.database.wanted or facts.database.damage:
        return unknown("its tables cannot be read")
    if not facts.database.lost_too_often:
        return ok("none waits for a person")
    jobs = [str(job_id) for job_id in facts.database.lost_too_often]
    return warning(
        f"job {', '.join(jobs)} was lost too often and is held",
        f"gpuqueue show {jobs[0]} tells each loss; when the cause is gone, gpuqueue release {' '.join(jobs)}",
    )


def events(facts: Facts) -> Findings:
    """Check for dead letters: events that the tables could not take."""
    if facts.database.revision != facts.database.wanted or facts.database.damage:
        return unknown("its tables cannot be read")
    if not facts.database.unwritten:
        return ok("its tables took every event")
    why = short(facts.database.unwritten_why or "", MAX_WHY)
    seen = (
        f"it could not take {facts.database.unwritten} events, the first of job {facts.database.unwritten_job}: {why}"
    )
    return warning(seen, "they lie whole in its table unwritten_events: report this, and delete them when you have")


def messages(facts: Facts) -> Findings:
    """Check for notifications that are late or given up."""
    if facts.database.revision != facts.database.wanted or facts.database.damage:
        return unknown("its tables cannot be read")
    late, job_id, trouble = facts.database.unreported
    if late:
        why = f": {short(trouble, MAX_WHY)}" if trouble else ""
        remedy = "does a recorder run, with pip install '.[notify]'? gpuqueue notify lists its targets"
        what = "1 message is" if late == 1 else f"{late} messages are"
        return warning(f"{what} still to be sent, the first about job {job_id}{why}", remedy)
    gone, job_id, trouble = facts.database.given_up
    if gone:
        why = short(trouble or "no reason was given", MAX_WHY)
        remedy = "gpuqueue notify --test WHAT, where the recorder runs; its jobs are not concerned"
        what = "1 message was" if gone == 1 else f"{gone} messages were"
        return warning(f"{what} given up this week, the last about job {job_id}: {why}", remedy)
    return ok("none is late")


def texts(facts: Facts) -> Findings:
    """Check that an index supports the search for a part of a command."""
    if facts.database.finds_texts is None:
        return unknown("its tables cannot be read")
    if facts.database.finds_texts:
        return ok("an index finds a part of a command")
    seen = "no index finds a part of a command: history --command reads one job after the other"
    if facts.database.path is None:
        return note(seen, "CREATE EXTENSION pg_trgm in its database, as its owner, then gpuqueue db upgrade")
    if facts.database.could_find_texts:
        return note(seen, "gpuqueue db upgrade makes it")
    return note(f"{seen} ({facts.database.product} knows no trigrams)", "a Python with SQLite 3.34 or newer, with FTS5")


CHECKS = (answers, tables, writing, integrity, disk, lost_jobs, events, messages, texts)
