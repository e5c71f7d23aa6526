"""The addresses that the process which sends to URLs of users connects to."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from gpuqueue.notify.child import Guard

CLOSED = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",  # noqa: S104 - an address to refuse
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "239.1.2.3",
    "255.255.255.255",
    "240.0.0.1",
    "192.0.2.1",
    "::1",
    "::",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.1.2.3",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "fc00::1",
    "fd12:3456::1",
    "ff02::1",
    "2001:db8::1",
    "localhost",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "",
]
OPEN = ["9.9.9.9", "203.0.114.1", "2620:fe::fe", "::ffff:9.9.9.9", "64:ff9b::909:909"]


@pytest.mark.parametrize("host", CLOSED)
def test_what_is_not_public_is_refused(host: str) -> None:
    """Also where an address of IPv6 stands for one of IPv4, and a name, which is resolved after the check."""
    assert not Guard([]).permits(host)


@pytest.mark.parametrize("host", OPEN)
def test_what_is_public_is_permitted(host: str) -> None:
    """Public addresses need no setting."""
    assert Guard([]).permits(host)


def test_the_site_permits_networks() -> None:
    """Each network of the setting is permitted, in each form of its addresses, and no other one."""
    guard = Guard(["10.1.0.0/16", "fd00::/8"])

    assert [True, True, True, False, False] == [
        guard.permits(each) for each in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "10.2.0.1", "127.0.0.1")
    ]


def test_an_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public address of this machine leads to what listens here, past its firewall."""
    monkeypatch.setattr("gpuqueue.notify.child._is_public", lambda _: True)

    assert not Guard([]).permits("127.0.0.1")


@pytest.mark.parametrize(
    "act",
    [
        "socket.create_connection(('localhost', {port}), 5)",
        "socket.create_connection(('127.1', {port}), 5)",
        "socket.socket().connect(('localhost', {port}))",
        "socket.socket().connect_ex(('127.0.0.1', {port}))",
        "socket.socket(socket.AF_INET6).connect(('::ffff:127.0.0.1', {port}))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', {port}))",
        "socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')",
        "__import__('http.client').client.HTTPConnection('localhost', {port}).request('GET', '/')",
        "__import__('_socket').socket().connect(('127.0.0.1', {port}))",
    ],
)
def test_no_way_of_python_leads_past_the_guard(act: str) -> None:
    """The guard is called below all modules, with the address that the kernel gets. Nothing arrives."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        script = (
            "import socket, sys; from gpuqueue.notify.child import Guard; guard = Guard([]); sys.addaudithook(guard)\n"
            f"try:\n    {act.format(port=server.getsockname()[1])}\n"
            "except PermissionError:\n    print('refused', guard.has_refused)"
        )

        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

        assert "refused True\n" == done.stdout
        with pytest.raises(BlockingIOError):
            server.accept()
