"""Ends the wait for a PostgreSQL that is there and says nothing: stopped, swapped out, behind a cut wire.

No setting of the driver does: ``connect_timeout`` ends with the connection, ``statement_timeout`` is the server's own,
and the kernel of a stopped server still acknowledges every packet.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event, exc

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long a transaction of ours may take, in seconds. A batch takes milliseconds, a long history a few seconds.
ANSWER_S = 30.0
#: How long a connection that was used before may take to say that it still is one, in seconds.
PING_S = 10.0


class Late(Exception):
    """The server has said nothing for too long, and the connection was given up."""


@contextlib.contextmanager
def bounded(driver_connection: Any, limit_s: float) -> Iterator[None]:
    """Give up *driver_connection* if what is done with it takes longer than *limit_s*.

    Raises:
        Late: it did. Whether a commit was done then is not known.

    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(driver_connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)  # whoever waits for a word on it hears its end

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if late.is_set():
            raise Late(f"no answer within {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()


def asking(engine: sa.Engine) -> sa.Engine:
    """Have each connection asked before its use: a server that was restarted leaves dead ones in the pool."""

    @event.listens_for(engine, "checkout")
    def _ask(connection: Any, _record: Any, _proxy: Any) -> None:
        try:
            with bounded(connection, PING_S):
                engine.dialect.do_ping(connection)
        except Exception as error:
            raise exc.DisconnectionError(str(error)) from error

    return engine
