"""One job for the page: its record with what the page says about it, and what it does now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from gpuqueue.client import reads
from gpuqueue.client.retry import FAILED
from gpuqueue.errors import HistoryUnreachable, Unreachable
from gpuqueue.estimate.verdict import asked_and_used, larger_mem_bytes
from gpuqueue.model import host_limits, job_ref
from gpuqueue.model.access import Action
from gpuqueue.model.dependencies import Condition
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.page import DeviceUse, JobView, LiveJob, QueueRow, Related, Rights, StoryStep
from gpuqueue.model.run import NO_USE, Note, Record
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.call import Call
from gpuqueue.service.web.queue_copy import Places, QueueState
from gpuqueue.service.web.rows import in_words, rows_of
from gpuqueue.words.story import end_in_words, meaning_of, story_of
from gpuqueue.words.values import asked_in_words, checkout_of, code_of_retry, place_of, use_in_words

#: Most jobs in each direction that are named as dependencies, and most retries.
MOST_RELATED = 50
MOST_RETRIES = 5
#: Most failed members of an array that are asked how much memory they lacked.
MAX_FAILED = 100


def view_of(call: Call, name: str, at: datetime) -> JobView:
    """Return the job *name* with its runs, as the caller may see it.

    Raises:
        JobNotFound: the job does not exist.
        Forbidden: the caller may not see it.

    """
    record, away = _record(call, name)
    shown = call.record(record, whole=True)
    spec, owner = shown.job.spec, record.job.spec.account
    after = {each.job_id: each.condition for each in record.job.spec.waits.after[:MOST_RELATED]}
    before, values, lost = _around(call, record)
    return JobView(
        at=at,
        record=shown,
        rights=Rights(
            change=call.may(Action.CHANGE_JOB, owner),
            retry=call.may(Action.RETRY, owner),
            logs=call.may(Action.SEE_LOGS, owner),
            arguments=call.may(Action.SEE_ARGUMENTS, owner),
        ),
        asked=asked_in_words(spec, _names_of(call, spec)),
        use=use_in_words(spec),
        command=spec.command,
        again=code_of_retry(spec),
        ended=end_in_words(shown) if shown.job.state.is_end else "",
        limits=host_limits.words(spec.cpus, spec.cpu_mem_bytes),
        git=checkout_of(spec.git) if spec.git is not None else None,
        verdict=asked_and_used(record),
        failures={
            run.attempt: meaning
            for run in record.runs
            if run.ending and (meaning := meaning_of(run.ending, spec)) is not None
        },
        after=_related(call, after),
        before=_related(call, dict.fromkeys(before)),
        retries=_related(call, dict.fromkeys(_retries(call, record.job))),
        values=values,
        idle=_idle_message(shown),
        away=away or lost,
    )


def story_for(call: Call, name: str) -> tuple[StoryStep, ...]:
    """Return the story of the job *name*; by its runs alone if the caller may not see its events.

    Raises:
        JobNotFound: the job does not exist.
        Forbidden: the caller may not see it.

    """
    record, _ = _record(call, name)
    shown = call.record(record)
    if not call.may(Action.SEE_ARGUMENTS, record.job.spec.account):
        return tuple(story_of(replace(shown, notes=()), ()))
    try:
        events = call.client.jobs.events(name)
    except Unreachable:
        events = ()
    return tuple(story_of(shown, events))


def _names_of(call: Call, spec: JobSpec) -> dict[str, str]:
    """Return the names of the devices that a job names, such as ``nodeA:0``, as far as the caller may see them."""
    if not spec.placement.devices or not call.may(Action.SEE_SITE):
        return {}
    try:
        return {each.device.uuid: place_of(each.host, [each.device]) for each in call.connection.queue.devices.all()}
    except Unreachable:
        return {}


def _idle_message(record: Record) -> Note | None:
    """Return the last note about the idle run of a job. The worker writes it, for it knows what happens next."""
    if record.job.idle_since is None:
        return None
    notes = (each for each in reversed(record.notes) if each.attempt == record.job.attempt)
    return next((each for each in notes if each.text.startswith(NO_USE)), None)


def _record(call: Call, name: str) -> tuple[Record, str | None]:
    """Return the job with its runs, and why a part of them is missing."""
    absences: list[Unreachable] = []
    try:
        return call.client.jobs.show(name, away=absences.append), str(absences[0]) if absences else None
    except HistoryUnreachable as error:
        return call.client.jobs.newest(name), str(error)


def more_mem_bytes(call: Call, job: Job) -> int | None:
    """Return the memory to ask for when *job* runs again, if it or failed members of it ended out of memory; else None.

    The caller has the right to run it again.
    """
    try:
        if job.spec.array is None:
            return larger_mem_bytes(call.client.jobs.show(job.label))
        query = HistoryQuery(array_id=job.id, states=FAILED, limit=MAX_FAILED)
        sizes = (larger_mem_bytes(each) for each in call.connection.database.history(query))
        return max((each for each in sizes if each is not None), default=None)
    except Unreachable:
        return None


def _retries(call: Call, job: Job) -> Sequence[int]:
    """Return the newest jobs that run an ended job again, the oldest first; none while the history does not answer."""
    if not job.state.is_end:
        return ()
    try:
        return call.connection.database.retries_of(job.id, job.spec.account.name)[-MOST_RETRIES:]
    except HistoryUnreachable:
        return ()


def _around(call: Call, record: Record) -> tuple[Sequence[int], dict[str, str], str | None]:
    """Return the jobs that wait for a job, the values of its sweep, and why one of the two is not known."""
    job, sees_values = record.job, call.may(Action.SEE_ARGUMENTS, record.job.spec.account)
    before: Sequence[int] = ()
    try:
        if not job.state.is_end:
            before = call.connection.queue.jobs.dependents(job.id, limit=MOST_RELATED)
        if job.member is None or not sees_values:
            return before, {}, None
        array = reads.array_of(call.connection, job.member.array_id).spec.array
        every = {} if array is None else array.values(job.member.index)
        return before, {} if array is None else {each.name: every[each.name] for each in array.axes}, None
    except Unreachable as error:
        return before, {}, str(error)


def _related(call: Call, wanted: dict[int, Condition] | dict[int, Condition | None]) -> tuple[Related, ...]:
    """Return the jobs *wanted*, with name and state of those that the caller may see. Trouble leaves these out."""
    if not wanted:
        return ()
    seen: dict[int, tuple[str, JobState]] = {}
    try:
        live = call.connection.queue.jobs.some(list(wanted)).jobs
        seen = {each.id: (each.spec.name, each.state) for each in live if call.sees(each)}
        missing = wanted.keys() - {each.id for each in live}
        found = call.connection.database.summaries(missing).values() if missing else ()
        seen |= {each.id: (each.name, each.state) for each in found if call.may(Action.SEE_JOBS, each.account)}
    except Unreachable:
        pass
    known = {each: seen.get(each, (None, None)) for each in wanted}
    return tuple(
        Related(id=each, condition=condition, name=known[each][0], state=known[each][1])
        for each, condition in wanted.items()
    )


def live_of(call: Call, name: str, state: QueueState, places: Places) -> LiveJob:
    """Return what the job *name* does now. *state* is the shared copy of the queue, which may be a second old.

    Raises:
        JobNotFound: the job does not exist.
        Forbidden: the caller may not see it.

    """
    wanted = job_ref.one_job(name)
    job_id, member = reads.id_of(wanted), wanted.member
    row = state.rows.get(job_id) or rows_of(call.connection.queue.jobs.some([job_id])).get(job_id)
    if row is None or (member is not None and row.array_id != member.array_id):
        call.job(call.client.jobs.get(name))
        return LiveJob(at=state.at)
    call.must(Action.SEE_JOBS, Account(name=row.user, uid=row.uid, host=""))
    waits = row.state is JobState.QUEUED and row.members is None
    devices = call.devices(state.devices) if row.state.is_active and call.may(Action.SEE_SITE) else ()
    return LiveJob(
        at=state.at,
        row=next(in_words([row], state.devices)),
        place=places.get(job_id, call.connection.queue.jobs.why) if waits else None,
        devices=tuple(_uses(row, devices, state.silent_after_s)),
    )


def _uses(row: QueueRow, devices: Iterable[DeviceStatus], silent_after_s: float) -> Iterable[DeviceUse]:
    for status in devices:
        for holding in status.holdings:
            if holding.job_id == row.id:
                yield DeviceUse(
                    uuid=status.device.uuid,
                    host=status.host,
                    index=status.device.index,
                    name=status.device.name,
                    kind=status.device.kind,
                    total_bytes=status.device.total_bytes,
                    allocated_bytes=holding.lease_bytes,
                    used_bytes=holding.observed_bytes,
                    silent=status.seen_s_ago > silent_after_s,
                    utilisation=status.utilisation,
                    temperature_c=status.temperature_c,
                    power_w=status.power_w,
                )
