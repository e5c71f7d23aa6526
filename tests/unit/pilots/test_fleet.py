"""How pilots are started, listed and given up, with an engine of the test and a client that keeps tokens in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuqueue.client import Client, joining
from gpuqueue.engines.engine import (
    AllocationRequest,
    EngineUnreachable,
    NotAccepted,
    Phase,
    Ref,
    Status,
    Uncertain,
)
from gpuqueue.errors import BadRequest, Refused, Unreachable
from gpuqueue.model.access_token import AccessToken, MadeToken, TokenRequest
from gpuqueue.model.burst import PilotSettings
from gpuqueue.model.caller import CallerKind
from gpuqueue.model.job import JobState
from gpuqueue.pilots.fleet import PilotRequest, Pilots

SETTINGS = PilotSettings(service_url="https://gpu.example.org:8443", pool="cluster", idle_s=60.0, wait_s=7200.0)
REQUEST = PilotRequest(gpus=2, hours=8)


@dataclass
class MemoryEngine:
    """An engine that answers what the test has written."""

    name: str = "slurm"
    submitted: dict[str, AllocationRequest] = field(default_factory=dict)
    status: Status = field(default_factory=lambda: Status(phase=Phase.RUNNING, word="running", node="n1", left_s=60.0))
    trouble: Exception | None = None
    cancelled: list[tuple[Ref, bool]] = field(default_factory=list)

    def submit(self, request: AllocationRequest, key: str) -> Ref:
        """Keep the request, or raise."""
        if self.trouble is not None:
            raise self.trouble
        self.submitted[key] = request
        return Ref(key, "7")

    def states(self, refs: Collection[Ref]) -> Mapping[Ref, Status]:
        """Return the status of all."""
        return dict.fromkeys(refs, self.status)

    def cancel(self, ref: Ref, *, now: bool = False) -> None:
        """Keep it, or raise."""
        if self.trouble is not None:
            raise self.trouble
        self.cancelled.append((ref, now))

    def find(self, keys: Collection[str]) -> Mapping[Ref, Status]:
        """Return what was submitted, or raise."""
        if self.trouble is not None:
            raise self.trouble
        return self.states([Ref(key, "7") for key in keys if key in self.submitted])


class MemoryAccess:
    """Tokens in memory."""

    def __init__(self) -> None:
        self.known: list[AccessToken] = []

    def make_token(self, wanted: TokenRequest) -> MadeToken:
        """Make a token of a host."""
        now = datetime.now(timezone.utc)
        token = AccessToken(
            id=f"token{len(self.known):03d}",
            kind=CallerKind.HOST,
            account=str(wanted.host),
            uid=None,
            scopes=frozenset(),
            name=wanted.name,
            made_by="ada",
            made_at=now,
            expires_at=now + timedelta(seconds=wanted.lifetime_s or 0),
        )
        self.known.append(token)
        return MadeToken(token=token, text="gq_secret")

    def tokens(self, *, everybody: bool) -> list[AccessToken]:
        """Return all tokens."""
        assert everybody
        return self.known

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        now = datetime.now(timezone.utc)
        self.known = [replace(each, revoked_at=now) if each.id == token_id else each for each in self.known]

    @property
    def valid(self) -> list[str]:
        """Return the hosts whose tokens are valid."""
        return [each.account for each in self.known if each.revoked_at is None]


@dataclass
class Site:
    """Pilots of a site, and what they do to it."""

    engine: MemoryEngine
    access: MemoryAccess
    devices: Any
    pilots: Pilots
    warnings: list[str]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a site whose service answers, and has no group of people."""
    answer(monkeypatch)
    return make_site(SETTINGS)


def answer(monkeypatch: pytest.MonkeyPatch, group: str | None = None, error: Exception | None = None) -> None:
    """Let the service answer the question for its settings."""

    def settings_of(_: object) -> SimpleNamespace:
        if error is not None:
            raise error
        return SimpleNamespace(group=group)

    monkeypatch.setattr(joining, "settings_of", settings_of)


def make_site(settings: PilotSettings) -> Site:
    """Return a site with these settings of Slurm."""
    engine, access, warnings = MemoryEngine(), MemoryAccess(), list[str]()
    lost: list[str] = []
    devices = SimpleNamespace(
        hosts=[],
        lost_hosts=lost,
        list=lambda: [SimpleNamespace(host=each) for each in devices.hosts],
        lost=lost_host(lost),
    )
    client = cast("Client", SimpleNamespace(access=access, devices=devices))
    pilots = Pilots(client, {"slurm": engine}, {"slurm": settings}, warn=warnings.append)
    return Site(engine, access, devices, pilots, warnings)


def lost_host(lost: list[str]) -> Any:
    """Return what declares a host lost: it ran job 5."""

    def declare(host: str) -> Mapping[int, JobState]:
        lost.append(host)
        return {5: JobState.QUEUED}

    return declare


def test_the_token_is_there_before_the_engine_is_asked_and_fits_the_time(site: Site) -> None:
    """Its host has the key of the allocation. The script has the token; it expires after wait, time and an hour."""
    made = site.pilots.start("slurm", REQUEST)
    request = site.engine.submitted[made.key]

    assert (f"slurm-{made.key}", "pilot: 2 GPUs, 8h") == (made.host, made.token.name)
    assert made.token.expires_at is not None
    assert timedelta(hours=2 + 8 + 1) == made.token.expires_at - made.token.made_at
    assert (2, 8 * 3600.0, 7200.0) == (request.gpus, request.duration_s, request.wait_s)
    assert "gq_secret" in request.script
    assert "gq_secret" not in repr(request)
    assert "--seconds 28800 --devices gpu --idle 60s --pool cluster" in request.script


