"""Traces: jobs with their arrivals, requests and durations. Read from CSV or ``gpuqueue history --csv``. Pure."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from datetime import timezone
from typing import TypeVar

from gpuqueue.clock import from_iso
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_spec import Priority
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import GIB, MAX_BYTES, MAX_S, MIB, parse_bytes, parse_duration

T = TypeVar("T")

#: The columns of a trace, in the order in which they are written.
COLUMNS = (
    *("arrival_s", "user", "mem", "gpus", "duration_s", "time_limit_s", "priority", "group", "name"),
    "utilisation",
)
#: Alternative names of columns, as in the history. Sizes and durations are bytes and seconds there; in handwritten
#: traces they may have units.
_ALSO = {
    "arrival_s": "submitted_at",
    "mem": "mem_bytes",
    "duration_s": "duration",
    "time_limit_s": "time_limit",
    "utilisation": "own_utilisation",
}
_USER = re.compile(r"[A-Za-z0-9_.@+-]{1,64}")
#: A number as programs write it. The history's numbers are shortest float texts, with up to 17 digits or an exponent.
_NUMBER = re.compile(r"\d{1,16}(?:\.\d{1,24})?(?:e[+-]?\d{1,2})?", re.ASCII)
_SEE = "see gpuqueue simulate --example"
#: Largest number of jobs of a trace, and shortest run in seconds. The clock of the queue counts milliseconds.
MOST_JOBS, LEAST_S = 200_000, 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One job of a trace. ``duration_s`` is its run time without a time limit. ``mem_bytes`` is for each GPU.

    ``utilisation`` is the share of time, from 0 to 1, in which the job computes on each GPU if it is alone there; None
    if it is unknown. ``line`` is its line in the file, or 0 if it is not from a file.
    """

    number: int
    arrival_s: float
    user: str
    mem_bytes: int
    gpus: int = 1
    duration_s: float
    time_limit_s: float | None = None
    priority: Priority = Priority.NORMAL
    group: str = ""
    name: str = ""
    utilisation: float | None = None
    line: int = field(default=0, compare=False)

    @property
    def run_s(self) -> float:
        """Return how long the job occupies its devices, up to its time limit, in seconds."""
        return self.duration_s if self.time_limit_s is None else min(self.duration_s, self.time_limit_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests in the order of their arrival, the first at 0, and the numbers of skipped lines of the history."""

    requests: tuple[Request, ...]
    never_ran: int = 0
    on_cpu: int = 0

    def newest(self, most: int) -> Trace:
        """Return the same with the last *most* requests alone."""
        return replace(self, requests=_from_zero([*self.requests[-most:]]))

    @property
    def groups(self) -> str:
        """Return the members of all groups, in the form of the setting ``groups``."""
        members: dict[str, dict[str, None]] = {}
        for request in self.requests:
            if request.group:
                members.setdefault(request.group, {})[request.user] = None
        return "; ".join(f"{group}: {' '.join(names)}" for group, names in members.items())


def read(lines: Iterable[str], name: str) -> Trace:
    """Return the trace in *lines* of CSV. Messages call the file *name*.

    Columns are found by name, in any order, and unknown columns are ignored. Instead of ``arrival_s`` the file may have
    ``submitted_at`` (ISO 8601), as the history does. Then jobs that never ran are skipped and counted. Jobs that ran on
    a CPU are skipped and counted too.

    Raises:
        BadRequest: the lines are not a valid trace. The message names the line and the column.

    """
    rows = csv.reader(lines, strict=True)
    try:
        head = [word.strip().lstrip("\N{ZERO WIDTH NO-BREAK SPACE}").lower() for word in next(rows, [])]
        _judge(head, name)
        found: list[Request] = []
        never_ran, on_cpu = 0, 0
        for cells in rows:
            if not any(map(str.strip, cells)):
                continue
            line = _Line(head, list(map(str.strip, cells)), name, rows.line_num)
            if line.is_history and not line.text("duration_s"):
                never_ran += 1
            elif line.text("devices").startswith("cpu-"):
                on_cpu += 1
            else:
                found.append(_request(line, len(found)))
            if len(found) > MOST_JOBS:
                raise BadRequest(f"{name} has more than {MOST_JOBS} jobs: simulate a part of it")
    except csv.Error as error:
        raise BadRequest(f"{name} line {rows.line_num} is no CSV: {error}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{name} is no text in UTF-8") from None
    if not found:
        left_out = f" that ran on a GPU: {never_ran} never ran, {on_cpu} did on a CPU" if never_ran or on_cpu else ""
        raise BadRequest(f"{name} has no job{left_out or ' below its first line: ' + _SEE}")
    return Trace(requests=_from_zero(found), never_ran=never_ran, on_cpu=on_cpu)


def _judge(head: list[str], name: str) -> None:
    if not any(head):
        raise BadRequest(f"{name} has nothing in its first line, which must name the columns: {_SEE}")
    for column in ("arrival_s", "user", "mem", "duration_s"):
        if column not in head and _ALSO.get(column) not in head:
            raise BadRequest(f"{name} has no column {column}: its first line must name the columns, {_SEE}")
    for column in filter(None, head):
        if head.count(column) > 1:
            raise BadRequest(f"{name} has the column {brief(column)} twice")
    for column, other in _ALSO.items():
        if column in head and other in head:
            raise BadRequest(f"{name} has the columns {column} and {other}, which mean the same: leave out one")


def _from_zero(found: list[Request]) -> tuple[Request, ...]:
    found.sort(key=lambda request: (request.arrival_s, request.number))
    first_s = found[0].arrival_s
    return tuple(
        replace(request, number=number, arrival_s=round(request.arrival_s - first_s, 3))
        for number, request in enumerate(found)
    )


class _Line:
    """The cells of one line by column, with their position for error messages."""

    def __init__(self, head: Sequence[str], cells: Sequence[str], name: str, number: int) -> None:
        self._cells = dict(zip(head, cells, strict=False))
        self._where = f"{name} line {number}"
        self.number = number
        if any(cells[len(head) :]):
            raise BadRequest(f"{self._where} has {len(cells)} cells, and the first line names {len(head)} columns")

    @property
    def is_history(self) -> bool:
        return "submitted_at" in self._cells

    def called(self, column: str) -> str:
        """Return the name by which this file has the column."""
        other = _ALSO.get(column, column)
        return other if other in self._cells else column

    def text(self, column: str) -> str:
        return self._cells.get(self.called(column), "")

    def read(self, column: str, reader: Callable[[str], T], default: T | None = None) -> T:
        text = self.text(column)
        if not text and default is not None:
            return default
        where = f"{self._where}, column {self.called(column)}"
        if not text:
            raise BadRequest(f"{where}: it is empty")
        try:
            return reader(text)
        except BadRequest as error:
            raise BadRequest(f"{where}: {error}") from None


def _request(line: _Line, number: int) -> Request:
    return Request(
        number=number,
        arrival_s=line.read("arrival_s", _moment if line.is_history else _seconds),
        user=line.read("user", _user),
        mem_bytes=line.read("mem", _bytes if line.called("mem") == "mem_bytes" else _size),
        gpus=line.read("gpus", _gpus, 1),
        duration_s=max(LEAST_S, round(line.read("duration_s", _seconds), 3)),
        time_limit_s=line.read("time_limit_s", _limit) if line.text("time_limit_s") else None,
        priority=line.read("priority", _priority, Priority.NORMAL),
        group=line.read("group", _user) if line.text("group") else "",
        name=line.text("name"),
        utilisation=line.read("utilisation", _share) if line.text("utilisation") else None,
        line=line.number,
    )


def _moment(text: str) -> float:
    try:
        found = from_iso(text)
    except ValueError:
        raise BadRequest(f"{brief(text)} is no time: write it like 2026-11-01T09:00:00+00:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def _seconds(text: str) -> float:
    """Return seconds, from a plain number as programs write it or from a duration as users type it."""
    if text.startswith("-"):
        raise BadRequest(f"{brief(text)} is not a duration: negative ones make no sense")
    found = float(text) if _NUMBER.fullmatch(text) else parse_duration(text)
    if not math.isfinite(found) or found > MAX_S:
        raise BadRequest(f"{brief(text)} is longer than ten years")
    return found


def _limit(text: str) -> float:
    found = _seconds(text)
    if found <= 0:
        raise BadRequest("a time limit must be above 0: leave it empty for none")
    return max(LEAST_S, found)


def _size(text: str) -> int:
    """Return the bytes of a size as users type it. The unit is required: a bare 6 would mean six bytes."""
    return _bytes(str(parse_bytes(text)))


def _bytes(text: str) -> int:
    """Return bytes, rounded up to whole MiB as for placement (:class:`gpuqueue.model.placement.Shape`)."""
    size = int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else parse_bytes(text)
    if not 0 < size <= MAX_BYTES:
        raise BadRequest(f"{brief(text)} is not a usable size: it must be above 0 and at most 1024T")
    return -(-size // MIB) * MIB


def _gpus(text: str) -> int:
    found = int(text) if re.fullmatch(r"\d{1,3}", text, re.ASCII) else 0
    if not 1 <= found <= 64:  # noqa: PLR2004 - the limit of a job
        raise BadRequest(f"{brief(text)} is no number of GPUs: give one from 1 to 64")
    return found


def _share(text: str) -> float:
    """Return a share of time, from `0.63` or `63%`."""
    number, percent, rest = text.partition("%")
    found = float(number) if _NUMBER.fullmatch(number) and not rest else math.nan
    share = found / 100 if percent else found
    if not 0 <= share <= 1:
        raise BadRequest(f"{brief(text)} is no share of time: write 0.63 or 63%")
    return share


def _user(text: str) -> str:
    word = text.removeprefix("'")  # history --csv adds a quote, so that a spreadsheet does not read it as a formula
    if not _USER.fullmatch(word):
        raise BadRequest(f"{brief(text)} is no usable name: letters, digits and _ . @ + - only")
    return word


def _priority(text: str) -> Priority:
    try:
        return Priority[text.upper()]
    except KeyError:
        raise BadRequest(f"{brief(text)} is no priority: write {', '.join(map(str, Priority))}") from None


def write(requests: Iterable[Request]) -> Iterable[str]:
    """Yield the lines of a trace, without line ends."""
    yield ",".join(COLUMNS)
    for each in requests:
        limit = "" if each.time_limit_s is None else f"{each.time_limit_s:g}"
        mem = f"{each.mem_bytes // GIB}G" if each.mem_bytes % GIB == 0 else f"{-(-each.mem_bytes // MIB)}M"
        cells = (f"{each.arrival_s:.0f}", each.user, mem, str(each.gpus), f"{each.duration_s:.0f}")
        use = "" if each.utilisation is None else f"{each.utilisation:.2f}"
        yield ",".join((*cells, limit, str(each.priority), each.group, each.name, use))
