"""From what a person says of devices to a wish and a placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuqueue import checks
from gpuqueue.device import DeviceWish
from gpuqueue.errors import BadRequest
from gpuqueue.placement import Placement, Preference


def placed(
    device: DeviceWish | str | Sequence[str] | None,
    device_type: str | Sequence[str] | None,
    preference: Preference | str | None,
    *,
    exclusive: bool,
    sized: bool,
    uuids_of: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[DeviceWish | None, Placement]:
    """Return on what kind of device a job wants to run (None: it does not say), and what else it says of its devices.

    *sized* is whether it says how much memory it needs, *uuids_of* looks up devices by what people call them.

    Raises:
        BadRequest: a name means no device or several, or words and names are mixed.

    """
    words = _words("device", device)
    kinds = [word for word in words if word in list(DeviceWish)]
    if kinds and len(words) > 1:
        raise BadRequest(f"--device {kinds[0]} stands for itself: say either a kind of device, or which devices")
    try:
        uuids = () if kinds or not words else tuple(uuids_of(words))
    except BadRequest as error:
        raise BadRequest(f"{error}; or say gpu, cpu or any") from None
    placement = Placement(
        exclusive=exclusive,
        whole=exclusive and not sized,
        models=_words("device_type", device_type),
        devices=uuids,
        preference=Preference.parse(preference) if preference is not None else None,
    )
    if placement.devices:
        return DeviceWish.ANY, placement  # whoever names a device says of what kind it is
    return DeviceWish.parse(kinds[0]) if kinds else None, placement


def _words(what: str, value: DeviceWish | str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else checks.words(what, value)
    return tuple(word.strip() for text in texts for word in str(text).split(","))
