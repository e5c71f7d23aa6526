"""The process of the run of a whole job: hands the job to the engine once, follows it, and ends when it has ended.

It is the first process of a run, behind a shim, so its output is the job's log and the shim ends it. What it prints of
its own begins with ``gpuqueue:``. It leaves the job alone when it ends without having been asked to end the run: then
the next attempt of the job finds it by its key.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gpuqueue.engines.engine import (
    EngineUnreachable,
    NotAccepted,
    Phase,
    Ref,
    Status,
    Uncertain,
    WholeJobEngine,
    first,
)
from gpuqueue.engines.slurm import Slurm
from gpuqueue.engines.whole_job import Account
from gpuqueue.text.sanitize import in_one_line
from workers.threads import SteadyEvent
from workers.whole.work import ASKED, End, Work, mark_asked

#: How often the output is read, in seconds, and how much of it at a time, in bytes.
OUTPUT_S, CHUNK_BYTES = 1.0, 1024 * 1024
#: How often the engine is asked: after how many seconds of following, the pause. Many followers ask one engine.
PAUSES_S = ((0.0, 2.0), (30.0, 10.0), (600.0, 30.0))
#: Pauses between two attempts to submit, in seconds; the last one is repeated.
SUBMIT_PAUSES_S = (2.0, 5.0, 15.0, 60.0)
#: How long the engine may not know the job, or may not answer, after the job's own file has its exit code, in seconds.
TRUST_S = 60.0
#: How long a submit may take until the engine lists the job: its command may go on without its follower, in seconds.
ARRIVES_S = 120.0
#: How often, and how many times, an end is asked for that the engine or its accounting does not have yet, in seconds.
POLL_END_S, END_POLLS = 2.0, 5
_BY_SIGNAL = 128


class Ended(Exception):
    """The shim ends the run."""


class Follower:
    """Follows one job. *pause* waits for seconds; a signal ends it early."""

    def __init__(self, run_dir: Path, work: Work, engine: WholeJobEngine, *, pause: Callable[[float], object]) -> None:
        self._run_dir = run_dir
        self._work = work
        self._engine = engine
        self._pause = pause
        self._printed = ""
        self._files: Files | None = None
        self._phase: Phase | None = None
        #: Set by the signal of the shim.
        self.ended = False

    def follow(self) -> int:
        """Hand the job over, follow it to its end, and return an exit code."""
        try:
            try:
                ref = self._placed()
            except NotAccepted as refusal:
                self._print(str(refusal))
                End(refused=str(refusal)).write(self._run_dir)
                return 1
            return self._over(None) if ref is None else self._to_end(ref)
        except Ended:
            return self._cancel()
        finally:
            if self._files is not None:
                self._files.close()

    # ---- hand over -----------------------------------------------------------------------------------------------

    def _placed(self) -> Ref | None:
        """Return the job at the engine: that of an earlier attempt that still lives, or that of this key.

        None: it has ended by its own file, and the engine does not know it any more.

        Raises:
            NotAccepted: the engine has refused it, or it is not handed over a second time.
            Ended: the run must end.

        """
        pauses = iter(SUBMIT_PAUSES_S)
        while True:
            self._check()
            try:
                ref = self._living() or self._known() or self._handed_over()
            except (EngineUnreachable, Uncertain) as trouble:
                self._check()
                self._print(f"{trouble}; it is tried again")
                self._pause(next(pauses, SUBMIT_PAUSES_S[-1]))
            else:
                if ref is not None:
                    self._print(f"{self._engine.name.capitalize()} has it as job {ref.id}")
                return ref

    def _living(self) -> Ref | None:
        """Return the job of an earlier attempt that has not ended. Two of one job must never live.

        Raises:
            EngineUnreachable: the engine does not answer.
            Uncertain: it does not say whether such a job has ended.

        """
        for found, status in self._engine.find(self._work.others).items():
            if status.phase is Phase.ENDED:
                continue
            if status.phase is not Phase.UNKNOWN:
                return found
            if self._engine.account(found) is None:
                raise Uncertain(f"an earlier job, {found.id}, may live: {status.word}")
        return None

    def _known(self) -> Ref | None:
        """Return the job of this key, which an attempt before this one has handed over."""
        return first(self._engine.find([self._work.key])) if self._earlier_marks() else None

    def _handed_over(self) -> Ref | None:
        """Hand the job over, and return it; None if it has ended.

        An attempt before this one may have done so, and the engine does not list it: not yet, or not any more.

        Raises:
            NotAccepted: the engine has refused it, or it must not run twice.
            Uncertain: the engine may have accepted it.
            EngineUnreachable: the engine does not answer.

        """
        marks = self._earlier_marks()
        if marks and self._files_of(self._work.key).exit_code() is not None:
            return None
        if any(time.time() - made_s < ARRIVES_S for made_s in marks):
            raise Uncertain(f"{self._engine.name.capitalize()} was asked for it a moment ago, and does not list it")
        if marks and not self._work.job.requeue:
            raise NotAccepted(
                f"{self._engine.name.capitalize()} was asked for it, and does not know it any more: it must not run "
                "twice (--no-requeue)"
            )
        try:
            mark_asked(self._run_dir, self._work.key)
        except OSError as error:  # a full disk
            raise EngineUnreachable(f"{self._run_dir} cannot be written ({error.strerror})") from None
        return self._engine.submit(self._work.job, self._work.key)

    def _earlier_marks(self) -> Sequence[float]:
        """Return when attempts before this one have asked the engine for the job of this key, in seconds since 1970."""
        marks = self._run_dir.parent.glob(f"*/{self._work.key}{ASKED}")
        return [path.stat().st_mtime for path in marks if path.parent != self._run_dir]

    # ---- follow --------------------------------------------------------------------------------------------------

    def _to_end(self, ref: Ref) -> int:
        files = self._files_of(ref.key)
        began_s = asked_s = time.monotonic()
        last_s, trusted_s = -1.0, None
        status = Status(phase=Phase.UNKNOWN, word="")
        while True:
            files.copy()
            now_s = time.monotonic()
            code = files.exit_code()
            if code is not None and trusted_s is None:
                trusted_s, last_s = now_s, -1.0
            if now_s - asked_s >= last_s:
                status = self._engine.states([ref])[ref]
                asked_s = time.monotonic()
                last_s = _pause_after(asked_s - began_s)
                self._report(status)
            is_over = status.phase is Phase.UNKNOWN and trusted_s is not None and now_s - trusted_s >= TRUST_S
            if status.phase is Phase.ENDED or is_over:
                return self._over(ref)
            self._check()
            self._pause(OUTPUT_S)

    def _files_of(self, key: str) -> Files:
        if self._files is None or self._files.key != key:
            self._files = Files(self._run_dir.parent, key, has_errors=self._work.job.error is not None)
        return self._files

    def _over(self, ref: Ref | None) -> int:
        """Write down how the job ended, and return its exit code. None: its own file alone says it."""
        account = None if ref is None else self._account(ref)
        files = self._files_of(self._work.key if ref is None else ref.key)
        files.drain()
        end = End(ref="" if ref is None else ref.id, account=account, code=files.exit_code())
        end.write(self._run_dir)
        if files.is_missing and (account is None or account.nodes is not None):
            self._print(
                f"its output is not here: {self._run_dir.parent.parent} (setting runs_dir) must be on a file system "
                "that the nodes share"
            )
        return code_of(end)

    def _account(self, ref: Ref) -> Account | None:
        account = None
        for _ in range(END_POLLS):
            account = self._engine.account(ref) or account
            if account is not None and not account.is_late:
                break
            self._pause(POLL_END_S)
        return account

    # ---- end -----------------------------------------------------------------------------------------------------

    def _cancel(self) -> int:
        """End the job if the run was asked to end; leave it to the next attempt if this process merely ends."""
        if not was_asked(self._run_dir):
            self._print("this process ends, and the job goes on: the next attempt finds it")
            return 1
        while True:  # until the shim kills this process; the sweep of the worker goes on after that
            with suppress(EngineUnreachable):
                found = self._engine.find((self._work.key, *self._work.others))
                living = [ref for ref, status in found.items() if status.phase is not Phase.ENDED]
                if not living:
                    own = [ref for ref in found if ref.key == self._work.key]
                    return self._over((own or [*found])[0]) if found else 1
                for ref in living:
                    self._engine.cancel(ref, now=True)
            time.sleep(OUTPUT_S)

    def _check(self) -> None:
        if self.ended:
            raise Ended

    # ---- say -----------------------------------------------------------------------------------------------------

    def _report(self, status: Status) -> None:
        if status.phase is not self._phase or status.phase is not Phase.UNKNOWN:  # its words count seconds
            where = f" on {status.node}" if status.node else ""
            self._print(f"{status.word}{where}")
        self._phase = status.phase

    def _print(self, words: str) -> None:
        """Print *words* into the log of the run, unless they were the last ones."""
        if words != self._printed:
            self._printed = words
            write(1, f"gpuqueue: {in_one_line(words)}\n".encode())


class Files:
    """The files that the job writes, in the run directory of that attempt in *job_dir* which has submitted it."""

    def __init__(self, job_dir: Path, key: str, *, has_errors: bool) -> None:
        self.key = key
        self._job_dir = job_dir
        self._streams = [(1, ".out"), *([(2, ".err")] if has_errors else [])]
        self._open: dict[str, BinaryIO] = {}

    @property
    def is_missing(self) -> bool:
        """Return whether no output was ever there."""
        return ".out" not in self._open

    def copy(self) -> bool:
        """Copy new output to the output of this process. Return whether there may be more."""
        more = False
        for number, suffix in self._streams:
            if suffix not in self._open:
                path = next(iter(self._job_dir.glob(f"*/{self.key}{suffix}")), None)
                if path is None:
                    continue
                with suppress(OSError):
                    self._open[suffix] = path.open("rb")
            if suffix in self._open and (part := self._open[suffix].read(CHUNK_BYTES)):
                write(number, part)
                more = True
        return more

    def drain(self) -> None:
        """Copy the rest of the output. Network file systems may show it a moment later."""
        for _ in range(2):
            while self.copy():
                pass
            time.sleep(OUTPUT_S / 4)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()

    def exit_code(self) -> int | None:
        """Return the exit code that the job's script has written, None if it has not."""
        for path in self._job_dir.glob(f"*/{self.key}.exit"):
            with suppress(OSError, ValueError):
                return int(path.read_text(encoding="ascii"))
        return None


