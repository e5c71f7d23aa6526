"""Carries out the kills, and records what was hit, and when."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.database import Database
from benchmarks.chaos.moment import Moments
from benchmarks.chaos.plan import BURST_S, Breaks, KillPlan
from benchmarks.chaos.site import Operator, Role, Site, SiteProcess
from gpuqueue.model.event import Act

#: How long to wait for a victim before the kill is dropped, in seconds.
VICTIM_S = 20.0
POLL_S = 0.05
#: How long to wait for a step, to kill in the middle of it, in seconds.
ACT_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """A kill that was carried out.

    ``at`` is wall-clock time in seconds, ``until`` the end of the outage (for most kills the same). ``shims`` and
    ``jobs`` are the tokens whose shim, or whose processes, may have been hit; ``device`` is that of the worker that was
    hit.
    """

    plan: KillPlan
    at: float
    until: float
    what: str
    device: str | None = None
    shims: frozenset[str] = field(default_factory=frozenset)
    jobs: frozenset[str] = field(default_factory=frozenset)


class Killer:
    """Carries out the plan, each kill when its turn has come."""

    def __init__(
        self, site: Site, operator: Operator, database: Database, plans: Sequence[KillPlan], progress: Callable[[], int]
    ) -> None:
        #: The kills, in order, and the plans without a victim.
        self.kills: list[Kill] = []
        self.dropped: list[KillPlan] = []
        self._site = site
        self._operator = operator
        self._database = database
        self._plans = plans
        self._progress = progress
        self._turn = float("inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="chaos-killer", daemon=True)
        self._timers: list[threading.Timer] = []
        self._moments = Moments(site.settings.redis_url)

    def start(self) -> None:
        """Start killing."""
        self._thread.start()

    @property
    def behind(self) -> bool:
        """Return whether a kill's turn has come.

        A job that is submitted too early would end before the kill.
        """
        return self._progress() >= self._turn

    @property
    def done(self) -> bool:
        """Return whether all kills are done and all outages are over."""
        return not self._thread.is_alive() and not any(timer.is_alive() for timer in self._timers)

    def stop(self) -> None:
        """Stop killing, and wait for the end of the outages."""
        self._stopping.set()
        self._thread.join()
        for timer in self._timers:
            timer.join()
        self._moments.close()

    def _loop(self) -> None:
        for plan in self._plans:
            self._turn = plan.after_jobs
            while not plan.burst and self._progress() < plan.after_jobs:
                if self._stopping.wait(POLL_S):
                    return
            if self._stopping.wait(min(plan.delay_s, BURST_S) if plan.burst else plan.delay_s):
                return
            self._carry_out(plan)
        self._turn = float("inf")

    def _carry_out(self, plan: KillPlan) -> None:
        by_role = {
            Breaks.WORKER_KILL: (Role.WORKER, signal.SIGKILL),
            Breaks.WORKER_TERM: (Role.WORKER, signal.SIGTERM),
            Breaks.SHIM_KILL: (Role.SHIM, signal.SIGKILL),
            Breaks.JOB_KILL: (Role.JOB, signal.SIGKILL),
            Breaks.STORE_KILL: (Role.STORE, signal.SIGKILL),
            Breaks.RECORDER_KILL: (Role.RECORDER, signal.SIGKILL),
            Breaks.HOST_KILL: (Role.HOST, signal.SIGKILL),
        }
        if plan.breaks in by_role:
            self._kill_one(plan, *by_role[plan.breaks])
        elif plan.breaks in {Breaks.STORE_STOP, Breaks.WORKER_STOP}:
            self._stop_one(plan, Role.STORE if plan.breaks is Breaks.STORE_STOP else Role.WORKER)
        elif plan.breaks is Breaks.DATABASE:
            at = time.time()
            self._note(plan, at, self._database.be_away(plan.hold_s), until=at + plan.hold_s)
        else:
            self._kill_many(plan)

    def _kill_one(self, plan: KillPlan, role: Role, number: signal.Signals) -> None:
        hit = self._send(plan, role, number)
        if hit is None:
            return
        at, victim = hit
        self._note(
            plan,
            at,
            str(victim),
            device=victim.of if role is Role.WORKER else None,
            shims=frozenset({victim.of} if role is Role.SHIM else ()),
            jobs=frozenset({victim.of} if role is Role.JOB else ()),
        )

    def _send(self, plan: KillPlan, role: Role, number: signal.Signals) -> tuple[float, SiteProcess] | None:
        """Send a signal to a victim; return when and to which process. A victim that has just ended does not count."""
        deadline = time.monotonic() + VICTIM_S
        while (victim := self._victim(plan, role, deadline)) is not None:
            at = time.time()
            if victim.identity.send(number):
                return at, victim
        self.dropped.append(plan)
        return None

    def _victim(self, plan: KillPlan, role: Role, deadline: float) -> SiteProcess | None:
        while True:
            alive = list(self._site.processes(role))
            if alive:
                busy = self._in_the_act(plan, role, alive) if plan.in_the_act else None
                return busy or alive[int(plan.which * len(alive))]
            if time.monotonic() > deadline or self._stopping.wait(POLL_S):
                return None

    def _in_the_act(self, plan: KillPlan, role: Role, alive: Sequence[SiteProcess]) -> SiteProcess | None:
        """Return the process that takes the next step, a moment after that step began, or None."""
        act = {Role.WORKER: Act.CLAIM, Role.SHIM: Act.STARTED, Role.JOB: Act.STARTED}.get(role)
        fields = self._moments.next(act, ACT_S)
        if fields is None:
            return None
        who = {Role.WORKER: fields.get("worker", "//").split("/")[1]}.get(role, fields.get("token", ""))
        if act is Act.STARTED:  # the processes of the run are only starting now
            alive = self._of_run(role, who)
        elif act is None:
            who = alive[0].of
        self._stopping.wait(plan.lag_s)
        return next((each for each in alive if each.of == who), None)

    def _of_run(self, role: Role, token: str) -> list[SiteProcess]:
        deadline = time.monotonic() + ACT_S
        while time.monotonic() < deadline and not self._stopping.is_set():
            found = [each for each in self._site.processes(role) if each.of == token]
            if found:
                return found
        return []

    def _stop_one(self, plan: KillPlan, role: Role) -> None:
        hit = self._send(plan, role, signal.SIGSTOP)
        if hit is None:
            return
        at, victim = hit
        timer = threading.Timer(plan.hold_s, victim.identity.send, (signal.SIGCONT,))
        timer.start()
        self._timers.append(timer)
        device = victim.of if role is Role.WORKER else None
        self._note(plan, at, f"{victim} stopped for {plan.hold_s:.1f} s", until=at + plan.hold_s, device=device)

    def _kill_many(self, plan: KillPlan) -> None:
        """Kill many processes at once.

        Shims are killed before jobs, as the kernel kills them together; no shim may see its job die first.
        """
        group = [Role.HOST, Role.WORKER, Role.RECORDER]
        if plan.breaks is Breaks.MACHINE_KILL:
            group += [Role.STORE, Role.SHIM, Role.JOB]
        if plan.breaks is Breaks.AWAY:
            self._operator.leave_down(plan.hold_s)
        hit: list[SiteProcess] = []
        for _ in range(3):  # hosts and jobs may start processes meanwhile
            alive = sorted(self._site.processes(*group), key=lambda each: group.index(each.role))
            hit += [each for each in alive if each.identity.send(signal.SIGKILL)]
        at = time.time()
        self._note(
            plan,
            at,
            f"{len(hit)} processes",
            until=at + plan.hold_s,
            shims=frozenset(each.of for each in hit if each.role is Role.SHIM),
            jobs=frozenset(each.of for each in hit if each.role in {Role.SHIM, Role.JOB}),
        )

    def _note(self, plan: KillPlan, at: float, what: str, *, until: float | None = None, **hit: object) -> None:
        self.kills.append(Kill(plan=plan, at=at, until=until or at, what=what, **hit))  # type: ignore[arg-type]
