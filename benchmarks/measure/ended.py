"""A process that is waited for, and killed if it does not end: to the moment, since it is what is timed.

``subprocess`` with a ``timeout`` looks again and again, in the end every 50 ms: what takes 40 ms took 64 by it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any


@contextmanager
def patient(words: Sequence[str], *, patience_s: float, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Give the process of *words*, in text, and wait for its end. *more* is for ``Popen``.

    Raises:
        TimeoutError: it had to be killed, after *patience_s*.

    """
    with subprocess.Popen(words, text=True, **more) as process:
        killed: list[bool] = []

        def kill() -> None:
            killed.append(True)
            process.kill()

        watch = Timer(patience_s, kill)
        watch.start()
        try:
            yield process
            process.wait()
        finally:
            watch.cancel()
    if killed:
        raise TimeoutError(f"{words[0]} did not end within {patience_s:g} s")
