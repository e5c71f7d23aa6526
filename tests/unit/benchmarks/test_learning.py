"""Tests that learned memory keeps its aims on made histories: docs/internals/performance.md has the table."""

from __future__ import annotations

import pytest

from benchmarks.bench_learning import figures, of_rule, replay_of, replayed
from benchmarks.made_memory import MODES, made
from benchmarks.measure.figure import Figure
from benchmarks.peer_rules import PEERS
from gpuqueue.cli.output.learning_table import learning_table
from gpuqueue.model.learning_report import MemRule, ReplayFigures

#: Large enough for steady figures, small enough for a second.
PROGRAMS, RUNS = 40, 40
#: The quick run takes one history of each mode.
SEEDS = [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)]


def rule_of(mode: str, rule: MemRule, seed: int) -> ReplayFigures:
    """Return the figures of a rule over a small history."""
    return of_rule(replayed(mode, programs=PROGRAMS, runs=RUNS, seed=seed), rule)


def of(figures: ReplayFigures) -> tuple[float, float]:
    """Return the share of the jobs that fitted, and the unused memory as a share of the peaks."""
    assert figures.fit_rate is not None
    assert figures.above_peak is not None
    return figures.fit_rate, figures.above_peak


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mode", "most"), [("steady", 0.2), ("growing", 0.2), pytest.param("arguments", 0.45, marks=pytest.mark.full)]
)
def test_regular_programs_fit_with_little_above_their_peak(mode: str, most: float, seed: int) -> None:
    """At least 95 % of the repeat runs fit at the first try; of a steady program with at most 20 % above the peak.

    The first runs of a sweep are asked for by the largest run of the script, whatever its arguments.
    """
    fitted, above = of(rule_of(mode, MemRule.LEARNED, seed))

    assert fitted >= 0.95
    assert above <= most


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", [pytest.param("two-sizes", marks=pytest.mark.full), "heavy-tailed"])
def test_irregular_programs_are_better_off_than_with_what_people_ask_for(mode: str, seed: int) -> None:
    """The memory of all runs, lost ones included, is less by a tenth at least, and few runs are lost without retries.

    The largest of n runs is exceeded by the next one in one of n + 1 cases, so that a few runs are lost. With retries
    more are lost, for less memory.
    """
    rules = MemRule.LEARNED, MemRule.ENOUGH, MemRule.ASKED
    learned, enough, asked = (of(rule_of(mode, rule, seed)) for rule in rules)

    assert enough[0] >= 0.94
    assert 1 + enough[1] <= 0.9 * (1 + asked[1])
    assert learned[0] >= 0.8
    assert learned[1] <= enough[1] - 0.15


@pytest.mark.parametrize("seed", SEEDS)
def test_two_sizes_leave_two_fifths_unused(seed: int) -> None:
    """A program whose usual run is half of the largest asks for the usual one."""
    assert of(rule_of("two-sizes", MemRule.LEARNED, seed))[1] <= 0.45


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("mode", "most"), [pytest.param("linear", 0.38, marks=pytest.mark.full), ("climbing", 0.26)])
def test_a_number_that_moves_the_peak_is_followed(mode: str, most: float, seed: int) -> None:
    """Nearly all of its runs fit, although the owner goes on to sizes that have never run."""
    fitted, above = of(rule_of(mode, MemRule.LEARNED, seed))

    assert fitted >= 0.94
    assert above <= most


def test_rules_of_the_literature_are_replayed_beside_ours() -> None:
    """The benchmark has them, by the names that its table shows."""
    report = replay_of(made("linear", programs=2, runs=12), PEERS)

    assert [*map(str, MemRule), *PEERS] == [group.key for group in report.rules]
    assert all(group.figures.jobs == report.repeats for group in report.rules)
    assert all(name in learning_table(report, None) for name in PEERS)


def test_the_benchmark_has_two_figures_of_each_mode() -> None:
    """Each mode has its lost runs and its unused memory, beside what people ask for."""
    found = [each for each in figures(quick=True) if isinstance(each, Figure)]

    assert [f"learning.{mode}.{what}" for mode in MODES for what in ("lost", "unused")] == [
        each.name for each in found if each.floor is not None
    ]
