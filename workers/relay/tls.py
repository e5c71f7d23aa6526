"""Which certificates of the service a worker host trusts."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

from gpuqueue.errors import BadRequest


def context_of(ca: Path | None) -> ssl.SSLContext:
    """Return what TLS needs: with *ca* only the authorities in that file are trusted.

    Raises:
        BadRequest: The file cannot be used.

    """
    try:
        return _cached(ca, None if ca is None else ca.stat().st_mtime_ns)
    except OSError as error:
        why = error.strerror or "it has no certificate"
        raise BadRequest(f"the file {ca} of the setting service_ca cannot be used: {why}") from error


@functools.lru_cache(maxsize=2)
def _cached(ca: Path | None, _mtime_ns: int | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=None if ca is None else str(ca))
