"""Limits of users, groups and pools, and their current use. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import KIB, MAX_BYTES, MIB, format_bytes, parse_bytes, parse_duration

#: The name that stands for every user, or pool, without an entry of its own.
EVERYBODY = "*"
_NAME = pattern(r"\*|@?[A-Za-z0-9_.+-][A-Za-z0-9_.@+-]{0,63}")
_COUNT = pattern(r"\d{1,9}", re.ASCII)


class Measure(str, Enum):
    """The quantities that users and groups can have limits on."""

    #: Concurrent runs.
    RUNNING_JOBS = "running_jobs"
    #: Devices of these runs, except CPUs.
    RUNNING_GPUS = "running_gpus"
    #: Memory allocated to these runs on all their devices, in bytes.
    RUNNING_MEM = "running_mem"
    #: Waiting jobs, including held ones. Each member of an array counts.
    QUEUED_JOBS = "queued_jobs"
    #: Jobs that have not ended. An array counts as one, and each of its runs as one.
    OPEN_JOBS = "open_jobs"
    #: The requests of these jobs as the store holds them, in bytes.
    OPEN_BYTES = "open_bytes"
    #: Waiting members of all arrays.
    ARRAY_MEMBERS = "array_members"
    #: Arguments of one job, and its environment, in bytes of JSON.
    ARGUMENTS = "arguments"
    ENVIRONMENT = "environment"

    def __str__(self) -> str:
        return self.value

    def shown(self, amount: int) -> str:
        """Return *amount* of this measure, formatted for display."""
        return format_bytes(amount) if self in SIZES and amount else str(amount)


@dataclass(frozen=True, slots=True)
class Limit:
    """A maximum. A job beyond it is refused at submit if ``refuses`` is set, else it waits."""

    most: int
    refuses: bool = False


#: Measures in bytes.
SIZES = frozenset({Measure.RUNNING_MEM, Measure.OPEN_BYTES, Measure.ARGUMENTS, Measure.ENVIRONMENT})
#: Measures of runs. A job waits for room under them.
OF_RUNS = frozenset({Measure.RUNNING_JOBS, Measure.RUNNING_GPUS, Measure.RUNNING_MEM})
#: Limits of each user that only a submit meets, and their defaults. They protect the store and the history from a loop
#: without an end and from a file in a variable. Ten thousand jobs take about 100 MiB in the store. The kernel gives a
#: process 2 MiB for both sizes by default.
AT_SUBMIT = {
    Measure.OPEN_JOBS: Limit(10_000, refuses=True),
    Measure.OPEN_BYTES: Limit(256 * MIB, refuses=True),
    Measure.ARRAY_MEMBERS: Limit(100_000, refuses=True),
    Measure.ARGUMENTS: Limit(128 * KIB, refuses=True),
    Measure.ENVIRONMENT: Limit(256 * KIB, refuses=True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLimits:
    """Defaults and maxima of the jobs of a pool. None means that the pool sets none."""

    default_mem_bytes: int | None = None
    max_mem_bytes: int | None = None
    default_time_s: float | None = None
    max_time_s: float | None = None
    max_gpus: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """The running and waiting amounts of a user or a group, by measure."""

    running_jobs: int = 0
    running_gpus: int = 0
    running_mem: int = 0
    queued_jobs: int = 0

    def of(self, measure: Measure) -> int:
        """Return the amount of *measure*."""
        amount: int = getattr(self, measure.value)
        return amount

    def __add__(self, other: Use) -> Use:
        counted = (*OF_RUNS, Measure.QUEUED_JOBS)
        return Use(**{each.value: self.of(each) + other.of(each) for each in counted})


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One limit and its current use.

    ``whose`` is a user, ``@GROUP`` or EVERYBODY. ``used`` is None for EVERYBODY, and for a limit of AT_SUBMIT.
    """

    whose: str
    measure: Measure
    limit: Limit
    used: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsInUse:
    """All limits of users and groups with their current use, and the limits of the pools."""

    bounds: tuple[Bound, ...] = ()
    pools: Mapping[str, PoolLimits] = field(default_factory=dict)


