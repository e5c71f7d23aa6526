"""The process that sends one message. Only this module uses Apprise.

Each message has a process of its own, so that a plugin that hangs, leaks or crashes affects only that message. The
process reads one JSON object from standard input (``url``, ``title``, ``body``, ``good``, ``limit_s``) and writes one
with ``trouble``, which is null if the message was sent. Without ``url`` it writes the known ``schemes``. Secrets travel
on standard input, because all users of the host can read command line arguments.

With ``networks`` the URL is that of a user: the process then connects to public addresses and to these networks only.
"""

from __future__ import annotations

import io
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any

from gpuqueue.errors import install_extra

#: The error for a URL that no plugin handles.
NO_SCHEME = "Apprise knows no such scheme"
#: The error for the URL of a user that leads to an address which is neither public nor permitted by the site.
NOT_PUBLIC = "it leads to an address that is not public, and the site does not permit its network (notify_networks)"
#: Parts of a URL shorter than this are not treated as secrets, in characters.
_LEAST = 4
#: The prefix of IPv6 addresses behind which a gateway reaches those of IPv4 (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: The events of Python before a packet is sent. Their second argument is the address.
_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


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
        return f"Apprise is not installed here: {install_extra('notify')}"
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logger = logging.getLogger("apprise")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    guard = Guard(asked["networks"]) if "networks" in asked else None
    if guard is not None:
        sys.addaudithook(guard)  # for the rest of this process: a hook cannot be removed
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
    if guard is not None and guard.has_refused:
        return NOT_PUBLIC
    return _words(output.getvalue(), asked["url"]) or "it was refused, without a reason"


class Guard:
    """Refuses each connection to an address that is not public, unless it is in one of *networks*.

    It is called at each connection, with the address in place of the name. So neither a redirect nor a name whose
    address changes leads past it.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(each) for each in networks]
        self._is_probing = False
        self.has_refused = False

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        """Handle an event of Python.

        Raises:
            PermissionError: the address of the connection is not permitted.

        """
        if event not in _CONNECTS or self._is_probing or values[1] is None:  # None: it is connected, so was checked
            return
        if values[0].family not in {socket.AF_INET, socket.AF_INET6} or not self.permits(values[1][0]):
            self.has_refused = True
            raise PermissionError(NOT_PUBLIC)

    def permits(self, host: str) -> bool:
        """Return whether connections to *host* are permitted. A name is not: it would get its address afterwards."""
        try:
            address = _plain(ipaddress.ip_address(host))
        except ValueError:
            return False
        if any(address in network for network in self._networks):
            return True
        return _is_public(address) and not self._is_own(address)

    def _is_own(self, address: _Address) -> bool:
        """Return whether *address* is one of this machine, where more may listen than its firewall lets through."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - the version of IP
        self._is_probing = True
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((str(address), 9))  # sends nothing: the kernel only chooses the address of this end
                return str(probe.getsockname()[0]) == str(address)
        except OSError:
            return False
        finally:
            self._is_probing = False


def _plain(address: _Address) -> _Address:
    """Return the address of IPv4 that *address* stands for, if it is one of IPv6 that stands for one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or address.sixtofour is not None):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


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
