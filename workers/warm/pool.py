"""The spare interpreters of one worker: which it keeps, and which of them may become a job.

A spare is made after the image of a job that asked for one and found none: the same interpreter, account and latched
environment. So the first job of a sweep starts as ever, and the next ones find a spare. It is used once, and another is
started in its place. One that nobody wanted for a while is let go, and all of them go with the worker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import socket
import threading
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuqueue.clock import Clock
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Account, JobSpec
from gpuqueue.settings.settings import Settings
from workers.shim.client import Shim, Shims, Unanswered
from workers.shim.warm import MOST_BYTES
from workers.threads.timeout import in_time
from workers.warm.latched_variables import chooses_allocator, difference, for_spare, latched

log = logging.getLogger(__name__)

#: What the host must have left for jobs before a spare is started, in bytes.
ROOM_BYTES = 2 * 2**30
#: How long a spare that turned out good for nothing keeps others of its kind from being started, in seconds.
UNFIT_S = 600.0
#: Time between two looks whether a spare is still wanted, in seconds.
TIDY_S = 10.0
#: How long a job's interpreter is looked for, in seconds.
LOOK_S = 5.0
#: The command of a job that may have one: an interpreter and a script.
WORDS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """What a spare must have in common with the job that it is to become."""

    #: The word that the interpreter is started by, which tells it where its packages are; and the file that this is.
    python: str
    program: str
    file: tuple[int, int, int]
    account: Account
    latched: Mapping[str, str] = field(repr=False)
    #: The working directory, where the latched environment means another thing in each; else empty.
    cwd: str

    def unlike(self, other: Image) -> str | None:
        """Return in words why a spare of *other* is none for us, None if it is."""
        if (self.python, self.program) != (other.python, other.program):
            return "the interpreter differs"
        if self.file != other.file:
            return "the interpreter was changed"
        if self.account != other.account:
            return "the account differs"
        name = difference(self.latched, other.latched)
        if name is not None:
            return f"{name} differs"
        return "PYTHONPATH is relative, and the working directory differs" if self.cwd != other.cwd else None


def image_of(spec: JobSpec, env: Mapping[str, str]) -> Image | str:
    """Return what a spare for *spec* must be; in words why there is none for it."""
    if spec.pty is not None:
        return "it wants a terminal"
    if spec.separate_stderr:
        return "its standard error has a file of its own"
    if len(spec.argv) < WORDS or not Path(spec.argv[0]).name.startswith("python") or not spec.argv[1].endswith(".py"):
        return "its command is not python and a script"
    python = spec.argv[0]
    path = env.get("PATH", os.defpath)  # as execvpe does it: never our own
    program = str(Path(spec.cwd, python)) if "/" in python else shutil.which(python, path=path) or ""
    try:
        stat = os.stat(program)  # noqa: PTH116 - through links: the interpreter itself
    except OSError:
        return "there is no such interpreter"
    allocator = chooses_allocator(env)
    if allocator is not None:
        return f"{allocator} chooses an allocator, which torch has done when it is loaded"
    own = latched(env)
    relative = any(not entry.startswith("/") for entry in own.get("PYTHONPATH", "/").split(os.pathsep))
    return Image(
        python=python,
        program=program,
        file=(stat.st_dev, stat.st_ino, stat.st_mtime_ns),
        account=spec.account,
        latched=own,
        cwd=spec.cwd if relative or not python.startswith("/") else "",
    )


class Spare:
    """A shim in waiting, and how far its interpreter is."""

    def __init__(self, image: Image, shim: Shim, channel: socket.socket, since_s: float) -> None:
        self.image = image
        self.since_s = since_s
        self.ready = False
        #: Why it is good for nothing; None while it may still be.
        self.unfit: str | None = None
        self._shim = shim
        self._channel = channel

    def look(self) -> None:
        """Hear what it has said since."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while self.unfit is None and poll.poll(0):
            try:
                said = self._channel.recv(MOST_BYTES).decode(errors="replace")
            except OSError:
                said = ""
            if said == "ready":
                self.ready = True
            else:
                self.unfit = said.removeprefix("unfit: ") or "it ended by itself"

    def become(self, run_dir: Path, lock: int) -> Shim | None:
        """Let it become the run of *run_dir*, whose lock is held by the open file *lock*; None if it has just ended."""
        try:
            socket.send_fds(self._channel, [os.fsencode(run_dir)], [lock])
        except OSError:
            return None
        self._channel.close()
        return self._shim

    def let_go(self) -> None:
        """Let it end: nobody holds the other end of its socket any more."""
        self._channel.close()
        with contextlib.suppress(OSError):
            os.close(self._shim.handle)
            self._shim.close()


