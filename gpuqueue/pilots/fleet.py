"""Starts, lists and ends pilots, from the machine of the service.

**The token of a pilot is its record.** It is made first, and is in the history before the engine is asked. Its host is
``ENGINE-KEY``, and the engine stores the key with the allocation. So after a crash at any point the record leads to the
allocation by ``find``, and revoking the token gives a pilot up for good: an allocation that shows up later cannot join.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client import joining
from gpuqueue.client.first_call import ServiceAddress
from gpuqueue.engines.engine import (
    AllocationRequest,
    Engine,
    EngineUnreachable,
    NotAccepted,
    Phase,
    Ref,
    Status,
    new_key,
)
from gpuqueue.engines.named import ENGINE_FILES
from gpuqueue.errors import BadRequest, GpuQueueError, Refused, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access_token import MAX_TOKEN_NAME, AccessToken, TokenRequest
from gpuqueue.model.burst import ENGINES
from gpuqueue.model.caller import CallerKind
from gpuqueue.model.lending import TOKEN_NAME
from gpuqueue.pilots.script import PilotScript
from gpuqueue.settings.credentials import origin_of
from gpuqueue.system.process import installed
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.client import Client
    from gpuqueue.client.access import Access
    from gpuqueue.model.burst import PilotSettings
    from gpuqueue.model.job import JobState

#: How long a token is valid beyond the latest end of its pilot, in seconds: clocks differ, and logs are delivered last.
MARGIN_S = 3600.0
#: Warning before the end of an allocation, in seconds. Runs are preempted then, and hand back.
WARNING_S = 120.0
#: Time between two tries to declare the host of an ended pilot lost, in seconds.
SETTLE_STEP_S = 0.5
LEAST_HOURS, MOST_HOURS = 0.1, 720.0
_HOST = re.compile(r"([a-z]+)-([a-z0-9]{4,20})")


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotRequest:
    """What one pilot is to have. ``hours`` may be a fraction."""

    gpus: int
    hours: float
    pool: str = ""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadRequest: one of them is out of its bounds.

        """
        if not 1 <= self.gpus <= 64:  # noqa: PLR2004 - no machine has more
            raise BadRequest("a pilot has 1 to 64 GPUs of one machine")
        if not LEAST_HOURS <= self.hours <= MOST_HOURS:
            raise BadRequest("a pilot lasts from 0.1 hours to 30 days")

    @property
    def size(self) -> str:
        """Return its size for its record, such as ``2 GPUs, 8h``."""
        return f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}, {self.hours:g}h"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pilot:
    """One pilot: its record, and how its allocation stands.

    ``ref`` is None if the engine has none, or did not say; ``is_missing``: it has said that it has none.
    """

    engine: str
    key: str
    host: str
    token: AccessToken
    ref: Ref | None
    status: Status
    is_missing: bool = False


