"""A tiny site as a state machine: what docs/explanation/model.md describes in words.

Each step is one atomic act: a script, a worker's act, a shim's, a fault, or a tick of the clock. Any of them may come
whenever it is possible, so a message that is late is one whose step comes late. What time does is counted down: a lease
of LEASE ticks, a shim that ends its run after GRACE ticks without a word, a pause of LEASE ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

UNKNOWN, QUEUED, ACTIVE, ENDED = "unknown", "queued", "active", "ended"
OPEN, DOWN, LOST = "open", "down", "lost"

#: Each rule that can be taken out, and where the code has it.
RULES = {
    "token": "owns() in lua/lib.lua: a write about a run counts only with the token of the job's current run",
    "fence": "workers/shim.py: nobody vouched for the run for its grace, so its processes are ended",
    "promises are counted": "promise() in lua/lib.lua: what is available is derived from the live leases",
    "grace after an absence": "reap.lua: whoever was away grants one more lease before anything is taken back",
    "pause after a loss": "claim.lua: nothing is claimed for one lease after a rebuild",
    "pause while the store is there": "reap.lua: the pause is longer by the time that the store was away",
    "no start in the pause": "started.lua: an older claim that the book still had does not start in the pause",
    "nothing newer": "adopt.lua: a run is taken back only if its attempt is above the job's",
    "what the book knows comes back": "restore.lua, before the store opens",
    "ends are kept": "finish.lua, lose.lua: an end is an end",
}


class Job(NamedTuple):
    """A job as the store, or the book, has it. ``token`` 0 is none; ``lease`` is in ticks, 0 has run out."""

    state: str = UNKNOWN
    attempt: int = 0
    token: int = 0
    device: int = -1
    lease: int = 0


class Run(NamedTuple):
    """A run as its worker has it. ``left`` is for how many ticks its processes may live, or start, without a word."""

    job: int
    device: int
    token: int
    attempt: int
    left: int = 0


class Site(NamedTuple):
    """All that there is at one moment. What is not of the site itself is remembered to judge by it."""

    store: str
    jobs: tuple[Job, ...]
    book: tuple[Job, ...]
    workers: tuple[bool, ...]
    claimed: frozenset[Run] = frozenset()  # in a worker's hand; it has not asked for the start
    allowed: frozenset[Run] = frozenset()  # the store said yes, no process yet
    alive: frozenset[Run] = frozenset()  # processes under a shim
    over: frozenset[Run] = frozenset()  # they ended by themselves, and the run directory has the end
    pause: int = 0
    grace: int = 0
    was_away: bool = False
    last: int = -1  # the last id that the book knew when the store was opened
    brought: tuple[bool, ...] = ()  # brought back by a worker, though the store never heard of it
    given: int = 0  # ids; a rebuilt store goes on above all that may have been given out
    tokens: int = 0
    taken_back: frozenset[int] = frozenset()  # tokens of runs that this store has taken back
    told: tuple[bool, ...] = ()  # the id was printed, and is not of the tail that a lost store takes along
    ended: tuple[bool, ...] = ()  # this store, or the book, has heard of its end
    wrong: str = ""  # a step did what no step may do
    faults: tuple[int, int, int] = (0, 0, 0)  # crashes, stops of the store, losses that may still come


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the site is made of, and each rule that can be taken out."""

    sizes: tuple[int, ...] = (2, 1)
    capacity: int = 2
    devices: int = 2
    lease: int = 2
    grace: int = 1
    claims: int = 2
    faults: tuple[int, int, int] = (1, 1, 1)
    one_host: bool = False  # the store is a socket on the workers' host: they vouch for their runs while it is away
    taken_out: frozenset[str] = field(default_factory=frozenset)

    def has(self, rule: str) -> bool:
        """Return whether a rule is in force."""
        return rule not in self.taken_out

    def first(self) -> Site:
        """Return a site at which nothing has happened yet."""
        count = len(self.sizes)
        nothing = (Job(),) * count
        no = (False,) * count
        return Site(OPEN, nothing, nothing, (True,) * self.devices, brought=no, told=no, ended=no, faults=self.faults)


