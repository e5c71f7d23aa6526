from __future__ import annotations

from gpuqueue.service.peer_protocol import Connections


def test_connections_are_counted_by_peer() -> None:
    """Each peer has a count of its own, which falls when a connection ends. Peers without one take no memory."""
    counted = Connections(2)

    assert [1, 2, 1, 3] == [counted.opened(each) for each in ("ann", "ann", "bob", "ann")]
    for each in ("ann", "ann", "bob"):
        counted.closed(each)
    assert 2 == counted.opened("ann")
    for each in ("ann", "ann"):
        counted.closed(each)
    assert {} == dict(counted._open)
