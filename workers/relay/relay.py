"""The relay process of a host: its parts, and how they start and stop. The host process starts it.

With a service it runs always. Without one it packs the files that jobs keep, and ends when there are no more.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from gpuqueue.errors import unusable
from gpuqueue.settings.settings import Settings
from workers.relay.deliveries import POLL_S, Deliveries, Results
from workers.relay.logs import Followed, LogProgress
from workers.relay.packing import Packing
from workers.relay.requests import Requests
from workers.run import deliveries
from workers.run.files import lock

log = logging.getLogger(__name__)

#: The lock of the one relay of a state directory. A second one, as of another container, waits for it.
LOCK = "relay.lock"
#: Pause before a part that failed goes on, in seconds.
AGAIN_S = 5.0


class Relay:
    """The relay of one host. It knows the files of runs and the service, and neither store nor devices."""

    def __init__(self, settings: Settings, packing: Packing | None = None) -> None:
        self._settings = settings
        packing = packing or Packing()
        progress = LogProgress(settings)
        parts = Deliveries(settings, progress, Results(settings, packing))
        self._loops: dict[str, Callable[[threading.Event], None]] = {"logs": parts.send_logs, "files": parts.send_files}
        if settings.service_url is not None:
            followed = Followed(settings, progress)
            self._loops["followed"] = followed.loop
            self._loops["requests"] = Requests(settings, progress, packing, followed).loop

    def serve(self, stopping: threading.Event) -> None:
        """Work until *stopping* is set or, without a service, until no run has anything left to pack.

        Raises:
            GpuQueueError: The state directory cannot be used.

        """
        held = self._locked(stopping)
        if held is None:
            return
        try:
            for name, loop in self._loops.items():
                thread = threading.Thread(
                    target=self._restart_always, args=(name, loop, stopping), name=f"gpuqueue-{name}", daemon=True
                )
                thread.start()
            while not stopping.wait(POLL_S) and self._is_needed():
                pass
        finally:
            os.close(held)

    def _is_needed(self) -> bool:
        return self._settings.service_url is not None or any(True for _ in deliveries.settled(self._settings))

    def _locked(self, stopping: threading.Event) -> int | None:
        """Return the descriptor of the lock, or None if this process is not needed any more."""
        while not stopping.is_set() and self._is_needed():
            try:
                held = lock(str(self._settings.state_dir / LOCK))
            except OSError as error:
                raise unusable(self._settings.state_dir, error) from error
            if held is not None:
                return held
            stopping.wait(POLL_S)
        return None

    def _restart_always(self, name: str, loop: Callable[[threading.Event], None], stopping: threading.Event) -> None:
        """Run *loop* until *stopping* is set, and go on after an exception."""
        while not stopping.is_set():
            try:
                loop(stopping)
            except Exception as error:
                # A host that is short of a resource may be so for long: log no traceback each time.
                trace = not isinstance(error, OSError)
                log.error("the relay of %s failed, it goes on in a moment: %s", name, error, exc_info=trace)  # noqa: TRY400
                stopping.wait(AGAIN_S)
