from __future__ import annotations

import pytest
import redis

from gpuqueue.queue.resp.connection import parsed

#: Addresses that the built-in client accepts.
TAKEN = [
    "unix:///run/s",
    "unix:///run/s?db=3",
    "unix://gq:pw@/run/a%20b?client_name=me",
    "unix:///run/s?username=gq&password=a%2Fb%25",
    "redis://h",
    "redis://h:7000/4",
    "redis://:p%40%2F%3A@h/",
    "redis://gq:pw@10.0.0.1:1/0?db=2",
    "redis://gq:pw@h?username=other&password=others",
    "redis://[::1]:6380/1",
    "redis:///2",
    "rediss://h/1?ssl_ca_certs=/ca.pem",
    "rediss://h?ssl_certfile=/c.pem&ssl_keyfile=/k.pem&ssl_password=x&ssl_ca_path=/ca",
]


@pytest.mark.parametrize("url", TAKEN)
def test_an_address_means_what_it_means_to_the_library(url: str) -> None:
    # Otherwise a job could go to different stores with the two clients.
    theirs = redis.connection.parse_url(url)

    ours = parsed(url)

    assert ours is not None
    if ours.path:
        assert theirs["path"] == ours.path
    else:
        assert (theirs.get("host", "localhost"), theirs.get("port", 6379)) == (ours.host, ours.port)
    assert int(theirs.get("db", 0)) == ours.database
    assert (theirs.get("username", ""), theirs.get("password", "")) == (ours.user, ours.password)
    assert theirs.get("client_name", "") == ours.client_name
    assert {name: value for name, value in theirs.items() if name.startswith("ssl_")} == (ours.tls or {})
    assert (ours.tls is not None) == url.startswith("rediss://")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://h",
        "unix://",
        "redis://h:port",
        "redis://h:99999",
        "redis://h/x",
        "redis://h?db=-1",
        "redis://h?db=1&db=2",
        "redis://h?password=",
        "redis://gq@h",
        "redis://h?ssl_ca_certs=/ca",
        "redis://h?protocol=3",
        "rediss://h?ssl_cert_reqs=none",
        "rediss://h?ssl_check_hostname=false",
        "redis://bücher.example",
        "redis://[::1",
        "redis://h#fragment",
    ],
)
def test_an_unsupported_address_is_left_to_the_library(url: str) -> None:
    """An address that the built-in client does not fully support is left to the redis library."""
    # This includes invalid addresses, because the library's client reports the error.
    assert parsed(url) is None
