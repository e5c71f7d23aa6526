from __future__ import annotations

import threading

import pytest

from gpuqueue.errors import StoreUnreachable
from gpuqueue.system.timed_call import CallFailed, TimedCall


def test_a_call_returns_its_result() -> None:
    """A call returns its result, and returns it again on each further request."""
    call = TimedCall(lambda: 7, 10)

    assert (7, 7) == (call.result(), call.result())


def test_what_hangs_is_given_up_and_keeps_nobody() -> None:
    """A hanging call times out, because a dead network disk never answers.

    Its thread is a daemon, and the limit counts from the start of the call.
    """
    never, before = threading.Event(), set(threading.enumerate())
    call = TimedCall(never.wait, 0.05)

    for _ in range(2):
        with pytest.raises(CallFailed, match=r"no answer within 0\.05 s"):
            call.result()
    assert [True] == [each.daemon for each in set(threading.enumerate()) - before]
    never.set()


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreUnreachable("it is away"), "^it is away$"),
        (PermissionError(13, "Permission denied", "/x"), "^Permission denied: /x$"),
        (ZeroDivisionError("by zero"), "^ZeroDivisionError: by zero$"),
    ],
)
def test_an_error_is_reported_in_one_line(error: Exception, words: str) -> None:
    """An error is reported in one line without a traceback.

    Errors of gpuqueue keep their text, errors of the system have the system's text, and bugs are named by their type.
    """
    call = TimedCall(lambda: fail(error), 10)

    with pytest.raises(CallFailed, match=words) as caught:
        call.result()

    assert error is caught.value.cause


def test_a_call_within_a_call_says_why() -> None:
    """The cause stays what failed, not the call within."""
    error = StoreUnreachable("it is away")
    call = TimedCall(lambda: TimedCall(lambda: fail(error), 10).result(), 10)

    with pytest.raises(CallFailed, match="it is away") as caught:
        call.result()

    assert error is caught.value.cause
