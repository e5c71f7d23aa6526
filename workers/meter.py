"""The figures of one run on one device, sample by sample. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuqueue.device import Peak, PeakSource

#: Time between two samples of a run that is no longer young, in seconds.
INTERVAL_S = 1.0


class Meter:
    """Keeps the largest sample and counts the looks."""

    def __init__(self) -> None:
        self.observed_bytes = 0
        #: For the watchdog: samples in a row with too much, and whether the job was told.
        self.excesses = 0
        self.warned = False
        self._peak_bytes: int | None = None
        self._samples = 0
        self._na_samples = 0
        self._shared: bool | None = None

    def to_plain(self) -> dict[str, int | bool | None]:
        """Return the figures as plain values."""
        return {
            "peak_bytes": self._peak_bytes,
            "samples": self._samples,
            "na_samples": self._na_samples,
            "shared": self._shared,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Meter:
        """Return a meter that goes on where another worker's was left."""
        meter = cls()
        meter._peak_bytes = plain["peak_bytes"]
        meter._samples = plain["samples"]
        meter._na_samples = plain["na_samples"]
        meter._shared = plain["shared"]
        return meter

    def note(self, used_bytes: int | None, *, shared: bool) -> None:
        """Take one sample: bytes, or None where the driver would not say; *shared* if others were on the device."""
        self._shared = bool(self._shared) or shared
        if used_bytes is None:
            self._na_samples += 1
            return
        self._samples += 1
        self.observed_bytes = used_bytes
        self._peak_bytes = max(self._peak_bytes or 0, used_bytes)

    def peak(self, source: PeakSource, *, at_least_bytes: int | None = None) -> Peak:
        """Return the peak; *at_least_bytes* is a maximum that the kernel kept, where there is one."""
        known = [figure for figure in (self._peak_bytes, at_least_bytes) if figure is not None]
        if not known:
            return Peak.unknown(na_samples=self._na_samples)
        return Peak(
            bytes=max(known),
            source=source,
            samples=self._samples,
            na_samples=self._na_samples,
            interval_s=INTERVAL_S,
            shared=self._shared,
        )
