"""Parses and formats sizes and durations.

Sizes are binary: ``6G``, ``6GiB`` and ``6GB`` are all 6 x 2**30 bytes, ``512M`` is 512 x 2**20.
Durations: ``90s``, ``15m``, ``2h``, ``1d``, ``1h30m``, ``2h30``, ``30:00`` (minutes), ``1:30:00`` (hours) and
``1-12:00:00`` (days). The last three are those of sbatch(1). Numbers without a unit are refused, because tools disagree
on their meaning. One behind a unit has the next smaller unit.
"""

from __future__ import annotations

import math
import re

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

#: A whole number above 0 without a unit.
_BARE = pattern(r"0{0,9}[1-9]\d{0,17}", re.ASCII)

_SIZE = pattern(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"K": KIB, "M": MIB, "G": GIB, "T": TIB}

_DURATION_PART = pattern(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_DURATION = pattern(r"(?:\d+(?:\.\d+)?[smhd])+", re.ASCII)
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: A bare number at the end of a duration, as in ``2h30``: the unit before it -> its own unit, and what it is less than.
_BARE_END = pattern(r"(?:.*[hd])?\d+([dhm])(\d{1,2})", re.ASCII)
_NEXT_UNITS = {"d": ("h", 24), "h": ("m", 60), "m": ("s", 60)}
_CLOCK = pattern(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,2}):(\d{2})", re.ASCII)

#: Largest accepted size, in bytes. It is far above any device, and a double still holds it exactly.
MAX_BYTES = 1024 * TIB
#: Longest accepted duration, in seconds: ten years.
MAX_S = 10 * 365 * 86400.0


def parse_bytes(text: str) -> int:
    """Return the size *text* in bytes.

    Raises:
        BadRequest: *text* is no size, has no unit, is zero or is above MAX_BYTES.

    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        negative = "negative sizes make no sense, " if text.strip().startswith("-") else ""
        hint = f"{negative}write it like 6G or 512MiB"
        if _BARE.fullmatch(text.strip()):
            hint = f"add the unit: {text.strip()}M or {text.strip()}G"
        raise BadRequest(f"{brief(text)} is not a size: {hint}")
    size = float(match[1]) * _SIZE_UNITS[match[2].upper()]  # may be infinite
    if not 0 < size <= MAX_BYTES:
        raise BadRequest(f"{brief(text)} is not a usable size: it must be above 0 and at most 1024T")
    return math.ceil(size)


def format_bytes(size_bytes: int | None) -> str:
    """Return *size_bytes* for display, with a binary unit, or ``-`` if unknown."""
    return "-" if size_bytes is None else _format(size_bytes, 1)


def format_apart(one_bytes: int, other_bytes: int) -> tuple[str, str]:
    """Return two sizes for display, with enough digits to distinguish them."""
    for digits in (1, 2, 3):
        one, other = _format(one_bytes, digits), _format(other_bytes, digits)
        if one != other or one_bytes == other_bytes:
            return one, other
    return f"{one_bytes}B", f"{other_bytes}B"


def _format(size_bytes: int, digits: int) -> str:
    for unit, name in ((TIB, "T"), (GIB, "G"), (MIB, "M"), (KIB, "K")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.{digits}f}".rstrip("0").rstrip(".") + name
    return f"{size_bytes}B"


def parse_duration(text: str) -> float:
    """Return the duration *text* in seconds.

    Raises:
        BadRequest: *text* is no duration, has no unit, is zero or longer than ten years.

    """
    raw = text.strip()
    if match := _BARE_END.fullmatch(raw):
        unit, bound = _NEXT_UNITS[match[1]]
        if int(match[2]) < bound:
            raw += unit
    if _DURATION.fullmatch(raw):
        duration_s = sum(float(n) * _DURATION_UNITS[unit] for n, unit in _DURATION_PART.findall(raw))
    elif match := _CLOCK.fullmatch(raw):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        duration_s = float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    else:
        hint = "write it like 90s, 15m, 2h or 1:30:00"
        if _BARE.fullmatch(raw):
            hint = f"add the unit: {raw}s, {raw}m or {raw}h"
        raise BadRequest(f"{brief(text)} is not a duration: {hint}")
    if not 0 < duration_s <= MAX_S:
        raise BadRequest(f"{brief(text)} is not a usable duration: it must be above 0 and at most ten years")
    return duration_s


def format_duration(duration_s: float | None) -> str:
    """Return *duration_s* for display: ``0.4s``, ``12s``, ``3:05``, ``1:30:00``, ``2d 03:00:00``; ``-`` if unknown."""
    if duration_s is None:
        return "-"
    if duration_s < 10:  # noqa: PLR2004 - tenths matter below ten seconds
        return f"{duration_s:.1f}s"
    whole = round(duration_s)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}:{minutes:02}:{seconds:02}"
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}" if minutes else f"{seconds}s"
