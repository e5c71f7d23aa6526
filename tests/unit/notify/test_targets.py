"""The URLs to which notifications are sent."""

from __future__ import annotations

import os

import pytest

from gpuqueue.errors import Refused
from gpuqueue.model.notification import Notification
from gpuqueue.notify.targets import url_of
from gpuqueue.settings.settings import Settings

SITE = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_NOTIFY": "team=tgram://bot/chat?template=/etc/own.json"})


@pytest.mark.parametrize("name", ["template", "Template", "keyfile", "subfile", "pgpkey", "pgppub", "pgpprv"])
def test_a_url_of_a_job_names_no_file(name: str) -> None:
    """The account of the sender would open it, and that account has the key of the service. A site's own target may."""
    with pytest.raises(Refused, match="a URL of a job cannot name a file"):
        url_of(Notification(f"tgram://bot/chat?format=text&{name}=/etc/gpuqueue/ticket-key"), SITE)

    assert "tgram://bot/chat?format=text" == url_of(Notification("tgram://bot/chat?format=text"), SITE)
    assert "tgram://bot/chat?template=/etc/own.json" == url_of(Notification("team"), SITE)
