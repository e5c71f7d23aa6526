"""How much of a device's work was done for one run. Pure.

If a run is alone on a device, the device's utilisation is that of the run. Otherwise only figures by process
show it, which some drivers and cards do not report. What nobody reports is unknown (None), never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuqueue.model.device import Health, Utilisation
from workers.measure.sample import Sample


def own_utilisation(
    token: str, sample: Sample, health: Health, by_process: Callable[[], Mapping[int, Utilisation] | None]
) -> Utilisation | None:
    """Return the utilisation of the sampled device by the run with this token, or None if it is unknown.

    Args:
        token: The run.
        sample: The latest sample of the device.
        health: The health of the device at about the same time.
        by_process: Returns the utilisation by each process, or None if the driver does not report it. It is called only
            if the device's utilisation is not enough.

    """
    share = sample.measured(token)
    if share is None or sample.device.mig_parent is not None:  # the utilisation of a MIG instance is that of its card
        return None
    others = any(run.alive for run in sample.runs if run.token != token)
    is_alone = not others and sample.reading.processes.keys() <= share.pids
    if is_alone and share.pids and health.utilisation:
        return Utilisation(busy=health.utilisation, memory=health.memory_utilisation)
    found = by_process()
    if found is not None and _is_whole(found, sample, health):
        own = [found[pid] for pid in share.pids if pid in found]
        memory = [each.memory for each in own if each.memory is not None]
        return Utilisation(
            busy=min(1.0, sum(each.busy for each in own)),
            memory=min(1.0, sum(memory)) if len(memory) == len(own) else None,
        )
    if is_alone and health.utilisation == 0:
        return Utilisation(busy=0.0, memory=health.memory_utilisation)
    return None


def _is_whole(found: Mapping[int, Utilisation], sample: Sample, health: Health) -> bool:
    """Return whether *found* has all work of the device, so that a run without a figure did not use it.

    A pid that the device does not list may be a process of another pid namespace, or of the run, that has just ended.
    A device that works for nobody in *found* works for a process that the driver does not report.
    """
    return (
        found.keys() <= sample.reading.processes.keys()
        and health.utilisation is not None
        and (bool(found) or health.utilisation == 0)
    )
