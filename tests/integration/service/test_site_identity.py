"""The identity of one service's callers: proof, limits and records together, on a real history."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import known_accounts
import pytest
from bounded import until
from template_history import make_tables

from gpuqueue.client import access
from gpuqueue.errors import NotAuthenticated, Refused, TooManyRequests
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.access import AccessPolicy
from gpuqueue.model.access_token import TokenRequest
from gpuqueue.model.audit import AuditOutcome, AuditQuery
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via
from gpuqueue.service.identity.browser_sessions import session_id
from gpuqueue.service.identity.site_identity import SiteIdentity
from gpuqueue.settings.settings import Settings


class Peer(NamedTuple):
    """The process at the other end of a socket."""

    uid: int
    pid: int


class Credentials(NamedTuple):
    """What a request brings."""

    peer: Peer | None
    authorization: str | None
    address: str
    session: str | None = None


ADA = Caller(account="ada", uid=54320, via=Via.SOCKET, scopes=ALL_SCOPES)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a site with a history, and a low limit of requests."""
    url = f"sqlite:///{tmp_path / 'history.db'}"
    make_tables(url)
    return Settings.load(
        {
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_STATE_DIR": str(tmp_path),
            "GPUQUEUE_DATABASE_URL": url,
            "GPUQUEUE_REQUEST_RATE": "10",
            "GPUQUEUE_ADMINS": "ann,%gpu-admins",
        }
    )


