"""What the follower of a whole job does, with an engine that answers as the test says. Real ones: tests/faults."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuqueue.engines.engine import AllocationRequest, EngineUnreachable, NotAccepted, Phase, Ref, Status, Uncertain
from gpuqueue.engines.whole_job import Account, WholeJob
from workers.whole import follower
from workers.whole.follower import Follower, code_of, was_asked
from workers.whole.work import End, Work, mark_asked

KEY, EARLIER = "w663c26a7j17n2", "w663c26a7j17n1"
RUNNING = Status(phase=Phase.RUNNING, word="running", node="node1")
ENDED = Status(phase=Phase.ENDED, word="failed")
UNKNOWN = Status(phase=Phase.UNKNOWN, word="not in squeue for 7 s")


@dataclass
class Answers:
    """An engine. ``submits`` are its answers to submits, ``course`` how the job stands, one after the other."""

    submits: list[Exception | str] = field(default_factory=lambda: ["7"])
    course: list[Status] = field(default_factory=lambda: [RUNNING, ENDED])
    account_of: Account | None = field(default_factory=lambda: Account(word="failed", exit_code=3, nodes="node1"))
    known: dict[str, Ref] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    cancelled: list[Ref] = field(default_factory=list)
    name: str = "slurm"

    def submit(self, request: AllocationRequest | WholeJob, key: str) -> Ref:
        """Answer as the test says; the last answer is repeated."""
        assert isinstance(request, WholeJob)
        self.submitted.append(key)
        answer = self.submits.pop(0) if len(self.submits) > 1 else self.submits[0]
        if isinstance(answer, Exception):
            raise answer
        self.known[key] = Ref(key, answer)
        return self.known[key]

    def states(self, refs: Collection[Ref]) -> Mapping[Ref, Status]:
        """Answer with the next step of the course."""
        step = self.course.pop(0) if len(self.course) > 1 else self.course[0]
        return dict.fromkeys(refs, step)

    def cancel(self, ref: Ref, *, now: bool = False) -> None:
        """Note it; then the job has ended."""
        assert now
        self.cancelled.append(ref)
        self.course = [ENDED]

    def find(self, keys: Collection[str]) -> Mapping[Ref, Status]:
        """Return what is known, with the next step of the course."""
        found = [self.known[key] for key in keys if key in self.known]
        return self.states(found) if found else {}

    def account(self, ref: Ref) -> Account | None:
        """Return what the test says."""
        assert ref in self.known.values()
        return self.account_of

    def alive(self) -> Sequence[Ref]:
        """Return all: nobody asks here."""
        return [*self.known.values()]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of the second attempt of job 17."""
    place = tmp_path / "17" / "2.b"
    place.mkdir(parents=True)
    return place


