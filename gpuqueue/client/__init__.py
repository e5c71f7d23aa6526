"""The front door: what people and programs do with the queue and its history.

    >>> from gpuqueue import Client
    >>> client = Client()
    >>> job = client.submit("train.py", ["--epochs", "5"], mem="6G")
    >>> record = client.wait(job.id)
    >>> record.job.state, record.last_run.peak_bytes

The command line is a thin layer over this class; both speak in the same frozen values. Connections are made
when they are first needed: a submit never touches SQL.
"""

from __future__ import annotations

from gpuqueue.client.changing import Changing
from gpuqueue.client.estimating import Estimating
from gpuqueue.client.marking import Marking
from gpuqueue.client.retrying import Retrying
from gpuqueue.client.watching import Watching

__all__ = ["Client"]


class Client(Retrying, Watching, Changing, Marking, Estimating):
    """One user's view of one queue. Every method may raise StoreUnreachable or BookUnreachable."""
