from __future__ import annotations

import threading

import pytest

from gpuqueue.errors import StoreUnreachable
from gpuqueue.system.timeout_call import Look, Unseen


def test_a_look_brings_back_what_it_saw() -> None:
    """A call returns its result, and returns it again on each further request."""
    look = Look(lambda: 7, 10)

    assert (7, 7) == (look.seen(), look.seen())


def test_what_hangs_is_given_up_and_keeps_nobody() -> None:
    """A hanging call times out, because a dead network disk never answers.

    Its thread is a daemon, and the limit counts from the start of the call.
    """
    never, before = threading.Event(), set(threading.enumerate())
    look = Look(never.wait, 0.05)

    for _ in range(2):
        with pytest.raises(Unseen, match=r"no answer within 0\.05 s"):
            look.seen()
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
def test_an_error_is_told_in_words(error: Exception, words: str) -> None:
    """An error is reported in one line without a traceback.

    Errors of gpuqueue keep their text, errors of the system have the system's text, and bugs are named by their type.
    """
    look = Look(lambda: fail(error), 10)

    with pytest.raises(Unseen, match=words) as caught:
        look.seen()

    assert error is caught.value.cause
