"""Time limits for a PostgreSQL server that does not answer: stopped, swapped out, or behind a cut wire.

No setting of the driver covers this case. ``connect_timeout`` applies only until the connection is open, the server
itself enforces ``statement_timeout``, and the kernel of a stopped server still acknowledges every packet.
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

#: Time limit of one transaction, in seconds. A batch takes milliseconds, a long history a few seconds.
ANSWER_S = 30.0
#: Time limit for the check of a pooled connection, in seconds.
PING_S = 10.0


class Late(Exception):
    """The server did not answer in time, and the connection was shut down."""


@contextlib.contextmanager
def bounded(driver_connection: Any, limit_s: float) -> Iterator[None]:
    """Shut down *driver_connection* if the work with it takes longer than *limit_s* seconds.

    Raises:
        Late: the limit was exceeded. Whether a commit succeeded is unknown.

    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(driver_connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)  # wakes a thread that is blocked on the socket

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
    """Check each pooled connection before its use: a restarted server leaves dead connections in the pool."""

    @event.listens_for(engine, "checkout")
    def _ask(connection: Any, _record: Any, _proxy: Any) -> None:
        try:
            with bounded(connection, PING_S):
                engine.dialect.do_ping(connection)
        except Exception as error:
            raise exc.DisconnectionError(str(error)) from error

    return engine
