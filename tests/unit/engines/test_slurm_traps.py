"""What Slurm's commands may answer, as recorded from Slurm 22.05, and when that is the end of an allocation."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuqueue.engines.engine import AllocationRequest, EngineUnreachable, NotAccepted, Phase, Ref, Status, Uncertain
from gpuqueue.engines.slurm import Slurm, SlurmAccess, duration_of

KEY = "k3v9m2xqab"
REF = Ref(KEY, "7")
ABSENT_S = 300.0
#: Answers with what the test has written for the command: COMMAND.out, COMMAND.err, and COMMAND.code or COMMAND.hangs.
ANSWER = """\
#!/bin/sh
[ "$1" = env ] && shift 2
echo "$@" >> {place}/calls
[ -e {place}/$1.hangs ] && exec sleep 60
cat {place}/$1.out 2>/dev/null
cat {place}/$1.err >&2 2>/dev/null
exit $(cat {place}/$1.code 2>/dev/null || echo 0)
"""
REQUEST = AllocationRequest(gpus=2, duration_s=3600.0, script="#!/bin/bash\n")


@dataclass
class Recorded:
    """Commands with recorded answers, and a clock that the test moves."""

    place: Path
    now_s: float = 1000.0
    engine: Slurm = field(init=False)

    def __post_init__(self) -> None:
        """Write the program that answers."""
        program = self.place / "answer"
        program.write_text(ANSWER.format(place=self.place))
        program.chmod(0o755)
        access = SlurmAccess(wrapper=(str(program),), ask_s=5.0, submit_s=5.0, search_s=0.0, absent_s=ABSENT_S)
        self.engine = Slurm(access, clock=lambda: self.now_s)

    def says(self, command: str, out: str = "", err: str = "", code: int = 0) -> None:
        """Let a command answer so from now on."""
        (self.place / f"{command}.hangs").unlink(missing_ok=True)
        for name, text in (("out", out), ("err", err), ("code", str(code))):
            (self.place / f"{command}.{name}").write_text(text)

    def hangs(self, command: str) -> None:
        """Let a command never answer."""
        (self.place / f"{command}.hangs").touch()

    def status(self) -> Status:
        """Return how the allocation stands."""
        return self.engine.states([REF])[REF]

    def calls(self, command: str) -> list[str]:
        """Return the calls of a command."""
        lines = (self.place / "calls").read_text().splitlines()
        return [line for line in lines if line.split()[0] == command]


@pytest.fixture
def slurm(tmp_path: Path) -> Recorded:
    """Return a Slurm that lists nothing and has no accounting."""
    made = Recorded(tmp_path)
    made.says("squeue")
    made.says("sacct", err="Slurm accounting storage is disabled\n", code=1)
    return made


def row(state: str, job_id: str = "7", name: str = f"gpuqueue-{KEY}", left: str = "59:58", reason: str = "None") -> str:
    """Return a line of squeue."""
    return f"{job_id},{name},{state},2026-11-30T17:03:52,{left},nodeA,{reason}\n"


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", Phase.WAITING),
        ("CONFIGURING", Phase.WAITING),
        ("REQUEUED", Phase.WAITING),
        ("REQUEUE_HOLD", Phase.WAITING),
        ("RUNNING", Phase.RUNNING),
        ("COMPLETING", Phase.RUNNING),
        ("SUSPENDED", Phase.RUNNING),
        ("SIGNALING", Phase.RUNNING),
        ("A_STATE_OF_A_NEWER_SLURM", Phase.RUNNING),
        ("CANCELLED", Phase.ENDED),
        ("PREEMPTED", Phase.ENDED),
        ("NODE_FAIL", Phase.ENDED),
        ("DEADLINE", Phase.ENDED),
        ("TIMEOUT", Phase.ENDED),
    ],
)
def test_each_state_of_slurm_has_a_phase(slurm: Recorded, state: str, phase: Phase) -> None:
    """A state that is not known is not the end."""
    slurm.says("squeue", row(state))
    assert phase is slurm.status().phase


def test_a_running_job_has_a_node_and_a_time_left(slurm: Recorded) -> None:
    """The time is a duration, since the clocks differ. A job that waits says why."""
    slurm.says("squeue", row("RUNNING", left="1-02:03:04"))
    assert ("nodeA", 93784.0) == (slurm.status().node, slurm.status().left_s)
    slurm.says("squeue", row("PENDING", reason="Nodes required for job are DOWN, DRAINED or reserved"))
    assert "pending (Nodes required for job are DOWN, DRAINED or reserved)" == slurm.status().word


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("1-02:03:04", 93784.0),
        ("2:03:04", 7384.0),
        ("03:04", 184.0),
        ("0:00", 0.0),
        ("UNLIMITED", None),
        ("NOT_SET", None),
    ],
)
def test_a_duration_of_slurm_is_read(text: str, duration_s: float | None) -> None:
    """What is no duration is not known."""
    assert duration_s == duration_of(text)


def test_an_id_that_came_again_is_not_ours(slurm: Recorded) -> None:
    """Slurmctld lost the job and gave its id to another one, of another name."""
    slurm.says("squeue", row("RUNNING", name="gpuqueue-another2key"))
    assert Phase.UNKNOWN is slurm.status().phase


def test_absence_is_not_the_end(slurm: Recorded) -> None:
    """Not at once, and without accounting never."""
    assert Phase.UNKNOWN is slurm.status().phase
    slurm.now_s += 10 * ABSENT_S
    found = slurm.status()
    assert Phase.UNKNOWN is found.phase
    assert "not in squeue for 3000 s, and sacct does not answer: Slurm accounting storage is disabled" == found.word


def test_absence_and_accounting_are_the_end(slurm: Recorded) -> None:
    """Both are needed: five minutes without a break, and how it ended."""
    slurm.says("sacct", f"7|gpuqueue-{KEY}|CANCELLED by 1000|{int(time.time()) - 60}|{int(time.time())}\n")
    assert Phase.UNKNOWN is slurm.status().phase
    slurm.now_s += ABSENT_S
    assert (Phase.ENDED, "cancelled") == (slurm.status().phase, slurm.status().word)


def test_a_short_command_believes_what_ended_long_ago(slurm: Recorded) -> None:
    """A process that asks once has seen no absence, and by the accounting it ended more than five minutes ago."""
    slurm.says("sacct", f"7|gpuqueue-{KEY}|COMPLETED|{int(time.time()) - 900}|{int(time.time()) - 400}\n")
    assert Phase.ENDED is slurm.status().phase


def test_an_absence_begins_anew_after_each_answer_that_is_none(slurm: Recorded) -> None:
    """A restarted slurmctld lists nothing for a moment, then everything. A time without answers counts for nothing."""
    slurm.says("sacct", f"7|gpuqueue-{KEY}|COMPLETED|{int(time.time()) - 60}|{int(time.time())}\n")
    slurm.status()
    slurm.now_s += ABSENT_S - 1
    slurm.says("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    assert "squeue does not answer: slurm_load_jobs error: Unable to contact slurm controller" == slurm.status().word
    slurm.says("squeue")
    slurm.now_s += 2
    assert Phase.UNKNOWN is slurm.status().phase
    slurm.says("squeue", row("RUNNING"))
    slurm.now_s += ABSENT_S
    assert Phase.RUNNING is slurm.status().phase
    slurm.says("squeue")
    assert Phase.UNKNOWN is slurm.status().phase


def test_late_accounting_is_not_the_end(slurm: Recorded) -> None:
    """Sacct does not know the job yet, or still has it as running."""
    slurm.says("sacct")
    slurm.status()
    slurm.now_s += ABSENT_S
    assert "not in squeue for 300 s, and sacct does not know it" == slurm.status().word
    slurm.says("sacct", f"7|gpuqueue-{KEY}|RUNNING|{int(time.time()) - 900}|Unknown\n")
    assert (Phase.UNKNOWN, "not in squeue for 300 s, and sacct says running") == (
        slurm.status().phase, slurm.status().word,
    )  # fmt: skip


def test_the_last_of_several_records_counts(slurm: Recorded) -> None:
    """A job that was requeued has a record of its preemption, and one of what followed."""
    old, new = int(time.time()) - 2000, int(time.time()) - 1000
    first, second = f"7|gpuqueue-{KEY}|PREEMPTED|{old}|{old + 100}\n", f"7|gpuqueue-{KEY}|RUNNING|{new}|Unknown\n"
    slurm.says("sacct", second + first)
    slurm.status()
    slurm.now_s += ABSENT_S
    assert Phase.UNKNOWN is slurm.status().phase


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_a_command_that_hangs_is_not_the_end(slurm: Recorded, command: str) -> None:
    """It is killed after its time, and nothing is known."""
    slurm.engine = Slurm(SlurmAccess(wrapper=(str(slurm.place / "answer"),), ask_s=0.2, absent_s=0.0))
    slurm.hangs(command)
    assert f"{command} did not answer within 0.2 s" in slurm.status().word


def test_all_allocations_are_one_question(slurm: Recorded) -> None:
    """Slurm is not asked for each of them."""
    refs = [Ref(f"key{number}abc", str(number)) for number in range(50)]
    slurm.says("squeue", "".join(row("RUNNING", ref.id, f"gpuqueue-{ref.key}") for ref in refs))
    assert {Phase.RUNNING} == {found.phase for found in slurm.engine.states(refs).values()}
    assert 1 == len(slurm.calls("squeue"))


def test_words_of_commands_mean_nothing_to_a_shell(slurm: Recorded) -> None:
    """A wrapper such as ssh hands them to one."""
    slurm.says("sbatch", "7\n")
    slurm.engine.submit(REQUEST, KEY)
    slurm.status()
    slurm.engine.cancel(REF)
    text = (slurm.place / "calls").read_text()
    assert not set(text) & set("\"'`$|&;<>()[]{}*?!~#\\"), text


def test_a_refusal_is_certain_once_slurm_lists_nothing(slurm: Recorded) -> None:
    """The error of slurmctld is passed on."""
    err = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
    slurm.says("sbatch", err=err, code=1)
    with pytest.raises(NotAccepted, match="Requested node configuration is not available"):
        slurm.engine.submit(REQUEST, KEY)


@pytest.mark.parametrize(
    "err",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
        "ssh: Connection reset by peer\n",
        "",
    ],
)
def test_any_other_error_is_uncertain(slurm: Recorded, err: str) -> None:
    """Slurm lists no such job now, and may do so in a moment."""
    slurm.says("sbatch", err=err, code=1)
    with pytest.raises(Uncertain, match=f"Slurm may have accepted gpuqueue-{KEY}"):
        slurm.engine.submit(REQUEST, KEY)


def test_an_answer_without_an_id_is_searched_for(slurm: Recorded) -> None:
    """Sbatch printed a banner of the site only, and Slurm has the job."""
    slurm.says("sbatch", "Welcome to the cluster\n")
    with pytest.raises(Uncertain):
        slurm.engine.submit(REQUEST, KEY)
    slurm.says("squeue", row("PENDING"))
    assert REF == slurm.engine.submit(REQUEST, KEY)
    assert 1 == len(slurm.calls("sbatch"))


def test_nothing_is_submitted_while_slurm_does_not_answer(slurm: Recorded) -> None:
    """An earlier try could be there."""
    slurm.says("squeue", err="slurm_load_jobs error\n", code=1)
    slurm.says("sbatch", "7\n")
    with pytest.raises(EngineUnreachable):
        slurm.engine.submit(REQUEST, KEY)
    assert [] == slurm.calls("sbatch")


def test_the_newest_of_two_jobs_is_found(slurm: Recorded) -> None:
    """Whoever made the second one, it is the one that counts."""
    older = f"9,gpuqueue-{KEY},FAILED,2026-11-30T17:00:00,0:00,,None\n"
    slurm.says("squeue", older + row("RUNNING"))
    assert {REF: Phase.RUNNING} == {ref: found.phase for ref, found in slurm.engine.find([KEY]).items()}


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    """With what to do."""
    engine = Slurm(SlurmAccess(wrapper=(str(tmp_path / "nothing"),)))
    with pytest.raises(EngineUnreachable, match=r"nothing cannot be run .*set wrapper in \[burst.slurm\]"):
        engine.find([KEY])


def test_only_own_jobs_are_asked_for(slurm: Recorded) -> None:
    """The name of a job is seen by all, and another user may choose the same."""
    slurm.status()
    assert all("--me" in call.split() for call in slurm.calls("squeue"))
