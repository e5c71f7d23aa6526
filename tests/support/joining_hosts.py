"""A worker host that joins a service, and what the service says to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from gpuqueue.installation.site import SystemSite
from gpuqueue.installation.steps import Joining
from gpuqueue.model.joining import SHARED, HostSettings, Joined
from gpuqueue.settings.settings import Settings
from gpuqueue.version import VERSION

HOST = SystemSite(account="gpuqueue", group="lab", programs=Path("/opt/gpuqueue/bin"), serves=False)
STORE = 'rediss://gpuqueue:p%40ss"\\word@store.lab:6379/0'
URL = "https://gpu.example.org:8443"


def make_joining(
    ca: str | None = "PEM", redis_ca: str | None = "PEM", store: str = STORE, shared: Mapping[str, object] | None = None
) -> Joining:
    """Return what a host gets from a service with these settings."""
    here = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_REDIS_URL": STORE})
    common = {name: getattr(here, name) for name in SHARED}
    found = HostSettings(
        host="nodeB",
        version=VERSION,
        now=datetime.now(timezone.utc),
        token_expires_at=None,
        group="lab",
        **{**common, "on_partition": "stop", **(shared or {})},
    )
    return Joining(url=URL, token="gq_secret", ca=ca, found=Joined(settings=found, redis_url=store, redis_ca=redis_ca))
