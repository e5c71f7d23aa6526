"""The ``why`` command, and the plain values that its ``--json`` prints."""

from __future__ import annotations

import json

import click

from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.cli.options.json_option import json_option
from gpuqueue.cli.output import live_run
from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.cli.output.terminal_width import hanging, terminal_width
from gpuqueue.cli.output.why_text import why_text
from gpuqueue.client import Client
from gpuqueue.client.why import Why
from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec import job_to_plain
from gpuqueue.queue.explanation import Explanation, LimitReached, Preemption, Start, Verdict
from gpuqueue.words.why.preempts import runs_below
from gpuqueue.words.why.reserved import reserved_to_plain


@click.command()
@one_job_argument("queued", "held")
@json_option
def why(job_id: str, *, as_json: bool) -> None:
    """Explain why a job waits: when it may start, what the nearest devices lack, and which jobs block it.

    --json lists all devices.

    \b
    Examples:
      gpuqueue why 12
      gpuqueue why 12 --json | jq .start
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.jobs.why(job_id)
        silent = [] if as_json else list(live_run.silent(client, found.job))
        silent += silent_lines(list(found.devices.values()), client.settings)
    click.echo(json.dumps(why_to_plain(found), indent=2) if as_json else why_text(found, terminal_width()))
    for line in [] if as_json else silent:
        click.echo("\n".join(hanging(line, terminal_width())))


def why_to_plain(found: Why) -> dict[str, object]:
    """Return *found* as the plain values of ``why --json``."""
    explanation = found.explanation
    limits = [] if explanation is None else [_limit_plain(explanation, each) for each in explanation.limits]
    return {
        "job": job_to_plain(found.job),
        "order": _order_plain(explanation) if explanation else None,
        "limit": limits[0] if limits else None,
        "more_limits": limits[1:],
        "preemption": _preemption_plain(found.preemption) if found.preemption else None,
        "may_preempt": [
            {"job_id": job.id, "from": at.isoformat(timespec="milliseconds")} for job, at in runs_below(found)
        ],
        "reserved_for_others": reserved_to_plain(found),
        "reserve_from": _iso(explanation.reserve_from_ms) if explanation else None,
        "devices": [_verdict_plain(found, each) for each in explanation.devices] if explanation else [],
        "start": _start_plain(found, explanation.start) if explanation and explanation.start else None,
    }


def _order_plain(explanation: Explanation) -> dict[str, object]:
    return {
        "priority": str(explanation.priority),
        "higher": explanation.higher,
        "users_before": explanation.users_before,
        "theirs": explanation.theirs,
        "own_before": explanation.own_before,
    }


def _preemption_plain(preemption: Preemption) -> dict[str, object]:
    return {"for": preemption.by, "by": _iso(preemption.deadline_ms), "times": preemption.times}


def _limit_plain(explanation: Explanation, limit: LimitReached) -> dict[str, object]:
    return {
        "whose": limit.whose,
        "measure": str(limit.measure),
        "used": limit.used,
        "most": limit.most,
        "asked": limit.asked,
        "runs": list(limit.runs),
        "reserved_for": limit.reserved_for,
        "room_at": _iso(explanation.room.at_ms) if explanation.room else None,
    }


def _verdict_plain(found: Why, verdict: Verdict) -> dict[str, object]:
    status = found.devices.get(verdict.device)
    return {
        "uuid": verdict.device,
        "host": verdict.host,
        "obstacle": str(verdict.obstacle),
        "available_bytes": max(0, verdict.available_bytes),
        "total_bytes": verdict.total_bytes,
        "headroom_bytes": status.headroom_bytes if status else None,
        "external_bytes": status.external_bytes if status else None,
        "cannot_start": verdict.cannot_start,
        "reserved_for": verdict.reserved_for,
        "by_preemption": verdict.by_preemption,
        "runs": [
            {"job_id": run.job_id, "held_bytes": run.held_bytes, "ends_at": _iso(run.ends_ms)} for run in verdict.runs
        ],
    }


def _start_plain(found: Why, start: Start) -> dict[str, object]:
    return {
        "at": _iso(start.at_ms),
        "first_room_at": _iso(start.room_ms),
        "rivals": start.rivals,
        "devices": list(start.devices),
        "blockers": [
            {
                "job_id": each,
                **_usual_plain(found, each),
                "outlived": found.outlived.get(each),
                "in_vain": each in start.in_vain,
            }
            for each in start.blockers
        ],
    }


def _usual_plain(found: Why, job_id: int) -> dict[str, object]:
    usual = found.usual.get(job_id)
    return {"median_s": usual.median_s if usual else None, "p90_s": usual.p90_s if usual else None}


def _iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else from_epoch_ms(at_ms).isoformat(timespec="milliseconds")
