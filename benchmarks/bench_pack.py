"""How long it takes to pack the results of a run, compared with tar.

python -m benchmarks.bench_pack [--rounds 5] [--megabytes 1024]

One large file, then a thousand files of 10 KiB, each in a copy of code that had no file before: all of them are
results. ``gpuqueue-worker pack`` and ``tar -cf -`` write the archive into a pipe to ``cat``. The files are in memory.
The figure of no file is the start of the program, which is a part of each of the others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.home import BIN
from benchmarks.measure.options import how_many
from benchmarks.measure.rounds import alternate_timed, medians
from benchmarks.measure.table import report
from gpuqueue.files.manifest import Manifest
from gpuqueue.files.pack_program import PackRequest
from workers.shim.code import DIRECTORY, MANIFEST, TREE

ROUNDS, QUICK_ROUNDS = 5, 2
MEGABYTES, QUICK_MEGABYTES = 1024, 64
FILES, FILE_BYTES = 1000, 10 * 2**10
MIB = 2**20


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    parser.add_argument("--megabytes", type=how_many, default=MEGABYTES, help="Size of the large file, in MiB.")
    options = parser.parse_args()
    report(figures(rounds=options.rounds, megabytes=options.megabytes))


def figures(*, quick: bool = False, rounds: int | None = None, megabytes: int | None = None) -> Measured:
    """Yield the time of each archive, with that of tar."""
    if shutil.which("tar") is None:
        yield Absent(name="pack", why="there is no tar here")
        return
    size_bytes = (megabytes or (QUICK_MEGABYTES if quick else MEGABYTES)) * MIB
    cases: dict[str, Callable[[Path], object]] = {
        "pack.nothing": lambda _: None,
        "pack.one-file": partial(_write_one, size_bytes=size_bytes),
        "pack.many-files": _write_many,
    }
    for name, write in cases.items():
        with tempfile.TemporaryDirectory(prefix="gq-bench-") as place:
            yield _figure(name, Path(place), write, rounds or (QUICK_ROUNDS if quick else ROUNDS))


def _figure(name: str, run_dir: Path, write: Callable[[Path], object], rounds: int) -> Figure:
    tree = run_dir / DIRECTORY / TREE
    tree.mkdir(parents=True)
    (run_dir / DIRECTORY / MANIFEST).write_bytes(Manifest(()).text())
    write(tree)
    with PackRequest(directory=str(run_dir)).as_input() as asked:
        acts = {
            "ours": partial(_piped, [str(BIN / "gpuqueue-worker"), "pack"], asked),
            "floor": partial(_piped, ["tar", "-C", str(tree), "-cf", "-", "."], subprocess.DEVNULL),
        }
        found = medians(alternate_timed(rounds, acts))
    floor = Floor(name="tar -cf -", value=found["floor"] * 1e3)
    return Figure(name=name, value=found["ours"] * 1e3, unit="ms", floor=floor, rounds=rounds)


def _write_one(tree: Path, *, size_bytes: int) -> None:
    part = os.urandom(MIB)
    with (tree / "weights.pt").open("wb") as file:
        for _ in range(size_bytes // MIB):
            file.write(part)


def _write_many(tree: Path) -> None:
    for number in range(FILES):
        folder = tree / f"step-{number // 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.log").write_bytes(os.urandom(FILE_BYTES))


def _piped(words: Sequence[str], stdin: int) -> None:
    """Run a program whose output another one reads, to the end of both. Its input is read from the beginning."""
    environ = {**os.environ, "GPUQUEUE_CONFIG": os.devnull}
    if stdin != subprocess.DEVNULL:
        os.lseek(stdin, 0, os.SEEK_SET)
    writer = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, env=environ)
    reader = subprocess.Popen(["cat"], stdin=writer.stdout, stdout=subprocess.DEVNULL)  # noqa: S607 - a standard tool
    if writer.stdout is not None:
        writer.stdout.close()  # only the reader has it, so that its end would be noticed
    if writer.wait() or reader.wait():
        sys.exit(f"{words[0]} failed")


if __name__ == "__main__":
    main()
