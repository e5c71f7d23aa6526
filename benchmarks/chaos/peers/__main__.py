"""The same procedure for Celery, RQ and gpuqueue: kills workers at random, then reads what the jobs have written.

python -m benchmarks.chaos.peers [celery rq gpuqueue] [--jobs 200] [--kills 30] [--seed 7] [--sweep]

A task runs a script with ``subprocess.run``. Only workers are killed here, not the store. A dead worker is started
again at once; with --sweep all its processes are ended first, as systemd does by default. RQ is installed into an
environment of its own, below a temporary directory, unless --rq names one that has it. docs/internals/reliability.md
lists the settings.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.effects import Trace, read_effects
from benchmarks.chaos.peers.crew import Crew
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.history import migrate
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.recovery import open_queue
from gpuqueue.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "benchmarks" / "chaos" / "job.py"
BIN = Path(sys.executable).parent
POLL_S = 0.25
#: Time between two submits, in seconds: slightly too short for four processes to keep up.
PACE_S = 0.9
#: How long a job may live without a parent before it is an orphan, in seconds: a sweep takes a moment. A job that ends
#: without a parent is an orphan in any case.
SWEPT_S = 1.0
SECONDS = ("none", "child")
#: Longest wait for the last job, in seconds, and when all workers are restarted meanwhile: RQ cleans up at a start.
PATIENCE_S = 360.0
RESTART_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result for one peer."""

    acknowledged: int
    lost: int
    doubled: int
    ended_twice: int
    orphaned: int
    kills: int
    took_s: float


def main(words: list[str]) -> int:
    """Print a row for each peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=["celery", "rq", "gpuqueue"], metavar="PEER")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sweep", action="store_true", help="end what a dead worker left, as systemd does")
    parser.add_argument("--rq", type=Path, metavar="DIR", help="a virtual environment with RQ in it")
    options = parser.parse_args(words)
    heads = ("acknowledged", "lost", "two at once", "ended twice", "orphaned", "kills", "took")
    print(f"{'':12}" + "".join(f"{head:>14}" for head in heads), flush=True)
    for name in options.peers:
        place = Path(tempfile.mkdtemp(prefix=f"gq-peer-{name}-", dir="/tmp"))
        try:
            row = _measure(name, place, options)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        cells = (row.acknowledged, row.lost, row.doubled, row.ended_twice, row.orphaned, row.kills)
        print(f"{name:12}" + "".join(f"{cell:14}" for cell in cells) + f"{row.took_s:12.0f} s", flush=True)
    return 0


def _measure(name: str, place: Path, options: argparse.Namespace) -> Row:
    environ = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(ROOT),
        "CHAOS_PLACE": str(place),
        "GPUQUEUE_CONFIG": os.devnull,
        "GPUQUEUE_STATE_DIR": str(place / "s"),
        "GPUQUEUE_HOST": place.name,
        "GPUQUEUE_DEVICES": "sim:2x24G",
        "GPUQUEUE_HEADROOM": "0",
        "GPUQUEUE_SLOTS": "2",
    }
    settings = Settings.load(environ)
    environ["CHAOS_BROKER"] = f"redis+socket://{settings.socket_path}"
    environ["CHAOS_RQ"] = settings.redis_url
    store = EmbeddedStore(settings)
    store.start()
    try:
        python, commands = _PEERS[name](options.rq or place / "venv", environ)
        print(f"{name} {_version(python, name)}", file=sys.stderr)
        spared = sum("record" in command for command in commands)
        crew = Crew(place=place, commands=commands, environ=environ, sweep=options.sweep, spared=spared)
        submit = [python, "-m", "benchmarks.chaos.peers.submit", name]
        return _run(crew, submit, options)
    finally:
        store.stop()


def _version(python: str, name: str) -> str:
    """Return the measured release of a peer."""
    asked = f"from importlib.metadata import version; print(version({_DISTRIBUTIONS.get(name, name)!r}))"
    return subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()


Peer = Callable[[Path, dict[str, str]], tuple[str, Sequence[Sequence[str]]]]


def _celery(_home: Path, _environ: dict[str, str]) -> tuple[str, Sequence[Sequence[str]]]:
    """Return two workers with two processes each."""
    base = [str(BIN / "celery"), "-A", "benchmarks.chaos.peers.celery_app", "worker", "--concurrency", "2"]
    return sys.executable, [[*base, "-n", f"w{number}@chaos"] for number in (1, 2)]


def _rq(home: Path, environ: dict[str, str]) -> tuple[str, Sequence[Sequence[str]]]:
    """Return four workers with a work horse each; RQ is installed in *home* unless it exists."""
    if not home.exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", "rq"], check=True, stdout=sys.stderr)
    return str(home / "bin" / "python"), [[str(home / "bin" / "rq"), "worker", "--url", environ["CHAOS_RQ"]]] * 4


def _gpuqueue(_home: Path, environ: dict[str, str]) -> tuple[str, Sequence[Sequence[str]]]:
    """Return workers of two devices with two slots each, and the recorder."""
    settings = Settings.load(environ)
    migrate.upgrade(settings.database_url)
    open_queue(JobQueue(settings.redis_url), HistoryDatabase(settings.database_url), lease_s=settings.lease_s)
    worker = [str(BIN / "gpuqueue-worker"), "run", "--device"]
    return sys.executable, [[str(BIN / "gpuqueue-worker"), "record"], [*worker, "0"], [*worker, "1"]]


#: The name of a peer on the package index, where it differs.
_DISTRIBUTIONS = {"gpuqueue": "gpuqueue-server"}
_PEERS: dict[str, Peer] = {"celery": _celery, "rq": _rq, "gpuqueue": _gpuqueue}


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The script of one job: its duration, and its second process."""

    effects: Path
    duration_s: float
    second: str

    @property
    def words(self) -> list[str]:
        """Return the command line."""
        python = (sys.executable, "-I", "-S", str(PROGRAM))
        return [*python, str(self.effects), f"{self.duration_s:.3f}", "0", "0", self.second, "-"]


