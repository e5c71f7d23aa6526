"""The parts of a request that have types of their own.

They are waits, retries, notifications, the early signal, placement, the terminal's size and the git checkout.
"""

from __future__ import annotations

from datetime import datetime

from gpuqueue.codec.text import Plain, iso, meaning
from gpuqueue.model.dependencies import NO_WAITS, Condition, Dependency, Waits
from gpuqueue.model.git import Checkout
from gpuqueue.model.notification import Notification, When
from gpuqueue.model.placement import ANYWHERE, Placement, Preference
from gpuqueue.model.retries import NO_RETRIES, Retries, RetryOn
from gpuqueue.model.terminal_size import Window
from gpuqueue.model.warning_signal import EarlySignal
from gpuqueue.text.json_fields import Fields


def waits_to_plain(waits: Waits) -> Plain:
    """Return *waits* as plain values."""
    return {
        "after": [{"job_id": each.job_id, "condition": each.condition.value} for each in waits.after],
        "begin_at": iso(waits.begin_at),
        "hold": waits.hold,
        "dedupe": waits.dedupe,
    }


def waits_from_plain(plain: object) -> Waits:
    """Return the waits that *plain* describes, ``NO_WAITS`` for None."""
    if plain is None:
        return NO_WAITS
    fields = Fields(plain, "what a job waits for")
    after = (Fields(each, "a job to wait for") for each in fields.each("after"))
    begin_at = fields.text_or_none("begin_at")
    return Waits(
        after=tuple(Dependency(each.whole("job_id"), Condition(each.text("condition"))) for each in after),
        begin_at=datetime.fromisoformat(begin_at) if begin_at else None,
        hold=fields.flag("hold", default=False),
        dedupe=fields.text_or_none("dedupe"),
    )


def retries_to_plain(retries: Retries) -> Plain:
    """Return *retries* as plain values."""
    return {"times": retries.times, "on": [each.value for each in retries.on]}


def retries_from_plain(plain: object) -> Retries:
    """Return the retries that *plain* describes, ``NO_RETRIES`` for None."""
    if plain is None:
        return NO_RETRIES
    fields = Fields(plain, "a job's retries")
    return Retries(times=fields.whole("times"), on=tuple(RetryOn(each) for each in fields.texts("on")))


def notifications_to_plain(notifications: tuple[Notification, ...]) -> list[Plain]:
    """Return *notifications* as plain values, including secrets."""
    return [{"when": each.when.value, "to": each.to} for each in notifications]


def notifications_from_plain(plain: object) -> tuple[Notification, ...]:
    """Return the notifications that *plain* describes, an empty tuple for None."""
    if plain is None:
        return ()
    what = "a job's notifications"
    each_plain = (Fields(each, what) for each in Fields({"all": plain}, what).each("all"))
    with meaning(what):
        return tuple(Notification(each.text("to"), When(each.text("when"))) for each in each_plain)


def signal_to_plain(early: EarlySignal | None) -> Plain | None:
    """Return *early* as plain values, None for None."""
    return None if early is None else {"number": early.number, "before_s": early.before_s}


def signal_from_plain(plain: object) -> EarlySignal | None:
    """Return the early signal that *plain* describes, None for None."""
    if plain is None:
        return None
    what = "an early signal"
    fields = Fields(plain, what)
    with meaning(what):
        return EarlySignal(number=fields.whole("number"), before_s=fields.number("before_s"))


def placement_to_plain(placement: Placement) -> Plain:
    """Return *placement* as plain values."""
    return {
        "exclusive": placement.exclusive,
        "whole": placement.whole,
        "models": list(placement.models),
        "devices": list(placement.devices),
        "preference": placement.preference.value if placement.preference else None,
    }


def placement_from_plain(plain: object) -> Placement:
    """Return the placement that *plain* describes, ``ANYWHERE`` for None, as in older requests."""
    if plain is None:
        return ANYWHERE
    what = "a placement"
    fields = Fields(plain, what)
    with meaning(what):
        return Placement(
            exclusive=fields.flag("exclusive", default=False),
            whole=fields.flag("whole", default=False),
            models=fields.texts("models") if fields.has("models") else (),
            devices=fields.texts("devices") if fields.has("devices") else (),
            preference=Preference(fields.text("preference")) if fields.has("preference") else None,
        )


def window_from_plain(plain: Fields) -> Window:
    """Return the size of a terminal that *plain* describes."""
    return Window(
        columns=plain.whole("columns", 80), rows=plain.whole("rows", 24), typed=plain.flag("typed", default=False)
    )


def window_to_plain(window: Window | None) -> Plain | None:
    """Return the size of a terminal as plain values, None for None."""
    if window is None:
        return None
    return {"columns": window.columns, "rows": window.rows, **({"typed": True} if window.typed else {})}


def git_to_plain(checkout: Checkout | None) -> Plain | None:
    """Return *checkout* as plain values, None for None."""
    if checkout is None:
        return None
    return {"commit": checkout.commit, "branch": checkout.branch, "dirty": checkout.dirty}


def git_from_plain(plain: object) -> Checkout | None:
    """Return the checkout that *plain* describes, None for None, as in older requests."""
    if plain is None:
        return None
    what = "a checkout"
    fields = Fields(plain, what)
    with meaning(what):
        return Checkout(
            commit=fields.text("commit"),
            branch=fields.text_or_none("branch"),
            dirty=fields.flag("dirty", default=False) if fields.has("dirty") else None,
        )
