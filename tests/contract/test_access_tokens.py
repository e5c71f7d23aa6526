"""Access tokens in the history, and their verification, on SQLite and on PostgreSQL."""

from __future__ import annotations

import logging
import pwd
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy as sa

from gpuqueue.errors import NotAuthenticated
from gpuqueue.history.connect import open_engine, reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import access_tokens
from gpuqueue.model.access import AccessPolicy, Action, may
from gpuqueue.model.access_token import AccessToken, NewToken, NotValid, digest_of, new_token
from gpuqueue.model.caller import CallerKind, Scope, Via
from gpuqueue.model.job_spec import Account
from gpuqueue.service.identity.authenticate import CACHE_S, NOT_VALID, Authenticator

NOW = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)
ADA = Account(name="ada", uid=1001, host="nodeA")


class SetClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        """Return the set time."""
        return NOW + timedelta(seconds=self.s)

    def monotonic_s(self) -> float:
        """Return the seconds since the start of the test."""
        return self.s


@pytest.fixture
def clock() -> SetClock:
    """Return a clock that stands still."""
    return SetClock()


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the accounts of the machine, which the test may change."""
    known = {"ada": 1001}

    def by_uid(uid: int) -> pwd.struct_passwd:
        name = {number: name for name, number in known.items()}[uid]
        return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", by_uid)
    return known


@pytest.fixture
def gate(database: HistoryDatabase, clock: SetClock) -> Authenticator:
    """Return an authenticator of the history."""
    return Authenticator(database, clock)


def added(database: HistoryDatabase, **fields: object) -> NewToken:
    """Store a token of ada with *fields*, and return it with its secret."""
    secret = new_token()
    token = AccessToken(
        id=secret.id,
        kind=CallerKind.PERSON,
        account="ada",
        uid=1001,
        scopes=frozenset({Scope.READ, Scope.SUBMIT}),
        name="laptop",
        made_by="ada",
        made_at=NOW,
    )
    database.add_token(replace(token, **fields), digest_of(secret.secret))
    return secret


def test_a_token_proves_its_account(database: HistoryDatabase, gate: Authenticator) -> None:
    """The caller of a valid token has the account, the uid and the scopes of the token's row, and nothing else."""
    token = added(database)

    caller = gate.caller(f"Bearer {token}", "10.0.0.7")

    assert ("ada", 1001, Via.TOKEN, token.id) == (caller.account, caller.uid, caller.via, caller.token_id)
    assert {Scope.READ, Scope.SUBMIT} == caller.scopes
    assert not caller.superuser
    assert caller.address == "10.0.0.7"


def test_a_request_without_a_header_has_no_account(gate: Authenticator) -> None:
    assert gate.caller(None, "10.0.0.7").via is Via.ANONYMOUS


