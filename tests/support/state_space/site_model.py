"""A tiny site as a state machine. docs/internals/model.md describes it.

Each step is atomic: a script, an act of a worker or a shim, a fault, or a tick of the clock. Any step may come whenever
it is possible, so a late message is a late step. Durations count down in ticks: a lease lasts `lease` ticks, a shim
ends its run after `grace` ticks without a heartbeat, and a pause lasts `lease` ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

UNKNOWN, QUEUED, HELD, ACTIVE, CANCELLING, ENDED = "unknown", "queued", "held", "active", "cancelling", "ended"
RUNS = (ACTIVE, CANCELLING)
OPEN, DOWN, LOST = "open", "down", "lost"

#: Each rule that can be removed, with its place in the code.
RULES = {
    "token": "owns() in lua/shared/state.lua: a write about a run counts only with the token of the job's current run",
    "fence": "workers/shim/supervisor.py: the run had no heartbeat for its grace, so its processes are ended",
    "promises are counted": "room_of() in lua/shared/leases.lua: what is available is derived from the live leases",
    "grace after an absence": "reap.lua: a reaper that was away grants one more lease before anything is taken back",
    "pause after a loss": "claim.lua: nothing is claimed for one lease after a rebuild",
    "pause while the store is there": "reap.lua: the pause is longer by the time that the store was away",
    "no start in the pause": "started.lua: an older claim that the history still had does not start in the pause",
    "nothing newer": "adopt.lua: a run is taken back only if its attempt is above the job's",
    "what the history knows comes back": "rebuild_job.lua, before the store opens",
    "an end is final": "finish.lua, lose.lua: an end is an end",
    "attempts count on": "lose() and queue_again() leave the attempt as it is: the next claim's is above it",
    "who is cancelled is not queued again": "finish.lua, lose(), release_claim.lua: cancelling comes to cancelled",
    "who waits no more leaves the line": "leave() in cancel.lua, hold.lua; leave_queue() in the claim, promote.lua",
    "a job that does not wait has no reservation": "unreserve() in lua/shared/state.lua, by the claim and leave()",
    "a reservation is for one job": "fits() in claim_room.lua: a reservation lets others in only beside it",
    "one device is reserved for one": "holder in reserve.lua and preempt.lua: another's is passed over, or given up",
    "what asked for less is not taken back": "is_spec_of() in adopt.lua: the history missed an edit, it is another job",
    "only what waits is edited": "edit.lua: a run keeps what it was promised",
    "a job is over before the end of its device": "over_in_time() in device_end.lua: a claim counts the time left",
}


class Job(NamedTuple):
    """A job in the store or the history. ``token`` 0 means none. ``lease`` is in ticks, and 0 means expired."""

    state: str = UNKNOWN
    attempt: int = 0
    token: int = 0
    device: int = -1
    lease: int = 0
    size: int = 0  # the requested memory; for an active job the allocated memory
    reserved: int = -1  # the device that is reserved for it
    priority: int = 0
    asked: bool = False  # its run is asked to end because of a preemption


class Run(NamedTuple):
    """A run as its worker knows it.

    ``left`` is the number of ticks that its processes may live, or start, without a heartbeat.
    """

    job: int
    device: int
    token: int
    attempt: int
    left: int = 0
    size: int = 0
    again: bool = False  # the run is over, and its job is not


class Site(NamedTuple):
    """The whole state at one moment. Some fields are not part of the site: they serve to check the promises."""

    store: str
    jobs: tuple[Job, ...]
    database: tuple[Job, ...]
    workers: tuple[bool, ...]
    line: frozenset[tuple[int, int]] = frozenset()  # the queue index: claimable jobs with their priority
    reserved: tuple[int, ...] = ()  # the reservation index: for each device its job
    ends: tuple[int, ...] = ()  # ticks until the end of each device; -1 without one
    cancelled: frozenset[int] = frozenset()  # a cancel of these jobs is known here or in the history
    claimed: frozenset[Run] = frozenset()  # claimed by a worker that has not asked for the start
    allowed: frozenset[Run] = frozenset()  # the store permitted the start, and no process exists yet
    alive: frozenset[Run] = frozenset()  # processes under a shim
    over: frozenset[Run] = frozenset()  # ended by themselves; the end is in the run directory
    pause: int = 0
    grace: int = 0
    was_away: bool = False
    last: int = -1  # the last id in the history when the store was opened
    brought: tuple[bool, ...] = ()  # adopted from a worker, unknown to the store before
    given: int = 0  # number of ids issued; a rebuilt store continues above all possible ids
    tokens: int = 0
    taken_back: frozenset[int] = frozenset()  # tokens of runs whose lease this store has reaped
    reported: tuple[bool, ...] = ()  # the id was printed and survives a loss of the store
    ended: tuple[bool, ...] = ()  # the end is known to this store or the history
    wrong: str = ""  # a step that breaks a promise by itself
    faults: tuple[int, int, int] = (0, 0, 0)  # remaining crashes, stops of the store, losses of data


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The parameters of the site, and the rules that are removed."""

    sizes: tuple[int, ...] = (2, 1)
    capacity: int = 2
    devices: int = 2
    lasts: tuple[int, ...] = ()  # ticks that each job may take; unknown for the others
    end: int = 2  # ticks until the end of a device that gets one
    lease: int = 2
    grace: int = 1
    claims: int = 2
    faults: tuple[int, int, int] = (1, 1, 1)
    one_host: bool = False  # the store is a socket on the workers' host: workers send heartbeats while it is away
    acts: frozenset[str] = frozenset()  # acts of users and ticks at this site
    taken_out: frozenset[str] = field(default_factory=frozenset)

    def has(self, rule: str) -> bool:
        """Return whether a rule is in force."""
        return rule not in self.taken_out

    def first(self) -> Site:
        """Return the initial state."""
        count = len(self.sizes)
        nothing = (Job(),) * count
        no = (False,) * count
        return Site(
            OPEN,
            nothing,
            nothing,
            (True,) * self.devices,
            brought=no,
            reported=no,
            ended=no,
            faults=self.faults,
            reserved=(-1,) * self.devices,
            ends=(-1,) * self.devices,
        )


