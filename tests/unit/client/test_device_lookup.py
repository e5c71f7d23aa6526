"""Tests of the lookup of devices by the names that a user types."""

from __future__ import annotations

import pytest
from factories import make_device, make_status

from gpuqueue.client.devices import named
from gpuqueue.errors import BadRequest
from gpuqueue.queue.lease import DeviceStatus


def status(host: str, index: int, uuid: str) -> DeviceStatus:
    """Return a device with these names; its other fields do not matter."""
    return make_status(device=make_device(uuid, index=index), host=host)


FOUND = [
    status("a", 0, "GPU-1111-a"),
    status("a", 1, "GPU-1112-b"),
    status("a", 10, "GPU-1112-bc"),
    status("b", 0, "GPU-2222-d"),
    status("b", 7, "GPU-3333-e"),
    status("b", 7, "MIG-4444-f"),
]


def chosen(*names: str, host: str = "a", all_here: bool = False) -> list[str]:
    """Return the UUIDs that *names* select."""
    return [each.device.uuid for each in named(FOUND, names, host=host, all_here=all_here)]


@pytest.mark.parametrize(
    ("names", "uuids"),
    [
        (("0",), ["GPU-1111-a"]),
        (("1",), ["GPU-1112-b"]),
        (("b:0",), ["GPU-2222-d"]),
        (("a:10", "0"), ["GPU-1112-bc", "GPU-1111-a"]),
        (("GPU-2",), ["GPU-2222-d"]),
        (("GPU-1112-b",), ["GPU-1112-b"]),  # a whole UUID that is the prefix of another UUID
        (("MIG-4444-f", "MIG"), ["MIG-4444-f"]),
        (("0", "a:0", "GPU-1111"), ["GPU-1111-a"]),
    ],
)
def test_an_index_a_place_or_a_uuid_names_a_device(names: tuple[str, ...], uuids: list[str]) -> None:
    """An index, a place or a UUID prefix selects a device. Each device is listed once, in the order of the names."""
    assert uuids == chosen(*names)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("2",), "there is no device '2'"),
        (("0", "c:0"), "there is no device 'c:0'"),
        ((":0",), "there is no device ':0'"),
        (("a:",), "there is no device 'a:'"),
        (("a:-1",), "there is no device"),
        (("²",), "there is no device"),
        (("",), "there is no device ''"),
        (("gpu-1111",), "there is no device"),
        (("GPU-1112",), "'GPU-1112' could be GPU-1112-b or GPU-1112-bc: give more of the UUID"),
        (("GPU",), "could be GPU-1111-a or GPU-1112-b or GPU-1112-bc, …: "),
        (("b:7",), "'b:7' could be GPU-3333-e or MIG-4444-f"),
        ((), "name the devices"),
    ],
)
def test_what_names_no_device_or_several_is_refused(names: tuple[str, ...], line: str) -> None:
    """An unknown or ambiguous name is refused, in one line that says what to do."""
    with pytest.raises(BadRequest, match=line.replace("(", r"\(").replace("²", ".")) as reported:
        chosen(*names)

    assert "\n" not in str(reported.value)


def test_all_means_this_host_s() -> None:
    """`all_here` selects every device of this host.

    It cannot be combined with names, and an empty result is an error.
    """
    assert ["GPU-2222-d", "GPU-3333-e", "MIG-4444-f"] == chosen(host="b", all_here=True)
    with pytest.raises(BadRequest, match="not both"):
        chosen("0", all_here=True)
    with pytest.raises(BadRequest, match="no worker has announced a device of c"):
        chosen(host="c", all_here=True)
