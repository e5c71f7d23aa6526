"""The options of an executor: the values of a request, without those that the executor decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuqueue.lazy.frozen import defaults_of
from gpuqueue.model.job_request import JobRequest

#: The fields of a request that the executor decides.
_OURS = frozenset({"command", "args", "array", "sweep", "each_line", "dedupe", "given_in", "probe"})


def defaults() -> Mapping[str, Any]:
    """Return the names of the options with their defaults."""
    return {name: default for name, default in defaults_of(JobRequest).items() if name not in _OURS}
