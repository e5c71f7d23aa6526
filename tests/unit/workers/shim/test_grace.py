from __future__ import annotations

import json
import time

import pytest

from workers.shim.preempt_request import PreemptRequest
from workers.shim.supervisor import EXCESS_GRACE_S, LEFTOVER_GRACE_S, grace_of

SPEC = {"kill_grace_s": 30.0, "fence_grace_s": 5.0}


def request(left_s: float | None) -> PreemptRequest:
    """Return the preemption request of a run, with *left_s* seconds to go; None for no request."""
    made = PreemptRequest(SPEC["kill_grace_s"])
    text = None if left_s is None else json.dumps({"until_s": time.monotonic() + left_s, "by": 7})
    assert made.poll(lambda _: text) == (left_s is not None)
    return made


@pytest.mark.parametrize(
    ("kind", "left_s", "grace_s"),
    [
        ("cancelled", None, 30.0),
        ("idle", None, 30.0),
        ("exited", None, LEFTOVER_GRACE_S),
        ("out_of_memory", None, EXCESS_GRACE_S),
        ("lost", None, 5.0),
        ("preempted", 100.0, 100.0),
        ("cancelled", 10.0, 10.0),
        ("cancelled", -1.0, 0.0),
    ],
)
def test_the_grace_depends_on_the_ending_and_on_the_request(kind: str, left_s: float | None, grace_s: float) -> None:
    """The time between TERM and KILL follows the kind of ending, and is no longer than a preemption request allows."""
    assert grace_s == pytest.approx(grace_of(kind, SPEC, request(left_s)), abs=1.0)


def test_a_job_that_calls_itself_preempted_is_killed_after_the_usual_grace() -> None:
    """A job that writes ``preempted`` into its own file ``cancel`` gets no endless grace."""
    assert SPEC["kill_grace_s"] == grace_of("preempted", SPEC, request(None))