@pytest.fixture
def database(settings: Settings) -> Iterator[HistoryDatabase]:
    """Return the history of the site."""
    opened = HistoryDatabase(settings.database_url)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know the account ada for the test."""
    monkeypatch.setattr(pwd, "getpwuid", pwd.getpwuid)
    known_accounts.know()


@pytest.fixture
def identity(settings: Settings) -> Iterator[SiteIdentity]:
    """Return the running identity of the site."""
    made = SiteIdentity(settings)
    made.start()
    yield made
    made.close()


def with_token(text: str | None, address: str = "10.0.0.7") -> Credentials:
    """Return what a request over TCP brings."""
    return Credentials(peer=None, authorization=None if text is None else f"Bearer {text}", address=address)


def made(database: HistoryDatabase) -> str:
    """Return a new token of ada."""
    now = datetime.now(timezone.utc)
    return access.make_token(database, ADA, AccessPolicy.parse("", ""), TokenRequest(name="laptop"), now=now).text


def test_the_socket_and_a_token_prove_an_account(identity: SiteIdentity, database: HistoryDatabase) -> None:
    """A peer is the account of its uid, a token that of its row, and a request without proof is anonymous.

    A token that a request over the socket brings along does not count: the kernel knows better.
    """
    text = made(database)
    here = identity.caller(Credentials(peer=Peer(os.getuid(), 77), authorization=f"Bearer {text}", address=""))

    assert (os.getuid(), Via.SOCKET, "pid 77") == (here.uid, here.via, here.address)
    there = identity.caller(with_token(text))
    assert ("ada", Via.TOKEN) == (there.account, there.via)
    assert Via.ANONYMOUS is identity.caller(with_token(None)).via


def test_a_flood_of_wrong_tokens_stops_only_its_address(identity: SiteIdentity, database: HistoryDatabase) -> None:
    """After some wrong tokens, an address is refused for a while. A token that has just been used still works."""
    text = made(database)
    identity.caller(with_token(text))
    wrong = text[:-4] + "AAAA"
    answers = []
    for _ in range(60):
        with pytest.raises(Refused) as refused:
            identity.caller(with_token(wrong.replace(text[3:11], "zzzzzzzz")))
        answers.append(type(refused.value))

    assert NotAuthenticated is answers[0]
    assert TooManyRequests is answers[-1]
    assert "ada" == identity.caller(with_token(text)).account
    with pytest.raises(NotAuthenticated):
        identity.caller(with_token(wrong, "10.0.0.8"))


@pytest.mark.parametrize("is_token", [True, False])
def test_a_browser_cannot_guess_what_signs_it_in(
    identity: SiteIdentity, database: HistoryDatabase, *, is_token: bool
) -> None:
    """Wrong tokens and wrong codes in the form of the page count for their address, as wrong tokens of programs do."""
    wrong = made(database)[:-4] + "AAAA" if is_token else "a-code-that-is-wrong"
    answers = []
    for _ in range(60):
        with pytest.raises(Refused) as refused:
            identity.sign_in(wrong, "10.0.0.7")
        answers.append(type(refused.value))

    assert (NotAuthenticated, TooManyRequests) == (answers[0], answers[-1])
    with pytest.raises(NotAuthenticated):
        identity.sign_in(wrong, "10.0.0.8")


def test_an_account_that_calls_too_often_waits(identity: SiteIdentity, database: HistoryDatabase) -> None:
    """Beyond its rate an account gets a refusal with the time after which to try again."""
    text = made(database)
    with pytest.raises(TooManyRequests, match=r"too many requests: try again in 0\.. s") as refused:
        for _ in range(100):
            identity.caller(with_token(text))
    assert 0 < refused.value.wait_s <= 0.1


def test_an_account_that_sends_too_much_waits(identity: SiteIdentity) -> None:
    """Beyond its bytes an account is refused, however few its requests are."""
    with pytest.raises(TooManyRequests):
        for _ in range(100):
            identity.received(ADA, 4 * 2**20)


def test_changes_and_uses_reach_the_history_by_themselves(identity: SiteIdentity, database: HistoryDatabase) -> None:
    """The threads of the service write the audit log and the last use of a token within seconds."""
    caller = identity.caller(with_token(made(database)))
    with identity.change(caller, "cancel", ("12",), {}):
        pass
    identity.refused(caller, "hold", "only bob may change this job", ("13",))
    identity.refused(identity.caller(with_token(None)), "hold", "log in first", ())

    until(lambda: len(database.audit_entries(AuditQuery())) == 2)
    refused, done = database.audit_entries(AuditQuery())
    assert (AuditOutcome.DONE, "cancel", "10.0.0.7", caller.token_id) == (
        done.outcome, done.action, done.address, done.token_id,
    )  # fmt: skip
    assert (AuditOutcome.REFUSED, "hold") == (refused.outcome, refused.action)
    until(lambda: database.tokens("ada")[0].last_used_at is not None)


def test_proofs_that_are_not_valid_are_in_the_audit_log(settings: Settings, database: HistoryDatabase) -> None:
    """A wrong link, a wrong token of a browser or a program, and an unknown account: each with where it came from.

    The entry has the id of the token, which is no secret, and nothing else of it.
    """
    identity = SiteIdentity(settings)
    identity.start()
    wrong = made(database)[:-4] + "AAAA"
    for attempt in (
        lambda: identity.sign_in("a-code-that-is-wrong", "10.0.0.1"),
        lambda: identity.sign_in(wrong, "10.0.0.2"),
        lambda: identity.caller(with_token(wrong, "10.0.0.3")),
        lambda: identity.caller(with_token("nonsense", "10.0.0.4")),
        lambda: identity.caller(Credentials(peer=Peer(65534, 7), authorization=None, address="")),
    ):
        with pytest.raises(NotAuthenticated):
            attempt()
    identity.close()

    entries = database.audit_entries(AuditQuery())[::-1]
    token = wrong[3:11]
    assert [
        ("sign-in", "10.0.0.1", None),
        ("sign-in", "10.0.0.2", token),
        ("authenticate", "10.0.0.3", token),
        ("authenticate", "10.0.0.4", None),
        ("authenticate", "pid 7", None),
    ] == [(each.action, each.address, each.token_id) for each in entries]
    assert {("", None, "anonymous", AuditOutcome.REFUSED)} == {
        (each.account, each.uid, each.via, each.outcome) for each in entries
    }
    assert wrong[12:] not in repr(entries)


def test_a_stop_leaves_nothing_behind(settings: Settings, database: HistoryDatabase) -> None:
    """Records of the last second are in the history when the service has stopped."""
    identity = SiteIdentity(settings)
    identity.start()
    with identity.change(ADA, "cancel", ("12",), {}):
        pass
    identity.close()

    assert ["cancel"] == [each.action for each in database.audit_entries(AuditQuery())]
    assert [] == list((settings.state_dir / "audit").iterdir())


def test_a_token_revoked_here_ends_at_once(identity: SiteIdentity, database: HistoryDatabase) -> None:
    """The service that revokes a token refuses it from the next request on."""
    text = made(database)
    caller = identity.caller(with_token(text))
    access.revoke_token(database, caller, identity.policy, caller.token_id or "", now=datetime.now(timezone.utc))
    identity.forget(caller.token_id or "")

    with pytest.raises(NotAuthenticated):
        identity.caller(with_token(text))


def test_the_groups_of_the_setting_admins_count(identity: SiteIdentity) -> None:
    """%NAME in admins makes the callers' groups be looked up."""
    caller = identity.caller(Credentials(peer=Peer(os.getuid(), 1), authorization=None, address=""))
    assert caller.groups


def test_a_session_outlives_the_service_but_not_its_token(settings: Settings, database: HistoryDatabase) -> None:
    """An upgrade signs nobody out. A token that is revoked meanwhile ends its sessions all the same."""
    first = SiteIdentity(settings)
    tokens = [made(database) for _ in range(2)]
    begun = [first.sign_in(token, "10.0.0.7") for token in tokens]
    sessions = [session_id(session.cookie, session.key) for session in begun]
    admin = first.caller(with_token(tokens[1]))
    first.close()
    access.revoke_token(database, admin, first.policy, admin.token_id or "", now=datetime.now(timezone.utc))

    again = SiteIdentity(settings)
    callers = [
        again.caller(Credentials(peer=None, authorization=None, address="", session=session)) for session in sessions
    ]
    again.close()

    assert [("ada", Via.SESSION), ("", Via.ANONYMOUS)] == [(caller.account, caller.via) for caller in callers]
