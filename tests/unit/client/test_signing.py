"""What the service signs, and what it signs again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from factories import ADA, make_spec
from signed_runs import JOB, KEY, member_of, signed

from gpuqueue.client.signing import Signer
from gpuqueue.errors import Refused
from gpuqueue.model import ticket
from gpuqueue.model.array import Array, Indexes, Member
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.sweep import Axis
from gpuqueue.model.terminal_size import Window

SIGNER = Signer(KEY)
ENV = {"PATH": "/usr/bin", "A": "1", "HF_TOKEN": "hunter2"}
WHOLE = make_spec(
    env=ENV, argv=("train", "{lr}"), array=Array(indexes=Indexes.parse("0-3"), axes=(Axis("lr", "1..4"),))
)


def job(spec: JobSpec, job_id: int = JOB, member: Member | None = None) -> Job:
    """Return an ended job with *spec*."""
    now = datetime.now(timezone.utc)
    return Job(id=job_id, spec=spec, state=JobState.FAILED, submitted_at=now, member=member)


def opened(spec: JobSpec) -> dict[str, Any]:
    """Return the statement of the ticket of *spec*."""
    return ticket.opened(KEY, spec.ticket or "") or pytest.fail("it has no genuine ticket")


def test_a_ticket_names_all_that_runs_and_no_value_of_a_variable() -> None:
    """PATH is in it as a text, other variables by their digests, and of secrets the names."""
    found = opened(signed(make_spec(env=ENV, argv=("train", "--x"), cwd="/h", pty=Window(typed=True))))

    assert (JOB, "ada", ADA.uid, ["train", "--x"], "/h", True) == tuple(
        found[name] for name in ("job", "user", "uid", "argv", "cwd", "typed")
    )
    assert ("/usr/bin", ["HF_TOKEN"]) == (found["path"], found["secrets"])
    assert "hunter2" not in json.dumps(found)


def test_a_ticket_is_the_same_in_each_process_for_the_same_job() -> None:
    """The order of the variables does not matter: the encoding is canonical."""
    turned = dict(reversed(ENV.items()))

    assert {**opened(signed(make_spec(env=ENV))), "until": 0} == {**opened(signed(make_spec(env=turned))), "until": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ("train", "-y")},
        {"cwd": "/other"},
        {"env": {**ENV, "A": "2"}},
        {"env": {**ENV, "HF_TOKEN": "other"}},
        {"env": {**ENV, "PATH": "/bin"}},
        {"env": {**ENV, "B": ""}},
        {"account": Account(name="bob", uid=ADA.uid, host="h")},
        {"account": Account(name="ada", uid=ADA.uid + 1, host="h")},
        {"umask": 0o077},
        {"interpreter": "train"},
        {"environment": "torch"},
        {"snapshot": f"{'ab' * 32}:."},
        {"array": Array(indexes=Indexes.parse("0-3"))},
        {"pty": Window()},
        {"pty": Window(typed=True)},
    ],
)
def test_each_signed_field_makes_another_statement(changes: dict[str, Any]) -> None:
    """No two jobs that run differently have the same statement."""
    one, other = (opened(signed(make_spec(**{"env": ENV, **each}))) for each in ({}, changes))

    assert {**one, "until": 0} != {**other, "until": 0}


def test_a_ticket_expires_after_the_earliest_start() -> None:
    """90 days after the submit, or after the time that the job waits for."""
    now = datetime.now(timezone.utc)
    later = opened(signed(make_spec(waits=Waits(begin_at=now + timedelta(days=400)))))["until"]

    assert 90 == pytest.approx((opened(signed(make_spec()))["until"] - now.timestamp()) / 86400, abs=0.1)
    assert 490 == pytest.approx((later - now.timestamp()) / 86400, abs=0.1)


def test_an_edit_renews_a_genuine_ticket_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was not signed, or that somebody has changed in the store, gets no ticket by an edit."""
    spec = signed(make_spec(env=ENV))
    monkeypatch.setattr("gpuqueue.client.signing.time.time", lambda: opened(spec)["until"] + 1.0)

    edited = SIGNER.renewed(replace(spec, mem_bytes=2**33, device=DeviceFilter.CPU, name="other"), JOB)
    assert opened(edited)["until"] > opened(spec)["until"]
    for changed in (
        replace(spec, argv=("evil",)),
        replace(spec, env={**ENV, "LD_PRELOAD": "/tmp/x"}),
        replace(spec, account=Account(name="bob", uid=1, host="h")),
        replace(spec, ticket=None),
        signed(make_spec(env=ENV), bytes(32)),
    ):
        assert changed is SIGNER.renewed(changed, JOB)
    assert spec is SIGNER.renewed(spec, JOB + 1)


