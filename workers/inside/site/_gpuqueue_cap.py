"""Caps torch's allocator if an environment variable cannot.

There are three such cases: torch before 2.10, a torch of unknown version, and a script that sets
``PYTORCH_CUDA_ALLOC_CONF`` itself, which replaces the worker's value. This module waits for the import of
``torch.cuda`` and queues the cap among the calls that torch makes when it starts CUDA. The queue is private to torch
(``_lazy_call``); a torch without it gets no cap. This module does not start CUDA itself.
"""

import sys

TYPE_CHECKING = False  # importing typing would cost more than the rest of this module
if TYPE_CHECKING:
    from typing import Any

WANTED = "torch.cuda"


class Watcher:
    """A finder that is first in ``sys.meta_path`` until ``torch.cuda`` is imported, and then removes itself."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return None for every module except ``torch.cuda``; for that, the spec of another finder plus the cap."""
        if name != WANTED:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                add_step(spec.loader, self.fraction)
                return spec
        return None


def add_step(loader: "Any", fraction: float) -> None:
    """Change this *loader* object so that it queues the cap after it has run the module."""

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        loader.exec_module(module)
        queue(module, fraction)

    loader.exec_module = exec_module


def queue(cuda: "Any", fraction: float) -> None:
    """Queue the cap among the calls that torch makes when it starts CUDA."""
    try:
        cuda._lazy_call(lambda: cap(cuda, fraction))  # noqa: SLF001 - the only way that does not start CUDA
    except Exception:  # noqa: BLE001, S110 - no cap is better than no job
        pass


def cap(cuda: "Any", fraction: float) -> None:
    """Cap every visible device that neither the job nor an environment variable has capped already."""
    capped = getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # older torch lacks the getter
    try:
        for index in range(cuda.device_count()):
            if capped(index) >= 1.0:
                cuda.set_per_process_memory_fraction(fraction, index)
    except Exception:  # noqa: BLE001, S110 - as above
        pass


def install(fraction: float) -> None:
    """Cap torch at *fraction* of each device: at its import, or now in a warm interpreter that has imported it."""
    if WANTED in sys.modules:
        queue(sys.modules[WANTED], fraction)
    else:
        sys.meta_path.insert(0, Watcher(fraction))
