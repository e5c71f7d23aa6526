"""Parses device options into a device kind and a placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpuqueue.client import parse_dependencies, validation
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.placement import Placement, Preference


def placed(
    device: DeviceFilter | str | Sequence[str] | None,
    device_type: str | Sequence[str] | None,
    preference: Preference | str | None,
    *,
    exclusive: bool,
    sized: bool,
    uuids_of: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[DeviceFilter | None, Placement]:
    """Return the device kind that a job requests (None: unspecified), and its placement.

    *sized* says whether the job states how much memory it needs. *uuids_of* maps names of devices to UUIDs.

    Raises:
        BadRequest: a name matches no device or several, or a device kind is mixed with names.

    """
    device_filter, uuids = _which(_words("device", device), uuids_of)
    placement = Placement(
        exclusive=exclusive,
        whole=exclusive and not sized,
        models=_words("device_type", device_type),
        devices=uuids,
        preference=Preference.parse(preference) if preference is not None else None,
    )
    return device_filter, placement


def replaced(
    device: DeviceFilter | str | Sequence[str] | None,
    device_type: str | Sequence[str] | None,
    preference: Preference | str | None,
    *,
    exclusive: bool | None,
    sized: bool,
    uuids_of: Callable[[Sequence[str]], Sequence[str]],
) -> Callable[[Placement], dict[str, Any]]:
    """Return a function that maps a spec's placement to the fields of the spec that change.

    None leaves a value unchanged, ``none`` removes it. *sized* and *uuids_of* are those of :func:`placed`. The
    returned function raises BadRequest if the job would have no memory size.

    Raises:
        BadRequest: as for :func:`placed`.

    """
    said: dict[str, Any] = {}
    device_filter, uuids = _which(_words("device", device), uuids_of)
    if device is not None:
        said["devices"] = uuids
    if device_type is not None:
        models = _words("device_type", device_type)
        said["models"] = () if models == (parse_dependencies.NONE,) else models
    if preference is not None:
        said["preference"] = None if preference == parse_dependencies.NONE else Preference.parse(preference)
    if exclusive is not None:
        said["exclusive"] = exclusive
    if sized:
        said["whole"] = False

    def place(placement: Placement) -> dict[str, Any]:
        if exclusive is False and placement.whole and not sized:
            raise BadRequest("it asked for all memory of the card: say how much it needs beside others, with --mem 6G")
        fields: dict[str, Any] = {} if device_filter is None else {"device": device_filter}
        return {**fields, "placement": replace(placement, **said)} if said else fields

    return place


def _which(
    words: Sequence[str], uuids_of: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[DeviceFilter | None, tuple[str, ...]]:
    """Return the device kind in *words*, or None, and the UUIDs of the devices that *words* name."""
    kinds = [word for word in words if word in list(DeviceFilter)]
    if kinds and len(words) > 1:
        raise BadRequest(f"--device {kinds[0]} stands for itself: say either a kind of device, or which devices")
    if kinds or not words:
        return DeviceFilter.parse(kinds[0]) if kinds else None, ()
    try:
        return DeviceFilter.ANY, tuple(uuids_of(words))  # a named device implies its kind
    except BadRequest as error:
        raise BadRequest(f"{error}; or say gpu, cpu or any") from None


def _words(what: str, value: DeviceFilter | str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else validation.words(what, value)
    return tuple(word.strip() for text in texts for word in str(text).split(","))