@pytest.mark.parametrize("env", [ENV, {"PATH": "/usr/bin", "A": "1"}, None], ids=["whole", "no secrets", "removed"])
def test_what_was_signed_runs_again(env: dict[str, str] | None) -> None:
    """The history removes the secrets of an ended job, and all of its environment later."""
    SIGNER.check(job(signed(make_spec(env=ENV))), "7", env)
    SIGNER.check(job(replace(signed(WHOLE), env={})), "7", env)
    member, member_id = member_of(WHOLE, 2)
    SIGNER.check(job(member, member_id, Member(JOB, 2)), "7_2", env)


FORGED: dict[str, Callable[[JobSpec], JobSpec]] = {
    "command": lambda spec: replace(spec, argv=("evil",)),
    "directory": lambda spec: replace(spec, cwd="/tmp"),
    "account": lambda spec: replace(spec, account=Account(name="bob", uid=1, host="h")),
    "code": lambda spec: replace(spec, snapshot=f"{'ab' * 32}:."),
    "Python": lambda spec: replace(spec, environment="torch"),
    "ticket": lambda spec: replace(spec, ticket=signed(spec, bytes(32)).ticket),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_a_worker_has_made_up_is_not_signed_by_a_retry(what: str) -> None:
    """A job in the store or the history that is not what its submitter asked for is refused, also as a member."""
    with pytest.raises(Refused, match="is not what its submitter asked for: submit it again"):
        SIGNER.check(job(FORGED[what](signed(make_spec(env=ENV)))), "7", ENV)
    member, member_id = member_of(WHOLE, 2)
    with pytest.raises(Refused, match="is not what its submitter asked for: submit it again"):
        SIGNER.check(job(FORGED[what](member), member_id, Member(JOB, 2)), "7_2", ENV)


@pytest.mark.parametrize(
    "env", [{**ENV, "A": "2"}, {**ENV, "HF_TOKEN": "t"}, {**ENV, "LD_PRELOAD": "x"}, {**ENV, "PATH": "/tmp"}, {}]
)
def test_an_environment_that_was_changed_runs_not_again(env: dict[str, str]) -> None:
    """Neither in the store nor in the history."""
    with pytest.raises(Refused, match="is not what its submitter asked for"):
        SIGNER.check(job(signed(make_spec(env=ENV))), "7", env)


def test_another_member_or_job_is_not_the_signed_one() -> None:
    """A ticket is for one job, and each member has its own values."""
    member, member_id = member_of(WHOLE, 2)
    for wrong in (job(member, member_id + 1, Member(JOB, 3)), job(member, member_id, Member(JOB, 3)), job(member, 9)):
        with pytest.raises(Refused, match="is not what its submitter asked for"):
            SIGNER.check(wrong, "7_3", ENV)
    with pytest.raises(Refused, match="is not what its submitter asked for"):
        SIGNER.check(job(signed(make_spec(env=ENV)), JOB + 1), "8", ENV)


def test_a_job_from_before_the_key_must_be_submitted_again() -> None:
    """Nobody knows whether its submitter asked for it."""
    with pytest.raises(Refused, match="job 7 was submitted before this service signed its jobs: submit it again"):
        SIGNER.check(job(make_spec(env=ENV)), "7", ENV)


def test_a_service_without_its_key_does_not_start(tmp_path: Path) -> None:
    """It would sign nothing, and no job would start."""
    with pytest.raises(Refused, match=r"the key .*missing cannot be used: No such file .*setting ticket_key_file"):
        Signer.load(tmp_path / "missing")
    (tmp_path / "key").write_text("x")
    with pytest.raises(Refused, match="holds no key"):
        Signer.load(tmp_path / "key")
