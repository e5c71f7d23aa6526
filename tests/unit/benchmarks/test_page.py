"""Tests of the figures in docs/internals/performance.md: ratios, the text of each row, and every missed aim."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_report import make_report

from benchmarks.measure.figure import Absent, Figure, Floor
from benchmarks.measure.report_json import read
from benchmarks.measure.rounds import quantile
from benchmarks.page import write as page_write
from benchmarks.page.others import Known, Others
from benchmarks.page.row import Aim, Row
from benchmarks.page.rows import rows
from benchmarks.page.write import PageError, write

ROOT = Path(__file__).resolve().parents[3]
REGIONS = """# Page
<!-- run: of a run -->
<!-- end of run -->
by hand
<!-- table: of a run -->
old
<!-- end of table -->
<!-- claims: of a run -->
<!-- end of claims -->
<!-- commands: of a run -->
<!-- end of commands -->
<!-- shares: of a run -->
<!-- end of shares -->
<!-- peers: of a run -->
<!-- end of peers -->
"""


def ms(name: str, value: float, floor: float = 10.0) -> Figure:
    """Return a time with a floor, both in milliseconds."""
    return Figure(name=name, value=value, unit="ms", floor=Floor(name="a floor", value=floor))


def row(*, aims: tuple[Aim, ...], others: Others | None = None, why_not: str = "") -> Row:
    """Return a row with these bounds."""
    return Row(what="a thing", aim="an aim", aims=aims, others=others, why_not=why_not)


def starts() -> Others:
    """Return the known figures of other systems for starting a job."""
    return Others(ours="a", measured="start", known=(Known(name="Known", shown="16 ms (C)", value=16.0),))


def test_a_ratio_is_how_many_times_the_floor_it_costs() -> None:
    """A ratio is a cost: for times ours divided by the floor, for rates the floor divided by ours.

    1 is perfect, and less is better, for both.
    """
    rate = Figure(name="r", value=100.0, unit="jobs/s", floor=Floor(name="f", value=400.0))

    assert (2.0, 4.0) == (ms("t", 20.0).ratio, rate.ratio)
    assert Figure(name="n", value=1.0, unit="jobs").ratio is None


def test_a_quantile_is_one_of_the_values() -> None:
    """A quantile is one of the values and is never interpolated. With few values the p99 is the highest value."""
    assert (2.0, 3.0, 3.0) == tuple(quantile([3.0, 1.0, 2.0], share) for share in (0.5, 0.9, 0.99))


def test_of_a_hundred_values_one_is_above_the_p99() -> None:
    """One of a hundred values is above the p99.

    Regression: the p99 was the highest value, so a ratio of two p99s compared two outliers.
    """
    assert (1, 50, 90, 99, 100) == tuple(quantile(range(1, 101), share) for share in (0.0, 0.5, 0.9, 0.99, 1.0))


def test_a_report_comes_back_from_its_json() -> None:
    """A report survives a round trip through JSON, because a page can be filled from the file of an earlier run."""
    made = make_report(ms("a", 20.0), Absent(name="peers.rq", why="not installed"))

    assert made == read(made.to_json())
    with pytest.raises(ValueError, match="no report of python -m benchmarks"):
        read("[]")


@pytest.mark.parametrize(
    ("value", "verdict", "held"),
    [
        (15.0, "held, ahead of the best (Known, 16 ms: known, not of this run)", True),
        (40.0, "missed, 2.0 times, 2.5 times behind the best (Known, 16 ms: known, not of this run)", False),
    ],
)
def test_a_row_says_whether_its_aim_holds(value: float, verdict: str, *, held: bool) -> None:
    """A row says whether its aim holds. A time may be lower than its bound."""
    line, fine = row(aims=(Aim(figure="a", bound=20.0),), others=starts()).line(make_report(ms("a", value)))

    assert "| known, not of this run: Known 16 ms (C) |" in line
    assert verdict in line
    assert held == fine


def test_others_are_compared_by_what_the_same_run_measured_of_them() -> None:
    """A comparison uses the peers' figures of the same run.

    Regression: it used the constants although the run had measured the peers, and reported a row ahead that was behind.
    """
    peers = (ms("peers.gpuqueue.start", 24.0), ms("peers.slow.start", 900.0), ms("peers.fast.start", 8.0))

    line, fine = row(aims=(Aim(figure="a", bound=20.0),), others=starts()).line(make_report(ms("a", 10.0), *peers))

    assert "| fast 8 ms<br>slow 900 ms<br>known, not of this run: Known 16 ms (C) |" in line
    assert "| held, 3.0 times behind the best (fast, 8 ms beside our 24 ms in this run) |" in line
    assert not fine


def test_one_measured_peer_does_not_silence_what_is_known_of_others() -> None:
    """A known figure of a peer that the run did not measure still counts.

    Regression: a run that measured one slow peer was "ahead of the best", with a known peer at half its time.
    """
    peers = (ms("peers.gpuqueue.start", 24.0), ms("peers.slow.start", 900.0))
    aims = (Aim(figure="a", bound=30.0),)

    line, fine = row(aims=aims, others=starts()).line(make_report(ms("a", 25.6), *peers))

    assert "| held, 1.6 times behind the best (Known, 16 ms: known, not of this run) |" in line
    assert not fine
    assert "ahead of the best (Known, 16 ms" in row(aims=aims, others=starts()).line(make_report(ms("a", 12.0)))[0]


def test_a_known_best_stands_beside_the_less_good_of_our_own_figures() -> None:
    """A known figure is compared with the worse of our two figures.

    Otherwise a row could be ahead of the best and behind a peer that the run measured.
    """
    peers = (ms("peers.gpuqueue.start", 24.0), ms("peers.near.start", 17.0))

    line, fine = row(aims=(Aim(figure="a", bound=30.0),), others=starts()).line(make_report(ms("a", 10.0), *peers))

    assert "1.5 times behind the best (Known, 16 ms: known, not of this run, beside our 24 ms in the table" in line
    assert not fine


def test_who_was_measured_is_not_known_as_well() -> None:
    """The known figure of a measured peer is ignored, because it comes from another run."""
    others = starts()
    peers = (ms("peers.gpuqueue.start", 24.0), ms("peers.Known.start", 30.0))

    assert others.beside(make_report(ms("a", 20.0), *peers)) == (
        ", ahead of the best (Known, 30 ms beside our 24 ms in this run)",
        False,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "output"),
    [
        (3.0, 0.0, ", behind the best ("),
        (0.0, 3.0, ", ahead of the best ("),
        (0.0, 0.0, ", ahead of the best ("),
    ],
)
def test_a_time_of_nothing_divides_nobody(ours: float, theirs: float, output: str) -> None:
    """A time of zero gives a verdict. Regression: it raised `ZeroDivisionError`, and no page was written."""
    reported, behind = starts().beside(make_report(ms("peers.gpuqueue.start", ours), ms("peers.one.start", theirs)))

    assert reported.startswith(output)
    assert behind == (", behind the best (" == output)


def test_a_rate_of_nothing_divides_nobody() -> None:
    """A rate of zero, from a run in which no job finished, gives a verdict without a factor."""
    others = Others(ours="r", known=(Known(name="one", shown="5", value=5.0),))

    assert others.beside(make_report(Figure(name="r", value=0.0, unit="jobs/s"))) == (
        ", behind the best (one, 5 jobs/s: known, not of this run)",
        True,
    )


def test_of_others_rates_the_highest_is_the_best() -> None:
    """The highest rate is the best.

    A peer that is both known and measured is listed once, with its figure of this run.
    """
    known = (Known(name="one", shown="500", value=500.0), Known(name="two", shown="700", value=700.0))
    others = Others(ours="r", measured="jobs", known=known)
    rates = [
        Figure(name=name, value=value, unit="jobs/s")
        for name, value in (("r", 100.0), ("peers.one.jobs", 50.0), ("peers.three.jobs", 40.0))
    ]

    assert others.reported(make_report(*rates)) == "one 50 jobs/s<br>three 40 jobs/s<br>known, not of this run: two 700"
    assert others.beside(make_report(*rates)) == (
        ", 7.0 times behind the best (two, 700 jobs/s: known, not of this run)",
        True,
    )


def test_informative_figures_do_not_count_in_the_verdict() -> None:
    """A figure without a bound has no part in the verdict.

    The time within a process is listed with its name beside the time of the whole process.
    """
    aims = (Aim(figure="a", bound=20.0, called="whole process"), Aim(figure="b", bound=None, called="within one"))

    line, fine = row(aims=aims).line(make_report(ms("a", 15.0), ms("b", 90.0)))

    assert "| 15 ms: whole process<br>90 ms: within one |" in line
    assert fine
    assert "| held |" in row(aims=aims).line(make_report(ms("a", 15.0)))[0]


def test_a_single_pass_or_load_is_noted_above_the_table(tmp_path: Path) -> None:
    """The page lists the figures of a single pass and the figures taken under load.

    Regression: the page called all figures medians of rounds.
    """
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    passes = Figure(name="claim.1000.best.p50", value=80.0, unit="us", of=2000, load=0.5)
    loaded = [
        Figure(name=f"queue.{name}", value=2.0, unit="ms", rounds=5, load=load) for name, load in (("a", 9.0), ("b", 1))
    ]

    write(make_report(passes, *loaded), page)

    text = page.read_text()
    assert "One pass and no rounds are: `claim.…` (in the JSON)." in text
    assert "More than the cores it was at: 1 of 2 of `queue.…` (in the JSON)." in text


def test_the_other_tables_have_what_was_measured(tmp_path: Path) -> None:
    """The page shows claims by queue length, commands and shares of a core.

    Regression: these figures were in the JSON only.
    """
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    figures = [
        Figure(name=name, value=2.0, unit="us")
        for group in ("claim.1000", "claim-libc.1000")
        for name in (f"{group}.best.p50", f"{group}.best.p99")
    ]
    figures += [ms("queue.1000.process", 40.0), ms("command.queue.process", 20.0), ms("command.down.help", 30.0)]
    figures += [ms("import.gpuqueue.cli.commands.queue", 15.0), Figure(name="worker.busy.cpu", value=1.5, unit="%")]

    write(make_report(*figures), page)

    text = page.read_text()
    assert "| 1 000 | 2 us, 2 us |" + " -, - |" * 6 + " 40 ms (4.00) | - |" in text
    assert "| 1 000, the C library's allocator | 2 us, 2 us |" in text
    assert "| `queue` | 20 ms (2.00) | 15 ms (1.50) |" in text
    assert "| `down --help` | 30 ms (3.00) |" in text
    assert "| worker, four jobs run | - | 1.50 % |" in text


def test_a_rate_holds_above_its_bound_and_a_ratio_below() -> None:
    """The unit decides which direction is better. A ratio is always a cost."""
    rate = Figure(name="r", value=100.0, unit="jobs/s", floor=Floor(name="f", value=400.0))

    assert Aim(figure="r", bound=90.0).missed_by(rate) is None
    assert 1.1 == Aim(figure="r", bound=110.0).missed_by(rate)
    assert Aim(figure="r", bound=4.0, of_ratio=True).missed_by(rate) is None
    assert 2.0 == Aim(figure="r", bound=2.0, of_ratio=True).missed_by(rate)


def test_a_miss_by_little_is_no_miss_by_nothing() -> None:
    """A small miss has a factor with enough digits. Regression: the page said "missed, 1.0 times"."""
    assert "| missed, 1.02 times |" in row(aims=(Aim(figure="a", bound=100.0),)).line(make_report(ms("a", 102.0)))[0]


def test_what_a_float_adds_is_no_miss() -> None:
    """A rounding error is no miss.

    Regression: two clock ticks in four seconds were "missed, 1.00 times" for a bound of half a percent.
    """
    assert "| held |" in row(aims=(Aim(figure="a", bound=0.5),)).line(make_report(ms("a", 0.5 + 1e-12)))[0]


def test_a_bound_of_nothing_is_missed_by_anything() -> None:
    """A bound of zero is missed without a factor, because no factor exists."""
    lost = Figure(name="kills.lost", value=1.0, unit="jobs")

    line, fine = row(aims=(Aim(figure="kills.lost", bound=0),)).line(make_report(lost))

    assert line.endswith("| missed |")
    assert not fine


def test_unmeasured_figures_are_named(tmp_path: Path) -> None:
    """The rows of benchmarks that did not run say "not measured", and are no failure."""
    page = tmp_path / "page.md"
    page.write_text(REGIONS)

    write(make_report(ms("submit.array.10000.process", 5.0), Absent(name="peers.rq", why="not installed")), page)

    text = page.read_text()
    assert "| held, ahead of the best (slurm, 6 ms: known, not of this run) |" in text
    assert "| not measured |" in text
    assert "| rq | not installed |" in text
    assert "by hand" in text
    assert "old" not in text


def test_what_a_peer_cannot_do_stands_below_the_table(tmp_path: Path) -> None:
    """The reason for a dash in the row of a measured peer is below the table.

    Regression: the reason was in the JSON only.
    """
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    cannot = Absent(name="peers.huey.submit", why="it has no command that submits")
    broke_off = Absent(name="peers.rq", why="it broke off: no answer")

    write(make_report(ms("peers.huey.start", 2.0), cannot, ms("peers.rq.start", 3.0), broke_off), page)

    text = page.read_text()
    assert "| huey | - | - | 2 ms (0.20) | - | - | - |" in text
    assert "- huey.submit: it has no command that submits" in text
    assert "| rq | - | - | 3 ms (0.30) | - | - | - |" in text
    assert "- rq: it broke off: no answer" in text


def test_a_row_that_misses_must_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that misses its aim without an explanation stops the write.

    The error says what the user must write first.
    """
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    monkeypatch.setattr(page_write, "rows", lambda _report: (row(aims=(Aim(figure="a", bound=20.0),)),))

    with pytest.raises(PageError, match="a thing misses its aim"):
        write(make_report(ms("a", 40.0)), page)

    assert REGIONS == page.read_text()


