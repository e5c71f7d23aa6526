"""The texts of limits: in settings, which people write, and in the store. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.measures import OF_RUNS, SIZES, Figures, Limit, Measure, PoolLimits
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_BYTES, parse_bytes, parse_duration

_NAME = pattern(r"\*|@?[A-Za-z0-9_.+-][A-Za-z0-9_.@+-]{0,63}")
_COUNT = pattern(r"\d{1,9}", re.ASCII)


# ---- limits in settings ----------------------------------------------------------------------------------------------


def entries(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each entry of a setting, and its words: ``ann: running_gpus=4; @vision: running_mem=200G``.

    Raises:
        BadRequest: an entry is malformed, or two have the same name.

    """
    seen = set()
    for each in filter(None, map(str.strip, re.split(r"[;\n]", text))):
        name, colon, words = each.partition(":")
        name = name.strip()
        if not colon or not _NAME.fullmatch(name) or not words.strip():
            raise BadRequest(f"{brief(each)} is no limit: write ann: running_gpus=4, or big: max_time=2d for a pool")
        if name in seen:
            raise BadRequest(f"{name} is named twice: put all its limits behind one name")
        seen.add(name)
        yield name, dict(_pairs(words, name))


def _pairs(words: str, name: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for each in words.split():
        key, equals, value = each.partition("=")
        if not equals or not value:
            raise BadRequest(f"{brief(each)} is no limit of {name}: write it like running_gpus=4")
        if key in seen:
            raise BadRequest(f"{key} is limited twice for {name}")
        seen.add(key)
        yield key, value


def figures(words: Mapping[str, str]) -> dict[Measure, Limit]:
    """Return the limits in the *words* of an entry. A measure with the limit ``none`` is left out.

    Raises:
        BadRequest: a word names no measure, or its limit is malformed.

    """
    found = {}
    for key, value in words.items():
        if key not in {each.value for each in Measure}:
            raise BadRequest(f"{brief(key)} is no limit: choose from {', '.join(Measure)}")
        measure = Measure(key)
        limit = _limit(measure, value)
        if limit is not None:
            found[measure] = limit
    return found


def over(below: Figures, words: Mapping[str, str]) -> dict[Measure, Limit]:
    """Return the figures of *words*, and those of *below* that *words* do not name."""
    return {**{each: limit for each, limit in below.items() if each.value not in words}, **figures(words)}


def measures_named(written: Mapping[str, Mapping[str, str]]) -> Iterator[Measure]:
    """Yield the measures that any entry names, also with none."""
    yield from (Measure(key) for words in written.values() for key in words)


def _limit(measure: Measure, value: str) -> Limit | None:
    amount, slash, beyond = value.partition("/")
    if slash and beyond not in {"wait", "refuse"}:
        raise BadRequest(f"{measure}={brief(value)}: a job beyond a limit waits, or is refused with {amount}/refuse")
    if measure not in OF_RUNS and beyond == "wait":
        raise BadRequest(f"{measure} cannot wait: it always refuses")
    if amount == "none":
        return None
    refuses = beyond == "refuse" or measure not in OF_RUNS
    try:
        return Limit(_size(amount) if measure in SIZES else _count(amount), refuses)
    except BadRequest as error:
        raise BadRequest(f"{measure}: {error}, or none for no limit") from None


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise BadRequest(f"{brief(text)} is no valid number: write one from 0 to 999999999")
    return int(text)


def _size(text: str) -> int:
    return 0 if text == "0" else parse_bytes(text)


def _devices(text: str) -> int:
    most = _count(text)
    if not most:
        raise BadRequest("max_gpus must be at least 1: a job has one device or more")
    return most


#: Setting to field of PoolLimits, and the parser of its value.
_OF_POOL: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "default_mem": ("default_mem_bytes", parse_bytes),
    "max_mem": ("max_mem_bytes", parse_bytes),
    "default_time": ("default_time_s", parse_duration),
    "max_time": ("max_time_s", parse_duration),
    "max_gpus": ("max_gpus", _devices),
}


def pool(name: str, words: Mapping[str, str]) -> PoolLimits:
    """Return the limits of the pool *name*. Without ``default_time``, the default time limit is ``max_time``.

    Raises:
        BadRequest: a word names no limit of a pool, its value is malformed, or a default is above its maximum.

    """
    unknown = words.keys() - _OF_POOL.keys()
    if unknown:
        raise BadRequest(f"{brief(min(unknown))} is no limit of a pool: choose from {', '.join(_OF_POOL)}")
    values = {_OF_POOL[key][0]: _OF_POOL[key][1](value) for key, value in words.items()}
    if "max_time_s" in values:
        values.setdefault("default_time_s", values["max_time_s"])
    for what in ("mem_bytes", "time_s"):
        if values.get(f"default_{what}", 0) > values.get(f"max_{what}", float("inf")):
            key = what.partition("_")[0]
            raise BadRequest(f"pool {name}: default_{key} is above max_{key}")
    return PoolLimits(**values)


# ---- limits in the store ---------------------------------------------------------------------------------------------


def text_of(figures: Figures) -> str:
    """Return the limits of a user or group as the store has them: ``running_gpus=4 open_jobs=50!``."""
    return " ".join(f"{each}={limit.most}{'!' if limit.refuses else ''}" for each, limit in figures.items())


def figures_of(text: str) -> dict[Measure, Limit]:
    """Return the limits in the store's *text*. Unknown measures are ignored."""
    known = {each.value for each in Measure}
    found = re.findall(r"([a-z_]+)=(\d+)(!?)", text, re.ASCII)
    return {Measure(name): Limit(int(most), bool(refuses)) for name, most, refuses in found if name in known}


def pool_text_of(pool: PoolLimits) -> str:
    """Return the limits of a pool as the store has them, with times in milliseconds."""
    ms = {"default_time": pool.default_time_s, "max_time": pool.max_time_s}
    numbers = {
        "default_mem": pool.default_mem_bytes,
        "max_mem": pool.max_mem_bytes,
        **{name: None if value is None else round(value * 1000) for name, value in ms.items()},
        "max_gpus": pool.max_gpus,
    }
    return " ".join(f"{name}={number}" for name, number in numbers.items() if number is not None)


def pool_of(text: str) -> PoolLimits:
    """Return the limits of a pool in the store's *text*."""
    found = {name: int(number) for name, number in re.findall(r"([a-z_]+)=(\d{1,18})", text, re.ASCII)}
    default_ms, max_ms = found.get("default_time"), found.get("max_time")
    return PoolLimits(
        default_mem_bytes=min(found["default_mem"], MAX_BYTES) if "default_mem" in found else None,
        max_mem_bytes=found.get("max_mem"),
        default_time_s=None if default_ms is None else default_ms / 1000,
        max_time_s=None if max_ms is None else max_ms / 1000,
        max_gpus=found.get("max_gpus"),
    )
