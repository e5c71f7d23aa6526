"""task-spooler from Debian: its server starts itself, and stores nothing on the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.crew import MARK, PATIENCE_S, marked, sweep
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer


@contextmanager
def task_spooler() -> Iterator[Peer]:
    """Run one server with four slots."""
    program = shutil.which("tsp")
    if program is None:
        raise NotInstalled("task-spooler")
    with tempfile.TemporaryDirectory(prefix="gq-peer-") as place:
        environ = {**os.environ, "TS_SOCKET": f"{place}/s", MARK: place, "TMPDIR": place}

        def start() -> None:
            subprocess.run([program, "-S", str(SLOTS)], env=environ, check=True, timeout=PATIENCE_S)

        start()
        try:
            yield Peer(
                name="task-spooler",
                environ=environ,
                command=[program, "/bin/true"],
                mains=lambda: [each for each in marked(place) if each.name() == "tsp" and each.ppid() == 1],
                restart=start,
            )
        finally:
            sweep(place)
