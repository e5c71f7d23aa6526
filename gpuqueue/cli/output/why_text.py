"""The sentences of ``why`` on a terminal, with the devices as a table. Pure.

Lines are wrapped to the width of the terminal, long reasons within their column. For a pipe, nothing is wrapped or cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuqueue.cli.output import render
from gpuqueue.cli.output.render import GAP, NO_LIMIT, hanging
from gpuqueue.client.why import Why
from gpuqueue.model.why_sentences import DeviceSentence
from gpuqueue.text.sanitize import cells, wrapped
from gpuqueue.text.units import format_bytes
from gpuqueue.words.why.sentences import sentences

HEAD = ("DEVICE", "CAN GIVE", "OF", "WHY NOT THERE")
#: Least width of a device's name, and the width of the reason below which names are cut, in columns.
LEAST_NAME, LEAST_REASON = 11, 40


def why_text(found: Why, width: int | None = None) -> str:
    """Return why a job waits as text, wrapped to *width* columns; None: for a pipe, not wrapped.

    The first line is the answer: when it starts, or what it waits for. Then come the devices, and the order at last.
    """
    words = sentences(found)
    if words.order is None:
        return _fitted([words.asked, *words.obstacles], width)
    parts = (
        _fitted([f"start  {each}" for each in words.start], width),
        _fitted([words.asked, *words.obstacles], width),
        "\n".join(filter(None, [table(words.devices, width), _fitted(_rest(words.rest), width)])),
        _fitted([f"order  {words.order}"], width),
    )
    return "\n\n".join(parts)


def _rest(lines: Sequence[str]) -> list[str]:
    """Return *lines* about the devices that the table leaves out; the first one, which counts them, with a hint."""
    return [f"{lines[0]} (--json lists all)", *lines[1:]] if lines else []


def _fitted(lines: Sequence[str], width: int | None) -> str:
    return "\n".join(each for line in lines for each in hanging(line, width))


def table(devices: Sequence[DeviceSentence], width: int | None = None) -> str:
    """Return *devices* as a table *width* columns wide, in their order; None: for a pipe."""
    if not devices:
        return "no device is served: no worker has announced one"
    rows = [
        (each.label, format_bytes(each.available_bytes), format_bytes(each.total_bytes), each.why_not)
        for each in devices
    ]
    return render.table(HEAD, list(_lines(rows, width)), right=(1, 2))


def _lines(rows: list[tuple[str, str, str, str]], width: int | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of *rows*; a row has a line for each line of its wrapped reason."""
    name, reason = _widths(rows, width)
    for device, promises, total, why_not in rows:
        first, *more = wrapped(why_not, reason)
        yield render.place(device, name), promises, total, first
        yield from (("", "", "", each) for each in more)


def _widths(rows: list[tuple[str, str, str, str]], width: int | None) -> tuple[int, int]:
    """Return the widths of the columns for names and for reasons."""
    if width is None:
        return NO_LIMIT, NO_LIMIT
    names, promises, totals = (max(cells(row[i]) for row in (HEAD, *rows)) for i in range(3))
    room = width - promises - totals - 3 * GAP
    name = min(names, max(LEAST_NAME, room - LEAST_REASON))
    return name, max(cells(HEAD[3]), room - name)
