"""How well memory learned from earlier runs fits the next ones, beside what people ask for and beside simple rules.

Histories of programs whose peaks vary in known ways are replayed as ``gpuqueue stats --learning`` replays the recorded
ones. Nothing is run, so the figures are the same on each machine; only the time of the replay is measured. The floor is
what people ask for: twice what the first run used, and twice as much again after each run that lacked memory.

    python -m benchmarks.bench_learning [--programs 150] [--runs 40] [--only heavy-tailed]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence

from benchmarks.made_memory import BEGIN, MODES, made
from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.peer_rules import PEERS
from gpuqueue.cli.output.learning_table import learning_table
from gpuqueue.learning.replay import PastJob, Rule, replay
from gpuqueue.model.learning_report import LearningReport, MemRule, ReplayFigures

PROGRAMS, RUNS = 150, 40
QUICK_PROGRAMS = 5


def figures(*, quick: bool = False) -> Measured:
    """Replay each mode."""
    programs = QUICK_PROGRAMS if quick else PROGRAMS
    spent_s, jobs = 0.0, 0
    for mode in MODES:
        history = made(mode, programs=programs, runs=RUNS, seed=1)
        began_s = time.perf_counter()
        found = replay_of(history)
        spent_s += time.perf_counter() - began_s
        learned, asked = of_rule(found, MemRule.LEARNED), of_rule(found, MemRule.ASKED)
        for name, value, floor in (
            ("lost", lost_percent(learned), lost_percent(asked)),
            ("unused", unused_percent(learned), unused_percent(asked)),
        ):
            low = Floor(name="what people ask for", value=floor)
            yield Figure(name=f"learning.{mode}.{name}", value=value, unit="%", floor=low, of=found.repeats)
        jobs += found.jobs
    yield Figure(name="learning.replay", value=1e6 * spent_s / jobs, unit="us", of=jobs)


def replayed(mode: str, *, programs: int, runs: int, seed: int = 1) -> LearningReport:
    """Return the replay of a history of one mode."""
    return replay_of(made(mode, programs=programs, runs=runs, seed=seed))


def replay_of(history: Sequence[PastJob], others: Mapping[str, Rule] | None = None) -> LearningReport:
    """Return the replay of all jobs of *history*, by *others* too."""
    return replay(history, since=BEGIN, until=max(job.ended_at for job in history), others=others)


def of_rule(report: LearningReport, rule: MemRule) -> ReplayFigures:
    """Return the figures of one rule."""
    return next(group.figures for group in report.rules if group.key == rule.value)


def lost_percent(figures: ReplayFigures) -> float:
    """Return the share of the jobs whose first run did not fit, in percent."""
    return 100 * (1 - (figures.fit_rate or 0.0))


def unused_percent(figures: ReplayFigures) -> float:
    """Return the memory that was reserved and not used, in percent of the peaks."""
    return 100 * (figures.above_peak or 0.0)


def main() -> None:
    """Replay each mode and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=how_many, default=PROGRAMS, help="Programs of each mode.")
    parser.add_argument("--runs", type=how_many, default=RUNS, help="Runs of each program.")
    parser.add_argument("--only", choices=MODES, nargs="+", default=list(MODES), help="Modes.")
    chosen = parser.parse_args()
    for mode in chosen.only:
        report = replay_of(made(mode, programs=chosen.programs, runs=chosen.runs), PEERS)
        print(f"{mode}\n\n{learning_table(report, None)}\n", flush=True)


if __name__ == "__main__":
    main()
