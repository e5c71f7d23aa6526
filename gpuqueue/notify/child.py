"""The process that sends one message. Only this module uses Apprise.

Each message has a process of its own, so that a plugin that hangs, leaks or crashes affects only that message. The
process reads one JSON object from standard input (``url``, ``title``, ``body``, ``good``, ``limit_s``) and writes one
with ``trouble``, which is null if the message was sent. Without ``url`` it writes the known ``schemes``. Secrets travel
on standard input, because all users of the host can read command line arguments.
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

#: The error for a URL that no plugin handles.
NO_SCHEME = "Apprise knows no such scheme"
#: Parts of a URL shorter than this are not treated as secrets, in characters.
_LEAST = 4


def main() -> None:
    """Read the request from standard input, handle it and write the answer."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of plugins must not mix with the answer
    asked = json.load(sys.stdin)
    signal.alarm(int(asked["limit_s"]) + 1)  # ends this process even if its parent is gone
    answer = {"trouble": _sent(asked)} if "url" in asked else {"schemes": _schemes()}
    json.dump(answer, out)
    out.flush()
    os._exit(0)  # does not wait for threads of a plugin, which may hang


def _schemes() -> list[str]:
    from apprise import NotificationManager  # noqa: PLC0415 - an optional and slow dependency

    return sorted(NotificationManager().schemas())


def _sent(asked: dict[str, Any]) -> str | None:
    """Send the message. Return why it was not sent, or None if it was."""
    try:
        import apprise  # noqa: PLC0415 - an optional and slow dependency
    except ImportError:
        return "Apprise is not installed here: pip install '.[notify]' in a clone"
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logger = logging.getLogger("apprise")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    # Without threads and key generation, so that this process leaves nothing behind.
    asset = apprise.AppriseAsset(
        app_id="gpuqueue", app_desc="gpuqueue", app_url="", async_mode=False, pgp_autogen=False, pem_autogen=False
    )
    if asked["url"].partition("://")[0].lower() not in _schemes():
        return NO_SCHEME
    target = apprise.Apprise.instantiate(asked["url"], asset=asset, suppress_exceptions=True)
    if target is None:
        return f"its URL cannot be read: {_words(output.getvalue(), asked['url']) or 'no such scheme'}"
    kind = apprise.NotifyType.SUCCESS if asked["good"] else apprise.NotifyType.FAILURE
    sender = apprise.Apprise(asset=asset)
    sender.add(target)
    if sender.notify(body=asked["body"], title=asked["title"], notify_type=kind, body_format=apprise.NotifyFormat.TEXT):
        return None
    return _words(output.getvalue(), asked["url"]) or "it was refused, without a reason"


def _words(output: str, url: str) -> str:
    """Return Apprise's output *output* without the parts of *url* that may be secrets."""
    text = " ".join(output.split())
    host = re.sub(r"^.*@", "", url.partition("://")[2]).split("/")[0]
    text = text.replace(url, "…")
    for part in sorted(re.split(r"[/:@?&=,]+", url), key=len, reverse=True):
        if len(part) >= _LEAST and part not in host.split(":")[:1] and part not in url.partition("://")[:1]:
            text = text.replace(part, "…")
    return text


if __name__ == "__main__":
    main()
