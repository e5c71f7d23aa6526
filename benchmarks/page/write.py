"""Fills the marked regions of docs/internals/performance.md from a report. Never edit these regions by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure.figure import Absent, Figure, Report
from benchmarks.measure.whole_file import check_writable, put_whole
from benchmarks.page import more
from benchmarks.page.more import NOTHING, cells, reported
from benchmarks.page.row import Row
from benchmarks.page.rows import rows
from benchmarks.page.runs import origin

HEAD = ("what", "best of others", "floor, in the same run", "ours", "times the floor", "aim", "load", "verdict")
PEERS_HEAD = (
    "",
    "jobs/s",
    "submits/s",
    "submit → start",
    "one submit, from a shell",
    "copies after a kill",
    "after a cancel",
)
#: The regions of the page that are written.
REGIONS = ("run", "table", "claims", "commands", "shares", "peers")
#: The figures of a peer that are shown, by the last part of their names.
REPORTED = ("jobs", "submits", "start", "submit", "after-kill", "after-cancel")


class PageError(Exception):
    """The page cannot be filled."""


def write(report: Report, page: Path) -> list[str]:
    """Fill the marked regions of *page*; return a line for each row that misses its aim.

    Raises:
        OSError: the page cannot be written; it is unchanged.
        PageError: the page lacks a region, or a row misses its aim without a reason, or the report has text that no
        file can hold.
    """
    table, missed = _table(report)
    text = page.read_text(encoding="utf-8")
    regions = {
        "run": _run(report),
        "table": table,
        "claims": more.claims(report),
        "commands": more.commands(report),
        "shares": more.shares(report),
        "peers": _peers(report),
    }
    for name, body in regions.items():
        text = _filled(text, name, body, page)
    try:
        put_whole(page, text)
    except UnicodeEncodeError as error:
        raise PageError(f"{page} is not written: the report has characters that are none ({error.reason})") from error
    return missed


def check(page: Path) -> None:
    """Check whether *page* can be filled, before a measurement of an hour.

    Raises:
        OSError: the page cannot be read or written.
        UnicodeDecodeError: the page is no text.
        PageError: the page lacks a region.
    """
    text = page.read_text(encoding="utf-8")
    check_writable(page)
    for name in REGIONS:
        _region(text, name, page)


def lacking(report: Report) -> list[str]:
    """Return the rows for which *report* has nothing. Figures that this machine cannot have are not missing."""
    named = [*(each.name for each in report.figures), *(each.name for each in report.absent)]
    others = [] if any(each.startswith("peers.") for each in named) else ["others, side by side"]
    return [row.what for row in rows(report) if not _is_reported(row, report)] + others


def _is_reported(row: Row, report: Report) -> bool:
    return all(
        report.get(aim.figure) is not None or any(_excuses(each, aim.figure) for each in report.absent)
        for aim in row.aims
        if aim.bound is not None  # figures that are only shown may be absent in earlier reports
    )


def _excuses(absent: Absent, figure: str) -> bool:
    return f"{figure}.".startswith(f"{absent.name}.") and "broke off" not in absent.why


def _region(text: str, name: str, page: Path) -> re.Pattern[str]:
    region = re.compile(f"(<!-- {name}: .*?-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not region.search(text):
        raise PageError(f"{page} has no region <!-- {name}: … --> to <!-- end of {name} -->")
    return region


def _filled(text: str, name: str, body: str, page: Path) -> str:
    return _region(text, name, page).sub(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", text)


def _run(report: Report) -> str:
    cores = report.machine["cores"]
    return (
        f"{origin(report)}"
        f"{_listed(report, lambda each: each.load > cores, 'More than the cores it was at')}"
        f"{_listed(report, _is_one_pass, 'One pass and no rounds are')}"
    )


def _listed(report: Report, chosen: Callable[[Figure], bool], output: str) -> str:
    """Return a sentence with the groups of the *chosen* figures, and how many of each group are chosen."""
    groups = Counter(_group(each) for each in report.figures)
    found = Counter(_group(each) for each in report.figures if chosen(each))
    names = (
        f"`{name}.…`" if count == groups[name] else f"{count} of {groups[name]} of `{name}.…`"
        for name, count in found.items()
    )
    return f"\n\n{output}: {', '.join(names)} (in the JSON)." if found else ""


def _is_one_pass(figure: Figure) -> bool:
    return figure.rounds == 1 and (figure.of > 1 or figure.floor is not None)  # a plain count needs no rounds


def _group(figure: Figure) -> str:
    return figure.name.partition(".")[0]


def _table(report: Report) -> tuple[str, list[str]]:
    lines, reasons, missed = [cells(HEAD), cells(["---"] * len(HEAD))], [], []
    for row in rows(report):
        line, held = row.line(report)
        lines.append(line)
        if not held:
            if not row.why_not:
                raise PageError(
                    f"{row.what} misses its aim or is behind: its row in benchmarks/page must say why and what it takes"
                )
            missed.append(f"{row.what}: not what is aimed at, or behind the best of others")
            reasons.append(f"- **{row.what}**: {row.why_not}")
    output = (
        ["", "What misses its aim or is behind the best of others: why, and what it would take.", "", *reasons]
        if reasons
        else []
    )
    return "\n".join([*lines, *output]), missed


def _peers(report: Report) -> str:
    names = dict.fromkeys(
        name.split(".")[1]
        for name in (*(each.name for each in report.figures), *(each.name for each in report.absent))
        if name.startswith("peers.")
    )
    if not names:
        return NOTHING
    lines = [cells(PEERS_HEAD), cells(["---"] * len(PEERS_HEAD))]
    absent = {each.name: each.why for each in report.absent}
    for name in names:
        figures = [report.get(f"peers.{name}.{what}") for what in REPORTED]
        output = [reported(each) for each in figures]
        if not any(figures):
            output[0] = absent.pop(f"peers.{name}", output[0])
        lines.append(cells([name, *output]))
    # For peers with some figures: why the rest is missing.
    reasons = [f"- {name.removeprefix('peers.')}: {why}" for name, why in absent.items() if name.startswith("peers.")]
    return "\n".join([*lines, *([""] if reasons else []), *reasons])
