"""Parses the device values of a request or an edit into a device kind and a placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model import validation
from gpuqueue.model.device import KINDS, DeviceFilter
from gpuqueue.model.placement import ANYWHERE, Placement, Preference
from gpuqueue.model.validation import NONE

if TYPE_CHECKING:
    from gpuqueue.model import whole_jobs
    from gpuqueue.model.job_request import JobEdit, JobRequest
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.settings.settings import Settings
else:  # few jobs are for an engine
    whole_jobs = later("gpuqueue.model.whole_jobs")

#: Maps the names of devices to their UUIDs.
UuidsOf = Callable[[Sequence[str]], Sequence[str]]


def placed(request: JobRequest, uuids_of: UuidsOf) -> tuple[DeviceFilter | None, Placement]:
    """Return the device kind that a job requests (None: unspecified), and its placement.

    Raises:
        BadRequest: a name matches no device or several, or a device kind is mixed with names, or there is no such
            engine.

    """
    if request.on is not None:
        engine = DeviceFilter.of_engine(request.on)
        whole_jobs.check_request(request)
        return engine, ANYWHERE
    device_filter, uuids = _which(validation.listed("device", request.device), uuids_of)
    placement = Placement(
        exclusive=request.exclusive,
        whole=request.exclusive and request.mem is None,
        models=validation.listed("device_type", request.device_type),
        devices=uuids,
        preference=Preference.parse(request.preference) if request.preference is not None else None,
    )
    return device_filter, placement


def replaced(wanted: JobEdit, uuids_of: UuidsOf) -> Callable[[Placement], dict[str, Any]]:
    """Return a function that maps a spec's placement to the fields of the spec that change.

    The returned function raises BadRequest if the job would have no memory size.

    Raises:
        BadRequest: as for :func:`placed`.

    """
    changes: dict[str, Any] = {}
    device_filter, uuids = _which(validation.listed("device", wanted.device), uuids_of)
    if wanted.device is not None:
        changes["devices"] = uuids
    if wanted.device_type is not None:
        models = validation.listed("device_type", wanted.device_type)
        changes["models"] = () if models == (NONE,) else models
    if wanted.preference is not None:
        changes["preference"] = None if wanted.preference == NONE else Preference.parse(wanted.preference)
    if wanted.exclusive is not None:
        changes["exclusive"] = wanted.exclusive
    if wanted.mem is not None:
        changes["whole"] = False

    def place(placement: Placement) -> dict[str, Any]:
        if wanted.exclusive is False and placement.whole and wanted.mem is None:
            raise BadRequest(
                "the job asked for all memory of the card: "
                "give the memory that it needs beside other jobs, with --mem 6G"
            )
        fields: dict[str, Any] = {} if device_filter is None else {"device": device_filter}
        return {**fields, "placement": replace(placement, **changes)} if changes else fields

    return place


def counts_use(spec: JobSpec, settings: Settings) -> bool:
    """Return whether the job is placed by the utilisation of devices, so that its own must be known as well.

    An exclusive job never shares a device.
    """
    rule = spec.placement.preference or settings.placement
    return rule is Preference.LEAST_BUSY and not spec.placement.exclusive


def _which(words: Sequence[str], uuids_of: UuidsOf) -> tuple[DeviceFilter | None, tuple[str, ...]]:
    """Return the device kind in *words*, or None, and the UUIDs of the devices that *words* name."""
    kinds = [word for word in words if word in KINDS]
    if kinds and len(words) > 1:
        raise BadRequest(f"--device {kinds[0]} cannot be combined: name either a kind of device, or devices")
    if kinds or not words:
        return DeviceFilter.parse(kinds[0]) if kinds else None, ()
    try:
        return DeviceFilter.ANY, tuple(uuids_of(words))  # a named device implies its kind
    except BadRequest as error:
        raise BadRequest(f"{error}; or write gpu, cpu or any") from None