@pytest.fixture(autouse=True)
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the follower writes into the log."""
    found: list[str] = []
    monkeypatch.setattr(follower, "write", lambda _, part: found.append(part.decode()))
    monkeypatch.setattr(follower, "OUTPUT_S", 0.0)
    monkeypatch.setattr(follower, "PAUSES_S", ((0.0, 0.0),))
    return found


def following(run_dir: Path, engine: Answers, *, pauses: int = 1000, requeue: bool = True) -> Follower:
    """Return a follower that the shim ends after so many pauses."""
    exit_file = f"{run_dir}/{KEY}.exit"
    job = WholeJob(
        argv=("true",), directory="/tmp", gpus=1, output=f"{run_dir}/{KEY}.out", exit_file=exit_file, requeue=requeue
    )
    left = iter(range(pauses))

    def pause(_: float) -> None:
        made.ended = next(left, None) is None

    made = Follower(run_dir, Work(key=KEY, others=(EARLIER,), job=job), engine, pause=pause)
    return made


def test_the_work_is_taken_once_and_leaves_no_secret(run_dir: Path) -> None:
    """It comes back as it was written, and its file is gone."""
    job = WholeJob(
        argv=("a", "b"), directory="/", gpus=2, output="o", exit_file="e", signal=("USR1", 5.0), env={"KEY": "secret"}
    )
    work = Work(key=KEY, others=(EARLIER,), job=job)
    work.write(run_dir)

    assert work == Work.take(run_dir)
    assert "secret" not in repr(work)
    assert [] == [*run_dir.iterdir()]


def test_the_log_has_the_output_and_the_end_is_written_down(run_dir: Path, printed: list[str]) -> None:
    """The files of the job may be in the directory of the attempt that has submitted it."""
    first = run_dir.parent / "1.a"
    first.mkdir()
    (first / f"{KEY}.out").write_text("hello\n")
    assert 3 == following(run_dir, Answers()).follow()

    assert "hello\n" in printed
    end = End.read(run_dir)
    assert end is not None
    assert ("7", 3) == (end.ref, end.account.exit_code if end.account is not None else None)


def test_an_uncertain_submit_is_tried_again_with_the_same_key(run_dir: Path) -> None:
    """Until the engine says yes, or no."""
    engine = Answers(submits=[Uncertain("timed out"), EngineUnreachable("no sbatch"), "7"])
    assert 3 == following(run_dir, engine).follow()

    assert [KEY] * 3 == engine.submitted


def test_a_refusal_ends_the_run_with_its_words(run_dir: Path) -> None:
    """It is not tried again."""
    engine = Answers(submits=[NotAccepted("Slurm has refused: no such partition")])
    assert 1 == following(run_dir, engine).follow()

    end = End.read(run_dir)
    assert end is not None
    assert "Slurm has refused: no such partition" == end.refused


def test_a_living_job_of_an_earlier_attempt_is_followed(run_dir: Path) -> None:
    """Nothing is submitted beside it."""
    engine = Answers(known={EARLIER: Ref(EARLIER, "5")}, course=[RUNNING, RUNNING, ENDED])
    assert 3 == following(run_dir, engine).follow()

    assert [] == engine.submitted


def test_an_ended_job_of_an_earlier_attempt_is_left(run_dir: Path) -> None:
    """Its end was reported, so this attempt has a job of its own."""
    engine = Answers(known={EARLIER: Ref(EARLIER, "5")}, course=[ENDED])
    following(run_dir, engine).follow()

    assert [KEY] == engine.submitted


@pytest.mark.parametrize("is_known", [True, False])
def test_an_earlier_job_that_is_not_listed_is_no_living_one(run_dir: Path, *, is_known: bool) -> None:
    """If the accounting says how it ended, this attempt has a job of its own; else it waits until somebody knows."""
    engine = Answers(known={EARLIER: Ref(EARLIER, "5")}, course=[UNKNOWN])
    if not is_known:
        engine.account_of = None
    following(run_dir, engine, pauses=10).follow()

    assert ([KEY] if is_known else []) == engine.submitted


def killed_before(run_dir: Path, *, s_ago: float) -> Path:
    """Return the directory of an attempt that asked the engine for the job so long ago, and was killed."""
    first = run_dir.parent / "1.a"
    first.mkdir()
    mark_asked(first, KEY)
    at_s = time.time() - s_ago
    os.utime(first / f"{KEY}.asked", (at_s, at_s))
    return first


def test_what_a_killed_attempt_has_handed_over_is_followed(run_dir: Path) -> None:
    """Also where the job must not run twice."""
    killed_before(run_dir, s_ago=1)
    engine = Answers(known={KEY: Ref(KEY, "5")})
    assert 3 == following(run_dir, engine, requeue=False).follow()

    assert [] == engine.submitted


def test_what_may_still_arrive_at_the_engine_is_waited_for(run_dir: Path, printed: list[str]) -> None:
    """The killed follower has left its sbatch behind, which is slow."""
    killed_before(run_dir, s_ago=1)
    engine = Answers()
    following(run_dir, engine, pauses=5).follow()

    assert [] == engine.submitted
    assert any("was asked for it a moment ago, and does not list it; it is tried again" in line for line in printed)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_job_that_must_not_run_twice_is_handed_over_once(run_dir: Path, *, requeue: bool) -> None:
    """The engine has forgotten it, and left no exit code: nobody knows whether it ran."""
    killed_before(run_dir, s_ago=follower.ARRIVES_S + 1)
    engine = Answers()
    assert (3 if requeue else 1) == following(run_dir, engine, requeue=requeue).follow()

    assert ([KEY] if requeue else []) == engine.submitted
    end = End.read(run_dir)
    assert end is not None
    assert ("" if requeue else "it must not run twice (--no-requeue)") in end.refused


def test_the_exit_code_of_a_job_that_the_engine_has_forgotten_counts(run_dir: Path, printed: list[str]) -> None:
    """It ended long ago, while nobody followed it. It is not run again, and its log is there."""
    first = killed_before(run_dir, s_ago=9000)
    (first / f"{KEY}.exit").write_text("6\n")
    (first / f"{KEY}.out").write_text("hello\n")
    engine = Answers()

    assert (6, []) == (following(run_dir, engine).follow(), engine.submitted)
    assert "hello\n" in printed


def test_what_is_unknown_is_followed_on(run_dir: Path) -> None:
    """Until the shim ends this process, without a word about the end."""
    engine = Answers(course=[RUNNING, UNKNOWN])
    assert 1 == following(run_dir, engine, pauses=50).follow()

    assert (None, []) == (End.read(run_dir), engine.cancelled)


def test_the_jobs_own_file_is_trusted_when_the_engine_has_forgotten(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while: it may be about to run again."""
    monkeypatch.setattr(follower, "TRUST_S", 0.0)
    (run_dir / f"{KEY}.exit").write_text("6\n")
    engine = Answers(course=[UNKNOWN], account_of=None)

    assert 6 == following(run_dir, engine).follow()


def test_a_cancelled_run_cancels_the_job(run_dir: Path) -> None:
    """And waits for its end."""
    (run_dir / "cancel").write_text("cancelled")
    engine = Answers(course=[RUNNING])
    following(run_dir, engine, pauses=3).follow()

    assert [Ref(KEY, "7")] == engine.cancelled
    assert End.read(run_dir) is not None


@pytest.mark.parametrize("text", ["lost", None])
def test_a_follower_that_only_ends_leaves_the_job(run_dir: Path, text: str | None) -> None:
    """The host goes down, or the lease was not renewed: the next attempt finds the job."""
    if text is not None:
        (run_dir / "cancel").write_text(text)
    engine = Answers(course=[RUNNING])
    assert 1 == following(run_dir, engine, pauses=3).follow()

    assert (None, []) == (End.read(run_dir), engine.cancelled)


def test_a_request_to_end_may_be_a_link(run_dir: Path) -> None:
    """On a full disk. A preemption is one, too."""
    (run_dir / "cancel").symlink_to("idle")
    assert was_asked(run_dir)
    (run_dir / "cancel").unlink()
    (run_dir / "preempt.json").write_text(json.dumps({}))
    assert was_asked(run_dir)


def test_exit_codes() -> None:
    """As in a shell. Slurm's 0 of a job that did not complete is none."""
    assert 137 == code_of(End(account=Account(word="out_of_memory", exit_code=0, signal=9)))
    assert 0 == code_of(End(account=Account(word="completed", exit_code=0)))
    assert 1 == code_of(End(account=Account(word="timeout", exit_code=0)))
    assert 4 == code_of(End(code=4))
