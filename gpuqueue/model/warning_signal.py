"""A signal that a job gets some time before its time limit, so that it can save its work. Pure.

The syntax is that of Slurm's ``--signal``: ``USR1@120`` is SIGUSR1, 120 seconds before the limit. Only the job's first
process gets the signal, because processes that a framework forks (such as data loaders) inherit no handler, or the
wrong one. Slurm's prefix ``B:`` asks for the same, so it is accepted and changes nothing.
"""

from __future__ import annotations

import re
import signal

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_S, format_duration, parse_duration

#: Default time between the signal and the limit, in seconds, as in Slurm.
BEFORE_S = 60.0
#: Signals that cannot be caught, so they cannot warn a job.
_DEAF = frozenset({signal.SIGKILL, signal.SIGSTOP})
_WRITTEN = pattern(r"(?:B:)?(?:SIG)?(?P<which>[A-Z0-9]{1,12})(?:@(?P<before>.{1,40}))?", re.ASCII | re.IGNORECASE)
_SECONDS = pattern(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlySignal:
    """The number of a signal, and the time in seconds between the signal and the time limit."""

    number: int
    before_s: float = BEFORE_S

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: the number is no signal, the signal cannot be caught, or the time is out of range.

        """
        for what, value, kinds in (("signal", self.number, (int,)), ("time", self.before_s, (int, float))):
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise BadRequest(f"the {what} of a warning signal must be a number, not {brief(value)}")
        if self.number not in signal.valid_signals():
            raise BadRequest(f"{brief(self.number)} is no signal number")
        if self.number in _DEAF:
            raise BadRequest(f"{_name(self.number)} cannot be caught, so it cannot warn: choose another, such as USR1")
        if not 0 < self.before_s <= MAX_S:
            raise BadRequest("a warning signal must come before the time limit, by at most ten years")

    @classmethod
    def parse(cls, text: str) -> EarlySignal:
        """Return the signal that *text* describes: ``USR1@120``, ``SIGINT@2m``, ``10@30`` or ``TERM``.

        A bare number after the ``@`` is in seconds, as in Slurm.

        Raises:
            BadRequest: *text* is malformed.

        """
        match = _WRITTEN.fullmatch(text.strip())
        if match is None:
            raise BadRequest(f"{brief(text)} is no warning signal: write it like USR1@120 or SIGINT@2m")
        before = match["before"]
        if before is None:
            return cls(number=_number(match["which"]))
        before_s = float(before) if _SECONDS.fullmatch(before) else parse_duration(before)
        return cls(number=_number(match["which"]), before_s=before_s)

    def check(self, time_limit_s: float | None) -> None:
        """Check that the signal can be sent within *time_limit_s*.

        Raises:
            BadRequest: there is no time limit, or it is too short for the signal.

        """
        if time_limit_s is None:
            raise BadRequest(
                f"{_name(self.number)} is to come before the time limit, and there is none: give one (--time)"
            )
        if self.before_s >= time_limit_s:
            raise BadRequest(
                f"{_name(self.number)} is to come {format_duration(self.before_s)} before a time limit of "
                f"{format_duration(time_limit_s)}: give a shorter time after the @"
            )

    def __str__(self) -> str:
        """Return the text that :meth:`parse` accepts, such as ``USR1@120``."""
        return f"{_name(self.number).removeprefix('SIG')}@{self.before_s:g}"


def _number(word: str) -> int:
    if word.isdigit():
        return int(word) if len(word) < 4 else 0  # noqa: PLR2004 - no signal has four digits
    try:
        return signal.Signals[f"SIG{word.upper()}"].value
    except KeyError:
        raise BadRequest(f"{brief(word)} is no signal name: kill -l lists them") from None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return str(number)