def write(number: int, part: bytes) -> None:
    """Write *part* to a descriptor. Ignore errors, such as a full disk: the job goes on."""
    with suppress(OSError):
        while part:
            part = part[os.write(number, part) :]


def was_asked(run_dir: Path) -> bool:
    """Return whether a worker has asked the shim to end the run: cancelled, preempted or marked, but not lost."""
    asked = run_dir / "cancel"
    with suppress(OSError):  # on a full disk it is a link
        return (str(asked.readlink()) if asked.is_symlink() else asked.read_text(encoding="utf-8")).strip() != "lost"
    return os.path.lexists(run_dir / "preempt.json")


def code_of(end: End) -> int:
    """Return the exit code for a job that ended like this."""
    account = end.account
    if account is not None and account.signal is not None:
        return _BY_SIGNAL + account.signal
    if account is not None and account.exit_code is not None and (account.exit_code or account.word == "completed"):
        return account.exit_code
    return 1 if end.code is None else end.code


def _pause_after(followed_s: float) -> float:
    return next(pause_s for since_s, pause_s in reversed(PAUSES_S) if followed_s >= since_s)


def main(run_dir: str) -> int:
    """Follow the job of *run_dir*, and return the exit code of this process."""
    place = Path(run_dir)
    work = Work.take(place)
    wake = SteadyEvent()
    follower = Follower(place, work, Slurm(work.access), pause=wake.wait)

    def end(*_: object) -> None:
        follower.ended = True
        wake.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    return follower.follow()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
