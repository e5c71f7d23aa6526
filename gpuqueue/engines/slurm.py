"""Slurm: allocations by its commands sbatch, squeue, scancel and sacct, here or on a login node.

- The key is the name and the comment of the job, and lists are filtered by name and by the own account. So neither a
  job id that comes again nor the job of another user is taken for ours.
- The script goes through standard input. Slurm shows it to nobody but the job's user and its own admins; the command
  line of sbatch, which all users see, has no secret.
- No text from Slurm is trusted to be there in time: each command has a limit, and squeue is asked for all allocations
  at once. sacct is asked only about those that squeue does not list.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.engines import slurm_whole as whole
from gpuqueue.engines.absence import Absences
from gpuqueue.engines.engine import (
    ABSENT_S,
    AllocationRequest,
    EngineUnreachable,
    NotAccepted,
    Phase,
    Ref,
    Status,
    Uncertain,
    check_key,
    first,
)
from gpuqueue.engines.whole_job import Account, WholeJob
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import in_one_line, short

if TYPE_CHECKING:
    from gpuqueue.model.burst import PilotSettings

#: The program of a pilot, if the settings name none: the same path as here.
PROGRAM = ""
#: Time limits of a question and of a submit, in seconds. A busy slurmctld lets sbatch wait for a minute.
ASK_S, SUBMIT_S = 30.0, 120.0
#: How often, and for how long, an allocation is searched for after a submit that has failed, in seconds.
SEARCH_STEP_S, SEARCH_S = 2.0, 20.0
#: How far back sacct searches.
SACCT_SINCE = "now-30days"
NAME = "gpuqueue-"
#: Words of Slurm for a job that waits, also once more, and for one that is over. All others run or are cleaned up.
_WAITING = frozenset(
    "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split()  # noqa: SIM905 - a list of words
)
_ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()  # noqa: SIM905
)
#: What sbatch says when slurmctld itself has refused the request. After any other error it may have accepted it.
_REFUSED = re.compile(r"batch job submission failed|invalid|unrecogni[sz]ed", re.IGNORECASE)
_NOT_SURE = re.compile(r"time(d)? ?out|contact|connect|socket|communicat|receive", re.IGNORECASE)
#: Columns of squeue: no character means anything to a shell, for wrappers such as ssh. The last may hold commas.
_COLUMNS = "%i,%j,%T,%V,%L,%N,%r"
#: What scancel says of a job that is over, or that no slurmctld knows.
_NO_JOB = re.compile(r"invalid job id|already completing or completed|job not running|no active", re.IGNORECASE)
_PROGRAMS = frozenset(("sbatch", "squeue", "scancel", "sacct", "scontrol"))
_PREFIX = re.compile(r"^(\w+: )?error: ")
_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmAccess:
    """How Slurm is reached: ``wrapper`` before each command, such as ``ssh login``, and more ``options`` for sbatch.

    ``logs`` is the directory for the logs of pilots on the machines of Slurm. Empty: the home there.
    """

    wrapper: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    logs: str = ""
    ask_s: float = ASK_S
    submit_s: float = SUBMIT_S
    search_s: float = SEARCH_S
    absent_s: float = ABSENT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One job as squeue or sacct lists it. ``submitted`` is Slurm's text, which sorts by time."""

    ref: Ref
    state: str
    submitted: str
    left_s: float | None = None
    node: str | None = None
    reason: str = ""

    @property
    def phase(self) -> Phase:
        if self.state in _WAITING:
            return Phase.WAITING
        return Phase.ENDED if self.state in _ENDED else Phase.RUNNING

    @property
    def status(self) -> Status:
        word = self.state.lower()
        if self.phase in {Phase.WAITING, Phase.ENDED} and self.reason not in {"", "None"}:
            word = f"{word} ({self.reason})"
        running = self.phase is Phase.RUNNING
        return Status(
            phase=self.phase, word=word, node=self.node if running else None, left_s=self.left_s if running else None
        )


