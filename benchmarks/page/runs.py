"""The origin of a page's figures: one run, or parts of several, each with its date and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.measure.figure import Absent, Figure, Report, Run


def merged(reports: Sequence[Report]) -> Report:
    """Return the first of *reports*, with the figures that only the others have, and the list of its runs."""
    figures: dict[str, Figure] = {}
    runs: list[Run] = []
    for report in reports:
        new = [each for each in report.figures if each.name not in figures]
        figures |= {each.name: each for each in new}
        if new:
            runs += report.runs or [Run.of(report, new)]
    quick = any(each.quick for each in reports)
    absent = _absent(reports, figures)
    return replace(reports[0], figures=tuple(figures.values()), absent=absent, quick=quick, runs=tuple(runs))


def _absent(reports: Sequence[Report], figures: Mapping[str, Figure]) -> tuple[Absent, ...]:
    """Return what none of the reports has, without groups of which another run has the parts."""
    found: dict[str, Absent] = {}
    for report in reports:
        others = [one for other in reports if other is not report for one in other.figures]
        for each in report.absent:
            if each.name not in figures and not any(one.name.startswith(f"{each.name}.") for one in others):
                found.setdefault(each.name, each)
    return tuple(found.values())


def origin(report: Report) -> str:
    """Return in words when and where the figures were measured, and the load of the machine."""
    runs = report.runs if len(report.runs) > 1 else (Run.of(report, report.figures),)
    machine = _machine(runs[0].machine)
    if len(runs) == 1:
        kind = "A quick pass, **not to plan with**" if report.quick else "One run"
        return (
            f"{kind} of {_took(runs[0])}: {machine}. The load average was {runs[0].load_before:.1f} before it and "
            f"{runs[0].least:.1f} to {runs[0].most:.1f} while it ran, its own part included."
        )
    lines = [f"Figures of {len(runs)} runs on {machine}; of what several measured, the first one's:", ""]
    for run in runs:
        kind = "a quick pass, **not to plan with**, " if run.quick else ""
        other = f", on {_machine(run.machine)}" if _machine(run.machine) != machine else ""
        lines.append(
            f"- {kind}{_took(run)}{other}: the load average was {run.load_before:.1f} before it and "
            f"{run.least:.1f} to {run.most:.1f} while it ran, its own part included"
        )
    return "\n".join(lines)


def _took(run: Run) -> str:
    minutes = round(run.took_s / 60)
    return f"{minutes} minute{'' if minutes == 1 else 's'} on {run.at:%d %B %Y}"


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {machine['store']}"
    )
