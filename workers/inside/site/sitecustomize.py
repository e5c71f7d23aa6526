"""Runs at the start of each Python process of a job; does next to nothing, then whatever was here without us.

It notes when the process began, leaves a report for its end, and steps out of the way: the user's own
``sitecustomize`` runs, ``sys.path`` is as it would be without us, and PYTHONPATH stays set, so that child
processes are covered as well. It never imports torch, and it raises nothing of its own.

Kept to old words (no new syntax, no pathlib): it must start fast in whatever Python the job brings.
"""

import atexit
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_DIR = os.environ.get("GPUQUEUE_RUN_DIR")

#: When this process began, on the host's monotonic clock: the report tells whether two lived at the same time.
began_s = time.monotonic()


def load(name: str) -> object:
    """Import one of the modules beside this one, which is not on the path any more."""
    sys.path.insert(0, HERE)
    try:
        return __import__(name)
    finally:
        sys.path.remove(HERE)


def report() -> None:
    """Tell what torch held, if it is there at all."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None:
            load("_gpuqueue_report").write(torch, RUN_DIR, began_s)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001, S110 - a report is never worth a job
        pass


def in_forked_child() -> None:
    """Cover a child of multiprocessing: it ends without atexit.

    A Finalize of its parent is thrown away in the child, so that a new one is made after that; only what has a
    priority is called at the child's end, and the lowest is the last.
    """
    global began_s  # noqa: PLW0603 - the child is a new process
    began_s = time.monotonic()
    util = sys.modules.get("multiprocessing.util")
    try:
        if util is not None:
            util.register_after_fork(in_forked_child, lambda _: util.Finalize(None, report, exitpriority=-1000))
    except Exception:  # noqa: BLE001, S110 - as in report
        pass


def install() -> None:
    """Leave word for the end of this process and of its forks; cap torch if the worker asks for that."""
    atexit.register(report)  # registered first, so called last: after whatever the job does at its end
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_forked_child)
    if os.environ.get("GPUQUEUE_TORCH_FRACTION"):
        load("_gpuqueue_cap").install(float(os.environ["GPUQUEUE_TORCH_FRACTION"]))  # type: ignore[attr-defined]


def take_over() -> None:
    """Begin now: the interpreter waited for a job, and has become one."""
    global began_s, RUN_DIR
    began_s, RUN_DIR = time.monotonic(), os.environ.get("GPUQUEUE_RUN_DIR")
    try:
        install()
    except Exception:  # noqa: BLE001, S110 - as in report
        pass


def step_aside() -> None:
    """Run the ``sitecustomize`` that would have run without us. Its errors are shown as they would have been."""
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if RUN_DIR:
    try:
        install()
    except Exception:  # noqa: BLE001, S110 - as in report
        pass
elif os.environ.get("GPUQUEUE_SPARE"):  # in waiting: workers.inside.warm_start calls take_over
    sys.modules["_gpuqueue_hook"] = sys.modules[__name__]
step_aside()