def put(row: tuple, place: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return *row* with another value in one place."""
    return (*row[:place], value, *row[place + 1 :])


class Model:
    """The steps of a site under some rules, and the promises that must hold in every state."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def steps(self, site: Site) -> Iterator[tuple[str, Site]]:
        """Yield every step that is possible now."""
        if site.store == OPEN:
            yield from self._submitted(site)
            yield from self._claims(site)
            yield from self._starts(site)
            yield from self._told(site)
            yield from self._recorded(site)
            yield from self._reaped(site)
        if not self.rules.one_host:
            yield from self._beats(site)
        yield from self._processes(site)
        yield from self._faults(site)
        yield "a tick", self._tick(site)

    # ---- scripts ---------------------------------------------------------------------------------------------------

    def _submitted(self, site: Site) -> Iterator[tuple[str, Site]]:
        number = site.given
        if number < len(site.jobs):
            after = site._replace(jobs=put(site.jobs, number, Job(QUEUED)), told=put(site.told, number, True))
            yield f"job {number} is submitted", after._replace(given=number + 1)

    def _claims(self, site: Site) -> Iterator[tuple[str, Site]]:
        rules = self.rules
        if site.tokens == rules.claims or site.pause:
            return
        for number, job in enumerate(site.jobs):
            if job.state != QUEUED:
                continue
            for device in range(rules.devices):
                promised = self._promised(site, device) if rules.has("promises are counted") else 0
                if site.workers[device] and promised + rules.sizes[number] <= rules.capacity:
                    token = site.tokens + 1
                    mine = Job(ACTIVE, job.attempt + 1, token, device, rules.lease)
                    run = Run(number, device, token, mine.attempt)
                    yield (
                        f"device {device} claims job {number} (token {token})",
                        site._replace(jobs=put(site.jobs, number, mine), claimed=site.claimed | {run}, tokens=token),
                    )

    def _promised(self, site: Site, device: int) -> int:
        return sum(
            size
            for size, job in zip(self.rules.sizes, site.jobs, strict=True)
            if job.state == ACTIVE and job.device == device
        )

    def _owns(self, site: Site, run: Run) -> bool:
        job = site.jobs[run.job]
        return job.state == ACTIVE and (job.token == run.token or not self.rules.has("token"))

    def _starts(self, site: Site) -> Iterator[tuple[str, Site]]:
        for run in site.claimed:
            if not site.workers[run.device]:
                continue
            rest = site.claimed - {run}
            if site.pause and self.rules.has("no start in the pause"):
                yield f"run {run.token} is told to wait", site._replace(claimed=rest)
            elif self._owns(site, run):
                jobs = self._renewed(site, run)
                allowed = site.allowed | {run._replace(left=self.rules.grace)}
                yield f"run {run.token} may start", site._replace(jobs=jobs, claimed=rest, allowed=allowed)
                back = Job(QUEUED, run.attempt - 1)
                yield (
                    f"run {run.token} is given back",
                    site._replace(jobs=put(site.jobs, run.job, back), claimed=rest),
                )
            else:
                yield f"run {run.token} is told that it is stale", site._replace(claimed=rest)

    def _renewed(self, site: Site, run: Run, more: int = 0) -> tuple[Job, ...]:
        return put(site.jobs, run.job, site.jobs[run.job]._replace(lease=self.rules.lease + more))

    def _offered(self, site: Site, run: Run) -> Site:
        """Adopt: the store takes a run back if nothing newer is known of its job."""
        job = site.jobs[run.job]
        newer = job.state == QUEUED and (run.attempt > job.attempt or not self.rules.has("nothing newer"))
        unheard = job.state == UNKNOWN and run.job > site.last and not site.brought[run.job]
        if not (newer or unheard):
            return site
        back = Job(ACTIVE, run.attempt, run.token, run.device, self.rules.lease)
        brought = put(site.brought, run.job, True) if unheard else site.brought
        told = put(site.told, run.job, True)
        return site._replace(jobs=put(site.jobs, run.job, back), brought=brought, told=told)

    def _beaten(self, site: Site, device: int, more: int = 0) -> Site:
        """Beat for one device: it offers what it runs, renews its leases, vouches; what is stale is ended."""
        for run in sorted(run for run in site.alive if run.device == device):
            site = self._offered(site, run)
            rest = site.alive - {run}
            if self._owns(site, run):
                alive = rest | {run._replace(left=self.rules.grace + more)}
                site = site._replace(jobs=self._renewed(site, run, more), alive=alive)
            else:
                site = site._replace(alive=rest)
        return site

    def _beats(self, site: Site) -> Iterator[tuple[str, Site]]:
        for device in range(self.rules.devices):
            if site.workers[device] and any(run.device == device for run in site.alive):
                if site.store == OPEN:
                    yield f"device {device} beats", self._beaten(site, device)
                elif site.store == LOST:  # it answers, and says that it knows nothing
                    yield f"device {device} vouches for what it runs", self._vouched(site, device)

    def _told(self, site: Site) -> Iterator[tuple[str, Site]]:
        """An end is told, late or again: the run directory keeps it until the book has it."""
        for run in site.over:
            if not site.workers[run.device]:
                continue
            offered = self._offered(site, run)
            job = offered.jobs[run.job]
            if self._owns(offered, run):
                was_taken_back = run.token in site.taken_back
                wrong = f"job {run.job} ends by a run that was taken back" if was_taken_back else ""
                ended = Job(ENDED if self.rules.has("ends are kept") else QUEUED, job.attempt, job.token)
                yield (
                    f"the end of run {run.token} is told",
                    offered._replace(
                        jobs=put(offered.jobs, run.job, ended), ended=put(site.ended, run.job, True), wrong=wrong
                    ),
                )
            else:
                yield f"the end of run {run.token} is told too late", site._replace(over=site.over - {run})

    def _recorded(self, site: Site) -> Iterator[tuple[str, Site]]:
        """The recorder reads the outbox in its order: what the book knows is what the store knew at some moment."""
        book = tuple(job._replace(lease=0) for job in site.jobs)
        if book != site.book:
            yield "the book hears of all", site._replace(book=book)

    def _reaped(self, site: Site) -> Iterator[tuple[str, Site]]:
        if site.was_away:
            if self.rules.has("grace after an absence"):
                yield "the reaper was away", site._replace(was_away=False, grace=self.rules.lease)
                return
            site = site._replace(was_away=False)
        for number, job in enumerate(site.jobs):
            if job.state == ACTIVE and job.lease == 0 and site.grace == 0:
                back = Job(QUEUED, job.attempt)
                yield (
                    f"the lease of run {job.token} is taken back",
                    site._replace(jobs=put(site.jobs, number, back), taken_back=site.taken_back | {job.token}),
                )

    # ---- processes and time ----------------------------------------------------------------------------------------

    def _processes(self, site: Site) -> Iterator[tuple[str, Site]]:
        for run in site.allowed:
            if site.workers[run.device]:
                rest = site.allowed - {run}
                yield f"run {run.token} starts", site._replace(allowed=rest, alive=site.alive | {run})
        for run in site.alive:
            rest = site.alive - {run}
            yield f"run {run.token} ends", site._replace(alive=rest, over=site.over | {run._replace(left=0)})

    def _tick(self, site: Site) -> Site:
        rules = self.rules
        if rules.one_host:  # many beats go into a tick: nothing keeps a worker that lives from its store
            for device, is_up in enumerate(site.workers):
                if is_up:
                    site = self._beaten(site, device, 1) if site.store == OPEN else self._vouched(site, device, 1)
        fenced = rules.has("fence")
        return site._replace(
            jobs=tuple(job._replace(lease=max(0, job.lease - 1)) for job in site.jobs),
            allowed=_aged(site.allowed, fenced=fenced),
            alive=_aged(site.alive, fenced=fenced),
            pause=site.pause if self._is_slept_through(site) else max(0, site.pause - 1),
            grace=max(0, site.grace - 1),
        )

    def _is_slept_through(self, site: Site) -> bool:
        return site.store == DOWN and self.rules.has("pause while the store is there")

    def _vouched(self, site: Site, device: int, more: int = 0) -> Site:
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
        """Take everything, and do not hold it to what it cannot keep: what the book had not heard of."""
        known = tuple(job.state != UNKNOWN for job in site.book)
        return site._replace(
            store=LOST,
            jobs=(Job(),) * len(site.jobs),
            taken_back=frozenset(),
            told=tuple(told and here for told, here in zip(site.told, known, strict=True)),
            ended=tuple(job.state == ENDED for job in site.book),
            pause=0,
            grace=0,
            was_away=False,
            brought=(False,) * len(site.jobs),
        )

    def _rebuilt(self, site: Site) -> Site:
        book = site.book if self.rules.has("what the book knows comes back") else (Job(),) * len(site.jobs)
        jobs = tuple(job._replace(lease=self.rules.lease) if job.state == ACTIVE else job for job in book)
        pause = self.rules.lease if self.rules.has("pause after a loss") else 0
        last = max((n for n, job in enumerate(site.book) if job.state != UNKNOWN), default=-1)
        return site._replace(store=OPEN, jobs=jobs, pause=pause, last=last)

    # ---- promises --------------------------------------------------------------------------------------------------

    def broken(self, site: Site) -> str | None:
        """Return which promise is broken, or None."""
        if site.wrong:
            return site.wrong
        return self._twice(site) or self._too_full(site) or (self._forgotten(site) if site.store == OPEN else None)

    def _twice(self, site: Site) -> str | None:
        running = [run.job for run in site.alive]
        twice = next((job for job in running if running.count(job) > 1), None)
        return None if twice is None else f"job {twice} runs twice"

    def _too_full(self, site: Site) -> str | None:
        for device in range(self.rules.devices):
            held = sum(self.rules.sizes[run.job] for run in site.alive if run.device == device)
            is_whole = site.faults[2] == self.rules.faults[2]
            # A store that was rebuilt from a book which was behind also counts runs that are over: see model.md.
            most = max(held, self._promised(site, device)) if is_whole else held
            if most > self.rules.capacity:
                return f"device {device} holds {most} of {self.rules.capacity}"
        return None

    def _forgotten(self, site: Site) -> str | None:
        for number, job in enumerate(site.jobs):
            if site.told[number] and job.state == UNKNOWN:
                return f"job {number} is gone"
            if site.ended[number] and job.state != ENDED:
                return f"job {number} had ended"
        return None


def _aged(runs: frozenset[Run], *, fenced: bool) -> frozenset[Run]:
    if not fenced:
        return runs
    return frozenset(run._replace(left=run.left - 1) for run in runs if run.left > 1)
