"""Checks of the history: whether it is reachable, has this version's tables, is writable and is intact."""

from __future__ import annotations

from gpuqueue.doctor.site import Site
from gpuqueue.doctor.state import room
from gpuqueue.errors import HistoryUnreachable, install_extra
from gpuqueue.history.connect import silent
from gpuqueue.history.diagnostics import Count
from gpuqueue.history.revision import REVISION
from gpuqueue.model.finding import Finding, Findings, note, ok, problem, unknown, warning
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.sanitize import short, without_password
from gpuqueue.text.units import format_bytes

#: Longest reason that is shown, in characters.
MAX_WHY = 120
#: What is seen of the contents of tables that are damaged or not of this version.
UNREADABLE = "its tables cannot be read"


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


def answers(site: Site) -> Findings:
    """Report that the history answers, with its address and size."""
    database = site.database()
    size = "" if database.size_bytes is None else f", {format_bytes(database.size_bytes)}"
    return ok(f"{database.product} at {database.where}{size}")


def tables(site: Site) -> Findings:
    """Check that the history has the tables of this version."""
    has, wanted = site.database().revision, REVISION
    if has is None:
        return problem("it has no tables yet", "gpuqueue up, or gpuqueue db upgrade")
    if has < wanted:
        return problem(f"its tables are older ({has}) than this gpuqueue ({wanted})", "gpuqueue db upgrade")
    if has > wanted:
        return problem(f"its tables are newer ({has}) than this gpuqueue ({wanted})", "upgrade gpuqueue here")
    return ok(f"revision {has}")


def writing(site: Site) -> Findings:
    """Check that the history is writable."""
    refusal = site.database().refusal
    if refusal is None:
        return ok("it can be written")
    remedy = "the recorder must be able to write it; jobs go on, and their history waits in the store"
    return problem(f"it cannot be written: {refusal}", remedy)


def integrity(site: Site) -> Findings:
    """Check that the history's file is not damaged."""
    path, damage = site.database().path, site.database().damage
    if path is None:
        return ()
    if damage is None:
        return note("too large to be checked now", "gpuqueue doctor --deep checks it")
    if damage:
        return problem(f"its file is damaged: {damage.splitlines()[0]}", _recover(str(path)))
    return ok("its file is whole")


def _recover(path: str) -> str:
    return f"gpuqueue down --leave-jobs, keep a copy, then: sqlite3 {path} .recover | sqlite3 {path}.new"


def disk(site: Site) -> Findings:
    """Check the free space on the disk of the history's file."""
    path = site.database().path
    return () if path is None else room(path.parent, full="the history waits in the store's memory meanwhile")


def lost_jobs(site: Site) -> Findings:
    """Check for jobs that are held because their runs were lost too often."""
    contents = site.database().contents
    if contents is None:
        return unknown(UNREADABLE)
    if not contents.lost_too_often:
        return ok("none is held")
    jobs = [str(job_id) for job_id in contents.lost_too_often]
    return warning(
        f"job {', '.join(jobs)} was lost too often and is held",
        f"gpuqueue show {jobs[0]} shows each loss; when the cause is gone, gpuqueue release {' '.join(jobs)}",
    )


def events(site: Site) -> Findings:
    """Check for dead letters: events that the tables refused."""
    contents = site.database().contents
    if contents is None:
        return unknown(UNREADABLE)
    refused = contents.dead_letters
    if not refused.number:
        return ok("its tables have every event")
    seen = f"it refused {refused.number} events, the first of job {refused.job_id}: {short(refused.why or '', MAX_WHY)}"
    return warning(seen, "its table dead_letters has them complete: report this, then delete them")


def messages(site: Site) -> Findings:
    """Check for notifications that are late or given up. A failure of a job's own URL concerns only its submitter."""
    contents = site.database().contents
    if contents is None:
        return unknown(UNREADABLE)
    late, given_up, to_urls = contents.late, contents.given_up, contents.to_urls
    if late.number:
        why = f": {short(late.why, MAX_WHY)}" if late.why else ""
        remedy = f"does a recorder run, with {install_extra('notify')}? gpuqueue notify lists its targets"
        what = f"{_number_of(late)} {'is' if late.number == 1 else 'are'} still to be sent"
        return warning(f"{what}, the first about job {late.job_id}{why}", remedy)
    if given_up.number:
        why = short(given_up.why or "no reason was given", MAX_WHY)
        remedy = "gpuqueue notify --test WHAT, where the recorder runs; the jobs are not affected"
        what = f"{_number_of(given_up)} {'was' if given_up.number == 1 else 'were'} given up this week"
        return warning(f"{what}, the last about job {given_up.job_id}: {why}", remedy)
    if to_urls.number:
        why = short(to_urls.why or "", MAX_WHY)
        seen = (
            f"{_number_of(to_urls)} to URLs of jobs could not be sent this week, one about job {to_urls.job_id}: {why}"
        )
        return note(seen, f"nothing here is wrong: gpuqueue show {to_urls.job_id} shows it to the submitter")
    return ok("none is late")


def _number_of(messages: Count) -> str:
    some = f"{messages.number} message" + ("" if messages.number == 1 else "s")
    return some if messages.is_whole else f"at least {some}"


def texts(site: Site) -> Findings:
    """Check that an index supports the search for a part of a command."""
    contents = site.database().contents
    if contents is None:
        return unknown(UNREADABLE)
    if contents.finds_texts:
        return ok("an index finds a part of a command")
    needs = "with SQLite 3.34 or newer and FTS5"
    if site.database().path is None:
        needs = "after CREATE EXTENSION pg_trgm in its database, as its owner"
    seen = "no index finds a part of a command: history --command reads one job after the other"
    return note(seen, f"gpuqueue db upgrade makes it, {needs}")


CHECKS = (answers, tables, writing, integrity, disk, lost_jobs, events, messages, texts)
