"""How a GPU is, as far as NVML tells: each question that a card does not answer leaves only its own field open."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pynvml

from gpuqueue.model.device import HARDWARE_SLOWDOWN, HARDWARE_THERMAL, POWER_BRAKE, SOFTWARE_THERMAL, Health
from workers.devices.nvml_calls import Session

# Numbers of nvml.h, written out because older versions of pynvml lack some of the names.
_GPU_SENSOR = 0
_SLOWDOWN, _GPU_MAX = 1, 3
_MEMORY_TEMPERATURE, _SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT = 82, 194, 196
_UNCORRECTED, _SINCE_THE_DRIVER_STARTED = 1, 0
#: Bit by bit; the others (idle, clocks that a person set, the normal power cap) are no alarm.
_THROTTLED = {0x8: HARDWARE_SLOWDOWN, 0x20: SOFTWARE_THERMAL, 0x40: HARDWARE_THERMAL, 0x80: POWER_BRAKE}
#: Mode 1, exclusive to a thread, is long gone and was stricter still.
_MODES = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
#: Where a field's value lies, by its type.
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: The fields give a line as a distance from the card's T.Limit, which is near 0; anything like this is degrees.
_DEGREES_FROM = 40


def health_of(session: Session, handle: Any, parent: Any = None) -> Health:
    """Return how the GPU *handle* is; what a MIG instance does not know of itself is said of its *parent*.

    Raises:
        Refusal: the GPU or the driver is gone.

    """
    own = _look(session, handle)
    if parent is None:
        return own
    card = _look(session, parent)
    names = [field.name for field in fields(Health)]
    said = {name: getattr(own, name) for name in names}
    return Health(**{name: getattr(card, name) if said[name] is None else said[name] for name in names})


def _look(session: Session, handle: Any) -> Health:
    """Return how *handle* itself says it is.

    Raises:
        Refusal: the GPU or the driver is gone.

    """
    temperature_c = _temperature_c(session, handle)
    further = _further(session, handle)
    power_mw = session.maybe("nvmlDeviceGetPowerUsage", handle)
    rates = session.maybe("nvmlDeviceGetUtilizationRates", handle)
    errors = session.maybe("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_THE_DRIVER_STARTED)
    return Health(
        temperature_c=temperature_c,
        # A card without a sensor there says so or says 0.
        memory_temperature_c=further.get(_MEMORY_TEMPERATURE) or None,
        limit_c=_limit_c(session, handle, temperature_c, further),
        power_w=None if power_mw is None else power_mw / 1000,
        utilisation=None if rates is None else rates.gpu / 100,
        memory_utilisation=None if rates is None else rates.memory / 100,
        throttled=_throttled(session, handle),
        ecc_uncorrected=None if errors is None else int(errors),
        compute_mode=_MODES.get(session.maybe("nvmlDeviceGetComputeMode", handle)),
    )


def _temperature_c(session: Session, handle: Any) -> float | None:
    """Return the temperature by the new call, or by the one that every driver of these years has."""
    temperature = session.maybe("nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
    if temperature is None:
        temperature = session.maybe("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
    return None if temperature is None else float(temperature)


def _further(session: Session, handle: Any) -> dict[int, float]:
    """Return those of the numbered fields that this card knows."""
    ids = [_MEMORY_TEMPERATURE, _SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT]
    values = session.maybe("nvmlDeviceGetFieldValues", handle, ids) or ()
    return {
        int(each.fieldId): float(getattr(each.value, _VALUES[each.valueType]))
        for each in values
        if each.nvmlReturn == pynvml.NVML_SUCCESS and each.valueType < len(_VALUES)
    }


def _limit_c(session: Session, handle: Any, temperature_c: float | None, further: dict[int, float]) -> float | None:
    """Return the card's own line: where it begins to slow down, or else where it must.

    Ada and later cards give both up in the old call and tell them as numbered fields instead.
    """
    for threshold, field in ((_GPU_MAX, _GPU_MAX_TLIMIT), (_SLOWDOWN, _SLOWDOWN_TLIMIT)):
        degrees = session.maybe("nvmlDeviceGetTemperatureThreshold", handle, threshold)
        if degrees:
            return float(degrees)
        line = further.get(field)
        if line is None:
            continue
        if line >= 2**31:  # a negative line in an unsigned field
            line -= 2**32
        if line >= _DEGREES_FROM:
            return line
        # The margin is what is left now until T.Limit; a line of -2 lies two degrees beyond it.
        margin = session.maybe("nvmlDeviceGetMarginTemperature", handle)
        if margin is not None and temperature_c is not None:
            return temperature_c + float(margin) - line
    return None


def _throttled(session: Session, handle: Any) -> tuple[str, ...] | None:
    """Return what slows the card down now, by the call's new name or its old one."""
    bits = session.maybe("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:
        bits = session.maybe("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if bits is None else tuple(word for bit, word in _THROTTLED.items() if bits & bit)
