"""The entry in PYTHONPATH that brings gpuqueue's hook into a job's own Python. Standard library only.

The worker adds it (``environment.py``), and a launcher that starts signed jobs only permits it.
"""

from __future__ import annotations

import os
from pathlib import Path

#: The directory of the hook that runs inside the job's own Python.
INSIDE = Path(__file__).parent.parent / "inside" / "site"


def with_hook(pythonpath: str) -> str:
    """Return *pythonpath*, which may be empty, with the hook's directory first.

    An empty PYTHONPATH adds no empty entry, because Python reads that as the current directory.
    """
    entries = [entry for entry in pythonpath.split(os.pathsep) if entry != str(INSIDE)]
    return os.pathsep.join([str(INSIDE), *entries]) if any(entries) else str(INSIDE)