class Spares:
    """Keeps the spares of one worker; shared by its threads."""

    def __init__(self, settings: Settings, shims: Shims, clock: Clock) -> None:
        self._most = settings.warm_spares
        self._idle_s = settings.warm_idle_s
        self._modules = settings.warm_modules
        self._shims = shims
        self._clock = clock
        self._lock = threading.Lock()
        self._spares: list[Spare] = []
        #: Images whose spares are good for nothing: why, and until when nobody tries again.
        self._unfit: list[tuple[Image, str, float]] = []

    def start(self, spec: JobSpec, env: Mapping[str, str], run_dir: Path, lock: int) -> tuple[Shim | None, str]:
        """Let a spare become the run of *spec*; return its shim and ``warm``, or None and in words why there is none.

        Whatever comes of it, the next job of this kind shall find one.
        """
        if self._most == 0:
            return None, "this site keeps no spares"
        # Before there is a shim: while we wait here for a dead file server, nobody hears of a cancel.
        image = in_time(lambda: image_of(spec, env), LOOK_S) or "its interpreter does not answer"
        if isinstance(image, str):
            return None, image
        with self._lock:
            shim, why = self._take(image, run_dir, lock)
            try:
                trouble = self._wish(image, env)
            except OSError as error:  # the host is short of something; what was taken is taken
                trouble = f"no spare can be started: {error.strerror}"
            return shim, why if trouble is None or shim is not None else trouble

    def tidy(self) -> None:
        """Let those go that have ended or that nobody has wanted for long."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for spare in list(self._spares):
                spare.look()
                if spare.unfit is not None or now_s - spare.since_s >= self._idle_s:
                    self._drop(spare)

    def close(self) -> None:
        """Let all of them go."""
        with self._lock:
            for spare in list(self._spares):
                self._drop(spare)

    def _take(self, image: Image, run_dir: Path, lock: int) -> tuple[Shim | None, str]:
        why = "no spare is ready yet"
        for spare in list(self._spares):
            spare.look()
            unlike = image.unlike(spare.image)
            if spare.unfit is not None:
                self._drop(spare)
            elif unlike is not None:
                why = unlike
            elif spare.ready:
                self._spares.remove(spare)
                shim = spare.become(run_dir, lock)
                if shim is not None:
                    return shim, "warm"
                spare.let_go()
        return None, why

    def _wish(self, image: Image, env: Mapping[str, str]) -> str | None:
        """Have as many spares of *image* as there may be; return in words why there can be none.

        Those of other images make place, the one that was wanted longest ago first.
        """
        now_s = self._clock.monotonic_s()
        self._unfit = [each for each in self._unfit if each[2] > now_s]
        for unfit, why, _ in self._unfit:
            if image.unlike(unfit) is None:
                return why
        alike = [spare for spare in self._spares if image.unlike(spare.image) is None]
        for spare in alike:
            spare.since_s = now_s
        if len(alike) >= self._most:
            return None
        if _available_bytes() < ROOM_BYTES:
            return "the host has too little memory for a spare"
        while len(self._spares) >= self._most:
            self._drop(min(self._spares, key=lambda spare: spare.since_s))
        return self._make(image, env, now_s)

    def _make(self, image: Image, env: Mapping[str, str], now_s: float) -> str | None:
        plan = {
            "python": image.python,
            "program": image.program,
            "cwd": image.cwd or "/",  # a directory on a file server that dies must not hold up others
            "env": for_spare(env),
            "modules": self._modules,
        }
        text = json.dumps(plan).encode()
        if len(text) > MOST_BYTES:
            return "its environment is too large for a spare"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.send(text)
            shim = self._shims.start_waiting(theirs.fileno())
        except (OSError, Unanswered) as error:
            ours.close()
            return f"no spare can be started: {error}"
        finally:
            theirs.close()
        self._spares.append(Spare(image, shim, ours, now_s))
        return None

    def _drop(self, spare: Spare) -> None:
        self._spares.remove(spare)
        spare.let_go()
        if spare.unfit is not None:
            log.warning("a spare interpreter is good for nothing: %s", spare.unfit)
            self._unfit.append((spare.image, spare.unfit, self._clock.monotonic_s() + UNFIT_S))


def _available_bytes() -> int:
    """Return how much memory the host can give without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
