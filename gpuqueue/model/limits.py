"""The limits of a site and their current use. Pure.

What can be limited is in measures.py, the texts of limits are in limit_texts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model import limit_texts
from gpuqueue.model.measures import AT_SUBMIT, OF_ONE_JOB, OF_RUNS, Figures, Limit, Measure, PoolLimits, Use

#: The name that stands for every user, or pool, without an entry of its own.
EVERYBODY = "*"


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
        written = dict(limit_texts.entries(limits))
        groups = {name[1:]: limit_texts.figures(words) for name, words in written.items() if name.startswith("@")}
        unknown = groups.keys() - members.keys()
        if unknown:
            raise BadRequest(f"the group {min(unknown)} has a limit and no members: name them in groups")
        for name, figures in groups.items():
            for measure in sorted(AT_SUBMIT.keys() & figures.keys()):
                raise BadRequest(f"{measure} limits each user, not the group {name}: write it for a user, or for *")
        whole = {EVERYBODY: limit_texts.over(AT_SUBMIT, written.get(EVERYBODY, {}))}
        own = {name: words for name, words in written.items() if not name.startswith("@")}
        whole |= {name: limit_texts.over(whole[EVERYBODY], words) for name, words in own.items()}
        submits = {
            name: {each: figures[each] for each in AT_SUBMIT if each in figures} for name, figures in whole.items()
        }
        users = {name: {each: limit for each, limit in whole[name].items() if each not in AT_SUBMIT} for name in own}
        return cls(
            users=users if {*limit_texts.measures_named(own)} - AT_SUBMIT.keys() else {},
            submits={name: each for name, each in submits.items() if name == EVERYBODY or each != submits[EVERYBODY]},
            groups=groups,
            members={name: names for name, names in members.items() if name in groups},
            pools={name: limit_texts.pool(name, words) for name, words in limit_texts.entries(pool_limits)},
        )

    def to_fields(self) -> dict[str, str]:
        """Return the fields of the limits in the store, as ``gpuqueue/queue/lua/shared/limits.lua`` describes them."""
        fields = {f"user:{name}": limit_texts.text_of(figures) for name, figures in self.users.items()}
        fields |= {f"submit:{name}": limit_texts.text_of(figures) for name, figures in self.submits.items()}
        for group, figures in self.groups.items():
            fields[f"group:{group}"] = limit_texts.text_of(figures)
            fields[f"members:{group}"] = ",".join(self.members[group])
            fields |= {f"member:{name}": group for name in self.members[group]}
        return fields | {f"pool:{name}": limit_texts.pool_text_of(pool) for name, pool in self.pools.items()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Limits:
        """Return the limits in the fields that :meth:`to_fields` wrote. Malformed entries are ignored."""
        found: dict[str, dict[str, str]] = {}
        for name, text in fields.items():
            what, _, whose = name.partition(":")
            found.setdefault(what, {})[whose] = text
        groups = found.get("group", {})
        return cls(
            users={name: limit_texts.figures_of(text) for name, text in found.get("user", {}).items()},
            submits={name: limit_texts.figures_of(text) for name, text in found.get("submit", {}).items()},
            groups={name: limit_texts.figures_of(text) for name, text in groups.items()},
            members={name: tuple(found.get("members", {}).get(name, "").split(",")) for name in groups},
            pools={name: limit_texts.pool_of(text) for name, text in found.get("pool", {}).items()},
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