@pytest.mark.parametrize("trouble", [NotAccepted("no such partition"), EngineUnreachable("squeue does not answer")])
def test_a_refused_pilot_leaves_no_token(site: Site, trouble: Exception) -> None:
    """Nothing was submitted."""
    site.engine.trouble = trouble
    with pytest.raises(type(trouble)):
        site.pilots.start("slurm", REQUEST)
    assert [] == site.access.valid


def test_an_uncertain_pilot_is_listed_until_it_is_given_up(site: Site) -> None:
    """Its record is there, whatever became of the caller. Giving it up revokes the token: it cannot join any more."""
    site.engine.trouble = Uncertain("Slurm may have accepted it")
    with pytest.raises(Uncertain):
        site.pilots.start("slurm", REQUEST)
    site.engine.trouble = None
    (found,) = site.pilots.list()

    assert (None, Phase.UNKNOWN, "slurm does not know it") == (found.ref, found.status.phase, found.status.word)
    site.pilots.cancel(found)
    assert [] == [*site.access.valid, *site.pilots.list()]


def test_a_pilot_that_waits_is_given_up_although_the_engine_does_not_answer(site: Site) -> None:
    """The token goes first."""
    site.engine.status = Status(phase=Phase.WAITING, word="pending")
    site.pilots.start("slurm", REQUEST)
    (found,) = site.pilots.list()
    site.engine.trouble = EngineUnreachable("scancel did not answer")
    with pytest.raises(EngineUnreachable):
        site.pilots.cancel(found)
    assert [] == site.access.valid


def test_a_running_pilot_hands_back_with_its_token(site: Site) -> None:
    """It needs it until it has left. With ``now`` it is revoked at once."""
    site.pilots.start("slurm", REQUEST)
    (found,) = site.pilots.list()
    site.pilots.cancel(found)
    assert ([found.host], [(found.ref, False)]) == (site.access.valid, site.engine.cancelled)
    site.pilots.cancel(found, now=True)
    assert ([], (found.ref, True)) == (site.access.valid, site.engine.cancelled[-1])


def test_the_list_of_an_engine_that_does_not_answer_ends_nothing(site: Site) -> None:
    """The pilot is unknown, with the reason."""
    made = site.pilots.start("slurm", REQUEST)
    site.devices.hosts = [made.host]
    site.engine.trouble = EngineUnreachable("squeue did not answer within 30 s")
    found = site.pilots.list()
    assert {} == site.pilots.settle(found)

    assert [(Phase.UNKNOWN, "squeue did not answer within 30 s")] == [
        (each.status.phase, each.status.word) for each in found
    ]
    assert ([made.host], []) == (site.access.valid, site.devices.lost_hosts)


@pytest.mark.parametrize(("has_left", "changed"), [(True, {}), (False, {5: JobState.QUEUED})])
def test_an_ended_pilot_is_settled(site: Site, changed: Mapping[int, JobState], *, has_left: bool) -> None:
    """Its token is revoked. The jobs of one that could not hand back are queued again."""
    made = site.pilots.start("slurm", REQUEST)
    site.devices.hosts = [] if has_left else [made.host]
    site.engine.status = Status(phase=Phase.ENDED, word="node_fail")

    assert changed == site.pilots.settle(site.pilots.list())
    assert [] == [*site.access.valid, *site.pilots.list()]


def test_a_host_that_just_spoke_is_settled_later(site: Site) -> None:
    """Slurm says that it is over, and a heartbeat has come a moment ago: nothing runs twice."""
    made = site.pilots.start("slurm", REQUEST)
    site.devices.hosts = [made.host]
    site.engine.status = Status(phase=Phase.ENDED, word="cancelled")

    def refuse(host: str) -> Mapping[int, JobState]:
        raise Refused(f"{host} is not silent")

    site.devices.lost = refuse
    assert {} == site.pilots.settle(site.pilots.list())
    assert [made.host] == site.access.valid


def test_a_site_that_runs_jobs_as_their_submitters_must_allow_pilots(monkeypatch: pytest.MonkeyPatch) -> None:
    """There all jobs would have one account, so an admin must say so."""
    answer(monkeypatch, group="lab")
    site = make_site(SETTINGS)
    with pytest.raises(Refused, match="jobs_of_all = true"):
        site.pilots.start("slurm", REQUEST)
    assert ([], {}) == (site.access.valid, site.engine.submitted)
    allowed = make_site(replace(SETTINGS, jobs_of_all=True))
    made = allowed.pilots.start("slurm", REQUEST)
    assert "--jobs-of-all" in allowed.engine.submitted[made.key].script


def test_a_service_that_is_not_reached_from_here_is_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes may reach it at an address that this machine does not."""
    answer(monkeypatch, error=Unreachable("the service at https://gpu.example.org:8443 does not answer"))
    site = make_site(SETTINGS)
    site.pilots.start("slurm", REQUEST)
    assert [
        "the service at https://gpu.example.org:8443 does not answer; the pilot tries from its node"
    ] == site.warnings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (PilotSettings(), r"set service_url in \[burst.slurm\]"),
        (PilotSettings(service_url="http://gpu.example.org"), "plain HTTP"),
        (PilotSettings(service_url="https://gpu", service_ca="/no/such.pem"), "service_ca"),
    ],
)
def test_a_setting_that_is_missing_is_named(settings: PilotSettings, said: str) -> None:
    """Before a token is made."""
    site = make_site(settings)
    with pytest.raises(BadRequest, match=said):
        site.pilots.start("slurm", REQUEST)
    assert [] == site.access.known
