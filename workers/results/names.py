"""The names of the files of results. Standard library only."""

from __future__ import annotations

import os

#: The files in a run directory: the results that were packed after the run, or the reason why they were not.
RESULTS, FAILED = "results.tar", "results.failed"
#: The directory in the state directory with a file for each run whose results or logs are still to be delivered.
DELIVERIES = "deliveries"


def is_pending(state_dir: str | os.PathLike[str], job: str, token: str) -> bool:
    """Return whether something of the run *token* of the job is still to be delivered."""
    return os.path.lexists(os.path.join(state_dir, DELIVERIES, f"{job}.{token}"))
