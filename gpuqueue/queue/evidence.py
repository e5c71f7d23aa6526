"""What the end of a run says about its devices. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What the end of a run says about its devices; by default nothing.

    ``well``: the devices worked, which resets their count of quick deaths. ``against``: the devices that probably
    caused the quick death of the run, with ``why`` in a few words. Quick deaths of three different jobs in a row drain
    a device.
    """

    well: bool = False
    against: tuple[str, ...] = ()
    why: str = ""


NO_EVIDENCE = Evidence()
