"""The limits of a site: what users, groups and pools can have limits on, their texts, and their current use. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.measures import AT_SUBMIT, OF_ONE_JOB, OF_RUNS, SIZES, Figures, Limit, Measure, PoolLimits, Use
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_BYTES, parse_bytes, parse_duration

#: The name that stands for every user, or pool, without an entry of its own.
EVERYBODY = "*"
_NAME = pattern(r"\*|@?[A-Za-z0-9_.+-][A-Za-z0-9_.@+-]{0,63}")
_COUNT = pattern(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One limit and its current use.

    ``whose`` is a user, ``@GROUP`` or EVERYBODY: the users without a bound of their own, who use nothing. ``used`` is
    None for the size of one job, and if it is not known.
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
        written = dict(entries(limits))
        groups = {name[1:]: limits_in(words) for name, words in written.items() if name.startswith("@")}
        unknown = groups.keys() - members.keys()
        if unknown:
            raise BadRequest(f"the group {min(unknown)} has a limit and no members: name them in groups")
        for name, figures in groups.items():
            for measure in sorted(AT_SUBMIT.keys() & figures.keys()):
                raise BadRequest(f"{measure} limits each user, not the group {name}: write it for a user, or for *")
        whole = {EVERYBODY: over(AT_SUBMIT, written.get(EVERYBODY, {}))}
        own = {name: words for name, words in written.items() if not name.startswith("@")}
        whole |= {name: over(whole[EVERYBODY], words) for name, words in own.items()}
        submits = {
            name: {each: figures[each] for each in AT_SUBMIT if each in figures} for name, figures in whole.items()
        }
        users = {name: {each: limit for each, limit in whole[name].items() if each not in AT_SUBMIT} for name in own}
        return cls(
            users=users if {*measures_named(own)} - AT_SUBMIT.keys() else {},
            submits={name: each for name, each in submits.items() if name == EVERYBODY or each != submits[EVERYBODY]},
            groups=groups,
            members={name: names for name, names in members.items() if name in groups},
            pools={name: pool(name, words) for name, words in entries(pool_limits)},
        )

    def to_fields(self) -> dict[str, str]:
        """Return the fields of the limits in the store, as ``gpuqueue/queue/lua/shared/limits.lua`` describes them."""
        fields = {f"user:{name}": text_of(figures) for name, figures in self.users.items()}
        fields |= {f"submit:{name}": text_of(figures) for name, figures in self.submits.items()}
        for group, figures in self.groups.items():
            fields[f"group:{group}"] = text_of(figures)
            fields[f"members:{group}"] = ",".join(self.members[group])
            fields |= {f"member:{name}": group for name in self.members[group]}
        return fields | {f"pool:{name}": pool_text_of(pool) for name, pool in self.pools.items()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Limits:
        """Return the limits in the fields that :meth:`to_fields` wrote. Malformed entries are ignored."""
        found: dict[str, dict[str, str]] = {}
        for name, text in fields.items():
            what, _, whose = name.partition(":")
            found.setdefault(what, {})[whose] = text
        groups = found.get("group", {})
        return cls(
            users={name: figures_of(text) for name, text in found.get("user", {}).items()},
            submits={name: figures_of(text) for name, text in found.get("submit", {}).items()},
            groups={name: figures_of(text) for name, text in groups.items()},
            members={name: tuple(found.get("members", {}).get(name, "").split(",")) for name in groups},
            pools={name: pool_of(text) for name, text in found.get("pool", {}).items()},
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
            more = asked.of(bound.measure) or 0
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
        for user in sorted({*self.submits, *uses} - {EVERYBODY}):
            yield from self._at_submit(user, uses.get(user, Use()))
        for everybody in (self.users.get(EVERYBODY, {}), self.submits.get(EVERYBODY, {})):
            yield from _bounds(EVERYBODY, everybody, Use())

    def _of_user(self, user: str, uses: Mapping[str, Use]) -> Iterator[Bound]:
        yield from self._own(user, uses)
        for group, names in self.members.items():
            if user in names:
                yield from self._group(group, uses)

    def _own(self, user: str, uses: Mapping[str, Use]) -> Iterator[Bound]:
        figures = self.users.get(user, self.users.get(EVERYBODY, {}))
        yield from _bounds(user, figures, uses.get(user, Use()))

    def _at_submit(self, user: str, used: Use) -> Iterator[Bound]:
        """Yield the limits of AT_SUBMIT of *user*. Of those of EVERYBODY, yield what the user uses."""
        own = self.submits.get(user)
        for bound in _bounds(user, self.submits.get(EVERYBODY, {}) if own is None else own, used):
            if own is not None or (bound.used != 0 and bound.measure not in OF_ONE_JOB):
                yield bound

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


def limits_in(words: Mapping[str, str]) -> dict[Measure, Limit]:
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
    return {**{each: limit for each, limit in below.items() if each.value not in words}, **limits_in(words)}


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
