"""The first step: repeats the admission check, because the devices may have changed since the claim."""

from __future__ import annotations

from workers.measure.active_runs import LiveRun
from workers.measure.admission import AdmissionCheck
from workers.steps.conclusion import NotStarted


def check(run: LiveRun, admission: AdmissionCheck) -> LiveRun:
    """Return *run* if it still fits on its devices.

    Raises:
        NotStarted: The run does not fit, or the devices cannot be sampled.

    """
    try:
        changed = admission.still_fits(run)
    except OSError as error:
        raise NotStarted(error.strerror or str(error), host_failed=True) from error
    if changed is not None:
        raise NotStarted(changed)
    return run
