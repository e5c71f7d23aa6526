"""Caps torch's allocator where no variable can.

That is torch before 2.10, a torch whose version the worker does not know, and a script that sets
``PYTORCH_CUDA_ALLOC_CONF`` itself: torch then reads that one and not what the worker set. Waits
for the import of ``torch.cuda`` and leaves the cap among the calls that torch makes when it starts CUDA; that is
private to torch (``_lazy_call``), and where it is gone there is no cap. It does not start CUDA itself.
"""

import sys

TYPE_CHECKING = False  # importing typing would cost each start of a Python more than all the rest of this
if TYPE_CHECKING:
    from typing import Any

WANTED = "torch.cuda"


class Watcher:
    """Stands first among the finders until ``torch.cuda`` is imported, then leaves."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return None for every module but one; for that one what the others find, with our step added."""
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
    """Let *loader*, and only this one, queue the cap when it has run the module."""

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        loader.exec_module(module)
        queue(module, fraction)

    loader.exec_module = exec_module


def queue(cuda: "Any", fraction: float) -> None:
    """Leave the cap among the calls that torch makes when it starts CUDA."""
    try:
        cuda._lazy_call(lambda: cap(cuda, fraction))  # noqa: SLF001 - the only way that does not start CUDA
    except Exception:  # noqa: BLE001, S110 - no cap is better than no job
        pass


def cap(cuda: "Any", fraction: float) -> None:
    """Cap every device that the process sees and that is not capped already, by the job or by a variable."""
    capped = getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # older torch cannot tell
    try:
        for index in range(cuda.device_count()):
            if capped(index) >= 1.0:
                cuda.set_per_process_memory_fraction(fraction, index)
    except Exception:  # noqa: BLE001, S110 - as above
        pass


def install(fraction: float) -> None:
    """Cap torch at *fraction* of each device as soon as it is imported, or now: an interpreter in waiting has it."""
    if WANTED in sys.modules:
        queue(sys.modules[WANTED], fraction)
    else:
        sys.meta_path.insert(0, Watcher(fraction))
