"""Asks for pilots by rule, in the process of the service, and tidies up after those that could not hand back.

The rule is in the settings of the site, which an admin writes; so the service makes the tokens of its pilots with the
rights of one. One service at a time applies it; another one does if that one was away for three turns.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from gpuqueue.client import Client
from gpuqueue.client.access import Access
from gpuqueue.client.connection import Connection
from gpuqueue.clock import Clock
from gpuqueue.engines.engine import ABSENT_S, Engine, Phase
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.access import AccessPolicy
from gpuqueue.model.burst import PilotSettings
from gpuqueue.pilots.fleet import Pilot, Pilots, engines_of
from gpuqueue.pilots.rule import decision_of
from gpuqueue.service.metrics.exposition import PilotFigures
from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: Time between two turns, in seconds. Each asks the engine how its pilots stand.
TURN_S = 30.0
#: Time after a request that has failed until the next one, in seconds: each makes a token, and is in the audit log.
AFTER_FAILURE_S = 600.0


class Burster:
    """Applies the rules of all engines. Use it in one thread."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        figures: PilotFigures | None = None,
        engines: Callable[[Mapping[str, PilotSettings]], Mapping[str, Engine]] = engines_of,
        turn_s: float = TURN_S,
    ) -> None:
        self._settings = {name: each for name, each in settings.burst.items() if each.when_waiting_s is not None}
        self._clock = clock
        self._turn_s = turn_s
        self._figures = figures
        self._engines = engines(self._settings) if self._settings else {}
        connection = Connection(settings)
        self._client = Client(connection=connection)  # of the site itself, whatever people of this account use
        self._access = _RuleAccess(connection)
        #: By engine: since when it does not know a pilot, by key; and when it may be asked for a pilot again.
        self._unknown_since_s: dict[str, dict[str, float]] = {}
        self._next_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}
        self._name = os.urandom(6).hex()

    def loop(self, stopping: threading.Event) -> None:
        """Apply the rules until *stopping* is set. Without a rule, return at once."""
        with closing(self):
            while self._settings and not stopping.wait(self._turn_s):
                self.turn()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def turn(self) -> None:
        """Look once at the waiting jobs and at the pilots of each engine."""
        for name in self._settings:
            try:
                self._turn_of(name)
            except GpuQueueError as error:
                self._report(name, f"no pilot is asked for now: {error}", logging.WARNING)
            except Exception:  # the service goes on
                log.exception("the rule of %s failed", name)

    def _turn_of(self, name: str) -> None:
        if not self._client.queue.maintenance.has_turn(name, self._name, for_s=3 * self._turn_s):
            return
        settings = self._settings[name]
        fleet = Pilots(
            self._client,
            self._engines,
            self._settings,
            warn=partial(log.warning, "%s"),
            access=self._access,
        )
        pilots = fleet.list(name)
        for job_id, state in fleet.settle(pilots).items():
            log.warning("job %s was on a pilot of %s that has ended: it is %s", job_id, name, state)
        if self._figures is not None:
            self._figures.note(name, [pilot.status.phase for pilot in pilots])
        remaining = self._give_up_unknown(name, [pilot for pilot in pilots if pilot.status.phase is not Phase.ENDED])
        decision = decision_of(self._client, settings, remaining, self._access.tokens(everybody=True), self._clock)
        if decision.request is None:
            self._report(name, decision.why, logging.INFO)
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s.get(name, now_s):
            return
        self._next_s[name] = now_s + AFTER_FAILURE_S
        made = fleet.start(name, decision.request, because=f"job {decision.jobs[0].label} waits")
        del self._next_s[name]
        self._reported.pop(name, None)
        if self._figures is not None:
            self._figures.started(name)
        log.warning("pilot %s is job %s of %s: %s", made.host, made.ref, name, decision.why)

    def _give_up_unknown(self, name: str, pilots: Sequence[Pilot]) -> list[Pilot]:
        """Revoke the tokens of pilots that their engine has not known for ``ABSENT_S``, and return the others.

        That is safe: an allocation that shows up later cannot join.
        """
        now_s = self._clock.monotonic_s()
        before = self._unknown_since_s.get(name, {})
        since_s = {pilot.key: before.get(pilot.key, now_s) for pilot in pilots if pilot.is_missing}
        self._unknown_since_s[name] = since_s
        gone = {key for key, began_s in since_s.items() if now_s - began_s >= ABSENT_S}
        for pilot in pilots:
            if pilot.key in gone:
                log.warning("pilot %s is given up: %s", pilot.host, pilot.status.word)
                self._access.revoke_token(pilot.token.id)
        return [pilot for pilot in pilots if pilot.key not in gone]

    def _report(self, name: str, words: str, level: int) -> None:
        """Log *words* once while they stay the same."""
        if self._reported.get(name) != words:
            log.log(level, "%s: %s", name, words)
        self._reported[name] = words


class _RuleAccess(Access):
    """The tokens of pilots by rule: the admin who wrote the rule lets the service make them."""

    @property
    def _policy(self) -> AccessPolicy:
        settings = self._connection.settings
        return AccessPolicy.parse(f"{settings.admins},{self._connection.account.name}", settings.access)
