"""The parts of a request that have types of their own.

They are waits, retries, notifications, the warning signal, placement, the size of a terminal and the git checkout. A
reader raises ``Unreadable``, ``ValueError`` or ``BadRequest``; :mod:`gpuqueue.codec.request` turns the last two into
the first.
"""

from __future__ import annotations

from datetime import datetime

from gpuqueue.codec.text import Plain, iso
from gpuqueue.model.dependencies import Condition, Dependency, Waits
from gpuqueue.model.job_spec import Checkout, EarlySignal
from gpuqueue.model.notification import Notification, When
from gpuqueue.model.placement import Placement, Preference
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.terminal_size import Window
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
    """Return the waits that *plain* describes."""
    fields = Fields(plain, "what a job waits for")
    after = (Fields(each, "a job to wait for") for each in fields.each("after"))
    begin_at = fields.text_or_none("begin_at")
    return Waits(
        after=tuple(Dependency(each.whole("job_id"), Condition(each.text("condition"))) for each in after),
        begin_at=datetime.fromisoformat(begin_at) if begin_at else None,
        hold=fields.flag("hold"),
        dedupe=fields.text_or_none("dedupe"),
    )


def retries_to_plain(retries: Retries) -> Plain:
    """Return *retries* as plain values."""
    return {
        "times": retries.times,
        "on": [each.value for each in retries.on],
        **({} if retries.mem_times is None else {"mem_times": retries.mem_times}),
    }


def retries_from_plain(plain: object) -> Retries:
    """Return the retries that *plain* describes."""
    fields = Fields(plain, "a job's retries")
    return Retries(
        times=fields.whole("times"),
        on=tuple(RetryOn(each) for each in fields.texts("on")),
        mem_times=fields.whole_or_none("mem_times"),
    )


def notification_to_plain(notification: Notification) -> Plain:
    """Return *notification* as plain values, including secrets."""
    return {"when": notification.when.value, "to": notification.to}


def notification_from_plain(plain: object) -> Notification:
    """Return the notification that *plain* describes."""
    fields = Fields(plain, "a notification")
    return Notification(fields.text("to"), When(fields.text("when")))


def signal_to_plain(early: EarlySignal) -> Plain:
    """Return *early* as plain values."""
    return {"number": early.number, "before_s": early.before_s}


def signal_from_plain(plain: object) -> EarlySignal:
    """Return the warning signal that *plain* describes."""
    fields = Fields(plain, "a warning signal")
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
    """Return the placement that *plain* describes."""
    fields = Fields(plain, "a placement")
    return Placement(
        exclusive=fields.flag("exclusive"),
        whole=fields.flag("whole"),
        models=fields.texts("models"),
        devices=fields.texts("devices"),
        preference=Preference(fields.text("preference")) if fields.has("preference") else None,
    )


def window_to_plain(window: Window) -> Plain:
    """Return the size of a terminal as plain values."""
    return {"columns": window.columns, "rows": window.rows, "typed": window.typed}


def window_from_plain(plain: object) -> Window:
    """Return the size of a terminal that *plain* describes."""
    fields = Fields(plain, "a terminal")
    return Window(columns=fields.whole("columns"), rows=fields.whole("rows"), typed=fields.flag("typed"))


def git_to_plain(checkout: Checkout) -> Plain:
    """Return *checkout* as plain values."""
    return {"commit": checkout.commit, "branch": checkout.branch, "dirty": checkout.dirty}


def git_from_plain(plain: object) -> Checkout:
    """Return the checkout that *plain* describes."""
    fields = Fields(plain, "a checkout")
    return Checkout(
        commit=fields.text("commit"), branch=fields.text_or_none("branch"), dirty=fields.flag_or_none("dirty")
    )
