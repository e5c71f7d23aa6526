"""Finds devices by the names that users type. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.queue.lease import DeviceStatus

#: The largest number of candidates that an error names.
NAMED = 3


def named(
    found: Sequence[DeviceStatus], names: Sequence[str], *, host: str, all_here: bool = False
) -> list[DeviceStatus]:
    """Return the devices of *found* that match *names*, each once, in the order of the names.

    A name is an index on *host*, ``HOST:INDEX``, a UUID or a prefix of one. *all_here* selects all devices of *host*.

    Raises:
        BadRequest: a name matches no device or several, or not exactly one of *names* and *all_here* is given.

    """
    if all_here and names:
        raise BadRequest("name the devices, or use --all for those of this host: not both")
    if not all_here and not names:
        raise BadRequest("name the devices (an index, HOST:INDEX or a UUID), or use --all for those of this host")
    if all_here:
        here = [each for each in found if each.host == host]
        if not here:
            raise BadRequest(f"no worker has announced a device of {host}: see gpuqueue gpus")
        return here
    meant = [_named(found, name, host) for name in names]
    return list({each.device.uuid: each for each in meant}.values())


def _named(found: Sequence[DeviceStatus], name: str, host: str) -> DeviceStatus:
    where, colon, index = name.rpartition(":")
    if index.isascii() and index.isdigit() and (where or not colon):
        place = where or host
        fitting = [each for each in found if each.host == place and each.device.index == int(index)]
    else:
        fitting = [each for each in found if each.device.uuid == name]
        fitting = fitting or [each for each in found if name and each.device.uuid.startswith(name)]
    if not fitting:
        raise BadRequest(f"there is no device {name!r}: gpuqueue gpus lists them by host and index")
    if len(fitting) > 1:
        several = " or ".join(each.device.uuid for each in fitting[:NAMED])
        more = ", …" if len(fitting) > NAMED else ""
        raise BadRequest(f"{name!r} could be {several}{more}: give more of the UUID")
    return fitting[0]
