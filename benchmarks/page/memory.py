"""How a report measured memory, in words. Earlier reports did it differently, and their pages must say so."""

from __future__ import annotations

from benchmarks.measure.figure import Report
from benchmarks.measure.spent import PSS, RSS

#: The method of earlier reports: the worker's main process alone, by RSS.
MAIN_PROCESS = "the main process, by RSS"
IDLE = {
    PSS: "idle worker with its parent and the process that forks its shims: memory (PSS)",
    RSS: "idle worker with its parent and the process that forks its shims: memory (RSS, pages counted for each)",
    MAIN_PROCESS: "idle worker, its main process alone: memory (RSS)",
}
_WITH = (
    "A worker is counted with the process that has forked it and with the one that forks its shims; "
    "jobs and their shims are not."
)
REPORTED = {
    PSS: f"{_WITH} Memory is PSS: a page that several processes have counts once over all of them.",
    RSS: f"{_WITH} Memory is RSS, as PSS could not be read: a page that several processes have counts for each.",
    MAIN_PROCESS: "Of a worker only its main process is counted, without the one that forks its shims. Memory is RSS: "
    "a page that several processes have counts for each.",
}


def how_counted(report: Report) -> str:
    """Return how the memory of *report* was measured; without a figure, how it would be measured now."""
    figure = report.get("worker.idle.memory")
    if figure is None:
        return PSS
    ends = figure.floor.name if figure.floor else ""
    return next((each for each in (PSS, RSS) if ends.endswith(f", {each}")), MAIN_PROCESS)
