"""Runs the checks of a GPU host, each group with a time limit, and yields the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpuqueue.model.finding import Check, Finding, examined, name_of, problem, unknown
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall
from workers.devices.nvml_calls import Session
from workers.devices.nvml_diagnostics import CardFacts, DriverFacts, DriverState, card_facts, driver_facts
from workers.doctor import cards, driver, environments, launcher, orphans, python, runs, visibility
from workers.doctor.driver_environment import read_surroundings

T = TypeVar("T")

#: Time limits for opening the driver, for a card, for all devices, and for any other group of checks, in seconds.
DRIVER_S, CARD_S, DEVICES_S, POLL_S = 8.0, 4.0, 12.0, 8.0
#: Time limit for the check of the installation, which has tens of thousands of files, in seconds.
INSTALLATION_S = 20.0

#: The checks of each section.
ROOMS: Mapping[str, tuple[Callable[..., object], ...]] = {
    "host": (*driver.CHECKS, *cards.CHECKS, *visibility.CHECKS, *launcher.CHECKS),
    "python": (*python.CHECKS, *environments.CHECKS),
    "runs": (*runs.CHECKS, *orphans.CHECKS),
}


def examine(settings: Settings, environ: Mapping[str, str], *, deep: bool) -> Iterator[Finding]:
    """Yield all findings of this machine. The checks that do not depend on the driver come first."""
    session = Session()
    opening = TimedCall(lambda: driver_facts(session), DRIVER_S)
    live = TimedCall(lambda: runs.facts_of(settings), POLL_S)
    launching = TimedCall(lambda: launcher.facts_of(settings), INSTALLATION_S)
    offered = TimedCall(lambda: environments.facts_of(settings), POLL_S)
    outlived = TimedCall(lambda: orphans.facts_of(settings), POLL_S)
    yield from _reported("runs", live, runs.CHECKS)
    yield from _reported("runs", outlived, orphans.CHECKS)
    yield from _reported("python", offered, environments.CHECKS)
    yield from _reported("host", launching, launcher.CHECKS)
    try:
        facts = _with_cards(session, opening.result())
    except CallFailed as why:
        seen, remedy = (
            f"the NVIDIA driver hangs: {why}",
            "dmesg (NVRM, Xid) shows which card; a reset or a reboot helps",
        )
        yield replace(problem(seen, remedy), section="host", check=name_of(driver.driver))
        facts = DriverFacts(state=DriverState.BROKEN, words=str(why))
    else:
        yield from _host(settings, environ, facts)
    python_s = POLL_S + (python.DEEP_S if deep else 0.0)
    yield from _reported(
        "python", TimedCall(lambda: python.facts_of(environ, facts, deep=deep), python_s), python.CHECKS
    )


def _with_cards(session: Session, facts: DriverFacts) -> DriverFacts:
    """Return *facts* with the facts of each card. A card that hangs is in trouble, and does not delay the others."""
    calls = [TimedCall(partial(card_facts, session, index), CARD_S) for index in range(facts.count)]
    found = []
    for index, call in enumerate(calls):
        try:
            found.append(call.result())
        except CallFailed as why:
            found.append(CardFacts(index=index, trouble=f"it hangs: {why}"))
    return replace(facts, cards=tuple(found))


def _host(settings: Settings, environ: Mapping[str, str], facts: DriverFacts) -> Iterator[Finding]:
    around = read_surroundings(visible=environ.get("NVIDIA_VISIBLE_DEVICES"))
    yield from examined("host", driver.Facts(settings=settings, driver=facts, around=around), driver.CHECKS)
    served = TimedCall(lambda: cards.facts_of(settings, facts), DEVICES_S)
    yield from _reported("host", served, cards.CHECKS)
    seen = TimedCall(lambda: visibility.facts_of(served.result().devices, settings, environ), DEVICES_S)
    yield from _reported("host", seen, visibility.CHECKS)


def _reported(section: str, call: TimedCall[T], checks: Iterable[Check[T]]) -> Iterator[Finding]:
    try:
        yield from examined(section, call.result(), checks)
    except CallFailed as why:
        name = name_of(next(iter(checks)))
        yield replace(unknown(f"it could not be checked: {why}"), section=section, check=name)
