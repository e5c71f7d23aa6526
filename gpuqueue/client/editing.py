"""Applies an edit to the spec of a waiting job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpuqueue.client import parse_dependencies, validation
from gpuqueue.client.placing import replaced
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job import JobSpec, Level
from gpuqueue.model.placement import Preference
from gpuqueue.model.retries import RetryOn
from gpuqueue.model.warning_signal import EarlySignal
from gpuqueue.text.units import parse_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """Changes to a waiting job. None leaves a field unchanged. ``Changing.edit`` documents the values."""

    mem: str | int | None = None
    gpus: int | None = None
    device: DeviceFilter | str | Sequence[str] | None = None
    device_type: str | Sequence[str] | None = None
    exclusive: bool | None = None
    preference: Preference | str | None = None
    time_limit: str | float | None = None
    signal: EarlySignal | str | None = None
    name: str | None = None
    level: Level | None = None
    pool: str | None = None
    after: str | int | Dependency | Sequence[str | int | Dependency] | None = None
    begin: str | datetime | None = None
    retries: int | None = None
    retry_on: str | Sequence[RetryOn] | None = None
    at_once: int | str | None = None

    def __bool__(self) -> bool:
        """Return whether any field changes."""
        return self != NOTHING

    def change(self, uuids_of: Callable[[Sequence[str]], Sequence[str]]) -> Callable[[JobSpec], JobSpec]:
        """Return a function that makes the changed spec. *uuids_of* maps names of devices to UUIDs.

        The returned function raises BadRequest if the changed spec is invalid.

        Raises:
            BadRequest: a value is malformed.

        """
        wanted = {**self._plain(), **self._limit()}
        waits = self._waits()
        place = replaced(
            self.device,
            self.device_type,
            self.preference,
            exclusive=self.exclusive,
            sized=self.mem is not None,
            uuids_of=uuids_of,
        )

        def changed(spec: JobSpec) -> JobSpec:
            return replace(
                spec,
                **wanted,
                **place(spec.placement),
                waits=replace(spec.waits, **waits),
                retries=parse_dependencies.other_retries(spec.retries, self.retries, self.retry_on),
                array=self._array(spec.array),
            )

        return changed

    def _plain(self) -> dict[str, Any]:
        wanted = {
            "mem_bytes": parse_bytes(self.mem) if isinstance(self.mem, str) else self.mem,
            "gpus": self.gpus,
            "name": self.name,
            "level": self.level,
            "pool": self.pool,
        }
        return {field: value for field, value in wanted.items() if value is not None}

    def _limit(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        if self.time_limit is not None:
            wanted["time_limit_s"] = (
                None if self.time_limit == parse_dependencies.NONE else validation.time_limit(self.time_limit)
            )
        if self.signal is not None:
            wanted["signal"] = None if self.signal == parse_dependencies.NONE else validation.early_signal(self.signal)
        return wanted

    def _waits(self) -> dict[str, Any]:
        waits: dict[str, Any] = {}
        if self.after is not None:
            waits["after"] = (
                ()
                if self.after in (parse_dependencies.NONE, (parse_dependencies.NONE,))
                else parse_dependencies.dependencies(self.after)
            )
        if self.begin is not None:
            waits["begin_at"] = parse_dependencies.begin(self.begin)
        return waits

    def _array(self, array: Array | None) -> Array | None:
        if self.at_once is None:
            return array
        if array is None:
            raise BadRequest("how many at once is said of an array: this job is none")
        if self.at_once == parse_dependencies.NONE:
            return replace(array, at_once=None)
        text = str(self.at_once)
        if not text.isascii() or not text.isdigit():
            raise BadRequest(f"at once there can be a number of members, or none for all that fit, not {text!r}")
        return replace(array, at_once=int(text))


NOTHING = Edit()
