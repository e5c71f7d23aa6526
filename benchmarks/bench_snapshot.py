"""How long the code of a job takes to travel: a git work tree, for the first time and unchanged.

python -m benchmarks.bench_snapshot [--files 1000] [--rounds 9]

``take`` is the part on the submitter's machine within one process: listing, reading, hashing, and comparing with the
commit. ``take.first`` has no hash cache, ``take.unchanged`` has one that knows all files. ``submit`` is the whole
process that a user starts, over the unix socket of a service: ``submit.first`` with files that the service does not
have, ``submit.unchanged`` with files that it has. ``submit.unchanged.uncached`` has no hash cache. The floor of all is
``git status`` of the same tree, which does not read unchanged files either.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.bench_submit import environ_of, serve
from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, Store, private_store, quiet
from benchmarks.measure.repository import small_repository
from benchmarks.measure.rounds import alternate_timed, medians, timed, until
from benchmarks.measure.table import report
from gpuqueue.files.contents import MARGIN_S
from gpuqueue.files.take import take_snapshot
from gpuqueue.history.migrate import upgrade

FILES, QUICK_FILES = 1000, 100
ROUNDS, QUICK_ROUNDS = 9, 2
#: Sizes of the files, in bytes: from 1 to 16 KiB, as of source code.
SIZES = (1_000, 2_000, 4_000, 8_000, 16_000)
GIT_STATUS = "git status"


def figures(*, quick: bool = False, files: int | None = None, rounds: int | None = None) -> Measured:
    """Yield the times of a snapshot and of a submit with one, each with that of ``git status``."""
    files, rounds = files or (QUICK_FILES if quick else FILES), rounds or (QUICK_ROUNDS if quick else ROUNDS)
    with private_store() as store:
        tree = store.settings.state_dir / "tree"
        without = small_repository(tree)
        if without is not None:
            yield Absent(name="snapshot", why=without)
            return
        _commit(tree, files)
        upgrade(store.settings.database_url)
        serve(store)
        with _service(store) as environ:
            found = {
                **_takes(tree, store.settings.state_dir / "own-cache", rounds),
                **_submits(tree, environ, rounds, files),
            }
    floor = Floor(name=GIT_STATUS, value=found.pop(GIT_STATUS) * 1e3)
    for name, took_s in found.items():
        yield Figure(name=f"snapshot.{name}", value=took_s * 1e3, unit="ms", floor=floor, rounds=rounds, of=files)


def _takes(tree: Path, cache: Path, rounds: int) -> dict[str, float]:
    """Return the times of a snapshot without and with a hash cache, and of git, in seconds."""
    acts: dict[str, Callable[[], object]] = {
        "take.first": partial(take_snapshot, tree),
        "take.unchanged": partial(take_snapshot, tree, cache=cache),
        GIT_STATUS: partial(_git, tree, "status", "--porcelain", "--untracked-files=all"),
    }
    _wait_for_margin(tree)
    alternate_timed(1, acts)  # to warm up, and to fill the cache
    return medians(alternate_timed(rounds, acts))


def _submits(tree: Path, environ: dict[str, str], rounds: int, files: int) -> dict[str, float]:
    """Return the times of submits, in seconds. Before each first one, all files get a new content.

    All but one are committed, as while somebody works.
    """
    run = partial(quiet, [GPUQUEUE, "submit", "--mem", "1M", "--cwd", str(tree), "--snapshot", str(tree), "--", "true"])
    uncached = {**environ, "XDG_CACHE_HOME": os.devnull}
    found: dict[str, list[float]] = {"submit.first": [], "submit.unchanged": [], "submit.unchanged.uncached": []}
    for _ in range(rounds):
        _write(tree, files)
        _git(tree, "commit", "--quiet", "--all", "--message=next")
        (tree / "train.py").write_text("print('edited')\n", encoding="ascii")
        found["submit.first"].append(timed(partial(run, environ)))
        _wait_for_margin(tree)
        run(environ)  # fills the cache
        found["submit.unchanged"].append(timed(partial(run, environ)))
        found["submit.unchanged.uncached"].append(timed(partial(run, uncached)))
    return medians(found)


def _wait_for_margin(tree: Path) -> None:
    """Wait until the files are old enough for the cache: their change times cannot be set."""
    scratch = tree.parent / "scratch"
    newest_s = max(each.stat().st_ctime for each in tree.rglob("*") if each.is_file())

    def is_old() -> bool:
        scratch.write_text("")
        return scratch.stat().st_ctime > newest_s + MARGIN_S + 0.1

    until(is_old, "the margin", timeout_s=30, every_s=0.05)


def _commit(tree: Path, files: int) -> None:
    _write(tree, files)
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--message=all")


def _write(tree: Path, files: int) -> None:
    """Give all files new contents. Each is text, and has a line of its own."""
    for number in range(files):
        path = tree / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        own = f"# {os.urandom(16).hex()}\n"
        path.write_text(own + "x = 1\n" * (SIZES[number % len(SIZES)] // 6), encoding="ascii")


def _git(tree: Path, *words: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    whose = ("-c", "user.name=ada", "-c", "user.email=ada@localhost", "-c", "gc.auto=0")
    quiet([shutil.which("git") or "git", "-C", str(tree), *whose, *words], environ)


@contextmanager
def _service(store: Store) -> Iterator[dict[str, str]]:
    """Run a service in front of *store*, and yield the environment of a user of it."""
    state, path = store.settings.state_dir, store.settings.state_dir / "api.sock"
    environ = {**environ_of(store), "GPUQUEUE_HOST": "bench", "XDG_CACHE_HOME": str(state / "cache")}
    service = subprocess.Popen([GPUQUEUE, "serve", "--socket", str(path)], env=environ, stderr=subprocess.DEVNULL)
    try:
        until(path.exists, "the service", timeout_s=60)
        user = {**environ, "GPUQUEUE_URL": f"unix://{path}"}
        quiet([GPUQUEUE, "queue"], user)
        yield user
    finally:
        service.terminate()
        service.wait(timeout=60)


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=how_many, default=FILES)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    options = parser.parse_args()
    report(figures(files=options.files, rounds=options.rounds))


if __name__ == "__main__":
    main()
