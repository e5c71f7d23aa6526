"""Slots: how many jobs a device may run at a time. They limit latency, independently of memory. Pure."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.placement import fits_model, words_of
from gpuqueue.text.sanitize import brief

#: Largest number of slots of a device, in any setting.
MOST_SLOTS = 1000
#: Slots of an engine, if the settings do not give it more: its jobs mostly wait, and cost this host little.
ENGINE_SLOTS = 64

_RULE = pattern(r"(.+)=([0-9]{1,4})")


def rules_of(text: str) -> tuple[tuple[str, int], ...]:
    """Return pairs of model and slots from *text*, such as ``T4=2, 1g.5gb=1``.

    Raises:
        BadRequest: *text* is malformed.

    """
    return tuple(_rule(part.strip()) for part in text.split(",")) if text.strip() else ()


def _rule(part: str) -> tuple[str, int]:
    match = _RULE.fullmatch(part)
    model, slots = (match[1].strip(), int(match[2])) if match else ("", 0)
    if not words_of(model) or not 1 <= slots <= MOST_SLOTS:
        raise BadRequest(f"{brief(part)} is no slot limit: write a part of a model's name and a number: T4=2, 1g.5gb=1")
    return model, slots


def slots_of(name: str, text: str, default: int) -> int:
    """Return the slots of a device with this model *name*: of the first rule of *text* that fits, else *default*."""
    return next((slots for model, slots in rules_of(text) if fits_model(model, name)), default)
