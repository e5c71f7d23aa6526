"""What people see of a call: the arguments and the sweep of its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.executor.executor import _request
from gpuqueue.executor.submissions import About, Submission
from gpuqueue.model.array import Array


def submission(calls: int) -> Submission:
    """Return a submission of so many calls of one function."""
    names = tuple(map(str, range(calls)))
    return Submission(Path("calls"), About(names=names, functions=("train.main",) * calls, travels=False))


def test_the_values_of_calls_are_a_sweep_and_arguments() -> None:
    """So the history sorts by them, and the command of a member shows its own. The limits are those of the array."""
    values = [{"lr": "0.1", "x": "{a}"}, {"lr": "0.2", "x": "b"}]

    request = _request(submission(2), values, {"at_once": 1}, None, is_far=False)

    assert ["train.main", "lr={lr}", "x={x}"] == request.args
    assert isinstance(request.array, Array)
    assert (1, 0, None) == (request.array.at_once, request.array.max_failures, request.at_once)
    assert [{"index": str(at), **each} for at, each in enumerate(values)] == [request.array.values(at) for at in (0, 1)]


def test_the_values_of_a_single_call_are_arguments() -> None:
    """It is no array, so that nothing is replaced in them."""
    request = _request(submission(1), [{"x": "{a}"}], {}, None, is_far=False)

    assert (["train.main", "x={a}"], None) == (request.args, request.array)


def test_calls_without_values_are_an_array_by_index() -> None:
    """Its limits are checked as those of any submit."""
    request = _request(submission(2), [{}, {}], {"at_once": 3}, None, is_far=False)

    assert (["train.main"], "0-1", 3) == (request.args, request.array, request.at_once)
    with pytest.raises(BadRequest, match="at_once must be a whole number"):
        _request(submission(2), [{"a": "1"}, {"a": "2"}], {"at_once": "many"}, None, is_far=False)