def test_each_fault_has_its_reason_inside_and_one_text_outside(
    database: HistoryDatabase, gate: Authenticator, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A malformed, unknown, wrong, expired and revoked token differ in the log, and not in the answer."""
    valid, expired, revoked = added(database), added(database, expires_at=NOW + timedelta(hours=1)), added(database)
    database.revoke_token(revoked.id, at=NOW)
    clock.s = 3600
    other = new_token()
    wanted = {
        "gq_short_x": NotValid.MALFORMED,
        f"{valid}x": NotValid.MALFORMED,
        str(other): NotValid.UNKNOWN,
        f"gq_{valid.id}_{other.secret}": NotValid.WRONG_SECRET,
        f"gq_{revoked.id}_{other.secret}": NotValid.WRONG_SECRET,
        f"gq_{expired.id}_{other.secret}": NotValid.WRONG_SECRET,
        str(expired): NotValid.EXPIRED,
        str(revoked): NotValid.REVOKED,
    }

    assert wanted == {text: gate.verify(text) for text in wanted}
    with caplog.at_level(logging.WARNING):
        answers = {_refusal(gate, text) for text in wanted}
    assert {NOT_VALID} == answers
    for text, reason in wanted.items():
        assert str(reason) in caplog.text
        assert text not in caplog.text
    assert other.secret not in caplog.text


def _refusal(gate: Authenticator, text: str) -> str:
    with pytest.raises(NotAuthenticated) as refused:
        gate.caller(f"Bearer {text}", "10.0.0.7")
    return str(refused.value)


def test_a_token_without_the_scope_changes_nothing(database: HistoryDatabase, gate: Authenticator) -> None:
    """A token with the scope read is valid, and submits and cancels nothing of its own account."""
    caller = gate.caller(f"Bearer {added(database, scopes=frozenset({Scope.READ}))}", "10.0.0.7")
    policy = AccessPolicy.parse("", "")

    assert may(caller, Action.SEE_LOGS, ADA, policy) is None
    assert may(caller, Action.SUBMIT, None, policy) is not None
    assert may(caller, Action.CHANGE_JOB, ADA, policy) is not None


def test_a_revoked_token_ends_within_the_documented_time(
    database: HistoryDatabase, gate: Authenticator, clock: SetClock
) -> None:
    """After a revocation by another process, a token works for at most CACHE_S. By this process, not at all."""
    first, second = added(database), added(database)
    assert isinstance(gate.verify(str(first)), AccessToken)
    assert isinstance(gate.verify(str(second)), AccessToken)

    assert database.revoke_token(first.id, at=NOW)
    assert not database.revoke_token(first.id, at=NOW)
    database.revoke_token(second.id, at=NOW)
    gate.forget(second.id)

    assert NotValid.REVOKED is gate.verify(str(second))
    clock.s += CACHE_S
    assert NotValid.REVOKED is gate.verify(str(first))


def test_an_expired_token_ends_at_once(database: HistoryDatabase, gate: Authenticator, clock: SetClock) -> None:
    """The cache does not prolong the life of a token."""
    token = added(database, expires_at=NOW + timedelta(seconds=2))
    assert isinstance(gate.verify(str(token)), AccessToken)

    clock.s = 2

    assert NotValid.EXPIRED is gate.verify(str(token))


def test_the_last_use_is_written_once_a_minute(database: HistoryDatabase, gate: Authenticator, clock: SetClock) -> None:
    """A busy token costs one write a minute, and the list shows its last use to the minute."""
    token = added(database)
    noted = []
    for clock.s in (0, 1, 59, 60, 61):
        gate.verify(str(token))
        gate.flush()
        noted.append(database.tokens("ada")[0].last_used_at)

    assert [0, 0, 0, 60, 60] == [(each - NOW).total_seconds() for each in noted if each is not None]


def test_a_hundred_requests_with_one_token_read_the_history_once_in_cache_s(
    database: HistoryDatabase, gate: Authenticator, clock: SetClock
) -> None:
    token, reads = added(database), []
    find = database.find_token
    database.find_token = lambda token_id: (reads.append(token_id), find(token_id))[1]  # type: ignore[method-assign]
    for _ in range(100):
        gate.verify(str(token))
    assert [token.id] == reads

    clock.s += CACHE_S
    gate.verify(str(token))
    assert [token.id, token.id] == reads


def test_no_secret_is_stored(database: HistoryDatabase, history_url: str) -> None:
    """The database has the SHA-256 of the secret, and the secret nowhere."""
    token = added(database)
    engine = open_engine(history_url)
    with reading(engine) as connection:
        row = connection.execute(sa.select(access_tokens)).one()
    engine.dispose()

    assert digest_of(token.secret) == row.digest
    assert not any(token.secret in str(value) for value in row)
    assert token.secret not in repr(token)


def test_tokens_of_an_account_are_listed_without_those_of_a_host(database: HistoryDatabase) -> None:
    """A person sees the person's tokens, newest first; an admin sees those of hosts as well."""
    old = added(database)
    new = added(database, made_at=NOW + timedelta(1))
    host = added(database, kind=CallerKind.HOST, uid=None, account="ada", scopes=frozenset(), made_at=NOW)

    assert [new.id, old.id] == [each.id for each in database.tokens("ada")]
    assert {new.id, old.id, host.id} == {each.id for each in database.tokens()}
    assert [] == database.tokens("bob")


def test_the_token_of_a_host_has_no_rights_of_a_person(database: HistoryDatabase, gate: Authenticator) -> None:
    """A worker host with the name of an account is not that account."""
    token = added(database, kind=CallerKind.HOST, uid=None, account="ada", scopes=frozenset(Scope))
    caller = gate.caller(f"Bearer {token}", "10.0.0.7")

    policy = AccessPolicy.parse("ada,*", "")
    assert [Action.SERVE_JOBS] == [each for each in Action if may(caller, each, ADA, policy) is None]


@pytest.mark.parametrize("change", ["removed", "renamed", "made again"])
def test_a_token_ends_with_its_account(
    database: HistoryDatabase, gate: Authenticator, accounts: dict[str, int], change: str
) -> None:
    """The account is looked up at each use: no token that was read before goes on, and none of a browser's session."""
    secret = added(database)
    assert isinstance(gate.verify(str(secret)), AccessToken)
    assert gate.caller_of_id(secret.id, "10.0.0.7") is not None

    uid = accounts.pop("ada")
    if change == "renamed":
        accounts["eva"] = uid
    if change == "made again":
        accounts["ada"] = uid + 5

    assert NotValid.NO_ACCOUNT is gate.verify(str(secret))
    assert gate.caller_of_id(secret.id, "10.0.0.7") is None
    with pytest.raises(NotAuthenticated, match="is not valid"):
        gate.caller(f"Bearer {secret}", "10.0.0.7")
