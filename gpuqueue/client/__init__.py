"""The Python API of the queue and its history.

    >>> from gpuqueue import Client
    >>> client = Client()
    >>> job = client.jobs.submit("train.py", ["--epochs", "5"], mem="6G")
    >>> record = client.jobs.wait(job.id)
    >>> record.job.state, record.last_run.peak_bytes

The command line is a thin layer over ``Client`` and uses the same frozen values. A ``Client`` opens each connection on
first use. A submit never touches SQL. Start reading at ``client.py``; each function group is in a module of its name.
"""

from __future__ import annotations

from gpuqueue.client.client import Client

__all__ = ["Client"]
