"""Repairs that are safe without a confirmation. For all others, the report only shows the command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from gpuqueue.doctor import examination
from gpuqueue.doctor.queue import is_down
from gpuqueue.doctor.values import outside_of_jobs
from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.queue.diagnostics import queue_facts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall

#: Time limit of the repairs in this process, in seconds.
REPAIR_S = 15.0


def repair(environ: Mapping[str, str]) -> Iterator[str]:
    """Make the safe repairs, and yield a text for each repair, or for why it could not be made."""
    environ = outside_of_jobs(environ)
    settings, faults = Settings.salvage(environ)
    if faults:  # the site is unknown
        yield f"nothing was repaired: {faults[0]}"
        return
    try:
        owner = TimedCall(lambda: settings.state_dir.stat().st_uid, REPAIR_S).result()
    except CallFailed as why:
        yield f"nothing was repaired: {why}"
        return
    if owner != os.getuid():  # files created here would have the wrong owner
        yield f"nothing was repaired: {settings.state_dir} is not this account's; gpuqueue doctor shows whose it is"
        return
    try:
        yield from TimedCall(lambda: resume_after_a_killed_down(settings), REPAIR_S).result()
    except CallFailed as why:
        yield f"devices were left as they are: {why}"
    try:
        answer = examination.ask(environ, deep=False, fix=True)
    except GpuQueueError as error:
        yield f"runs were left as they are: {error}"
    else:
        yield from answer.repairs


def resume_after_a_killed_down(settings: Settings) -> list[str]:
    """Resume this machine's devices that a killed ``down`` left drained, and return a text for each.

    ``gpuqueue up`` does the same. Nothing is done if the host process does not run, or if an ``up`` or ``down`` is in
    progress. Drains by people stay.
    """
    machine = Machine(settings)
    if machine.host_running() is None:
        return []
    try:
        with machine.alone():
            here = [each for each in queue_facts(settings.redis_url).devices if each.status.host == settings.own_host]
            drained = [each.status.device for each in here if is_down(each)]
            if drained:
                machine.resume()
            return [
                f"device {device.index} ({device.uuid}) is no longer drained for a down that was killed"
                for device in drained
            ]
    except Refused:
        return []  # an up or down is in progress
