"""The audit log: its journal, and its rows in the history, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpuqueue.clock import SystemClock
from gpuqueue.errors import HistoryUnreachable, Refused, StoreUnreachable, Unreachable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.audit import AuditEntry, AuditOutcome, AuditQuery
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via, anonymous
from gpuqueue.service.identity import audit_journal
from gpuqueue.service.identity.audit_journal import FEW_REFUSALS, PERIOD_S, AuditJournal

ADA = Caller(account="ada", uid=1001, via=Via.SOCKET, scopes=ALL_SCOPES, address="pid 12")
BOB = Caller(account="bob", uid=1002, via=Via.TOKEN, scopes=ALL_SCOPES, token_id="abcdefgh", address="10.0.0.7")


@pytest.fixture
def journal(tmp_path: Path) -> AuditJournal:
    """Return an empty journal."""
    return AuditJournal(tmp_path / "audit")


def test_a_change_is_in_the_log_with_its_outcome(database: HistoryDatabase, journal: AuditJournal) -> None:
    """The log says who did what from where, and what came of it, newest first."""
    with journal.change(ADA, "cancel", jobs=("12", "13_2")):
        pass
    with pytest.raises(Refused), journal.change(BOB, "edit", jobs=("12",), detail={"mem": "6G"}):
        raise Refused("only ada may change it")
    with pytest.raises(StoreUnreachable), journal.change(BOB, "hold"):
        raise StoreUnreachable("the store does not answer")
    with journal.change(BOB, "submit") as change:
        change.concerns("14")
    journal.refused(BOB, "cancel", "only ada may change this job", jobs=("12",))
    journal.drain(database)

    refused, submit, hold, edit, cancel = database.audit_entries(AuditQuery())
    assert (AuditOutcome.DONE, ("12", "13_2")) == (cancel.outcome, cancel.jobs)
    actual = (cancel.account, cancel.uid, cancel.via, cancel.token_id, cancel.address)
    assert ("ada", 1001, "socket", None, "pid 12") == actual
    assert (AuditOutcome.REFUSED, "only ada may change it", {"mem": "6G"}) == (edit.outcome, edit.reason, edit.detail)
    assert ("bob", "token", "abcdefgh", "10.0.0.7") == (edit.account, edit.via, edit.token_id, edit.address)
    assert AuditOutcome.FAILED is hold.outcome
    assert (AuditOutcome.DONE, ("14",)) == (submit.outcome, submit.jobs)
    assert (AuditOutcome.REFUSED, "cancel") == (refused.outcome, refused.action)


def test_since_user_and_action_narrow_the_list_and_so_does_the_limit(
    database: HistoryDatabase, journal: AuditJournal
) -> None:
    for caller, action in ((ADA, "cancel"), (BOB, "cancel"), (BOB, "hold")):
        with journal.change(caller, action):
            pass
    journal.drain(database)

    def found(**query: object) -> list[tuple[str, str]]:
        return [(each.account, each.action) for each in database.audit_entries(AuditQuery(**query))]

    assert [("bob", "hold"), ("bob", "cancel")] == found(account="bob")
    assert [("bob", "cancel"), ("ada", "cancel")] == found(action="cancel")
    assert [("bob", "hold")] == found(limit=1)
    assert [] == found(since=datetime.now(timezone.utc) + timedelta(hours=1))
    assert 3 == len(found(since=datetime.now(timezone.utc) - timedelta(hours=1)))


def test_the_log_waits_for_a_database_that_is_away(tmp_path: Path, database: HistoryDatabase) -> None:
    """While the history is away, changes go on, and every record is there once it is back."""
    journal = AuditJournal(tmp_path / "audit")
    away = HistoryDatabase(f"sqlite:///{tmp_path / 'nowhere' / 'history.db'}")
    for number in range(3):
        with journal.change(ADA, "cancel", jobs=(str(number),)):
            pass
        with pytest.raises(HistoryUnreachable):
            journal.drain(away)

    again = AuditJournal(tmp_path / "audit")  # the service has restarted meanwhile
    assert 3 == again.drain(database)
    assert ["2", "1", "0"] == [each.jobs[0] for each in database.audit_entries(AuditQuery())]
    assert 0 == again.drain(database)
    assert [] == list((tmp_path / "audit").iterdir())


def test_a_drain_that_is_repeated_doubles_nothing(
    database: HistoryDatabase, journal: AuditJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service killed between the commit and the deletion of the file writes the same rows again."""
    with journal.change(ADA, "cancel"):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(OSError, match="I/O error"):
            journal.drain(database)

    journal.drain(database)

    (entry,) = database.audit_entries(AuditQuery())
    assert AuditOutcome.DONE is entry.outcome


def test_nothing_is_changed_that_cannot_be_recorded(journal: AuditJournal, tmp_path: Path) -> None:
    """If the journal cannot be written, the change is refused before it is made."""
    (tmp_path / "audit").write_text("a file in the place of the directory")

    refusal = pytest.raises(Unreachable, match="the audit log cannot be written, so nothing is changed")
    with refusal, journal.change(ADA, "cancel"):
        pytest.fail("the change was made")


