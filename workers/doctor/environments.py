"""Checks of the Python environments that this host offers by name."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, ok, problem
from gpuqueue.settings.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """An environment of the settings; ``fault`` is why no job can start in it, None if none is seen."""

    name: str
    program: str
    fault: str | None


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts_of(settings: Settings) -> tuple[Environment, ...]:
    """Return the environments of *settings*."""
    return tuple(
        Environment(name=name, program=program, fault=_fault(program))
        for name, program in sorted(settings.environments.items())
    )


def _fault(program: str) -> str | None:
    if not os.path.lexists(program):
        return "is not there"
    if os.path.isdir(program):  # noqa: PTH112 - as the line above
        return "is a directory"
    return None if os.access(program, os.X_OK) else "cannot be executed"


# ---- checks ----------------------------------------------------------------------------------------------------------


def environments(found: tuple[Environment, ...]) -> Iterator[Finding]:
    """Report each environment without a program: its jobs go to other hosts, or are held."""
    for each in found:
        if each.fault is None:
            yield ok(each.program, about=each.name)
        else:
            remedy = "install it there, or change the setting environments and restart the workers"
            yield problem(f"{each.program} {each.fault}: no job with --environment starts", remedy, about=each.name)


CHECKS = (environments,)
