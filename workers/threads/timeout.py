"""Looks that may never end, as those on a file server that has died: whoever asks is not kept."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: What ends a program in time, and starts it: to start one that lies there would keep us as well.
TIMEOUT = shutil.which("timeout") or "/usr/bin/timeout"
#: Most looks that may be without an end at the same time. As long as there are so many, none is begun.
MOST = 32
_room = threading.BoundedSemaphore(MOST)


def in_time(ask: Callable[[], T], limit_s: float) -> T | None:
    """Return what *ask* returns, None where that takes longer than *limit_s*. Its thread stays until it has an end.

    What it raises is raised.
    """
    room = _room
    if not room.acquire(blocking=False):
        return None
    found: list[T] = []
    raised: list[Exception] = []
    done = threading.Event()

    def look() -> None:
        try:
            found.append(ask())
        except Exception as error:  # noqa: BLE001 - raised where somebody hears it
            raised.append(error)
        finally:
            done.set()
            room.release()

    try:
        threading.Thread(target=look, name="gpuqueue-look", daemon=True).start()
    except RuntimeError:  # the host has no thread to give
        room.release()
        return None
    if not done.wait(limit_s):
        return None
    if raised:
        raise raised[0]
    return found[0]