class Pilots:
    """The pilots of a site, at the engines that its settings name. *warn* gets sentences for people."""

    def __init__(
        self,
        client: Client,
        engines: Mapping[str, Engine],
        settings: Mapping[str, PilotSettings],
        *,
        warn: Callable[[str], None] = lambda _: None,
        access: Access | None = None,
    ) -> None:
        """Use *client*, and *access* for the tokens if it is not the client's own."""
        self._client = client
        self._access = access or client.access
        self._engines = engines
        self._settings = settings
        self._warn = warn

    # ---- start ---------------------------------------------------------------------------------------------------

    def start(self, engine: str, request: PilotRequest, *, because: str = "") -> Pilot:
        """Ask *engine* for one pilot. It serves jobs as soon as its allocation begins.

        The record says *because*, if there is a reason besides the request of a person.

        Raises:
            BadRequest: a setting is missing or cannot be used.
            Refused: the caller is no admin, the engine refuses, or the site does not allow pilots.
            Uncertain: the engine may have accepted the request: the pilot is listed, and may begin.
            EngineUnreachable: the engine does not answer; nothing was submitted.

        """
        settings = self._settings[engine]
        url, ca_text = self._service(engine, settings)
        key = new_key()
        lifetime_s = settings.wait_s + request.hours * 3600 + MARGIN_S
        name = f"{TOKEN_NAME}{request.size}" + (f": {because}" if because else "")
        wanted = TokenRequest(host=f"{engine}-{key}", name=name[:MAX_TOKEN_NAME], lifetime_s=lifetime_s)
        made = self._access.make_token(wanted)
        try:
            self._check_site(ServiceAddress(url=url, token=made.text, ca=_path(settings.service_ca)), settings)
            script = PilotScript(
                key=key,
                token=made.text,
                ca=ca_text,
                program=settings.program or ENGINE_FILES[engine].PROGRAM or installed("gpuqueue"),
                prepare=settings.prepare,
                directory=settings.directory,
                words=_words_of(request, settings, url, has_ca=ca_text is not None),
            )
            allocation = AllocationRequest(
                gpus=request.gpus,
                duration_s=request.hours * 3600,
                script=script.text(),
                warning_s=WARNING_S,
                wait_s=settings.wait_s,
            )
            ref = self._engines[engine].submit(allocation, key)
        except (BadRequest, Refused, EngineUnreachable, NotAccepted):
            self._access.revoke_token(made.token.id)
            raise
        status = Status(phase=Phase.WAITING, word="submitted")
        return Pilot(engine=engine, key=key, host=made.token.account, token=made.token, ref=ref, status=status)

    def _service(self, engine: str, settings: PilotSettings) -> tuple[str, str | None]:
        """Return the address of the service for pilots, and the text of its authority's certificate.

        Raises:
            BadRequest: a setting is missing or cannot be used.

        """
        if not settings.service_url:
            raise BadRequest(
                f"pilots in {ENGINES[engine]} must know the service: set service_url in [burst.{engine}], such as "
                "https://gpu.example.org:8443"
            )
        origin_of(settings.service_url)
        if not settings.service_ca:
            return settings.service_url.rstrip("/"), None
        try:
            return settings.service_url.rstrip("/"), Path(settings.service_ca).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"service_ca in [burst.{engine}] cannot be read: {error}") from None

    def _check_site(self, service: ServiceAddress, settings: PilotSettings) -> None:
        """Check with the new token that the service can be joined, before anything waits in the queue of an engine.

        Raises:
            Refused: the service is not trusted, or its jobs run as their submitters and pilots are not allowed.

        """
        try:
            site = joining.settings_of(service)
        except Unreachable as error:
            self._warn(f"{error}; the pilot tries from its node")
            return
        if site.group is not None and not settings.jobs_of_all:
            raise Refused(
                "jobs run as their submitters here, and on a pilot all jobs run as one account: allow it with "
                "jobs_of_all = true in the table of the engine"
            )

    # ---- list ----------------------------------------------------------------------------------------------------

    def list(self, *engines: str) -> Sequence[Pilot]:
        """Return the pilots that were not given up and whose token has not expired, the newest first.

        With *engines* it is only theirs. Each engine is asked once for all of its pilots.
        """
        now = datetime.now(timezone.utc)
        records = [
            (token, found[1], found[2])
            for token in self._access.tokens(everybody=True)
            if token.kind is CallerKind.HOST
            and token.name.startswith(TOKEN_NAME)
            and token.not_valid(now) is None
            and (found := _HOST.fullmatch(token.account)) is not None
            and (not engines or found[1] in engines)
        ]
        keys: dict[str, set[str]] = {}
        for _, engine, key in records:
            keys.setdefault(engine, set()).add(key)
        known = {engine: self._known(engine, own) for engine, own in keys.items()}
        pilots = []
        for token, engine, key in records:
            ref, status, is_missing = known[engine][key]
            whose = {"engine": engine, "key": key, "host": token.account}
            pilots.append(Pilot(**whose, token=token, ref=ref, status=status, is_missing=is_missing))
        return pilots

    def _known(self, engine: str, keys: AbstractSet[str]) -> Mapping[str, tuple[Ref | None, Status, bool]]:
        """Return what *engine* knows of the pilots with *keys*: the last three fields of a ``Pilot``."""

        def none(word: str, *, is_missing: bool = False) -> tuple[None, Status, bool]:
            return None, Status(phase=Phase.UNKNOWN, word=word), is_missing

        if engine not in self._engines:
            return dict.fromkeys(keys, none(f"no settings for {engine} here"))
        try:
            found = self._engines[engine].find(keys)
        except EngineUnreachable as error:
            return dict.fromkeys(keys, none(str(error)))
        missing = dict.fromkeys(keys, none(f"{engine} does not know it", is_missing=True))
        return {**missing, **{ref.key: (ref, status, False) for ref, status in found.items()}}

    # ---- end -----------------------------------------------------------------------------------------------------

    def settle(self, pilots: Sequence[Pilot], *, wait_s: float = 0.0) -> Mapping[int, JobState]:
        """Tidy up after those of *pilots* whose allocations are over: revoke the token, queue their jobs again.

        Pilots that could hand back have done all that. Return the states of the jobs of those that could not. A host
        that sent a heartbeat a moment ago is left to the next call, unless it is silent for long within *wait_s*.
        """
        until_s = time.monotonic() + wait_s
        ended = [pilot for pilot in pilots if pilot.status.phase is Phase.ENDED]
        changed: dict[int, JobState] = {}
        if not ended:
            return changed
        hosts = {device.host for device in self._client.devices.list()}
        for pilot in ended:
            if pilot.host in hosts:
                lost = self._lost(pilot.host, until_s)
                if lost is None:
                    continue
                changed.update(lost)
            with suppress(Refused):
                self._access.revoke_token(pilot.token.id)
        return changed

    def _lost(self, host: str, until_s: float) -> Mapping[int, JobState] | None:
        """Declare *host* lost. None: its last heartbeat is too recent, until *until_s* on the steady clock."""
        while True:
            try:
                return self._client.devices.lost(host)
            except Refused:
                if time.monotonic() >= until_s:
                    return None
            time.sleep(SETTLE_STEP_S)

    def cancel(self, pilot: Pilot, *, now: bool = False) -> None:
        """Give a pilot up. A running one hands back first, unless *now*; one that waits never joins.

        Raises:
            EngineUnreachable: the engine does not answer. A pilot that was not running is given up all the same.

        """
        running = pilot.status.phase is Phase.RUNNING
        if now or not running:
            self._access.revoke_token(pilot.token.id)
        ref = pilot.ref
        if ref is not None:
            self._engines[pilot.engine].cancel(ref, now=now or not running)
        elif pilot.status.phase is Phase.UNKNOWN and pilot.engine not in self._engines:
            raise GpuQueueError(
                f"{brief(pilot.host)}: its token is revoked, and {pilot.engine} cannot be asked from here"
            )


def engines_of(settings: Mapping[str, PilotSettings]) -> dict[str, Engine]:
    """Return the engines that the settings name."""
    return {name: ENGINE_FILES[name].engine_of(found) for name, found in settings.items() if name in ENGINE_FILES}


def _words_of(request: PilotRequest, settings: PilotSettings, url: str, *, has_ca: bool) -> tuple[str, ...]:
    """Return the options of ``burst serve`` on the node."""
    pool = request.pool or settings.pool
    words = ["--url", url, "--seconds", str(math.floor(request.hours * 3600)), "--devices", settings.devices]
    words += ["--idle", f"{settings.idle_s:g}s"]
    words += ["--pool", pool] if pool else []
    words += ["--ca"] if has_ca else []
    words += ["--jobs-of-all"] if settings.jobs_of_all else []
    return tuple(words)


def _path(text: str) -> Path | None:
    return Path(text) if text else None
