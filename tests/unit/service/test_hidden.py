"""What is shown of a job to callers who may not see its arguments."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from factories import make_spec

from gpuqueue.model.array import Array
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, EndingKind, Note, Run
from gpuqueue.model.sweep import Axis
from gpuqueue.service import call

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = Job(id=1, spec=make_spec(), state=JobState.HELD, submitted_at=NOW)
RUN = Run(job_id=1, attempt=1, token="1.a", host="nodeA", worker="w", devices=(), claimed_at=NOW)


@pytest.mark.parametrize(
    ("because", "shown"),
    [
        (None, None),
        ("dependency 12", "dependency 12"),
        (
            "the store lost its data, and how far it had come cannot be read",
            "the store lost its data, and how far it had come cannot be read",
        ),
        ("no host can start it: nodeA: cannot enter the working directory /home/ada/x as ada", "(hidden)"),
        ("dependency 12 of /home/ada", "(hidden)"),
    ],
)
def test_a_reason_stays_only_if_it_names_nothing_of_the_users(because: str | None, shown: str | None) -> None:
    """The reason of a failed start names the directory or the program. Reasons of the queue itself stay."""
    assert shown == call.without_arguments(replace(JOB, because=because)).because


@pytest.mark.parametrize(
    ("ending", "detail"),
    [
        (Ending.refused("cannot start ./train.py as ada: Permission denied"), "(hidden)"),
        (Ending.lost("/var/lib/gpuqueue/runs/1/exit cannot be read"), "(hidden)"),
        (Ending.lost("no heartbeat renewed the lease in time"), "no heartbeat renewed the lease in time"),
        (Ending.lost("its shim vanished, 2 processes of it were ended"), None),
        (Ending.lost("its host was declared lost by ann"), None),
        (Ending.lost(""), None),
        (Ending.stopped(EndingKind.OUT_OF_MEMORY, 1, "asked 1 GiB, peak 2 GiB"), None),
        (Ending.from_status(1), None),
    ],
)
def test_the_detail_of_a_failed_start_is_hidden(ending: Ending, detail: str | None) -> None:
    """Kind and code of an ending stay, and each detail that gpuqueue itself has written. None: it is unchanged."""
    shown = call.run_without_arguments(replace(RUN, ending=ending)).ending

    assert shown == (ending if detail is None else replace(ending, detail=detail))
    assert None is call.run_without_arguments(RUN).ending


def test_a_note_keeps_its_time_and_run() -> None:
    """A note can say why a host was excluded, so its text is hidden."""
    note = Note(at=NOW, attempt=1, text="cannot enter the working directory /home/ada/x")

    assert Note(at=NOW, attempt=1, text="(hidden)") == call.note_without_arguments(note)


def test_a_sweep_shows_only_the_number_of_its_members() -> None:
    """The values are arguments, also where an environment repeats them."""
    array = Array.sweep([Axis("lr", "1e-3,1e-4"), Axis("seed", "0..4")], at_once=2)
    spec = make_spec(array=array, env={"GPUQUEUE_SWEEP_LR": "1e-3", "COLOUR": "blue"})

    shown = call.without_arguments(replace(JOB, spec=spec)).spec

    assert shown.array is not None
    assert ((), 10, 2) == (shown.array.axes, len(shown.array), shown.array.at_once)
    assert {"COLOUR": "blue"} == shown.env
    assert None is call.without_arguments(JOB).spec.array


def test_the_environment_of_a_job_is_hidden_like_its_command() -> None:
    """The name of an environment says what a job runs with."""
    job = replace(JOB, spec=make_spec(environment="torch-2.6"))

    assert None is call.without_arguments(job).spec.environment


def test_the_code_and_what_is_kept_of_it_are_hidden() -> None:
    """The names of files are arguments too."""
    job = replace(JOB, spec=make_spec(snapshot=f"{'0' * 64}:src", keep=("secret-plan/**",)))

    assert (None, ()) == (call.without_arguments(job).spec.snapshot, call.without_arguments(job).spec.keep)
