"""Measures what a CUDA context takes of this host's cards: by a process that has a context and nothing else.

It is measured once for each model of card and each version of the driver, when the first worker of such a card starts
and nothing runs there. The result is written down in the state directory. There is no figure if the driver does not
answer in time, or does not list the process, for example in a container with pids of its own: then it is tried again
at the next start. MPS has its contexts in its server, so a site with MPS measures none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.settings.settings import Settings
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.run.directory import unsettled
from workers.threads import in_time

log = logging.getLogger(__name__)

#: The program that has a context and nothing else.
PROGRAM = Path(__file__).with_name("context_only.py")
#: Longest time until it has its context, in seconds. Without persistence mode, a driver takes seconds.
READY_S = 10.0
#: Longest wait for the end of the program, in seconds.
GONE_S = 2.0
#: Longest wait for the driver's version, in seconds.
VERSION_S = 5.0


def with_context(settings: Settings, backend: DeviceBackend, device: Device) -> Device:
    """Return *device* with what a context takes there, and whether the driver lists the process that has it.

    It is measured now if nothing is written down. If it cannot be measured, the device is unchanged.
    """
    if device.kind is not DeviceKind.GPU or device.is_unidentified or settings.mps:
        return device
    driver = in_time(_driver_version, VERSION_S)
    if driver is None:
        return device
    try:
        with _locked(_path(settings)) as path:
            known = _read(path)
            if known.get("driver") != driver:
                known = {"driver": driver, "contexts": {}}
            sizes = known["contexts"]
            if device.name not in sizes:
                if any(unsettled(settings.runs_dir)) or backend.reading(device).processes:
                    return device  # a run is to be adopted soon, and a full card has no room for a context
                size = _measured(backend, device)
                if size is None:  # asked again at each start: a container may have the pids of the host next time
                    return replace(device, context_bytes=None, unlisted=True)
                sizes[device.name] = size
                path.write_text(json.dumps(known), encoding="utf-8")
            size = sizes[device.name]
            return replace(device, context_bytes=_size(size), unlisted=False)
    except (DeviceTrouble, OSError) as trouble:
        log.warning("the context of %s is not measured: %s", device.name, trouble)
        return device


def known_bytes(settings: Settings, models: Collection[str | None]) -> int | None:
    """Return the largest context on cards of these *models*; None if one of them was not measured."""
    if settings.mps:
        return None
    sizes = _read(_path(settings)).get("contexts", {})
    known = [_size(sizes.get(model)) for model in models]
    measured = [size for size in known if size is not None]
    return max(measured, default=None) if len(measured) == len(known) else None


def _size(plain: Any) -> int | None:
    return plain if isinstance(plain, int) and plain > 0 else None


def _path(settings: Settings) -> Path:
    return settings.state_dir / "devices" / "contexts.json"


def _read(path: Path) -> dict[str, Any]:
    """Return what was written down; empty if nothing readable was."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) and isinstance(plain.get("contexts"), dict) else {}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Let one worker of this host measure at a time: cards of one model are measured once."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(fd)


def _driver_version() -> str | None:
    from workers.devices.nvml_calls import Refusal, Session, text  # noqa: PLC0415 - only a host with GPUs needs pynvml

    try:
        return text(Session().maybe("nvmlSystemGetDriverVersion")) or None
    except Refusal:
        return None


def _measured(backend: DeviceBackend, device: Device) -> int | None:
    """Return what the driver reports for a process with a context on *device*.

    None if it does not list the process, and 0 if that has no context in time, which is not tried again.

    Raises:
        DeviceTrouble: the device does not answer, or lets no process have a context.

    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": device.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )
    try:
        answer = process.stdout
        if answer is None or not select.select([answer], [], [], READY_S)[0]:
            return 0
        if not answer.read(1):
            raise DeviceTrouble("no process can have a context there")
        return _size(backend.reading(device).processes.get(process.pid))
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a call of a driver that hangs does not end
            process.communicate(timeout=GONE_S)
