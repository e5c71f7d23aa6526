"""Fills the marked regions of docs/performance.md from a report. What stands between the marks is never by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure.figure import Figure, Report
from benchmarks.page import more
from benchmarks.page.more import NOTHING, cells, told
from benchmarks.page.rows import rows

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
#: What of a peer is told, by the last part of a figure's name.
TOLD = ("jobs", "submits", "start", "submit", "after-kill", "after-cancel")


class PageError(Exception):
    """The page cannot be filled."""


def write(report: Report, page: Path) -> list[str]:
    """Fill the marked regions of *page*; return a line for each row that misses its aim.

    Raises:
        PageError: the page has no such region, or a row misses its aim without a sentence that says why.

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
    page.write_text(text, encoding="utf-8")
    return missed


def _filled(text: str, name: str, body: str, page: Path) -> str:
    region = re.compile(f"(<!-- {name}: .*?-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not region.search(text):
        raise PageError(f"{page} has no region <!-- {name}: … --> to <!-- end of {name} -->")
    return region.sub(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", text)


def _run(report: Report) -> str:
    machine = report.machine
    loads = [each.load for each in report.figures] or [0.0]
    kind = "A quick pass, **not to plan with**" if report.quick else "One run"
    return (
        f"{kind} of {report.took_s / 60:.0f} minutes on {report.at:%d %B %Y}: {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, Python {machine['python']}, "
        f"{machine['store']}. The load average was {machine['load_before'][0]:.1f} before it and "
        f"{min(loads):.1f} to {max(loads):.1f} while it ran, its own part included."
        f"{_listed(report, lambda each: each.load > machine['cores'], 'More than the cores it was at')}"
        f"{_listed(report, _is_one_pass, 'One pass and no rounds are')}"
    )


def _listed(report: Report, chosen: Callable[[Figure], bool], said: str) -> str:
    """Return a sentence of the groups that have figures which are *chosen*, with how many of how many are."""
    groups = Counter(_group(each) for each in report.figures)
    found = Counter(_group(each) for each in report.figures if chosen(each))
    names = (
        f"`{name}.…`" if count == groups[name] else f"{count} of {groups[name]} of `{name}.…`"
        for name, count in found.items()
    )
    return f"\n\n{said}: {', '.join(names)} (in the JSON)." if found else ""


def _is_one_pass(figure: Figure) -> bool:
    return figure.rounds == 1 and (figure.of > 1 or figure.floor is not None)  # a bare count has no rounds to have


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
                    f"{row.what} misses its aim or is behind: benchmarks/page/rows.py must say why and what it takes"
                )
            missed.append(f"{row.what}: not what is aimed at, or behind the best of others")
            reasons.append(f"- **{row.what}**: {row.why_not}")
    said = (
        ["", "What misses its aim or is behind the best of others: why, and what it would take.", "", *reasons]
        if reasons
        else []
    )
    return "\n".join([*lines, *said]), missed


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
        figures = [report.get(f"peers.{name}.{what}") for what in TOLD]
        said = [told(each) for each in figures]
        if not any(figures):
            said[0] = absent.pop(f"peers.{name}", said[0])
        lines.append(cells([name, *said]))
    # Of those of which there is something to tell: why the rest is missing.
    reasons = [f"- {name.removeprefix('peers.')}: {why}" for name, why in absent.items() if name.startswith("peers.")]
    return "\n".join([*lines, *([""] if reasons else []), *reasons])
