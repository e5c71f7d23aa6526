"""Fair shares of users and groups. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

_NAME = pattern(r"[A-Za-z0-9_.@+-]{1,64}")
#: Bounds of a share. A share is a weight: only the ratio to other shares matters.
LEAST, MOST = 0.001, 1_000_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The shares of users and groups, and the members of each group. The default share is 1."""

    users: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, shares: str, groups: str) -> Shares:
        """Return the shares in two settings, such as ``ann=2, @vision=3`` and ``vision: ann bob; nlp: eve``.

        Raises:
            BadRequest: an entry is malformed, a name occurs twice, a user is in two groups, or a group has a share and
                no members.

        """
        members = _members(groups)
        users: dict[str, float] = {}
        weights: dict[str, float] = {}
        for each in filter(None, map(str.strip, shares.split(","))):
            name, equals, weight = each.partition("=")
            whose, name = (weights, name[1:]) if name.startswith("@") else (users, name)
            if not equals or not _NAME.fullmatch(name.strip()):
                raise BadRequest(f"{brief(each)} is no share: write ann=2 for a user, @vision=3 for a group")
            if name.strip() in whose:
                raise BadRequest(f"{each.partition('=')[0].strip()} is named twice: write one share")
            whose[name.strip()] = _weight(weight)
        unknown = weights.keys() - members.keys()
        if unknown:
            raise BadRequest(f"the group {min(unknown)} has a share and no members: name them in groups")
        return cls(users=users, groups={name: weights.get(name, 1.0) for name in members}, members=members)

    def by_user(self) -> dict[str, float]:
        """Return the effective share of each user that is named in the settings.

        The share of a group is divided among its members in proportion to their own shares. The queue serves the user
        with the lowest ratio of usage to share first. Source: the normalised shares of Slurm's classic multifactor
        priority.
        """
        found = dict(self.users)
        for group, names in self.members.items():
            total = sum(self.users.get(name, 1.0) for name in names)
            for name in names:
                found[name] = self.groups[group] * self.users.get(name, 1.0) / total
        return found


def _members(text: str) -> dict[str, tuple[str, ...]]:
    members: dict[str, tuple[str, ...]] = {}
    taken: dict[str, str] = {}
    for each in filter(None, map(str.strip, text.split(";"))):
        group, colon, names = each.partition(":")
        found = tuple(names.split())
        if not colon or not found or not all(map(_NAME.fullmatch, (group.strip(), *found))):
            raise BadRequest(f"{brief(each)} is no group: write vision: ann bob; nlp: eve")
        if group.strip() in members:
            raise BadRequest(f"the group {group.strip()} is named twice: write all its members in one place")
        for name in found:
            if taken.get(name) == group.strip():
                raise BadRequest(f"{name} is named twice in the group {group.strip()}")
            if name in taken:
                raise BadRequest(f"{name} is in two groups, {taken[name]} and {group.strip()}: choose one")
            taken[name] = group.strip()
        members[group.strip()] = found
    return members


def _weight(text: str) -> float:
    weight = float(text) if re.fullmatch(r"\s*[0-9]{1,7}(\.[0-9]{1,3})?\s*", text) else 0.0
    if not LEAST <= weight <= MOST:
        raise BadRequest(f"{brief(text.strip())} is no share: a number from {LEAST:g} to {MOST:.0f}")
    return weight
