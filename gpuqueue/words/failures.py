"""What the ending of a failed run means, and what helps."""

from __future__ import annotations

from gpuqueue.model.job_spec import signal_name
from gpuqueue.model.run import BY_SIGNAL, Ending, EndingKind

_NOT_FOUND = {126, 127}
_KILL = 9
_CRASHES = {4, 6, 7, 8, 11}
_KILLED = "Mostly the kernel does that, when the memory of the host is full."
#: Endings on purpose are no failures.
_MEANINGS = {
    EndingKind.OUT_OF_MEMORY: "The memory of the device ran out. Run it again with more memory, or make its batches "
    "smaller.",
    EndingKind.TIMED_OUT: "It reached its time limit. Run it again with a longer one, or let it go on from a "
    "checkpoint.",
    EndingKind.REFUSED: "It could not be started on any host.",
    EndingKind.LOST: "Its host or its worker did not answer any more. Nothing is known of its end.",
    EndingKind.IDLE: "It held memory and did not use its devices. This site ends such jobs.",
    EndingKind.CANCELLED: None,
    EndingKind.PREEMPTED: None,
}


def meaning_of(ending: Ending) -> str | None:
    """Return what *ending* means and what helps, None if the run did not fail."""
    if ending.kind is EndingKind.EXITED:
        return _of_code(ending.exit_code or 0)
    return _of_signal(ending.signal) if ending.kind is EndingKind.SIGNALLED else _MEANINGS[ending.kind]


def _of_code(code: int) -> str | None:
    if not code:
        return None
    if code in _NOT_FOUND:
        return "A command that it calls is not there, or may not be run."
    name = signal_name(code - BY_SIGNAL)
    if name is not None:
        killed = f" {_KILLED}" if code - BY_SIGNAL == _KILL else ""
        return f"The code means that a process of it was killed by {name}.{killed}"
    return (
        "The program stopped with an error. What it was is usually in the last lines of its output. Correct it, then "
        "run the job again."
    )


def _of_signal(number: int | None) -> str:
    if number == _KILL:
        return f"Something outside of the queue killed it. {_KILLED}"
    return "Its program crashed." if number in _CRASHES else "Something outside of the queue sent it this signal."
