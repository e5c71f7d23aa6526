from __future__ import annotations

import pytest
import sqlalchemy as sa

from gpuqueue.errors import HistoryUnreachable, StoreUnreachable
from gpuqueue.history.connect import open_engine, shown
from gpuqueue.queue.connect import connect
from gpuqueue.text.sanitize import without_password


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://ada:hunter2@h", "redis://ada:***@h"),
        ("redis://:hun/t@er2@h/0", "redis://:***@h/0"),
        ("postgresql://ada:hun?ter2@h/db", "postgresql://ada:***@h/db"),
        ("postgresql://ada:hun://ter2@h/db", "postgresql://ada:***@h/db"),
        ("unix://ada:hunter2@/x/y?db=1&password=hunter2", "unix://ada:***@/x/y?db=1&password=***"),
        ("postgresql://ada@h/db?sslpassword=hunter2&x=1", "postgresql://ada@h/db?sslpassword=***&x=1"),
        ("postgresql://h/db?password=hun@ter2", "postgresql://h/db?password=***"),
        # Typing errors: no host after the account, no scheme, an invalid port.
        ("redis://ada:hunter2", "redis://ada:***"),
        ("ada:hunter2@h:6379", "ada:***@h:6379"),
        ("postgresql://ada:hunter2@h:port/db", "postgresql://ada:***@h:port/db"),
    ],
)
def test_a_password_is_never_shown(url: str, safe: str) -> None:
    """A password is hidden wherever it is, whatever it contains, and however malformed the address is."""
    assert safe == without_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "unix:///tmp/a@b.sock",
        "sqlite:////home/a@b/history.db",
        "redis://[::1]:6379/0",
        "redis://h:6379/0",
        "postgresql://ada@h:5432/db",
        "localhost:6379",
        "",
    ],
)
def test_an_address_without_one_is_shown_whole(url: str) -> None:
    """An address without a password is shown unchanged, because the user needs it."""
    assert url == without_password(url)


def test_a_refused_store_address_quotes_no_password() -> None:
    """The error for an invalid store address contains no password.

    Regression: the redis library took the password for a port and quoted it.
    """
    with pytest.raises(StoreUnreachable, match="no usable address") as caught:
        connect("redis://ada:hunter2")

    assert "hunter2" not in str(caught.value)


def test_a_port_that_is_no_number_is_no_traceback() -> None:
    """An invalid port gives no traceback. SQLAlchemy raises a different error for it than for other bad addresses."""
    with pytest.raises(HistoryUnreachable, match="cannot be read"):
        open_engine("postgresql://ada:hunter2@h:port/db")


def test_the_history_address_shows_no_key_file_password() -> None:
    """Both password parameters of the PostgreSQL driver are hidden."""
    assert "hunter2" not in shown(sa.make_url("postgresql://h/db?sslpassword=hunter2&password=hunter2"))
