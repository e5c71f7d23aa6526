"""Refuses the commands about a queue of one's own where this machine has a queue for everybody."""

from __future__ import annotations

from gpuqueue.errors import Refused
from gpuqueue.settings.settings import SYSTEM_SOCKET, Settings

#: How the administrator runs a command for the machine's queue (``gpuqueue install`` makes accounts and files), and for
#: its workers.
_AS_SERVICE = "sudo -u gpuqueue env GPUQUEUE_CONFIG=/etc/gpuqueue/config.toml gpuqueue"
_AS_WORKERS = "sudo -u gpuqueue-workers env GPUQUEUE_CONFIG=/etc/gpuqueue/workers.toml gpuqueue"


def refuse_beside_service(settings: Settings, command: str) -> None:
    """Check that *command* is about a queue that the settings name, not about the one of this machine's service.

    Without this, a person on such a machine would start a second queue beside it, whose workers use the same devices.

    Raises:
        Refused: this machine has a service, and the settings name no other store or state directory.

    """
    if not settings.url and settings.client_url is not None:
        program = _AS_WORKERS if command == "down" else _AS_SERVICE
        raise Refused(
            f"this machine has a queue for everybody (service at {SYSTEM_SOCKET}), and gpuqueue {command} is for its "
            f"administrator: {program} {command}. For a queue of your own, set GPUQUEUE_STATE_DIR"
        )


def how_to_start(settings: Settings) -> str:
    """Return what a person does about a queue without workers: only the administrator starts those of a service."""
    return "start one with gpuqueue up" if settings.client_url is None else "ask the administrator to start one"
