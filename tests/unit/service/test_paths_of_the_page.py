"""Messages on the page name no path of the service."""

from __future__ import annotations

import asyncio
import os

import pytest

from gpuqueue.service.site import Site
from gpuqueue.settings.settings import Settings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "the history database at sqlite:////var/lib/gpuqueue/history.db cannot be opened (unable to open it)",
            "the history database at … cannot be opened (unable to open it)",
        ),
        ("the history database at sqlite:////srv/h.db is damaged", "the history database at … is damaged"),
        ("the log of job 1 is gone: /runs/1/2.ab/log; it is kept", "the log of job 1 is gone: …; it is kept"),
        ("cannot reach unix:///var/lib/gpuqueue/store/store.sock: no such file", "cannot reach …: no such file"),
        ("in /var/lib/gpuqueue: x.", "in …: x."),
        ("there is no /home/ada/var/lib/gpuqueue here", "there is no /home/ada/var/lib/gpuqueue here"),
        ("there is no /var/lib/gpuqueues here", "there is no /var/lib/gpuqueues here"),
        ("there is no directory /home/ada/runs", "there is no directory /home/ada/runs"),
    ],
)
def test_a_message_names_no_path_of_the_service(text: str, shown: str) -> None:
    """Paths of the people stay, for they are in what they have asked for."""

    async def answered() -> str:
        site = Site(settings, identity=None)  # type: ignore[arg-type] # nobody calls
        try:
            return site.without_places(text)
        finally:
            site.close()

    settings = Settings.load(
        {
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_STATE_DIR": "/var/lib/gpuqueue",
            "GPUQUEUE_RUNS_DIR": "/runs",
            "GPUQUEUE_DATABASE_URL": "sqlite:////srv/h.db",
        }
    )
    assert shown == asyncio.run(answered())
