"""The ``Client`` class: the whole Python API in one class."""

from __future__ import annotations

from gpuqueue.client.changing import Changing
from gpuqueue.client.estimating import Estimating
from gpuqueue.client.marking import Marking
from gpuqueue.client.retrying import Retrying
from gpuqueue.client.watching import Watching


class Client(Retrying, Watching, Changing, Marking, Estimating):
    """A client of one queue, for one user. Every method may raise StoreUnreachable or HistoryUnreachable."""