@pytest.mark.parametrize(("also", "output"), [(True, "takes a third of it away"), (False, "had none")])
def test_why_a_claim_misses_is_true_with_either_allocator(*, also: bool, output: str) -> None:
    """The explanation fits the measured allocators.

    A claim is measured with a better allocator, and also with the C library's allocator where the machine has both.
    """
    names = ["claim.1000.typical.p50", *(["claim-libc.1000.typical.p50"] if also else [])]
    made = make_report(*(Figure(name=name, value=500.0, unit="us") for name in names))

    claim = next(each for each in rows(made) if each.what.startswith("claim, in the server"))

    assert output in claim.why_not
    assert also == ("500 us: typical p50, the C library's allocator" in claim.line(made)[0])


def test_the_highest_p99_of_a_claim_is_that_of_each_allocator() -> None:
    """Each allocator has its own highest p99.

    Regression: both allocators showed the case that is slowest with the better one.
    """
    reported = {"claim.1000.smallest": 900.0, "claim.1000.worst": 800.0}
    reported |= {"claim-libc.1000.smallest": 1500.0, "claim-libc.1000.worst": 2000.0}
    made = make_report(*(Figure(name=f"{name}.p99", value=value, unit="us") for name, value in reported.items()))

    line = next(each for each in rows(made) if each.what.startswith("claim, in the server")).line(made)[0]

    assert "900 us: highest p99" in line
    assert "2 000 us: highest p99, the C library's allocator" in line


