"""Tests that a bad page or a bad file of figures gives a one-line error before anything is measured."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from benchmark_report import PAGE, make_report

from benchmarks import __main__ as whole
from benchmarks.catalogue import BENCHMARKS
from benchmarks.measure.figure import Absent, Figure, Floor
from benchmarks.measure.report_json import read
from benchmarks.page.rows import rows
from benchmarks.page.runs import merged, origin
from benchmarks.page.write import lacking


def figure(name: str = "cycles", load: float = 0.5) -> Figure:
    """Return a figure with this name."""
    return Figure(name=name, value=3.0, unit="ms", load=load)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run with *words*, which must be a usage error, and return the last line of the error output."""
    with pytest.raises(SystemExit) as ended:
        whole.main(words)
    assert 2 == ended.value.code
    return capsys.readouterr().err.splitlines()[-1]


def test_a_page_is_not_written_from_some_of_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page is not written from some of the parts. Regression: the whole table became "not measured"."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)

    printed = refused(["--quick", "--only", "submit", "warm", "--write", str(page)], capsys)

    assert "some of the rows would be empty; measure all, or give the other parts as well: --from" in printed
    kept = tmp_path / "run.json"
    kept.write_text(make_report(figure()).to_json())
    assert 1 == whole.main(["--from", str(kept), "--write", str(page)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"benchmarks: {page} is not written: nothing was measured for '`gpuqueue submit`")
    assert PAGE == page.read_text()


def test_what_a_machine_cannot_measure_lacks_nothing() -> None:
    """A run without torch is complete. A run with a part that failed is not."""
    warm = "`--warm`: submit → the line after `import torch`"

    assert warm in lacking(make_report())
    assert warm not in lacking(make_report(Absent(name="warm", why="no torch here")))
    assert warm in lacking(make_report(Absent(name="warm", why="it broke off: OSError()")))
    assert "others, side by side" not in lacking(make_report(Absent(name="peers.rq", why="not installed")))


def test_informative_figures_may_be_missing() -> None:
    """A figure without a bound may be missing.

    A page can be filled from an older report: a line that was added since is left out, and nothing is refused.
    """
    submits = "submits a second, one after the other: `Client.submit`, what a Python program calls"
    bound = [figure(f"submit.{each}") for each in ("client", "queue", "pipelined")]

    assert submits in lacking(make_report(*bound[:2]))
    assert submits not in lacking(make_report(*bound))
    (row,) = (each for each in rows(make_report()) if each.what == submits)
    reported = "3 ms: `Client.submit` in a git repository, where it takes its revision along"
    assert reported not in row.line(make_report(*bound))[0]
    assert reported in row.line(make_report(*bound, figure("submit.client.repository")))[0]


def test_an_unwritable_output_path_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unusable output path is refused before the first measurement.

    Such paths are a page without regions and a directory.
    """
    monkeypatch.setattr(whole, "BENCHMARKS", dict.fromkeys(BENCHMARKS))
    page = tmp_path / "README.md"
    page.write_text("# no region\n")

    assert "has no region <!-- run" in refused(["--write", str(page)], capsys)
    assert "there is no page" in refused(["--write", str(tmp_path / "none.md")], capsys)
    assert f"--json: {tmp_path} is a directory; name a file" in refused(["--json", str(tmp_path)], capsys)
    assert "--json: there is no directory" in refused(["--json", str(tmp_path / "a" / "b")], capsys)


@pytest.mark.parametrize(
    ("where", "value", "printed"),
    [
        (("figures",), ["x"], "figures[0] is no object"),
        (("figures",), {}, "figures is no list"),
        (("machine",), {}, "machine.cores is no count"),
        (("machine",), [1], "machine is no object"),
        (("machine", "load_before"), [], "machine.load_before is no list of numbers"),
        (("took_s",), "x", "took_s is no number"),
        (("at",), "yesterday", "at is no date and time"),
        (("figures", 0, "value"), "x", "figures[0].value is no number"),
        (("figures", 0, "value"), None, "figures[0].value is no number"),
        (("figures", 0, "value"), float("nan"), "NaN is no number"),
        (("figures", 0, "value"), 10**400, "figures[0].value is no number"),
        (("figures", 0, "load"), "x", "figures[0].load is no number"),
        (("figures", 0, "unit"), 5, "figures[0].unit is no text"),
        (("figures", 0, "rounds"), 1.5, "figures[0].rounds is no count"),
        (("figures", 0, "floor"), "x", "figures[0].floor is no object"),
        (("figures", 0, "name"), "claim.abc", "figures[0].name is no name of a figure: 'claim.abc'"),
        (("figures", 0, "name"), "claim", "figures[0].name is no name of a figure: 'claim'"),
        (("figures", 0, "name"), "peers", "figures[0].name is no name of a figure: 'peers'"),
        (("absent",), [{"name": 1}], "absent[0].name is no text"),
        ((), [], "it is no object"),
    ],
)
def test_a_damaged_file_is_named(
    where: tuple[str | int, ...], value: object, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error for a damaged file names the file.

    Regression: it gave a traceback, or a page with a NaN that met every aim.
    """
    plain: Any = json.loads(make_report(figure()).to_json())
    damaged = deepcopy(plain)
    inner = damaged
    for each in where[:-1]:
        inner = inner[each]
    if where:
        inner[where[-1]] = value
    else:
        damaged = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(damaged))

    assert 1 == whole.main(["--from", str(path)])

    reported = capsys.readouterr().err
    assert f"benchmarks: {path}: no report of python -m benchmarks --json: {printed}\n" == reported


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_report_is_reported_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty file, a binary file and endless brackets each give a one-line error."""
    path = tmp_path / "run.json"
    path.write_bytes(content)

    assert 1 == whole.main(["--from", str(path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"benchmarks: {path}: ")


def test_every_field_of_a_figure_comes_back() -> None:
    """Every field of a figure survives JSON.

    A field that is written but not read would be missing from a page that is filled again.
    """
    counts = {each.name: 7 for each in fields(Figure) if "int" in str(each.type)}
    made = Figure(name="a", value=3.0, unit="ms", floor=Floor(name="f", value=2.0), load=1.5, **counts)

    assert (made,) == read(make_report(made).to_json()).figures


def test_a_page_of_several_runs_says_so() -> None:
    """A page of several runs lists each run.

    Regression: it said "one run" with the date, duration and load of the first file.
    """
    first, second = make_report(figure(load=1.0)), make_report(figure(), figure("warm.first", load=4.0), day=23)

    one = read(merged([first, second]).to_json())

    assert ["cycles", "warm.first"] == [each.name for each in one.figures]
    assert "Figures of 2 runs on 2 cores, 8 GiB" in origin(one)
    assert "- 10 minutes on 22 November 2026: the load average was 0.1 before it and 1.0 to 1.0 while" in origin(one)
    assert "- 10 minutes on 23 November 2026: the load average was 0.1 before it and 4.0 to 4.0 while" in origin(one)
    assert "One run of 10 minutes on 22 November 2026" in origin(merged([first, make_report(figure(), day=23)]))
