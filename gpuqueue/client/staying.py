"""Waits for jobs that are selected by any kind of name."""

from __future__ import annotations

from gpuqueue.client.asking import Asking
from gpuqueue.client.choosing import Choosing
from gpuqueue.client.waiting import Waiting


class Staying(Choosing, Waiting, Asking):
    """Waits for selected jobs, and queries the history for the endings of array members."""
