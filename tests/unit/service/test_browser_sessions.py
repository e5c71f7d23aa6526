"""Codes and sessions of browsers: each code once, each session for a while."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpuqueue.service.identity import browser_sessions
from gpuqueue.service.identity.browser_sessions import CODE_S, IDLE_S, LONGEST_S, BrowserSessions, Proof, session_id

ADA, BOB = Proof(account="ada", uid=1001), Proof(account="bob", uid=1002, token_id="abcdefgh")


class SetClock:
    """A clock that a test sets."""

    now_s = 1000.0

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.now_s, timezone.utc)

    def monotonic_s(self) -> float:
        """Return the time in seconds."""
        return self.now_s


@pytest.fixture
def clock() -> SetClock:
    """Return a clock that stands."""
    return SetClock()


@pytest.fixture
def sessions(clock: SetClock) -> BrowserSessions:
    """Return no sessions."""
    return BrowserSessions(clock)


def begun(sessions: BrowserSessions, proof: Proof) -> str:
    """Begin a session, and return its id."""
    made = sessions.begin(proof)
    return session_id(made.cookie, made.key)


def test_a_code_works_once_and_for_a_minute(sessions: BrowserSessions, clock: SetClock) -> None:
    """The second use, a late use and a guess find nothing."""
    once, late = sessions.new_code(ADA), sessions.new_code(BOB)
    assert ADA == sessions.proof_of_code(once)
    assert None is sessions.proof_of_code(once)
    clock.now_s += CODE_S + 1
    assert None is sessions.proof_of_code(late)
    assert None is sessions.proof_of_code("guess\ud800")


def test_a_session_ends_when_it_is_idle_too_old_or_signed_out(sessions: BrowserSessions, clock: SetClock) -> None:
    """Each use lets it go on, but not beyond its longest time."""
    kept, idle, over = (begun(sessions, ADA) for _ in range(3))
    sessions.end(over)
    assert None is sessions.proof_of(over)
    begun_s = clock.now_s
    while clock.now_s - begun_s < LONGEST_S - IDLE_S:
        clock.now_s += IDLE_S - 1
        assert ADA == sessions.proof_of(kept)
    assert None is sessions.proof_of(idle)
    clock.now_s = begun_s + LONGEST_S + 1
    assert None is sessions.proof_of(kept)


def test_a_new_session_ends_the_oldest_of_its_account_only(sessions: BrowserSessions) -> None:
    """An account has a bounded number of sessions and of codes, whatever it does, and others keep theirs."""
    bobs = begun(sessions, BOB)
    made = [begun(sessions, ADA) for _ in range(browser_sessions.MOST_SESSIONS + 2)]
    assert [None, None, ADA] == [sessions.proof_of(each) for each in made[:3]]
    assert BOB == sessions.proof_of(bobs)
    codes = [sessions.new_code(ADA) for _ in range(browser_sessions.MOST_CODES + 1)]
    assert [None, ADA] == [sessions.proof_of_code(each) for each in codes[:2]]


def test_secrets_are_not_in_memory(sessions: BrowserSessions) -> None:
    """Only their digests are kept, so that a dump of the memory shows no session that can be used."""
    made = sessions.begin(ADA)
    code = sessions.new_download(session_id(made.cookie, made.key), "/stats/csv")
    for secret in (made.cookie, made.key, str(code)):
        assert secret not in repr(vars(sessions))
        assert secret not in str(sessions._sessions) + str(sessions._downloads)


def test_a_download_works_once_for_its_file_and_its_session(sessions: BrowserSessions, clock: SetClock) -> None:
    """The code leads to the session that made it, for a minute, and not to another file."""
    session = begun(sessions, ADA)
    code, other, late = (str(sessions.new_download(session, "/jobs/12/log/file?attempt=1")) for _ in range(3))
    assert session == sessions.session_of_download(code, "/jobs/12/log/file?attempt=1")
    assert None is sessions.session_of_download(code, "/jobs/12/log/file?attempt=1")
    assert None is sessions.session_of_download(other, "/jobs/13/log/file?attempt=1")
    assert None is sessions.session_of_download(other, "/jobs/12/log/file?attempt=1")
    clock.now_s += CODE_S + 1
    assert None is sessions.session_of_download(late, "/jobs/12/log/file?attempt=1")
    sessions.end(session)
    assert None is sessions.new_download(session, "/stats/csv")


def test_an_account_has_a_bounded_number_of_downloads_at_a_time(sessions: BrowserSessions) -> None:
    """A new code ends the oldest of its account, and no session."""
    session = begun(sessions, ADA)
    codes = [str(sessions.new_download(session, "/stats/csv")) for _ in range(browser_sessions.MOST_CODES + 1)]
    assert [None, session] == [sessions.session_of_download(each, "/stats/csv") for each in codes[:2]]
    assert ADA == sessions.proof_of(session)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of sessions of a service that restarts."""
    return tmp_path / "sessions.json"


def test_a_restart_signs_nobody_out(clock: SetClock, file: Path) -> None:
    """Regression: an upgrade of the service signed everybody out. Its times go on, and who signed out stays so."""
    sessions = BrowserSessions(clock, file)
    adas, bobs, over = begun(sessions, ADA), begun(sessions, BOB), begun(sessions, ADA)
    sessions.end(over)
    clock.now_s += browser_sessions.SAVE_S
    assert BOB == sessions.proof_of(bobs)

    clock.now_s += IDLE_S - browser_sessions.SAVE_S + 1
    again = BrowserSessions(clock, file)

    assert [None, BOB, None] == [again.proof_of(each) for each in (adas, bobs, over)]
    assert None is BrowserSessions(clock, file).proof_of(adas)


def test_the_file_has_no_secret_and_is_for_its_account_alone(clock: SetClock, file: Path) -> None:
    """It has digests, from which no session can be made."""
    made = BrowserSessions(clock, file).begin(BOB)

    text = file.read_text()
    assert session_id(made.cookie, made.key) in text
    assert made.cookie not in text
    assert made.key not in text
    assert 0o600 == file.stat().st_mode & 0o777


@pytest.mark.parametrize("text", ["", "[]", '{"sessions": {"a": {}}}', '{"sessions": 7}', "[" * 100_000])
def test_a_damaged_file_signs_all_out(clock: SetClock, file: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """The service starts all the same, says so, and the next sign-in makes a good file."""
    file.write_text(text)
    sessions = BrowserSessions(clock, file)
    assert "browsers sign in again" in caplog.text
    session = begun(sessions, ADA)

    assert ADA == BrowserSessions(clock, file).proof_of(session)


def test_a_file_that_cannot_be_written_keeps_nobody_from_signing_in(
    clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The session ends with the service, and the log says so."""
    sessions = BrowserSessions(clock, tmp_path / "missing" / "sessions.json")

    assert ADA == sessions.proof_of(begun(sessions, ADA))
    assert "cannot be written" in caplog.text


def test_a_session_that_begins_in_the_future_is_over(clock: SetClock, file: Path) -> None:
    """A clock that goes back by a year would let it go on for as long."""
    session = begun(BrowserSessions(clock, file), ADA)
    clock.now_s -= browser_sessions.CORRECTED_S + 1

    assert None is BrowserSessions(clock, file).proof_of(session)
