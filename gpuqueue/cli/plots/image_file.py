"""The option ``--plot``, and writing a figure to its file.

matplotlib is an optional dependency, and ``show`` without ``--plot`` must start fast, so this module imports it only
when a figure is written.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.completion.candidates import files
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, GpuQueueError, install_extra
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg")


def picture_option(what: str) -> Callable[[Any], Any]:
    """Return the option ``--plot``, which is checked before the command does any work."""
    help_text = f"Write {what}: {' or '.join(KINDS)}."
    return click.option("--plot", metavar="FILE", callback=_checked, help=help_text, shell_complete=files)


def _checked(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Return *path* if a figure can be written there.

    Raises:
        BadRequest: The suffix is not supported, or the directory cannot be written to.
        GpuQueueError: matplotlib is not installed.

    """
    from importlib.util import find_spec  # noqa: PLC0415 - only for drawing

    if path is None:
        return None
    if Path(path).suffix.lower() not in KINDS:
        raise BadRequest(f"--plot cannot write {brief(path)}: name a file that ends in {' or '.join(KINDS)}")
    directory = Path(path).parent
    if os.path.isdir(path):  # noqa: PTH112 - unlike Path.is_dir it raises no error, for example for a long name
        raise BadRequest(_refusal(path, errno.EISDIR))
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise BadRequest(_refusal(path, errno.EACCES if directory.is_dir() else errno.ENOENT))
    if find_spec("matplotlib") is None:
        raise GpuQueueError(f"--plot needs matplotlib, which is not installed: {install_extra('plot')}")
    return path


def _refusal(path: str, error: int | None) -> str:
    why = os.strerror(error or errno.EIO)
    return f"cannot write {brief(path)}: {why}: name a file in a directory that you may write to"


def write(path: str, figure: Figure) -> None:
    """Write *figure* to *path*, in the format of its suffix. A reader never sees a part of the file.

    Raises:
        GpuQueueError: The file cannot be written. An existing file is unchanged.

    """
    import secrets  # noqa: PLC0415 - only for drawing

    from gpuqueue.cli.plots.charts import style  # noqa: PLC0415 - only for drawing

    kind = Path(path).suffix.lower().removeprefix(".")
    part = Path(path).with_name(f".{secrets.token_hex(8)}.part")  # without the file's own name, which may be very long
    try:
        with style():
            figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else None)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise GpuQueueError(_refusal(path, error.errno)) from error
    print_message("gpuqueue", f"{path} written")
