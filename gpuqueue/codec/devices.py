"""Devices and their measurements: peaks, activity, timelines."""

from __future__ import annotations

from gpuqueue.codec.text import Plain, meaning
from gpuqueue.model.device import FIGURES, Activity, Device, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.text.json_fields import Fields


def device_to_plain(device: Device) -> Plain:
    """Return *device* as plain values."""
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "kind": device.kind.value,
        "total_bytes": device.total_bytes,
        "pci_bus": device.pci_bus,
        "mig_parent": device.mig_parent,
    }


def device_from_plain(plain: object) -> Device:
    """Return the device that *plain* describes."""
    what = "a device"
    fields = Fields(plain, what)
    with meaning(what):
        return Device(
            uuid=fields.text("uuid"),
            index=fields.whole("index"),
            name=fields.text("name"),
            kind=DeviceKind(fields.text("kind")),
            total_bytes=fields.whole("total_bytes"),
            pci_bus=fields.text_or_none("pci_bus"),
            mig_parent=fields.text_or_none("mig_parent"),
        )


def peak_to_plain(peak: Peak) -> Plain:
    """Return *peak* as plain values."""
    return {
        "bytes": peak.bytes,
        "source": peak.source.value,
        "samples": peak.samples,
        "na_samples": peak.na_samples,
        "interval_s": peak.interval_s,
        "shared": peak.shared,
    }


def peak_from_plain(plain: object) -> Peak:
    """Return the peak that *plain* describes."""
    what = "a peak"
    fields = Fields(plain, what)
    with meaning(what):
        return Peak(
            bytes=fields.whole_or_none("bytes"),
            source=PeakSource(fields.text("source")),
            samples=fields.whole("samples"),
            na_samples=fields.whole("na_samples"),
            interval_s=fields.number_or_none("interval_s"),
            shared=fields.flag_or_none("shared"),
        )


def activity_to_plain(activity: Activity) -> Plain:
    """Return *activity* as plain values."""
    return {name: getattr(activity, name) for name in FIGURES}


def activity_from_plain(plain: object) -> Activity:
    """Return the activity that *plain* describes."""
    fields = Fields(plain, "an activity")
    return Activity(**{name: fields.number_or_none(name) for name in FIGURES})


def timeline_to_plain(timeline: Timeline | None) -> Plain | None:
    """Return *timeline* as plain values, None for None."""
    return None if timeline is None else {"step_s": timeline.step_s, "bytes": list(timeline.bytes)}


def timeline_from_plain(plain: object) -> Timeline | None:
    """Return the timeline that *plain* describes, None for None."""
    if plain is None:
        return None
    fields = Fields(plain, "a timeline")
    return Timeline(step_s=fields.number("step_s"), bytes=fields.wholes_or_none("bytes"))
