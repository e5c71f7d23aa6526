"""Examines the whole site in parallel, with a time limit for each part, and yields the findings by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from gpuqueue.doctor import history, machines, processes, queue, service, state, store, values
from gpuqueue.model.finding import Check, Finding, Grade, examined, name_of, problem, unknown
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
    "service": service.CHECKS,
    "processes": processes.CHECKS,
}
#: All sections, in the order of the report. A section depends on those before it.
ORDER = ("settings", "state", "host", "python", "store", "queue", "history", "service", "processes", "runs")


def examine(environ: Mapping[str, str], *, deep: bool = False) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each section with its findings, in order, as soon as they are known."""
    try:
        facts = TimedCall(lambda: values.facts_of(environ), POLL_S).result()
    except CallFailed as why:  # without settings no other part can be located
        seen, remedy = f"the settings cannot be checked: {why}", "is the disk of the home directory there?"
        yield "settings", [replace(problem(seen, remedy), section="settings", check=name_of(values.file))]
        return
    yield from _Examination(facts, values.outside_of_jobs(environ), deep=deep).sections()


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
        self._service = TimedCall(lambda: service.service_facts(settings), POLL_S + service.PATIENCE_S)
        self._state = TimedCall(lambda: state.state_facts(settings), POLL_S)
        self._processes = TimedCall(lambda: processes.process_facts(settings, environ), POLL_S)
        self._moving = TimedCall(lambda: is_locked(settings.state_dir / "up.lock"), POLL_S)

    def sections(self) -> Iterator[tuple[str, list[Finding]]]:
        """Yield each section with its findings as soon as they are known."""
        settings = self._settings
        unread, check = f"{settings.state_dir} cannot be checked", "is its disk there, and may this account read it?"
        sections: Mapping[str, Callable[[], Iterator[Finding]]] = {
            "settings": lambda: examined("settings", self._values, values.CHECKS),
            "state": lambda: _section(
                "state", self._state.result, state.CHECKS, lambda why: problem(f"{unread}: {why}", check)
            ),
            "host": lambda: self._of_machines("host"),
            "python": lambda: self._of_machines("python"),
            "store": lambda: _section("store", self._store.result, store.CHECKS, lambda why: store.away(settings, why)),
            "queue": lambda: _section("queue", self._about_queue, queue.CHECKS, _queue_unseen),
            "history": lambda: _section(
                "history", self._database.result, history.CHECKS, lambda why: history.away(settings, why)
            ),
            "service": self._of_service,
            "processes": lambda: _section("processes", self._about_processes, processes.CHECKS, _processes_unseen),
            "runs": lambda: self._of_machines("runs"),
        }
        for section in ORDER:
            yield section, list(sections[section]())

    def _of_machines(self, section: str) -> Iterator[Finding]:
        try:
            yield from self._machines.result().of(section)
        except CallFailed as why:
            yield replace(machines.absent(str(why)), section=section, check="machines")

    def _of_service(self) -> Iterator[Finding]:
        """Yield the findings about the service. A host that has not joined one has none."""
        try:
            facts = self._service.result()
        except CallFailed as why:
            yield replace(service.away(self._settings, why), section="service", check=name_of(service.answers))
        else:
            yield from examined("service", facts, service.CHECKS) if facts is not None else ()

    def _about_queue(self) -> queue.Facts:
        running = _or_none(self._processes.result)
        return queue.Facts(
            settings=self._settings,
            queue=self._queue_facts(),
            moving=bool(_or_none(self._moving.result)),
            host_runs=running is not None and running.host is not None,
            reported=None if running is None else running.reported,
        )

    def _about_processes(self) -> processes.ProcessFacts:
        return self._processes.result().with_queue(_or_none(self._queue_facts))

    def _queue_facts(self) -> QueueFacts:
        """Return the facts about the queue. The store is read only after it has answered.

        Raises:
            CallFailed: the store does not answer, or what lies in it cannot be read.

        """
        try:
            self._store.result()
        except CallFailed:
            raise CallFailed("the store does not answer") from None
        return self._queue.result()

    @cached_property
    def _queue(self) -> TimedCall[QueueFacts]:
        found = _or_none(self._database.result)
        contents = None if found is None else found.database.contents
        cursor = None if contents is None else contents.cursor
        return TimedCall(lambda: queue_facts(self._settings.redis_url, cursor), POLL_S)


def _queue_unseen(why: CallFailed) -> Finding:
    return unknown(f"the contents of the store cannot be read: {why}", "repair the store first")


def _processes_unseen(why: CallFailed) -> Finding:
    return unknown(f"they cannot be checked: {why}", "repair the state directory first")


def _section(
    section: str, facts_of: Callable[[], T], checks: Sequence[Check[T]], unseen: Callable[[CallFailed], Finding]
) -> Iterator[Finding]:
    """Yield the findings of *checks*, or the finding of *unseen* if there are no facts."""
    try:
        facts = facts_of()
    except CallFailed as why:
        yield replace(unseen(why), section=section, check=name_of(checks[0]))
    else:
        yield from examined(section, facts, checks)


def _or_none(facts_of: Callable[[], T]) -> T | None:
    try:
        return facts_of()
    except CallFailed:
        return None
