"""The chart of a job's memory over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpuqueue.cli.plots.charts import BLUE, ORANGE, RED, new_figure, style, time_unit
from gpuqueue.model.device import Timeline
from gpuqueue.model.run import Record, Run, RunDevice
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import GIB, MIB, format_bytes, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours of the devices of one run. Devices after the eighth have dotted lines.
LINES = (BLUE, RED, "#009E73", ORANGE, "#56B4E9", "#CC79A7", "#000000", "#8A7A00")


def drawable(record: Record) -> Run | None:
    """Return the newest run with a timeline of its memory; None if all runs are too short, unfinished or unmeasured."""
    return next((run for run in reversed(record.runs) if any(device.timeline for device in run.devices)), None)


def memory(record: Record, run: Run) -> Figure:
    """Return a chart of the memory of *run* over time on each of its devices, with the requested memory."""
    with style():
        figure = new_figure(10, 5)
        axes: Any = figure.subplots()
        spec = record.job.spec
        lines = [device for device in run.devices if device.timeline is not None]
        spans_s = [len(each.timeline.bytes) * each.timeline.step_s for each in lines if each.timeline is not None]
        size, unit = time_unit(max(spans_s))
        most = max([spec.mem_bytes, *(device.peak.bytes or 0 for device in lines)])
        scale, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
        for number, device in enumerate(lines):
            _line(axes, device, (number, len(lines)), (size, scale), last_s=run.duration_s)
        label = f"asked for: {format_bytes(spec.mem_bytes)}"
        axes.axhline(spec.mem_bytes / scale, color="black", linestyle=(0, (6, 4)), linewidth=1.2, label=label)
        axes.set_ylim(0, most / scale * 1.08)
        axes.set_xlim(0, max([*spans_s, run.duration_s or 0]) / size)
        axes.set_xlabel(f"{unit} since the start of the run")
        axes.set_ylabel(f"{name} on each device" if len(run.devices) > 1 else name)
        axes.grid(visible=True)
        axes.set_title(_caption(record, run), fontsize=10, fontweight="normal", color="#444444", pad=8)
        title = f"Memory of job {record.job.label}: {short(spec.name, 60)}"
        figure.suptitle(title, fontsize=14, fontweight="bold", x=0.01, ha="left")
        figure.legend(loc="outside lower left", ncols=3, frameon=False)
        return figure


def _line(
    axes: Axes, device: RunDevice, place: tuple[int, int], scales: tuple[float, float], *, last_s: float | None
) -> None:
    """Draw the largest sample of each step as a horizontal line, with a gap for a long time without samples."""
    timeline = device.timeline
    if timeline is None:
        return
    size, scale = scales
    levels = [math.nan if each is None else each / scale for each in bridged(timeline, device.peak.interval_s)]
    edges = [number * timeline.step_s / size for number in range(len(levels) + 1)]
    if last_s is not None and last_s / size > edges[-2]:
        edges[-1] = min(edges[-1], last_s / size)  # the last step is usually not complete
    number, count = place
    peak = "not known" if device.peak.bytes is None else format_bytes(device.peak.bytes)
    index = "" if device.index is None else f"{device.index}: "
    colour, line = LINES[number % len(LINES)], "-" if number < len(LINES) else ":"
    # The lines of devices of one run often coincide, so earlier ones are broader and visible below later ones.
    width = 2 + 2 * (count - 1 - number) / max(1, count - 1)
    label = f"{index}{short(device.name or device.uuid, 30)}, peak {peak}"
    axes.stairs(levels, edges, baseline=None, color=colour, linestyle=line, linewidth=width, label=label)


def bridged(timeline: Timeline, interval_s: float | None) -> list[int | None]:
    """Return the steps of *timeline*, with gaps of up to two sampling intervals filled with the previous value."""
    reach = max(1, math.ceil(2 * (interval_s or 0) / timeline.step_s))
    steps: list[int | None] = []
    since = reach
    for each in timeline.bytes:
        since = 0 if each is not None else since + 1
        steps.append(each if each is not None else steps[-1] if steps and since <= reach else None)
    return steps


def _caption(record: Record, run: Run) -> str:
    ended = str(run.ending).split(":", 1)[0] if run.ending else "still running"
    return (
        f"{short(record.job.spec.account.name)} on {short(run.host)}, run {run.attempt}, {ended}"
        f" after {format_duration(run.duration_s)}"
    )
