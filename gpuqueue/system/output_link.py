"""What a link to a log may replace: the rule of the submit and of the job's first process. Standard library only."""

from __future__ import annotations

import os
import re

#: Where the link to the log of a run leads.
_LOG = re.compile(r".*/[0-9]{1,18}/[0-9]{1,9}\.[0-9a-z]{1,64}/(log|stderr)", re.DOTALL)


def is_free(path: str) -> bool:
    """Return whether a link to a log may have the name *path*: nothing is there but the link to the log of a run."""
    try:
        return bool(_LOG.fullmatch(os.readlink(path)))  # noqa: PTH115 - where pathlib is not loaded
    except OSError:
        return not os.path.lexists(path)
