"""Tests of the ``--signal`` option, and of signals that cannot warn a job."""

from __future__ import annotations

import signal

import pytest
from factories import make_spec

from gpuqueue.codec.request import decode_spec, encode_spec
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.model.job_spec import EarlySignal


@pytest.mark.parametrize(
    ("text", "number", "before_s"),
    [
        ("USR1@120", signal.SIGUSR1, 120.0),
        ("SIGUSR1@120", signal.SIGUSR1, 120.0),
        ("sigusr2@2m", signal.SIGUSR2, 120.0),
        ("B:TERM", signal.SIGTERM, 60.0),
        ("10@30", 10, 30.0),
        ("40@1h30m", 40, 5400.0),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, number: int, before_s: float) -> None:
    """The signal is a name or a number. The time is in seconds or a duration with a unit, and one minute by default."""
    assert EarlySignal(number=number, before_s=before_s) == EarlySignal.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no warning signal: write it like USR1@120"),
        ("USR1@", "is no warning signal"),
        ("USR1 120", "is no warning signal"),
        ("USR7", "'USR7' is no signal name: kill -l lists them"),
        ("0", "0 is no signal number"),
        ("99@5", "99 is no signal number"),
        ("1234", "is no signal number"),
        ("KILL@60", "SIGKILL cannot be caught, so it cannot warn"),
        ("19", "SIGSTOP cannot be caught"),
        ("USR1@0", "must come before the time limit"),
        ("USR1@soon", "'soon' is not a duration"),
        ("USR1@-5", "'-5' is not a duration"),
    ],
)
def test_what_is_no_early_signal_is_refused_in_one_line(text: str, words: str) -> None:
    """An invalid signal is refused in one line that says what is wrong and what to write."""
    with pytest.raises(BadRequest, match=words) as refused:
        EarlySignal.parse(text)
    assert "\n" not in str(refused.value)


def test_a_signal_that_could_never_be_sent_is_refused() -> None:
    """A signal needs a time limit, and its time must be after the start of the job."""
    early = EarlySignal.parse("USR1@120")

    with pytest.raises(BadRequest, match="SIGUSR1 is to come before the time limit, and there is none"):
        make_spec(signal=early)
    with pytest.raises(BadRequest, match="2:00 before a time limit of 2:00: give a shorter time after the @"):
        make_spec(signal=early, time_limit_s=120.0)
    assert early == make_spec(signal=early, time_limit_s=121.0).signal


@pytest.mark.parametrize("early", [None, EarlySignal(number=10, before_s=2.5)])
def test_it_travels_with_the_request(early: EarlySignal | None) -> None:
    """The signal is kept in the store and the history. An older request has none."""
    spec = make_spec(time_limit_s=60.0, signal=early)

    assert spec == decode_spec(encode_spec(spec))
    assert decode_spec(encode_spec(spec).replace(',"signal":null', "")).signal == early


def test_a_damaged_one_is_no_request() -> None:
    """A damaged signal makes the request unreadable, as any other damaged field does."""
    text = encode_spec(make_spec(time_limit_s=60.0, signal=EarlySignal(number=10, before_s=2.5)))

    for damaged in ('"number":9', '"number":"USR1"', '"number":true'):
        with pytest.raises(Unreadable):
            decode_spec(text.replace('"number":10', damaged))


def test_it_is_shown_as_one_writes_it() -> None:
    """JSON and `show` contain the signal as a user types it."""
    assert "USR1@120" == str(EarlySignal.parse("B:SIGUSR1@2m"))
    assert "40@60" == str(EarlySignal(number=40))
