"""The figures of docs/performance.md: what a ratio is, what a row says, and that nothing is missed in silence."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from benchmarks.measure.figure import Absent, Figure, Floor, Report
from benchmarks.measure.rounds import quantile
from benchmarks.page import write as page_write
from benchmarks.page.row import Aim, Row
from benchmarks.page.rows import rows
from benchmarks.page.write import PageError, write

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {
    "cores": 2,
    "memory_bytes": 2**33,
    "kernel": "6.1",
    "python": "3.11",
    "store": "valkey 9",
    "load_before": [0.1],
}
REGIONS = """# Page
<!-- run: of a run -->
<!-- end of run -->
by hand
<!-- table: of a run -->
old
<!-- end of table -->
<!-- peers: of a run -->
<!-- end of peers -->
"""


def report(*figures: Figure | Absent) -> Report:
    """Return a report that holds these."""
    return Report(
        machine=MACHINE,
        quick=False,
        took_s=60.0,
        at=datetime(2026, 11, 22, tzinfo=timezone.utc),
        figures=tuple(each for each in figures if isinstance(each, Figure)),
        absent=tuple(each for each in figures if isinstance(each, Absent)),
    )


def ms(name: str, value: float, floor: float = 10.0) -> Figure:
    """Return a time beside its floor."""
    return Figure(name=name, value=value, unit="ms", floor=Floor(name="a floor", value=floor))


def row(*, aims: tuple[Aim, ...], best: Aim | None = None, why_not: str = "") -> Row:
    """Return a row with these bounds."""
    return Row(what="a thing", anchor="another", aim="an aim", aims=aims, best=best, why_not=why_not)


def test_a_ratio_is_how_many_times_the_floor_it_costs() -> None:
    """Of times ours to the floor's, of rates the floor's to ours: 1 is perfect, less is better, everywhere."""
    rate = Figure(name="r", value=100.0, unit="jobs/s", floor=Floor(name="f", value=400.0))

    assert (2.0, 4.0) == (ms("t", 20.0).ratio, rate.ratio)
    assert Figure(name="n", value=1.0, unit="jobs").ratio is None


def test_a_quantile_is_one_of_the_values() -> None:
    """Of few values the highest is the p99: none is made up between two."""
    assert (2.0, 3.0, 3.0) == tuple(quantile([3.0, 1.0, 2.0], share) for share in (0.5, 0.9, 0.99))


def test_a_report_comes_back_from_its_json() -> None:
    """A page is filled from the file of an earlier run."""
    made = report(ms("a", 20.0), Absent(name="peers.rq", why="not installed"))

    assert made == Report.from_json(made.to_json())
    with pytest.raises(ValueError, match="no report of python -m benchmarks"):
        Report.from_json("[]")


@pytest.mark.parametrize(
    ("value", "verdict", "held"), [(15.0, "held, ahead of the best", True), (40.0, "missed, 2.0 times", False)]
)
def test_a_row_says_whether_its_aim_holds(value: float, verdict: str, *, held: bool) -> None:
    """A time may be lower than its bound."""
    line, fine = row(aims=(Aim(figure="a", bound=20.0),), best=Aim(figure="a", bound=16.0)).line(report(ms("a", value)))

    assert verdict in line
    assert held == fine


def test_a_rate_holds_above_its_bound_and_a_ratio_below() -> None:
    """Which way is better follows from the unit, and a ratio is always a cost."""
    rate = Figure(name="r", value=100.0, unit="jobs/s", floor=Floor(name="f", value=400.0))

    assert Aim(figure="r", bound=90.0).missed_by(rate) is None
    assert 1.1 == Aim(figure="r", bound=110.0).missed_by(rate)
    assert Aim(figure="r", bound=4.0, of_ratio=True).missed_by(rate) is None
    assert 2.0 == Aim(figure="r", bound=2.0, of_ratio=True).missed_by(rate)


def test_a_bound_of_nothing_is_missed_by_anything() -> None:
    """Nothing may be lost: there is no factor by which it was."""
    lost = Figure(name="kills.lost", value=1.0, unit="jobs")

    line, fine = row(aims=(Aim(figure="kills.lost", bound=0),)).line(report(lost))

    assert line.endswith("| missed |")
    assert not fine


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    """Of a run of some benchmarks the other rows stay empty, and are no failure."""
    page = tmp_path / "page.md"
    page.write_text(REGIONS)

    write(report(ms("submit.array.10000", 5.0), Absent(name="peers.rq", why="not installed")), page)

    text = page.read_text()
    assert "| held, ahead of the best |" in text
    assert "| not measured |" in text
    assert "| rq | not installed |" in text
    assert "by hand" in text
    assert "old" not in text


def test_what_a_peer_cannot_do_stands_below_the_table(tmp_path: Path) -> None:
    """A dash in the row of a peer that was measured has its reason; it once stood in the JSON alone."""
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    cannot = Absent(name="peers.huey.submit", why="it has no command that submits")
    broke_off = Absent(name="peers.rq", why="it broke off: no answer")

    write(report(ms("peers.huey.start", 2.0), cannot, ms("peers.rq.start", 3.0), broke_off), page)

    text = page.read_text()
    assert "| huey | - | 2 ms (0.20) | - | - | - |" in text
    assert "- huey.submit: it has no command that submits" in text
    assert "| rq | - | 3 ms (0.30) | - | - | - |" in text
    assert "- rq: it broke off: no answer" in text


def test_a_row_that_misses_must_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written then: who runs it is told what to write first."""
    page = tmp_path / "page.md"
    page.write_text(REGIONS)
    monkeypatch.setattr(page_write, "rows", lambda _report: (row(aims=(Aim(figure="a", bound=20.0),)),))

    with pytest.raises(PageError, match="a thing misses its aim"):
        write(report(ms("a", 40.0)), page)

    assert REGIONS == page.read_text()


def test_every_row_that_can_be_behind_has_a_sentence() -> None:
    """All but the one where a miss is no matter of speed: nothing may be lost, and no sentence excuses it."""
    assert ["workers killed (SIGKILL): lost, doubled, orphaned"] == [
        each.what for each in rows(report()) if not each.why_not
    ]


def test_the_page_has_its_regions(tmp_path: Path) -> None:
    """Written twice it is the same."""
    page = tmp_path / "performance.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text())

    write(report(), page)
    once = page.read_text()
    write(report(), page)

    assert once == page.read_text()
    page.write_text("# no region\n")
    with pytest.raises(PageError, match="has no region"):
        write(report(), page)
