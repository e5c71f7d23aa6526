"""How long ``gpuqueue fetch`` takes for the results of a job, through the service, compared with ``cp``.

python -m benchmarks.bench_fetch [--rounds 5] [--megabytes 1024]

One job writes one large file, another one a thousand files of 10 KiB. ``fetch`` is the whole process that a user
starts, over the unix socket of a service on the same machine: pack, HTTP, and the files. The floor copies them with
``cp``. The processors of this machine do the work of both ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, Machine, private_machine, quiet
from benchmarks.measure.repository import small_repository
from benchmarks.measure.rounds import alternate_timed, medians, until
from benchmarks.measure.table import report
from gpuqueue.model.job import Job

ROUNDS, QUICK_ROUNDS = 5, 2
MEGABYTES, QUICK_MEGABYTES = 1024, 64
ONE_FILE = """
import os
part = os.urandom(2**20)
with open("weights.pt", "wb") as file:
    for _ in range({megabytes}):
        file.write(part)
"""
MANY_FILES = """
import os
for number in range(1000):
    os.makedirs(f"step-{number // 100}", exist_ok=True)
    with open(f"step-{number // 100}/{number}.log", "wb") as file:
        file.write(os.urandom(10 * 2**10))
"""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    parser.add_argument("--megabytes", type=how_many, default=MEGABYTES, help="Size of the large file, in MiB.")
    options = parser.parse_args()
    report(figures(rounds=options.rounds, megabytes=options.megabytes))


def figures(*, quick: bool = False, rounds: int | None = None, megabytes: int | None = None) -> Measured:
    """Yield the time of each fetch, with that of a copy."""
    if shutil.which("cp") is None:
        yield Absent(name="fetch", why="there is no cp here")
        return
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    megabytes = megabytes or (QUICK_MEGABYTES if quick else MEGABYTES)
    scripts = {"fetch.one-file": ONE_FILE.format(megabytes=megabytes), "fetch.many-files": MANY_FILES}
    with private_machine() as machine, _service(machine) as environ:
        code = machine.place / "code"
        without = small_repository(code)
        if without is not None:
            yield Absent(name="fetch", why=without)
            return
        for name, script in scripts.items():
            yield _figure(name, _ended(machine, script, code), machine, environ, rounds)


def _figure(name: str, job: Job, machine: Machine, environ: dict[str, str], rounds: int) -> Figure:
    """Return the time of a fetch of all files that *job* has made."""
    made = next(machine.settings.runs_dir.glob(f"{job.id}/*/code/tree"))
    fetched, copied = machine.place / "fetched", machine.place / "copied"

    def ours() -> None:
        shutil.rmtree(fetched, ignore_errors=True)
        quiet([GPUQUEUE, "fetch", str(job.id), "--to", str(fetched)], environ)

    def floor() -> None:
        shutil.rmtree(copied, ignore_errors=True)
        quiet(["cp", "--recursive", "--reflink=never", str(made), str(copied)])

    found = medians(alternate_timed(rounds, {"ours": ours, "floor": floor}))
    files = sum(each.is_file() for each in fetched.rglob("*"))
    beside = Floor(name="cp", value=found["floor"] * 1e3)
    return Figure(name=name, value=found["ours"] * 1e3, unit="ms", floor=beside, rounds=rounds, of=files)


def _ended(machine: Machine, script: str, code: Path) -> Job:
    """Return a job that has run *script*, from a copy of the directory *code*."""
    (code / "write.py").write_text(script, encoding="ascii")
    job = machine.client.jobs.submit("write.py", mem="64M", cwd=code, snapshot=True)
    until(lambda: machine.client.jobs.get(job.id).state.is_end, "the end of the job", timeout_s=300, every_s=0.2)
    return job


@contextmanager
def _service(machine: Machine) -> Iterator[dict[str, str]]:
    """Run a service in front of *machine*, and yield the environment of a user of it."""
    path = machine.place / "api.sock"
    service = subprocess.Popen(
        [GPUQUEUE, "serve", "--socket", str(path)], env=machine.environ, stderr=subprocess.DEVNULL
    )
    try:
        until(path.exists, "the service", timeout_s=60)
        user = {**machine.environ, "GPUQUEUE_URL": f"unix://{path}", "XDG_CACHE_HOME": os.devnull}
        quiet([GPUQUEUE, "queue"], user)
        yield user
    finally:
        service.terminate()
        service.wait(timeout=60)


if __name__ == "__main__":
    main()
