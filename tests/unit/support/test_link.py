"""Tests of the links and relays between a test and the store."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from link import Link
from relay import Relay


def port_of_a_closed_link(store: str) -> int:
    """Return the port of a link that is closed."""
    link = Link(store)
    link.close()
    return int(link.url.rpartition(":")[2])


def port_of_a_closed_relay(store: str) -> int:
    """Return the port of a relay that is closed."""
    relay = Relay(store)
    relay.close()
    return relay.port


@pytest.mark.parametrize("closed", [port_of_a_closed_link, port_of_a_closed_relay])
def test_what_is_closed_accepts_no_connection(closed: Callable[[str], int], tmp_path: Path) -> None:
    """A closed link refuses connections.

    Regression: it accepted one more, and left the sockets of that to a later test.
    """
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", closed(f"unix://{tmp_path}/none")), timeout=30)
