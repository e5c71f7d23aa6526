"""Builds the rows for an event that the database refuses: a dead letter, and the new state of its job. Pure.

Such an event must not block the events after it, and must not get lost.
"""

from __future__ import annotations

import json
from dataclasses import replace

from gpuqueue.codec import shown_request
from gpuqueue.history.batch import Batch, move_job
from gpuqueue.history.columns import ending_columns, event_row
from gpuqueue.history.fold_runs import run_key, sum_up
from gpuqueue.model.event import Act, Event
from gpuqueue.model.run import Ended, Ending

#: Largest number that every integer column takes, in every database.
_MOST = 2**31 - 1


def dead_letter(event: Event, why: str, *, epoch: str) -> Batch:
    """Return the rows that store *event* as a dead letter and set the state of its job and its run."""
    batch = whole_event(event, why, epoch=epoch)
    within = _within(event)
    move_job(batch, within)
    if event.act in {Act.FINISH, Act.LOSE} and "token" in event.fields:
        ending = Ending.lost(f"the history refused the report of its end: {why}")
        batch.run(run_key(within)).update(ended_at=event.at, **ending_columns(ending))
        sum_up(batch, within, Ended(ending=ending, duration_s=None, devices=()))
    return batch


def whole_event(event: Event, why: str, *, epoch: str) -> Batch:
    """Return the rows that store *event* as a dead letter and list it in ``job_events``.

    A dead letter stays for ever, so it has no environment.
    """
    within = _within(event)
    whole = {"job": event.job_id, "attempt": event.attempt, "losses": event.losses, **event.fields}
    if "spec" in whole:
        whole["spec"] = shown_request(whole["spec"])
    row = {
        "epoch": epoch,
        "event_id": event.id,
        "job_id": within.job_id,
        "act": event.act.value,
        "at": event.at,
        "error": why,
        "fields": json.dumps(whole),  # ASCII, with NUL and lone surrogates as escapes: every database accepts that
    }
    return Batch(events=[event_row(within, epoch=epoch, detail=None)], dead_letters=[row])


def _within(event: Event) -> Event:
    """Return *event* with its numbers limited to what every column takes."""
    numbers = {name: max(0, min(getattr(event, name), _MOST)) for name in ("job_id", "attempt", "losses")}
    return replace(event, **numbers)
