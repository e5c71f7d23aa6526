from __future__ import annotations

import pytest

from gpuqueue.model.caller import ALL_SCOPES, Caller, CallerKind, Via, anonymous
from gpuqueue.service.identity import request_rate
from gpuqueue.service.identity.request_rate import Buckets, RequestRates, network_of


def ada(address: str = "10.0.0.7", kind: CallerKind = CallerKind.PERSON) -> Caller:
    """Return a caller with a token."""
    return Caller(account="ada", uid=1001, via=Via.TOKEN, scopes=ALL_SCOPES, address=address, kind=kind)


def granted(waits: list[float]) -> int:
    """Return how many requests did not have to wait."""
    return waits.count(0.0)


def test_an_account_has_its_rate_and_a_burst() -> None:
    """Twice the rate passes at once, then the rate. A caller that waits as long as requested passes."""
    rates = RequestRates(per_account=10, per_address=None)

    assert 20 == granted([rates.after(ada(), 0.0) for _ in range(50)])
    wait_s = rates.after(ada(), 0.0)
    assert wait_s == pytest.approx(0.1)
    assert 0.0 == rates.after(ada(), wait_s)
    assert 10 == granted([rates.after(ada(), 1.1) for _ in range(50)])


def test_accounts_do_not_share_a_limit() -> None:
    """One account that calls too often slows down no other, nor a host of that name, wherever they call from."""
    rates = RequestRates(per_account=1, per_address=1)
    while not rates.after(ada(), 0.0):
        pass

    assert rates.after(ada("10.0.0.8"), 0.0) > 0
    bob = Caller(account="bob", uid=1002, via=Via.TOKEN, address="10.0.0.7")
    assert 0.0 == rates.after(bob, 0.0)
    assert 0.0 == rates.after(ada(kind=CallerKind.HOST), 0.0)


def test_a_host_has_a_limit_of_its_own_and_none_for_bytes() -> None:
    """It delivers the logs of many runs. What it may deliver is limited for each run."""
    rates = RequestRates(per_account=1, per_address=1, per_host=50, bytes_per_account=1, burst_bytes=1)
    host = ada(kind=CallerKind.HOST)

    assert 100 == granted([rates.after(host, 0.0) for _ in range(200)])
    assert [0.0, 0.0] == [rates.sent(host, 0.0, 10**9) for _ in range(2)]


def test_tokens_that_are_not_valid_are_limited_by_address() -> None:
    """After too many of them, an address is not even looked up, and others are."""
    rates = RequestRates(per_account=None, per_address=5)
    assert 10 == granted([rates.failed("10.0.0.7", 0.0) for _ in range(30)])

    assert rates.before("10.0.0.7", 0.0) == pytest.approx(0.2)
    assert 0.0 == rates.before("10.0.0.8", 0.0)
    assert rates.after(anonymous("10.0.0.7"), 0.0) > 0
    assert 0.0 == rates.before("10.0.0.7", 0.2)
    assert 0.0 == rates.before("10.0.0.7", 0.2), "looking takes nothing"


def test_bytes_of_an_account_are_limited() -> None:
    """An account sends its bytes per second. One request larger than the burst passes, and is paid for afterwards."""
    rates = RequestRates(per_account=None, per_address=None, bytes_per_account=100, burst_bytes=1000)

    assert 0.0 == rates.sent(ada(), 0.0, 2000)
    assert rates.sent(ada(), 0.0, 1) == pytest.approx(10.01)
    assert 0.0 == rates.after(ada(), 0.0)
    assert 0.0 == rates.sent(ada(), 10.01, 1)


def test_no_limit_is_no_limit() -> None:
    """With None, nobody waits."""
    rates = RequestRates(per_account=None, per_address=None)
    assert 1000 == granted([rates.after(ada(), 0.0) for _ in range(1000)])


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    """A smaller time than the last one counts as no time."""
    buckets = Buckets(1)
    assert [0.0, 0.0] == [buckets.wait_s("x", 10.0), buckets.wait_s("x", 10.0)]
    assert buckets.wait_s("x", 0.0) > 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many addresses call, only so many are counted."""
    monkeypatch.setattr(request_rate, "_MOST", 10)
    buckets = Buckets(1)
    for number in range(100):
        buckets.wait_s(str(number), 0.0)
    assert 10 == len(buckets._left)


def test_addresses_with_valid_tokens_take_no_memory() -> None:
    """The check before a token is looked up stores nothing, however many addresses call."""
    rates = RequestRates(per_account=None, per_address=1)
    for number in range(100):
        assert 0.0 == rates.before(f"10.0.0.{number}", 0.0)
    assert 0 == len(rates._addresses._left)


def test_an_address_that_goes_on_calling_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other addresses cannot push out one that must wait and asks again: it would start with a full bucket."""
    monkeypatch.setattr(request_rate, "_MOST", 10)
    rates = RequestRates(per_account=None, per_address=1)
    while not rates.failed("10.0.0.7", 0.0):
        pass
    for number in range(100):
        assert rates.before("10.0.0.7", 0.0) > 0
        rates.failed(f"10.0.1.{number}", 0.0)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("pid 12", "pid 12"),
    ],
)
def test_one_network_is_one_caller(address: str, name: str) -> None:
    """A machine cannot escape its limit by its other IPv6 addresses."""
    assert name == network_of(address)
