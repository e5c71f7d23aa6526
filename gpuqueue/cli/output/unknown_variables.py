"""The warning about environment variables that look like settings and have no effect."""

from __future__ import annotations

from gpuqueue.console import print_message
from gpuqueue.settings.sources import unknown_variables


def warn_of_unknown_variables() -> None:
    """Print one line for each variable ``GPUQUEUE_…`` that is no setting, such as a misspelled one."""
    for name, hint in unknown_variables().items():
        print_message("gpuqueue", f"warning: {name} is no setting and has no effect: {hint}")
