"""The home of a run: one directory and one environment. No process outlives it.

A run that is killed with SIGKILL cannot clean up. It holds a lock in its home for as long as it lives. A later run that
finds a home with a free lock ends the processes of that home, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.measure.spent import belongs
from benchmarks.measure.stop import Stopped, heeding, not_now

PREFIX = "gq-bench-"
#: The variable that all processes of a run have.
MARK = "GQ_BENCH_HOME"
#: Servers that overwrite their environment with their title. They stay in the directory of their data.
SERVERS = ("valkey", "redis", "postgres")
#: How long the processes of a dead run may take to end by themselves, and how long killed processes may take, in
#: seconds.
PATIENCE_S, GONE_S = 15.0, 10.0
#: Programs of this environment come before the user's own.
BIN = Path(sys.executable).parent


@contextmanager
def whole_run() -> Iterator[None]:
    """Run all measurements in a home of their own, in a clean environment, and leave nothing behind.

    Raises:
        Stopped: by Ctrl-C, SIGTERM or a closed terminal, once everything is gone.
    """
    with heeding(), _home() as home, _environment(clean_environ(home) | {MARK: home, "TMPDIR": home}):
        before, tempfile.tempdir = tempfile.tempdir, home
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextmanager
def to_the_end(kept: Callable[[], str] = str) -> Iterator[None]:
    """Run a :func:`whole_run`; if it is stopped, exit with one line and the text that *kept* returns."""
    try:
        with whole_run():
            yield
    except Stopped as stopped:
        print(f"benchmarks: {stopped}{kept()}", file=sys.stderr, flush=True)
        sys.exit(stopped.exit_code)


def clean_environ(home: str) -> dict[str, str]:
    """Return the environment of all child processes, without the settings of the user.

    Installed packages have compiled bytecode. Where the user's settings forbid to write bytecode, it is written below
    *home*.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}
    environ["GPUQUEUE_CONFIG"] = os.devnull
    path = environ.get("PATH", os.defpath)
    if path.partition(os.pathsep)[0] != str(BIN):
        environ["PATH"] = f"{BIN}{os.pathsep}{path}"
    if environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        environ["PYTHONPYCACHEPREFIX"] = f"{home}/compiled"
    return environ


def end_all(place: str, *, patience_s: float = 0.0) -> None:
    """End every process that was started for *place*, at once, or after *patience_s* to end by itself."""
    deadline = time.monotonic() + patience_s
    number = signal.SIGTERM if patience_s else signal.SIGKILL
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline + GONE_S:  # noqa: PLR2004 - who is just started is found the second time
        left = list(_of(place))
        quiet = 0 if left else quiet + 1
        if time.monotonic() >= deadline:
            number = signal.SIGKILL
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.send_signal(number)
        time.sleep(0.05 if number == signal.SIGKILL else 0.5)


def clear_dead(below: Path) -> list[Path]:
    """End and remove what killed runs have left; return their homes."""
    cleared = []
    for place in below.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _owner(place) as owner:
            if place.stat().st_uid == os.geteuid() and _taken(owner):
                end_all(str(place), patience_s=PATIENCE_S)
                shutil.rmtree(place, ignore_errors=True)
                cleared.append(place)
    return cleared


def _of(place: str) -> Iterable[psutil.Process]:
    for each in psutil.process_iter():
        if each.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error):
            if belongs(each, place) or each.environ().get(MARK) == place or _serves_in(each, place):
                yield each


def _serves_in(process: psutil.Process, place: str) -> bool:
    return process.name().startswith(SERVERS) and Path(place) in Path(process.cwd()).parents


@contextmanager
def _home() -> Iterator[str]:
    below = Path(tempfile.gettempdir())
    for each in clear_dead(below):
        print(f"benchmarks: removed what a run that was killed has left: {each}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        with not_now():
            home = tempfile.mkdtemp(prefix=PREFIX, dir=below)
            stack.callback(os.close, _own(Path(home)))  # closed last: a home with a free lock counts as dead
            stack.callback(_clear, home)
            Path(home).chmod(0o711)  # PostgreSQL runs as another account if we are root
            in_no_repository(Path(home))
        yield home


def _clear(home: str) -> None:
    with not_now():
        end_all(home)
        shutil.rmtree(home, ignore_errors=True)


def in_no_repository(home: Path) -> None:
    """Make *home* an empty git repository, so that a search upwards from below it ends there.

    The directory for temporary files may be in a repository, and a submit would ask git about that.
    """
    (home / ".git").mkdir()
    (home / ".git" / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")


def _own(home: Path) -> int:
    """Lock *home*; return the descriptor of the lock. It is taken before other processes can see it."""
    held = os.open(home / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    (home / "new").rename(home / "owner")
    return held


@contextmanager
def _owner(home: Path) -> Iterator[int]:
    held = os.open(home / "owner", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield held
    finally:
        os.close(held)


def _taken(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _environment(environ: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
