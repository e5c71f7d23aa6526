"""For jobs of tests that hold something until their worker has measured it. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bounded import until


def until_seen(**least: int) -> None:
    """Wait until the worker has saved at least these measurements of the run on each device: ``peak_bytes=2**30``.

    The names are those of the file ``meters`` in the run's directory, which the worker writes with each heartbeat.
    """
    _until(lambda meter: all((meter.get(name) or 0) >= value for name, value in least.items()), f"{least}")


def until_seen_last(held_bytes: int) -> None:
    """Wait until the worker's latest sample is *held_bytes*."""
    _until(lambda meter: [held_bytes] == meter.get("trace", {}).get("steps", [])[-1:], f"{held_bytes} bytes")


def _until(is_so: Callable[[Any], bool], what: str) -> None:
    meters, devices = Path(os.environ["GPUQUEUE_RUN_DIR"], "meters"), os.environ["GPUQUEUE_DEVICES"].split(",")

    def noted() -> bool:
        found = json.loads(meters.read_text())["devices"] if meters.exists() else {}
        return all(uuid in found and is_so(found[uuid]) for uuid in devices)

    until(noted, timeout_s=60.0, what=f"a look that finds {what}")
