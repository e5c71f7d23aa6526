"""Parsers of command-line values. They refuse unusable values before anything is started."""

from __future__ import annotations

import argparse
import math

import sqlalchemy as sa

from gpuqueue.errors import GpuQueueError, HistoryUnreachable
from gpuqueue.history.connect import open_engine
from workers.devices.select import choose


def how_many(text: str) -> int:
    """Return a number of one or more.

    Raises:
        argparse.ArgumentTypeError: *text* is no such number.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return number


def duration_s(text: str) -> float:
    """Return a positive, finite number of seconds.

    Raises:
        argparse.ArgumentTypeError: *text* is no such number.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


def postgres_url(text: str) -> str:
    """Return the URL of a PostgreSQL database that answers. Nothing is left there.

    Raises:
        argparse.ArgumentTypeError: it does not answer, or is no PostgreSQL. The message has no password.
    """
    try:
        engine = open_engine(text)
        if engine.dialect.name != "postgresql":
            raise argparse.ArgumentTypeError("that is no PostgreSQL database: write postgresql://USER@HOST/NAME")
        engine.connect().close()
        engine.dispose()
    except HistoryUnreachable as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except sa.exc.DBAPIError as error:  # the history's own message would say what happens to jobs meanwhile
        raise argparse.ArgumentTypeError(f"it does not answer: {' '.join(str(error.orig).split())}") from error
    return text


def devices(text: str) -> str:
    """Return the devices to serve, as ``gpuqueue up --devices`` takes them, if this machine has them.

    Raises:
        argparse.ArgumentTypeError: the machine lacks them, or the text names no devices.
    """
    try:
        choose(text, "bench").devices()
    except GpuQueueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
