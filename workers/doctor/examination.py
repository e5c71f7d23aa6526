"""Runs the checks of a GPU host, each group with a time limit, and yields the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpuqueue.model.finding import Check, Finding, examined, name_of, problem, unknown
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall
from workers.devices.nvml_calls import Session
from workers.devices.nvml_diagnostics import CardFacts, DriverFacts, DriverState, card_facts, driver_facts
from workers.doctor import cards, driver, launcher, python, runs, visibility
from workers.doctor.host import Host, read_devices

T = TypeVar("T")

#: Time limits for opening the driver, for a card, for all devices, and for any other group of checks, in seconds.
DRIVER_S, CARD_S, DEVICES_S, POLL_S = 8.0, 4.0, 12.0, 8.0
#: Time limit for the check of the installation, which has tens of thousands of files, in seconds.
INSTALLATION_S = 20.0

#: The checks of each section.
ROOMS: Mapping[str, tuple[Callable[..., object], ...]] = {
    "host": (*driver.CHECKS, *cards.CHECKS, *visibility.CHECKS, *launcher.CHECKS),
    "python": (*python.CHECKS, python.environments),
    "runs": (*runs.CHECKS, runs.orphans),
}


def examine(settings: Settings, environ: Mapping[str, str], *, deep: bool) -> Iterator[Finding]:
    """Yield all findings of this machine. The checks that do not depend on the driver come first."""
    session = Session()
    opening = TimedCall(lambda: driver_facts(session), DRIVER_S)
    first = [
        _begun("runs", lambda: runs.UnsettledRuns(settings), runs.CHECKS),
        _begun("runs", lambda: settings, (runs.orphans,)),
        _begun("python", lambda: settings, (python.environments,)),
        _begun("host", lambda: settings, launcher.CHECKS, INSTALLATION_S),
    ]
    for findings in first:
        yield from findings()
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
        devices = TimedCall(lambda: read_devices(settings), DEVICES_S)
        host = Host(settings=settings, environ=environ, driver=facts, devices=devices.result)
        for checks in (driver.CHECKS, cards.CHECKS, visibility.CHECKS):
            yield from _begun("host", lambda: host, checks, 2 * DEVICES_S)()
    python_s = POLL_S + (python.DEEP_S if deep else 0.0)
    yield from _begun("python", lambda: python.Interpreter(environ, facts, deep=deep), python.CHECKS, python_s)()


def _begun(
    section: str, read: Callable[[], T], checks: Sequence[Check[T]], limit_s: float = POLL_S
) -> Callable[[], list[Finding]]:
    """Begin to run *checks*, and return a function that waits for their findings."""
    call = TimedCall(lambda: list(examined(section, read(), checks)), limit_s)

    def findings() -> list[Finding]:
        try:
            return call.result()
        except CallFailed as why:
            return [replace(unknown(f"it could not be checked: {why}"), section=section, check=name_of(checks[0]))]

    return findings


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
