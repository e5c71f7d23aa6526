"""Who is notified of a job's end after an edit."""

from __future__ import annotations

import pytest

from gpuqueue.client.notifications import replaced
from gpuqueue.errors import BadRequest
from gpuqueue.model.notification import Notification, When

TEAM, CHAT = Notification("team"), Notification("json://host/secret", When.FAIL)


@pytest.mark.parametrize(
    ("on_end", "on_fail", "after"),
    [
        (None, None, (TEAM, CHAT)),
        ("none", None, (CHAT,)),
        (None, ["none"], (TEAM,)),
        (["mail", "team"], None, (CHAT, Notification("mail"), TEAM)),
        ("none", "team", (Notification("team", When.FAIL),)),
    ],
)
def test_each_kind_is_replaced_apart(
    on_end: str | list[str] | None, on_fail: str | list[str] | None, after: tuple[Notification, ...]
) -> None:
    """Targets of the other kind stay."""
    assert after == replaced((TEAM, CHAT), on_end, on_fail)


def test_a_url_as_it_is_shown_is_refused() -> None:
    """The page and ``show`` hide the secrets of a URL, so what they print is no target."""
    with pytest.raises(BadRequest, match="json://… is a URL without its secret part: write all of it"):
        replaced((), None, "json://…")
