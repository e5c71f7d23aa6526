"""Ctrl-C ends a probe whenever it comes: its job would hold a whole device."""

from __future__ import annotations

from datetime import datetime, timezone

import click
import pytest
from factories import make_spec

from gpuqueue.cli.commands import probe
from gpuqueue.cli.main import commands
from gpuqueue.model.job import Job, JobState


class ClosingClient:
    """A client whose user presses Ctrl-C just while it closes."""

    def __enter__(self) -> ClosingClient:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, *_: object) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_job_that_was_just_submitted_is_cancelled(monkeypatch: pytest.MonkeyPatch, *, is_submitted: bool) -> None:
    """Regression: Ctrl-C between the submit and the wait left the job, which nobody waited for, on its device."""
    cancelled: list[int] = []
    job = Job(id=7, spec=make_spec(), state=JobState.QUEUED, submitted_at=datetime.now(timezone.utc))

    def submit(*_: object) -> Job:
        if not is_submitted:
            raise KeyboardInterrupt
        return job

    monkeypatch.setattr(probe, "Client", ClosingClient)
    monkeypatch.setattr(probe, "submit_job", submit)
    monkeypatch.setattr(probe, "warn_if_alone", lambda *_: None)
    monkeypatch.setattr(probe, "_cancel", lambda job: cancelled.append(job.id))

    with pytest.raises(click.Abort):
        commands.main(["probe", "--", "true"], standalone_mode=False)

    assert [7] * is_submitted == cancelled
