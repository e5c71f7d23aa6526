"""The names of the files of results. Standard library only."""

from __future__ import annotations

#: The files in a run directory: the results that were packed after the run, or the reason why they were not.
RESULTS, FAILED = "results.tar", "results.failed"