Figures = Mapping[Measure, Limit]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """All limits of a site. Each figure of a user overrides the same figure of EVERYBODY.

    ``submits`` are the limits of AT_SUBMIT. They are apart, so that a claim reads nothing of them.
    """

    users: Mapping[str, Figures] = field(default_factory=dict)
    submits: Mapping[str, Figures] = field(default_factory=dict)
    groups: Mapping[str, Figures] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pools: Mapping[str, PoolLimits] = field(default_factory=dict)

    @classmethod
    def parse(cls, limits: str, pool_limits: str, members: Mapping[str, tuple[str, ...]]) -> Limits:
        """Return the limits in two settings, such as ``*: running_gpus=4; @vision: running_mem=200G``.

        *pool_limits* are those of pools, such as ``big: max_time=2d``. *members* are the users of each group.

        Raises:
            BadRequest: an entry is malformed, or a group has a limit and no members.

        """
        written = {name: dict(_pairs(words, name)) for name, words in _entries(limits)}
        groups = {name[1:]: _figures(words) for name, words in written.items() if name.startswith("@")}
        unknown = groups.keys() - members.keys()
        if unknown:
            raise BadRequest(f"the group {min(unknown)} has a limit and no members: name them in groups")
        for name, figures in groups.items():
            for measure in sorted(AT_SUBMIT.keys() & figures.keys()):
                raise BadRequest(f"{measure} limits each user, not the group {name}: write it for a user, or for *")
        whole = {EVERYBODY: _over(AT_SUBMIT, written.get(EVERYBODY, {}))}
        own = {name: words for name, words in written.items() if not name.startswith("@")}
        whole |= {name: _over(whole[EVERYBODY], words) for name, words in own.items()}
        submits = {
            name: {each: figures[each] for each in AT_SUBMIT if each in figures} for name, figures in whole.items()
        }
        users = {name: {each: limit for each, limit in whole[name].items() if each not in AT_SUBMIT} for name in own}
        return cls(
            users=users if {*_figures_named(own)} - AT_SUBMIT.keys() else {},
            submits={name: each for name, each in submits.items() if name == EVERYBODY or each != submits[EVERYBODY]},
            groups=groups,
            members={name: names for name, names in members.items() if name in groups},
            pools={name: _pool(name, dict(_pairs(words, name))) for name, words in _entries(pool_limits)},
        )

    def to_fields(self) -> dict[str, str]:
        """Return the fields of the limits in the store, as ``gpuqueue/queue/lua/shared/limits.lua`` describes them."""
        fields = {f"user:{name}": _text(figures) for name, figures in self.users.items()}
        fields |= {f"submit:{name}": _text(figures) for name, figures in self.submits.items()}
        for group, figures in self.groups.items():
            fields[f"group:{group}"] = _text(figures)
            fields[f"members:{group}"] = ",".join(self.members[group])
            fields |= {f"member:{name}": group for name in self.members[group]}
        return fields | {f"pool:{name}": _pool_text(pool) for name, pool in self.pools.items()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Limits:
        """Return the limits in the fields that :meth:`to_fields` wrote. Malformed entries are ignored."""
        found: dict[str, dict[str, str]] = {}
        for name, text in fields.items():
            what, _, whose = name.partition(":")
            found.setdefault(what, {})[whose] = text
        groups = found.get("group", {})
        return cls(
            users={name: _from_text(text) for name, text in found.get("user", {}).items()},
            submits={name: _from_text(text) for name, text in found.get("submit", {}).items()},
            groups={name: _from_text(text) for name, text in groups.items()},
            members={name: tuple(found.get("members", {}).get(name, "").split(",")) for name in groups},
            pools={name: _pool_from_text(text) for name, text in found.get("pool", {}).items()},
        )

    def of_runs(self) -> Limits:
        """Return the limits on runs only. They make jobs wait and refuse none, and pools have no limits."""
        users, groups = (
            {name: _of_runs(figures) for name, figures in whose.items()} for whose in (self.users, self.groups)
        )
        return Limits(users=users, groups=groups, members=self.members)

    def of_pool(self, pool: str) -> PoolLimits:
        """Return the limits of *pool* (empty for jobs without a pool), else those of EVERYBODY, else no limits."""
        return self.pools.get(pool) or self.pools.get(EVERYBODY) or PoolLimits()

    def over(self, user: str, asked: Use, uses: Mapping[str, Use]) -> Bound | None:
        """Return the first limit that a run of *user* which needs *asked* would exceed, or None.

        *uses* is the current use by user.
        """
        for bound in self._of_user(user, uses):
            more = asked.of(bound.measure)  # a user has only limits of Use here
            is_over = (bound.used or 0) + more > bound.limit.most
            if bound.measure in OF_RUNS and more and is_over:
                return bound
        return None

    def bounds(self, uses: Mapping[str, Use]) -> Iterator[Bound]:
        """Yield every limit with its current use: those of users, then of groups, then of EVERYBODY."""
        named = [name for name in self.users if name != EVERYBODY]
        others = [name for name in uses if name not in named] if EVERYBODY in self.users else []
        for user in sorted((*named, *others)):
            yield from self._own(user, uses)
        for group in sorted(self.groups):
            yield from self._group(group, uses)
        everybody = self.users.get(EVERYBODY, {})
        for measure in Measure:
            if measure in everybody:
                yield Bound(whose=EVERYBODY, measure=measure, limit=everybody[measure], used=None)
        for name, figures in sorted(self.submits.items()):
            yield from (Bound(whose=name, measure=each, limit=limit, used=None) for each, limit in figures.items())

    def _of_user(self, user: str, uses: Mapping[str, Use]) -> Iterator[Bound]:
        yield from self._own(user, uses)
        for group, names in self.members.items():
            if user in names:
                yield from self._group(group, uses)

    def _own(self, user: str, uses: Mapping[str, Use]) -> Iterator[Bound]:
        figures = self.users.get(user, self.users.get(EVERYBODY, {}))
        yield from _bounds(user, figures, uses.get(user, Use()))

    def _group(self, group: str, uses: Mapping[str, Use]) -> Iterator[Bound]:
        used = sum((uses.get(name, Use()) for name in self.members[group]), Use())
        yield from _bounds(f"@{group}", self.groups[group], used)


def _of_runs(figures: Figures) -> Figures:
    return {each: Limit(limit.most) for each, limit in figures.items() if each in OF_RUNS}


def _bounds(whose: str, figures: Figures, used: Use) -> Iterator[Bound]:
    for measure in Measure:
        if measure in figures:
            yield Bound(whose=whose, measure=measure, limit=figures[measure], used=used.of(measure))


# ---- limits in settings ----------------------------------------------------------------------------------------------


def _entries(text: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for each in filter(None, map(str.strip, re.split(r"[;\n]", text))):
        name, colon, words = each.partition(":")
        name = name.strip()
        if not colon or not _NAME.fullmatch(name) or not words.strip():
            raise BadRequest(f"{brief(each)} is no limit: write ann: running_gpus=4, or big: max_time=2d for a pool")
        if name in seen:
            raise BadRequest(f"{name} is named twice: put all its limits behind one name")
        seen.add(name)
        yield name, words


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


def _figures(words: Mapping[str, str]) -> dict[Measure, Limit]:
    found = {}
    for key, value in words.items():
        if key not in {each.value for each in Measure}:
            raise BadRequest(f"{brief(key)} is no limit: choose from {', '.join(Measure)}")
        measure = Measure(key)
        limit = _limit(measure, value)
        if limit is not None:
            found[measure] = limit
    return found


def _over(below: Figures, words: Mapping[str, str]) -> dict[Measure, Limit]:
    """Return the figures of *words*, and those of *below* that *words* do not name."""
    return {**{each: limit for each, limit in below.items() if each.value not in words}, **_figures(words)}


def _figures_named(written: Mapping[str, Mapping[str, str]]) -> Iterator[Measure]:
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


def _pool(name: str, words: Mapping[str, str]) -> PoolLimits:
    """Return the limits of the pool *name*. Without ``default_time``, the default time limit is ``max_time``."""
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


def _text(figures: Figures) -> str:
    return " ".join(f"{each}={limit.most}{'!' if limit.refuses else ''}" for each, limit in figures.items())


def _from_text(text: str) -> dict[Measure, Limit]:
    known = {each.value for each in Measure}
    found = re.findall(r"([a-z_]+)=(\d+)(!?)", text, re.ASCII)
    return {Measure(name): Limit(int(most), bool(refuses)) for name, most, refuses in found if name in known}


def _pool_text(pool: PoolLimits) -> str:
    ms = {"default_time": pool.default_time_s, "max_time": pool.max_time_s}
    numbers = {
        "default_mem": pool.default_mem_bytes,
        "max_mem": pool.max_mem_bytes,
        **{name: None if value is None else round(value * 1000) for name, value in ms.items()},
        "max_gpus": pool.max_gpus,
    }
    return " ".join(f"{name}={number}" for name, number in numbers.items() if number is not None)


def _pool_from_text(text: str) -> PoolLimits:
    found = {name: int(number) for name, number in re.findall(r"([a-z_]+)=(\d{1,18})", text, re.ASCII)}
    default_ms, max_ms = found.get("default_time"), found.get("max_time")
    return PoolLimits(
        default_mem_bytes=min(found["default_mem"], MAX_BYTES) if "default_mem" in found else None,
        max_mem_bytes=found.get("max_mem"),
        default_time_s=None if default_ms is None else default_ms / 1000,
        max_time_s=None if max_ms is None else max_ms / 1000,
        max_gpus=found.get("max_gpus"),
    )
