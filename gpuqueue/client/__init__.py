"""The Python API of the queue and its history.

    >>> from gpuqueue import Client
    >>> client = Client()
    >>> job = client.jobs.submit("train.py", ["--epochs", "5"], mem="6G")
    >>> record = client.jobs.wait(job.id)
    >>> record.job.state, record.last_run.peak_bytes

The command line is a thin layer over ``Client`` and uses the same frozen values. A ``Client`` opens each
connection on first use. A submit never touches SQL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuqueue.client.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    # Lazy: a command that needs one module of this package imports only that module.
    if name != "Client":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("gpuqueue.client.client").Client
