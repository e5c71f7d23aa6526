"""Numbers and devices of a command line: what nothing could be measured with is refused before anything is started."""

from __future__ import annotations

import argparse
import math

from gpuqueue.errors import GpuQueueError
from workers.devices.choose import choose


def how_many(text: str) -> int:
    """Return how many of something there are to be: one or more.

    Raises:
        argparse.ArgumentTypeError: that is no such number.

    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return number


def duration_s(text: str) -> float:
    """Return how long something is watched, in seconds: more than no time, and not for ever.

    Raises:
        argparse.ArgumentTypeError: that is no such time.

    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


def devices(text: str) -> str:
    """Return the devices to serve, as ``gpuqueue up --devices`` takes them, if this machine has them.

    Raises:
        argparse.ArgumentTypeError: it has not, or nothing is called so.

    """
    try:
        choose(text, "bench").devices()
    except GpuQueueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
