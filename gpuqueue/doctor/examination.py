"""Examines the whole site in parallel, with a time limit for each part, and yields the findings by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from gpuqueue.doctor import history, machines, processes, queue, state, store, values
from gpuqueue.model.event import Cursor
from gpuqueue.model.finding import Finding, Grade, examined, name_of, problem, unknown
from gpuqueue.queue.diagnostics import QueueFacts, queue_facts
from gpuqueue.system.process import is_locked
from gpuqueue.system.timed_call import CallFailed, TimedCall

T = TypeVar("T")

#: Time limit for gathering facts, in seconds. The store's and the database's own limits are 5 and 10 s.
POLL_S = 10.0
#: Time limits of the integrity check of the history's file, in seconds: by default, and with ``--deep``.
INTEGRITY_S, DEEP_INTEGRITY_S = 1.0, 600.0

#: Exit code for the worst grade. Monitoring plugins use 2 for critical, but here 2 means wrong usage.
#: docs/reference/doctor.md translates.
EXIT_CODES: Mapping[Grade, int] = {
    Grade.OK: 0,
    Grade.NOTE: 0,
    Grade.UNKNOWN: 6,
    Grade.WARNING: 6,
    Grade.PROBLEM: 1,
}

#: Sections that are examined here, with their checks. workers.doctor.examination has three more.
ROOMS: Mapping[str, Sequence[Callable[..., object]]] = {
    "settings": values.CHECKS,
    "state": state.CHECKS,
    "store": store.CHECKS,
    "queue": queue.CHECKS,
    "history": history.CHECKS,
    "processes": processes.CHECKS,
}
#: All sections, in the order of the report. A section depends on those before it.
ORDER = ("settings", "state", "host", "python", "store", "queue", "history", "processes", "runs")


def examine(environ: Mapping[str, str], *, deep: bool = False) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each section with its findings, in order, as soon as they are known."""
    try:
        facts = TimedCall(lambda: values.facts_of(environ), POLL_S).result()
    except CallFailed as why:  # without settings no other part can be located
        seen, remedy = f"the settings cannot be looked at: {why}", "is the disk of the home directory there?"
        yield "settings", [replace(problem(seen, remedy), room="settings", check=name_of(values.file))]
        return
    yield from _Examination(facts, values.outside_of_jobs(environ), deep=deep).rooms()


class _Examination:
    """One examination of the site. All parts start when the object is made; sections follow as parts finish."""

    def __init__(self, facts: values.Facts, environ: Mapping[str, str], *, deep: bool) -> None:
        self._values, settings = facts, facts.settings
        integrity_s = DEEP_INTEGRITY_S if deep else INTEGRITY_S
        machines_s = machines.ASK_S + (machines.DEEP_S if deep else 0.0) + 1.0
        self._settings = settings
        self._machines = TimedCall(lambda: machines.ask(environ, deep=deep), machines_s)
        self._store = TimedCall(lambda: store.store_facts(settings), POLL_S)
        self._database = TimedCall(lambda: history.facts_of(settings, integrity_s=integrity_s), POLL_S + integrity_s)
        self._state = TimedCall(lambda: state.state_facts(settings), POLL_S)
        self._processes = TimedCall(lambda: processes.process_facts(settings, environ), POLL_S)
        self._moving = TimedCall(lambda: is_locked(settings.state_dir / "up.lock"), POLL_S)
        self._queue: QueueFacts | CallFailed | None = None

    def rooms(self) -> Iterator[tuple[str, list[Finding]]]:
        """Yield each section with its findings as soon as they are known."""
        reported: Mapping[str, Callable[[], Iterator[Finding]]] = {
            "settings": lambda: examined("settings", self._values, values.CHECKS),
            "state": self._report_state,
            "host": lambda: self._report_machines("host"),
            "python": lambda: self._report_machines("python"),
            "store": self._report_store,
            "queue": self._report_queue,
            "history": self._report_history,
            "processes": self._tell_processes,
            "runs": lambda: self._report_machines("runs"),
        }
        for room in ORDER:
            yield room, list(reported[room]())

    def _report_state(self) -> Iterator[Finding]:
        try:
            facts = self._state.result()
        except CallFailed as why:
            seen, remedy = (
                f"{self._settings.state_dir} cannot be looked at: {why}",
                "is its disk there, and may we look?",
            )
            yield replace(problem(seen, remedy), room="state", check=name_of(state.directory))
        else:
            yield from examined("state", facts, state.checks_of(facts))

    def _report_machines(self, room: str) -> Iterator[Finding]:
        try:
            yield from self._machines.result().of(room)
        except CallFailed as why:
            yield replace(machines.absent(str(why)), room=room, check="machines")

    def _report_store(self) -> Iterator[Finding]:
        try:
            facts = self._store.result()
        except CallFailed as why:
            yield replace(store.away(self._settings, why), room="store", check=name_of(store.answers))
        else:
            yield from examined("store", facts, store.CHECKS)

    def _report_queue(self) -> Iterator[Finding]:
        found = self._queue_facts()
        if isinstance(found, CallFailed):
            seen = f"what lies in the store cannot be seen: {found}"
            yield replace(unknown(seen, "mend the store first"), room="queue", check=name_of(queue.opened))
            return
        facts = queue.Facts(
            settings=self._settings,
            queue=found,
            moving=_or(self._moving, instead=False),
            host_runs=self._host_runs(),
            reported=self._reported(),
        )
        yield from examined("queue", facts, queue.CHECKS)

    def _report_history(self) -> Iterator[Finding]:
        try:
            facts = self._database.result()
        except CallFailed as why:
            yield replace(history.away(self._settings, why), room="history", check=name_of(history.answers))
        else:
            yield from examined("history", facts, history.CHECKS)

    def _tell_processes(self) -> Iterator[Finding]:
        try:
            facts = self._processes.result()
        except CallFailed as why:
            seen, remedy = f"they cannot be looked at: {why}", "mend the state directory first"
            yield replace(unknown(seen, remedy), room="processes", check=name_of(processes.host))
            return
        found = self._queue_facts()
        yield from examined(
            "processes", facts.with_queue(None if isinstance(found, CallFailed) else found), processes.CHECKS
        )

    def _queue_facts(self) -> QueueFacts | CallFailed:
        """Return the facts about the queue, or why there are none. The store is read only after it has answered."""
        if self._queue is None:
            try:
                self._store.result()
            except CallFailed:
                self._queue = CallFailed("the store does not answer")
                return self._queue
            try:
                cursor = self._cursor()
                self._queue = TimedCall(lambda: queue_facts(self._settings.redis_url, cursor), POLL_S).result()
            except CallFailed as why:
                self._queue = why
        return self._queue

    def _cursor(self) -> Cursor | None:
        try:
            return self._database.result().database.cursor
        except CallFailed:
            return None

    def _host_runs(self) -> bool:
        try:
            return self._processes.result().host is not None
        except CallFailed:
            return False

    def _reported(self) -> str | None:
        try:
            return self._processes.result().reported
        except CallFailed:
            return None


def _or(look: TimedCall[T], *, instead: T) -> T:
    try:
        return look.result()
    except CallFailed:
        return instead