class Slurm:
    """Slurm as an engine. One object watches absences over its life; calls may come from one thread at a time."""

    name = "slurm"

    def __init__(self, access: SlurmAccess | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access or SlurmAccess()
        self._clock = clock
        self._absences = Absences(self._access.absent_s)

    # ---- submit --------------------------------------------------------------------------------------------------

    def submit(self, request: AllocationRequest | WholeJob, key: str) -> Ref:
        """Submit a job. See :meth:`gpuqueue.engines.engine.Engine.submit`."""
        check_key(key)
        known = first(self.find([key]))
        if known is not None:
            return known
        if isinstance(request, AllocationRequest):
            words, script = self._words_of(request, key), request.script
        else:
            words, script = whole.words_of(request, f"{NAME}{key}", self._access.options), whole.script_of(request)
        try:
            done = self._run(words, limit_s=self._access.submit_s, script=script)
        except EngineUnreachable as error:
            trouble, is_refused = str(error), False
        else:
            job_id = done.stdout.strip().partition(";")[0]
            if done.returncode == 0 and job_id.isdecimal():  # whatever it wrote to its standard error
                return Ref(key, job_id)
            trouble = _last(done.stderr) or f"sbatch ended with {done.returncode}"
            is_refused = bool(_REFUSED.search(done.stderr)) and not _NOT_SURE.search(done.stderr)
        return self._found_after(key, trouble, is_refused=is_refused)

    def _found_after(self, key: str, trouble: str, *, is_refused: bool) -> Ref:
        """Return the job that was accepted although sbatch said that there is *trouble*."""
        until_s = self._clock() + self._access.search_s
        answered = False
        while True:
            try:
                found = first(self.find([key]))
                answered = True
            except EngineUnreachable:
                found = None
            if found is not None:
                return found
            if (answered and is_refused) or self._clock() >= until_s:
                break
            time.sleep(SEARCH_STEP_S)
        if answered and is_refused:
            raise NotAccepted(f"Slurm has refused: {trouble}")
        raise Uncertain(f"Slurm may have accepted {NAME}{key}: {trouble}")

    def _words_of(self, request: AllocationRequest, key: str) -> list[str]:
        """Return the command. A later option takes precedence, so those of the site come last."""
        minutes = math.ceil(request.duration_s / 60)
        return [
            "sbatch",
            "--parsable",
            f"--job-name={NAME}{key}",
            f"--comment={NAME}{key}",
            "--nodes=1",
            "--ntasks=1",
            f"--gres=gpu:{request.gpus}",
            f"--time={minutes}",
            f"--deadline=now+{math.ceil(request.wait_s) + minutes * 60}",
            f"--signal=B:TERM@{math.ceil(request.warning_s)}",
            "--no-requeue",
            "--export=NONE",
            f"--output={self._access.logs and f'{self._access.logs}/'}{NAME}{key}.log",
            *self._access.options,
        ]

    # ---- states --------------------------------------------------------------------------------------------------

    def states(self, refs: Collection[Ref]) -> Mapping[Ref, Status]:
        """Return how *refs* stand. See :meth:`gpuqueue.engines.engine.Engine.states`."""
        if not refs:
            return {}
        try:
            rows = {row.ref: row for row in self._queue([ref.key for ref in refs])}
        except EngineUnreachable as error:
            self._absences.unanswered()
            return {ref: Status(phase=Phase.UNKNOWN, word=str(error)) for ref in refs}
        missing = [ref for ref in refs if ref not in rows]
        accounted, trouble = self._last_of({ref.key for ref in missing})
        by_ref = {row.ref: row for row in accounted}  # the last one of a key counts
        return {
            **{ref: self._present(rows[ref]) for ref in refs if ref in rows},
            **{ref: self._missing(ref, by_ref.get(ref), trouble) for ref in missing},
        }

    def _present(self, row: _Row) -> Status:
        self._absences.present(row.ref)
        return row.status

    def _missing(self, ref: Ref, row: _Accounted | None, trouble: str) -> Status:
        """Return how a job stands that squeue does not list, by its *row* of the accounting."""
        absent_s = self._absences.absent(ref, self._clock())
        is_long = self._absences.is_long(max(absent_s, 0.0 if row is None else row.ended_s_ago))
        if row is not None and row.state in _ENDED and is_long:
            return Status(phase=Phase.ENDED, word=row.state.lower())
        why = trouble if row is None else f"sacct says {row.state.lower()}"
        return Status(phase=Phase.UNKNOWN, word=f"not in squeue for {absent_s:.0f} s, and {why}")

    def _last_of(self, keys: Collection[str]) -> tuple[Sequence[_Accounted], str]:
        """Return what the accounting has of *keys*, the oldest first, and why it may have nothing."""
        try:
            return self._accounted(keys) if keys else [], "sacct does not know it"
        except EngineUnreachable as error:  # there is none here, or it is late
            return [], str(error)

    # ---- cancel and find -----------------------------------------------------------------------------------------

    def cancel(self, ref: Ref, *, now: bool = False) -> None:
        """Cancel a job, by its id and its name: an id that came again is not hit."""
        whose = [f"--name={NAME}{ref.key}", ref.id]
        commands = [["--state=PENDING", *whose], ["--batch", "--signal=TERM", "--state=RUNNING", *whose]]
        for words in [whose] if now else commands:
            done = self._run(["scancel", *words], limit_s=self._access.ask_s)
            if done.returncode != 0 and not _NO_JOB.search(done.stderr):
                raise EngineUnreachable(f"Slurm did not cancel job {ref.id}: {_last(done.stderr)}")

    def find(self, keys: Collection[str]) -> Mapping[Ref, Status]:
        """Find jobs by their keys: in the queue, else in the accounting if there is one."""
        if not keys:
            return {}
        try:
            rows = sorted(self._queue([*map(check_key, keys)]), key=lambda row: (row.submitted, int(row.ref.id)))
        except EngineUnreachable:
            self._absences.unanswered()
            raise
        listed = {row.ref.key: row for row in rows}
        accounted, trouble = self._last_of({*keys} - {*listed})
        others = {row.ref.key: row for row in accounted}
        return {
            **{row.ref: self._present(row) for row in listed.values()},
            **{row.ref: self._missing(row.ref, row, trouble) for row in others.values()},
        }

    def alive(self) -> Sequence[Ref]:
        """Return the jobs of this account that wait or run, and whose names are ours."""
        rows = map(_row_of_queue, self._lines(["squeue", "--me", "--noheader", f"--format={_COLUMNS}"]))
        return [row.ref for row in rows if row is not None and row.phase is not Phase.ENDED]

    def account(self, ref: Ref) -> Account | None:
        """Return how a job has ended: by slurmctld, which forgets it after minutes, and by the accounting."""
        name = f"{NAME}{ref.key}"
        command = ["env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "job", "--oneliner", ref.id]
        columns = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "--noheader", "--parsable2", f"--jobs={ref.id}"]
        columns.append(f"--format={','.join(whole.COLUMNS)}")
        found = whole.account_of_scontrol(self._text(command) or "", name)
        if found is not None and found.word.upper() not in _ENDED:
            return None
        text = self._text(columns)
        more = whole.account_of_sacct(text or "", name)
        is_late = text is not None and (more is None or more.word.upper() not in _ENDED)
        if found is None:
            return None if is_late else more
        return replace(found, gpu_mem_bytes=None if more is None else more.gpu_mem_bytes, is_late=is_late)

    def _text(self, words: Sequence[str]) -> str | None:
        """Return what a command of Slurm prints; None if it does not answer."""
        try:
            return "\n".join(self._lines(words))
        except EngineUnreachable:
            return None

    # ---- what Slurm says -----------------------------------------------------------------------------------------

    def _queue(self, keys: Collection[str]) -> list[_Row]:
        """Return what squeue lists of the jobs with these *keys*.

        Raises:
            EngineUnreachable: it does not answer.

        """
        names = ",".join(f"{NAME}{key}" for key in keys)
        words = ["squeue", "--me", "--noheader", "--states=all", f"--name={names}", f"--format={_COLUMNS}"]
        rows = filter(None, map(_row_of_queue, self._lines(words)))
        return [row for row in rows if row.ref.key in keys]

    def _accounted(self, keys: Collection[str]) -> list[_Accounted]:
        """Return what sacct lists of the jobs with these *keys*, the oldest first.

        Raises:
            EngineUnreachable: there is no accounting, or it does not answer.

        """
        names = ",".join(f"{NAME}{key}" for key in keys)
        columns = "JobIDRaw,JobName,State,Submit,End"
        words = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"]
        words += [f"--name={names}", f"--starttime={SACCT_SINCE}", f"--format={columns}"]
        found = [
            row for line in self._lines(words) if (row := _row_of_accounting(line)) is not None and row.ref.key in keys
        ]
        return sorted(found, key=lambda row: row.submitted)

    def _lines(self, words: Sequence[str]) -> list[str]:
        done = self._run(words, limit_s=self._access.ask_s)
        if done.returncode != 0:
            why = _last(done.stderr) or f"exit code {done.returncode}"
            raise EngineUnreachable(f"{_program(words)} does not answer: {why}")
        return done.stdout.splitlines()

    def _run(self, words: Sequence[str], *, limit_s: float, script: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm, in the home of this account, where ssh begins too: a service may be in ``/``.

        Raises:
            EngineUnreachable: it is not there, or did not end in time; then it was killed, and may have had its effect.

        """
        command = [*self._access.wrapper, *words]
        pipe, home = subprocess.PIPE, Path("~").expanduser()
        try:
            with subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                errors="replace",
                start_new_session=True,
                cwd=home if home.is_dir() else None,
            ) as process:
                try:
                    out, err = process.communicate(script, timeout=limit_s)
                except BaseException:  # also Ctrl-C
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # a wrapper may have started what hangs
                    raise
            return subprocess.CompletedProcess(command, process.returncode, out, err)
        except subprocess.TimeoutExpired:
            raise EngineUnreachable(f"{_program(words)} did not answer within {limit_s:g} s") from None
        except OSError as error:
            raise EngineUnreachable(
                f"{command[0]} cannot be run ({error.strerror})",
                "is Slurm installed here? set wrapper in [burst.slurm]",
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Accounted(_Row):
    """One job as sacct lists it, with how long ago it ended; 0 if it has not, or nobody knows when."""

    ended_s_ago: float = field(default=0.0)


def _row_of_queue(line: str) -> _Row | None:
    parts = line.strip().split(",", 6)
    if len(parts) != 7 or not parts[1].startswith(NAME) or not parts[0].isdecimal():  # noqa: PLR2004 - columns
        return None
    job_id, name, state, submitted, left, node, reason = parts
    return _Row(
        ref=Ref(name.removeprefix(NAME), job_id),
        state=state,
        submitted=submitted,
        left_s=duration_of(left),
        node=node or None,
        reason=in_one_line(reason),
    )


def _row_of_accounting(line: str) -> _Accounted | None:
    parts = line.strip().split("|")
    if len(parts) != 5 or not parts[1].startswith(NAME) or not parts[0].isdecimal():  # noqa: PLR2004 - columns
        return None
    job_id, name, state, submitted, end = parts
    ended_s_ago = time.time() - int(end) if end.isdecimal() else 0.0
    words = state.split()  # CANCELLED by 1000
    return _Accounted(
        ref=Ref(name.removeprefix(NAME), job_id),
        state=words[0] if words else "",
        submitted=submitted.zfill(20),
        ended_s_ago=max(0.0, ended_s_ago),
    )


def duration_of(text: str) -> float | None:
    """Return the seconds of ``[[days-]hours:]minutes:seconds``; None for NOT_SET, UNLIMITED and INVALID."""
    found = _LEFT.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _program(words: Sequence[str]) -> str:
    """Return the program of Slurm in *words*, which env may start."""
    return next(word for word in words if word in _PROGRAMS)


def _last(text: str) -> str:
    """Return the last line of what a command wrote to its standard error, in a form for messages."""
    lines = [line for line in text.splitlines() if line.strip()]
    return short(_PREFIX.sub("", in_one_line(lines[-1]).strip()), 200) if lines else ""


# ---- for pilots ------------------------------------------------------------------------------------------------------


def engine_of(settings: PilotSettings) -> Slurm:
    """Return the engine of the table ``[burst.slurm]``."""
    return Slurm(SlurmAccess(wrapper=settings.wrapper, options=settings.options, logs=settings.logs))


def left_here_s(environ: Mapping[str, str]) -> float | None:
    """Return the seconds until Slurm ends the job in which this process runs, None if it does not say."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return None
    try:
        words = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
        text = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return duration_of(text)
