"""Limits how often an account or an address may call. In memory: a restart of the service forgets the past."""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict

from gpuqueue.model.caller import Caller, CallerKind, Via

#: Most accounts or addresses that are counted at a time. The one that called longest ago is forgotten first.
_MOST = 10_000
#: A bucket holds the requests of this many seconds, so that a short burst does not wait.
BURST_S = 2.0
#: Leading bits of an IPv6 address that count as one caller: one machine often has all addresses of such a network.
_IPV6_PREFIX = 64


class Buckets:
    """One token bucket for each name. *rate* is in units per second; None is no limit. Threads may share it."""

    def __init__(self, rate: float | None, burst: float | None = None) -> None:
        self._rate = rate
        self._size = burst if burst is not None else (rate or 0.0) * BURST_S
        self._lock = threading.Lock()
        #: Name -> the units that are left, which may be below 0, and when.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, name: str, now_s: float, units: float = 1.0) -> float:
        """Take *units* of *name*, and return 0; or take nothing, and return after how many seconds to try again.

        More units than a full bucket holds are taken from a full one, which then is below 0 for longer.
        """
        if self._rate is None:
            return 0.0
        needed = min(units, self._size)
        with self._lock:
            left = self._now(name, now_s)
            granted = left >= needed
            self._left[name] = (left - units if granted else left, now_s)
            self._left.move_to_end(name)
            if len(self._left) > _MOST:
                self._left.popitem(last=False)
        return 0.0 if granted else (needed - left) / self._rate

    def current_wait_s(self, name: str, now_s: float) -> float:
        """Return what ``wait_s`` would return for one unit, and take nothing. A new *name* is not stored."""
        if self._rate is None:
            return 0.0
        with self._lock:
            left = self._now(name, now_s)
            if name in self._left:
                self._left.move_to_end(name)  # a caller that must wait is not forgotten because it called long ago
        return max(0.0, (min(1.0, self._size) - left) / self._rate)

    def _now(self, name: str, now_s: float) -> float:
        left, at_s = self._left.get(name, (self._size, now_s))
        return min(self._size, left + max(0.0, now_s - at_s) * (self._rate or 0.0))


class RequestRates:
    """The limits of one service. Each limit is a rate per second, or None.

    An account has *per_account* requests. An address has *per_address* requests that no account is responsible for:
    anonymous ones, and those with a token that is not valid. Users behind one proxy share its address, so the requests
    of accounts do not count there. *bytes_per_account* limits the size of all requests of an account. A worker host has
    *per_host* requests, and the limits of what it delivers are those of each run.
    """

    def __init__(
        self,
        *,
        per_account: float | None,
        per_address: float | None,
        per_host: float | None = None,
        bytes_per_account: float | None = None,
        burst_bytes: float | None = None,
    ) -> None:
        self._accounts = Buckets(per_account)
        self._addresses = Buckets(per_address)
        self._hosts = Buckets(per_host)
        self._bytes = Buckets(bytes_per_account, burst_bytes)

    def before(self, address: str, now_s: float) -> float:
        """Return how many seconds *address* must wait before its token is looked up. Counts nothing."""
        return self._addresses.current_wait_s(network_of(address), now_s)

    def failed(self, address: str, now_s: float) -> float:
        """Count a request with a token that is not valid. Return how long to wait, 0 within the limit."""
        return self._addresses.wait_s(network_of(address), now_s)

    def after(self, caller: Caller, now_s: float) -> float:
        """Count a request of *caller*. Return 0, or after how many seconds the caller may try again."""
        if caller.via is Via.ANONYMOUS:
            return self._addresses.wait_s(network_of(caller.address), now_s)
        counted = self._hosts if caller.kind is CallerKind.HOST else self._accounts
        return counted.wait_s(f"{caller.kind}:{caller.account}", now_s)

    def sent(self, caller: Caller, now_s: float, body_bytes: int) -> float:
        """Count what *caller* has sent. Return 0, or after how many seconds the caller may send more."""
        if caller.kind is CallerKind.HOST:
            return 0.0
        return self._bytes.wait_s(f"{caller.kind}:{caller.account}", now_s, float(body_bytes))


def network_of(address: str) -> str:
    """Return the name under which *address* is counted: an IPv6 address by its network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))
