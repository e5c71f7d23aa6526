"""The first step: repeats the admission check, because the devices may have changed since the claim."""

from __future__ import annotations

from workers.measure.active_runs import LiveRun
from workers.measure.admission import AdmissionCheck
from workers.steps.conclusion import NotStarted


class Check:
    """Checks that a claimed run still fits on its devices."""

    def __init__(self, admission: AdmissionCheck) -> None:
        self._admission = admission

    def check(self, run: LiveRun) -> None:
        """Return if *run* still fits.

        Raises:
            NotStarted: The run does not fit, or the devices cannot be sampled.

        """
        try:
            changed = self._admission.still_fits(run)
        except OSError as error:
            raise NotStarted(error.strerror or str(error), host_failed=True) from error
        if changed is not None:
            raise NotStarted(changed)