def put(row: tuple, place: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return *row* with one value replaced."""
    return (*row[:place], value, *row[place + 1 :])


class Model:
    """The steps of a site under some rules, and the promises that must hold in every state."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def steps(self, site: Site) -> Iterator[tuple[str, Site]]:
        """Yield every step that is possible in this state."""
        if site.store == OPEN:
            yield from self._submitted(site)
            yield from self._claims(site)
            yield from self._starts(site)
            yield from self._reported(site)
            yield from self._recorded(site)
            yield from self._reaped(site)
            if self.rules.acts:
                yield from self._changed(site)
                yield from self._reserved(site)
        if not self.rules.one_host:
            yield from self._heartbeats(site)
        yield from self._processes(site)
        yield from self._faults(site)
        yield "a tick", self._tick(site)

    # ---- scripts ---------------------------------------------------------------------------------------------------

    def _submitted(self, site: Site) -> Iterator[tuple[str, Site]]:
        number = site.given
        if number < len(site.jobs):
            after = self._queued(site, number, Job(QUEUED, size=self.rules.sizes[number]))
            yield (
                f"job {number} is submitted",
                after._replace(given=number + 1, reported=put(site.reported, number, True)),
            )

    def _queued(self, site: Site, number: int, job: Job) -> Site:
        """Change a job and update the indexes: exactly the queued jobs are in the queue."""
        before, line, reserved = site.jobs[number], site.line, site.reserved
        if before.state == QUEUED and self.rules.has("who waits no more leaves the line"):
            line -= {(number, before.priority)}
        if job.state == QUEUED:
            line |= {(number, job.priority)}
        elif before.reserved >= 0:
            job = job._replace(reserved=-1)
            if self.rules.has("a job that does not wait has no reservation") and reserved[before.reserved] == number:
                reserved = put(reserved, before.reserved, -1)
        return site._replace(jobs=put(site.jobs, number, job), line=line, reserved=reserved)

    def _again(self, site: Site, number: int) -> Site:
        """Queue a job again after its run is gone. A cancelling job ends instead."""
        job = site.jobs[number]
        if job.state == CANCELLING and self.rules.has("who is cancelled is not queued again"):
            after = self._queued(site, number, Job(ENDED, job.attempt, job.token, size=job.size))
            return after._replace(ended=put(site.ended, number, True))
        attempt = job.attempt if self.rules.has("attempts count on") else 0
        return self._queued(site, number, Job(QUEUED, attempt, size=job.size, priority=job.priority))

    def _claims(self, site: Site) -> Iterator[tuple[str, Site]]:
        rules = self.rules
        if site.tokens == rules.claims or site.pause:
            return
        for number, job in enumerate(site.jobs):
            if job.state != QUEUED:
                continue
            for device in range(rules.devices):
                allocated = self._allocated(site, device) if rules.has("promises are counted") else 0
                is_others = site.reserved[device] not in {-1, number}
                if is_others and rules.has("a reservation is for one job"):
                    continue
                is_late = 0 <= site.ends[device] < (*rules.lasts, *(0,) * len(site.jobs))[number]
                if is_late and rules.has("a job is over before the end of its device"):
                    continue
                if site.workers[device] and allocated + job.size <= rules.capacity:
                    token = site.tokens + 1
                    mine = Job(ACTIVE, job.attempt + 1, token, device, rules.lease, job.size, priority=job.priority)
                    run = Run(number, device, token, mine.attempt, size=job.size)
                    wrong = f"job {number} has what is reserved for job {site.reserved[device]}" if is_others else ""
                    wrong = (
                        f"job {number} starts on device {device}, which ends before it is over" if is_late else wrong
                    )
                    yield (
                        f"device {device} claims job {number} (token {token})",
                        self._queued(site, number, mine)._replace(
                            claimed=site.claimed | {run}, tokens=token, wrong=wrong
                        ),
                    )

    def _allocated(self, site: Site, device: int) -> int:
        return sum(job.size for job in site.jobs if job.state in RUNS and job.device == device)

    def _owns(self, site: Site, run: Run) -> bool:
        job = site.jobs[run.job]
        return job.state in RUNS and (job.token == run.token or not self.rules.has("token"))

    def _starts(self, site: Site) -> Iterator[tuple[str, Site]]:
        for run in site.claimed:
            if not site.workers[run.device]:
                continue
            rest = site.claimed - {run}
            if site.pause and self.rules.has("no start in the pause"):
                yield f"run {run.token} is asked to wait", site._replace(claimed=rest)
            elif self._owns(site, run):
                job = site.jobs[run.job]
                if job.state == ACTIVE:
                    jobs = self._renewed(site, run)
                    allowed = site.allowed | {run._replace(left=self.rules.grace)}
                    yield f"run {run.token} may start", site._replace(jobs=jobs, claimed=rest, allowed=allowed)
                    back = Job(QUEUED, run.attempt - 1, size=job.size, priority=job.priority)
                    after = self._queued(site, run.job, back)
                else:
                    after = self._again(site, run.job)
                yield f"run {run.token} is given back", after._replace(claimed=rest)
            else:
                yield f"run {run.token} gets the answer that it is stale", site._replace(claimed=rest)

    def _renewed(self, site: Site, run: Run, more: int = 0) -> tuple[Job, ...]:
        return put(site.jobs, run.job, site.jobs[run.job]._replace(lease=self.rules.lease + more))

    def _offered(self, site: Site, run: Run) -> Site:
        """Adopt a run: the store accepts it if it knows nothing newer about the job."""
        job = site.jobs[run.job]
        newer = job.state in (QUEUED, HELD) and (run.attempt > job.attempt or not self.rules.has("nothing newer"))
        newer = newer and (run.size == job.size or not self.rules.has("what asked for less is not taken back"))
        unheard = job.state == UNKNOWN and run.job > site.last and not site.brought[run.job]
        if not (newer or unheard):
            return site
        size = run.size if unheard else job.size
        back = Job(ACTIVE, run.attempt, run.token, run.device, self.rules.lease, size, priority=job.priority)
        brought = put(site.brought, run.job, True) if unheard else site.brought
        reported = put(site.reported, run.job, True)
        wrong = f"job {run.job} was promised less than it holds" if run.size > size else ""
        return self._queued(site, run.job, back)._replace(brought=brought, reported=reported, wrong=wrong)

    def _heartbeat(self, site: Site, device: int, more: int = 0) -> Site:
        """Send the heartbeat of one device.

        It offers its runs, renews their leases and their heartbeats, and ends stale runs.
        """
        for run in sorted(run for run in site.alive if run.device == device):
            site = self._offered(site, run)
            rest = site.alive - {run}
            if self._owns(site, run):
                job = site.jobs[run.job]
                alive, over = rest | {run._replace(left=self.rules.grace + more)}, site.over
                if job.state == CANCELLING or job.asked:  # its worker ends the run
                    alive, over = rest, site.over | {run._replace(left=0, again=True)}
                site = site._replace(jobs=self._renewed(site, run, more), alive=alive, over=over)
            else:
                site = site._replace(alive=rest)
        return site

    def _heartbeats(self, site: Site) -> Iterator[tuple[str, Site]]:
        for device in range(self.rules.devices):
            if site.workers[device] and any(run.device == device for run in site.alive):
                if site.store == OPEN:
                    yield f"device {device} heartbeats", self._heartbeat(site, device)
                elif site.store == LOST:  # the store answers that it has no data
                    yield f"device {device} renews what it runs", self._confirmed(site, device)

    def _reported(self, site: Site) -> Iterator[tuple[str, Site]]:
        """Report an end, late or again. The run directory keeps it until the history has it."""
        for run in site.over:
            if not site.workers[run.device]:
                continue
            offered = self._offered(site, run)
            job = offered.jobs[run.job]
            if self._owns(offered, run):
                was_taken_back = run.token in site.taken_back
                wrong = f"job {run.job} ends by a run that was taken back" if was_taken_back else ""
                if run.again:
                    after = self._again(offered, run.job)
                else:
                    state = ENDED if self.rules.has("an end is final") else QUEUED
                    after = self._queued(offered, run.job, Job(state, job.attempt, job.token, size=job.size))
                    after = after._replace(ended=put(site.ended, run.job, True))
                yield f"the end of run {run.token} is reported", after._replace(wrong=wrong)
            else:
                yield f"the end of run {run.token} is reported too late", site._replace(over=site.over - {run})

    def _recorded(self, site: Site) -> Iterator[tuple[str, Site]]:
        """Copy the store's state to the history.

        The recorder reads the outbox in order, so the history is always an earlier state of the store.
        """
        database = tuple(job._replace(lease=0, reserved=-1, asked=False) for job in site.jobs)
        if database != site.database:
            yield "the history hears of all", site._replace(database=database)

    def _reaped(self, site: Site) -> Iterator[tuple[str, Site]]:
        if site.was_away:
            if self.rules.has("grace after an absence"):
                yield "the reaper was away", site._replace(was_away=False, grace=self.rules.lease)
                return
            site = site._replace(was_away=False)
        for number, job in enumerate(site.jobs):
            if job.state in RUNS and job.lease == 0 and site.grace == 0:
                after = self._again(site, number)
                yield (
                    f"the lease of run {job.token} is taken back",
                    after._replace(taken_back=site.taken_back | {job.token}),
                )

    # ---- users, and ticks that promote and reserve -----------------------------------------------------------------

    def _changed(self, site: Site) -> Iterator[tuple[str, Site]]:
        acts = self.rules.acts
        for number, job in enumerate(site.jobs):
            waits = job.state in (QUEUED, HELD)
            if "cancel" in acts and (waits or job.state == ACTIVE):
                state = ENDED if waits else CANCELLING
                after = self._queued(site, number, job._replace(state=state))
                ended = put(site.ended, number, waits)
                yield f"job {number} is cancelled", after._replace(cancelled=site.cancelled | {number}, ended=ended)
            if "hold" in acts and waits:
                state, word = (HELD, "held") if job.state == QUEUED else (QUEUED, "released")
                yield f"job {number} is {word}", self._queued(site, number, job._replace(state=state))
            if "age" in acts and job.state == QUEUED and job.priority == 0:
                yield f"job {number} is promoted", self._queued(site, number, job._replace(priority=1))
            may_be_edited = waits or (job.state == ACTIVE and not self.rules.has("only what waits is edited"))
            if "edit" in acts and may_be_edited:
                size = 3 - job.size
                yield f"job {number} is edited to {size}", self._queued(site, number, job._replace(size=size))

        for device in range(self.rules.devices if "end" in acts else 0):
            if site.ends[device] == -1:
                ends = put(site.ends, device, self.rules.end)
                yield f"device {device} gets an end", site._replace(ends=ends)
            else:
                yield f"device {device} is resumed", site._replace(ends=put(site.ends, device, -1))

    def _reserved(self, site: Site) -> Iterator[tuple[str, Site]]:
        """Reserve a device for a job that fits on none now, or drop the reservation. A run there may be preempted."""
        acts = self.rules.acts & {"reserve", "preempt"}
        for number, job in enumerate(site.jobs):
            if not acts or job.state != QUEUED:
                continue
            if job.reserved >= 0:
                after = site._replace(jobs=put(site.jobs, number, job._replace(reserved=-1)))
                yield (
                    f"nothing is reserved for job {number} any more",
                    after._replace(reserved=put(site.reserved, job.reserved, -1)),
                )
                continue
            for device in range(self.rules.devices):
                is_free = site.reserved[device] == -1 or not self.rules.has("one device is reserved for one")
                if not is_free or self._allocated(site, device) + job.size <= self.rules.capacity:
                    continue
                jobs = put(site.jobs, number, job._replace(reserved=device))
                after = site._replace(jobs=jobs, reserved=put(site.reserved, device, number))
                yield f"device {device} is reserved for job {number}", after
                if "preempt" in acts:
                    asked = tuple(
                        each._replace(asked=True) if each.state == ACTIVE and each.device == device else each
                        for each in after.jobs
                    )
                    yield f"who runs on device {device} is being preempted for job {number}", after._replace(jobs=asked)

    # ---- processes and time ----------------------------------------------------------------------------------------

    def _processes(self, site: Site) -> Iterator[tuple[str, Site]]:
        for run in site.allowed:
            if site.workers[run.device]:
                rest = site.allowed - {run}
                yield f"run {run.token} starts", site._replace(allowed=rest, alive=site.alive | {run})
        for run in site.alive:
            rest = site.alive - {run}
            if "requeue" in self.rules.acts:
                over = site.over | {run._replace(left=0, again=True)}
                yield f"run {run.token} asks to be queued again", site._replace(alive=rest, over=over)
            yield f"run {run.token} ends", site._replace(alive=rest, over=site.over | {run._replace(left=0)})

    def _tick(self, site: Site) -> Site:
        rules = self.rules
        if rules.one_host:  # a tick has many heartbeats: a live worker always reaches its store
            for device, is_up in enumerate(site.workers):
                if is_up:
                    site = self._heartbeat(site, device, 1) if site.store == OPEN else self._confirmed(site, device, 1)
        fenced = rules.has("fence")
        return site._replace(
            jobs=tuple(job._replace(lease=max(0, job.lease - 1)) for job in site.jobs),
            allowed=_aged(site.allowed, fenced=fenced),
            alive=_aged(site.alive, fenced=fenced),
            pause=site.pause if self._is_slept_through(site) else max(0, site.pause - 1),
            grace=max(0, site.grace - 1),
            ends=tuple(end - 1 if end > 0 else end for end in site.ends),
        )

    def _is_slept_through(self, site: Site) -> bool:
        return site.store == DOWN and self.rules.has("pause while the store is there")

    def _confirmed(self, site: Site, device: int, more: int = 0) -> Site:
        left = self.rules.grace + more
        alive = frozenset(run._replace(left=left) if run.device == device else run for run in site.alive)
        return site._replace(alive=alive)

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _faults(self, site: Site) -> Iterator[tuple[str, Site]]:
        crashes, stops, losses = site.faults
        for device, is_up in enumerate(site.workers):
            if not is_up:
                yield f"worker {device} is back", site._replace(workers=put(site.workers, device, True))
            elif crashes:
                yield (
                    f"worker {device} dies",
                    site._replace(
                        workers=put(site.workers, device, False),
                        claimed=frozenset(run for run in site.claimed if run.device != device),
                        allowed=frozenset(run for run in site.allowed if run.device != device),
                        faults=(crashes - 1, stops, losses),
                    ),
                )
        if site.store == OPEN and stops:
            yield "the store stops", site._replace(store=DOWN, faults=(crashes, stops - 1, losses))
        if site.store == DOWN:
            yield "the store is back", site._replace(store=OPEN, was_away=True)
        if site.store == OPEN and losses:
            yield "the store loses its data", self._lost(site)._replace(faults=(crashes, stops, losses - 1))
        if site.store == LOST:
            yield "the store is rebuilt", self._rebuilt(site)

    def _lost(self, site: Site) -> Site:
        """Drop all data of the store.

        Promises about events that the history did not have are dropped too, because the store cannot keep them.
        """
        known = tuple(job.state != UNKNOWN for job in site.database)
        return site._replace(
            store=LOST,
            jobs=(Job(),) * len(site.jobs),
            taken_back=frozenset(),
            reported=tuple(reported and here for reported, here in zip(site.reported, known, strict=True)),
            ended=tuple(job.state == ENDED for job in site.database),
            pause=0,
            grace=0,
            was_away=False,
            brought=(False,) * len(site.jobs),
            line=frozenset(),
            reserved=(-1,) * len(site.reserved),
            cancelled=frozenset(n for n in site.cancelled if site.database[n].state in (CANCELLING, ENDED)),
        )

    def _rebuilt(self, site: Site) -> Site:
        database = site.database if self.rules.has("what the history knows comes back") else (Job(),) * len(site.jobs)
        jobs = tuple(job._replace(lease=self.rules.lease) if job.state in RUNS else job for job in database)
        line = frozenset((n, job.priority) for n, job in enumerate(database) if job.state == QUEUED)
        pause = self.rules.lease if self.rules.has("pause after a loss") else 0
        last = max((n for n, job in enumerate(site.database) if job.state != UNKNOWN), default=-1)
        return site._replace(store=OPEN, jobs=jobs, line=line, pause=pause, last=last)

    # ---- promises --------------------------------------------------------------------------------------------------

    def broken(self, site: Site) -> str | None:
        """Return the broken promise, or None."""
        if site.wrong:
            return site.wrong
        if site.store != OPEN:
            return self._twice(site) or self._too_full(site)
        found = self._twice(site) or self._too_full(site) or self._forgotten(site)
        return found or self._tokens_shrank(site) or self._left_behind(site)

    def _twice(self, site: Site) -> str | None:
        running = [run.job for run in site.alive]
        twice = next((job for job in running if running.count(job) > 1), None)
        return None if twice is None else f"job {twice} runs twice"

    def _too_full(self, site: Site) -> str | None:
        for device in range(self.rules.devices):
            held = sum(run.size for run in site.alive if run.device == device)
            is_whole = self._is_whole(site)
            # A store that was rebuilt from an outdated history also counts runs that are over: see model.md.
            most = max(held, self._allocated(site, device)) if is_whole else held
            if most > self.rules.capacity:
                return f"device {device} holds {most} of {self.rules.capacity}"
        return None

    def _forgotten(self, site: Site) -> str | None:
        for number, job in enumerate(site.jobs):
            if site.reported[number] and job.state == UNKNOWN:
                return f"job {number} is gone"
            if site.ended[number] and job.state != ENDED:
                return f"job {number} had ended"
            if number in site.cancelled and job.state in (QUEUED, HELD, ACTIVE):
                return f"job {number} was cancelled"
        return None

    def _is_whole(self, site: Site) -> bool:
        """Return whether the store has not lost its data yet."""
        return site.faults[2] == self.rules.faults[2]

    def _tokens_shrank(self, site: Site) -> str | None:
        """Check that each run of a job has its own attempt, and that no attempt is above the job's.

        The check covers all runs that any part of the site knows. With an outdated history a rebuilt store may issue an
        attempt again. Then only the rest of the token differs.
        """
        if not self._is_whole(site):
            return None
        seen = set()
        for run in (*site.claimed, *site.allowed, *site.alive, *site.over):
            if (run.job, run.attempt) in seen or site.jobs[run.job].attempt < run.attempt:
                return f"attempts of job {run.job} do not grow"
            seen.add((run.job, run.attempt))
        return None

    def _left_behind(self, site: Site) -> str | None:
        for number, job in enumerate(site.jobs):
            lines = [priority for each, priority in site.line if each == number]
            if lines != ([job.priority] if job.state == QUEUED else []):
                return f"job {number} is {job.state} and stands in {len(lines)} lines"
            if (job.reserved >= 0 and site.reserved[job.reserved] != number) or (
                number in site.reserved and (job.reserved < 0 or site.reserved[job.reserved] != number)
            ):
                return f"what is reserved for job {number} is recorded in two ways"
        return None


def _aged(runs: frozenset[Run], *, fenced: bool) -> frozenset[Run]:
    if not fenced:
        return runs
    return frozenset(run._replace(left=run.left - 1) for run in runs if run.left > 1)
