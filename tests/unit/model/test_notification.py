from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.notification import (
    MOST_NOTIFICATIONS,
    Notification,
    NotificationKind,
    When,
    check_notifications,
    targets,
)


@pytest.mark.parametrize(
    ("to", "kind", "shown"),
    [
        ("team", NotificationKind.TARGET, "team"),
        ("ann@example.org", NotificationKind.ADDRESS, "ann@example.org"),
        ("slack://T1/B2/secret", NotificationKind.URL, "slack://…"),
        ("mailto://ann:secret@example.org?to=b@c.org", NotificationKind.URL, "mailto://…"),
        ("json://host:8080/path?x=a://b", NotificationKind.URL, "json://…"),
    ],
)
def test_a_target_and_its_shown_part(to: str, kind: NotificationKind, shown: str) -> None:
    """A URL is shown only by its scheme, because even the host can be a token."""
    notification = Notification(to)

    assert (kind, shown) == (notification.kind, notification.shown)
    assert "secret" not in repr(notification)


@pytest.mark.parametrize("to", ["", " ", "a b", "slack://", "1team", "x@", "a\x1b[2J", "é://x", "x" * 2001])
def test_what_is_no_target_is_refused(to: str) -> None:
    """An invalid target is refused with a list of the valid forms."""
    with pytest.raises(BadRequest, match="a target of the site by its name, a mail address, or a URL"):
        Notification(to)


def test_a_command_is_refused_with_the_job_that_replaces_it() -> None:
    """The error for a command names `--after ID:any`, and does not repeat the command."""
    with pytest.raises(BadRequest, match="gpuqueue submit --after ID:any") as refused:
        Notification("command:curl https://host/secret")

    assert "secret" not in str(refused.value)


def test_a_half_url_is_refused_without_its_secret() -> None:
    """The error for an invalid URL does not contain its secret, because errors reach terminals and logs."""
    with pytest.raises(BadRequest) as refused:
        Notification("slack://T1/B2/secret with a space")

    assert "secret" not in str(refused.value)


def test_failures_are_all_that_is_no_success() -> None:
    """A failure is every end without success, as with --after ID:fail."""
    assert [True, True] == [Notification("team", When.END).follows(succeeded=each) for each in (True, False)]
    assert [False, True] == [Notification("team", When.FAIL).follows(succeeded=each) for each in (True, False)]


@pytest.mark.parametrize(
    ("notifications", "output"),
    [
        ([Notification("team")], "must be a tuple of Notification"),
        (("team",), "must be a tuple of Notification"),
        ((Notification("team"),) * (MOST_NOTIFICATIONS + 1), "at most 16 targets, not 17"),
    ],
)
def test_what_is_no_list_of_notifications_is_refused(notifications: object, output: str) -> None:
    """A job has at most 16 notifications, as a tuple."""
    check_notifications((Notification("team"),) * MOST_NOTIFICATIONS)

    with pytest.raises(BadRequest, match=output):
        check_notifications(notifications)


def test_targets_are_read_from_one_line() -> None:
    """Several targets are read from one line, as in an environment variable."""
    assert {"team": "slack://T1/B2/x=y", "mail": "mailto://a:b@c.org"} == targets(
        "team=slack://T1/B2/x=y  mail=mailto://a:b@c.org"
    )
    assert {} == targets("")


@pytest.mark.parametrize(
    "text",
    ["team", "=slack://a", "1=slack://secret", "team=secret", "a=slack://secret a=json://secret", "slack://secret"],
)
def test_a_setting_that_names_no_targets_is_refused_without_its_secrets(text: str) -> None:
    """The error for an invalid setting does not contain its secrets, because doctor prints it."""
    with pytest.raises(BadRequest) as refused:
        targets(text)

    assert "secret" not in str(refused.value)
