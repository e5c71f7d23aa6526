"""The health of a GPU from NVML. A call that the card does not support leaves only its own field None.

A function here raises Refusal if NVML gives an error that it does not handle.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pynvml

from gpuqueue.model.device import HARDWARE_SLOWDOWN, HARDWARE_THERMAL, POWER_BRAKE, SOFTWARE_THERMAL, Health
from workers.devices.nvml_calls import Session

# Constants of nvml.h, written as numbers because older versions of pynvml lack some of the names.
_GPU_SENSOR = 0
_SLOWDOWN, _GPU_MAX = 1, 3
_SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT = 194, 196
_UNCORRECTED, _SINCE_THE_DRIVER_STARTED = 1, 0
#: Throttle reasons by bit. The other bits (idle, clocks set by a user, the normal power cap) are not alarming.
_THROTTLED = {0x8: HARDWARE_SLOWDOWN, 0x20: SOFTWARE_THERMAL, 0x40: HARDWARE_THERMAL, 0x80: POWER_BRAKE}
#: Compute modes. Mode 1 (exclusive to a thread) is obsolete and stricter than mode 3, so it is mapped to mode 3.
_MODES = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
#: The union member that holds a field's value, by the value's type.
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: From this value on, a threshold field is a temperature in degrees Celsius. Smaller values are distances from T.Limit,
#: which are near 0.
_DEGREES_FROM = 40


def health_of(session: Session, handle: Any, parent: Any = None) -> Health:
    """Return the health of the GPU *handle*. For a MIG instance, its card *parent* supplies the missing fields."""
    own = _read(session, handle)
    if parent is None:
        return own
    card = _read(session, parent)
    names = [field.name for field in fields(Health)]
    known = {name: getattr(own, name) for name in names}
    return Health(**{name: getattr(card, name) if known[name] is None else known[name] for name in names})


def _read(session: Session, handle: Any) -> Health:
    """Return the health that *handle* itself reports."""
    temperature_c = _temperature_c(session, handle)
    rates = session.maybe("nvmlDeviceGetUtilizationRates", handle)
    power_mw = session.maybe("nvmlDeviceGetPowerUsage", handle)
    errors = session.maybe("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_THE_DRIVER_STARTED)
    return Health(
        temperature_c=temperature_c,
        limit_c=_limit_c(session, handle, temperature_c, _further(session, handle)),
        utilisation=None if rates is None else rates.gpu / 100,
        memory_utilisation=None if rates is None else rates.memory / 100,
        power_w=None if power_mw is None else power_mw / 1000,
        throttled=_throttled(session, handle),
        ecc_uncorrected=None if errors is None else int(errors),
        compute_mode=_MODES.get(session.maybe("nvmlDeviceGetComputeMode", handle)),
    )


def _temperature_c(session: Session, handle: Any) -> float | None:
    """Return the temperature in degrees Celsius, by the new call or else by the older one."""
    temperature = session.maybe("nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
    if temperature is None:
        temperature = session.maybe("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
    return None if temperature is None else float(temperature)


def _further(session: Session, handle: Any) -> dict[int, float]:
    """Return the values of the numbered NVML fields that this card supports, by field id."""
    ids = [_SLOWDOWN_TLIMIT, _GPU_MAX_TLIMIT]
    values = session.maybe("nvmlDeviceGetFieldValues", handle, ids) or ()
    return {
        int(each.fieldId): float(getattr(each.value, _VALUES[each.valueType]))
        for each in values
        if each.nvmlReturn == pynvml.NVML_SUCCESS and each.valueType < len(_VALUES)
    }


def _limit_c(session: Session, handle: Any, temperature_c: float | None, further: dict[int, float]) -> float | None:
    """Return the temperature in degrees Celsius at which the card slows itself down, None if it is unknown.

    It is the GPU maximum, at which the card may slow down, or else the slowdown threshold, at which it must. Ada and
    later cards no longer support the old call for these thresholds, and report them as numbered fields instead.
    """
    for threshold, field in ((_GPU_MAX, _GPU_MAX_TLIMIT), (_SLOWDOWN, _SLOWDOWN_TLIMIT)):
        degrees = session.maybe("nvmlDeviceGetTemperatureThreshold", handle, threshold)
        if degrees:
            return float(degrees)
        line = further.get(field)
        if line is None:
            continue
        if line >= 2**31:  # a negative value in an unsigned field
            line -= 2**32
        if line >= _DEGREES_FROM:
            return line
        # The margin is the distance from now to T.Limit. A threshold of -2 is two degrees above T.Limit.
        margin = session.maybe("nvmlDeviceGetMarginTemperature", handle)
        if margin is not None and temperature_c is not None:
            return temperature_c + float(margin) - line
    return None


def _throttled(session: Session, handle: Any) -> tuple[str, ...] | None:
    """Return what slows the card down now, None if unknown. The call has a new name in newer versions."""
    bits = session.maybe("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:
        bits = session.maybe("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if bits is None else tuple(word for bit, word in _THROTTLED.items() if bits & bit)
