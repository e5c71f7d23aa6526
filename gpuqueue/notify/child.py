"""The process that sends one message: the only place that knows Apprise.

A process of its own, because whatever a network and a hundred plugins can do (hang, leak, crash) must end with the
message. It reads one JSON object from standard input (``url``, ``title``, ``body``, ``good``, ``limit_s``) and writes
one: ``trouble``, null if it was sent. Without ``url`` it tells which ``schemes`` there are. So no secret is ever an
argument, which anybody may see.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import sys
from typing import Any

#: What is wrong with a URL that no plugin is for.
NO_SCHEME = "Apprise knows no such scheme"
#: A part of a URL that is shorter is no secret worth the name.
_LEAST = 4


def main() -> None:
    """Do what standard input says."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a plugin prints is no answer
    asked = json.load(sys.stdin)
    signal.alarm(int(asked["limit_s"]) + 1)  # also where whoever asked is gone
    answer = {"trouble": _sent(asked)} if "url" in asked else {"schemes": _schemes()}
    json.dump(answer, out)
    out.flush()
    os._exit(0)  # a plugin's thread may hang: nothing is left to be done


def _schemes() -> list[str]:
    from apprise import NotificationManager  # noqa: PLC0415 - an extra: what it costs, only this process pays

    return sorted(NotificationManager().schemas())


def _sent(asked: dict[str, Any]) -> str | None:
    """Send it; return why it was not sent, None if it was."""
    try:
        import apprise  # noqa: PLC0415 - as above
    except ImportError:
        return "Apprise is not installed here: pip install 'gpuqueue-server[notify]'"
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logger = logging.getLogger("apprise")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    # No thread, no file, no key made on the way: this process leaves nothing behind.
    asset = apprise.AppriseAsset(
        app_id="gpuqueue", app_desc="gpuqueue", app_url="", async_mode=False, pgp_autogen=False, pem_autogen=False
    )
    if asked["url"].partition("://")[0].lower() not in _schemes():
        return NO_SCHEME
    target = apprise.Apprise.instantiate(asked["url"], asset=asset, suppress_exceptions=True)
    if target is None:
        return f"its URL cannot be read: {_words(said.getvalue(), asked['url']) or 'no such scheme'}"
    kind = apprise.NotifyType.SUCCESS if asked["good"] else apprise.NotifyType.FAILURE
    sender = apprise.Apprise(asset=asset)
    sender.add(target)
    if sender.notify(body=asked["body"], title=asked["title"], notify_type=kind, body_format=apprise.NotifyFormat.TEXT):
        return None
    return _words(said.getvalue(), asked["url"]) or "it was refused, without a reason"


def _words(said: str, url: str) -> str:
    """Return the reason that was given, without any part of *url* that may be a secret."""
    text = " ".join(said.split())
    host = re.sub(r"^.*@", "", url.partition("://")[2]).split("/")[0]
    text = text.replace(url, "…")
    for part in sorted(re.split(r"[/:@?&=,]+", url), key=len, reverse=True):
        if len(part) >= _LEAST and part not in host.split(":")[:1] and part not in url.partition("://")[:1]:
            text = text.replace(part, "…")
    return text


if __name__ == "__main__":
    main()
