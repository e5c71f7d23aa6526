"""The tables of a replayed trace, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuqueue.cli.output import render
from gpuqueue.simulator.comparison import Outcome, Served
from gpuqueue.simulator.trace import Request, Trace
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import format_duration
from gpuqueue.words import values

if TYPE_CHECKING:  # it needs the queue and a store
    from gpuqueue.simulator.comparison import Comparison, LeftOut

#: Most users in the table.
MOST_USERS = 20
#: Turnarounds that differ by less than this part are called equal: that much is chance.
CHANCE = 0.03
#: The name of how the jobs of the history were served.
AS_IT_WAS = "as it was"


def text(reported: Comparison, devices: str) -> str:
    """Return a table of policies, a table of users under our policy, and a legend, for 80 columns."""
    ours = reported.outcomes[0]
    lines = [
        _heading(ours.all.jobs, len(ours.users), ours.all.gpu_s, devices),
        "",
        _policies(reported.outcomes, slows=reported.slows),
        "",
        f"under {ours.policy}:",
        _users(ours),
        "",
        _starts(reported),
        "WAIT from arrival to start. SLOW how many times longer than its run a job took.",
        "MEMORY allocated, of all there is, to the last END. FAIR 1 where all users are",
        f"slowed down alike. Simulated at {ours.all.jobs / reported.took_s:.0f} jobs/s.",
        *(["STRETCH how many times longer a run took beside others than alone."] if reported.slows else []),
    ]
    return "\n".join(lines)


def _heading(jobs: int, users: int, gpu_s: float, devices: str) -> str:
    of_users = f"{_counted(jobs, 'job')} of {_counted(users, 'user')}"
    return f"{of_users}, {values.hours(gpu_s)} GPU-hours, on {short(devices, 36)}"


def placements_heading(requests: Sequence[Request], devices: str, served: Served | None) -> str:
    """Return what is replayed, the head of the table, and how the jobs were *served* if that is known."""
    gpu_s = sum(each.gpus * each.run_s for each in requests)
    head = f"{'PLACEMENT':<10}{'TURNAROUND':>12}{'WAIT':>11}{'50 %':>11}{'90 %':>11}{'MOST':>11}{'STRETCH':>9}"
    lines = [_heading(len(requests), len({each.user for each in requests}), gpu_s, devices), "", head]
    return "\n".join([*lines, *([] if served is None else [placement_line(AS_IT_WAS, served)])])


def placement_line(name: str, served: Served) -> str:
    """Return the line of a placement. By how much the runs of the history were stretched is not known."""
    waits = (served.wait_mean_s, served.wait_median_s, served.wait_p90_s, served.wait_max_s)
    stretch = "-" if name == AS_IT_WAS else f"{served.stretch:.2f}"
    return f"{name:<10}{wait(served.turnaround_s):>12}{''.join(f'{wait(each):>11}' for each in waits)}{stretch:>9}"


def placements_legend(compared: Mapping[str, Served], here: str) -> str:
    """Return which of the placements *compared* is best, beside *here*, that of the settings, and a legend."""
    best = min(compared, key=lambda name: compared[name].turnaround_s)
    saved = 1 - compared[best].turnaround_s / compared[here].turnaround_s
    sooner = (
        f"None ends these jobs {values.percent(CHANCE)}"
        if saved < CHANCE
        else f"{best} ends these jobs {values.percent(saved)}"
    )
    return (
        f"\n{sooner} sooner than {here}, the placement of the settings.\n"
        "TURNAROUND from arrival to end: the wait, and the run, which others on its\n"
        f"devices STRETCH by a model. {_counted(compared[here].jobs, 'job')} replayed."
    )


def _served(served: Served) -> tuple[str, ...]:
    waits = (served.wait_mean_s, served.wait_median_s, served.wait_p90_s, served.wait_max_s)
    return (*map(wait, waits), f"{served.slowdown:.1f}")


def wait(wait_s: float) -> str:
    """Return a wait in at most nine characters; from one day on in days and hours."""
    if wait_s < 86400:  # noqa: PLR2004 - a day
        return format_duration(wait_s) if wait_s else "0"
    hours = round(wait_s / 3600)
    return f"{hours // 24}d {hours % 24}h"


def _policies(outcomes: Sequence[Outcome], *, slows: bool) -> str:
    """Return the table of policies. The run times of jobs differ only if runs slow each other."""
    stretch = ("STRETCH",) if slows else ()
    head = ("POLICY", "WAIT", "50 %", "90 %", "MOST", "SLOW", *stretch, "MEMORY", "END", "FAIR")
    rows = []
    for each in outcomes:
        figures = (*_served(each.all), *([f"{each.all.stretch:.2f}"] if slows else []))
        rows.append((each.policy, *figures, values.percent(each.memory), wait(each.makespan_s), f"{each.fairness:.2f}"))
    return render.table(head, rows, right=range(1, len(head)))


def _users(outcome: Outcome) -> str:
    head = ("USER", "JOBS", "GPU H", "WAIT", "50 %", "90 %", "MOST", "SLOW")
    by_usage = sorted(outcome.users.items(), key=lambda pair: -pair[1].gpu_s)
    rows = [
        (short(user, 14), str(served.jobs), values.hours(served.gpu_s), *_served(served))
        for user, served in by_usage[:MOST_USERS]
    ]
    more = len(by_usage) - MOST_USERS
    return render.table(head, rows, right=range(1, len(head))) + (f"\nand {more} more: see --json" if more > 0 else "")


def _starts(reported: Comparison) -> str:
    starts, idle = reported.outcomes[0].starts, values.hours(reported.reserved_idle_device_s)
    kinds = ", ".join(f"{starts.get(kind, 0)} {kind}" for kind in ("immediate", "backfill", "reserved"))
    return f'Starts: {kinds} (see "Who goes first").\nDevices were idle for {idle} h because they were reserved.'


def left_out(jobs: Trace, too_large: LeftOut, over_limit: LeftOut) -> list[str]:
    """Return a line for each kind of jobs of the trace that were not replayed."""
    kinds = (
        (jobs.never_ran, "never ran"),
        (jobs.on_cpu, "ran on a CPU"),
        (too_large.count, f"fit no device of this site{_in_line(too_large)}"),
        (over_limit.count, f"beyond a limit even without other jobs{_in_line(over_limit)}"),
    )
    return [f"{_counted(count, 'job')} left out: {why}" for count, why in kinds if count]


def _in_line(left: LeftOut) -> str:
    if left.line is None:
        return ""
    return f" (line {left.line})" if left.count == 1 else f" (the first in line {left.line})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
