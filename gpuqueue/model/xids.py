"""What the driver's Xid errors mean: which of them a program causes, and after which a GPU must be reset. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpuqueue.model.device import Xid

#: Xid errors after which a GPU works again only once it was reset (NVIDIA, "XID Errors", and the deployment guide of
#: its GPU memory error management). Those that name a wider range of remedies are only shown.
NEED_RESET = frozenset({62, 64, 79, 95, 119, 120, 140})
#: What the most frequent ones mean.
_MEANINGS: Mapping[int, str] = MappingProxyType(
    {
        13: "an error in a program's computation",
        31: "a program used memory that it does not have",
        43: "a program was stopped after an error of its own",
        45: "the work of a program was removed",
        48: "a memory error that could not be corrected",
        62: "the internal controller of the GPU stopped",
        63: "a row of memory was retired",
        64: "a row of memory could not be retired",
        74: "an error on an NVLink",
        79: "the GPU has fallen off the bus",
        94: "a memory error that ended one program",
        95: "a memory error that may have damaged other programs",
        119: "the GPU's system processor does not answer",
        120: "the GPU's system processor failed",
        140: "memory errors that could not be corrected",
    }
)


def in_words(xid: Xid) -> str:
    """Return a phrase about *xid*."""
    meaning = _MEANINGS.get(xid.code)
    return f"Xid {xid.code}, {meaning}" if meaning else f"Xid {xid.code}"


def trouble_after(xids: tuple[Xid, ...]) -> str | None:
    """Return why a device with these errors takes no new job, None if none of them needs a reset."""
    due = next((xid for xid in reversed(xids) if xid.code in NEED_RESET), None)
    if due is None:
        return None
    return f"the driver reported {in_words(due)}: reset the GPU, then start its worker again"
