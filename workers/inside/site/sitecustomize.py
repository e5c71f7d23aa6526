"""Runs at the start of each Python process of a job, and then runs the ``sitecustomize`` that it replaces.

It records when the process began and registers a report for the end of the process. Then it removes its directory from
``sys.path`` and imports the user's own ``sitecustomize``. PYTHONPATH stays set, so child processes are covered too.
This module never imports torch, and raises no exceptions of its own.

It uses no new syntax and no pathlib, because it must start fast in any Python version that the job uses.
"""

import atexit
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_DIR = os.environ.get("GPUQUEUE_RUN_DIR")

#: When this process began, on the host's monotonic clock. The reports show whether two processes overlapped in time.
began_s = time.monotonic()


def load(name: str) -> object:
    """Import a module from this directory, which is no longer on ``sys.path``."""
    sys.path.insert(0, HERE)
    try:
        return __import__(name)
    finally:
        sys.path.remove(HERE)


def report() -> None:
    """Write the memory report if torch was imported."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and "GPUQUEUE_EXEC" not in os.environ:  # a second command says nothing about the job
            load("_gpuqueue_report").write(torch, RUN_DIR, began_s)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001, S110 - the report must not break the job
        pass


def in_forked_child() -> None:
    """Register the report in a forked child of multiprocessing, which ends without atexit.

    multiprocessing discards the parent's finalizers in the child, so a new one is registered after the fork. Only a
    finalizer with a priority runs at the child's end, and the one with the lowest priority runs last.
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
    """Register the report for the end of this process and of its forks; cap torch if the worker requests that."""
    atexit.register(report)  # registered first, so called last, after the job's own exit handlers
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_forked_child)
    if os.environ.get("GPUQUEUE_TORCH_FRACTION"):
        load("_gpuqueue_cap").install(float(os.environ["GPUQUEUE_TORCH_FRACTION"]))  # type: ignore[attr-defined]


def take_over() -> None:
    """Register the report when a warm interpreter becomes a job."""
    global began_s, RUN_DIR
    began_s, RUN_DIR = time.monotonic(), os.environ.get("GPUQUEUE_RUN_DIR")
    try:
        install()
    except Exception:  # noqa: BLE001, S110 - as in report
        pass


def step_aside() -> None:
    """Run the ``sitecustomize`` that would run without this one. Its exceptions propagate as usual."""
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
elif os.environ.get("GPUQUEUE_WARM_ROOM"):  # a warm interpreter: workers.inside.warm_start calls take_over
    sys.modules["_gpuqueue_hook"] = sys.modules[__name__]
step_aside()