def _run(crew: Crew, submit: list[str], options: argparse.Namespace) -> Row:
    effects = crew.place / "effects"
    effects.mkdir()
    rng = random.Random(f"peers {options.seed}")  # noqa: S311 - a plan that can be drawn again, no secret
    scripts = [
        Script(effects=effects / f"p{number:05d}", duration_s=rng.uniform(0.3, 6.0), second=rng.choice(SECONDS))
        for number in range(options.jobs)
    ]
    turns = sorted(rng.uniform(0.03, 0.95) * options.jobs for _ in range(options.kills))
    began = time.monotonic()
    wall_minus_monotonic_s = time.time() - began
    environ = dict(crew.environ)
    with subprocess.Popen(
        submit, env=environ, cwd=effects, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as submitter:
        crew.start()
        try:
            acknowledged = _drive(crew, submitter, scripts, turns, rng)
        finally:
            crew.end()
    traces = read_effects(effects, wall_minus_monotonic_s=wall_minus_monotonic_s)
    alone_since = {token: at + wall_minus_monotonic_s for token, at in crew.alone_since.items()}
    return _row(acknowledged, traces, alone_since, kills=options.kills, took_s=time.monotonic() - began)


def _drive(
    crew: Crew, submitter: subprocess.Popen[str], scripts: list[Script], turns: list[float], rng: random.Random
) -> list[str]:
    """Submit and kill, then wait for the last job; return the names of the acknowledged jobs."""
    acknowledged: list[str] = []
    due = time.monotonic()
    for script in scripts:
        while time.monotonic() < due:
            crew.supervise()
            time.sleep(POLL_S)
        due += PACE_S
        if _acknowledged(submitter, script):
            acknowledged.append(script.effects.name)
        while turns and turns[0] <= len(acknowledged):
            turns.pop(0)
            time.sleep(rng.uniform(0.0, PACE_S))
            crew.kill(rng)
    submitted = time.monotonic()
    restarted = False
    left = set(acknowledged)
    while left and time.monotonic() < submitted + PATIENCE_S:
        left -= {script.effects.name for script in scripts if _has_ended(script.effects)}
        crew.supervise()
        if not restarted and time.monotonic() > submitted + RESTART_S:
            restarted = True
            crew.restart()
        time.sleep(POLL_S)
    return acknowledged


def _acknowledged(submitter: subprocess.Popen[str], script: Script) -> bool:
    if submitter.stdin is None or submitter.stdout is None:
        return False
    submitter.stdin.write(json.dumps(script.words) + "\n")
    submitter.stdin.flush()
    return submitter.stdout.readline().strip() == "ok"


def _has_ended(effects: Path) -> bool:
    """Return whether a job has come to its end at least once."""
    lines = effects.read_text().splitlines() if effects.exists() else []
    return any(" first " in line and " end " in line for line in lines)


def _row(
    acknowledged: Sequence[str],
    traces: dict[str, list[Trace]],
    alone_since: Mapping[str, float],
    *,
    kills: int,
    took_s: float,
) -> Row:
    every = [trace for found in traces.values() for trace in found]
    alone = [trace for trace in every if trace.token in alone_since]
    ends = {name: sum(bool(trace.of("end")) for trace in found) for name, found in traces.items()}
    return Row(
        acknowledged=len(acknowledged),
        lost=sum(ends.get(name, 0) == 0 for name in acknowledged),
        doubled=sum(any(trace.of("doubled") for trace in found) for found in traces.values()),
        ended_twice=sum(count > 1 for count in ends.values()),
        orphaned=sum(bool(each.of("end")) or each.last_at > alone_since[each.token] + SWEPT_S for each in alone),
        kills=kills,
        took_s=took_s,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
