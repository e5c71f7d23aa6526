"""What the queue decided about a run that died for lack of device memory, in words for the job's owner. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.model.mem_source import LIMITED, NO_LARGER_DEVICE, OUT_OF_MEMORY, TAKEN_BY_OTHERS
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.model.event import Event

#: Why a job was not queued again -> in words. ``devices`` has a number as well.
_REFUSED = {
    "times": "it was queued again {times} already (--mem-retries)",
    "devices": f"{NO_LARGER_DEVICE} than {{most}} now",
    "limit": LIMITED,
}


def note_of(event: Event) -> str:
    """Return the decision about memory that the end *event* of a run carries, empty if it carries none."""
    fields = event.fields
    if fields.get("mem_refused") in _REFUSED:
        return f"{OUT_OF_MEMORY}, and not queued again with more: {_refused(event)}"
    if fields.get("again") != "out_of_memory":
        return ""
    size = format_bytes(_number(event, "mem"))
    which = f"memory retry {_number(event, 'mem_retries')} of {_number(event, 'mem_allowed')}"
    if fields.get("blamed"):
        return f"{OUT_OF_MEMORY}, {TAKEN_BY_OTHERS}: {fields['blamed']}; queued again with {size} ({which})"
    return f"{OUT_OF_MEMORY}: queued again with {size} ({which})"


def _refused(event: Event) -> str:
    times = _number(event, "mem_retries")
    return _REFUSED[event.fields["mem_refused"]].format(
        times="once" if times == 1 else f"{times} times", most=format_bytes(_number(event, "mem_most"))
    )


def _number(event: Event, name: str) -> int:
    text = event.fields.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() else 0