def test_when_the_history_is_away_for_too_long_changes_are_refused(database: HistoryDatabase, tmp_path: Path) -> None:
    # No record is dropped.
    journal, made = AuditJournal(tmp_path / "audit", most_bytes=5000), 0
    with pytest.raises(Unreachable, match="bytes wait for the history database"):
        while True:
            with journal.change(ADA, "cancel", jobs=(str(made),)):
                made += 1

    journal.drain(database)
    assert made == len(database.audit_entries(AuditQuery()))
    with journal.change(ADA, "cancel"):
        pass


def test_a_short_write_leaves_no_half_line(
    database: HistoryDatabase, journal: AuditJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the beginning of a line is taken back, so that the next line can be read."""
    with journal.change(ADA, "cancel"):
        pass
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(audit_journal.os, "write", lambda fd, content: write(fd, content[:20]))
        with pytest.raises(Unreachable, match="No space left"), journal.change(ADA, "hold"):
            pytest.fail("the change was made")
    with journal.change(ADA, "release"):
        pass

    assert 2 == journal.drain(database)
    assert ["release", "cancel"] == [each.action for each in database.audit_entries(AuditQuery())]


def test_a_damaged_outcome_leaves_the_beginning(
    database: HistoryDatabase, journal: AuditJournal, tmp_path: Path
) -> None:
    """Of a change that begins and ends in one drain only the outcome is read, unless it cannot be read."""
    for act in ("cancel", "hold"):
        with journal.change(ADA, act, jobs=("1",)):
            pass
    (file,) = (tmp_path / "audit").iterdir()
    file.write_bytes(file.read_bytes()[:-20] + b"\n")

    assert 2 == journal.drain(database)
    assert [("cancel", AuditOutcome.DONE), ("hold", None)] == [(e.action, e.outcome) for e in entries(database)]


def test_a_record_survives_the_death_of_the_service(database: HistoryDatabase, tmp_path: Path) -> None:
    """A service that is killed in the middle of a change leaves a record without an outcome."""
    script = f"""
import os, signal
from pathlib import Path
from gpuqueue.model.caller import Caller, Via
from gpuqueue.service.identity.audit_journal import AuditJournal
with AuditJournal(Path({str(tmp_path / "audit")!r})).change(Caller(account="ada", uid=1001, via=Via.SOCKET), "cancel"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert -signal.SIGKILL == done.returncode

    AuditJournal(tmp_path / "audit").drain(database)

    (entry,) = database.audit_entries(AuditQuery())
    assert ("ada", "cancel", None) == (entry.account, entry.action, entry.outcome)


def test_writers_and_a_drain_lose_nothing(database: HistoryDatabase, journal: AuditJournal) -> None:
    """Threads write while another one drains all the time: every change is in the log once."""
    stop = threading.Event()
    drain = threading.Thread(target=journal.keep_drained, args=(database, stop, 0.0))
    drain.start()

    def write(name: str) -> None:
        for number in range(100):
            with journal.change(ADA, "cancel", jobs=(f"{name}{number}",)):
                pass

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    stop.set()
    drain.join()

    entries = database.audit_entries(AuditQuery(limit=None))
    assert sorted(f"{name}{number}" for name in "abc" for number in range(100)) == sorted(e.jobs[0] for e in entries)
    assert {AuditOutcome.DONE} == {entry.outcome for entry in entries}


def test_text_that_no_database_accepts_does_not_stop_the_log(database: HistoryDatabase, journal: AuditJournal) -> None:
    """A NUL or a lone surrogate in a name is replaced, and the entries behind it are stored as well."""
    with journal.change(ADA, "can\0cel", jobs=("1\0",), detail={"name": "\udcff"}):
        pass
    with journal.change(ADA, "hold"):
        pass

    assert 2 == journal.drain(database)
    assert ["hold", "can\N{REPLACEMENT CHARACTER}cel"] == [e.action for e in database.audit_entries(AuditQuery())]


def test_only_the_service_reads_the_journal(journal: AuditJournal, tmp_path: Path) -> None:
    """The files are 0600 below a directory that is 0700."""
    with journal.change(ADA, "cancel"):
        (file,) = (tmp_path / "audit").iterdir()
    assert (0o600, 0o700) == (file.stat().st_mode & 0o777, (tmp_path / "audit").stat().st_mode & 0o777)


class Later(SystemClock):
    """The clock of this machine, which the test sets forward."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        """Return the seconds of this machine, and those that the test has added."""
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
def clock() -> Later:
    """Return a clock of this test."""
    return Later()


def refused(journal: AuditJournal, job: int, caller: Caller = BOB) -> None:
    """Refuse a change that was begun, as the queue does."""
    with pytest.raises(Refused), journal.change(caller, "cancel", jobs=(str(job),)):
        raise Refused(f"job {job} has ended")


def entries(database: HistoryDatabase) -> list[AuditEntry]:
    """Return the entries, the oldest first."""
    return database.audit_entries(AuditQuery(limit=None))[::-1]


def test_refusals_that_repeat_are_one_entry_with_their_number(
    database: HistoryDatabase, tmp_path: Path, clock: Later
) -> None:
    """The first ones have entries of their own. Later periods, other acts and other callers are counted anew."""
    journal = AuditJournal(tmp_path / "audit", clock)
    for number in range(FEW_REFUSALS + 30):
        refused(journal, number)
        if number % 2:
            journal.drain(database)  # also between the beginning of a change and its outcome
    for number in range(FEW_REFUSALS + 7):
        journal.refused(BOB, "hold", "only ada may change this job", jobs=(str(number),))
    refused(journal, 77, ADA)
    with journal.change(BOB, "cancel", jobs=("99",)):
        pass
    journal.drain(database)
    before = entries(database)
    clock.ahead_s += PERIOD_S
    journal.drain(database)
    refused(journal, 78)
    journal.drain(database)

    found = entries(database)
    single = [each.jobs for each in before if each.account == "bob" and each.action == "cancel"]
    assert [*((str(number),) for number in range(FEW_REFUSALS)), ("99",)] == single
    assert {None} == {each.detail.get("times") for each in before}
    folded = {each.action: each for each in found if "times" in each.detail}
    assert ("30", "7") == (folded["cancel"].detail["times"], folded["hold"].detail["times"])
    actual = (folded["cancel"].account, folded["cancel"].outcome, folded["cancel"].reason, folded["cancel"].jobs[0])
    assert ("bob", AuditOutcome.REFUSED, "job 34 has ended", "5") == actual
    assert len(before) + 3 == len(found)
    assert ("78",) == found[-1].jobs
    assert {AuditOutcome.REFUSED, AuditOutcome.DONE} == {each.outcome for each in found}


def test_a_change_that_was_begun_before_a_drain_is_folded(database: HistoryDatabase, journal: AuditJournal) -> None:
    """Its entry without an outcome is in the history already, and goes when the refusal is counted."""
    for number in range(FEW_REFUSALS):
        refused(journal, number)
    with pytest.raises(Refused), journal.change(BOB, "cancel", jobs=("50",)):
        journal.drain(database)
        assert [("50",)] == [each.jobs for each in entries(database) if each.outcome is None]
        raise Refused("job 50 has ended")

    journal.drain(database)

    assert FEW_REFUSALS == len(entries(database))


def test_what_is_read_again_and_again_is_two_entries(
    database: HistoryDatabase, tmp_path: Path, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of a job is written before it happens, or the read is refused. The others are counted."""
    journal = AuditJournal(tmp_path / "audit", clock)
    with monkeypatch.context() as patch:
        patch.setattr(audit_journal, "AuditFile", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(Unreachable, match="No space left"):
            journal.noted(ADA, "see-logs", jobs=("12",))
    for job in ("12", "12", "13", "12"):
        journal.noted(ADA, "see-logs", jobs=(job,))
    journal.drain(database)
    assert [("12",), ("13",)] == [each.jobs for each in entries(database)]
    clock.ahead_s += PERIOD_S
    journal.drain(database)

    found = entries(database)
    assert [("2", ("12",))] == [(each.detail["times"], each.jobs) for each in found if each.detail]
    assert {AuditOutcome.DONE} == {each.outcome for each in found}


def test_a_service_that_stops_does_not_wait_for_the_end_of_a_period(
    database: HistoryDatabase, journal: AuditJournal
) -> None:
    stop = threading.Event()
    stop.set()
    for number in range(FEW_REFUSALS + 4):
        refused(journal, number)
    journal.keep_drained(database, stop, 0.0)

    assert ["4"] == [each.detail["times"] for each in entries(database) if each.detail]


def test_a_flood_of_wrong_proofs_takes_little_memory_and_disk(
    database: HistoryDatabase, tmp_path: Path, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each network has one entry and a count; above a number of networks, all others are counted together."""
    monkeypatch.setattr(audit_journal, "MOST_GROUPS", 20)
    journal = AuditJournal(tmp_path / "audit", clock)
    for number in range(3000):
        journal.refused(anonymous(f"10.0.{number // 250}.{number % 250}"), "sign-in", "not valid", detail={})
    journal.refused(BOB, "cancel", "not yours")
    clock.ahead_s += PERIOD_S
    journal.drain(database)

    found = entries(database)
    assert 20 + 1 + 1 + 1 == len(found)  # with that of bob, and one of those that are counted together
    assert [("2979", "", "")] == [(each.detail["times"], each.account, each.address) for each in found if each.detail]


def test_a_full_journal_leaves_out_refusals(tmp_path: Path) -> None:
    """Refusals change nothing, so they neither fill the disk further nor are an error."""
    journal = AuditJournal(tmp_path / "audit", most_bytes=2000)
    for number in range(200):
        journal.refused(anonymous(f"10.0.0.{number}"), "sign-in", "not valid")

    (file,) = (tmp_path / "audit").iterdir()
    assert file.stat().st_size <= 2000
