"""What the shim understands of the messages of a run's guard."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest

from workers.shim import launched
from workers.shim.launched import LaunchedTree


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, LaunchedTree]]:
    """Return the guard's end of a connection, and the tree at the other end, which is read without waiting."""
    monkeypatch.setattr(launched, "wake_on", lambda _: None)  # its signal would end this process
    ours, shims = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, shims:
        yield ours, LaunchedTree(4711, 4710, shims, "/run/launcher.sock", "1.abc")


@pytest.mark.parametrize(
    ("message", "status", "cause"),
    [
        (b"ended 0 ", 0, ""),
        (b"ended -9 the host ran out of memory", -9, "the host ran out of memory"),
        (b"ended 3", 3, ""),  # of a guard from before an upgrade
    ],
)
def test_an_end_has_a_status_and_perhaps_a_cause(
    guard: tuple[socket.socket, LaunchedTree], message: bytes, status: int, cause: str
) -> None:
    """The status and the cause of an end arrive before the last process is gone."""
    sent, tree = guard
    assert tree.reap()
    sent.send(message)
    assert tree.reap()
    assert (status, cause) == (tree.status, tree.cause)
    sent.send(b"gone 2048 1.500000")
    assert not tree.reap()
    assert (2048 * 1024, 1.5) == tree.usage()
    assert not tree.lost


def test_a_guard_without_a_last_word_was_killed(guard: tuple[socket.socket, LaunchedTree]) -> None:
    """A connection that closes before the end of the run is a loss."""
    sent, tree = guard
    sent.close()

    assert not tree.reap()
    assert "the process that guards it was killed" == tree.lost


def test_the_last_words_of_a_guard_that_left_early_are_read(guard: tuple[socket.socket, LaunchedTree]) -> None:
    """A signal that the guard has not read makes the kernel report a reset before the messages: they still count."""
    sent, tree = guard
    sent.send(b"ended 0 ")
    sent.send(b"gone 2048 1.500000")
    tree.send(signal.SIGTERM)
    sent.close()

    assert not tree.reap()
    assert (0, 2048 * 1024, "") == (tree.status, tree.usage()[0], tree.lost)
