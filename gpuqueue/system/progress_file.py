"""The file in the directory of a run that has its progress, as the worker of the run reads it from the output.

So a command reads some bytes for each run, and no log. The file has the rights of the log. Both sides are
on one host: times are on its monotonic clock.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.model.progress import Progress, Reading
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.json_fields import loaded
from gpuqueue.text.sanitize import short

#: The name of the file, and its largest size in bytes.
NAME, MOST_BYTES = "progress", 4096
#: The file is written again after so many seconds, if anything has changed. Its time left falls as long.
RENEW_S = 10.0
#: Longest counts, in columns.
MOST_COLUMNS = 80


def written(reading: Reading) -> str:
    """Return the content of the file for what the output shows at this moment."""
    found = reading.progress
    plain = {"share": found.share, "counts": found.counts, "left_s": found.left_s, "is_sure": reading.is_sure}
    return json.dumps({**plain, "at_s": time.monotonic()})


def read(directory: Path) -> Reading | None:
    """Return what the output has shown by the run directory *directory*, or None if nothing."""
    try:
        fields = loaded(read_small(directory / NAME, MOST_BYTES), "the progress of a run")
        share, left_s = fields.number("share"), fields.number_or_none("left_s")
        counts, at_s, is_sure = fields.text("counts"), fields.number("at_s"), fields.flag("is_sure")
    except (OSError, Unreadable):  # none yet, or the job has put something else there
        return None
    if not 0 <= share <= 1:
        return None
    if left_s is not None:
        left_s = max(0.0, left_s - min(max(0.0, time.monotonic() - at_s), RENEW_S))
    return Reading(Progress(share=share, counts=short(counts, MOST_COLUMNS), left_s=left_s), is_sure=is_sure)
