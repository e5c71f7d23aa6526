#!/usr/bin/env python3
"""Runs the test command of the README at another place, or in another way. Root runs it, on a machine with git.

python3 tests/elsewhere.py            list the ways
python3 tests/elsewhere.py NAME...    run these, one after the other
python3 tests/elsewhere.py today      run one of them, each day another one

Each way makes a clone of this checkout, without its environment, and removes it if the command has passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The account of a person, with a home of its own. It is made if it is missing.
PERSON = "gpuqueue-tester"
#: Processes that keep a processor busy, beside the tests.
BUSY = 4
SECONDS_A_DAY = 86_400


@contextmanager
def clone_in(directory: Path, *, umask: int = 0o022) -> Iterator[Path]:
    """Clone the checkout into a new directory below *directory*."""
    before = os.umask(umask)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix="gpuqueue-", dir=directory)) / "gpuqueue"
        subprocess.run(["git", "clone", "--quiet", ROOT, place], check=True)
    finally:
        os.umask(before)
    yield place
    shutil.rmtree(place.parent)


def run(place: Path, *before: str, **environ: str) -> None:
    """Run the test command in the clone *place*. The words *before* stand before the command."""
    command = [*before, "python3", "dev.py", "test"]
    subprocess.run(command, cwd=place, env={**os.environ, **environ}, check=True)


def as_person(place: Path, *before: str) -> None:
    """Run the test command as the person, in a home and with an environment of a new login."""
    if subprocess.run(["id", PERSON], capture_output=True, check=False).returncode:
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", PERSON], check=True)
    subprocess.run(["chown", "-R", f"{PERSON}:", place.parent], check=True)
    passed = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))]
    login = ["env", "-i", f"HOME=/home/{PERSON}", f"USER={PERSON}", "PATH=/usr/local/bin:/usr/bin:/bin", *passed]
    run(place, "setpriv", f"--reuid={PERSON}", f"--regid={PERSON}", "--init-groups", "--", *login, *before)


def home(umask: int = 0o022) -> None:
    """Run as root, in a clone in root's home."""
    with clone_in(Path.home(), umask=umask) as place:
        run(place)


def temporary_directory() -> None:
    """Run as root, in a clone below the temporary directory."""
    with clone_in(Path(tempfile.gettempdir())) as place:
        run(place)


def person() -> None:
    """Run as an ordinary user, in a home."""
    with clone_in(Path("/home")) as place:
        as_person(place)


def odd_path() -> None:
    """Run as an ordinary user, in a path with a space and umlauts."""
    with clone_in(Path("/home/gpuqueue räume/über uns")) as place:
        as_person(place)


def closed_files() -> None:
    """Run as root, with files that only their owner can read (umask 077)."""
    home(0o077)


def other_server() -> None:
    """Run with a redis-server on PATH, beside the one that comes with the package."""
    if shutil.which("redis-server") is None:
        sys.exit("redis-server is not installed: apt install redis-server")
    temporary_directory()


def locale_c() -> None:
    """Run in the locale C."""
    with clone_in(Path(tempfile.gettempdir())) as place:
        run(place, LANG="C", LC_ALL="C")


def busy_machine() -> None:
    """Run beside busy loops, as on a machine that is two to three times slower."""
    with ExitStack() as stack:
        for _ in range(BUSY):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        temporary_directory()


WAYS: dict[str, Callable[[], None]] = {
    way.__name__.replace("_", "-"): way
    for way in (temporary_directory, home, person, odd_path, closed_files, other_server, locale_c, busy_machine)
}


def main(words: list[str]) -> int:
    """Run the ways that are named, and print how long each took."""
    if words == ["today"]:
        words = [list(WAYS)[int(time.time() / SECONDS_A_DAY) % len(WAYS)]]
    if not words or not set(words) <= set(WAYS):
        print(__doc__)
        print("\n".join(f"{name:22}{way.__doc__}" for name, way in WAYS.items()))
        return 2
    codes = []
    for name in words:
        began_s = time.monotonic()
        try:
            WAYS[name]()
            codes.append(0)
        except subprocess.CalledProcessError:
            codes.append(1)
        print(f"\n{name}: {'failed' if codes[-1] else 'passed'} after {time.monotonic() - began_s:.0f} s", flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
