"""Staying with jobs up to their ends, whichever words name them."""

from __future__ import annotations

from gpuqueue.client.asking import Asking
from gpuqueue.client.choosing import Choosing
from gpuqueue.client.waiting import Waiting


class Staying(Choosing, Waiting, Asking):
    """Waits for the jobs that are meant, and asks how the members of arrays ended."""
