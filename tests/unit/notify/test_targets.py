"""The URLs to which notifications are sent, and the process that sends them."""

from __future__ import annotations

import os

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.notification import Notification
from gpuqueue.notify.targets import networks_of, url_of
from gpuqueue.settings.settings import Settings

OPENS_FILE = "tgram://1:abc/5?verify=no;template=/etc/own.json"


def _settings(**given: str) -> Settings:
    environ = {f"GPUQUEUE_{name.upper()}": value for name, value in given.items()}
    return Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_NOTIFY": f"team={OPENS_FILE}", **environ})


def test_where_jobs_have_other_accounts_their_urls_are_made_anew() -> None:
    """The account that sends must open no file for a user. A target of the site may name one, with Apprise in full."""
    site = _settings(run_as="submitter")

    with pytest.raises(BadRequest, match="the query of this URL is not permitted in a job: write tgram://BOT-TOKEN"):
        url_of(Notification(OPENS_FILE), site)
    assert "tgram://1:abc/%40chat" == url_of(Notification("TGRAM://1:abc/@chat"), site)
    assert OPENS_FILE == url_of(Notification("team"), site)


def test_a_persons_own_account_opens_any_url() -> None:
    """Without other accounts, a URL reaches Apprise as it was written, and this account sends it."""
    own = _settings()

    for to in (OPENS_FILE, "form://host/x?attach=/etc/own.json"):
        assert to == url_of(Notification(to), own)
        assert networks_of(Notification(to), own) is None


def test_the_notifier_sends_only_urls_of_users() -> None:
    """It gets the networks of the setting. Targets and mail addresses are sent with the accounts of the site."""
    site = _settings(run_as="submitter")
    with_networks = _settings(run_as="submitter", notify_networks="10.1.0.0/16, 127.0.0.1")

    assert () == networks_of(Notification("json://host"), site)
    assert ("10.1.0.0/16", "127.0.0.1/32") == networks_of(Notification("json://host"), with_networks)
    assert [None, None] == [networks_of(Notification(to), with_networks) for to in ("team", "ann@e.org")]
