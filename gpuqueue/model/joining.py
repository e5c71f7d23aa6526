"""What a worker host and the service of its site exchange when the host joins. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from gpuqueue.lazy.frozen import dataclass

#: The settings that must have the same values on all hosts of a site: fields of the settings and of HostSettings.
#: Leases and heartbeats are judged by other hosts, and a host must not send more of a log than the service stores.
SHARED = ("host_lost_after_s", "heartbeat_s", "loss_limit", "on_partition", "log_limit_bytes")

#: The WebSockets by which a host reaches the store: their path below that of the API, the header that names the host
#: whose token opened one, and the most bytes of one message.
STORE_PATH, HOST_HEADER, MAX_MESSAGE_BYTES = "/host/store", "gpuqueue-host", 256 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSettings:
    """What a worker host has in common with its site: the settings that all hosts need, and what the site knows of it.

    ``host`` is the name of the host, from its token, and ``token_expires_at`` None if the token does not expire.
    ``group`` has the people who may run jobs; None if the site has no such group.
    """

    host: str
    version: str
    now: datetime
    token_expires_at: datetime | None
    group: str | None
    host_lost_after_s: float
    heartbeat_s: float
    loss_limit: int
    on_partition: str
    log_limit_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinRequest:
    """A host that joins. With ``dry_run`` it gets no password, and is not recorded."""

    version: str
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """What a host that joins gets. ``redis_url`` is the store's address with its password, if hosts connect to it.

    It is empty in a dry run, and where hosts reach the store through the service.

    ``redis_ca`` is the certificate (PEM) of the authority of the store. None: an authority that the host trusts.
    """

    settings: HostSettings
    redis_url: str = field(default="", repr=False)
    redis_ca: str | None = None


def fit(one: str, other: str) -> bool:
    """Return whether hosts of these two versions can work for one site: the major and the minor number are the same."""
    return one.split(".")[:2] == other.split(".")[:2]


def common_of(shared: HostSettings) -> dict[str, object]:
    """Return what a host writes into its settings file so that it has SHARED in common with its site."""
    return {
        "host_lost_after": _duration(shared.host_lost_after_s),
        "heartbeat": _duration(shared.heartbeat_s),
        "loss_limit": shared.loss_limit,
        "on_partition": shared.on_partition,
        "log_limit": _size(shared.log_limit_bytes),
    }


def lines_of(values: Mapping[str, object]) -> str:
    """Return lines of a settings file."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())  # JSON's texts are also TOML's


def _duration(duration_s: float) -> str:
    return f"{duration_s:.3f}".rstrip("0").rstrip(".") + "s"


def _size(size_bytes: int | None) -> str:
    return "none" if size_bytes is None else f"{size_bytes / 2**20!r}M".replace(".0M", "M")