@pytest.mark.parametrize(
    ("floor", "output"),
    [
        ("durable LPUSH, a BLPOP has it (p50)", "submit → the worker knows that it may start it"),
        ("durable LPUSH, BLPOP (p50)", "submit → the store has stamped the start (a write to the disk before the"),
    ],
)
def test_the_place_of_the_grant_timestamp_is_named(floor: str, output: str) -> None:
    """The row says where the grant was stamped.

    Regression: our grant was stamped before the disk write and the answer, the floor after both, and both had the same
    row text.
    """
    granted = Figure(name="latency.idle.granted.p50", value=6.0, unit="ms", floor=Floor(name=floor, value=0.4))

    assert any(each.what.startswith(output) for each in rows(make_report(granted)))


@pytest.mark.parametrize(
    ("floor", "in_row", "on_page"),
    [
        (
            "Python, by PSS",
            "idle worker with its parent and the process that forks its shims: memory (PSS), share",
            "Memory is PSS",
        ),
        ("Python, by RSS", "its shims: memory (RSS, pages counted for each), share", "as PSS could not be read"),
        ("Python", "idle worker, its main process alone: memory (RSS), share", "without the one that forks its shims"),
    ],
)
def test_the_method_of_memory_counting_is_named(floor: str, in_row: str, on_page: str, tmp_path: Path) -> None:
    """The page says how memory was counted.

    Regression: a worker was held to 70 MiB without the 12 MiB of its fork server, and the page did not say so.
    """
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    memory = Figure(name="worker.idle.memory", value=60.0, unit="MiB", floor=Floor(name=floor, value=40.0))

    write(make_report(memory), page)

    assert in_row in page.read_text()
    assert on_page in page.read_text()


def test_every_row_that_can_be_behind_has_a_sentence() -> None:
    """Every row has an explanation for a miss, except the row about lost jobs. No explanation excuses a lost job."""
    assert ["workers killed (SIGKILL): lost, doubled, orphaned"] == [
        each.what for each in rows(make_report()) if not each.why_not
    ]


def test_the_page_has_its_regions(tmp_path: Path) -> None:
    """docs/internals/performance.md has every region, and a second write does not change the page."""
    page = tmp_path / "performance.md"
    page.write_text((ROOT / "docs" / "internals" / "performance.md").read_text())

    write(make_report(), page)
    once = page.read_text()
    write(make_report(), page)

    assert once == page.read_text()
    page.write_text("# no region\n")
    with pytest.raises(PageError, match="has no region"):
        write(make_report(), page)
